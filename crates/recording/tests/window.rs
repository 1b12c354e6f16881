//! Windows: a recording is packed, and comes out as it was.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{small, small_switches, spool, write_with_switches};
use recording::window::{MAX_WINDOW_BYTES, Template, WindowId, pack, unpack};
use recording::{Error, Recording};

#[test]
fn a_recording_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let (made, out) = (dir.path().join("made"), dir.path().join("out"));
    let (mut header, tables, cpus) = small();
    header.boot = Some("0123456789abcdef0123456789abcdef".parse().unwrap());
    write_with_switches(&made, &(header, tables, cpus), &small_switches());
    let (window, again) = (dir.path().join("a.window"), dir.path().join("b.window"));
    let bytes = pack(&made, &window).unwrap();
    pack(&made, &again).unwrap();
    assert_eq!(fs::read(&window).unwrap(), fs::read(&again).unwrap());
    assert_eq!(fs::metadata(&window).unwrap().len(), bytes);

    unpack(fs::File::open(&window).unwrap(), &out, MAX_WINDOW_BYTES).unwrap();
    let (before, after) = (Recording::open(&made).unwrap(), Recording::open(&out).unwrap());
    assert_eq!((&before.header, &before.tables), (&after.header, &after.tables));
    let names = |path| {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&made), names(&out));
    let id = WindowId::from_header("kvm1".parse().unwrap(), &after.header).unwrap();
    assert_eq!(id.to_string(), "kvm1/0123456789abcdef0123456789abcdef/00000000005000000000");
}

/// What is sent in the name of others is the same recording, but for host, boot and time of the world.
#[test]
fn a_template_gives_windows_of_other_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let (header, tables, cpus) = small();
    write_with_switches(&made, &(header, tables, cpus), &small_switches());
    let template = Template::new(&made, &dir.path().join("packed")).unwrap();
    fs::remove_file(dir.path().join("packed")).unwrap();
    for n in 0..3_u8 {
        let host = format!("replay-{n}").parse().unwrap();
        let boot = model::BootId([n; 16]);
        let window = template.window(&host, boot, 1_800_000_000_000_000_000).unwrap();
        let mut bytes = Vec::new();
        let mut content = window.content;
        std::io::Read::read_to_end(&mut content, &mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, window.bytes);
        let out = dir.path().join(format!("out{n}"));
        unpack(&bytes[..], &out, MAX_WINDOW_BYTES).unwrap();
        let (before, after) = (Recording::open(&made).unwrap(), Recording::open(&out).unwrap());
        let expected = model::Header {
            hostname: host.to_string(),
            boot: Some(boot),
            start_unix_ns: 1_800_000_000_000_000_000,
            ..before.header.clone()
        };
        assert_eq!((&after.header, &after.tables), (&expected, &before.tables));
        assert_eq!(template.header(), &before.header);
    }
}

/// Where it is unpacked to must be new.
#[test]
fn nothing_is_unpacked_over_something() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kept"), "x").unwrap();
    unpack(&[0; 1024][..], dir.path(), 1).unwrap_err();
    assert_eq!(fs::read_to_string(dir.path().join("kept")).unwrap(), "x");
}

#[test]
fn an_unfinished_recording_is_no_window() {
    let dir = tempfile::tempdir().unwrap();
    let (header, _, cpus) = small();
    let writer = spool(&dir.path().join("made"), &header, &cpus);
    let error = pack(writer.partial_path(), &dir.path().join("w")).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert!(!dir.path().join("w").exists());
}
