//! Children that crash, loop, lie and take what they can get: what each costs, and what is left to it. A child is its
//! parent's program, so this one has a `main` of its own.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use sandbox::{Failure, FolderLimits, MAX_CHILD_BYTES, Parser, Sandbox, confine_to_folder};

const TESTS: &[(&str, fn())] = &[
    ("answers_are_of_the_file_that_was_given", answers_are_of_the_file_that_was_given),
    ("nothing_is_left_to_a_child", nothing_is_left_to_a_child),
    ("lower_limits_stay", lower_limits_stay),
    ("a_child_can_open_nothing", a_child_can_open_nothing),
    ("a_forbidden_system_call_ends_the_child", a_forbidden_system_call_ends_the_child),
    ("whatever_ends_a_child_costs_one_answer", whatever_ends_a_child_costs_one_answer),
    ("a_child_dies_with_its_parent", a_child_dies_with_its_parent),
    ("a_child_outlives_the_thread_that_started_it", a_child_outlives_the_thread_that_started_it),
    ("a_spent_child_is_replaced", a_spent_child_is_replaced),
    ("children_that_fail_again_and_again_are_given_up", children_that_fail_are_given_up),
    ("a_program_that_is_no_child_is_not_waited_for", a_program_that_is_no_child),
    ("a_folder_is_all_that_is_left", a_folder_is_all_that_is_left),
];

