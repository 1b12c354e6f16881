//! S1-split: turnaround split by packets, against what tshark, the database's log and the web server say of the same run.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Outcome, requested};
use acceptance::{root, vmscope};

/// What a part may differ by: 2 %, or this.
const NS: f64 = 200_000.0;
const PERCENT: f64 = 2.0;
const LIMIT: &str = "mean: 2 % or 0.2 ms";

/// Nginx, a Python program and each database, in network namespaces behind a bridge.
pub(super) fn by_packets(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for database in ["postgres", "mysql"] {
        let folder = files.join(database);
        std::fs::create_dir_all(&folder)?;
        // The database's own user must get there.
        open_to_all(files)?;
        open_to_all(&folder)?;
        let stage = root().join("tests/experiments/split/stage");
        let status = Command::new(stage).arg(&folder).arg(database).arg(vmscope()?).status();
        ensure!(
            status.context("failed to run the stage")?.success(),
            "the stage of {database} failed"
        );
        outcomes.extend(compared(&folder, database)?);
    }
    Ok(outcomes)
}

fn open_to_all(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A request that ran alone, by its parts in ns.
struct Alone {
    id: String,
    /// Times between an answer and the next query.
    gaps: f64,
    parts: Parts,
}

/// C-W-D, W-D-W, D-W-D, D-W-C.
type Parts = [f64; 4];

fn compared(folder: &Path, database: &'static str) -> anyhow::Result<Vec<Outcome>> {
    let split = requested_of(&folder.join("tcpdump.pcap"))?;
    let requests = split["requests"].as_array().context("no requests")?;
    let mut outcomes =
        vec![totals(&folder.join("tcpdump.pcap"), requests, database)?, sums(&split, database)];
    let alone: Vec<Alone> = requests.iter().filter_map(Alone::from_request).collect();
    ensure!(150 <= alone.len(), "{} requests with queries were alone", alone.len());
    let packets = packets(&folder.join("tcpdump.pcap"), database)?;
    outcomes.push(parts_by_packets(&alone, &packets, database)?);
    let logged = logged(&std::fs::read_to_string(folder.join("db.log"))?, database);
    let in_database = |one: &Alone| Some((one.parts[1], *logged.get(&one.id)?));
    let what = format!("{database}: W-D-W and the database's log");
    outcomes.push(Difference::new(alone.iter().filter_map(in_database)).outcome(what));
    let stamps = stamps(&std::fs::read_to_string(folder.join("web.log"))?);
    let between = |one: &Alone| {
        let stamp = stamps.get(&one.id).filter(|_| 0.0 < one.gaps)?;
        Some((one.parts[2] / one.gaps, stamp / one.gaps))
    };
    let what = format!("{database}: each D-W-D and the web server's clock");
    outcomes.push(Difference::new(alone.iter().filter_map(between)).outcome(what));
    outcomes.push(captures_agree(folder, requests, database)?);
    Ok(outcomes)
}

fn requested_of(capture: &Path) -> anyhow::Result<Value> {
    requested("lab", Path::new("split"), &[capture.to_str().context("the path is not UTF-8")?])
}

impl Alone {
    /// `None`: it did not run alone, or has no queries.
    fn from_request(request: &Value) -> Option<Self> {
        let id = id(request["target"].as_str()?)?;
        let ns = |field: &str| request[field].as_f64();
        let queries = request["queries"].as_f64().filter(|queries| 0.0 < *queries)?;
        let is_alone = id.starts_with("simple") && !id.contains('-') && id != "simple0";
        is_alone.then_some(())?;
        let parts = ["c_w_d_ns", "w_d_w_ns", "d_w_d_ns", "d_w_c_ns"].map(ns);
        let [Some(before), Some(database), Some(between), Some(after)] = parts else { return None };
        Some(Self { id, gaps: queries - 1.0, parts: [before, database, between, after] })
    }
}

/// Of `/page?id=ID&...`.
fn id(target: &str) -> Option<String> {
    let (_, rest) = target.split_once("id=")?;
    Some(rest.split('&').next()?.to_owned())
}

/// Ours and a witness's.
struct Difference {
    n: usize,
    mean_ours: f64,
    mean: f64,
    p95: f64,
    within: usize,
}

impl Difference {
    fn new(pairs: impl Iterator<Item = (f64, f64)>) -> Self {
        let pairs: Vec<(f64, f64)> = pairs.collect();
        let n = pairs.len();
        let mut differences: Vec<f64> =
            pairs.iter().map(|(ours, other)| (ours - other).abs()).collect();
        let is_within = |(ours, other): &&(f64, f64)| (ours - other).abs() <= limit(*other);
        let within = pairs.iter().filter(is_within).count();
        differences.sort_by(f64::total_cmp);
        let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n.max(1) as f64;
        Self {
            n,
            mean_ours: mean_of(&mut pairs.iter().map(|(ours, _)| *ours)),
            mean: mean_of(&mut pairs.iter().map(|(ours, other)| ours - other)),
            p95: differences.get(n * 95 / 100).copied().unwrap_or(f64::NAN),
            within,
        }
    }

    fn outcome(&self, what: String) -> Outcome {
        Outcome {
            mark: "S1-split",
            what,
            original: "-",
            ours: format!(
                "{:.3} ms, {:+.3} ms; 95 %: {:.3} ms; {} of {} within",
                self.mean_ours / 1e6,
                self.mean / 1e6,
                self.p95 / 1e6,
                self.within,
                self.n
            ),
            limit: LIMIT,
            pass: 90 < self.n && self.mean.abs() <= limit(self.mean_ours),
        }
    }
}

fn limit(ns: f64) -> f64 {
    NS.max(ns * PERCENT / 100.0)
}

fn tshark(capture: &Path, filter: &str, fields: &[&str]) -> anyhow::Result<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["-n", "-Y", filter, "-T", "fields", "-E", "separator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().context("failed to run tshark")?;
    if !output.status.success() {
        bail!("tshark failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// `1.000000123` in ns.
fn ns(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.')?;
    Some(
        whole.parse::<u64>().ok()? * 1_000_000_000
            + format!("{fraction:0<9}").parse::<u64>().ok()?,
    )
}

/// Every turnaround is what tshark's `http.time` says.
fn totals(capture: &Path, requests: &[Value], database: &str) -> anyhow::Result<Outcome> {
    let rows = tshark(capture, "http.response", &["http.response_for.uri", "http.time"])?;
    let witness: HashMap<String, u64> =
        rows.iter().filter_map(|row| Some((id(row.first()?)?, ns(row.get(1)?)?))).collect();
    let ours = requests.iter().filter_map(|request| {
        Some((id(request["target"].as_str()?)?, request["turnaround_ns"].as_u64()?))
    });
    let (mut n, mut same, mut most) = (0, 0, 0);
    for (id, turnaround) in ours {
        let other = *witness.get(&id).with_context(|| format!("tshark has no request {id}"))?;
        n += 1;
        same += usize::from(other == turnaround);
        most = most.max(other.abs_diff(turnaround));
    }
    Ok(Outcome {
        mark: "S1-split",
        what: format!("{database}: turnaround and tshark's http.time"),
        original: "-",
        ours: format!(
            "{same} of {n} the same to the ns, {} known to tshark; {most} ns at most",
            witness.len()
        ),
        limit: "all the same",
        pass: 0 < n && same == n && n == witness.len(),
    })
}

/// Parts add up, and requests at the same time are split only where that is possible.
fn sums(split: &Value, database: &str) -> Outcome {
    let requests = split["requests"].as_array().map_or(&[][..], Vec::as_slice);
    let parts = ["c_w_d_ns", "w_d_w_ns", "d_w_d_ns", "d_w_c_ns", "c_w_c_ns"];
    let known: Vec<&Value> =
        requests.iter().filter(|request| request["unknown"].is_null()).collect();
    let adds_up = |request: &&&Value| {
        let sum: u64 = parts.iter().filter_map(|part| request[*part].as_u64()).sum();
        Some(sum) == request["turnaround_ns"].as_u64()
    };
    let exact = known.iter().filter(adds_up).count();
    let counts = &split["counts"];
    Outcome {
        mark: "S1-split",
        what: format!("{database}: parts add up"),
        original: "-",
        ours: format!(
            "{exact} of {} known, {} requests; trips: {} by time, {} by transaction, {} ambiguous",
            known.len(),
            requests.len(),
            counts["by_time"],
            counts["by_transaction"],
            counts["ambiguous"]
        ),
        limit: "all, to the ns",
        pass: !known.is_empty() && exact == known.len(),
    }
}

/// Parts are what tshark's list of packets says. Packets that two CPUs captured may have each other's place in the file.
fn parts_by_packets(
    alone: &[Alone],
    packets: &HashMap<String, Parts>,
    database: &str,
) -> anyhow::Result<Outcome> {
    let (mut same, mut most) = (0, 0.0_f64);
    for one in alone {
        let other = packets.get(&one.id).context("tshark lacks a request")?;
        same += usize::from(one.parts == *other);
        let apart = one.parts.iter().zip(other).map(|(one, other)| (one - other).abs());
        most = apart.fold(most, f64::max);
    }
    Ok(Outcome {
        mark: "S1-split",
        what: format!("{database}: parts and tshark's packets"),
        original: "-",
        ours: format!("{same} of {} the same to the ns; {most} ns at most", alone.len()),
        limit: "0.01 ms",
        pass: !alone.is_empty() && most <= 10_000.0,
    })
}

/// Parts of requests by the packets to and from the database meanwhile, in ns. Right where nothing else runs.
fn packets(capture: &Path, database: &str) -> anyhow::Result<HashMap<String, Parts>> {
    let port = if database == "postgres" { "5432" } else { "3306" };
    let filter = format!("http.request or http.response or (tcp.port == {port} and tcp.len > 0)");
    let fields =
        ["frame.time_epoch", "http.request.full_uri", "http.response_for.uri", "tcp.dstport"];
    let mut found = HashMap::new();
    let mut parts = Parts::default();
    // The request, the last packet's time, and the part that follows it.
    let mut now: Option<(String, u64, usize)> = None;
    let mut rows = Vec::new();
    for row in tshark(capture, &filter, &fields)? {
        let [time, ..] = row.as_slice() else { bail!("tshark: {row:?}") };
        rows.push((ns(time).context("tshark's time")?, row));
    }
    // A packet that another CPU took may stand before an earlier one.
    rows.sort_by_key(|(at, _)| *at);
    for (at, row) in rows {
        let [_, request, response, to] = row.as_slice() else { bail!("tshark: {row:?}") };
        if !request.is_empty() {
            (now, parts) = (id(request).map(|id| (id, at, 0)), Parts::default());
            continue;
        }
        let Some((id, last, part)) = &mut now else { continue };
        let is_answer = response.is_empty() && to != port;
        // Up to each further packet of an answer it is the database's time.
        let was = if is_answer { 1 } else { *part };
        let passed = at - *last;
        parts[was] += passed as f64;
        (*last, *part) = (at, if is_answer { 2 } else { 1 });
        if !response.is_empty() {
            // What was taken for a time between queries was the one after them.
            parts[3] = if was == 2 { passed as f64 } else { 0.0 };
            parts[2] -= parts[3];
            found.insert(std::mem::take(id), parts);
            now = None;
        }
    }
    Ok(found)
}

/// What the log says that the queries of each request took, in ns.
fn logged(log: &str, database: &str) -> HashMap<String, f64> {
    let mut found: HashMap<String, f64> = HashMap::new();
    let mut seconds = 0.0;
    for line in log.lines() {
        let word_after = |mark: &str| -> Option<f64> {
            line.split_once(mark)?.1.split_whitespace().next()?.parse().ok()
        };
        if database == "postgres" {
            seconds = word_after("duration: ").unwrap_or(0.0) / 1e3;
        } else if let Some(time) = word_after("Query_time: ") {
            seconds = time;
        }
        if let Some((_, rest)) = line.split_once("/* id=")
            && let Some(id) = rest.split(' ').next()
        {
            *found.entry(id.to_owned()).or_default() += seconds * 1e9;
        }
    }
    found
}

/// What the web server's clock says that passed between answers and queries, in ns.
fn stamps(log: &str) -> HashMap<String, f64> {
    let line = |line: &str| {
        let (id, times) = line.split_once(' ')?;
        let times: Vec<f64> = times.split(' ').filter_map(|time| time.parse().ok()).collect();
        // Begun, then pairs, then written.
        let inner = times.get(2..times.len().checked_sub(2)?)?;
        Some((id.to_owned(), inner.chunks_exact(2).map(|pair| pair[1] - pair[0]).sum::<f64>()))
    };
    log.lines().filter_map(line).collect()
}

/// `vmscope lab capture` on two taps has the same requests. The kernel takes the time for each socket by itself, so times
/// differ by microseconds.
fn captures_agree(folder: &Path, requests: &[Value], database: &str) -> anyhow::Result<Outcome> {
    let ours = requested_of(&folder.join("taps.pcapng"))?;
    let own = ours["requests"].as_array().map_or(&[][..], Vec::as_slice);
    let times: HashMap<&str, &Value> =
        own.iter().filter_map(|request| Some((request["target"].as_str()?, request))).collect();
    let mut most = 0;
    let mut same = 0;
    for request in requests {
        let Some(other) = request["target"].as_str().and_then(|target| times.get(target)) else {
            continue;
        };
        let differ = |field: &str| {
            let both = [request[field].as_u64(), other[field].as_u64()];
            let [Some(one), Some(other)] = both else { return (both[0] == both[1]).then_some(0) };
            Some(one.abs_diff(other))
        };
        let fields = ["turnaround_ns", "c_w_d_ns", "w_d_w_ns", "d_w_d_ns", "d_w_c_ns"];
        let differences: Option<Vec<u64>> = fields.into_iter().map(differ).collect();
        same += usize::from(differences.is_some());
        most = most.max(differences.into_iter().flatten().max().unwrap_or(0));
    }
    let dropped = &ours["counts"]["dropped_by_capture"];
    Ok(Outcome {
        mark: "S1-split",
        what: format!("{database}: vmscope lab capture and tcpdump"),
        original: "-",
        ours: format!(
            "{same} of {} requests have the same parts, {:.3} ms apart at most; {dropped} packets dropped",
            requests.len(),
            most as f64 / 1e6
        ),
        limit: "all; 0.2 ms",
        pass: same == requests.len() && own.len() == requests.len() && most <= 200_000,
    })
}
