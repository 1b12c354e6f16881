//! The disks and their requests while events go by.
//!
//! ```text
//!           insert           issue            complete
//!   (none) -------> queued --------> issued ----------> done
//!                   |  ^               |
//!         merge     |  +----requeue----+
//!   (none) <--------+
//! ```

use std::collections::VecDeque;

use model::{BlockOp, BlockRequest, HostNs, MachineId, TraceTables};
use rustc_hash::FxHashMap;

use super::Problems;
use super::cpus::RequestRow;
use super::tasks::Tasks;
use crate::timeline::{Disk, Problem, Request, TaskId};

/// Disks that are distinguished. Each costs the analyses a pass over what CPUs did, and a guest can make up any number
/// of them.
const MAX_DISKS: usize = 256;

/// Requests that are remembered when they are done: a loop device has at most 128 under way.
const MAX_DONE: usize = 128;

/// Device numbers are majors and minors; loop devices have a major of their own.
const MINOR_BITS: u32 = 20;
const LOOP_MAJOR: u32 = 7;

/// The disks while events go by.
#[derive(Debug)]
pub(super) struct Disks<'a> {
    rows: Vec<Tracked>,
    by_dev: FxHashMap<u32, u32>,
    /// Requests that are queued or issued.
    live: FxHashMap<u64, Live>,
    names: FxHashMap<u32, &'a str>,
    /// Requests of the kernel's own tasks that were done last.
    done: RecentlyDone,
}

/// Requests of the kernel's own tasks that were done last, oldest first.
#[derive(Debug, Default)]
struct RecentlyDone(VecDeque<DoneRequest>);

#[derive(Debug)]
struct DoneRequest {
    row: RequestRow,
    op: BlockOp,
    queued: HostNs,
}

impl RecentlyDone {
    fn push(&mut self, row: RequestRow, live: &Live, tasks: &Tasks) {
        if tasks[row.0].task.kernel {
            if MAX_DONE <= self.0.len() {
                self.0.pop_front();
            }
            self.0.push_back(DoneRequest { row, op: live.op, queued: live.queued });
        }
    }

    /// The last one that can have been made for this request.
    fn take(&mut self, live: &Live) -> Option<RequestRow> {
        let is_for = |done: &DoneRequest| done.op == live.op && live.queued <= done.queued;
        let at = self.0.iter().rposition(is_for)?;
        self.0.remove(at).map(|done| done.row)
    }
}

#[derive(Debug)]
struct Tracked {
    disk: Disk,
    in_flight: u64,
    /// Since when there is one in flight.
    busy_since: HostNs,
}

/// A request that is queued or issued, as others see it.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) disk: u32,
    /// Who made it, if that is known.
    pub(super) maker: Option<TaskId>,
    pub(super) op: BlockOp,
    /// In 512 bytes.
    pub(super) sectors: std::ops::Range<u64>,
}

/// A request that is queued or issued.
#[derive(Debug)]
struct Live {
    disk: u32,
    maker: Option<RequestRow>,
    sector: u64,
    op: BlockOp,
    queued: HostNs,
    issued: bool,
}

impl<'a> Disks<'a> {
    pub(super) fn new(tables: &'a TraceTables, machine: MachineId) -> Self {
        let named = tables.disks.iter().filter(|(of, _, _)| *of == machine);
        Self {
            rows: Vec::new(),
            by_dev: FxHashMap::default(),
            live: FxHashMap::default(),
            names: named.map(|(_, dev, name)| (*dev, name.as_str())).collect(),
            done: RecentlyDone::default(),
        }
    }

    pub(super) fn insert(
        &mut self,
        request: &BlockRequest,
        maker: Option<TaskId>,
        now: HostNs,
        tasks: &mut Tasks,
        problems: &mut Problems,
    ) {
        // What went back to the queue is inserted again.
        if let Some(live) = self.live.get(&request.request)
            && !live.issued
            && live.sector == request.sector
        {
            return;
        }
        self.forget(request.request, now, tasks, problems);
        self.begin(request, maker, now, tasks);
    }

    pub(super) fn issue(
        &mut self,
        request: &BlockRequest,
        maker: Option<TaskId>,
        now: HostNs,
        tasks: &mut Tasks,
        problems: &mut Problems,
    ) {
        if self.live.get(&request.request).is_none_or(|live| live.issued) {
            self.forget(request.request, now, tasks, problems);
            self.begin(request, maker, now, tasks);
        }
        let Some(live) = self.live.get_mut(&request.request) else { return };
        live.issued = true;
        self.rows[live.disk as usize].begin(now);
        if let Some(row) = row_of(live.maker, tasks) {
            // Others may have been merged into it since it was queued.
            row.bytes = row.bytes.max(request.bytes);
            row.issued = Some(now);
        }
    }

    pub(super) fn requeue(
        &mut self,
        request: u64,
        now: HostNs,
        tasks: &mut Tasks,
        problems: &mut Problems,
    ) {
        let Some(live) = self.live.get_mut(&request).filter(|live| live.issued) else {
            return problems.count(Problem::EndWithoutBegin);
        };
        live.issued = false;
        self.rows[live.disk as usize].end(now);
        if let Some(row) = row_of(live.maker, tasks) {
            row.issued = None;
        }
    }

    /// Another one does its work from now on, too.
    pub(super) fn merge(&mut self, request: u64, now: HostNs, tasks: &mut Tasks) {
        let is_queued = self.live.get(&request).is_some_and(|live| !live.issued);
        let merged = if is_queued { self.live.remove(&request) } else { None };
        if let Some(row) = merged.and_then(|live| row_of(live.maker, tasks)) {
            row.done = Some(now);
        }
    }