fn main() -> ExitCode {
    if let Some(code) = sandbox::serve::<Hostile>() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("parent") => die_as_a_parent(),
        Some("folder") => return in_a_folder(&arguments[1]),
        Some("limits") => {
            print!("{}", limit_of_a_child("Max open files"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let is_wanted = |name: &str| {
        let mut wanted = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        wanted.peek().is_none() || wanted.any(|part| name.contains(part.as_str()))
    };
    for (name, test) in TESTS.iter().filter(|(name, _)| is_wanted(name)) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// A program that has given up all but its folder does this.
fn in_a_folder(what: &str) -> ExitCode {
    let limits = FolderLimits { memory_bytes: 1 << 30, cpu_seconds: 5, file_bytes: 1 << 20 };
    if let Err(error) = confine_to_folder(Path::new("."), limits) {
        print!("{error}");
        return ExitCode::FAILURE;
    }
    let denied = |result: std::io::Result<()>| {
        print!("{}", result.map_err(|error| error.kind().to_string()).unwrap_err());
    };
    match what {
        "work" => {
            std::fs::create_dir("sub").unwrap();
            std::fs::write("sub/a", "text").unwrap();
            std::fs::rename("sub/a", "sub/b").unwrap();
            File::open("sub/b").unwrap().sync_all().unwrap();
            assert_eq!(std::fs::read_dir("sub").unwrap().count(), 1);
            print!("{}", std::fs::read_to_string("sub/b").unwrap());
        }
        "read" => denied(File::open("/etc/passwd").map(drop)),
        "write" => denied(File::create("../other").map(drop)),
        "list" => denied(std::fs::read_dir("/").map(drop)),
        "exec" => denied(Command::new("/bin/true").status().map(drop)),
        "socket" => denied(std::net::TcpListener::bind("127.0.0.1:0").map(drop)),
        "large" => denied(std::fs::write("large", vec![1; 2 << 20])),
        "link" => denied(std::os::unix::fs::symlink("/etc/passwd", "link")),
        "allocate" => drop(vec![1_u8; 2 << 30]),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn a_folder_is_all_that_is_left() {
    use std::os::unix::process::ExitStatusExt;
    let run = |what: &str| {
        let folder = std::env::temp_dir().join(format!("vmscope-folder-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.env_clear().args(["folder", what]).current_dir(&folder);
        let output = command.output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status)
    };
    let (said, status) = run("work");
    assert!(status.success() && said == "text", "{said} {status}");
    let has_landlock = std::fs::read_to_string("/sys/kernel/security/lsm");
    if has_landlock.is_ok_and(|list| !list.contains("landlock")) {
        skip::skip("this kernel has no Landlock");
    } else {
        for what in ["read", "write", "list"] {
            assert_eq!(run(what).0, "permission denied", "{what}");
        }
    }
    for (what, signal) in [
        ("exec", libc::SIGSYS),
        ("socket", libc::SIGSYS),
        ("link", libc::SIGSYS),
        ("large", libc::SIGXFSZ),
        ("allocate", libc::SIGABRT),
    ] {
        let (said, status) = run(what);
        let is_it = status.signal() == Some(signal) || said == "file too large";
        assert!(is_it, "{what}: {said} {status}");
    }
}

/// Does what the test says.
#[derive(Debug)]
struct Hostile {
    is_spent: bool,
}

impl Parser for Hostile {
    type Question = String;
    type Answer = String;
    const NAME: &'static str = "hostile-child";

    fn start() -> Self {
        Self { is_spent: false }
    }

    fn is_spent(&self) -> bool {
        self.is_spent
    }

    fn answer(&mut self, question: &String, files: &[&File]) -> String {
        let mut numbers = vec![1_u8];
        match question.as_str() {
            "read" => {
                let mut text = String::new();
                for mut file in files.iter().copied() {
                    file.read_to_string(&mut text).unwrap();
                }
                text
            }
            "open" => File::open("/proc/self/status").unwrap_err().to_string(),
            "listen" => std::net::TcpListener::bind("127.0.0.1:0").unwrap_err().to_string(),
            "exec" => Command::new("/bin/true").status().unwrap_err().to_string(),
            "thread" => std::thread::spawn(|| "ran".to_owned()).join().unwrap(),
            "signal" => {
                let parent = rustix::process::getppid().unwrap();
                rustix::process::kill_process(parent, rustix::process::Signal::USR1)
                    .unwrap_err()
                    .to_string()
            }
            "spend" => {
                self.is_spent = true;
                question.clone()
            }
            "panic" => panic!("on request"),
            "abort" => std::process::abort(),
            "crash" => {
                // SAFETY: not at all; nothing is there.
                unsafe { std::ptr::without_provenance::<u64>(8).read_volatile() }.to_string()
            }
            "loop" => loop {
                std::hint::spin_loop();
            },
            "allocate" => loop {
                numbers.resize(2 * numbers.len(), 1);
            },
            "recurse" => recurse(&numbers).to_string(),
            "garbage" => {
                rustix::io::write(std::io::stdin(), &[3, 0, 0, 0, 255, 255, 255]).unwrap();
                question.clone()
            }
            "endless" => {
                rustix::io::write(std::io::stdin(), &[255; 64]).unwrap();
                question.clone()
            }
            "much" => "x".repeat(65 << 20),
            "leave" => std::process::exit(3),
            _ => question.clone(),
        }
    }
}

#[allow(unconditional_recursion)]
fn recurse(above: &[u8]) -> usize {
    let frame = [above[0]; 1 << 10];
    recurse(&frame) + frame.len()
}

fn ask(sandbox: &mut Sandbox<Hostile>, question: &str) -> Result<String, String> {
    sandbox.ask(&question.to_owned(), &[]).map_err(|failure| failure.to_string())
}

fn answers_are_of_the_file_that_was_given() {
    let file = |text: &str| {
        let name = format!("sandbox-test-{}-{text}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        let mut file = options.unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    };
    let mut sandbox = Sandbox::<Hostile>::default();
    let question = "read".to_owned();
    assert_eq!(sandbox.ask(&question, &[&file("one")]).unwrap(), "one");
    assert_eq!(sandbox.ask(&question, &[&file("two"), &file("three")]).unwrap(), "twothree");
    // A long question and answer, in many pieces.
    let long = "x".repeat(10 << 20);
    assert_eq!(ask(&mut sandbox, &long), Ok(long));
}

fn nothing_is_left_to_a_child() {
    let mut sandbox = Sandbox::<Hostile>::default();
    sandbox.start().unwrap();
    let child = sandbox.child().unwrap();
    let folder = format!("/proc/{child}");
    let status = std::fs::read_to_string(format!("{folder}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("Name"), "hostile-child");
    assert_eq!(field("Seccomp"), "2");
    assert_eq!(field("NoNewPrivs"), "1");
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    let own = rustix::process::geteuid();
    let expected = if own.is_root() { 0x7000_0000 + child } else { own.as_raw() };
    // In a user namespace there may be no such user.
    let is_expected = |user: &str| user == expected.to_string() || user == "65534";
    assert!(field("Uid").split(' ').all(is_expected), "{status}");
    if own.is_root() {
        assert!(field("Gid").split(' ').all(is_expected), "{status}");
        assert_eq!(field("Groups"), "");
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).unwrap().count();
        assert_eq!(descriptors, 3, "its socket, and /dev/null twice");
    }
    assert_eq!(limit_of_a_child("Max core file size"), "0 0");
    assert_eq!(limit_of_a_child("Max processes"), "0 0");
    let most = format!("{MAX_CHILD_BYTES} {MAX_CHILD_BYTES}");
    assert_eq!(limit_of_a_child("Max address space"), most);
}

/// The soft and the hard one.
fn limit_of_a_child(name: &str) -> String {
    let mut sandbox = Sandbox::<Hostile>::default();
    sandbox.start().unwrap();
    let limits = format!("/proc/{}/limits", sandbox.child().unwrap());
    let limits = std::fs::read_to_string(limits).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Who is not root could not raise them.
fn lower_limits_stay() {
    let lower = "ulimit -n 12 && exec \"$0\" limits";
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", lower]).arg(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "12 12");
}

/// By Landlock and by seccomp: either would do.
fn a_child_can_open_nothing() {
    let mut sandbox = Sandbox::<Hostile>::default();
    assert_eq!(ask(&mut sandbox, "open"), Ok("Permission denied (os error 13)".to_owned()));
}

fn a_forbidden_system_call_ends_the_child() {
    for call in ["listen", "exec", "thread", "signal"] {
        let mut sandbox = Sandbox::<Hostile>::default();
        let reason = ask(&mut sandbox, call).unwrap_err();
        assert!(reason.contains("SIGSYS"), "{call}: {reason}");
    }
}

fn whatever_ends_a_child_costs_one_answer() {
    // On a busy machine any but the loop may take long.
    let mut sandbox = Sandbox::<Hostile>::default().with_max_time(Duration::from_secs(600));
    for (attack, expected) in [
        ("panic", "the process that parsed it panicked"),
        ("abort", "the process that parsed it was stopped by SIGABRT (out of memory?)"),
        ("crash", "the process that parsed it was stopped by SIGSEGV"),
        ("allocate", "the process that parsed it was stopped by SIGABRT (out of memory?)"),
        ("recurse", "the process that parsed it was stopped by SIGABRT (out of memory?)"),
        ("garbage", "the process that parsed it sent no valid answer"),
        ("endless", "the process that parsed it sent no valid answer"),
        ("much", "the process that parsed it ended (exit status: 1)"),
        ("leave", "the process that parsed it ended (exit status: 3)"),
    ] {
        assert_eq!(ask(&mut sandbox, attack), Err(expected.to_owned()), "{attack}");
        assert_eq!(ask(&mut sandbox, "fine"), Ok("fine".to_owned()), "after {attack}");
    }
    let mut sandbox = sandbox.with_max_time(Duration::from_secs(1));
    assert_eq!(ask(&mut sandbox, "loop"), Err("reading it took more than 1 s".to_owned()));
    let mut sandbox = sandbox.with_max_time(Duration::from_secs(600));
    assert_eq!(ask(&mut sandbox, "fine"), Ok("fine".to_owned()), "after a loop");
}

fn die_as_a_parent() -> ! {
    let mut sandbox = Sandbox::<Hostile>::default();
    ask(&mut sandbox, "hello").unwrap();
    println!("{}", sandbox.child().unwrap());
    std::thread::spawn(move || ask(&mut sandbox, "loop"));
    std::process::abort()
}

fn a_child_dies_with_its_parent() {
    let parent = Command::new(std::env::current_exe().unwrap())
        .arg("parent")
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let child = String::from_utf8(parent.stdout).unwrap().trim().to_owned();
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // What is not waited for stays as a zombie.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while is_alive() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn a_child_outlives_the_thread_that_started_it() {
    let mut sandbox = Sandbox::<Hostile>::default();
    let asking = std::thread::spawn(move || (ask(&mut sandbox, "hello"), sandbox));
    let (_, mut sandbox) = asking.join().unwrap();
    let child = sandbox.child();
    assert_eq!(ask(&mut sandbox, "again"), Ok("again".to_owned()));
    assert_eq!(sandbox.child(), child);
}

fn a_spent_child_is_replaced() {
    let mut sandbox = Sandbox::<Hostile>::default();
    assert_eq!(ask(&mut sandbox, "spend"), Ok("spend".to_owned()));
    assert_eq!(sandbox.child(), None);
    assert_eq!(ask(&mut sandbox, "again"), Ok("again".to_owned()));
}

fn children_that_fail_are_given_up() {
    let mut sandbox = Sandbox::<Hostile>::default();
    let mut failures = 0;
    while sandbox.ask(&"leave".to_owned(), &[]) != Err(Failure::GivenUp) {
        failures += 1;
    }
    assert_eq!(failures, 64);
    assert_eq!(sandbox.ask(&"hello".to_owned(), &[]), Err(Failure::GivenUp));
}

fn a_program_that_is_no_child() {
    for program in ["/bin/true", "/bin/cat", "/nowhere"] {
        let sandbox = Sandbox::<Hostile>::of_program(Path::new(program));
        let reason = ask(&mut sandbox.with_max_time(Duration::from_secs(1)), "hello").unwrap_err();
        assert!(reason.starts_with("failed to start a process without privileges"), "{reason}");
    }
}
