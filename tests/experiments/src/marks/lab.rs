//! S1: many VMs on one host, with `vmscope lab consolidate`; and the load generator against servers whose delays are known.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Outcome, requested};
use acceptance::{root, run};

/// One loaded VM beside eleven idle ones.
const FEW: u64 = 1;
const MANY: u64 = 12;

/// What a remedy's effect is held to.
const HELPS: &str = "less";
const NO_EFFECT: &str = "no sure effect";
/// What the second of two figures is held to.
const GROWS: &str = "grows";
const LESS: &str = "less";

/// What idle VMs with ticking timers cost a loaded VM, and what helps.
pub(super) fn idle_vms(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let report = measured(files, "idle")?;
    let mean = |treatment: &str, vms| figure(&report, "answers", treatment, vms, "mean_ms");
    let switches =
        |treatment: &str, vms| figure(&report, "host", treatment, vms, "context_switches_per_s");
    let as_it_is = |figure: &dyn Fn(&str, u64) -> anyhow::Result<f64>| -> anyhow::Result<[f64; 2]> {
        Ok([figure("as it is", FEW)?, figure("as it is", MANY)?])
    };
    let mut outcomes = vec![
        changes("S1-idle", "turnaround, 1 and 12 VMs", GROWS, (as_it_is(&mean)?, "ms"), GROWS),
        changes(
            "S1-idle",
            "context switches, 1 and 12 VMs",
            "over 30,000 /s with 32 VMs",
            (as_it_is(&switches)?, "/s"),
            GROWS,
        ),
    ];
    let ticking = figure(&report, "idle", "as it is", MANY, "cpu_percent_each")?;
    let tickless = figure(&report, "idle", "tickless", MANY, "cpu_percent_each")?;
    outcomes.push(Outcome {
        mark: "S1-idle",
        what: "an idle VM: 250 Hz, tickless".to_owned(),
        original: "100 Hz and 17 Hz help",
        ours: format!("{ticking:.2} % and {tickless:.2} % of a CPU"),
        limit: "less",
        pass: tickless < ticking,
    });
    let expected = [
        ("tickless", "100 Hz, 17 Hz: less", HELPS),
        ("weight 1 of idle", "-", HELPS),
        ("one group, nice 19 of idle", "nice 19: less", HELPS),
        ("own groups, nice 19 of idle", "-", NO_EFFECT),
    ];
    for (treatment, original, limit) in expected {
        outcomes.push(effect("S1-idle", &report, treatment, original, limit)?);
    }
    Ok(outcomes)
}

/// The remedies of the original beside what guests have: slower timers, and nice 19 of all VMs.
pub(super) fn timers(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let report = measured(files, "timer")?;
    let mean = |treatment: &str| figure(&report, "answers", treatment, MANY, "mean_ms");
    let interrupts =
        |treatment: &str| figure(&report, "idle", treatment, MANY, "injected_per_s_each");
    let switches =
        |treatment: &str| figure(&report, "host", treatment, MANY, "context_switches_per_s");
    let mut outcomes = Vec::new();
    for (fast, slow) in [("1000 Hz", "as it is"), ("as it is", "100 Hz"), ("100 Hz", "17 Hz")] {
        let mut compare = |what: &str, unit, figure: &dyn Fn(&str) -> anyhow::Result<f64>| {
            let what = format!("{what}, 12 VMs: {fast} and {slow}");
            let pair = [figure(fast)?, figure(slow)?];
            outcomes.push(changes("S1-timer", &what, LESS, (pair, unit), LESS));
            anyhow::Ok(())
        };
        compare("interrupts of an idle VM", "/s", &interrupts)?;
        compare("turnaround", "ms", &mean)?;
        // 12 VMs of 1000 Hz leave no CPU time: there can't be more switches.
        if fast != "1000 Hz" {
            compare("context switches", "/s", &switches)?;
        }
    }
    for treatment in ["100 Hz", "17 Hz", "17 Hz, nice 19 of all"] {
        outcomes.push(effect("S1-timer", &report, treatment, "less", HELPS)?);
    }
    let huge = figure(&report, "idle", "huge pages", MANY, "huge_mib_each")?;
    outcomes.push(Outcome {
        mark: "S1-timer",
        what: "huge pages of an idle VM of 128 MiB".to_owned(),
        original: "-",
        ours: format!("{huge:.1} MiB"),
        limit: "some",
        pass: 0.0 < huge,
    });
    Ok(outcomes)
}

