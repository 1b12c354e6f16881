//! Policies that are programs of others: `--policy exec:PROGRAM`.
//!
//! ```text
//!  vmscope (root)                                  PROGRAM (its file's owner, or a user of no one else; no new privileges)
//!    | -- question, on its standard input ---------> |
//!    | <-- choices, on its standard output --------- |   at most 4 MiB, within 10 s
//!    | -- kill: the program, and what it started --> |
//! ```

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use layout::{External, Load, Options, Plan, Topology};
use rustix::process::{Pid, Resource, Rlimit, Signal};

/// How long a program may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of an answer at most.
const MAX_ANSWER: u64 = 4 << 20;
/// Bytes of its standard error that are kept.
const MAX_ERROR: usize = 4096;
/// Memory that it may have.
const MAX_BYTES: u64 = 4 << 30;
/// Questions for one plan: another one each time that memory of some VMs found no room, without these.
const MAX_QUESTIONS: u32 = 8;
/// User and group ids from here on belong to no user.
const UNUSED_IDS: u32 = 1_879_048_192;

/// The program of `exec:PROGRAM`.
pub(super) fn program(policy: &str) -> Option<PathBuf> {
    policy.strip_prefix("exec:").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Has a program choose.
///
/// # Errors
/// If it does not answer, or not in the documented form.
pub(super) fn plan(topology: &Topology, load: &Load, program: &Path) -> anyhow::Result<Plan> {
    let path = std::fs::canonicalize(program)
        .with_context(|| format!("failed to run policy {}", program.display()))?;
    let mut questions = 0;
    let mut policy = External::new(|question| {
        questions += 1;
        match questions <= MAX_QUESTIONS {
            true => ask(&path, question, LIMIT),
            false => Err(format!("its choices had no room {MAX_QUESTIONS} times")),
        }
    });
    let plan = layout::plan(topology, load, &mut policy, &Options::default());
    match policy.failure.take() {
        Some(failure) => {
            let failure = table::clean(&failure).into_owned();
            anyhow::bail!("policy {}: {failure}", program.display())
        }
        None => Ok(plan),
    }
}

fn ask(program: &Path, question: &str, limit: Duration) -> Result<String, String> {
    let start = Instant::now();
    let mut child = spawn(program).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(
                "{error}: the owner of its file must be able to run it, any user if that is root"
            )
        }
        _ => error.to_string(),
    })?;
    let group = Pid::from_child(&child);
    limit_resources(group);
    let answer = exchange(&mut child, question, limit);
    let status = ended(&mut child, limit.saturating_sub(start.elapsed()));
    // It, and what it started.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    let Exchange { answer, errors } = answer?;
    match status {
        Some(status) if status.success() => Ok(answer),
        Some(status) => Err(format!("it failed ({status}){}", last_line(&errors))),
        None => Err(format!("it did not end within {} s", limit.as_secs())),
    }
}

/// A child whose privileges are gone: it belongs to another user if this one is root, and can get no privileges back.
fn spawn(program: &Path) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if rustix::process::geteuid().is_root() {
        let owner = std::fs::metadata(program)?.uid();
        let unused = UNUSED_IDS.saturating_add(std::process::id());
        // The standard library drops all groups with them.
        command.uid(if owner == 0 { unused } else { owner }).gid(unused);
    }
    // A thread's children can gain no privileges after this, the thread neither: so it is one of its own.
    let spawned = std::thread::scope(|scope| {
        let spawn = || {
            rustix::thread::set_no_new_privs(true)?;
            command.spawn()
        };
        scope.spawn(spawn).join()
    });
    spawned.map_err(|_| io::Error::other("the thread that starts it ended"))?
}

fn limit_resources(pid: Pid) {
    let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    let limits = [
        (Resource::As, MAX_BYTES),
        (Resource::Core, 0),
        (Resource::Cpu, LIMIT.as_secs()),
        (Resource::Fsize, MAX_ANSWER),
    ];
    for (resource, most) in limits {
        // One that has ended needs none.
        let _ = rustix::process::prlimit(Some(pid), resource, limit(most));
    }
}

