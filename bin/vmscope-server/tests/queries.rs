//! Questions over HTTPS about windows that came over HTTPS.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{Place, crowded_window, wait_until, window};
use serde_json::json;

#[test]
fn received_windows_can_be_queried() {
    let place = Place::new();
    let server = place.start("[query]\nrows = 5");
    let (reader, agent) = (server.token("read"), server.token("agent"));
    for host in ["kvm1", "kvm2"] {
        let token = server.enroll(host);
        for start in [100, 200] {
            assert_eq!(server.put(&window(host, start), &token).status, 201);
        }
    }
    place.wait_for_results(4);

    let sql = |sql: &str| server.ask("POST", "/v1/sql", &reader, Some(&json!({"sql": sql})));
    let windows =
        sql("SELECT host, count(*), max(length_ns) FROM hosts GROUP BY host ORDER BY host");
    let windows = windows.json();
    let length_ns = 3_000_000;
    assert_eq!(windows["rows"], json!([["kvm1", 2, length_ns], ["kvm2", 2, length_ns]]));
    assert_eq!((&windows["windows"], &windows["partial"]), (&json!(4), &json!([])));
    assert_eq!(windows["columns"][0]["name"], "host");
    // What a VM's vCPUs did adds up to the time they were there.
    let sums = "SELECT (SELECT sum(ns) FROM vcpu_time) = (SELECT sum(vcpu_ns) FROM vms), \
                (SELECT sum(ns) FROM cpu_time) = (SELECT sum(length_ns * cpus) FROM hosts)";
    assert_eq!(sql(sums).json()["rows"], json!([[true, true]]));
    let many = sql("SELECT * FROM vcpu_time").json();
    assert_eq!(many["rows"].as_array().unwrap().len(), 5);
    assert_eq!(many["partial"], json!(["there are more than 5 rows"]));
    sql("DROP TABLE hosts").check(400, "only a SELECT is answered");
    sql("SELECT * FROM nowhere").check(400, "there is no table nowhere: the tables are vcpu_time,");
    sql("SELEC").check(400, "Expected: an SQL statement, found: SELEC at Line: 1, Column: 1");
    sql("SELECT nope FROM vms").check(400, "No field named nope. Valid fields are vms.host,");
    let words = |reply: &common::Reply| reply.json()["error"].as_str().unwrap().to_owned();
    for bad in ["DROP TABLE hosts", "SELEC", "SELECT nope FROM vms", "SELECT * FROM nowhere"] {
        let text = words(&sql(bad));
        let of_the_engine = ["datafusion", "planning", "ParserError", "\n"];
        assert!(!of_the_engine.iter().any(|word| text.contains(word)), "{text}");
    }
    let range =
        json!({"sql": "SELECT 1", "from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"});
    server.ask("POST", "/v1/sql", &reader, Some(&range)).check(400, "from must be before to");

    let name = |query: &serde_json::Value| query["name"].as_str().unwrap().to_owned();
    let list = server.get("/v1/tables", &reader).json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(name).collect();
    assert!(names.contains(&"thieves".to_owned()), "{names:?}");
    let top = server.get("/v1/tables/hosts-by-steal", &reader).json();
    assert_eq!(top["rows"].as_array().unwrap().len(), 2, "{top}");
    let long_ago = "/v1/tables/hosts-by-steal?to=2020-01-01T00:00:00Z";
    assert_eq!(server.get(long_ago, &reader).json()["windows"], 0);
    server.get("/v1/tables/top-functions", &reader).check(400, "needs vm");
    server.get("/v1/tables/nothing", &reader).check(404, "no query");
    server.get("/v1/tables/thieves?vm=a&x=1", &reader).check(400, "no parameter x");
    server.get("/v1/tables/thieves?vm=a&to=now", &reader).check(400, "is not a time");
    server.get("/v1/tables/thieves?vm=a&host=a/../b", &reader).check(400, "host names have");
    let late = "/v1/tables/thieves?vm=a&from=2999-01-01T00:00:00Z";
    server.get(late, &reader).check(400, "from must be before to");
    server.get("/v1/pprof?seconds=31622401", &reader).check(400, "at most 31622400");

    server.get("/v1/tables", &agent).check(403, "role");
    server.ask("POST", "/v1/sql", &agent, Some(&json!({"sql": "SELECT 1"}))).check(403, "role");
    server.ask("POST", "/v1/sql", "", Some(&json!({"sql": "SELECT 1"}))).check(401, "token");
}

