//! A window at a glance: where each vCPU's time went, who took it, which exits and functions led.

use std::collections::{BTreeMap, HashMap};

use model::{TimeAccount, TimelineState, Vendor};

use crate::exit_reason;
use crate::steal::{ThiefNames, TimelineInput, balances};
use crate::vcpu_timeline::{CodeLocationId, VcpuTimeline, VcpuTimelines};

/// One vCPU's window. The accounts add up to `wall_ns`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overview {
    pub vm: String,
    /// Its number in the VM.
    pub vcpu: u32,
    /// How long the window was for it.
    pub wall_ns: u64,
    /// Of the guest's own time, what its kernel ran.
    pub guest_kernel_ns: u64,
    /// Of the guest's own time, what its user code ran (or code whose level is not known).
    pub guest_user_ns: u64,
    /// ns by account; `TimeAccount::Guest` is the two above.
    pub accounts: BTreeMap<TimeAccount, u64>,
    /// Who had the CPU while this vCPU could run, most first.
    pub thieves: Vec<Share>,
    /// VM exits by the time they took, most first.
    pub exits: Vec<Share>,
    /// Guest functions by the time they ran, most first.
    pub functions: Vec<Share>,
}

/// A part of the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Of what: a thief, an exit reason, a function.
    pub name: String,
    /// A function's process; empty otherwise.
    pub process: String,
    pub ns: u64,
}

impl Overview {
    /// The time of an account.
    #[must_use]
    pub fn ns(&self, account: TimeAccount) -> u64 {
        self.accounts.get(&account).copied().unwrap_or(0)
    }

    /// Several vCPUs as one: a VM.
    #[must_use]
    pub fn sum(vcpus: &[&Overview]) -> Overview {
        let mut sum = Overview::default();
        for vcpu in vcpus {
            sum.vm.clone_from(&vcpu.vm);
            sum.wall_ns += vcpu.wall_ns;
            sum.guest_kernel_ns += vcpu.guest_kernel_ns;
            sum.guest_user_ns += vcpu.guest_user_ns;
            for (account, ns) in &vcpu.accounts {
                *sum.accounts.entry(*account).or_default() += ns;
            }
        }
        let all = |of: fn(&Overview) -> &Vec<Share>| {
            merged(vcpus.iter().flat_map(|vcpu| of(vcpu)).cloned())
        };
        sum.thieves = all(|vcpu| &vcpu.thieves);
        sum.exits = all(|vcpu| &vcpu.exits);
        sum.functions = all(|vcpu| &vcpu.functions);
        sum
    }
}

/// All vCPUs that existed in the window, by VM and number.
#[must_use]
pub fn overview(evidence: &TimelineInput<'_>) -> Vec<Overview> {
    let names = ThiefNames::new(evidence.tables);
    let balances = balances(evidence, &names);
    let present = evidence.axis.timelines.iter().filter(|timeline| 0 < timeline.length_ns());
    let mut all: Vec<Overview> = present
        .filter_map(|timeline| {
            let row = evidence.tables.vcpus.get(timeline.vcpu.index())?;
            let balance = balances.get(&timeline.vcpu)?;
            let guest = Overview::of_guest(evidence.axis, timeline);
            Some(Overview {
                vm: evidence.tables.vms.get(row.vm.index())?.name.clone(),
                vcpu: row.number,
                wall_ns: timeline.length_ns(),
                accounts: TimeAccount::ALL.into_iter().zip(balance.accounts.all()).collect(),
                thieves: ranked(balance.thieves.iter().map(|(who, ns)| (names.name(*who), *ns))),
                exits: ranked(balance.reasons.iter().map(|(reason, time)| {
                    (reason_name(evidence.header.vendor, *reason), time.total_ns())
                })),
                ..guest
            })
        })
        .collect();
    all.sort_by(|a, b| (&a.vm, a.vcpu).cmp(&(&b.vm, b.vcpu)));
    all
}

fn reason_name(vendor: Vendor, reason: Option<u32>) -> String {
    reason.map_or_else(
        || "not known".to_owned(),
        |reason| exit_reason::name(vendor, reason).into_owned(),
    )
}

impl Overview {
    /// What the guest ran.
    fn of_guest(axis: &VcpuTimelines, timeline: &VcpuTimeline) -> Self {
        let mut guest = Self::default();
        let mut places: HashMap<CodeLocationId, u64> = HashMap::new();
        for segment in &timeline.segments {
            let ns = segment.length_ns();
            match segment.state {
                TimelineState::GuestKernel => guest.guest_kernel_ns += ns,
                TimelineState::GuestUser | TimelineState::GuestUnknown => guest.guest_user_ns += ns,
                _ => continue,
            }
            if let Some(place) = segment.place {
                *places.entry(place).or_default() += ns;
            }
        }
        guest.functions = merged(places.into_iter().map(|(place, ns)| {
            let place = axis.place(place);
            Share { name: place.function.clone(), process: place.process.clone(), ns }
        }));
        guest
    }
}

fn ranked(parts: impl Iterator<Item = (String, u64)>) -> Vec<Share> {
    merged(parts.map(|(name, ns)| Share { name, process: String::new(), ns }))
}

/// Adds up what has one name; most first, then by name.
fn merged(parts: impl Iterator<Item = Share>) -> Vec<Share> {
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for Share { name, process, ns } in parts {
        *sums.entry((name, process)).or_default() += ns;
    }
    let shares = sums.into_iter().map(|((name, process), ns)| Share { name, process, ns });
    let mut shares: Vec<Share> = shares.collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.ns));
    shares
}
