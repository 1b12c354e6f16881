//! Programs: how one runs a command, and where those that belong together lie.

use std::path::PathBuf;
#[cfg(feature = "recordings")]
use std::process::ExitCode;

use anyhow::Context;

/// Parses the command line and runs the command. An error is printed in one line.
#[cfg(feature = "recordings")]
pub fn run_command<C: clap::Parser>(
    run: impl FnOnce(C) -> anyhow::Result<ExitCode>,
    exit_code: impl FnOnce(&anyhow::Error) -> ExitCode,
) -> ExitCode {
    let arguments = match crate::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    run(arguments).unwrap_or_else(|error| {
        print_error(&error);
        exit_code(&error)
    })
}

/// Prints an error in one line. It may contain names that a guest chose.
#[cfg(feature = "recordings")]
pub fn print_error(error: &anyhow::Error) {
    let text = model::error_chain(error.as_ref());
    say!("{}vmscope: {}", crate::error_priority(), table::clean(&text));
}

/// The path of another program of this project, such as `vmscope-lab`: beside this program.
///
/// # Errors
/// When it is not there, with the package that has it.
pub fn find_program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program's own file")?;
    // A link in the user's folder leads to where the programs are.
    let own = own.canonicalize().unwrap_or(own);
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let folder = own.parent().unwrap_or(&own).display();
    anyhow::bail!("{name} is not in {folder}: install the package {name}")
}
