//! A server as a source: its HTTP API, by any client.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::http::{Answer, FindingList, FleetAnswer};
use chrono::{DateTime, SecondsFormat};
use detect::{Finding, Summary};
use model::{
    CpuTimeRow, ExitsRow, HealthRow, HostRow, ResultCode, ResultRow, ResultThief, Results,
    ThiefKind, VcpuTimeRow, VmLabels, VmRow, WindowKey,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::source::{AskError, IsOverToo, Part, Source, Span, instant};

/// Rows of functions that are read; the rest is one row for each VM and state.
const ROWS: usize = 6000;
/// Call paths of an answer: more than it can show.
const PATHS: usize = 200;
/// Bytes of a page's address.
const MAX_PAGE: usize = 512;
/// What is meant where no time is given.
const USUAL_US: i64 = 3_600_000_000;
/// A longer time takes the server too long.
const LONGEST_US: i64 = 7 * 24 * USUAL_US;

/// What a client sends.
#[derive(Debug)]
pub enum Request<'a> {
    /// GET a path with parameters.
    Get { path: &'a str, parameters: Vec<(&'a str, &'a str)> },
    /// POST JSON to a path.
    Post { path: &'a str, json: String },
}

/// A fleet that a client reaches.
pub struct Fleet<C> {
    client: C,
    page: String,
    now_us: fn() -> i64,
}

impl<C> std::fmt::Debug for Fleet<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}

impl<C: Fn(&Request<'_>) -> Result<String, AskError>> Fleet<C> {
    /// `client` sends requests, `page` is the address of the server's page, `now_us` is the time in us since 1970.
    pub fn new(client: C, page: &str, now_us: fn() -> i64) -> Self {
        Self { client, page: page.trim_end_matches('/').to_owned(), now_us }
    }

    fn get<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        parameters: Vec<(&str, &str)>,
    ) -> Result<T, AskError> {
        parsed(&(self.client)(&Request::Get { path, parameters })?)
    }

    /// Rows of a `SELECT` on a host's or all hosts' results of a time.
    fn rows(
        &self,
        select: &str,
        scope: &Scope<'_>,
        rest: &str,
        partial: &mut Vec<String>,
    ) -> Result<Vec<Row>, AskError> {
        let sql = format!("{select} WHERE {} {rest}", scope.condition());
        let json = json!({
            "sql": sql, "host": scope.host,
            "from": rfc3339(scope.span.from_us), "to": rfc3339(scope.span.to_us),
        });
        let request = Request::Post { path: "/v1/sql", json: json.to_string() };
        let answer: Answer = parsed(&(self.client)(&request)?)?;
        partial.extend(
            answer
                .partial
                .into_iter()
                .filter(|reason| !partial.contains(reason))
                .collect::<Vec<_>>(),
        );
        let names: Vec<String> = answer.columns.into_iter().map(|column| column.name).collect();
        let row = |values: Vec<Value>| Row(names.iter().cloned().zip(values).collect());
        Ok(answer.rows.into_iter().map(row).collect())
    }
}

/// Whose rows, and of what time.
struct Scope<'a> {
    host: Option<&'a str>,
    span: Span,
}

impl Scope<'_> {
    fn condition(&self) -> String {
        let host = self.host.map_or(String::new(), |host| format!("host = {} AND ", quoted(host)));
        let (from, to) = (rfc3339(self.span.from_us), rfc3339(self.span.to_us));
        format!("{host}slice >= '{from}' AND slice < '{to}'")
    }
}

/// A text in SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn rfc3339(unix_us: i64) -> String {
    let time = DateTime::from_timestamp_micros(unix_us);
    time.map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, AskError> {
    serde_json::from_str(text)
        .map_err(|error| AskError::Source(format!("the server's answer can't be read: {error}")))
}

/// A row of an answer.
struct Row(BTreeMap<String, Value>);

impl Row {
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    fn name(&self, name: &str) -> String {
        self.text(name).unwrap_or_default()
    }

