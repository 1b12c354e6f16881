//! What the agent and the layout daemon read: their configuration, and what a server or another host says.

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
        Target {
            words: &[
                b"\"type\":\"",
                b"\"offer\"",
                b"\"samples\":[",
                b"null",
                b"1e308",
                b"-1",
                b"{}",
            ],
            ..small(Target::new("layout-peer", peer, migration::fuzzing::honest))
        },
        Target {
            words: &[
                b"[[incoming]]",
                b"command = [",
                b"{numa}",
                b"-object memory-backend-",
                b":9277 ",
            ],
            ..small(Target::new("layout-files", layout_files, seed_layout_files))
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

fn peer(bytes: &[u8]) {
    migration::fuzzing::peer_said(bytes);
}

fn layout_files(bytes: &[u8]) {
    migration::fuzzing::files(&String::from_utf8_lossy(bytes));
}

fn seed_layout_files() -> Vec<Vec<u8>> {
    let config = "listen = \"10.0.0.1:9277\"\npolicy = \"dino\"\nmigration_ports = [49152, 49215]\n\
                  [[incoming]]\nvm = \"web\"\nfrom = [\"kvm1\"]\n\
                  command = [\"qemu\", \"-object\", \"memory-backend-ram,id=pc.ram,size=1G,{numa}\"]\n";
    let peers = format!("kvm1 10.0.0.1:9277 {}\n# kvm2\n", "0a".repeat(32));
    let line = "qemu -name a -m size=256M,slots=2 -machine q35 -S -incoming defer -netdev tap,fd=3";
    vec![config.into(), peers.into_bytes(), line.into()]
}

fn answer(bytes: &[u8]) {
    agent::fuzzing::server_said(&String::from_utf8_lossy(bytes));
}

fn answers() -> Vec<Vec<u8>> {
    let token = "{\"host_token\": \"0123456789abcdef0123456789abcdef\"}";
    let authority = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    [token, "{\"error\": \"the host is enrolled already\"}", authority].map(Into::into).into()
}
