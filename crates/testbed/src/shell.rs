//! An interactive prompt in the virtual host.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::Error;
use crate::launch;
use crate::plan::{Plan, Seat};
use crate::process;
use crate::progress::Progress;
use crate::scenario::HostCpu;
use crate::virtual_host::VirtualHost;

/// Opens a prompt in the virtual host, with the guests of a scenario if one is given. Ends with the
/// shell; returns its exit code.
pub fn shell(scenario: Option<&Path>, vmscope: &Path) -> Result<u8, Error> {
    let (path, text) = match scenario {
        Some(path) => (path, std::fs::read_to_string(path).map_err(Error::io("read", path))?),
        None => (Path::new("shell"), "name = \"shell\"".to_owned()),
    };
    let plan = Plan {
        scenario_path: path.to_owned(),
        scenario_text: text,
        seat: Seat::Main,
        guests: Vec::new(),
        command: Vec::new(),
    };
    let scenario = plan.scenario()?;
    if scenario.host.cpu == HostCpu::Intel {
        return Err(Error::Scenario {
            path: path.to_owned(),
            line: None,
            problem: "host.cpu: an Intel host has no terminal".to_owned(),
        });
    }
    let prepared = launch::prepare(scenario, plan, false, vmscope)?;
    let failed = |error: io::Error| Error::Host { problem: format!("got no terminal: {error}") };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let interrupts = process::catch_interrupts().map_err(failed)?;
    let mut progress = Progress::new("booting the virtual host", false);
    let mut host = VirtualHost::start(&prepared, Some(theirs))?;
    let _raw = RawTerminal::enter();
    let input = ours.try_clone().map_err(failed)?;
    std::thread::spawn(move || carry(io::stdin(), input));
    std::thread::spawn(move || carry(ours, io::stdout()));
    let result = host.watch(&mut progress, &interrupts, None);
    host.end(result.is_ok());
    result
}

/// The kernel-line words that tell the shell how large our terminal is.
pub(crate) fn size_argument() -> String {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 => {
            format!("TERMINAL_SIZE=\"rows {} cols {}\"", size.ws_row, size.ws_col)
        }
        _ => String::new(),
    }
}

/// Our terminal in raw mode, for as long as this lives.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

fn carry(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; 4096];
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
        && to.write_all(&buffer[..n]).and_then(|()| to.flush()).is_ok()
    {}
}