    fn n(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn n32(&self, name: &str) -> u32 {
        u32::try_from(self.n(name)).unwrap_or(u32::MAX)
    }

    fn code(&self) -> ResultCode {
        ResultCode {
            process: self.text("process"),
            thread: self.text("thread"),
            function: self.text("function"),
            module: self.text("module"),
            build_id: self.text("build_id"),
            ..ResultCode::default()
        }
    }

    fn vcpu_time(&self) -> VcpuTimeRow {
        let kind = self.text("thief_kind").map(|kind| ThiefKind::from_name(&kind));
        let thief_is =
            kind.map(|kind| ResultThief { kind, name: self.text("thief_name"), pid: None });
        VcpuTimeRow {
            vm: self.name("vm"),
            vcpu: 0,
            state: self.name("state"),
            code: self.code(),
            stack: None,
            thief: self.text("thief"),
            thief_vm: self.text("thief_vm"),
            thief_is,
            exit_reason: self.text("exit_reason"),
            ns: self.n("ns"),
            corrected_ns: self.n("corrected_ns"),
            samples: self.n("samples"),
        }
    }
}

/// The rows of the other tables.
impl Row {
    fn host(&self) -> HostRow {
        HostRow {
            length_ns: self.n("length_ns"),
            hostname: self.name("hostname"),
            kernel: self.name("kernel"),
            vmscope_version: self.name("version"),
            period_ns: self.n("period_ns"),
            cpus: self.n32("cpus"),
            vms: self.n32("vms"),
            samples: self.n("samples"),
            samples_lost: self.n("lost"),
            samples_missed: self.n("missed"),
        }
    }

    fn vm(&self) -> VmRow {
        VmRow {
            vm: self.name("vm"),
            pid: self.n32("pid"),
            vcpus: self.n32("vcpus"),
            vcpu_ns: self.n("vcpu_ns"),
            steal_outside_ns: None,
            steal_vmm_ns: None,
            throttled_ns: None,
            map_via: None,
            no_map_reason: self.text("no_map_reason"),
            labels: VmLabels {
                project: self.text("project"),
                owner: self.text("owner"),
                ..VmLabels::default()
            },
        }
    }

    fn cpu_time(&self) -> CpuTimeRow {
        CpuTimeRow {
            cpu: 0,
            level: self.name("level"),
            vm: self.text("vm"),
            code: self.code(),
            stack: None,
            ns: self.n("ns"),
            samples: self.n("samples"),
        }
    }

    fn exits(&self) -> ExitsRow {
        ExitsRow {
            vm: self.name("vm"),
            vcpu: 0,
            exit_reason: self.name("exit_reason"),
            exits: self.n("exits"),
        }
    }

    fn health(&self) -> HealthRow {
        let count = self.0.get("n").and_then(Value::as_u64);
        HealthRow { subject: self.name("subject"), what: self.name("what"), count }
    }
}

/// What is left of each VM and state once the rows that were read are taken away.
fn rest(states: Vec<Row>, read: &[VcpuTimeRow]) -> Vec<VcpuTimeRow> {
    let mut taken = BTreeMap::<(&str, &str), [u64; 3]>::new();
    for row in read {
        let sums = taken.entry((&row.vm, &row.state)).or_default();
        for (sum, n) in sums.iter_mut().zip([row.ns, row.corrected_ns, row.samples]) {
            *sum += n;
        }
    }
    let left = states.into_iter().filter_map(|state| {
        let row = state.vcpu_time();
        let [ns, corrected_ns, samples] =
            taken.get(&(row.vm.as_str(), row.state.as_str())).copied().unwrap_or_default();
        let left = VcpuTimeRow {
            ns: row.ns.saturating_sub(ns),
            corrected_ns: row.corrected_ns.saturating_sub(corrected_ns),
            samples: row.samples.saturating_sub(samples),
            ..row
        };
        (0 < left.ns).then_some(left)
    });
    left.collect()
}

impl<C: Fn(&Request<'_>) -> Result<String, AskError>> Source for Fleet<C> {
    fn kind(&self) -> &'static str {
        "fleet"
    }

    fn page(&self, host: Option<&str>, vm: Option<&str>, span: Span) -> Option<String> {
        let place = match (host, vm) {
            (Some(_), Some(_)) => "vm",
            (Some(_), None) => "host",
            (None, _) => "",
        };
        let parts = [Some(place), host, vm].into_iter().flatten();
        let path: Vec<String> =
            parts.map(|part| utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()).collect();
        let (from, to) = (rfc3339(span.from_us), rfc3339(span.to_us));
        let page = format!("{}/#/{}?from={from}&to={to}", self.page, path.join("/"));
        // Half of it would lead nowhere.
        (page.len() <= MAX_PAGE).then_some(page)
    }

    fn whole(&self) -> Span {
        let to_us = (self.now_us)();
        Span { from_us: to_us.saturating_sub(USUAL_US), to_us }
    }

    fn instant(&self, text: &str) -> Result<i64, AskError> {
        instant(text, (self.now_us)(), i64::saturating_sub)
    }

    fn time(&self, unix_us: i64) -> String {
        rfc3339(unix_us)
    }