/// What it wrote.
struct Exchange {
    answer: String,
    errors: Vec<u8>,
}

fn exchange(child: &mut Child, question: &str, limit: Duration) -> Result<Exchange, String> {
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err("it has no pipes".to_owned());
    };
    let question = question.to_owned();
    // These threads end with the child's pipes, which its end closes.
    std::thread::spawn(move || {
        // One that does not read everything may answer all the same.
        let _ = stdin.write_all(question.as_bytes());
    });
    let (tell, errors) = mpsc::channel();
    std::thread::spawn(move || tell.send(beginning(stderr, MAX_ERROR)));
    let (tell, answers) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let read = stdout.take(MAX_ANSWER + 1).read_to_end(&mut answer);
        tell.send(read.map(|_| answer))
    });
    let answer = answers.recv_timeout(limit);
    let answer = answer.map_err(|_| format!("it did not answer within {} s", limit.as_secs()))?;
    let answer = answer.map_err(|error| error.to_string())?;
    if MAX_ANSWER < answer.len() as u64 {
        return Err(format!("it answered with more than {MAX_ANSWER} bytes"));
    }
    let answer = String::from_utf8(answer).map_err(|_| "its answer is not UTF-8".to_owned())?;
    let errors = errors.recv_timeout(Duration::from_millis(200)).unwrap_or_default();
    Ok(Exchange { answer, errors })
}

/// The first bytes; the rest is read, too, so that the program can go on.
fn beginning(mut from: impl Read, most: usize) -> Vec<u8> {
    let (mut kept, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(n) = from.read(&mut bytes)
        && 0 < n
    {
        let room = most - kept.len();
        kept.extend_from_slice(&bytes[..n.min(room)]);
    }
    kept
}

/// How it ended, if it did within the time.
fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn last_line(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map(|line| format!(": {}", line.trim())).unwrap_or_default()
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn answered(script: &str, question: &str, limit: Duration) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        // Another user runs it if this is root.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("policy");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Another thread's child may have the file open for writing until it runs its own program.
        loop {
            match ask(&path, question, limit) {
                Err(error) if error.contains("Text file busy") => {}
                other => return other,
            }
        }
    }

    #[test]
    fn a_program_answers() {
        let limit = Duration::from_secs(30);
        assert_eq!(answered("cat", "{}", limit), Ok("{}".to_owned()));
        // More than pipes hold, unread.
        let large = "x".repeat(1 << 20);
        assert_eq!(answered("echo 7; echo noise >&2", &large, limit), Ok("7\n".to_owned()));
        let status =
            answered("grep -E '^(NoNewPrivs|CapEff|Uid|Groups):' /proc/self/status", "", limit);
        let status = status.unwrap();
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
        let is_root = rustix::process::geteuid().is_root();
        let user = UNUSED_IDS + std::process::id();
        let dropped = ["CapEff:\t0000000000000000\n", &format!("Uid:\t{user}\t{user}\t{user}\t")];
        assert!(!is_root || dropped.iter().all(|line| status.contains(line)), "{status}");
    }

    #[test]
    fn a_program_that_does_not_answer_is_ended() {
        let check = |script: &str, seconds: u64, expected: &str| {
            let failure = answered(script, "{}", Duration::from_secs(seconds)).unwrap_err();
            assert_eq!(failure, expected, "{script}");
        };
        check(
            "echo first >&2; echo no nodes >&2; exit 3",
            30,
            "it failed (exit status: 3): no nodes",
        );
        check("sleep 60", 1, "it did not answer within 1 s");
        check("exec >&-; sleep 60", 1, "it did not end within 1 s");
        check("sleep 60 & echo hello", 1, "it did not answer within 1 s");
        check("head -c 5000000 /dev/zero", 30, "it answered with more than 4194304 bytes");
        check("printf '\\377'", 30, "its answer is not UTF-8");
        let failure = ask(Path::new("/nowhere/policy"), "", Duration::from_secs(1)).unwrap_err();
        assert!(failure.starts_with("No such file or directory"), "{failure}");
    }
}
