//! Makes the store of a large fleet from the results of a small one: `fleet_days FROM TO END_UNIX_S [HOSTS HOURS COPIES]`.
//!
//! All windows in the store FROM are one minute of one host. Each host of the store TO has it every minute, with each VM
//! COPIES times and all times a few percent longer or shorter: as packs of an hour, and the last 90 minutes as single
//! windows, as the server's compaction leaves them. Raw windows are there with their names, but empty. Of `vcpu_time` and
//! `cpu_time` only the first host and its first VMs have all rows, the others one of a thousand: all would be a terabyte.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::DateTime;
use model::{ResultRow, Results, VcpuTimeRow, WindowKey};
use query::packs::{LISTS, PACK, Pack, Packs};

const MINUTE_S: i64 = 60;
const MINUTE_US: i64 = MINUTE_S * 1_000_000;
const BOOT: &str = "0123456789abcdef0123456789abcdef";
/// Windows that are not in a pack.
const SINGLE: i64 = 90;
/// Of rows that are thinned out, one of so many stays.
const THIN: usize = 1000;
/// A file can't have more names than this on common file systems.
const MAX_LINKS: u64 = 60_000;

fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |file: &'static str| (file.trim_end_matches(".parquet"), file);
    recording::results::SCHEMAS.iter().map(move |table| named(table.file))
}

/// The rows of all windows of a store.
fn minute(store: &Path) -> Results {
    let mut all = Results::default();
    let scratch = tempfile::tempdir().unwrap();
    let hosts = store.join("results/v1/hosts");
    let folders = fs::read_dir(&hosts).unwrap().map(|day| day.unwrap().path());
    let folders =
        folders.flat_map(|day| fs::read_dir(day).unwrap().map(|host| host.unwrap().path()));
    for file in
        folders.flat_map(|host| fs::read_dir(host).unwrap().map(|file| file.unwrap().path()))
    {
        let stem = file.strip_prefix(&hosts).unwrap();
        for (table, name) in tables() {
            fs::copy(store.join("results/v1").join(table).join(stem), scratch.path().join(name))
                .unwrap();
        }
        let Results { vcpu_time, cpu_time, exits, hosts, vms, health } =
            recording::results::read(scratch.path()).unwrap();
        all.vcpu_time.extend(vcpu_time);
        all.cpu_time.extend(cpu_time);
        all.exits.extend(exits);
        all.hosts.extend(hosts);
        all.vms.extend(vms);
        all.health.extend(health);
    }
    // One window has one row of its host and of each VM.
    let length_ns = 60_000_000_000;
    all.hosts.truncate(1);
    all.hosts.iter_mut().for_each(|host| host.row.length_ns = length_ns);
    all.vms.sort_by(|a, b| a.row.vm.cmp(&b.row.vm));
    all.vms.dedup_by(|a, b| a.row.vm == b.row.vm);
    for vm in &mut all.vms {
        let rows = all.vcpu_time.iter().map(|result| &result.row).filter(|row| row.vm == vm.row.vm);
        let sum = |states: &[&str]| {
            let has =
                |row: &&VcpuTimeRow| states.is_empty() || states.contains(&row.state.as_str());
            rows.clone().filter(has).map(|row| row.ns).sum()
        };
        vm.row.vcpu_ns = sum(&[]);
        vm.row.steal_outside_ns = Some(sum(&["steal_outside"]));
        vm.row.steal_vmm_ns = Some(sum(&["steal_vmm", "steal_vmm_waiting"]));
        vm.row.throttled_ns = Some(sum(&["throttled"]));
    }
    all
}

