//! Running a command inside a guest, from the scenario's command: `vmscope testbed exec GUEST -- CMD`.
//!
//! The part inside the host holds every guest's port; this end asks it over a socket. A request is
//! the guest's name and the request, one line each; an answer is `CODE SIZE SIZE`, output, errors.
//! The second host of a scenario gets requests in the same way, over the network between the two, without a
//! guest's name: `vmscope testbed on HOST -- CMD`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::guest_vm::GuestVm;
use crate::inside::{self, Message};
use crate::plan::{Plan, Seat};
use crate::process;
use crate::qemu;

/// What a command in a guest answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub code: u8,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The guests that are ready, by name.
pub(crate) type Guests = Arc<Mutex<BTreeMap<String, Arc<GuestVm>>>>;

/// The environment variable that tells a scenario's command where the testbed's sockets are.
pub(crate) const FOLDER_VARIABLE: &str = "VMSCOPE_TESTBED";

/// Runs a command in a guest of the testbed this process runs in.
pub fn exec(guest: &str, command: &[String]) -> Result<ExecOutput, Error> {
    run_line(guest, &joined(command))
}

/// Runs a command on the other host of the testbed this process runs in.
pub fn on(host: &str, command: &[String]) -> Result<ExecOutput, Error> {
    let plan = plan()?;
    let other = plan.scenario_of(plan.seat.other())?.name;
    if host != other {
        return Err(Error::OtherHost { name: host.to_owned(), other });
    }
    let failed = |error: io::Error| Error::Host { problem: format!("{host}: {error}") };
    let stream = TcpStream::connect(wire(plan.seat.other())).map_err(failed)?;
    // A host's shell takes several lines, of which a request is one.
    let line = serde_json::Value::from(joined(command));
    ask(stream, HOST, &format!("{RUN}{line}")).map_err(failed)
}

fn joined(command: &[String]) -> String {
    command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// What the host that this process runs in was started with.
pub(crate) fn plan() -> Result<Plan, Error> {
    let folder = testbed_folder();
    let share = folder.join("share");
    Plan::read(if share.exists() { &share } else { &folder })
}

/// Runs a line in the shell of a guest of the testbed this process runs in.
pub(crate) fn run_line(guest: &str, line: &str) -> Result<ExecOutput, Error> {
    request(guest, &format!("{RUN}{line}"))
}

/// Ends a guest of the testbed this process runs in, at once.
pub fn end(guest: &str) -> Result<(), Error> {
    request(guest, END).map(drop)
}

/// Saves a guest to a file by live migration, ends its QEMU, and has another one take the file in.
pub(crate) fn migrate(guest: &str) -> Result<(), Error> {
    request(guest, MIGRATE).map(drop)
}

/// What the host itself is called in requests.
const HOST: &str = "";
/// Where a host listens for its peer.
const PEER_PORT: u16 = 6000;

const RUN: &str = "run ";
const END: &str = "end";
const MIGRATE: &str = "migrate";

/// The folder of the testbed this process runs in.
pub(crate) fn testbed_folder() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE).map_or_else(|| PathBuf::from(inside::FOLDER), PathBuf::from)
}

/// In the virtual host, a folder that this machine sees, too: what is written there is brought back, even if the virtual host
/// ends by itself.
#[must_use]
pub fn shared_folder() -> PathBuf {
    Path::new(inside::FOLDER).join("share/out")
}

fn request(guest: &str, line: &str) -> Result<ExecOutput, Error> {
    let socket = socket(&testbed_folder());
    let stream = UnixStream::connect(&socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Outside,
        _ => Error::io("reach the testbed at", &socket)(error),
    })?;
    ask(stream, guest, line)
        .map_err(|error| Error::Guest { guest: guest.to_owned(), problem: error.to_string() })
}

/// The broker's socket.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("exec.sock")
}

/// Serves requests for ever, each on a thread of its own.
pub(crate) fn serve(listener: &UnixListener, guests: &Guests, run: &Sender<Message>) {
    for stream in listener.incoming().flatten() {
        let (guests, run) = (Arc::clone(guests), run.clone());
        std::thread::spawn(move || {
            // The client may have gone away.
            let _ = answer(&stream, &guests, &run);
        });
    }
}

