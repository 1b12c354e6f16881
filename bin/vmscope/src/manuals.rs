//! Man pages and shell completions, for packages.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

/// Writes a man page of section 8 for the program and each of its subcommands into `dir`, and completions for bash, zsh
/// and fish.
pub(crate) fn write<C: CommandFactory>(dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("failed to write to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    let program = C::command();
    let name = program.get_name().to_owned();
    let mut manual = program.clone().disable_help_subcommand(true);
    manual.build();
    pages(&manual, dir).with_context(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut program.clone(), &name, dir).with_context(failed)?;
    }
    Ok(())
}

fn pages(command: &Command, dir: &Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages(subcommand, dir)?;
    }
    Man::new(command.clone()).section("8").generate_to(dir)?;
    Ok(())
}
