//! Man pages and shell completions, for packages.

use std::io;
use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Writes a man page of section 8 for a program and each of its subcommands into `dir`.
///
/// # Errors
/// When they can't be written.
pub fn write_pages(program: &Command, dir: &Path) -> anyhow::Result<()> {
    write_with(program, dir, pages)
}

/// Writes a man page for each subcommand of a program that another one starts: that one has the page of the name.
///
/// # Errors
/// When they can't be written.
pub fn write_subcommand_pages(program: &Command, dir: &Path) -> anyhow::Result<()> {
    write_with(program, dir, pages_of_subcommands)
}

/// Writes completions for bash, zsh and fish into `dir`.
///
/// # Errors
/// When they can't be written.
pub fn write_completions(program: &Command, dir: &Path) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut program.clone(), &name, dir)
            .with_context(|| format!("failed to write to {}", dir.display()))?;
    }
    Ok(())
}

fn write_with(
    program: &Command,
    dir: &Path,
    write: impl FnOnce(&Command, &Path) -> io::Result<()>,
) -> anyhow::Result<()> {
    let failed = || format!("failed to write to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    let mut manual = program.clone().disable_help_subcommand(true);
    manual.build();
    write(&manual, dir).with_context(failed)
}

fn pages_of_subcommands(command: &Command, dir: &Path) -> io::Result<()> {
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|subcommand| pages(subcommand, dir))
}

fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    pages_of_subcommands(command, dir)?;
    Man::new(command.clone()).section("8").generate_to(dir)?;
    Ok(())
}
