//! Turns sampled windows into files, one after the other, when nobody else wants the CPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collector::{CollectError, Collected, Naming, Unfinished};
use recording::Recording;

use crate::log::{chain, line};
use crate::metrics::Metrics;
use crate::own;
use crate::queue::Queue;
use crate::sender::Bell;
use crate::spool::{self, Spool};

/// What it needs.
#[derive(Debug)]
pub(crate) struct Finisher {
    pub(crate) naming: Naming,
    pub(crate) spool: Spool,
    /// The configured bound, which may change.
    pub(crate) spool_bytes: Arc<AtomicU64>,
    pub(crate) metrics: Arc<Metrics>,
    /// Tells the sender that there is something to send.
    pub(crate) bell: Arc<Bell>,
}

/// Why a window was lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FinishError {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error(transparent)]
    Recording(#[from] recording::Error),
    #[error(transparent)]
    State(#[from] crate::state::StateError),
    #[error("the kernel has no boot id: the window can't be named")]
    NoBoot,
}

impl Finisher {
    /// Finishes windows until there won't be another one; before that what a killed agent left. A window for which somebody
    /// waits, the next one or the agent's end, is finished like any work: see `own::hurry`.
    pub(crate) fn run(&mut self, left: &[PathBuf], queue: &Queue<Unfinished>) {
        self.naming.start_reader();
        own::be_idle();
        left.iter().for_each(|path| self.recover(path));
        while let Some(window) = queue.pop() {
            match queue.len() == 0 && !queue.is_closed() {
                true => own::be_idle(),
                false => own::hurry(),
            }
            self.metrics.unfinished.set(queue.len() as u64);
            let header = window.header();
            let length_ns = header.end.since(header.start);
            if let Err(error) = self.finish(window) {
                self.metrics.windows_lost.add(1);
                self.metrics.uncovered_ns.add(length_ns);
                line(&format!("a window was lost: {}", chain(&error)));
            }
        }
    }

    fn finish(&mut self, window: Unfinished) -> Result<(), FinishError> {
        let collected = window.finish(&mut self.naming, &mut |_| ())?;
        self.count(&collected);
        self.put(&collected.summary.path)
    }

    /// Finishes what a killed agent left, with the names that are known.
    fn recover(&self, left: &Path) {
        let recover = || -> Result<(), FinishError> {
            let folder = match left.extension() {
                Some(_) => recording::finish_killed(&left.with_extension(""))?,
                None => left.to_owned(),
            };
            self.put(&folder)
        };
        match recover() {
            Ok(()) => self.metrics.windows_recovered.add(1),
            Err(error) => {
                self.metrics.windows_lost.add(1);
                line(&format!("a window that a killed agent left was lost: {}", chain(&error)));
                // Else it would be tried at each start.
                let _ = std::fs::remove_dir_all(left);
            }
        }
    }

    /// Puts a finished recording into the spool.
    pub(crate) fn put(&self, folder: &Path) -> Result<(), FinishError> {
        let header = Recording::open(folder)?.header;
        let file = self.spool.path_of(&header).ok_or(FinishError::NoBoot)?;
        spool::pack(folder, &file)?;
        self.metrics.windows_finished.add(1);
        self.make_room()?;
        self.bell.ring();
        Ok(())
    }

    /// Keeps the spool within its bound.
    pub(crate) fn make_room(&self) -> Result<(), FinishError> {
        let removed = self.spool.make_room(self.spool_bytes.load(Ordering::Relaxed))?;
        if 0 < removed {
            self.metrics.dropped_spooled.add(removed);
            line(&format!("the spool is full: its {removed} oldest windows were removed unsent"));
        }
        let contents = self.spool.contents()?;
        self.metrics.spool_bytes.set(contents.bytes());
        self.metrics.spool_windows.set(contents.0.len() as u64);
        Ok(())
    }

    fn count(&self, collected: &Collected) {
        let Collected { header, summary, guest_cpu_ns } = collected;
        self.metrics.samples.add(summary.samples);
        let lost = header.counters.iter().filter(|(name, _)| name.starts_with("samples_dropped"));
        self.metrics.samples_lost.add(lost.map(|(_, n)| n).sum());
        self.metrics.set_guest_cpu(guest_cpu_ns);
    }
}
