//! What may help: switches of the host that work while VMs run, and settings of guests, which need VMs of their own.

use std::fmt;

use serde::Deserialize;

use crate::plan::{PlanError, VmPlan, check_name, check_timer, check_words, within, wrong};

/// What nothing was changed is called.
pub const AS_IT_IS: &str = "as it is";

/// A remedy of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remedy {
    pub name: String,
    /// Remedies before it that are part of it.
    #[serde(default)]
    pub combine: Vec<String>,
    /// Switches that it sets on the host.
    #[serde(flatten)]
    pub host: HostSwitches,
    /// More of the guest kernel's command line, in the place of the plan's.
    pub guest_cmdline: Option<String>,
    /// How often a second the guest kernel's timer ticks, in the place of the plan's.
    pub guest_timer_hz: Option<u32>,
    /// Whether the template's memory is in huge pages.
    pub huge_pages: Option<bool>,
    /// Whether KVM takes the CPU from a vCPU that waits in a loop.
    pub pause_loop_exiting: Option<bool>,
}

/// Switches of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct HostSwitches {
    /// Whose processes and groups are changed; all by default.
    pub of: Option<Scope>,
    /// Nice value of the VMs' processes.
    pub nice: Option<i32>,
    /// Whether the VMs' processes are in one control group or each in its own; each by default.
    pub groups: Option<Groups>,
    /// `cpu.weight` of the VMs' control groups.
    pub cpu_weight: Option<u32>,
    /// `cpu.idle` of the VMs' control groups.
    pub cpu_idle: Option<bool>,
    /// `SCHED_BATCH` for the VMs' threads.
    pub batch: Option<bool>,
    /// KVM's `halt_poll_ns`.
    pub halt_poll_ns: Option<u32>,
    pub ksm: Option<bool>,
    /// Whether each vCPU is bound to one CPU, one after the other.
    pub pin: Option<bool>,
}

/// Which VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    #[default]
    All,
    Loaded,
    /// The others.
    Idle,
}

/// How VMs' processes are in control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Groups {
    /// A group for each, as libvirt makes them.
    #[default]
    Each,
    /// All in one, as processes that one shell started.
    One,
}

/// What can't be changed while VMs run: VMs that differ in it have templates of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestSettings {
    /// More of the kernel's command line.
    pub cmdline: String,
    /// How often a second the kernel's timer ticks; `None`: as Debian built it.
    pub timer_hz: Option<u32>,
    /// Whether the template's memory is in huge pages.
    pub huge_pages: bool,
    /// KVM's pause-loop exiting; `None`: as the host has it.
    pub pause_loop_exiting: Option<bool>,
}

/// What is measured at a step: no remedy, one, or several together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Treatment {
    pub name: String,
    /// What is switched on the host.
    pub host: HostSwitches,
    /// What the guests are like.
    pub guest: GuestSettings,
}

impl Remedy {
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        check_name("remedy.name", &self.name)?;
        let key = |name: &str| format!("remedy `{}`, {name}", self.name);
        let nothing = Self {
            name: self.name.clone(),
            combine: Vec::new(),
            host: HostSwitches { of: self.host.of, ..HostSwitches::default() },
            guest_cmdline: None,
            guest_timer_hz: None,
            huge_pages: None,
            pause_loop_exiting: None,
        };
        if *self == nothing {
            return Err(wrong(&format!("remedy `{}`", self.name), "changes nothing"));
        }
        if let Some(nice) = self.host.nice {
            within(&key("nice"), f64::from(nice), -20.0, 19.0)?;
        }
        if let Some(weight) = self.host.cpu_weight {
            within(&key("cpu_weight"), f64::from(weight), 1.0, 10_000.0)?;
        }
        if let Some(ns) = self.host.halt_poll_ns {
            within(&key("halt_poll_ns"), f64::from(ns), 0.0, 1e9)?;
        }
        check_timer(&key("guest_timer_hz"), self.guest_timer_hz)?;
        check_words(&key("guest_cmdline"), self.guest_cmdline.as_deref().unwrap_or_default())
    }
}

impl Treatment {
    pub(crate) fn without_remedy(vm: &VmPlan) -> Self {
        let guest = GuestSettings {
            cmdline: vm.cmdline.clone(),
            timer_hz: vm.timer_hz,
            ..GuestSettings::default()
        };
        Self { name: AS_IT_IS.to_owned(), host: HostSwitches::default(), guest }
    }

    /// A remedy more; what both change is as the remedy has it.
    pub(crate) fn with(self, remedy: &Remedy) -> Self {
        let (ours, new) = (self.host, &remedy.host);
        Self {
            name: self.name,
            host: HostSwitches {
                of: new.of.or(ours.of),
                nice: new.nice.or(ours.nice),
                groups: new.groups.or(ours.groups),
                cpu_weight: new.cpu_weight.or(ours.cpu_weight),
                cpu_idle: new.cpu_idle.or(ours.cpu_idle),
                batch: new.batch.or(ours.batch),
                halt_poll_ns: new.halt_poll_ns.or(ours.halt_poll_ns),
                ksm: new.ksm.or(ours.ksm),
                pin: new.pin.or(ours.pin),
            },
            guest: GuestSettings {
                cmdline: remedy.guest_cmdline.clone().unwrap_or(self.guest.cmdline),
                timer_hz: remedy.guest_timer_hz.or(self.guest.timer_hz),
                huge_pages: remedy.huge_pages.unwrap_or(self.guest.huge_pages),
                pause_loop_exiting: remedy.pause_loop_exiting.or(self.guest.pause_loop_exiting),
            },
        }
    }
}

impl fmt::Display for GuestSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if !self.cmdline.is_empty() {
            words.push(self.cmdline.clone());
        }
        words.extend(self.timer_hz.map(|hz| format!("{hz} Hz")));
        if self.huge_pages {
            words.push("huge pages".to_owned());
        }
        words.extend(
            self.pause_loop_exiting.map(|is_on| {
                format!("{} pause-loop exiting", if is_on { "with" } else { "without" })
            }),
        );
        f.write_str(if words.is_empty() { "as Debian has it" } else { "" })?;
        f.write_str(&words.join(", "))
    }
}
