//! Results that are damaged or deleted under a running server.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::{Place, Reply, Server, wait_until, window};
use serde_json::{Value, json};

const TABLES: [&str; 6] = ["vcpu_time", "cpu_time", "exits", "hosts", "vms", "health"];

fn ask(server: &Server, reader: &str, table: &str) -> Reply {
    let sql = json!({ "sql": format!("SELECT * FROM {table}") });
    server.ask("POST", "/v1/sql", reader, Some(&sql))
}

fn rows(answer: &Value) -> Vec<String> {
    let mut rows: Vec<_> =
        answer["rows"].as_array().unwrap().iter().map(Value::to_string).collect();
    rows.sort();
    rows
}

/// Eight bytes are changed in each of 40 objects, and 10 objects are deleted: an answer is right, or says that it is partial, and
/// in the end all is as it was.
#[test]
fn damaged_results_are_left_out_reported_and_made_again() {
    let place = Place::new();
    let server = place.start("[query]\nrows = 100000");
    let (reader, host) = (server.token("read"), server.enroll("kvm1"));
    for number in 0..10 {
        assert_eq!(server.put(&window("kvm1", 100 + 10 * number), &host).status, 201);
    }
    place.wait_for_results(10);
    let answers = || TABLES.map(|table| (table, ask(&server, &reader, table).json()));
    let expected: BTreeMap<_, _> =
        answers().into_iter().map(|(table, answer)| (table, rows(&answer))).collect();
    let has_all = || {
        let is_whole = |(table, answer): &(&str, Value)| {
            answer["partial"] == json!([]) && rows(answer) == expected[table]
        };
        answers().iter().all(is_whole)
    };
    wait_until("all results", has_all);

    let mut state = 29_u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    // Answers about damaged objects, about deleted ones: all, and those that said to be partial.
    let mut answered = [[0; 2]; 2];
    for round in 0..50 {
        let is_deleted = round % 5 == 4;
        // What was damaged before may be gone for a moment. A window without its last table has no results:
        // the next search finds it.
        let (object, mut content) = loop {
            let mut objects = place.objects("results/v1/");
            // Others are not written to their end.
            objects.retain(|object| object.ends_with(".parquet"));
            objects.retain(|object| !is_deleted || !object.starts_with("results/v1/hosts/"));
            if objects.is_empty() {
                continue;
            }
            let object = objects.swap_remove(random(objects.len()));
            if let Ok(content) = fs::read(place.store().join(&object)) {
                break (object, content);
            }
        };
        let (path, table) = (place.store().join(&object), object.split('/').nth(2).unwrap());
        if is_deleted {
            let _ = fs::remove_file(&path);
        } else {
            for _ in 0..8 {
                let at = random(content.len());
                content[at] ^= u8::try_from(1 + random(255)).unwrap();
            }
            // As it may be after a failure of the disk: the same object.
            fs::write(&path, content).unwrap();
        }
        let reply = ask(&server, &reader, table);
        assert_eq!(reply.status, 200, "{object}: {reply:?}");
        let answer = reply.json();
        let is_reported = answer["partial"] != json!([]);
        assert!(is_reported || rows(&answer) == expected[table], "{object}: {}", answer["partial"]);
        // What is there is right.
        let is_right = |row: &String| expected[table].binary_search(row).is_ok();
        assert!(rows(&answer).iter().all(is_right), "{object}: {answer}");
        let answered = &mut answered[usize::from(is_deleted)];
        answered[0] += 1;
        answered[1] += usize::from(is_reported);
    }
    let [[damaged, partial], [deleted, partial_2]] = answered;
    eprintln!(
        "{damaged} objects damaged: {partial} answers partial; {deleted} deleted: {partial_2} partial"
    );
    // What was read before, or is read again by then, is whole.
    assert!(5 < partial, "only {partial} of {damaged} answers were partial");
    wait_until("all results again", has_all);
    let metrics = String::from_utf8(server.get("/metrics", &reader).content).unwrap();
    let counted =
        metrics.lines().find_map(|line| line.strip_prefix("vmscope_server_results_damaged_total "));
    assert!(5 < counted.unwrap().parse::<u32>().unwrap(), "{metrics}");
}

/// Without its window a damaged object stays what it is: answers say so, and never blame who asks.
#[test]
fn lost_results_are_reported() {
    let place = Place::new();
    let server = place.start("");
    let (reader, host) = (server.token("read"), server.enroll("kvm1"));
    for start in [100, 200] {
        assert_eq!(server.put(&window("kvm1", start), &host).status, 201);
    }
    place.wait_for_results(2);
    let damaged = &place.objects("results/v1/vcpu_time/")[0];
    let mut content = fs::read(place.store().join(damaged)).unwrap();
    content[100] ^= 0x55;
    fs::write(place.store().join(damaged), content).unwrap();
    for raw in place.objects("raw/v1/") {
        fs::remove_file(place.store().join(raw)).unwrap();
    }
    wait_until("the damage", || {
        let reply = ask(&server, &reader, "vcpu_time");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["partial"] == json!(["results of 1 windows can't be read"])
    });
    wait_until("its count", || {
        let metrics = String::from_utf8(server.get("/metrics", &reader).content).unwrap();
        metrics.contains("vmscope_server_results_lost_total 1")
    });
    assert_eq!(ask(&server, &reader, "vcpu_time").json()["windows"], 1);
}
