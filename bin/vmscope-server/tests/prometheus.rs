//! What Prometheus scrapes, its rules and Grafana's dashboard: checked by Prometheus' own programs.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::outside::{Outside, free_port, started};
use common::{Place, Server, hostile_window, now_ns, replayed, wait_until};
use export::pprof::proto::Profile;
use prost::Message;
use serde_json::{Value, json};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// Whether this machine has promtool.
fn has_promtool() -> bool {
    let found = Command::new("promtool").arg("--version").output();
    found.map_err(|error| skip::skip(format_args!("promtool: {error}"))).is_ok()
}

#[track_caller]
fn promtool(words: &[&str], folder: &Path, input: &str) {
    let mut child = Command::new("promtool")
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {words:?}: {said}");
}

/// All metrics that the server has, as the rules and the dashboard name them.
fn metrics(server: &Server) -> BTreeSet<String> {
    let text = [server.get("/metrics", ""), server.get("/v1/metrics", &server.token("read"))];
    let text: String =
        text.iter().map(|of| String::from_utf8(of.content.clone()).unwrap()).collect();
    let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    named.map(str::to_owned).collect()
}

/// Metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_part(c));
    let is_ours = |word: &&str| word.starts_with("vmscope_") || word.contains(":vmscope_");
    words.filter(is_ours).map(str::to_owned).collect()
}

/// All values of a key.
fn values<'v>(json: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str().filter(|_| name == key) {
                    Some(text) => found.push(text),
                    None => values(value, key, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

#[test]
fn rules_and_dashboard_ask_for_what_there_is() {
    if !has_promtool() {
        return;
    }
    let folder = deploy("prometheus");
    promtool(&["check", "rules", "vmscope.rules.yml"], &folder, "");
    promtool(&["test", "rules", "vmscope.test.yml"], &folder, "");
    promtool(&["check", "config", "--syntax-only", "prometheus.yml"], &folder, "");

    let place = Place::new();
    let server = place.start("[[webhook]]\nurl = 'http://127.0.0.1:9'");
    let mut known = metrics(&server);
    let rules = fs::read_to_string(folder.join("vmscope.rules.yml")).unwrap();
    let records = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    known.extend(records.map(str::to_owned));
    let unknown: Vec<_> = named(&rules).difference(&known).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");

    let tests = fs::read_to_string(folder.join("vmscope.test.yml")).unwrap();
    let tested = |name: &str| {
        tests.contains(&format!("alertname: {name}\n"))
            || tests.contains(&format!("expr: {name}\n"))
            || tests.contains(&format!("({name}"))
    };
    let names = rules.lines().filter_map(|line| {
        let line = line.trim();
        line.strip_prefix("- alert: ").or_else(|| line.strip_prefix("- record: "))
    });
    let untested: Vec<_> = names.filter(|name| !tested(name)).collect();
    assert!(untested.is_empty(), "{untested:?}");

    let text = fs::read_to_string(deploy("grafana/vmscope-fleet.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let (mut queries, mut variables) = (Vec::new(), Vec::new());
    values(&dashboard["panels"], "expr", &mut queries);
    values(&dashboard["templating"], "query", &mut variables);
    variables.retain(|query| query.starts_with("label_values("));
    assert!(12 < queries.len() && variables.len() == 2, "{queries:?} {variables:?}");
    // The selector of label_values(SELECTOR, LABEL).
    let selectors = variables
        .iter()
        .map(|query| query.trim_start_matches("label_values(").rsplit_once(',').unwrap().0);
    let queries: Vec<_> = queries.iter().copied().chain(selectors).collect();
    let unknown: Vec<_> = named(&queries.join(" ")).difference(&known).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let filled = |query: &str| {
        query.replace("$__rate_interval", "5m").replace("$host", ".*").replace("$vm", ".*")
    };
    let rules: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(n, query)| json!({ "record": format!("query:{n}"), "expr": filled(query) }))
        .collect();
    assert!(!rules.iter().any(|rule| rule["expr"].as_str().unwrap().contains('$')), "{rules:?}");
    let rules = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(place.dir.path().join("dashboard.json"), rules.to_string()).unwrap();
    promtool(&["check", "rules", "dashboard.json"], place.dir.path(), "");
    check_panels(&dashboard);
}

/// What Grafana needs of a panel, whatever its version.
fn check_panels(dashboard: &Value) {
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels {
        let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(place[0] + place[2] <= 24 && 0 < place[3], "{panel}");
        assert!(["row", "stat", "timeseries"].contains(&panel["type"].as_str().unwrap()));
        assert!(panel["title"].is_string());
        // $__rate_interval is four of these: its default is a data source's 15 s, not the scrape interval of prometheus.yml.
        for query in panel["targets"].as_array().into_iter().flatten() {
            let has_rate = query["expr"].as_str().unwrap().contains("$__rate_interval");
            assert!(!has_rate || query["interval"] == "60s", "{query}");
        }
    }
}

/// A Prometheus that scrapes a server, with our rules.
fn prometheus(place: &Place, server: &Server) -> Option<Outside> {
    let dir = place.dir.path();
    fs::write(dir.join("ca.pem"), server.get("/v1/ca", "").content).unwrap();
    fs::write(dir.join("token"), server.token("read")).unwrap();
    let job = |name: &str, path: &str| {
        json!({
            "job_name": name, "scheme": "https", "metrics_path": path,
            "authorization": { "credentials_file": dir.join("token") },
            "tls_config": { "ca_file": dir.join("ca.pem") },
            "static_configs": [{ "targets": [server.address.to_string()] }],
        })
    };
    let config = json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
        "rule_files": [deploy("prometheus/vmscope.rules.yml")],
        "scrape_configs": [job("vmscope-fleet", "/v1/metrics"), job("vmscope-server", "/metrics")],
    });
    let (file, port) = (dir.join("prometheus.json"), free_port());
    fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    started(command, None, port)
}