/// More and more idle VMs beside four loaded ones, far beyond what is comfortable.
pub(super) fn ladder(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let report = measured(files, "ladder")?;
    let rows = report["predictions"].as_array().context("no predictions")?;
    let predicted = rows.iter().filter(|row| row["says"] == "predicted");
    let mut outcomes: Vec<Outcome> = predicted
        .filter_map(|row| {
            let (reported, found) = (row["predicted_ms"].as_f64()?, row["measured_ms"].as_f64()?);
            let error = 100.0 * (reported / found - 1.0);
            Some(Outcome {
                mark: "S1-ladder",
                what: format!("mean turnaround with {} VMs", row["vms"]),
                original: "-",
                ours: format!("predicted {reported:.1} ms, measured {found:.1} ms: {error:+.1} %"),
                limit: "15 %",
                pass: error.abs() <= 15.0,
            })
        })
        .collect();
    ensure!(!outcomes.is_empty(), "nothing was predicted");
    for vms in [32, 64] {
        let each = figure(&report, "idle", "as it is", vms, "private_mib_each")?;
        let cpu = figure(&report, "idle", "as it is", vms, "cpu_percent_each")?;
        let failed = figure(&report, "answers", "as it is", vms, "failed_percent")?;
        outcomes.push(Outcome {
            mark: "S1-ladder",
            what: format!("an idle VM of {vms}"),
            original: "-",
            ours: format!("{each:.1} MiB, {cpu:.2} % of a CPU; {failed:.1} % of requests failed"),
            limit: "20 MB",
            pass: each * 1.048_576 <= 20.0,
        });
    }
    Ok(outcomes)
}

/// One plan run twice.
pub(super) fn twice(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let [a, b] = ["a", "b"].map(|name| files.join(name));
    for files in [&a, &b] {
        measured(files, "twice")?;
    }
    let [a, b] = [a, b].map(|files| files.join("result").display().to_string());
    let compared = requested("lab", Path::new("compare"), &[&a, &b])?;
    let rows = compared["verdicts"].as_array().context("no verdicts")?;
    let outcomes = rows.iter().map(|row| Outcome {
        mark: "S1-twice",
        what: format!("VMs at the service level in two runs, {}", row["treatment"]),
        original: "-",
        ours: format!("{} and {}", row["a_takes"], row["b_takes"]),
        limit: "the same",
        pass: row["verdicts"] == "agree",
    });
    Ok(outcomes.collect())
}

/// A real web server, application server and database in each VM.
pub(super) fn web(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let report = measured(files, "web")?;
    let outcome = |vms: u64| -> anyhow::Result<Outcome> {
        let answer = |key| figure(&report, "answers", "as it is", vms, key);
        let (mean, failed) = (answer("mean_ms")?, answer("failed_percent")?);
        Ok(Outcome {
            mark: "S1-web",
            what: format!("nginx, gunicorn and PostgreSQL in each of {vms} VMs"),
            original: "Ruby on Rails",
            ours: format!("mean {mean:.0} ms, {failed:.1} % of requests failed"),
            limit: "none failed",
            pass: failed <= 0.0,
        })
    };
    let mut outcomes = vec![outcome(4)?, outcome(8)?];
    let each = figure(&report, "idle", "as it is", 8, "private_mib_each")?;
    outcomes.push(Outcome {
        mark: "S1-web",
        what: "an idle one of 8".to_owned(),
        original: "-",
        ours: format!("{each:.1} MiB"),
        limit: "40 MiB",
        pass: each <= 40.0,
    });
    Ok(outcomes)
}

