//! The server sends profiles to a real OpenTelemetry collector (`VMSCOPE_OTELCOL`), whose own output is compared.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, File};
use std::process::Command;

use common::outside::{Sink, free_port, started};
use common::{Place, hostile_window, now_ns, replayed, wait_until};
use export::otlp::{ExportProfilesServiceRequest, Profile};
use prost::Message;
use serde_json::json;

#[test]
fn a_collector_understands_profiles() {
    let Ok(program) = std::env::var("VMSCOPE_OTELCOL") else {
        eprintln!(
            "skipped: VMSCOPE_OTELCOL names no OpenTelemetry collector (make test-all builds one)"
        );
        return;
    };
    let (place, port) = (Place::new(), free_port());
    let config = json!({
        "receivers": { "otlp": { "protocols": { "http": { "endpoint": format!("127.0.0.1:{port}") } } } },
        "exporters": { "debug": { "verbosity": "detailed" } },
        "service": {
            "telemetry": { "metrics": { "level": "none" } },
            "pipelines": { "profiles": { "receivers": ["otlp"], "exporters": ["debug"] } },
        },
    });
    let (file, said) = (place.dir.path().join("otelcol.json"), place.dir.path().join("said"));
    fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(program);
    command.arg("--config").arg(&file).arg("--feature-gates=+service.profilesSupport");
    let _collector = started(command, Some(File::create(&said).unwrap()), port).unwrap();
    let server = place.start(&format!("[[otlp]]\nurl = 'http://127.0.0.1:{port}'"));
    let host = server.enroll("kvm1");
    let window = replayed("kvm1", 0, now_ns() - 100 * common::NS);
    assert_eq!(server.put(&window, &host).status, 201);
    assert_eq!(server.put(&hostile_window("kvm1", 100), &host).status, 201);
    let sent = "vmscope_server_messages_total{to=\"otlp\",outcome=\"sent\"}";
    wait_until("profiles", || server.metric(sent) == 2.0);
    let text = || fs::read_to_string(&said).unwrap();
    wait_until("what the collector understood", || {
        ["service.name: Str(", "host.name: Str(kvm1)", "\\u{202e}"]
            .iter()
            .all(|part| text().contains(part))
    });
    // Log lines have tabs.
    let text = text();
    assert!(!text.chars().any(|c| !"\n\t".contains(c) && model::is_unsafe(c)));
    assert_eq!(
        server.metric("vmscope_server_messages_total{to=\"otlp\",outcome=\"refused\"}"),
        0.0
    );
}

/// The sum of a request's profiles of this type.
fn ns_of(body: &[u8], name: &str) -> i64 {
    let request = ExportProfilesServiceRequest::decode(body).unwrap();
    let strings = request.dictionary.unwrap().string_table;
    let is_it = |profile: &&Profile| {
        let index = profile.sample_type.unwrap().type_strindex;
        strings[usize::try_from(index).unwrap()] == name
    };
    let scopes = request.resource_profiles.iter().flat_map(|of| &of.scope_profiles);
    let profiles = scopes.flat_map(|scope| &scope.profiles).filter(is_it);
    profiles.flat_map(|profile| &profile.samples).flat_map(|sample| &sample.values).sum()
}

#[test]
fn a_window_is_sent_once_whatever_the_number_of_servers() {
    let (place, sink) = (Place::new(), Sink::start());
    let more = format!("[[otlp]]\nurl = '{}'", sink.url());
    let (server, _other) = (place.start_number(0, &more), place.start_number(1, &more));
    let host = server.enroll("kvm1");
    for number in 0..3 {
        let window = replayed("kvm1", number, now_ns() - (100 - 20 * number) * common::NS);
        assert_eq!(server.put(&window, &host).status, 201);
    }
    wait_until("profiles", || sink.raw().len() == 3);
    let (head, body) = &sink.raw()[0];
    assert!(head.starts_with("POST /hook/v1development/profiles "), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let request = ExportProfilesServiceRequest::decode(&**body).unwrap();
    assert!(2 <= request.resource_profiles.len());
    let tables = request.dictionary.unwrap();
    for of in &request.resource_profiles {
        for sample in &of.scope_profiles[0].profiles[0].samples {
            let stack = &tables.stack_table[usize::try_from(sample.stack_index).unwrap()];
            assert_eq!(stack.location_indices.len(), 2);
        }
    }
    // `cpu` is apparent time, of all windows as in the tables, and corrected time is less.
    let reader = server.token("read");
    let sql = "SELECT sum(ns), sum(corrected_ns) FROM vcpu_time \
               WHERE state NOT IN ('halt', 'halt_polling', 'paused', 'unknown')";
    let answer = server.ask("POST", "/v1/sql", &reader, Some(&json!({ "sql": sql }))).json();
    let sent =
        ["cpu", "corrected"].map(|name| sink.raw().iter().map(|(_, body)| ns_of(body, name)).sum());
    assert_eq!(answer["rows"], json!([sent]));
    let [apparent, corrected]: [i64; 2] = sent;
    assert!(0 < corrected && corrected < apparent, "{corrected} of {apparent}");
    eprintln!("cpu {apparent} ns, corrected {corrected} ns");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(sink.raw().len(), 3);
}