/// The answer to a query: pairs of labels and value.
fn query(prometheus: &Outside, query: &str) -> Vec<(Value, f64)> {
    let path = url(query);
    let answer: Value = serde_json::from_str(&prometheus.get(&path)).unwrap();
    let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    let number = |of: &Value| of["value"][1].as_str().unwrap().parse().unwrap();
    result.iter().map(|of| (of["metric"].clone(), number(of))).collect()
}

fn url(query: &str) -> String {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("/api/v1/query?query={escaped}")
}

#[test]
fn prometheus_scrapes_what_vms_and_hosts_do() {
    let place = Place::new();
    let server = place.start("");
    let Some(prometheus) = prometheus(&place, &server) else { return };
    let (host, read) = (server.enroll("kvm1"), server.token("read"));
    for number in 0..3 {
        let window = replayed("kvm1", number, now_ns() - (100 - 20 * number) * common::NS);
        assert_eq!(server.put(&window, &host).status, 201);
    }
    place.wait_for_results(3);
    wait_until("three windows", || {
        query(&prometheus, "vmscope_host_windows_total{host=\"kvm1\"}").iter().any(|of| of.1 == 3.0)
    });
    // The same sums as by SQL.
    let sql = "SELECT state, sum(ns) AS ns FROM vcpu_time GROUP BY state";
    let answer = server.ask("POST", "/v1/sql", &read, Some(&json!({ "sql": sql }))).json();
    // They are added over the length of three windows.
    wait_until("the sums", || {
        let scraped = query(&prometheus, "sum by (state) (vmscope_vm_vcpu_seconds_total)");
        answer["rows"].as_array().unwrap().iter().all(|row| {
            let of_state = scraped.iter().find(|(labels, _)| labels["state"] == row[0]);
            let seconds = of_state.map_or(f64::NAN, |(_, seconds)| *seconds);
            let expected = row[1].as_f64().unwrap() / 1e9;
            assert!(seconds < expected + 1e-6, "{row}: {seconds}");
            expected - 1e-6 < seconds
        })
    });
    let steal = query(&prometheus, "sum(vmscope_vm_vcpu_seconds_total{state=\"steal_outside\"})");
    assert!(1.0 < steal[0].1, "{steal:?}");
    wait_until("both scrapes", || query(&prometheus, "up{job=~\"vmscope.*\"} == 1").len() == 2);

    // Nothing reads it without a token, on this machine either.
    server.get("/v1/metrics", "").check(401, "token is needed");
    server.get("/v1/metrics", &server.token("agent")).check(403, "role");
}