/// Pages are requested one after the other, first while nothing else wants the CPU.
const PAGES: &str = "
    ask() { curl -sf -m 60 -o page \"http://10.10.0.2/list?category=$1\"; }
    until ask 1; do sleep 1; done
    pages() {
        vmscope trace record --vm web -o $1-trace --duration 10m & trace=$!
        vmscope lab capture tap0 -o $1.pcapng & capture=$!
        # Those before the capture and the guest's trace have begun are not split.
        for n in $(seq 80); do ask $n; sleep 0.1; done
        kill -INT $capture $trace
        wait $capture
        wait $trace
        vmscope lab split $1.pcapng --trace $1-trace --vm web=10.10.0.2 --format json >$1.json
        vmscope lab split $1.pcapng --trace $1-trace --vm web=10.10.0.2 >&2
    }
    for n in $(seq 10); do ask $n; done
    pages alone
    vmscope testbed exec b -- compute & compute=$!
    pages beside
    kill $compute";

/// Where the time of a page goes that takes one query, in a guest that has web server, application and database; and where it
/// grows when another VM wants the CPU.
pub(super) fn parts(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    super::in_slow_scenario("web", files, &format!("set -e\n{PAGES}"))?;
    let of = |name: &str| -> anyhow::Result<[f64; 3]> {
        let text = std::fs::read_to_string(files.join(format!("{name}.json")))?;
        let split: Value = serde_json::from_str(&text)?;
        let requests = split["requests"].as_array().context("no requests")?;
        let ms = |request: &Value, part: &str| Some(request[part].as_f64()? / 1e6);
        let each: Vec<[f64; 3]> = requests
            .iter()
            .filter_map(|request| {
                let part = |name| ms(request, name);
                Some([part("c_w_d_ns")?, part("w_d_w_ns")?, part("d_w_c_ns")?])
            })
            .collect();
        ensure!(20 <= each.len(), "{} of {} requests were split", each.len(), requests.len());
        let mean = |at: usize| each.iter().map(|parts| parts[at]).sum::<f64>() / each.len() as f64;
        Ok([mean(0), mean(1), mean(2)])
    };
    let (alone, beside) = (of("alone")?, of("beside")?);
    let outcome = |what: &str, [before, database, after]: [f64; 3]| Outcome {
        mark: "S1-parts",
        what: what.to_owned(),
        original: "D-W-C is the longest",
        ours: format!("C-W-D {before:.1} ms, W-D-W {database:.1} ms, D-W-C {after:.1} ms"),
        // Which is the longest depends on how much the page makes of its rows.
        limit: "each is reported",
        pass: 0.0 < before.min(database).min(after),
    };
    Ok(vec![
        outcome("a page of one query, alone", alone),
        outcome("beside a VM that wants the CPU", beside),
        outcome("what it grew by", [0, 1, 2].map(|at| beside[at] - alone[at])),
    ])
}

/// The generator against a server whose delays are known, and one that stalls.
pub(super) fn generator(_files: &Path) -> anyhow::Result<Vec<Outcome>> {
    // 500 to 1499 ms, each once: so long that it does not matter when a busy machine wakes the server.
    let uniform = serve(|n| Duration::from_millis(500 + (n * 617) % 1000))?;
    let stalled = stalling()?;
    let mut outcomes = percentiles(uniform, "0.5 to 1.5 s", |percent| 500.0 + 10.0 * percent)?;
    // Of each per cent of the requests the last one waited for 100 ms less.
    let of_stall = |percent: f64| 4000.0 - 100.0 * (100.0 - percent);
    outcomes.extend(percentiles(stalled, "4 s of 10 stalled", of_stall)?);
    Ok(outcomes)
}

fn measured(files: &Path, plan: &str) -> anyhow::Result<Value> {
    let plan = root().join(format!("tests/experiments/lab/{plan}.toml"));
    let result = files.join("result");
    let (plan, folder) = (plan.to_str(), result.to_str());
    let (plan, folder) = plan.zip(folder).context("the path is not UTF-8")?;
    let ran = run(&["lab", "consolidate", plan, "-o", folder, "--timeout", "30m"])?;
    eprint!("{}", String::from_utf8_lossy(&ran.stderr));
    ensure!(ran.status.success(), "vmscope lab consolidate failed");
    let text = run(&["lab", "report", folder])?;
    eprint!("{}", String::from_utf8_lossy(&text.stdout));
    requested("lab", Path::new("report"), &[folder])
}

fn row<'a>(report: &'a Value, table: &str, treatment: &str, vms: u64) -> Option<&'a Value> {
    let mut rows = report[table].as_array()?.iter();
    rows.find(|row| row["treatment"] == treatment && row["vms"] == vms)
}

