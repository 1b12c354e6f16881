//! The cost of a hardened host's settings, shown by every command that samples.

use std::path::Path;

use super::read::number;

/// `kernel.perf_cpu_time_max_percent` of a kernel that was left as it is.
const DEFAULT_PERCENT: i64 = 25;

/// A sentence for each sysctl that costs something at this period, with the way out of it.
#[must_use]
pub fn sysctl_costs(proc: &Path, period_ns: u64) -> Vec<String> {
    let sysctl = |name: &str| number(&proc.join("sys/kernel").join(name));
    costs(
        sysctl("perf_event_max_sample_rate"),
        sysctl("perf_cpu_time_max_percent"),
        sysctl("kptr_restrict"),
        period_ns,
    )
}

fn costs(
    rate: Option<i64>,
    percent: Option<i64>,
    kptr_restrict: Option<i64>,
    period_ns: u64,
) -> Vec<String> {
    let wanted = i64::try_from(1_000_000_000_u64.div_ceil(period_ns.max(1))).unwrap_or(i64::MAX);
    let mut costs = Vec::new();
    // The kernel counts by timer ticks: it takes one in each, however low the limit is.
    if let Some(rate) = rate.filter(|rate| *rate < wanted) {
        costs.push(format!(
            "kernel.perf_event_max_sample_rate is {rate}: samples beyond that are left out, and their time shows as not \
             sampled; set it to {wanted} or more, or use a longer period"
        ));
    }
    // 0 and 100 switch it off.
    if let Some(percent) = percent.filter(|percent| (1..DEFAULT_PERCENT).contains(percent)) {
        costs.push(format!(
            "kernel.perf_cpu_time_max_percent is {percent}: when sampling by hardware counters takes more of a CPU than \
             that, the kernel lowers kernel.perf_event_max_sample_rate, and samples are left out; set it to \
             {DEFAULT_PERCENT}"
        ));
    }
    if kptr_restrict == Some(2) {
        costs.push(
            "kernel.kptr_restrict is 2: the kernel's functions have no names; set it to 1"
                .to_owned(),
        );
    }
    costs
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_sysctl_is_named_if_it_costs_something() {
        let check = |rate, percent, kptr, expected: &[&str]| {
            let costs = costs(rate, percent, kptr, 1_000_000);
            let named: Vec<&str> =
                costs.iter().map(|cost| cost.split(':').next().unwrap()).collect();
            assert_eq!(named, expected, "{costs:?}");
        };
        check(Some(100_000), Some(25), Some(1), &[]);
        check(Some(1000), Some(0), Some(0), &[]);
        check(Some(999), Some(100), None, &["kernel.perf_event_max_sample_rate is 999"]);
        check(
            Some(1),
            Some(1),
            Some(2),
            &[
                "kernel.perf_event_max_sample_rate is 1",
                "kernel.perf_cpu_time_max_percent is 1",
                "kernel.kptr_restrict is 2",
            ],
        );
        check(None, None, None, &[]);
    }

    #[test]
    fn sysctls_are_read() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("sys/kernel")).unwrap();
        std::fs::write(proc.path().join("sys/kernel/perf_event_max_sample_rate"), "1\n").unwrap();
        let costs = sysctl_costs(proc.path(), 1_000_000);
        assert!(costs[0].contains("set it to 1000 or more"), "{costs:?}");
    }
}
