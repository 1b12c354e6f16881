//! A VM whose memory lies in a file system that never answers: it costs its own guest's trace. This program is the recorder,
//! its child that reads the rings, and the VM's process.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use collector::trace::RingReader;
use collector::trace::drawn::{DrawnGuest, MARK, RING_BYTES};
use model::Pid;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use sandbox::Sandbox;

const PAGE: usize = 4096;
/// Of heads, then of each ring's slots.
const BYTES: usize = 3 * PAGE;

fn main() -> ExitCode {
    if let Some(code) = sandbox::serve::<RingReader>() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("vm") {
        map_and_wait(Path::new(&arguments.next().unwrap()));
        return ExitCode::SUCCESS;
    }
    match Mounted::new() {
        Ok(mounted) => memory_that_never_answers_costs_its_guest(mounted),
        Err(error) => skip::skip(format_args!("a file system of one's own needs root: {error}")),
    }
    ExitCode::SUCCESS
}

/// The VM's process: says where its memory is.
fn map_and_wait(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), BYTES as u64);
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, of which nothing is read or written here.
    let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, access, flags, &file, 0) };
    println!("{}", mapped.unwrap().addr());
    let _ = std::io::stdin().read(&mut [0]);
}

/// A file of memory: its first page is there; who reads the others waits.
struct Mounted {
    path: tempfile::NamedTempFile,
}

impl Mounted {
    fn new() -> std::io::Result<Self> {
        let path = tempfile::NamedTempFile::new()?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("vmscope-test", path.path(), "fuse", flags, Some(&*options))?;
        std::thread::spawn(move || serve(device));
        Ok(Self { path })
    }
}

/// A waiter gets an error then.
impl Drop for Mounted {
    fn drop(&mut self) {
        let at_once = UnmountFlags::FORCE | UnmountFlags::DETACH;
        rustix::mount::unmount(self.path.path(), at_once).unwrap();
    }
}

/// Answers the kernel (include/uapi/linux/fuse.h), but not to reads behind the first page.
fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(length) = device.read(&mut request) {
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let (operation, unique) = (word(4), &request[8..16]);
        let offset = if 56 <= length { word(48) } else { 0 };
        let (error, body) = match operation {
            // INIT: version 7.31, no reading ahead, writes of a page.
            26 => (0, words(&[7, 31, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            // GETATTR.
            3 => (0, words(&attributes())),
            // OPEN.
            14 => (0, words(&[1, 0, 0, 0])),
            // READ.
            15 if offset == 0 => (0, heads()),
            // READ; FORGET and INTERRUPT, which have no answer.
            15 | 2 | 36 => continue,
            // Not implemented.
            _ => (-38, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let header = [&length.to_le_bytes()[..], &i32::to_le_bytes(error), unique].concat();
        let _ = device.write(&[header, body].concat());
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Valid for 100 s; number 1, a file that has one name and that everybody may read.
fn attributes() -> [u32; 26] {
    let mut words = [0; 26];
    (words[0], words[4], words[19], words[20]) = (100, 1, 0o100_644, 1);
    words[6] = u32::try_from(BYTES).unwrap();
    words
}

/// Two rings that carry the mark; something lies in the first.
fn heads() -> Vec<u8> {
    let mut page = vec![0; PAGE];
    for ring in 0..2 {
        page[ring * RING_BYTES + 8..][..8].copy_from_slice(&MARK.to_le_bytes());
    }
    page[0] = 5;
    page
}

fn start_vm(mounted: &Mounted) -> (Child, u64) {
    let mut vm = Command::new(std::env::current_exe().unwrap())
        .arg("vm")
        .arg(mounted.path.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(vm.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (vm, line.trim().parse().unwrap())
}

fn memory_that_never_answers_costs_its_guest(mounted: Mounted) {
    let (mut vm, address) = start_vm(&mounted);
    let guest = DrawnGuest::new((Pid(vm.id()), address), false, Sandbox::default());
    let mut guest = guest.unwrap();
    assert_eq!(guest.ended_early(), None, "its heads can be read");
    // Others' rings are looked at in between: no reader is held up for long.
    let (began, mut looks, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while guest.ended_early().is_none() && began.elapsed() < Duration::from_secs(60) {
        let look = Instant::now();
        assert_eq!(guest.drain(looks % 2), []);
        longest = longest.max(look.elapsed());
        looks += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let reason = guest.ended_early().unwrap();
    assert_eq!(reason, "the VM's memory was not read: reading it took more than 10 s");
    eprintln!("{looks} looks in {:?}, the longest took {longest:?}", began.elapsed());
    assert!(100 < looks && longest < Duration::from_secs(2), "{looks} {longest:?}");
    // The child can't end yet, and no wait is for that.
    let ends = Instant::now();
    drop(guest);
    assert!(ends.elapsed() < Duration::from_secs(2), "{:?}", ends.elapsed());
    drop(mounted);
    vm.kill().unwrap();
    vm.wait().unwrap();
}
