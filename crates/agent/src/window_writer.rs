//! Turns sampled windows into files, one after the other, when nothing else needs the CPU.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collector::{CollectError, Collected, Naming, SampledWindow};
use model::{Counter, error_chain};
use recording::Recording;
use tracing::warn;

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::self_priority;
use crate::sender::Notifier;
use crate::spool::{self, Spool};
use crate::state::StateError;

/// Windows on disk that wait for room to be finished: of more the oldest are removed.
const MAX_LEFT: usize = 64;
/// What stays free for each byte of a window that is finished: its tables, its file, and the next window meanwhile.
const RESERVE: u64 = 3;

/// Names the samples of finished windows and packs them into the spool.
#[derive(Debug)]
pub(crate) struct WindowWriter {
    pub(crate) naming: Naming,
    pub(crate) spool: Spool,
    /// The configured bound, which may change.
    pub(crate) spool_bytes: Arc<AtomicU64>,
    pub(crate) metrics: Arc<Metrics>,
    /// Tells the sender that there is something to send.
    pub(crate) bell: Arc<Notifier>,
    /// Folders of windows that a killed agent left, or that did not fit on the disk; the oldest first.
    pub(crate) left: VecDeque<PathBuf>,
}

/// Why a window was lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FinishError {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error(transparent)]
    Recording(#[from] recording::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the kernel has no boot id: the window can't be named")]
    NoBoot,
}

impl FinishError {
    /// Whether it may do better when there is room.
    fn is_full_disk(&self) -> bool {
        match self {
            Self::Collect(CollectError::Recording(error)) | Self::Recording(error) => {
                matches!(error, recording::Error::NoSpace(..))
            }
            Self::Collect(_) | Self::State(_) | Self::NoBoot => false,
        }
    }
}

impl WindowWriter {
    /// Finishes windows until there won't be another one; before that what a killed agent left. A window for which a
    /// sender waits, the next one or the agent's end, is finished like any work: see `own::restore_priority`.
    pub(crate) fn run(&mut self, queue: &Queue<SampledWindow>) {
        self.naming.start_reader();
        self_priority::lower_priority();
        self.recover_left();
        while let Some(window) = queue.pop() {
            match queue.len() == 0 && !queue.is_closed() {
                true => self_priority::lower_priority(),
                false => self_priority::restore_priority(),
            }
            self.metrics.unfinished.set(queue.len() as u64);
            self.finish(window);
            self.recover_left();
        }
    }

    fn finish(&mut self, window: SampledWindow) {
        let folder = name_of(window.partial_path());
        // A disk that others fill leaves less than the configured room.
        self.enforce_limit(RESERVE.saturating_mul(bytes_in(window.partial_path())));
        let finished = window.finish(&mut self.naming, &mut |_| ());
        let finished = finished.map_err(FinishError::from).and_then(|collected| {
            self.count(&collected);
            self.put(&folder)
        });
        if let Err(error) = finished {
            warn!("a window is finished later, without names: {}", error_chain(&error));
            self.left.push_back(folder);
        }
    }

    /// Finishes windows that lie on disk, until one finds no room.
    fn recover_left(&mut self) {
        while let Some(folder) = self.left.pop_front() {
            match self.recover_with_room(&folder) {
                Ok(()) => self.metrics.windows_recovered.add(1),
                Err(error) if error.is_full_disk() && self.left.len() < MAX_LEFT => {
                    self.left.push_front(folder);
                    return;
                }
                Err(error) => self.lose(&folder, &error),
            }
        }
    }

    /// On a full disk once more, after the oldest windows of the spool have made room.
    fn recover_with_room(&self, folder: &Path) -> Result<(), FinishError> {
        match self.recover(folder) {
            Err(error) if error.is_full_disk() => {
                let bytes = bytes_in(folder).max(bytes_in(&partial_of(folder)));
                match self
                    .spool
                    .evict_oldest(RESERVE.saturating_mul(bytes).max(1), &self.metrics)?
                {
                    0 => Err(error),
                    _ => self.recover(folder),
                }
            }
            recovered => recovered,
        }
    }