    /// Who made the request that is done, if that is known; `None`: no such request was under way.
    pub(super) fn complete(
        &mut self,
        request: u64,
        bytes: u32,
        now: HostNs,
        tasks: &mut Tasks,
    ) -> Option<Option<RequestRow>> {
        let live = self.live.remove(&request)?;
        let tracked = &mut self.rows[live.disk as usize];
        if live.issued {
            tracked.end(now);
        }
        tracked.disk.requests += 1;
        match live.op {
            BlockOp::Read => tracked.disk.bytes[0] += u64::from(bytes),
            BlockOp::Write => tracked.disk.bytes[1] += u64::from(bytes),
            BlockOp::Flush | BlockOp::Discard | BlockOp::Other => {}
        }
        if let Some(row) = row_of(live.maker, tasks) {
            row.done = Some(now);
        }
        let dev = tracked.disk.dev;
        if let Some(maker) = live.maker {
            match dev >> MINOR_BITS {
                LOOP_MAJOR => self.find_lower(&live, maker, tasks),
                _ => self.done.push(maker, &live, tasks),
            }
        }
        Some(live.maker)
    }

    /// A loop device's request is done as soon as the request to the disk below is.
    fn find_lower(&mut self, live: &Live, maker: RequestRow, tasks: &mut Tasks) {
        let Some(lower) = self.done.take(live) else { return };
        if let Some(row) = row_of(Some(lower), tasks) {
            row.for_loop = true;
        }
        if let Some(row) = row_of(Some(maker), tasks) {
            row.lower = Some(lower);
        }
    }

    /// The request of this name, if it is under way.
    pub(super) fn under_way(&self, request: u64, tasks: &Tasks) -> Option<UnderWay> {
        let live = self.live.get(&request)?;
        let row = live.maker.and_then(|(id, row)| tasks[id].task.requests.get(row as usize));
        Some(UnderWay {
            disk: live.disk,
            maker: live.maker.map(|(id, _)| id),
            op: live.op,
            sectors: live.sector..live.sector + row.map_or(0, |row| u64::from(row.bytes / 512)),
        })
    }

    /// Counts from here on.
    pub(super) fn restart(&mut self) {
        for tracked in &mut self.rows {
            (tracked.disk.requests, tracked.disk.bytes) = (0, [0; 2]);
        }
    }

    pub(super) fn finish(self, end: HostNs) -> Vec<Disk> {
        let ended = |mut tracked: Tracked| {
            if 0 < tracked.in_flight {
                tracked.push_busy(end);
            }
            tracked.disk
        };
        self.rows.into_iter().map(ended).collect()
    }

    fn begin(
        &mut self,
        request: &BlockRequest,
        maker: Option<TaskId>,
        now: HostNs,
        tasks: &mut Tasks,
    ) {
        let disk = self.disk(request.disk);
        let (op, bytes) = (request.op, request.bytes);
        let maker = maker.map(|id| {
            let requests = &mut tasks[id].task.requests;
            let row = u32::try_from(requests.len()).unwrap_or(u32::MAX);
            requests.push(Request {
                disk,
                op,
                bytes,
                queued: now,
                issued: None,
                done: None,
                lower: None,
                for_loop: false,
            });
            (id, row)
        });
        let live = Live { disk, maker, sector: request.sector, op, queued: now, issued: false };
        self.live.insert(request.request, live);
    }

    /// Its name is used again, so that it is no longer under way: when it was issued, the end was lost; when it was
    /// not, it was merged into a neighbour soon after it was queued (where no event says so).
    fn forget(&mut self, request: u64, now: HostNs, tasks: &mut Tasks, problems: &mut Problems) {
        let Some(live) = self.live.remove(&request) else { return };
        if live.issued {
            problems.count(Problem::EndWithoutBegin);
            self.rows[live.disk as usize].end(now);
        }
        if let Some(row) = row_of(live.maker, tasks) {
            row.done = Some(if live.issued { now } else { live.queued });
        }
    }

    fn disk(&mut self, dev: u32) -> u32 {
        if let Some(row) = self.by_dev.get(&dev) {
            return *row;
        }
        let row = self.rows.len();
        if row <= MAX_DISKS {
            self.rows.push(self.tracked(dev));
            self.by_dev.insert(dev, row_number(row));
        }
        row_number(row.min(MAX_DISKS))
    }

    /// A disk of its own, or what all those are that come after as many as are distinguished.
    fn tracked(&self, dev: u32) -> Tracked {
        let name = self.names.get(&dev).map(|name| (*name).to_owned());
        let name = match self.rows.len() {
            MAX_DISKS => "other disks".to_owned(),
            _ => name.unwrap_or_else(|| format!("{}:{}", dev >> 20, dev & 0xf_ffff)),
        };
        let disk = Disk { dev, name, ..Disk::default() };
        Tracked { disk, in_flight: 0, busy_since: HostNs(0) }
    }
}

impl Tracked {
    fn begin(&mut self, now: HostNs) {
        if self.in_flight == 0 {
            self.busy_since = now;
        }
        self.in_flight += 1;
    }

    fn end(&mut self, now: HostNs) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            self.push_busy(now);
        }
    }

    fn push_busy(&mut self, end: HostNs) {
        let begin = self.busy_since;
        match self.disk.busy.last_mut() {
            _ if end <= begin => {}
            Some(last) if last.1 == begin => last.1 = end,
            _ => self.disk.busy.push((begin, end)),
        }
    }
}

fn row_number(row: usize) -> u32 {
    u32::try_from(row).expect("rows of disks are few")
}

fn row_of(maker: Option<RequestRow>, tasks: &mut Tasks) -> Option<&mut Request> {
    let (id, row) = maker?;
    tasks[id].task.requests.get_mut(row as usize)
}
