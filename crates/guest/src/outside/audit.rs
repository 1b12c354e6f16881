//! The audit log: each time that a guest's memory is read, by whom, which VM's, what for, and how much. A line of JSON when it
//! begins, and one when it ends. If the log can't be written, nothing is read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use rustix::fs::OFlags;
use serde::Serialize;

use super::GuestMemory;

/// The log, in the folder of logs.
pub const FILE_NAME: &str = "guest-memory.log";

/// A full log gets this name and replaces the one before.
const OLD_FILE_NAME: &str = "guest-memory.log.1";
/// Size of a full log: some 30,000 sessions.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// What is read of a guest, whatever it is read for.
const CLASSES: [&str; 5] = [
    "kernel symbols and types",
    "tasks",
    "mappings",
    "names of mapped files",
    "mapped program files",
];

/// What is read besides where call stacks are taken.
const STACKS: &str = "stacks of threads";

/// Bytes of a name.
const MAX_NAME_BYTES: usize = 256;

#[derive(Debug, Serialize)]
struct Line<'a> {
    /// UTC.
    time: String,
    event: &'static str,
    /// The user that vmscope runs as.
    user: u32,
    /// The user that logged in, whatever user that became since; absent: a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    login_user: Option<u32>,
    /// vmscope's process.
    process: u32,
    vm: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_uuid: Option<&'a str>,
    vm_process: u32,
    vm_user: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Notes that reading begins.
pub(super) fn begin(guest: &GuestMemory) -> io::Result<()> {
    let classes = CLASSES.into_iter().chain(guest.takes_stacks.then_some(STACKS));
    write(guest, &Line { reads: Some(classes.collect()), ..line(guest, "begin") })
}

/// Notes that it has ended, and how much was read.
pub(super) fn end(guest: &GuestMemory, bytes: Option<u64>) -> io::Result<()> {
    write(guest, &Line { bytes, ..line(guest, "end") })
}

/// Bytes that a process has read so far, by the kernel's count.
pub(super) fn bytes_read(proc: &Path, process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join(process.to_string()).join("io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
}

fn line<'a>(guest: &'a GuestMemory, event: &'static str) -> Line<'a> {
    /// `loginuid` of a process that no login led to.
    const NOBODYS: u32 = u32::MAX;
    let login = std::fs::read_to_string(guest.proc.join("self/loginuid")).ok();
    let login = login.and_then(|text| text.trim().parse().ok());
    Line {
        time: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true),
        event,
        user: rustix::process::getuid().as_raw(),
        login_user: login.filter(|user| *user != NOBODYS),
        process: std::process::id(),
        vm: bounded(&guest.vm),
        vm_uuid: guest.uuid.as_deref().map(bounded),
        vm_process: guest.process.0,
        vm_user: guest.user,
        reads: None,
        bytes: None,
    }
}

fn bounded(name: &str) -> &str {
    let end = (0..=MAX_NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

fn write(guest: &GuestMemory, line: &Line<'_>) -> io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
    text.push('\n');
    // In one piece: several programs may append.
    open(&guest.logs)?.write_all(text.as_bytes())
}

fn open(folder: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let path = folder.join(FILE_NAME);
    if std::fs::symlink_metadata(&path).is_ok_and(|log| MAX_LOG_BYTES <= log.len()) {
        // Another program may have done it just now.
        match std::fs::rename(&path, folder.join(OLD_FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

#[cfg(test)]
mod test {
    use model::Pid;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_session_has_two_lines() {
        let folder = tempfile::tempdir().unwrap();
        let guest = GuestMemory {
            proc: "/proc".into(),
            logs: folder.path().join("logs"),
            vm: "web\n{\"event\":\"end\"}".repeat(40),
            uuid: None,
            user: 64055,
            process: Pid(4711),
            began_ticks: 0,
            slots: Vec::new(),
            takes_stacks: true,
        };
        begin(&guest).unwrap();
        end(&guest, bytes_read(Path::new("/proc"), std::process::id())).unwrap();
        let text = std::fs::read_to_string(guest.logs.join(FILE_NAME)).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [begun, ended] = lines.as_slice() else { panic!("{text}") };
        assert_eq!((&begun["event"], &ended["event"]), (&"begin".into(), &"end".into()));
        assert_eq!((&begun["vm_process"], &begun["vm_user"]), (&4711.into(), &64055.into()));
        assert_eq!(begun["reads"].as_array().unwrap().len(), CLASSES.len() + 1);
        assert_eq!(begun["reads"][CLASSES.len()], STACKS);
        assert!(begun["vm"].as_str().unwrap().len() <= MAX_NAME_BYTES);
        assert!(0 < ended["bytes"].as_u64().unwrap());
    }

    #[test]
    fn the_form_of_lines_stays() {
        let guest = GuestMemory {
            proc: "/nonexistent".into(),
            logs: "/nonexistent".into(),
            vm: "web".into(),
            uuid: Some("6e1c3a4e-9a51-4a0c-8d0e-0d6a4f6f1b7c".into()),
            user: 64055,
            process: Pid(4711),
            began_ticks: 0,
            slots: Vec::new(),
            takes_stacks: false,
        };
        let fixed = |line| Line {
            time: "2026-01-31T12:00:00.000Z".into(),
            user: 0,
            login_user: Some(1000),
            process: 815,
            ..line
        };
        let lines = [
            fixed(Line { reads: Some(CLASSES.to_vec()), ..line(&guest, "begin") }),
            fixed(Line { bytes: Some(38_109_399), ..line(&guest, "end") }),
        ];
        let text = lines.map(|line| serde_json::to_string(&line).unwrap() + "\n").concat();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/guest");
        let path = folder.join("audit.jsonl");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "UPDATE=1 rewrites it");
    }

    #[test]
    fn a_full_log_is_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = || std::fs::metadata(folder.path().join(FILE_NAME)).unwrap().len();
        open(folder.path()).unwrap().set_len(MAX_LOG_BYTES - 1).unwrap();
        open(folder.path()).unwrap().write_all(b"\n").unwrap();
        assert_eq!(log(), MAX_LOG_BYTES);
        open(folder.path()).unwrap();
        assert_eq!(log(), 0);
        let old = std::fs::metadata(folder.path().join(OLD_FILE_NAME)).unwrap();
        assert_eq!(old.len(), MAX_LOG_BYTES);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.path().join(FILE_NAME)).unwrap();
        assert!(open(folder.path()).is_err());
    }
}