/// The same, as one window of a host.
fn window(
    minute: &Results,
    key: &Arc<WindowKey>,
    start_us: i64,
    copies: usize,
    is_whole: bool,
    into: &mut Results,
) {
    fn at<T>(key: &Arc<WindowKey>, start_us: i64, slice_us: i64, row: T) -> ResultRow<T> {
        let slice_unix_us = start_us + slice_us.rem_euclid(MINUTE_US);
        ResultRow { window: Arc::clone(key), slice_unix_us, row }
    }
    // Of a host and minute always the same.
    let vary = |number: usize, copy: usize, ns: u64| {
        let mut hasher = DefaultHasher::new();
        (&key.host, start_us, number, copy).hash(&mut hasher);
        ns * (970 + hasher.finish() % 61) / 1000
    };
    // Some hosts and hours are quieter than others.
    let steal = |copy: usize, ns: u64| {
        let mut hasher = DefaultHasher::new();
        (&key.host, start_us / MINUTE_US / 60).hash(&mut hasher);
        vary(0, copy, ns * (hasher.finish() % 100) / 100)
    };
    let named = |vm: &str, copy: usize| {
        if copy == 0 { vm.to_owned() } else { format!("{vm}-{}", copy + 1) }
    };
    let is_kept = |number: usize, copy: usize| (is_whole && copy == 0) || number % THIN == copy;
    for copy in 0..copies {
        for (number, from) in minute.vcpu_time.iter().enumerate() {
            if !is_kept(number, copy) {
                continue;
            }
            let mut row = from.row.clone();
            row.vm = named(&row.vm, copy);
            row.thief_vm = row.thief_vm.map(|vm| named(&vm, copy));
            let is_own = row.corrected_ns == row.ns;
            row.ns = vary(number, copy, row.ns);
            row.corrected_ns = if is_own { row.ns } else { 0 };
            into.vcpu_time.push(at(key, start_us, from.slice_unix_us, row));
        }
        for (number, from) in minute.cpu_time.iter().enumerate() {
            if !is_kept(number, copy) {
                continue;
            }
            let mut row = from.row.clone();
            row.vm = row.vm.map(|vm| named(&vm, copy));
            row.cpu += 2 * u32::try_from(copy).unwrap();
            row.ns = vary(number, copy, row.ns);
            into.cpu_time.push(at(key, start_us, from.slice_unix_us, row));
        }
        for from in &minute.exits {
            let mut row = from.row.clone();
            row.vm = named(&row.vm, copy);
            into.exits.push(at(key, start_us, 0, row));
        }
        for from in &minute.vms {
            let mut row = from.row.clone();
            row.vm = named(&row.vm, copy);
            row.steal_outside_ns = row.steal_outside_ns.map(|ns| steal(copy, ns));
            row.steal_vmm_ns = row.steal_vmm_ns.map(|ns| steal(copy, ns));
            into.vms.push(at(key, start_us, 0, row));
        }
    }
    for from in &minute.hosts {
        let mut row = from.row.clone();
        row.cpus *= u32::try_from(copies).unwrap();
        row.vms *= u32::try_from(copies).unwrap();
        into.hosts.push(at(key, start_us, 0, row));
    }
    into.health.extend(minute.health.iter().map(|from| at(key, start_us, 0, from.row.clone())));
}

/// A host's part of a store.
struct Host<'a> {
    store: &'a Path,
    name: String,
    minute: &'a Results,
    copies: usize,
    scratch: tempfile::TempDir,
}

