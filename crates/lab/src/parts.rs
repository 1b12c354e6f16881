//! Parts of turnarounds over the measurements of a step.

use std::collections::BTreeMap;

use model::TimeAccount;
use split::Part;

use crate::ladder::Step;
use crate::observe::NOT_SPLIT;
use crate::run::PartTime;

/// What took CPUs from VMs during parts, for charts and tables.
pub(crate) const STOLEN: [(&str, Theft); 4] = [
    ("by idle VMs", Theft::Idle),
    ("by loaded VMs", Theft::Loaded),
    ("by others", Theft::Others),
    ("in VMM", Theft::Vmm),
];

/// Who took a VM's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theft {
    Idle,
    Loaded,
    Others,
    Vmm,
}

/// The parts of all requests of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StepParts {
    /// In the order of a turnaround; those of no time are left out.
    pub(crate) parts: Vec<(&'static str, PartTime)>,
    /// Captured requests.
    pub(crate) requests: u64,
}

impl StepParts {
    /// Sums over a step's measurements; `None`: no packets were captured.
    pub(crate) fn from_step(step: &Step<'_>) -> Option<Self> {
        let mut sums: BTreeMap<&str, PartTime> = BTreeMap::new();
        for (name, part) in step.runs.iter().flat_map(|run| &run.parts) {
            sums.entry(name).or_default().add(part);
        }
        let names = Part::ALL.map(Part::name).into_iter().chain([NOT_SPLIT]);
        let parts: Vec<_> = names.filter_map(|name| Some((name, sums.remove(name)?))).collect();
        // Each request has one of these.
        let first = [Part::BeforeQueries.name(), Part::NoQueries.name(), NOT_SPLIT];
        let own = parts.iter().filter(|(name, _)| first.contains(name));
        let requests = own.fold(0, |sum: u64, (_, part)| sum.saturating_add(part.requests));
        (0 < requests).then_some(Self { parts, requests })
    }

    /// How long all turnarounds were together.
    pub(crate) fn ns(&self) -> u64 {
        self.parts.iter().fold(0, |sum, (_, part)| sum.saturating_add(part.ns()))
    }

    /// Time that was taken from VMs in any part.
    pub(crate) fn stolen_ns(&self, theft: Theft) -> u64 {
        self.parts.iter().fold(0, |sum, (_, part)| sum.saturating_add(part.stolen_ns(theft)))
    }
}

impl PartTime {
    /// Time of an account.
    pub(crate) fn account_ns(&self, account: TimeAccount) -> u64 {
        self.accounts.get(account.name()).copied().unwrap_or(0)
    }

    /// Time that was taken from VMs.
    pub(crate) fn stolen_ns(&self, theft: Theft) -> u64 {
        let by = |thief: &str| self.thieves.get(thief).copied().unwrap_or(0);
        match theft {
            Theft::Idle => by("idle VMs"),
            Theft::Loaded => by("loaded VMs"),
            Theft::Others => self
                .account_ns(TimeAccount::StealOutside)
                .saturating_sub(by("idle VMs").saturating_add(by("loaded VMs"))),
            Theft::Vmm => self.account_ns(TimeAccount::StealVmm),
        }
    }

    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        let maps = [
            (&mut self.accounts, &other.accounts),
            (&mut self.thieves, &other.thieves),
            (&mut self.exits, &other.exits),
        ];
        for (sum, map) in maps {
            for (name, ns) in map {
                let all = sum.entry(name.clone()).or_default();
                *all = all.saturating_add(*ns);
            }
        }
    }
}