/// Serves the second host, which has lines run on this one. No other machine is in the network between the two.
pub(crate) fn serve_peer(seat: Seat) -> Result<(), Error> {
    let listener = TcpListener::bind(wire(seat))
        .map_err(|error| Error::Host { problem: format!("is not reached by its peer: {error}") })?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let output = |_: &str, line: &str| on_this_host(line);
                answer_with(&stream, output)
            });
        }
    });
    Ok(())
}

fn wire(seat: Seat) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(qemu::wire_address(seat)), PEER_PORT)
}

fn on_this_host(line: &str) -> Result<ExecOutput, String> {
    let script = line.strip_prefix(RUN).and_then(|line| serde_json::from_str::<String>(line).ok());
    let script = script.ok_or_else(|| format!("unknown request: {line}"))?;
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    inside::at_home(&mut command, &testbed_folder());
    let child = process::spawn_bound(&mut command, Vec::new());
    let output = child.and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|error| format!("failed to run sh: {error}"))?;
    let code = inside::exit_code(output.status);
    Ok(ExecOutput { code, stdout: output.stdout, stderr: output.stderr })
}

fn answer(stream: &UnixStream, guests: &Guests, run: &Sender<Message>) -> io::Result<()> {
    answer_with(stream, |name, line| {
        let guest = guests.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        match guest {
            Some(guest) => carry_out(&guest, line, run),
            None => Err(format!("no guest `{name}` is running")),
        }
    })
}

fn answer_with<S>(
    stream: &S,
    output: impl FnOnce(&str, &str) -> Result<ExecOutput, String>,
) -> io::Result<()>
where
    for<'a> &'a S: Read + Write,
{
    let mut reader = BufReader::new(stream.take(1 << 20));
    let (mut name, mut line) = (String::new(), String::new());
    reader.read_line(&mut name)?;
    reader.read_line(&mut line)?;
    let mut stream = stream;
    match output(name.trim_end(), line.trim_end_matches('\n')) {
        Ok(output) => {
            writeln!(stream, "{} {} {}", output.code, output.stdout.len(), output.stderr.len())?;
            stream.write_all(&output.stdout)?;
            stream.write_all(&output.stderr)
        }
        Err(problem) => writeln!(stream, "error {problem}"),
    }
}

fn carry_out(guest: &GuestVm, line: &str, run: &Sender<Message>) -> Result<ExecOutput, String> {
    match line {
        END => guest.end_on_request(),
        MIGRATE => {
            guest.save()?;
            // The run's own thread starts processes.
            let (done, taken_in) = mpsc::channel();
            let _ = run.send(Message::TakeIn(guest.name().to_owned(), done));
            taken_in.recv().unwrap_or_else(|_| Err("the run ended".to_owned()))?;
        }
        _ => {
            let line = line.strip_prefix(RUN).ok_or_else(|| format!("unknown request: {line}"))?;
            return guest.exec(line).map_err(|error| error.to_string());
        }
    }
    Ok(ExecOutput { code: 0, stdout: Vec::new(), stderr: Vec::new() })
}

fn ask(mut stream: impl Read + Write, guest: &str, line: &str) -> io::Result<ExecOutput> {
    if guest.contains('\n') || line.contains('\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a line break in an argument"));
    }
    stream.write_all(format!("{guest}\n{line}\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut header = String::new();
    reader.read_line(&mut header)?;
    if let Some(problem) = header.strip_prefix("error ") {
        return Err(io::Error::other(problem.trim_end().to_owned()));
    }
    let numbers: Vec<u64> = header.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[code, n_out, n_err] = numbers.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the testbed went away"));
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    (&mut reader).take(n_out).read_to_end(&mut stdout)?;
    (&mut reader).take(n_err).read_to_end(&mut stderr)?;
    Ok(ExecOutput { code: u8::try_from(code).unwrap_or(u8::MAX), stdout, stderr })
}

/// A word as the guest's shell must read it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        for word in ["plain", "two words", "it's", "$HOME `x` \"y\"", ""] {
            let output = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn an_unknown_guest_is_named() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let guests = Guests::default();
        let server = std::thread::spawn(move || answer(&theirs, &guests, &mpsc::channel().0));
        let error = ask(ours, "absent", "true").unwrap_err();
        assert_eq!(error.to_string(), "no guest `absent` is running");
        server.join().unwrap().unwrap();
    }
}