impl Host<'_> {
    fn key(&self, start_s: i64) -> Arc<WindowKey> {
        let window_ns = u64::try_from(start_s).unwrap() * 1_000_000_000;
        Arc::new(WindowKey { host: self.name.clone(), boot: BOOT.to_owned(), window_ns })
    }

    /// The results of the minutes that begin at these times, under a name; the sizes of its objects.
    fn write(&self, starts_s: &[i64], name: &str) -> Vec<(String, u64)> {
        let mut results = Results::default();
        for start_s in starts_s {
            window(
                self.minute,
                &self.key(*start_s),
                start_s * 1_000_000,
                self.copies,
                self.name.ends_with("-0001"),
                &mut results,
            );
        }
        recording::results::write(self.scratch.path(), &results).unwrap();
        let copy = |(table, file): (&str, &str)| {
            let folder = self.store.join("results/v1").join(table).join(self.folder(starts_s[0]));
            fs::create_dir_all(&folder).unwrap();
            let bytes =
                fs::copy(self.scratch.path().join(file), folder.join(format!("{name}.parquet")))
                    .unwrap();
            (table.to_owned(), bytes)
        };
        tables().map(copy).collect()
    }

    fn folder(&self, start_s: i64) -> PathBuf {
        let day = DateTime::from_timestamp(start_s, 0).unwrap().date_naive();
        format!("day={day}/host={}", self.name).into()
    }

    fn raw(&self, start_s: i64, links: &AtomicU64) {
        let n = links.fetch_add(1, Ordering::Relaxed);
        let file = self.store.join(format!(".staging-{}", n / MAX_LINKS));
        let folder = self.store.join("raw/v1").join(self.folder(start_s));
        fs::create_dir_all(&folder).unwrap();
        let _ = fs::OpenOptions::new().create(true).append(true).open(&file).unwrap();
        fs::hard_link(&file, folder.join(format!("{}.window", stem(start_s)))).unwrap();
    }

    fn all(&self, begin_s: i64, end_s: i64, links: &AtomicU64) -> u64 {
        let starts: Vec<i64> = (begin_s..end_s).step_by(60).collect();
        starts.iter().for_each(|start_s| self.raw(*start_s, links));
        let (packed, single) =
            starts.split_at(starts.len().saturating_sub(usize::try_from(SINGLE).unwrap()));
        let mut lists: Vec<(PathBuf, Packs)> = Vec::new();
        for hour in packed.chunk_by(|a, b| a / 3600 == b / 3600) {
            let mut pack = Pack::from_windows(10, hour.iter().map(|start_s| stem(*start_s)), &[]);
            pack.name = format!(
                "{PACK}{:08}-{:016x}",
                lists.last().map_or(0, |(_, list)| list.packs.len()) + 1,
                hour[0]
            );
            pack.bytes.extend(self.write(hour, &pack.name));
            let folder = self.folder(hour[0]);
            match lists.last_mut() {
                Some((last, list)) if *last == folder => list.packs.push(Arc::new(pack)),
                _ => lists.push((folder, Packs { packs: vec![Arc::new(pack)] })),
            }
        }
        for (folder, list) in lists {
            let folder = self.store.join(LISTS).join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("{:08}.json", list.packs.len())), list.content())
                .unwrap();
        }
        single.iter().for_each(|start_s| drop(self.write(&[*start_s], &stem(*start_s))));
        starts.len() as u64
    }
}

fn stem(start_s: i64) -> String {
    format!("{BOOT}-{:020}", start_s * 1_000_000_000)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: i64| words.get(at).map_or(default, |word| word.parse().unwrap());
    let [from, to] = [0, 1].map(|at| Path::new(words.get(at).map_or(".", String::as_str)));
    let end_s = number(2, 0) / MINUTE_S * MINUTE_S;
    let (hosts, hours, copies) = (number(3, 200), number(4, 24), number(5, 3));
    let minute = minute(from);
    println!(
        "a minute of a host: {} rows of vcpu_time, {} of cpu_time, each {copies} times",
        minute.vcpu_time.len(),
        minute.cpu_time.len()
    );
    let (next, links, windows) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            threads.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if hosts <= i64::try_from(number).unwrap() {
                        break;
                    }
                    let name = format!("kvm-{:04}", number + 1);
                    let scratch = tempfile::tempdir().unwrap();
                    let host = Host {
                        store: to,
                        name,
                        minute: &minute,
                        copies: usize::try_from(copies).unwrap(),
                        scratch,
                    };
                    windows.fetch_add(
                        host.all(end_s - hours * 3600, end_s, &links),
                        Ordering::Relaxed,
                    );
                }
            });
        }
    });
    println!("{} windows of {hosts} hosts", windows.into_inner());
}