    /// Finishes a window with the names that are known.
    fn recover(&self, folder: &Path) -> Result<(), FinishError> {
        if partial_of(folder).exists() {
            recording::finish_killed(folder)?;
        }
        self.put(folder)
    }

    /// Removes what lies on disk: else it would be tried at each start.
    fn lose(&self, folder: &Path, error: &FinishError) {
        self.metrics.windows_lost.add(1);
        warn!("a window is lost: {}", error_chain(error));
        if let Ok(Recording { header, .. }) = Recording::open(folder) {
            self.metrics.uncovered_ns.add(header.end.since(header.start));
        }
        for path in [folder, &partial_of(folder)] {
            let _ = std::fs::remove_dir_all(path);
        }
    }

    /// Puts a finished recording into the spool.
    fn put(&self, folder: &Path) -> Result<(), FinishError> {
        let header = Recording::open(folder)?.header;
        let file = self.spool.path_of(&header).ok_or(FinishError::NoBoot)?;
        if file.exists() {
            // An agent that was killed at the edge of two windows had begun the next one with this one's header.
            let _ = std::fs::remove_dir_all(folder);
            return Ok(());
        }
        spool::pack(folder, &file)?;
        self.metrics.windows_finished.add(1);
        self.enforce_limit(0);
        self.bell.ring();
        Ok(())
    }

    /// Keeps the spool within its limit and a reserve of the disk free.
    fn enforce_limit(&self, free_bytes: u64) {
        let enforce_limit = || {
            let bytes = self.spool.contents()?.bytes();
            let free = self.spool.disk_bytes().map_or(u64::MAX, |free| free.saturating_add(bytes));
            let bound = self.spool_bytes.load(Ordering::Relaxed);
            let most = bound.min(free.saturating_sub(free_bytes));
            // Whatever the bound is: a window that is alone is sent.
            let newest = self.spool.contents()?.0.last().map_or(0, |window| window.bytes);
            self.spool.drop_oldest(most.max(newest), &self.metrics)
        };
        if let Err(error) = enforce_limit() {
            warn!("{}", error_chain(&error));
        }
    }

    fn count(&self, collected: &Collected) {
        let Collected { header, summary, guest_cpu_ns } = collected;
        self.metrics.samples.add(summary.samples);
        self.metrics.samples_lost.add(header.count(Counter::SamplesDropped));
        self.metrics.set_guest_cpu(guest_cpu_ns);
    }
}

/// The name that a window's folder gets when it is finished.
fn name_of(path: &Path) -> PathBuf {
    path.with_extension("")
}

/// Where it is before.
fn partial_of(folder: &Path) -> PathBuf {
    folder.with_extension("partial")
}

/// Bytes of the files in a folder; 0: there is none.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// The names of windows' folders that an agent left, oldest first.
pub(crate) fn left_in(windows: &Path) -> Result<VecDeque<PathBuf>, StateError> {
    let failed = |error| StateError::new("read", windows, error);
    let entries = std::fs::read_dir(windows).map_err(failed)?;
    let names = entries.map(|entry| Ok(name_of(&entry.map_err(failed)?.path())));
    Ok(names.collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect())
}

#[cfg(test)]
mod test {
    use std::process::Command;

    use model::{BootId, HostNs, OffCpuSource, Trigger, Vendor};

    use super::*;

    const TEST: &str = "window_writer::test::a_full_disk_costs_the_oldest_windows";
    const DISK: &str = "VMSCOPE_TEST_DISK";
    const BOOT: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

