//! Wrong usage in one line, like every other error.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Parser};

/// The command line. What is not run (help, version, wrong usage) is printed, and comes back as the
/// exit code.
pub(crate) fn parse<C: Parser>() -> Result<C, ExitCode> {
    let error = match C::try_parse() {
        Ok(arguments) => return Ok(arguments),
        Err(error) => error,
    };
    let is_answer = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_answer {
        // A reader that has gone needs no answer.
        let _ = error.print();
        return Err(ExitCode::from(if error.use_stderr() { 2 } else { 0 }));
    }
    let command = C::command();
    let subcommand = subcommand(&command, std::env::args().skip(1));
    eprintln!("{}: {}", command.get_name(), line(&error.to_string(), &subcommand));
    Err(ExitCode::from(2))
}

/// The first paragraph of clap's text, and where to read on.
fn line(text: &str, subcommand: &str) -> String {
    let paragraph = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let joined = paragraph.collect::<Vec<_>>().join(" ");
    let what = joined.strip_prefix("error: ").unwrap_or(&joined);
    let safe: String = what
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    format!("{safe}: see {subcommand} --help")
}

/// `vmscope testbed run`: the command and the subcommands that the arguments begin with.
fn subcommand(command: &Command, arguments: impl Iterator<Item = String>) -> String {
    let mut name = command.get_name().to_owned();
    let mut command = command;
    for argument in arguments {
        let Some(found) = command.find_subcommand(&argument) else {
            break;
        };
        name = format!("{name} {argument}");
        command = found;
    }
    name
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn one_line() {
        let check = |text, expected| assert_eq!(line(text, "vmscope report"), expected);
        check(
            "error: invalid value 'x' for '--view <VIEW>'\n  [possible values: a, b]\n\nFor more",
            "invalid value 'x' for '--view <VIEW>' [possible values: a, b]: see vmscope report --help",
        );
        check(
            "error: not provided:\n  <DIR>\n\nUsage: vmscope\n",
            "not provided: <DIR>: see vmscope report --help",
        );
        check("error: '\x1b[2J'", "'\u{fffd}[2J': see vmscope report --help");
    }

    #[test]
    fn subcommands() {
        let tree = Command::new("v").subcommand(Command::new("t").subcommand(Command::new("r")));
        let check = |arguments: &[&str], expected| {
            let arguments = arguments.iter().map(|&argument| argument.to_owned());
            assert_eq!(subcommand(&tree, arguments), expected);
        };
        check(&[], "v");
        check(&["t", "r", "t"], "v t r");
        check(&["nosuch", "t"], "v");
        check(&["t", "--x", "r"], "v t");
    }
}
