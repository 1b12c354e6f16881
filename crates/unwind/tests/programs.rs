//! Real programs, built here, stopped by `ptrace`: their stacks are those of the source.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use linux::elf::{Bytes, Headers, for_each_function};
use model::StackEnd;
use unwind::{Area, AreaCode, Basis, Files, FrameTable, Process, Registers, StackCopy, Unwinder};

/// A stack with other bytes, but for the words that its frames follow from.
fn others_than(basis: &Basis, copy: &StackCopy) -> StackCopy {
    let mut bytes: Vec<u8> = copy.bytes.iter().map(|byte| byte ^ 0x5a).collect();
    for (at, value) in &basis.words {
        let place = usize::try_from(at.wrapping_sub(copy.start)).unwrap_or(usize::MAX);
        if let Some(word) = bytes.get_mut(place..).and_then(|rest| rest.first_chunk_mut()) {
            *word = value.to_le_bytes();
        }
    }
    StackCopy { start: copy.start, bytes }
}

/// Copied of a stack.
const STACK_BYTES: usize = 16 << 10;

/// Stops at each `int3`, in another way of having come there.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#define FN __attribute__((noinline, noclone))
#define KEEP asm volatile("" ::: "memory")
typedef void call(void);
void library(call *f);

FN void stop(void) { asm volatile("int3"); }
FN void rec(int n) { if (n == 0) stop(); else rec(n - 1); KEEP; }
FN int compare(const void *a, const void *b) { stop(); KEEP; return *(int *)a - *(int *)b; }
FN void sorted(void) { int two[2] = {2, 1}; qsort(two, 2, sizeof(int), compare); KEEP; }
FN void back(void) { stop(); KEEP; }
FN void through(void) { library(back); KEEP; }
FN void target(int n) { (void)n; stop(); KEEP; }
FN void tail(int n) { target(n + 1); }
FN void tails(void) { tail(1); KEEP; }
FN void aligned(int n) {
    volatile char room[64] __attribute__((aligned(64)));
    char *more = alloca(n);
    memset(more, 1, n);
    room[0] = more[n - 1];
    stop();
    KEEP;
}
FN void *run(void *nothing) { rec(2); KEEP; return nothing; }
FN void threads(void) { pthread_t thread; pthread_create(&thread, 0, run, 0); pthread_join(thread, 0); KEEP; }
/* The interrupted address is the function's first one. */
asm(".globl bad\n.type bad,@function\nbad: .cfi_startproc\n ud2\n ret\n.cfi_endproc\n.size bad,.-bad\n");
void bad(void);
FN void handler(int n, siginfo_t *info, void *context) {
    (void)n, (void)info;
    stop();
    /* Behind the `ud2`. */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}
FN void signals(int flags) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | flags};
    action.sa_sigaction = handler;
    sigaction(SIGILL, &action, 0);
    bad();
    KEEP;
}
FN void generated(void) {
    /* push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    ((void (*)(call *))page)(back);
    KEEP;
}
FN int number(const void *a, const void *b) { return *(int *)a - *(int *)b; }
/* Each instruction of it is stepped through: prologues, stubs, the dynamic linker, the vDSO. */
FN void steps(void) {
    struct timespec now;
    int many[9] = {4, 3, 9, 2, 7, 1, 8, 5, 6};
    char text[64];
    clock_gettime(CLOCK_MONOTONIC, &now);
    qsort(many, 9, sizeof(int), number);
    memset(text, many[0], sizeof text);
    free(strdup(text));
    KEEP;
}
int main(void) {
    static char other[1 << 16];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    stop();
    rec(40);
    sorted();
    through();
    tails();
    aligned(100);
    threads();
    signals(0);
    sigaltstack(&stack, 0);
    signals(SA_ONSTACK);
    generated();
    stop();
    steps();
    stop();
    return 0;
}
"#;

const LIBRARY: &str =
    "void library(void (*f)(void)) { f(); __asm__ volatile(\"\" ::: \"memory\"); }";

/// By function of the program; `libc`: any of another file; `anon`: generated code.
fn expected() -> Vec<Vec<String>> {
    let mut recursion = vec!["stop"];
    recursion.extend(["rec"; 41]);
    let in_main: [&[&str]; 11] = [
        &["stop"],
        &recursion,
        &["stop", "compare", "libc", "sorted"],
        &["stop", "back", "library", "through"],
        &["stop", "target", "tails"],
        &["stop", "aligned"],
        &["stop", "rec", "rec", "rec", "run", "libc"],
        &["stop", "handler", "libc", "bad", "signals"],
        &["stop", "handler", "libc", "bad", "signals"],
        &["stop", "back", "anon", "generated"],
        &["stop"],
    ];
    let words = |stack: &[&str]| stack.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut stacks: Vec<_> = in_main.map(words).to_vec();
    for (at, stack) in stacks.iter_mut().enumerate() {
        if at != 6 {
            stack.extend(words(&["main", "libc", "_start"]));
        }
    }
    stacks
}

/// A stopped program, and what is known of its files.
struct Stopped {
    child: Child,
    memory: File,
    areas: Vec<Area>,
    files: Vec<Mapped>,
    unwinder: Unwinder,
}

struct Mapped {
    path: String,
    table: Result<FrameTable, StackEnd>,
    /// Functions by file offset, with their sizes.
    functions: BTreeMap<u64, (u64, String)>,
}

struct Tables<'a>(&'a [Mapped]);

