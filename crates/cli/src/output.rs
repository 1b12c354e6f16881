//! What subcommands print with.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use recording::output::OutputFolder;
use rustix::termios::tcgetwinsize;
use table::{Report, Width};

/// Where a report with charts goes, and in which format.
#[derive(Debug, clap::Args)]
pub struct ReportOutput {
    /// Output format
    #[arg(long, value_enum, default_value_t = PageFormat::Text)]
    format: PageFormat,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PageFormat {
    /// Tables
    Text,
    /// One object, described in docs/
    Json,
    /// RFC 4180
    Csv,
    /// One page with charts, for any browser
    Html,
}

impl ReportOutput {
    /// Writes a report, or the page of it.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(
        &self,
        report: impl FnOnce() -> Report,
        page: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let out = match self.format {
            PageFormat::Text => report().text(width()),
            PageFormat::Csv => report().csv(),
            PageFormat::Json => table::pretty(&report().json),
            PageFormat::Html => {
                let mut text = Vec::new();
                page(&mut text).context("failed to write the page")?;
                String::from_utf8(text).context("the page is not UTF-8")?
            }
        };
        let Some(path) = &self.output else {
            return print(&out).context("failed to write to standard output");
        };
        write_file(path, |file| file.write_all(out.as_bytes()))
            .with_context(|| format!("failed to write {}", path.display()))?;
        say!("wrote {}", path.display());
        Ok(())
    }
}

/// Lines at most, 0 for all.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "give a number of lines, 0 for all".to_owned())
}

/// Writes to standard output; that the reader has gone (`| head`) is no error.
pub fn print(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    pipe(out.write_all(report.as_bytes()).and_then(|()| out.flush()))
}

/// How wide text may be.
pub fn width() -> Width {
    let out = io::stdout();
    if !out.is_terminal() {
        return Width::Unlimited;
    }
    match tcgetwinsize(&out) {
        Ok(size) if size.ws_col > 0 => Width::Columns(size.ws_col.into()),
        // A terminal that does not tell (a serial line).
        Ok(_) | Err(_) => Width::Unlimited,
    }
}

/// A reader that has seen enough is no failure.
pub fn pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes beside `file` and renames, so that a half-written file never has the name. Devices and
/// pipes are written to as they are. Links of other users lead nowhere, see `OutputFolder`.
///
/// # Errors
/// When it can't be written.
pub fn write_file(
    file: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let (folder, name) = OutputFolder::of_file(file)?;
    if let Some(mut existing) = not_a_file(&folder, name)? {
        return pipe(write(&mut existing));
    }
    let mut partial = Partial::create(&folder, name)?;
    write(&mut partial.file)?;
    partial.rename(name)
}

/// A new file in the place of the one that has the name. Devices and pipes are opened as they are.
///
/// # Errors
/// When it can't be created.
pub fn create_file(file: &Path) -> io::Result<File> {
    let (folder, name) = OutputFolder::of_file(file)?;
    if let Some(existing) = not_a_file(&folder, name)? {
        return Ok(existing);
    }
    if folder.has(name) {
        folder.remove_file(name)?;
    }
    folder.create_file(name, FILE_MODE)
}

/// What has the name, if it is a device or a pipe.
fn not_a_file(folder: &OutputFolder, name: &OsStr) -> io::Result<Option<File>> {
    match folder.find(name)? {
        Some(existing) if !existing.is_file()? => existing.open().map(Some),
        _ => Ok(None),
    }
}

/// As by `File::create`.
const FILE_MODE: u32 = 0o666;

/// A file on its way to its name; removed if it does not get there.
struct Partial<'a> {
    file: File,
    folder: &'a OutputFolder,
    name: OsString,
}

impl<'a> Partial<'a> {
    fn create(folder: &'a OutputFolder, target: &OsStr) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(target);
        name.push(format!(".{}.partial", std::process::id()));
        Ok(Self { file: folder.create_file(&name, FILE_MODE)?, folder, name })
    }

    fn rename(self, target: &OsStr) -> io::Result<()> {
        self.folder.rename(&self.name, target)
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // After the rename there is nothing left to remove.
        let _ = self.folder.remove_file(&self.name);
    }
}
