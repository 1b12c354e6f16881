//! DAMON, the kernel's data access monitor: which memory of processes is accessed, by the accessed bits of page tables, those
//! of guests included. It tells how much and where, not how often.
//!
//! ```text
//!  admin/kdamonds/nr_kdamonds            0: unused
//!                 0/state                on, off; update_schemes_tried_regions fills in what was seen last
//!                 0/contexts/0/          intervals, numbers of regions
//!                   targets/VM/          its process, and where its guest's memory lies in it
//!                   schemes/VM/          `stat`: does nothing; its filter leaves out all other VMs
//!                     tried_regions/N/   start, end, in how many of the checks it had been accessed
//! ```
//!
//! There is one such interface for all programs. Another program's kdamond is left alone. A lock on `nr_kdamonds` says
//! which vmscope uses it, and ends with its process: what one that was killed left behind is known by its lock that is
//! gone, and by its intervals, and is taken away.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::Pid;
use rustix::fs::{FlockOperation, flock};

/// Where it is below `/sys`.
const ADMIN: &str = "kernel/mm/damon/admin/kdamonds";
/// Between two checks of a page of each region. An unusual number: by it our own settings are known again.
const CHECK_US: u64 = 20_011;
/// Checks until regions are split and merged anew.
const CHECKS: u64 = 10;
/// Regions of a VM, and of all together.
const REGIONS: Range<usize> = 10..100;
const MAX_REGIONS: usize = 1000;
/// VMs at most; others are not watched.
pub(crate) const MAX_TARGETS: usize = 64;
/// Number of requests to end it.
const TRIES: usize = 100;
/// Bytes of a file that are read at most.
const MAX_BYTES: u64 = 4096;

/// A process and where its guest's memory lies in it: ascending, not overlapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) pid: Pid,
    pub(crate) memory: Vec<Range<u64>>,
}

/// A range of addresses that are accessed alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) addresses: Range<u64>,
    /// Of `CHECKS` checks of a page of it, in how many it had been accessed since the check before.
    accessed: u64,
}

/// Why nothing is watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DamonError {
    /// The kernel has none, or not for virtual addresses.
    #[error("the kernel has no DAMON")]
    Missing,
    /// There can be one user.
    #[error("another program uses DAMON")]
    InUse,
    #[error("DAMON refused {value} for {}: {source}", path.display())]
    Refused {
        path: PathBuf,
        /// What was written to it.
        value: String,
        source: io::Error,
    },
    #[error("DAMON has no usable {}", .0.display())]
    Unreadable(PathBuf),
}

/// Watches processes until it is dropped.
#[derive(Debug)]
pub(crate) struct Damon {
    folder: PathBuf,
    targets: usize,
    /// Held as long as this uses it.
    _lock: File,
}