fn figure(
    report: &Value,
    table: &str,
    treatment: &str,
    vms: u64,
    key: &str,
) -> anyhow::Result<f64> {
    let row = row(report, table, treatment, vms);
    let found = row.and_then(|row| row[key].as_f64());
    found.with_context(|| format!("no {key} of {treatment} with {vms} VMs"))
}

/// Two figures, and whether the second is as it should be.
fn changes(
    mark: &'static str,
    what: &str,
    original: &'static str,
    ours: ([f64; 2], &str),
    limit: &'static str,
) -> Outcome {
    let ([one, other], unit) = ours;
    Outcome {
        mark,
        what: what.to_owned(),
        original,
        ours: format!("{one:.1} and {other:.1} {unit}: {:.2} times", other / one),
        limit,
        pass: if limit == GROWS { one < other } else { other < one },
    }
}

/// By which part a treatment changes turnarounds with many VMs.
fn effect(
    mark: &'static str,
    report: &Value,
    treatment: &str,
    original: &'static str,
    limit: &'static str,
) -> anyhow::Result<Outcome> {
    let row = row(report, "effects", treatment, MANY);
    let row = row.with_context(|| format!("no effect of {treatment}"))?;
    let change = row["mean_percent"].as_f64().context("no change")?;
    let (low, high) =
        (row["percentile_low_percent"].as_f64(), row["percentile_high_percent"].as_f64());
    let interval = low
        .zip(high)
        .map_or_else(String::new, |(low, high)| format!("; 95 %: {low:+.0} to {high:+.0} %"));
    let says_nothing = row["sure"] == "no";
    Ok(Outcome {
        mark,
        what: format!("{treatment}: turnaround"),
        original,
        ours: format!("mean {change:+.1} %{interval}"),
        limit,
        pass: if limit == HELPS { change < 0.0 } else { says_nothing },
    })
}

fn percentiles(
    server: SocketAddr,
    what: &str,
    expected_ms: impl Fn(f64) -> f64,
) -> anyhow::Result<Vec<Outcome>> {
    let url = format!("http://{server}/");
    let words =
        [url.as_str(), "--rate", "100", "--constant", "--warm-up", "0", "--connections", "500"];
    let load = requested("lab", Path::new("load"), &words)?;
    ensure!(load["sent"] == load["answered"], "requests failed: {}", load["failed"]);
    let rows = load["percentiles"].as_array().context("no percentiles")?;
    let outcome = |percent: f64| {
        let row = rows.iter().find(|row| row["percent"] == percent)?;
        let (ours, expected) = (row["ns"].as_f64()? / 1e6, expected_ms(percent));
        let error = 100.0 * (ours / expected - 1.0);
        Some(Outcome {
            mark: "S1-load",
            what: format!("{what}: {percent} % within"),
            original: "-",
            ours: format!("{ours:.2} ms, known: {expected:.0} ms: {error:+.2} %"),
            limit: "1 %",
            pass: error.abs() <= 1.0,
        })
    };
    [90.0, 95.0, 99.0].into_iter().map(|percent| outcome(percent).context("no row")).collect()
}

/// A server that answers its request n after `delay(n)`.
fn serve(delay: impl Fn(u64) -> Duration + Send + Sync + 'static) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen")?;
    let address = listener.local_addr()?;
    let (delay, counted) = (Arc::new(delay), Arc::new(AtomicU64::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (delay, counted) = (Arc::clone(&delay), Arc::clone(&counted));
            std::thread::spawn(move || answer(stream, &*delay, &counted));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, delay: &dyn Fn(u64) -> Duration, counted: &AtomicU64) {
    let mut request = [0; 4096];
    while stream.read(&mut request).is_ok_and(|n| 0 < n) {
        std::thread::sleep(delay(counted.fetch_add(1, Ordering::Relaxed)));
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// Answers at once, but for four seconds from its 500th request on, in which it answers nothing.
fn stalling() -> anyhow::Result<SocketAddr> {
    let began = Instant::now();
    let end_ns = AtomicU64::new(0);
    serve(move |n| {
        let now = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if n == 500 {
            end_ns.store(now + 4_000_000_000, Ordering::SeqCst);
        }
        Duration::from_nanos(end_ns.load(Ordering::SeqCst).saturating_sub(now))
    })
}