#[test]
fn seconds_and_the_fleets_sums_are_those_of_the_results() {
    let place = Place::new();
    let server = place.start("");
    let (reader, agent) = (server.token("read"), server.token("agent"));
    let token = server.enroll("kvm1");
    assert_eq!(server.put(&window("kvm1", 100), &token).status, 201);
    place.wait_for_results(1);
    let sql = |sql: &str| {
        let answer = server.ask("POST", "/v1/sql", &reader, Some(&json!({"sql": sql}))).json();
        answer["rows"].clone()
    };
    let vms = sql("SELECT vm, boot, window_ns, vcpu_ns, steal_outside_ns FROM vms ORDER BY vm");
    let vms = vms.as_array().unwrap();
    assert!(!vms.is_empty());
    for vm in vms {
        let text = |at: usize| vm[at].as_str().unwrap();
        let path = format!("/v1/windows/kvm1/{}/{:020}/seconds", text(1), vm[2].as_u64().unwrap());
        let seconds = server.get(&format!("{path}?vm={}", text(0)), &reader).json();
        let rows = seconds["rows"].as_array().unwrap();
        let cells = rows.iter().flat_map(|row| row["cells"].as_array().unwrap());
        let ns: u64 = cells.map(|cell| cell[1].as_u64().unwrap()).sum();
        assert_eq!(Some(ns), vm[3].as_u64());
        assert_eq!(server.get(&format!("{path}?vm=absent"), &reader).json()["rows"], json!([]));
        server.get(&format!("{path}?vm=a"), &agent).check(403, "role");
        server.get(&path, &reader).check(400, "vm");
    }
    let nowhere = format!("/v1/windows/kvm1/{}/{:020}/seconds?vm=a", "0".repeat(32), 1);
    server.get(&nowhere, &reader).check(404, "no such window");

    let times = "from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z&slots=60";
    let fleet = || server.get(&format!("/v1/fleet?{times}"), &reader).json();
    // New results are added now and then.
    wait_until("the fleet's sums", || fleet()["hosts"][0]["host"] == "kvm1");
    let fleet = fleet();
    assert_eq!(fleet["vms"].as_array().unwrap().len(), vms.len());
    assert_eq!((&fleet["reading"], fleet["partial"].as_array().unwrap().len()), (&json!(0), 1));
    server.get("/v1/fleet?from=1&to=2&slots=3", &reader).check(400, "is not a time");
    server.get(&format!("/v1/fleet?{times}"), &agent).check(403, "role");

    let times = "from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z";
    let health = server.get(&format!("/v1/health?{times}"), &reader).json();
    let host = &health["hosts"][0];
    let sent =
        server.get("/v1/windows?host=kvm1", &reader).json()["windows"].as_array().unwrap().len();
    assert_eq!((&host["host"], &host["windows"]), (&json!("kvm1"), &json!(sent)));
    assert!(host["covered_ns"].as_u64() > Some(0) && host["samples"].as_u64() > Some(0), "{host}");
    server.get("/v1/health?from=1&to=2", &reader).check(400, "is not a time");
    server.get(&format!("/v1/health?{times}"), &agent).check(403, "role");
}

/// Its analysis is linear in its VMs, and the VMs of other hosts keep their places.
#[test]
fn a_window_of_100_000_vms_hides_no_other_host() {
    let place = Place::new();
    let server = place.start("");
    let reader = server.token("read");
    for host in ["kvm1", "kvm2", "kvm3"] {
        let token = server.enroll(host);
        let sent =
            if host == "kvm1" { crowded_window(host, 100, 100_000) } else { window(host, 100) };
        assert_eq!(server.put(&sent, &token).status, 201);
    }
    place.wait_for_results(3);
    let times = "from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z&slots=60";
    let fleet = || server.get(&format!("/v1/fleet?{times}"), &reader).json();
    let hosts = |fleet: &serde_json::Value| {
        let hosts = fleet["hosts"].as_array().unwrap().iter();
        hosts.map(|host| host["host"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    wait_until("the fleet's sums", || hosts(&fleet()).len() == 3);
    let fleet = fleet();
    let of = |host: &str| {
        let vms = fleet["vms"].as_array().unwrap().iter();
        vms.filter(|vm| vm["host"] == host).count()
    };
    assert!(of("kvm2") == of("kvm3") && 0 < of("kvm2"), "{} of kvm2", of("kvm2"));
    assert_eq!(of("kvm1") + of("kvm2") + of("kvm3"), 200);
    let partial = fleet["partial"].to_string();
    assert!(partial.contains("host kvm1 has more than 1000 VMs"), "{partial}");
}