impl Files for Tables<'_> {
    fn table(&mut self, file: u32) -> Result<&FrameTable, StackEnd> {
        self.0[file as usize].table.as_ref().map_err(|end| *end)
    }
}

impl Mapped {
    fn new(path: &str, content: &[u8]) -> Self {
        let bytes = Bytes::new(&content, 1 << 30);
        let headers = Headers::read(&bytes).ok();
        let mut functions = BTreeMap::new();
        if let Some(headers) = &headers {
            let _ = for_each_function(&bytes, headers, &mut |offset, size, name| {
                functions.insert(offset, (size, name.to_owned()));
                true
            });
        }
        Self { path: path.to_owned(), table: FrameTable::read(&content), functions }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Its threads first.
        while !matches!(self.wait(-1), (ended, None) if ended == self.pid() || ended < 0) {}
    }
}

fn let_trace() -> std::io::Result<()> {
    // SAFETY: this request takes nothing.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    Ok(())
}

impl Stopped {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.env_remove("LD_BIND_NOW");
        // SAFETY: it only makes a system call.
        unsafe { command.pre_exec(let_trace) };
        let child = command.spawn().unwrap();
        let memory = File::open(format!("/proc/{}/mem", child.id())).unwrap();
        let (areas, files, unwinder) = (Vec::new(), Vec::new(), Unwinder::default());
        let stopped = Self { child, memory, areas, files, unwinder };
        // At the end of `execve`.
        stopped.wait(stopped.pid());
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        stopped.ptrace(libc::PTRACE_SETOPTIONS, stopped.pid(), u64::try_from(options).unwrap());
        stopped
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn ptrace(&self, request: libc::c_uint, thread: i32, data: u64) {
        // SAFETY: the requests that are used here take a number.
        let done = unsafe { libc::ptrace(request, thread, 0, data) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Which thread stopped, and by which signal and event; `None`: it ended. Of this test's programs only.
    fn wait(&self, thread: i32) -> (i32, Option<i32>) {
        let mut status = 0;
        let flags = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` is there to be written.
        let stopped = unsafe { libc::waitpid(thread, &raw mut status, flags) };
        (stopped, libc::WIFSTOPPED(status).then_some(status >> 8))
    }

    /// Runs to the next `int3`; returns the thread.
    fn next_stop(&mut self, thread: i32) -> i32 {
        let (mut thread, mut signal) = (thread, 0);
        loop {
            self.ptrace(libc::PTRACE_CONT, thread, signal);
            let status = loop {
                match self.wait(-1) {
                    (stopped, Some(status)) => {
                        thread = stopped;
                        break status;
                    }
                    // Another thread goes on.
                    (ended, None) => assert_ne!(ended, self.pid(), "the program has ended"),
                }
            };
            signal = match status {
                libc::SIGTRAP => return thread,
                libc::SIGILL => libc::SIGILL as u64,
                _ => 0,
            };
        }
    }

    fn all_registers(&self, thread: i32) -> libc::user_regs_struct {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        let place = registers.as_mut_ptr();
        // SAFETY: the kernel writes as much as the struct has.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, thread, 0, place) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it was written.
        unsafe { registers.assume_init() }
    }

    fn stack(&self, thread: i32) -> StackCopy {
        let start = self.all_registers(thread).rsp;
        let mut bytes = vec![0; STACK_BYTES];
        let read = self.memory.read_at(&mut bytes, start).unwrap_or(0);
        bytes.truncate(read);
        StackCopy { start, bytes }
    }

    fn read_mappings(&mut self) {
        self.areas.clear();
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if !words[1].contains('x') {
                continue;
            }
            let (start, end) = words[0].split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end, offset) = (number(start), number(end), number(words[2]));
            let path = words.get(5).copied().unwrap_or_default();
            let code = if path.is_empty() || path == "[vsyscall]" {
                AreaCode::Generated
            } else {
                let file = self.file(path, start, end);
                AreaCode::File { file: u32::try_from(file).unwrap(), offset }
            };
            self.areas.push(Area { start, end, code });
        }
    }

    fn file(&mut self, path: &str, start: u64, end: u64) -> usize {
        self.files.iter().position(|it| it.path == path).unwrap_or_else(|| {
            let content = std::fs::read(path).unwrap_or_else(|_| {
                let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
                self.memory.read_exact_at(&mut bytes, start).unwrap();
                bytes
            });
            self.files.push(Mapped::new(path, &content));
            self.files.len() - 1
        })
    }

    fn unwind(&mut self, thread: i32, copies: &[StackCopy]) -> (Vec<u64>, StackEnd) {
        let all = self.all_registers(thread);
        let registers = Registers::new(all.rip, all.rsp, all.rbp)
            .with_callee_saved([all.rbx, all.r12, all.r13, all.r14, all.r15]);
        let mut files = Tables(&self.files);
        let mut process = Process { number: 1, areas: &self.areas, files: &mut files };
        let mut frames = Vec::new();
        self.unwinder.workspace.allow(1 << 20);
        let (end, _) = self.unwinder.unwind(&mut process, &registers, copies, &mut frames);
        let basis = self.unwinder.basis().clone();
        if basis.is_partial {
            let names = self.names(&frames);
            // The dynamic linker's code that binds a function has a frame of the same kind.
            let is_rare = names[0] == "libc" || names.iter().any(|name| name == "aligned");
            assert!(is_rare, "{names:?} {basis:x?}");
        } else if end.is_whole() {
            let bp = if basis.needs_bp { all.rbp } else { !all.rbp };
            let others = Registers::new(all.rip, all.rsp, bp).with_callee_saved([7; 5]);
            let copies: Vec<_> = copies.iter().map(|copy| others_than(&basis, copy)).collect();
            let mut same = Vec::new();
            let again = self.unwinder.unwind(&mut process, &others, &copies, &mut same);
            assert_eq!((same, again.0), (frames.clone(), end), "{basis:x?}");
        }
        (frames, end)
    }

    /// Names of frames; those of other files as one.
    fn names(&self, frames: &[u64]) -> Vec<String> {
        let mut names: Vec<String> =
            frames.iter().map(|address| self.name(*address).unwrap_or("libc").to_owned()).collect();
        names.dedup_by(|a, b| a == "libc" && b == "libc");
        names
    }

    fn name(&self, address: u64) -> Option<&str> {
        let area = self.areas.iter().find(|it| it.start <= address && address < it.end)?;
        let AreaCode::File { file, offset } = area.code else { return Some("anon") };
        let file = &self.files[file as usize];
        let is_own = file.path.ends_with("program") || file.path.ends_with("library.so");
        let offset = address - area.start + offset;
        let (start, (size, name)) = file.functions.range(..=offset).next_back()?;
        let is_known = is_own && (offset < start + size || name == "_start");
        // Of a static program, libc's functions are its own.
        (is_known && FUNCTIONS.contains(&name.as_str())).then_some(name)
    }
}

const FUNCTIONS: [&str; 21] = [
    "stop",
    "rec",
    "compare",
    "sorted",
    "back",
    "through",
    "target",
    "tail",
    "tails",
    "aligned",
    "run",
    "threads",
    "bad",
    "handler",
    "signals",
    "generated",
    "number",
    "steps",
    "main",
    "_start",
    "library",
];

/// `None` where there is no compiler that can do it; says so.
fn build(folder: &Path, flags: &[&str]) -> Option<()> {
    std::fs::write(folder.join("program.c"), PROGRAM).unwrap();
    std::fs::write(folder.join("library.c"), LIBRARY).unwrap();
    let is_static = flags.contains(&"-static");
    let compile = |arguments: &[&str]| {
        let mut command = Command::new("cc");
        command.current_dir(folder).args(flags).arg("-w").args(arguments).arg("-pthread");
        command.status().is_ok_and(|status| status.success())
    };
    let built = if is_static {
        compile(&["-o", "program", "program.c", "library.c"])
    } else {
        compile(&["-shared", "-fPIC", "-o", "library.so", "library.c"])
            && compile(&[
                "-o",
                "program",
                "program.c",
                "-L.",
                "-l:library.so",
                "-Wl,-rpath,$ORIGIN",
            ])
    };
    if !built {
        skip::skip(format_args!("cc can't build with {flags:?} here"));
    }
    built.then_some(())
}

fn check(flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let Some(()) = build(folder.path(), flags) else { return };
    let mut program = Stopped::start(&folder.path().join("program"));
    let mut thread = program.pid();
    for expected in expected() {
        thread = program.next_stop(thread);
        program.read_mappings();
        let mut copies = vec![program.stack(thread)];
        if expected[1] == "handler" {
            // The handler has a stack of its own the second time: the interrupted one is that of the main thread.
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
            let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
            let (start, rest) = stack.split_once('-').unwrap();
            let [start, end] = [start, rest.split_once(' ').unwrap().0]
                .map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            program.memory.read_exact_at(&mut bytes, start).unwrap();
            copies.push(StackCopy { start, bytes });
        }
        for _ in 0..2 {
            let (frames, end) = program.unwind(thread, &copies);
            assert_eq!(program.names(&frames), expected, "{flags:?} {end:?} {frames:x?}");
            assert_eq!(end, StackEnd::Start, "{flags:?} {expected:?}");
        }
    }
    step(&mut program, thread, flags);
}

/// Each instruction up to the next `int3` has a whole stack.
fn step(program: &mut Stopped, thread: i32, flags: &[&str]) {
    let (mut n_steps, mut is_within) = (0, false);
    loop {
        program.ptrace(libc::PTRACE_SINGLESTEP, thread, 0);
        assert_eq!(program.wait(thread), (thread, Some(libc::SIGTRAP)));
        let (frames, end) = program.unwind(thread, &[program.stack(thread)]);
        let names = program.names(&frames);
        let context = || format!("{flags:?} step {n_steps}: {end:?} {names:?} {frames:x?}");
        assert_eq!(end, StackEnd::Start, "{}", context());
        assert!(names.ends_with(&["main", "libc", "_start"].map(str::to_owned)), "{}", context());
        n_steps += 1;
        is_within |= names[0] == "steps";
        if is_within && names[0] == "stop" {
            break;
        }
        // The stack grows by calls.
        assert!(n_steps < 100_000);
    }
    assert!(1000 < n_steps, "{n_steps}");
}

#[test]
fn with_frame_pointers() {
    check(&["-O2", "-fno-omit-frame-pointer"]);
}

#[test]
fn without_frame_pointers() {
    check(&["-O2", "-fomit-frame-pointer"]);
}

#[test]
fn not_optimized_and_not_relocated() {
    check(&["-O1", "-foptimize-sibling-calls", "-no-pie", "-fno-pic", "-Wl,-z,lazy"]);
}

#[test]
fn linked_statically() {
    check(&["-O2", "-static"]);
}

/// A function without a frame hides its caller.
#[test]
fn go_keeps_frame_pointers() {
    const GO: &str = "package main\nimport \"runtime\"\n//go:noinline\nfunc rec(n int) int {\n\
        if n == 0 { runtime.Breakpoint(); return 1 }\nreturn rec(n-1) + 1\n}\n\
        func main() { rec(5) }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("program.go"), GO).unwrap();
    let mut build = Command::new("go");
    build.current_dir(folder.path()).args(["build", "-o", "program", "program.go"]);
    build.env("GOCACHE", folder.path().join("cache")).env("CGO_ENABLED", "0");
    if !build.output().is_ok_and(|built| built.status.success()) {
        skip::skip(format_args!("go can't build here"));
        return;
    }
    let mut program = Stopped::start(&folder.path().join("program"));
    let thread = program.next_stop(program.pid());
    program.read_mappings();
    let (frames, end) = program.unwind(thread, &[program.stack(thread)]);
    let functions = &program.files[0].functions;
    let file_offset = |address: u64| {
        let area = program.areas.iter().find(|it| it.start <= address && address < it.end);
        let area = area.unwrap();
        let AreaCode::File { offset, .. } = area.code else { panic!("{address:x}") };
        address - area.start + offset
    };
    let name =
        |address: &u64| functions.range(..=file_offset(*address)).next_back().unwrap().1.1.as_str();
    let names: Vec<&str> = frames.iter().map(name).collect();
    let rest = ["main.main", "runtime.main", "runtime.goexit.abi0"];
    assert_eq!(names, [&["runtime.breakpoint.abi0"][..], &["main.rec"; 5], &rest].concat());
    assert_eq!(end, StackEnd::Start);
}

#[test]
fn a_stack_that_was_cut_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some(()) = build(folder.path(), &["-O2"]) else { return };
    let mut program = Stopped::start(&folder.path().join("program"));
    let thread = program.next_stop(program.pid());
    let thread = program.next_stop(thread);
    program.read_mappings();
    let StackCopy { start, bytes } = program.stack(thread);
    let mut n_before = 0;
    for length in (0..400).step_by(8) {
        let copy = StackCopy { start, bytes: bytes[..length].to_vec() };
        let (frames, end) = program.unwind(thread, &[copy]);
        let names = program.names(&frames);
        assert_eq!(end, StackEnd::Cut, "{length} {names:?}");
        assert_eq!(names[0], "stop");
        assert!(names[1..].iter().all(|name| name == "rec"), "{names:?}");
        assert!(n_before <= frames.len());
        n_before = frames.len();
    }
    assert!(10 < n_before, "{n_before}");
}