impl Damon {
    /// Watches these, at most `MAX_TARGETS`.
    pub(crate) fn start(sys: &Path, targets: &[Target]) -> Result<Self, DamonError> {
        let folder = sys.join(ADMIN);
        let lock = File::open(folder.join("nr_kdamonds")).map_err(|_| DamonError::Missing)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| DamonError::InUse)?;
        let targets = &targets[..targets.len().min(MAX_TARGETS)];
        if number(&folder.join("nr_kdamonds"))? != 0 {
            if !is_ours(&folder) {
                return Err(DamonError::InUse);
            }
            // Of a vmscope that was killed.
            put_back(&folder);
        }
        // From here on whatever happens puts everything back.
        let damon = Self { folder, targets: targets.len(), _lock: lock };
        damon.configure(targets)?;
        match damon.write("0/state", "on") {
            // The kernel's own users of DAMON keep everybody else out.
            Err(DamonError::Refused { source, .. })
                if source.kind() == io::ErrorKind::ResourceBusy =>
            {
                Err(DamonError::InUse)
            }
            other => other.map(|()| damon),
        }
    }

    fn configure(&self, targets: &[Target]) -> Result<(), DamonError> {
        let n = targets.len();
        self.write("nr_kdamonds", 1)?;
        self.write("0/contexts/nr_contexts", 1)?;
        self.write("0/contexts/0/operations", "fvaddr")?;
        let attributes = "0/contexts/0/monitoring_attrs";
        self.write(&format!("{attributes}/intervals/sample_us"), CHECK_US)?;
        self.write(&format!("{attributes}/intervals/aggr_us"), CHECKS * CHECK_US)?;
        let [least, most] = [REGIONS.start, REGIONS.end].map(|each| (each * n).min(MAX_REGIONS));
        // The least is checked against the most.
        self.write(&format!("{attributes}/nr_regions/max"), most)?;
        self.write(&format!("{attributes}/nr_regions/min"), least)?;
        self.write("0/contexts/0/targets/nr_targets", n)?;
        self.write("0/contexts/0/schemes/nr_schemes", n)?;
        for (at, target) in targets.iter().enumerate() {
            self.watch(at, target)?;
        }
        Ok(())
    }

    fn watch(&self, at: usize, target: &Target) -> Result<(), DamonError> {
        let folder = format!("0/contexts/0/targets/{at}");
        self.write(&format!("{folder}/pid_target"), target.pid.0)?;
        self.write(&format!("{folder}/regions/nr_regions"), target.memory.len())?;
        for (number, range) in target.memory.iter().enumerate() {
            self.write(&format!("{folder}/regions/{number}/start"), range.start)?;
            self.write(&format!("{folder}/regions/{number}/end"), range.end)?;
        }
        let folder = format!("0/contexts/0/schemes/{at}");
        self.write(&format!("{folder}/action"), "stat")?;
        for pattern in ["sz", "nr_accesses", "age"] {
            self.write(&format!("{folder}/access_pattern/{pattern}/max"), u32::MAX)?;
        }
        self.write(&format!("{folder}/access_pattern/sz/max"), u64::MAX)?;
        self.write(&format!("{folder}/filters/nr_filters"), 1)?;
        self.write(&format!("{folder}/filters/0/type"), "target")?;
        self.write(&format!("{folder}/filters/0/damon_target_idx"), at)?;
        // What is not this target is left out.
        self.write(&format!("{folder}/filters/0/matching"), "N")
    }

    /// What was seen last of each target. Takes as long as all checks together. Fails when no target is left.
    pub(crate) fn read(&self) -> Result<Vec<Vec<Region>>, DamonError> {
        self.write("0/state", "update_schemes_tried_regions")?;
        (0..self.targets).map(|at| self.regions(at)).collect()
    }

    fn regions(&self, at: usize) -> Result<Vec<Region>, DamonError> {
        let folder = self.folder.join(format!("0/contexts/0/schemes/{at}/tried_regions"));
        let mut regions = Vec::new();
        for number in 0..MAX_REGIONS {
            // They are numbered without a gap.
            let folder = folder.join(number.to_string());
            if !folder.is_dir() {
                break;
            }
            let value = |name: &str| self::number(&folder.join(name));
            let addresses = value("start")?..value("end")?;
            regions.push(Region { addresses, accessed: value("nr_accesses")? });
        }
        Ok(regions)
    }

    fn write(&self, file: &str, value: impl ToString) -> Result<(), DamonError> {
        write(&self.folder.join(file), &value.to_string())
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        put_back(&self.folder);
    }
}

impl Region {
    /// Bytes of it that are accessed between two checks, as an estimate.
    pub(crate) fn accessed_bytes(&self) -> u64 {
        let bytes = self.addresses.end.saturating_sub(self.addresses.start);
        let (each, rest) = (bytes / CHECKS, bytes % CHECKS);
        let accessed = self.accessed.min(CHECKS);
        each * accessed + rest * accessed / CHECKS
    }
}

/// Whether its settings are those of a vmscope.
fn is_ours(folder: &Path) -> bool {
    let intervals = folder.join("0/contexts/0/monitoring_attrs/intervals");
    let is = |file: PathBuf, expected| number(&file).is_ok_and(|number| number == expected);
    is(folder.join("nr_kdamonds"), 1)
        && is(intervals.join("sample_us"), CHECK_US)
        && is(intervals.join("aggr_us"), CHECKS * CHECK_US)
}

/// As it is when unused.
fn put_back(folder: &Path) {
    for _ in 0..TRIES {
        // One that has ended by itself can't be switched off.
        let _ = write(&folder.join("0/state"), "off");
        if write(&folder.join("nr_kdamonds"), "0").is_ok() {
            return;
        }
        // Another process reads or writes one of its files just now.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write(path: &Path, value: &str) -> Result<(), DamonError> {
    let refused =
        |source| DamonError::Refused { path: path.to_owned(), value: value.to_owned(), source };
    // The kernel makes the files: one that is not there is not made.
    let file = File::options().write(true).truncate(true).open(path);
    file.and_then(|mut file| file.write_all(value.as_bytes())).map_err(refused)
}

fn number(path: &Path) -> Result<u64, DamonError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    let number = read.ok().and_then(|_| text.trim().parse().ok());
    number.ok_or_else(|| DamonError::Unreadable(path.to_owned()))
}

