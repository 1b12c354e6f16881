//! Programs that belong together lie in one folder.

use std::path::PathBuf;

use anyhow::Context;

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