    fn host(&self, host: Option<&str>, vm: Option<&str>, span: Span) -> Result<String, AskError> {
        let vm = match (host, vm) {
            (Some(host), _) => return Ok(host.to_owned()),
            (None, Some(vm)) => vm,
            (None, None) => {
                let text = "give `host`, or `vm`: what-is-wrong lists them";
                return Err(AskError::Arguments(text.to_owned()));
            }
        };
        let and = format!("AND vm = {} GROUP BY host ORDER BY host LIMIT 20", quoted(vm));
        let scope = Scope { host: None, span };
        let rows = self.rows("SELECT host FROM vms", &scope, &and, &mut Vec::new())?;
        match &rows[..] {
            [row] => Ok(row.name("host")),
            [] => Err(AskError::Arguments(
                "no host has a VM of this name in this time: what-is-wrong lists VMs".to_owned(),
            )),
            rows => {
                let hosts: Vec<String> = rows.iter().map(|row| row.name("host")).collect();
                let hosts = Value::from(hosts);
                Err(AskError::Arguments(format!("several hosts have this VM: give one of {hosts}")))
            }
        }
    }

    fn part(&self, host: &str, span: Span) -> Result<Part, AskError> {
        if LONGEST_US < span.to_us.saturating_sub(span.from_us) {
            let text = "at most 7 days at a time: give `from` and `to` closer together";
            return Err(AskError::Arguments(text.to_owned()));
        }
        let scope = Scope { host: Some(host), span };
        let mut partial = Vec::new();
        let mut rows = |select: &str, rest: &str| self.rows(select, &scope, rest, &mut partial);
        let hosts = rows(
            "SELECT count(*) AS windows, sum(length_ns) AS length_ns, min(hostname) AS hostname,
                    max(kernel) AS kernel, max(vmscope_version) AS version, max(period_ns) AS period_ns,
                    max(cpus) AS cpus, max(vms) AS vms, sum(samples) AS samples,
                    sum(samples_lost) AS lost, sum(samples_missed) AS missed FROM hosts",
            "",
        )?;
        let Some(of_host) = hosts.first().filter(|row| 0 < row.n("windows")) else {
            let text = "no windows of this host begin in this time: give another `from` and `to`";
            return Err(AskError::Arguments(text.to_owned()));
        };
        let of_host = of_host.host();
        let sums = "sum(ns) AS ns, sum(corrected_ns) AS corrected_ns, sum(samples) AS samples";
        let columns = "vm, state, process, thread, function, module, build_id, thief, thief_vm, \
                       thief_kind, thief_name, exit_reason";
        let select = format!("SELECT {columns}, {sums} FROM vcpu_time");
        let and = format!("GROUP BY {columns} ORDER BY ns DESC LIMIT {ROWS}");
        let mut vcpu_time: Vec<VcpuTimeRow> =
            rows(&select, &and)?.iter().map(Row::vcpu_time).collect();
        let states =
            rows(&format!("SELECT vm, state, {sums} FROM vcpu_time"), "GROUP BY vm, state")?;
        let left = rest(states, &vcpu_time);
        vcpu_time.extend(left);
        let columns = "level, vm, process, function, module";
        let select =
            format!("SELECT {columns}, sum(ns) AS ns, sum(samples) AS samples FROM cpu_time");
        let and = format!("GROUP BY {columns} ORDER BY ns DESC LIMIT {ROWS}");
        let cpu_time = rows(&select, &and)?;
        let vms = rows(
            "SELECT vm, max(pid) AS pid, max(vcpus) AS vcpus, sum(vcpu_ns) AS vcpu_ns,
                    max(no_map_reason) AS no_map_reason, max(project) AS project,
                    max(owner) AS owner FROM vms",
            "GROUP BY vm LIMIT 1000",
        )?;
        let exits = rows(
            "SELECT vm, exit_reason, sum(exits) AS exits FROM exits",
            "GROUP BY vm, exit_reason ORDER BY exits DESC LIMIT 1000",
        )?;
        let health = rows(
            "SELECT subject, what, sum(count) AS n, max(count) AS most FROM health",
            "GROUP BY subject, what ORDER BY n DESC LIMIT 100",
        )?;
        let window =
            Arc::new(WindowKey { host: host.to_owned(), boot: String::new(), window_ns: 0 });
        let mut in_span = InSpan { window, slice_unix_us: span.from_us };
        let results = Results {
            vcpu_time: in_span.rows(vcpu_time),
            cpu_time: in_span.rows(cpu_time.iter().map(Row::cpu_time)),
            exits: in_span.rows(exits.iter().map(Row::exits)),
            hosts: in_span.rows([of_host]),
            vms: in_span.rows(vms.iter().map(Row::vm)),
            health: in_span.rows(health.iter().map(Row::health)),
        };
        let summary = Summary::from_results(&results);
        let summary = summary.ok_or_else(|| AskError::Source("no host was read".to_owned()))?;
        Ok(Part { host: host.to_owned(), span, results, summary, partial })
    }

