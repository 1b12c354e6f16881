//! What the agent reads: its configuration, and what a server answers.

use agent::{Config, Windows};

use super::{MIB, Target};

pub(super) fn targets() -> Vec<Target> {
    let small = |target: Target| Target { longest: MIB / 16, ..target };
    vec![
        Target {
            words: &[b"window_s", b"server", b"\"https://", b"[[", b"\"\"\"", b"= 1e9"],
            ..small(Target::new("agent-config", config, configs))
        },
        Target {
            words: &[b"\"host_token\"", b"\"error\"", b"-----BEGIN CERTIFICATE-----\n"],
            ..small(Target::new("agent-answer", answer, answers))
        },
    ]
}

fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Config::parse(&text, Windows::Usual) {
        Ok(config) => assert!((10..=600).contains(&config.window_s)),
        Err(reason) => assert!(!reason.contains('\n'), "{reason}"),
    }
}

fn configs() -> Vec<Vec<u8>> {
    let all = "server = \"https://fleet.example:8443\"\nstate = \"/var/lib/vmscope\"\nwindow_s = 60\n\
               period_us = 1000\noffcpu_source = \"samples\"\nexits = false\ncall_graph = false\n\
               guest_timeout_s = 10\nspool_bytes = 4294967296\npending_windows = 3\n\
               max_cpu_percent = 1.0\nmetrics = \"127.0.0.1:9188\"\n";
    vec![all.into(), Vec::new(), b"window_s = 9".to_vec()]
}

fn answer(bytes: &[u8]) {
    agent::fuzzing::server_said(&String::from_utf8_lossy(bytes));
}

fn answers() -> Vec<Vec<u8>> {
    let token = "{\"host_token\": \"0123456789abcdef0123456789abcdef\"}";
    let authority = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    [token, "{\"error\": \"the host is enrolled already\"}", authority].map(Into::into).into()
}
