//! The table of what a vCPU does with its time (docs/measuring.md). A new state is a row here, and the code that sees it.
//!
//! From the rows come the names in result tables, files, metrics and SQL, what each state counts as, and the words and
//! colours of charts, also of the server's page (`ui/vcpu-states.json`). Rows are in the order in which charts show them.
//! Names and variants are stable: files have them.

use serde::{Deserialize, Serialize};

macro_rules! vcpu_states {
    ($(
        $(#[$doc:meta])*
        $variant:ident $({ $(#[$field_doc:meta])* $field:ident: $type:ty })?
        $name:literal => $account:ident, $chart:literal, $page:literal, $colour:literal;
    )*) => {
        /// What a vCPU does at an instant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum TimelineState {
            $($(#[$doc])* $variant $({ $(#[$field_doc])* $field: $type })?,)*
        }

        /// A [`TimelineState`] without its exit reason: column `state` of `vcpu_time`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum VcpuTimeState {
            $($(#[$doc])* $variant,)*
        }

        impl TimelineState {
            /// The state without its exit reason.
            #[must_use]
            pub fn kind(self) -> VcpuTimeState {
                match self {
                    $(Self::$variant { .. } => VcpuTimeState::$variant,)*
                }
            }
        }

        impl VcpuTimeState {
            /// In the order of charts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in result tables, SQL and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it counts as.
            #[must_use]
            pub const fn account(self) -> TimeAccount {
                match self { $(Self::$variant => TimeAccount::$account,)* }
            }

            /// Its name in exported charts. Scripts look for it.
            #[must_use]
            pub const fn chart_name(self) -> &'static str {
                match self { $(Self::$variant => $chart,)* }
            }

            /// Its name on the server's page.
            #[must_use]
            pub const fn page_name(self) -> &'static str {
                match self { $(Self::$variant => $page,)* }
            }

            /// Its style in `colours.css`.
            #[must_use]
            pub const fn colour(self) -> &'static str {
                match self { $(Self::$variant => $colour,)* }
            }
        }
    };
}

vcpu_states! {
    /// Runs its guest's user code.
    GuestUser "guest_user" => Guest, "guest user", "guest user", "guest-user";
    /// Runs its guest's kernel.
    GuestKernel "guest_kernel" => Guest, "guest kernel", "guest kernel", "guest-kernel";
    /// Runs its guest; the privilege level can't be read.
    GuestUnknown "guest_unknown" => Guest, "guest", "guest, level unknown", "guest-unknown";
    /// On a CPU, in KVM or the VMM, for an exit of this reason. Steal type 2.
    StealVmm {
        /// AMD exit code or Intel basic exit reason.
        reason: u32
    } "steal_vmm" => StealVmm, "vmm", "in the VMM (steal type 2)", "vmm";
    /// Asleep after an exit that is no halt. Steal type 2.
    StealVmmWaiting {
        /// The exit's reason; `None`: the samples don't show it.
        reason: Option<u32>
    } "steal_vmm_waiting" => StealVmm, "waiting in vmm", "asleep in the VMM (steal type 2)", "vmm-waiting";
    /// Could run, and another task had the CPU. Steal type 1.
    StealOutside "steal_outside" => StealOutside, "preempted", "waiting for a CPU (steal type 1)", "preempted";
    /// Held back by a CPU quota. Neither steal nor idle.
    Throttled "throttled" => Throttled, "throttled", "throttled by a quota", "throttled";
    /// The VMM does not run it: the VM is stopped, migrates, is saved or debugged. Neither steal nor idle.
    Paused "paused" => Paused, "paused", "paused", "stopped";
    /// On a CPU, but no sample says doing what: the interrupt was missed, or it came and went between two.
    NotSampled "not_sampled" => NotSampled, "not sampled", "not sampled", "not-sampled";
    /// Before the first evidence or after the last.
    Unknown "unknown" => Unknown, "unknown", "unknown", "unknown";
    /// On a CPU, polling for the end of a halt. Idle.
    HaltPolling "halt_polling" => HaltPolling, "halt polling", "halt polling", "halt-polling";
    /// Asleep because its guest had nothing to do. Idle.
    Halt "halt" => Halt, "halted", "halted", "idle";
}

macro_rules! accounts {
    ($(
        $(#[$doc:meta])*
        $variant:ident $name:literal => $class:ident, $words:literal, $line:literal;
    )*) => {
        /// What vCPU time counts as. All accounts of a vCPU add up to the time that it was there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum TimeAccount {
            $($(#[$doc])* $variant,)*
        }

        impl TimeAccount {
            /// In the order of reports.
            pub const ALL: [Self; [$($name,)*].len()] = [$(Self::$variant,)*];

            /// Its name in JSON, CSV and files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Whether it is time that the guest wanted.
            #[must_use]
            pub const fn class(self) -> TimeClass {
                match self { $(Self::$variant => TimeClass::$class,)* }
            }

            /// The account in words.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self { $(Self::$variant => $words,)* }
            }

            /// The line of a profile for time in which no code was sampled.
            #[must_use]
            pub const fn line(self) -> &'static str {
                match self { $(Self::$variant => $line,)* }
            }
        }
    };
}

accounts! {
    /// The guest's own time.
    Guest "guest" => Running, "guest", "[guest]";
    /// The guest had nothing to do.
    Halt "halt" => Idle, "halt", "[ idle ] (halt exit)";
    /// The host polled for the end of a halt.
    HaltPolling "halt_polling" => Idle, "halt polling", "[ idle ] (halt polling)";
    /// Type 1: other tasks had the CPU.
    StealOutside "steal_outside" => Stolen, "steal type 1", "[ steal ] (outside)";
    /// Type 2: the VMM worked or slept for the guest.
    StealVmm "steal_vmm" => Stolen, "steal type 2", "[ steal ] (in VMM)";
    /// A CPU quota held it back.
    Throttled "throttled" => HeldBack, "throttled", "[ throttled ] (CPU quota)";
    /// The VMM had paused it.
    Paused "paused" => Idle, "paused", "[ paused ] (by the VMM)";
    /// The guest ran, and no sample says what.
    NotSampled "not_sampled" => Running, "not sampled", "[not sampled]";
    /// No evidence.
    Unknown "unknown" => Idle, "unknown", "[ unknown ] (no evidence)";
}

/// What time was to the guest. Throttled time is never steal (docs/measuring.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeClass {
    /// It ran, or its vCPU had a CPU without a sample.
    Running,
    /// Steal types 1 and 2: others had what the guest wanted.
    Stolen,
    /// A CPU quota held it back.
    HeldBack,
    /// It wanted nothing, was stopped, or nothing is known.
    Idle,
}

impl TimelineState {
    /// What it counts as.
    #[must_use]
    pub fn account(self) -> TimeAccount {
        self.kind().account()
    }

    /// The VM exit that took the time, where it is known.
    #[must_use]
    pub fn exit_reason(self) -> Option<u32> {
        match self {
            Self::StealVmm { reason } => Some(reason),
            Self::StealVmmWaiting { reason } => reason,
            _ => None,
        }
    }
}

impl TimeAccount {
    /// Whether it is stolen: steal of both types, and nothing else.
    #[must_use]
    pub fn is_stolen(self) -> bool {
        self.class() == TimeClass::Stolen
    }

    /// Whether it is time that the guest wanted and did not get: stolen or throttled.
    #[must_use]
    pub fn is_lost(self) -> bool {
        matches!(self.class(), TimeClass::Stolen | TimeClass::HeldBack)
    }
}

impl VcpuTimeState {
    /// The state of this name; a name of a later version is `Unknown`.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let found = Self::ALL.iter().find(|state| state.name() == name);
        found.copied().unwrap_or(Self::Unknown)
    }

    /// Whether samples of this state saw the guest's code.
    #[must_use]
    pub fn is_sampled_guest(self) -> bool {
        self.account() == TimeAccount::Guest
    }

    /// Whether a guest's own clock shows this time as that of the code that it interrupts: apparent time.
    #[must_use]
    pub fn is_apparent(self) -> bool {
        self.account().class() != TimeClass::Idle
    }
}

impl TimeClass {
    /// Its name in generated code.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stolen => "stolen",
            Self::HeldBack => "held_back",
            Self::Idle => "idle",
        }
    }
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_parse() {
        for state in VcpuTimeState::ALL {
            assert_eq!(VcpuTimeState::from_name(state.name()), *state);
        }
        assert_eq!(VcpuTimeState::from_name("of a later version"), VcpuTimeState::Unknown);
        let unique = |names: Vec<&str>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
        let states = VcpuTimeState::ALL;
        assert!(unique(states.iter().map(|state| state.chart_name()).collect()));
        assert!(unique(states.iter().map(|state| state.page_name()).collect()));
        assert!(unique(states.iter().map(|state| state.colour()).collect()));
        assert!(unique(TimeAccount::ALL.map(TimeAccount::name).to_vec()));
    }

    #[test]
    fn every_account_has_a_state() {
        let used: BTreeSet<_> = VcpuTimeState::ALL.iter().map(|state| state.account()).collect();
        assert_eq!(used, BTreeSet::from(TimeAccount::ALL));
        // Arrays by account are indexed in this order.
        assert!((0..).zip(TimeAccount::ALL).all(|(n, account)| account as usize == n));
    }

    /// What the table of docs/measuring.md says that states count as.
    #[test]
    fn time_is_lost_and_stolen_as_documented() {
        let documented = include_str!("../../../docs/measuring.md");
        let definition = "*Stolen* time is steal, of both types, and nothing else. *Lost* time is \
                          stolen or throttled.";
        assert!(documented.split_whitespace().collect::<Vec<_>>().join(" ").contains(definition));
        for state in VcpuTimeState::ALL {
            let row = match state {
                VcpuTimeState::GuestUser
                | VcpuTimeState::GuestKernel
                | VcpuTimeState::GuestUnknown => "guest user, guest kernel",
                state => state.chart_name(),
            };
            let line = documented.lines().find(|line| line.starts_with(&format!("| {row} | ")));
            let counts_as = line.unwrap().trim_end_matches(" |").rsplit(" | ").next().unwrap();
            let counts_as = counts_as.split([',', ':']).next().unwrap();
            let account = state.account();
            let is_lost = ["steal type 1", "steal type 2", "throttled"].contains(&counts_as);
            assert_eq!(is_lost, account.is_lost(), "{state:?}");
            assert!(!is_lost || counts_as == account.words(), "{state:?}");
            assert_eq!(counts_as.starts_with("steal "), account.is_stolen(), "{state:?}");
        }
    }

    #[test]
    fn stolen_time_is_of_type_1_or_2() {
        let of = |class| -> Vec<&str> {
            let states = VcpuTimeState::ALL.iter().filter(|s| s.account().class() == class);
            states.map(|state| state.name()).collect()
        };
        assert_eq!(of(TimeClass::Stolen), ["steal_vmm", "steal_vmm_waiting", "steal_outside"]);
        assert_eq!(of(TimeClass::HeldBack), ["throttled"]);
        assert_eq!(of(TimeClass::Idle), ["paused", "unknown", "halt_polling", "halt"]);
        assert_eq!(
            of(TimeClass::Running),
            ["guest_user", "guest_kernel", "guest_unknown", "not_sampled"]
        );
    }

    #[test]
    fn exit_reasons() {
        let check = |state: TimelineState, expected| assert_eq!(state.exit_reason(), expected);
        check(TimelineState::StealVmm { reason: 7 }, Some(7));
        check(TimelineState::StealVmmWaiting { reason: Some(7) }, Some(7));
        check(TimelineState::StealVmmWaiting { reason: None }, None);
        check(TimelineState::Halt, None);
    }
}