    fn findings(
        &self,
        host: Option<&str>,
        vm: Option<&str>,
        is_over_too: IsOverToo,
    ) -> Result<Option<Vec<Finding>>, AskError> {
        let open = (is_over_too == IsOverToo::No).then_some("open");
        let given = [("host", host), ("vm", vm), ("state", open)];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let list: FindingList = self.get("/v1/findings", given.collect())?;
        let found = list.findings.into_iter().map(Finding::try_from);
        let mut found = found.collect::<Result<Vec<_>, _>>().map_err(|error| {
            AskError::Source(format!("the server sent invalid findings: {error}"))
        })?;
        let cpus = |it: &Finding| it.symptoms.iter().map(|symptom| symptom.cpus).sum::<f64>();
        if is_over_too == IsOverToo::No {
            found.sort_by(|a, b| cpus(b).total_cmp(&cpus(a)));
        }
        Ok(Some(found))
    }

    fn lost(&self, span: Span) -> Result<Option<FleetAnswer>, AskError> {
        let (from, to) = (rfc3339(span.from_us), rfc3339(span.to_us));
        self.get("/v1/fleet", vec![("from", &from), ("to", &to), ("slots", "1")]).map(Some)
    }

    fn paths(&self, vm: Option<&str>, part: &Part) -> Result<Vec<(String, u64)>, AskError> {
        let scope = Scope { host: Some(&part.host), span: part.span };
        let (select, of_vm) = match vm {
            Some(vm) => {
                let select = "SELECT stack, sum(corrected_ns) AS ns FROM vcpu_time";
                (select, format!("AND vm = {} ", quoted(vm)))
            }
            None => ("SELECT stack, sum(ns) AS ns FROM cpu_time", String::new()),
        };
        let rest = format!(
            "{of_vm}AND stack IS NOT NULL GROUP BY stack ORDER BY ns DESC, stack LIMIT {PATHS}"
        );
        let rows = self.rows(select, &scope, &rest, &mut Vec::new())?;
        if rows.is_empty() {
            let text = "no call paths are known here: leave `paths` out, or set `call_graph = true` for the agent";
            return Err(AskError::Arguments(text.to_owned()));
        }
        Ok(rows.iter().map(|row| (row.name("stack"), row.n("ns"))).collect())
    }
}

/// What all rows of a span have in common.
struct InSpan {
    window: Arc<WindowKey>,
    slice_unix_us: i64,
}

impl InSpan {
    fn rows<T>(&mut self, rows: impl IntoIterator<Item = T>) -> Vec<ResultRow<T>> {
        let row = |row| ResultRow {
            window: Arc::clone(&self.window),
            slice_unix_us: self.slice_unix_us,
            row,
        };
        rows.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_stay_texts_in_sql() {
        for name in crate::questions::test::HOSTILE {
            let quoted = quoted(name);
            let inside = &quoted[1..quoted.len() - 1];
            assert!(!inside.replace("''", "").contains('\''), "{quoted}");
        }
        let scope = Scope { host: Some("a'b"), span: Span { from_us: 0, to_us: 1_000_000 } };
        let expected =
            "host = 'a''b' AND slice >= '1970-01-01T00:00:00Z' AND slice < '1970-01-01T00:00:01Z'";
        assert_eq!(scope.condition(), expected);
    }

    #[test]
    fn what_was_not_read_is_one_row_for_each_state() {
        let row = |state: &str, function: Option<&str>, ns: u64| {
            let values = json!({
                "vm": "a", "state": state, "function": function, "ns": ns,
                "corrected_ns": ns, "samples": 1,
            });
            let Value::Object(values) = values else { panic!("an object") };
            Row(values.into_iter().collect())
        };
        let read = [row("guest_user", Some("f"), 7).vcpu_time()];
        let states = vec![row("guest_user", None, 10), row("halt", None, 5)];
        let left = rest(states, &read);
        let left: Vec<_> = left.iter().map(|row| (row.state.as_str(), row.ns)).collect();
        assert_eq!(left, [("guest_user", 3), ("halt", 5)]);
    }
}
