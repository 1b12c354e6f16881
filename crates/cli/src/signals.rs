//! Signals that end a command.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;

/// A flag that SIGINT and SIGTERM set.
///
/// # Errors
/// When no handler can be installed.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("failed to listen for signals")?;
    }
    Ok(stop)
}
