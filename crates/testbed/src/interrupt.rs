//! Ctrl-C and termination: noted, so that everything can be ended in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Notes signals for as long as it lives.
#[derive(Debug)]
pub(crate) struct Interrupts {
    flag: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupts {
    pub(crate) fn catch() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let ids = [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .map(|signal| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .collect::<io::Result<_>>()?;
        Ok(Self { flag, ids })
    }

    /// Whether a signal came since the last call.
    pub(crate) fn take(&self) -> bool {
        self.flag.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for &id in &self.ids {
            signal_hook::low_level::unregister(id);
        }
    }
}