    /// Runs again in a mount namespace, with a file system of 1 MiB.
    #[test]
    fn a_full_disk_costs_the_oldest_windows() {
        if let Some(disk) = std::env::var_os(DISK) {
            return on_full_disk(Path::new(&disk));
        }
        let disk = tempfile::tempdir().unwrap();
        let mount = "mount -t tmpfs -o size=1m tmpfs \"$1\"";
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(disk.path());
            command
        };
        if !unshare(mount).output().is_ok_and(|output| output.status.success()) {
            return skip::skip("unshare(1) can't mount a file system here");
        }
        let mut again = unshare(&format!("{mount} && exec \"$2\" --exact {TEST} --nocapture"));
        let ran = again.arg(std::env::current_exe().unwrap()).env(DISK, disk.path()).output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let stdout = String::from_utf8_lossy(&ran.stdout);
        assert!(stdout.contains("1 passed"), "no test has the name {TEST}: {stdout}");
    }

    fn on_full_disk(disk: &Path) {
        let (windows, spooled, others) = (disk.join("windows"), disk.join("spool"), disk.join("o"));
        std::fs::create_dir(&windows).unwrap();
        std::fs::create_dir(&spooled).unwrap();
        for start in 1..=4 {
            let name = format!("{BOOT}-{start:020}.window");
            std::fs::write(spooled.join(name), vec![0; 200 << 10]).unwrap();
        }
        [1000, 2000].iter().for_each(|start| killed(&windows, *start));
        // An agent that was killed at this point left this.
        std::fs::write(spooled.join(format!("{BOOT}-00000000000000001000.window.tmp")), "")
            .unwrap();
        fill(&others);
        let mut window_writer = WindowWriter {
            naming: Naming::new("/proc".into(), Vec::new(), disk.join("symbols")),
            spool: Spool::open(spooled.clone(), &[BOOT.to_owned()]).unwrap(),
            spool_bytes: Arc::new(AtomicU64::new(u64::MAX)),
            metrics: Arc::default(),
            bell: Arc::default(),
            left: left_in(&windows).unwrap(),
        };
        let counts = |window_writer: &WindowWriter| {
            let Metrics { windows_recovered, windows_lost, dropped_spooled, .. } =
                &*window_writer.metrics;
            [windows_recovered, windows_lost, dropped_spooled].map(|number| number.get())
        };
        window_writer.recover_left();
        assert_eq!(counts(&window_writer), [2, 0, 1]);
        assert_eq!(starts(&spooled), [2, 3, 4, 1000, 2000]);
        assert!(
            window_writer.left.is_empty() && std::fs::read_dir(&windows).unwrap().next().is_none()
        );

        // Others take what the spool gives: in the end it has nothing to give, and windows wait.
        std::fs::remove_file(&others).unwrap();
        [3000, 4000].iter().for_each(|start| killed(&windows, *start));
        window_writer.left = left_in(&windows).unwrap();
        window_writer.spool.drop_oldest(0, &window_writer.metrics).unwrap();
        fill(&others);
        window_writer.recover_left();
        assert_eq!(counts(&window_writer), [2, 0, 6]);
        assert_eq!((window_writer.left.len(), starts(&spooled)), (2, vec![]));
        let left: Vec<_> = std::fs::read_dir(&spooled).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_file(&others).unwrap();
        window_writer.recover_left();
        assert_eq!(counts(&window_writer), [4, 0, 6]);
        assert_eq!(starts(&spooled), [3000, 4000]);

        // Room is made before it is needed.
        fill(&others);
        window_writer.enforce_limit(4096);
        assert_eq!(starts(&spooled), [4000]);
    }

    fn starts(spool: &Path) -> Vec<u64> {
        let contents = Spool::open(spool.to_owned(), &[BOOT.to_owned()]).unwrap().contents();
        contents.unwrap().0.iter().map(|window| window.start.parse().unwrap()).collect()
    }

    /// Takes what is left of the disk.
    fn fill(file: &Path) {
        use std::io::Write;
        let mut file = std::fs::File::create(file).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// What an agent that was killed leaves.
    fn killed(windows: &Path, start: u64) {
        let header = model::Header {
            vmscope_version: "0.2.0".to_owned(),
            hostname: "kvm1".to_owned(),
            kernel: "6.1".to_owned(),
            boot: Some(BootId([11; 16])),
            vendor: Vendor::Amd,
            trigger: Trigger::CpuClock,
            period_ns: 1_000_000,
            off_cpu_source: OffCpuSource::Samples,
            cpus: vec![0],
            start: HostNs(start),
            end: HostNs(start),
            start_unix_ns: 0,
            complete: false,
            counters: std::collections::BTreeMap::new(),
            notes: Vec::new(),
        };
        drop(recording::Writer::create(&windows.join(format!("{start:020}")), &header).unwrap());
    }
}
