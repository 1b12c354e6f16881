//! Time that a vCPU wanted and did not get, as docs/measuring.md defines it ("A vCPU's states").

/// What lost time counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostTime {
    /// Steal type 1: others had the CPU.
    StealOutside,
    /// Steal type 2: KVM or the VMM worked, or slept, for a VM exit.
    StealVmm,
    /// A CPU quota held the vCPU back.
    Throttled,
}

/// States of the result table `vcpu_time` in which time is lost. In all others it is not.
const STATES: [(&str, LostTime); 4] = [
    ("steal_outside", LostTime::StealOutside),
    ("steal_vmm", LostTime::StealVmm),
    ("steal_vmm_waiting", LostTime::StealVmm),
    ("throttled", LostTime::Throttled),
];

impl LostTime {
    /// Of a state's name in the result table `vcpu_time`; `None`: its time is not lost.
    #[must_use]
    pub fn from_state(name: &str) -> Option<Self> {
        STATES.iter().find(|(state, _)| *state == name).map(|(_, lost)| *lost)
    }

    /// Names of the states that count so in the result table `vcpu_time`.
    pub fn states(self) -> impl Iterator<Item = &'static str> {
        STATES.into_iter().filter(move |(_, lost)| *lost == self).map(|(state, _)| state)
    }

    /// Whether it is stolen: steal of both types, and nothing else.
    #[must_use]
    pub fn is_stolen(self) -> bool {
        match self {
            Self::StealOutside | Self::StealVmm => true,
            Self::Throttled => false,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// What the table of docs/measuring.md says that states count as.
    #[test]
    fn time_is_lost_and_stolen_as_documented() {
        let documented = include_str!("../../../docs/measuring.md");
        let definition = "*Stolen* time is steal, of both types, and nothing else. *Lost* time is \
                          stolen or throttled.";
        assert!(documented.split_whitespace().collect::<Vec<_>>().join(" ").contains(definition));
        for (row, states) in [
            ("guest user, guest kernel", &["guest_user", "guest_kernel", "guest_unknown"][..]),
            ("vmm", &["steal_vmm"]),
            ("waiting in vmm", &["steal_vmm_waiting"]),
            ("preempted", &["steal_outside"]),
            ("throttled", &["throttled"]),
            ("paused", &["paused"]),
            ("halted", &["halt"]),
            ("halt polling", &["halt_polling"]),
            ("not sampled", &["not_sampled"]),
            ("unknown", &["unknown"]),
        ] {
            let line = documented.lines().find(|line| line.starts_with(&format!("| {row} | ")));
            let counts_as = line.unwrap().trim_end_matches(" |").rsplit(" | ").next().unwrap();
            for state in states {
                let lost = LostTime::from_state(state);
                let expected = match counts_as.split([',', ':']).next().unwrap() {
                    "steal type 1" => Some(LostTime::StealOutside),
                    "steal type 2" => Some(LostTime::StealVmm),
                    "throttled" => Some(LostTime::Throttled),
                    _ => None,
                };
                assert_eq!(lost, expected, "{state}");
                let is_stolen = lost.is_some_and(LostTime::is_stolen);
                assert_eq!(is_stolen, counts_as.starts_with("steal "), "{state}");
            }
        }
    }

    #[test]
    fn states_are_those_that_count_so() {
        assert!(LostTime::StealVmm.states().eq(["steal_vmm", "steal_vmm_waiting"]));
        assert!(STATES.iter().all(|(state, lost)| lost.states().any(|name| name == *state)));
    }
}