#[test]
fn hostile_names_are_harmless_in_metrics_and_profiles() {
    let place = Place::new();
    // One VM has metrics of its own.
    let server = place.start("metrics_vms = 1");
    let Some(prometheus) = prometheus(&place, &server) else { return };
    let (host, read) = (server.enroll("kvm1"), server.token("read"));
    assert_eq!(server.put(&hostile_window("kvm1", 100), &host).status, 201);
    place.wait_for_results(1);
    wait_until("its metrics", || {
        !query(&prometheus, "vmscope_vm_vcpus{vm=\"other\"}").is_empty()
            && query(&prometheus, "vmscope_vm_vcpus").len() == 2
    });
    let left_out = query(&prometheus, "vmscope_metrics_vms_left_out_total");
    assert_eq!(left_out[0].1, 1.0);
    let text = String::from_utf8(server.get("/v1/metrics", &read).content).unwrap();
    assert!(!text.chars().any(|c| c != '\n' && model::is_unsafe(c)));
    promtool(&["check", "metrics"], place.dir.path(), &text);

    let reply = server.get("/v1/pprof?host=kvm1", &read);
    assert_eq!(reply.status, 200, "{:?}", reply.json());
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*reply.content).read_to_end(&mut bytes).unwrap();
    let profile = Profile::decode(&*bytes).unwrap();
    assert!(!profile.sample.is_empty());
    let texts = &profile.string_table;
    assert!(texts.iter().any(|text| text.contains("\\u{202e}")), "{texts:?}");
    assert!(texts.iter().all(|text| !text.chars().any(model::is_unsafe) && text.len() < 2000));
    for (query, status) in [
        ("vm=a%27%20OR%20%271%27=%271", 200),
        ("from=yesterday", 400),
        ("from=2026-01-31T12:00:00Z&to=2026-01-31T11:00:00Z", 400),
        ("seconds=60&to=2026-01-31T11:00:00Z", 400),
        ("seconds=60", 200),
        ("host=..%2f", 400),
        ("what=x", 400),
    ] {
        assert_eq!(server.get(&format!("/v1/pprof?{query}"), &read).status, status, "{query}");
    }
    // As `go tool pprof` says it.
    let basic = |token: &str| {
        let pair = format!("me:{token}");
        let bytes = pair.bytes().map(|byte| format!("{byte:08b}")).collect::<String>();
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let of = |bits: &[u8]| {
            let bits = format!("{:0<6}", std::str::from_utf8(bits).unwrap());
            char::from(digits[usize::from_str_radix(&bits, 2).unwrap()])
        };
        let text: String = bytes.as_bytes().chunks(6).map(of).collect();
        format!("Basic {text}{}", "=".repeat((3 - pair.len() % 3) % 3))
    };
    for (path, token, status) in [
        ("/v1/pprof", read.as_str(), 200),
        ("/v1/pprof", "x", 401),
        ("/v1/metrics", read.as_str(), 401),
    ] {
        let headers = [("authorization", basic(token))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(server.get_with(path, &headers), status, "{path}");
    }
    let none = server.get("/v1/pprof?vm=a%27%20OR%20%271%27=%271", &read).content;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*none).read_to_end(&mut bytes).unwrap();
    assert!(Profile::decode(&*bytes).unwrap().sample.is_empty());
}

/// The time that functions took is that of the result tables.
#[test]
fn a_profile_has_the_time_of_the_tables() {
    let place = Place::new();
    let server = place.start("");
    let (host, read) = (server.enroll("kvm1"), server.token("read"));
    let window = replayed("kvm1", 0, now_ns() - 100 * common::NS);
    assert_eq!(server.put(&window, &host).status, 201);
    place.wait_for_results(1);
    let reply = server.get("/v1/pprof?host=kvm1", &read);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*reply.content).read_to_end(&mut bytes).unwrap();
    let profile = Profile::decode(&*bytes).unwrap();
    // Apparent time is what the guest's clock shows: with what others had meanwhile.
    let sql = "SELECT sum(CASE WHEN state LIKE 'guest_%' THEN samples ELSE 0 END), sum(ns), sum(corrected_ns) \
               FROM vcpu_time WHERE state LIKE 'guest_%' OR state LIKE 'steal_%' \
               OR state IN ('throttled', 'not_sampled')";
    let answer = server.ask("POST", "/v1/sql", &read, Some(&json!({ "sql": sql }))).json();
    let sums = |at: usize| profile.sample.iter().map(|sample| sample.value[at]).sum::<i64>();
    let expected = [0, 1, 2].map(|at| answer["rows"][0][at].as_i64().unwrap());
    assert_eq!([sums(0), sums(1), sums(2)], expected);
    assert!(0 < expected[2] && expected[2] < expected[1], "nothing was stolen: {expected:?}");
    eprintln!("cpu {} ns, corrected {} ns", expected[1], expected[2]);
    let apparent = |function: &serde_json::Value| function[3].as_i64().unwrap();
    let vms = "SELECT DISTINCT vm FROM vms";
    let vms = server.ask("POST", "/v1/sql", &read, Some(&json!({ "sql": vms }))).json();
    let vm = vms["rows"][0][0].as_str().unwrap();
    let path = format!("/v1/tables/top-functions?vm={vm}&from=2020-01-01T00:00:00Z");
    let top = server.get(&path, &read).json();
    let sql = format!(
        "SELECT sum(ns) FROM vcpu_time WHERE vm = '{vm}' AND function = '{}' \
         AND state NOT IN ('halt', 'halt_polling', 'paused', 'unknown')",
        top["rows"][0][1].as_str().unwrap()
    );
    let answer = server.ask("POST", "/v1/sql", &read, Some(&json!({ "sql": sql }))).json();
    let of_function =
        top["rows"].as_array().unwrap().iter().filter(|row| row[1] == top["rows"][0][1]);
    let sum = of_function.map(apparent).sum::<i64>();
    assert_eq!(answer["rows"][0][0].as_i64().unwrap(), sum, "{top}");
}
