//! The child's side.

use std::ffi::CString;
use std::fs::File;
use std::io::stdin;
use std::process::ExitCode;

use rustix::thread::set_name;

use crate::frame::{Broken, Socket};
use crate::{Parser, confine};

/// First argument of a program that is to be a child.
pub(crate) const ARGUMENT: &str = "sandboxed-child";

/// Answers questions until there are no more, if this process was started for that: a program's first call. `None`: it was
/// not.
#[must_use]
pub fn serve<P: Parser>() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let is_child = arguments.next()? == ARGUMENT && arguments.next()? == P::NAME;
    is_child.then(|| match answer_all::<P>() {
        Err(Broken::Closed) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Gives up everything, and starts the parser while there can be threads.
fn start<P: Parser>() -> Result<P, String> {
    // Processes that are started as /proc/self/exe are all called "exe".
    let named = CString::new(P::NAME).map(|name| set_name(&name));
    debug_assert!(named.is_ok(), "{} is no name", P::NAME);
    confine::give_up_rights()?;
    let parser = P::start();
    confine::give_up_system_calls(&[])?;
    Ok(parser)
}

fn answer_all<P: Parser>() -> Result<(), Broken> {
    let started = start::<P>();
    let ready = started.as_ref().map(|_| ()).map_err(Clone::clone);
    let socket = Socket::new(stdin());
    socket.send(&postcard::to_stdvec(&ready).unwrap_or_default(), &[])?;
    let Ok(mut parser) = started else { return Err(Broken::Closed) };
    loop {
        let (question, files) = socket.receive()?;
        let question = postcard::from_bytes(&question).map_err(|_| Broken::TooLong)?;
        let files: Vec<&File> = files.iter().collect();
        let answer = parser.answer(&question, &files);
        let answer = (answer, parser.is_spent());
        let answer = postcard::to_stdvec(&answer).map_err(|_| Broken::TooLong)?;
        socket.send(&answer, &[])?;
    }
}
