//! Files of host processes, and answers of guests, read by children of `vmscope` as `record` and `top` do.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use api::guest::{HEADER_BYTES, Response, VERSION};
use guest::{AnswerError, AnswerReader, Channel, Limits, Session};
use model::{Module, ModuleId, Owner, SymbolName};
use sandbox::Sandbox;
use symbols::{GuestChild, HostSource, KernelNames, Place, Source};

fn names(path: &str, file: &Path, offsets: &[u64]) -> Vec<SymbolName> {
    let sandbox = Sandbox::of_program(Path::new(env!("CARGO_BIN_EXE_vmscope")));
    let mut source = HostSource::new(KernelNames::default()).with_sandbox(sandbox);
    source.reuse(BTreeMap::from([(ModuleId(0), vec![Place::from(file)])]));
    let module = Module { owner: Owner::Host, path: path.to_owned(), build_id: None };
    source.names(ModuleId(0), &module, offsets)
}

fn function(name: &str) -> SymbolName {
    SymbolName::Function(name.to_owned())
}

#[test]
fn a_child_reads_lists_and_demangles() {
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), "7000 20 _ZN4calc7computeEi\n7020 20 plain\n").unwrap();
    let names = names("/tmp/perf-1.map", list.path(), &[0x7000, 0x7020, 0x7040]);
    assert_eq!(names, [function("calc::compute(int)"), function("plain"), SymbolName::Stripped]);
}

/// The largest program at hand, whatever is in it: this one.
#[test]
fn a_child_reads_programs() {
    let program = std::env::current_exe().unwrap().canonicalize().unwrap();
    let offsets: Vec<u64> = (0..1 << 20).map(|page| page << 8).collect();
    let names = names("/program", &program, &offsets);
    let here = |name: &SymbolName| *name == function("sandbox::a_child_reads_programs");
    assert!(names.iter().any(here), "{:?}", &names[..10]);
}

/// A guest behind a socket of its own, which answers every question with `content`.
fn guest_that_answers(path: &Path, content: Vec<u8>) -> Channel {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // The process that queried may hang up.
            let _ = answer_all(stream, &content);
        }
    });
    Channel::Serial { path: path.to_owned().into(), user: rustix::process::getuid().as_raw() }
}

fn answer_all(mut stream: UnixStream, content: &[u8]) -> std::io::Result<()> {
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let (magic_and_session, length) = header.split_at(HEADER_BYTES - 4);
        let mut question = vec![0; u32::from_le_bytes(length.try_into().unwrap()) as usize];
        stream.read_exact(&mut question)?;
        let length = u32::try_from(content.len()).unwrap();
        stream.write_all(&[magic_and_session, &length.to_le_bytes(), content].concat())?;
    }
}

fn child_of_vmscope() -> GuestChild {
    GuestChild::with_sandbox(Sandbox::of_program(Path::new(env!("CARGO_BIN_EXE_vmscope"))))
}

/// What a guest that answers every question so is taken for.
fn greeted(channel: &Channel, child: &GuestChild) -> Result<(), String> {
    let limits = Limits { time: Duration::from_secs(60), ..Limits::default() };
    Session::open(channel, &limits, child.clone()).map(drop).map_err(|error| error.to_string())
}

/// Each guest's answers are read by its own child, which has no privileges, and costs no other guest.
#[test]
fn a_child_reads_a_guests_answers() {
    let folder = tempfile::tempdir().unwrap();
    let hello = Response::Hello { version: VERSION, now_ns: 5 };
    let hello = guest::fuzzing::frame(&hello)[HEADER_BYTES..].to_vec();
    let honest = guest_that_answers(&folder.path().join("honest"), hello.clone());
    let (child, hostile_child) = (child_of_vmscope(), child_of_vmscope());
    assert_eq!(greeted(&honest, &child), Ok(()));
    let process = child.process().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapPrm:\t0000000000000000"] {
        assert!(status.lines().any(|found| found == line), "{status}");
    }
    if rustix::process::geteuid().is_root() {
        let user = 0x7000_0000 + process;
        assert!(status.contains(&format!("Uid:\t{user}\t{user}")), "{status}");
    }
    // A map whose list of images (the fifth field from its end) says that it has 2^60, one with bytes behind it, lists in
    // lists, and no message.
    let map = guest::fuzzing::frame(&Response::Map(Box::default()))[HEADER_BYTES..].to_vec();
    let version = u8::try_from(VERSION).unwrap();
    let endless = [&[2, version], &map[2..map.len() - 5], &[0x80; 8], &[0x10]].concat();
    let attacks = [endless, [&hello[..], &[0]].concat(), vec![3; 1 << 20], vec![0xff; 1 << 20]];
    for (n, attack) in attacks.into_iter().enumerate() {
        let hostile = guest_that_answers(&folder.path().join(n.to_string()), attack);
        let reason = greeted(&hostile, &hostile_child).unwrap_err();
        assert!(reason.starts_with("it sent an invalid message"), "{n}: {reason}");
        assert_eq!(greeted(&honest, &child), Ok(()), "beside {n}");
    }
    assert_eq!(child.process(), Some(process), "no other guest has a part in it");
    assert_ne!(hostile_child.process(), Some(process));
}

/// One that is stopped costs one answer.
#[test]
fn a_guests_child_that_ends_has_a_successor() {
    let mut child = child_of_vmscope();
    let refused = Response::Error("no".to_owned());
    let answer = guest::fuzzing::frame(&refused)[HEADER_BYTES..].to_vec();
    assert_eq!(child.read(answer.clone()), Ok(refused.clone()));
    let process = i32::try_from(child.process().unwrap()).unwrap();
    let process = rustix::process::Pid::from_raw(process).unwrap();
    if rustix::process::kill_process(process, rustix::process::Signal::KILL).is_err() {
        return skip::skip("only root can send a child a signal");
    }
    let reason = "the process that parsed it was stopped by SIGKILL".to_owned();
    assert_eq!(child.read(answer.clone()), Err(AnswerError::Unread(reason)));
    assert_eq!(child.read(answer), Ok(refused));
}
