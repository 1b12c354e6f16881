//! Parts of turnarounds on the time axis of a recording: what the VM that worked did meanwhile.
//!
//! ```text
//!  part       |-------- D-W-C of 10.0.0.2 --------|      the capture's clock: CLOCK_REALTIME
//!  recording        |<-- start                           CLOCK_MONOTONIC, with CLOCK_REALTIME of its start
//!  VM          .....  guest | preempted | guest
//!             outside
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use analysis::steal::{ThiefNames, TimeBreakdown, TimelineInput, Window};
use model::{HostNs, VmId};

use crate::{CaptureNs, Outcome, Part, Request};

/// A recording, and which of its VMs has which address.
#[derive(Debug, Clone, Copy)]
pub struct TimeAxis<'a> {
    /// What the VMs did.
    pub evidence: TimelineInput<'a>,
    /// Who took CPUs.
    pub names: &'a ThiefNames<'a>,
    /// VMs by address.
    pub vms: &'a BTreeMap<IpAddr, VmId>,
}

/// What a time went to; adds up to its length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeSpent {
    /// What the VM did, as far as the recording tells.
    pub balance: TimeBreakdown,
    /// Before the recording, or after it.
    pub outside_ns: u64,
    /// The VM that worked is not known.
    pub no_vm_ns: u64,
}

/// A time of a request: one that is of one part, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkTime {
    /// Which part; `None`: the request can't be split.
    pub part: Option<Part>,
    /// Who worked; `None`: several at once.
    pub worker: Option<IpAddr>,
    pub begin: CaptureNs,
    pub end: CaptureNs,
}

/// All times of one part, while one VM worked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartSum {
    /// Requests that have such times.
    pub requests: u64,
    pub spent: TimeSpent,
}

impl Request {
    /// Its times, one after the other: their lengths add up to the turnaround.
    #[must_use]
    pub fn work_times(&self) -> Vec<WorkTime> {
        match &self.outcome {
            Outcome::Known(parts) => {
                let times = parts.times().iter();
                times
                    .map(|time| WorkTime {
                        part: Some(time.part),
                        worker: time.worker,
                        begin: time.begin,
                        end: time.end,
                    })
                    .collect()
            }
            Outcome::Unknown(_) => vec![WorkTime {
                part: None,
                worker: Some(self.server.ip()),
                begin: self.begin,
                end: self.end,
            }],
        }
    }
}

impl TimeAxis<'_> {
    /// The VM that worked.
    #[must_use]
    pub fn vm(&self, time: &WorkTime) -> Option<VmId> {
        self.vms.get(&time.worker?).copied()
    }

    /// What a time went to.
    ///
    /// # Panics
    /// Never: a VM's time between two instants adds up to the time between them.
    #[must_use]
    pub fn spent(&self, time: &WorkTime) -> TimeSpent {
        let length = time.end.since(time.begin);
        let Some(vm) = self.vm(time) else {
            return TimeSpent { no_vm_ns: length, ..TimeSpent::default() };
        };
        let window = Window { from: self.recorded(time.begin), to: self.recorded(time.end) };
        let balance = TimeBreakdown::of_vm(&self.evidence, self.names, vm, window);
        let outside_ns = length - window.to.since(window.from);
        let spent = TimeSpent { balance, outside_ns, no_vm_ns: 0 };
        assert_eq!(spent.total_ns(), length, "a VM's time adds up");
        spent
    }

    /// All requests' times by part and VM, requests that can't be split last.
    #[must_use]
    pub fn sums<'r>(
        &self,
        requests: impl Iterator<Item = &'r Request>,
    ) -> Vec<(Option<Part>, Option<VmId>, PartSum)> {
        let mut sums: BTreeMap<(bool, Option<Part>, Option<VmId>), PartSum> = BTreeMap::new();
        for request in requests {
            let mut own: BTreeMap<_, TimeSpent> = BTreeMap::new();
            for time in request.work_times() {
                let key = (time.part.is_none(), time.part, self.vm(&time));
                own.entry(key).or_default().add(&self.spent(&time));
            }
            for (key, spent) in own {
                let sum = sums.entry(key).or_default();
                sum.requests += 1;
                sum.spent.add(&spent);
            }
        }
        sums.into_iter().map(|((_, part, vm), sum)| (part, vm, sum)).collect()
    }

    /// How much later than the capture's first packet the recording began, ns.
    #[must_use]
    pub fn begins_after_ns(&self, first: CaptureNs) -> i128 {
        i128::from(self.evidence.header.start_unix_ns) - i128::from(first.0)
    }

    /// An instant of the capture on the recording's clock; one before the recording is its first, one after it its last.
    fn recorded(&self, at: CaptureNs) -> HostNs {
        let header = self.evidence.header;
        let since = at.since(CaptureNs(header.start_unix_ns));
        HostNs(header.start.0.saturating_add(since)).min(header.end.max(header.start))
    }
}

impl TimeSpent {
    /// The length of what it tells of.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.balance.accounts.total() + self.outside_ns + self.no_vm_ns
    }

    fn add(&mut self, other: &Self) {
        self.balance.add(&other.balance);
        self.outside_ns += other.outside_ns;
        self.no_vm_ns += other.no_vm_ns;
    }
}
