//! A window's result tables, as the server stores them.

use std::path::Path;
use std::sync::Arc;

use analysis::Resolver;
use analysis::results::ResultsBuilder;
use model::WindowKey;
use recording::Recording;
use recording::results::SCHEMAS;
use recording::window::HostName;

/// The table that is stored last: a window is analysed when this one is there. Every window has it.
pub(crate) const LAST: &str = "hosts";

/// The tables' names, and those of their files, in the order in which they are stored.
pub(crate) fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |file: &'static str| (file.trim_end_matches(".parquet"), file);
    let (last, others): (Vec<_>, Vec<_>) =
        SCHEMAS.iter().map(|table| named(table.file)).partition(|(name, _)| *name == LAST);
    others.into_iter().chain(last)
}

/// Writes the tables of a window of `host` into a folder, in slices of this length: always the same from the same window.
pub(crate) fn write(
    recording: &Recording,
    host: &HostName,
    slice_ns: u64,
    folder: &Path,
) -> Result<(), recording::Error> {
    let header = &recording.header;
    let resolver = Resolver::new(&recording.tables);
    let mut builder = ResultsBuilder::new(&resolver, header);
    recording.replay(&mut [&mut builder])?;
    let window = WindowKey::new(host.to_string(), header);
    recording::results::write(folder, &builder.finish(&Arc::new(window), slice_ns))
}