#[cfg(test)]
pub(crate) mod test {
    use std::fs;

    use super::*;

    /// What the kernel has once there are contexts, targets and schemes, for two VMs of two ranges; and what it saw.
    const FILES: &str = "nr_kdamonds=0 0/state=off 0/contexts/nr_contexts=0 0/contexts/0/operations=vaddr \
        0/contexts/0/monitoring_attrs/intervals/sample_us=5000 0/contexts/0/monitoring_attrs/intervals/aggr_us=100000 \
        0/contexts/0/monitoring_attrs/nr_regions/min=10 0/contexts/0/monitoring_attrs/nr_regions/max=1000 \
        0/contexts/0/targets/nr_targets=0 0/contexts/0/schemes/nr_schemes=0";
    const OF_TARGET: &str = "pid_target=0 regions/nr_regions=0 regions/0/start=0 regions/0/end=0 \
        regions/1/start=0 regions/1/end=0";
    const OF_SCHEME: &str = "action=stat access_pattern/sz/max=0 access_pattern/nr_accesses/max=0 \
        access_pattern/age/max=0 filters/nr_filters=0 filters/0/type=anon filters/0/damon_target_idx=0 \
        filters/0/matching=Y";

    fn make(folder: &Path, files: &str) {
        for (file, value) in files.split_whitespace().filter_map(|file| file.split_once('=')) {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), format!("{value}\n")).unwrap();
        }
    }

    /// Makes a tree in `sys` that looks like the kernel's.
    pub(crate) fn kernel(sys: &Path) -> PathBuf {
        let folder = sys.join(ADMIN);
        make(&folder, FILES);
        for at in 0..2 {
            make(&folder.join(format!("0/contexts/0/targets/{at}")), OF_TARGET);
            make(&folder.join(format!("0/contexts/0/schemes/{at}")), OF_SCHEME);
        }
        folder
    }

    /// What was seen of a target, as `START-END=NUMBER` of checks.
    pub(crate) fn seen(folder: &Path, at: usize, regions: &str) {
        let folder = folder.join(format!("0/contexts/0/schemes/{at}/tried_regions"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("total_bytes"), "1\n").unwrap();
        for (number, region) in regions.split_whitespace().enumerate() {
            let (range, accessed) = region.split_once('=').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let files = format!("start={start} end={end} nr_accesses={accessed} age=3");
            make(&folder.join(number.to_string()), &files);
        }
    }

    fn targets() -> [Target; 2] {
        let target = |pid, memory: &[Range<u64>]| Target { pid: Pid(pid), memory: memory.to_vec() };
        [target(40, &[4096..8192, 16384..32768]), target(41, std::slice::from_ref(&(4096..12288)))]
    }

    fn value(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join(file)).unwrap().trim().to_owned()
    }

    #[test]
    fn vms_are_watched_and_distinguished_until_the_end() {
        let root = tempfile::tempdir().unwrap();
        let folder = kernel(root.path());
        let damon = Damon::start(root.path(), &targets()).unwrap();
        let expected = "nr_kdamonds=1 0/state=on 0/contexts/nr_contexts=1 0/contexts/0/operations=fvaddr \
            0/contexts/0/monitoring_attrs/intervals/sample_us=20011 \
            0/contexts/0/monitoring_attrs/intervals/aggr_us=200110 \
            0/contexts/0/monitoring_attrs/nr_regions/min=20 0/contexts/0/monitoring_attrs/nr_regions/max=200 \
            0/contexts/0/targets/nr_targets=2 0/contexts/0/schemes/nr_schemes=2 \
            0/contexts/0/targets/0/pid_target=40 0/contexts/0/targets/0/regions/nr_regions=2 \
            0/contexts/0/targets/0/regions/1/start=16384 0/contexts/0/targets/0/regions/1/end=32768 \
            0/contexts/0/targets/1/pid_target=41 0/contexts/0/targets/1/regions/nr_regions=1 \
            0/contexts/0/targets/1/regions/0/start=4096 0/contexts/0/targets/1/regions/0/end=12288 \
            0/contexts/0/schemes/1/action=stat 0/contexts/0/schemes/1/access_pattern/sz/max=18446744073709551615 \
            0/contexts/0/schemes/1/access_pattern/nr_accesses/max=4294967295 \
            0/contexts/0/schemes/1/access_pattern/age/max=4294967295 0/contexts/0/schemes/1/filters/nr_filters=1 \
            0/contexts/0/schemes/1/filters/0/type=target 0/contexts/0/schemes/1/filters/0/damon_target_idx=1 \
            0/contexts/0/schemes/1/filters/0/matching=N";
        for (file, expected) in expected.split_whitespace().filter_map(|file| file.split_once('='))
        {
            assert_eq!(value(&folder, file), expected, "{file}");
        }
        seen(&folder, 0, "4096-8192=10 16384-32768=5");
        seen(&folder, 1, "");
        let regions = damon.read().unwrap();
        assert_eq!(value(&folder, "0/state"), "update_schemes_tried_regions");
        let bytes: Vec<u64> = regions[0].iter().map(Region::accessed_bytes).collect();
        assert_eq!((bytes, regions[1].len()), (vec![4096, 8192], 0));
        drop(damon);
        assert_eq!((value(&folder, "0/state"), value(&folder, "nr_kdamonds")), off());
    }

    fn off() -> (String, String) {
        ("off".to_owned(), "0".to_owned())
    }

    #[test]
    fn what_others_watch_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let start = || Damon::start(root.path(), &targets());
        assert!(matches!(start(), Err(DamonError::Missing)));
        let folder = kernel(root.path());
        // Another vmscope.
        let first = start().unwrap();
        assert!(matches!(start(), Err(DamonError::InUse)));
        assert_eq!(value(&folder, "0/state"), "on");
        drop(first);
        // Another program.
        make(
            &folder,
            "nr_kdamonds=1 0/state=on 0/contexts/0/monitoring_attrs/intervals/sample_us=5000",
        );
        assert!(matches!(start(), Err(DamonError::InUse)));
        assert_eq!(
            (value(&folder, "0/state"), value(&folder, "nr_kdamonds")),
            ("on".into(), "1".into())
        );
    }

    #[test]
    fn what_a_killed_vmscope_left_is_taken_away() {
        let root = tempfile::tempdir().unwrap();
        let folder = kernel(root.path());
        let killed = Damon::start(root.path(), &targets()).unwrap();
        // Nothing is put back, but its lock is gone.
        flock(&killed._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(killed);
        assert_eq!(value(&folder, "nr_kdamonds"), "1");
        drop(Damon::start(root.path(), &targets()).unwrap());
        assert_eq!((value(&folder, "0/state"), value(&folder, "nr_kdamonds")), off());
    }

    #[test]
    fn a_kernel_that_refuses_is_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let folder = kernel(root.path());
        // Before Linux 6.6 VMs could not be distinguished.
        fs::remove_file(folder.join("0/contexts/0/schemes/1/filters/0/damon_target_idx")).unwrap();
        let error = Damon::start(root.path(), &targets()).unwrap_err().to_string();
        assert!(
            error.starts_with("DAMON refused 1 for ") && error.contains("damon_target_idx"),
            "{error}"
        );
        assert_eq!((value(&folder, "0/state"), value(&folder, "nr_kdamonds")), off());
    }

    /// Of Linux 6.12.117, of a guest that goes through 64 MiB of its 192 MiB at random.
    #[test]
    fn what_linux_6_12_saw_of_a_guest() {
        let root = tempfile::tempdir().unwrap();
        let folder = kernel(root.path());
        let damon = Damon::start(root.path(), &targets()[..1]).unwrap();
        let recorded = "139799774101504-139799793020928=0 139799793020928-139799793643520=5 \
            139799793643520-139799805476864=2 139799805476864-139799806795776=0 \
            139799806795776-139799807922176=3 139799807922176-139799809761280=10 \
            139799809761280-139799811792896=0 139799824416768-139799848103936=9 \
            139799876964352-139799898783744=0 139799898783744-139799902887936=8 \
            139799902887936-139799922929664=10 139799922929664-139799927009280=0 \
            139799927009280-139799933620224=9 139799933620224-139799935287296=0";
        seen(&folder, 0, recorded);
        let regions = damon.read().unwrap().remove(0);
        let bytes: u64 = regions.iter().map(Region::accessed_bytes).sum();
        assert_eq!((regions.len(), bytes), (14, 55_448_369));
    }

    #[test]
    fn nonsense_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let folder = kernel(root.path());
        let damon = Damon::start(root.path(), &targets()).unwrap();
        seen(&folder, 0, "4096-x=1");
        assert!(matches!(damon.read(), Err(DamonError::Unreadable(_))));
        // More checks than there were, and a region of nothing.
        seen(&folder, 0, "8192-4096=10 0-4096=99");
        let regions = damon.read().unwrap().remove(0);
        let bytes: Vec<u64> = regions.iter().map(Region::accessed_bytes).collect();
        assert_eq!(bytes, [0, 4096]);
    }
}
