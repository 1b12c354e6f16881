//! Parsing of the command line; usage errors are one line, like every other error.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};

/// Parses the command line.
///
/// # Errors
/// The exit code, once help, version or a usage error has been printed.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
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
        // Printing fails only if the reader has closed its end.
        let _ = error.print();
        return Err(ExitCode::from(if error.use_stderr() { 2 } else { 0 }));
    }
    let command = C::command();
    let (name, subcommand) = subcommand(&command, std::env::args().skip(1));
    let mut text = error.to_string();
    if lacks_dashes(&error, subcommand) {
        text = text.replacen('\n', ": put -- before the command\n", 1);
    }
    say!("{}: {}", command.get_name(), line(&text, &name));
    Err(ExitCode::from(2))
}

/// Whether an unexpected word is the first of a COMMAND that must follow `--`.
fn lacks_dashes(error: &clap::Error, subcommand: &Command) -> bool {
    let is_word = |value: &ContextValue| matches!(value, ContextValue::String(word) if !word.starts_with('-'));
    error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg).is_some_and(is_word)
        && subcommand.get_positionals().all(|argument| argument.is_last_set())
        && subcommand.get_positionals().next().is_some()
}

/// The first paragraph of clap's message, and the help to read.
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

/// The leading subcommands of the arguments, as `vmscope testbed run`, and the last of them.
fn subcommand(command: &Command, arguments: impl Iterator<Item = String>) -> (String, &Command) {
    let mut name = command.get_name().to_owned();
    let mut command = command;
    for argument in arguments {
        let Some(found) = command.find_subcommand(&argument) else {
            break;
        };
        name = format!("{name} {argument}");
        command = found;
    }
    (name, command)
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
    fn a_command_without_dashes() {
        let last = clap::Arg::new("command").last(true).num_args(0..);
        let with_last = Command::new("r").arg(clap::Arg::new("o").short('o')).arg(last);
        let check = |command: &Command, words: &[&str], expected| {
            let error = command.clone().try_get_matches_from(words);
            let error = error.expect_err("wrong usage");
            assert_eq!(lacks_dashes(&error, command), expected, "{words:?}: {error}");
        };
        check(&with_last, &["r", "-o", "x", "make", "-j2"], true);
        check(&with_last, &["r", "--nosuch"], false);
        check(&with_last, &["r", "-o"], false);
        check(&Command::new("r"), &["r", "make"], false);
    }

    #[test]
    fn subcommands() {
        let tree = Command::new("v").subcommand(Command::new("t").subcommand(Command::new("r")));
        let check = |arguments: &[&str], expected| {
            let arguments = arguments.iter().map(|&argument| argument.to_owned());
            assert_eq!(subcommand(&tree, arguments).0, expected);
        };
        check(&[], "v");
        check(&["t", "r", "t"], "v t r");
        check(&["nosuch", "t"], "v");
        check(&["t", "--x", "r"], "v t");
    }
}
