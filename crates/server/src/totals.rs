//! What VMs and hosts did, added up over the windows that came, for Prometheus. Counters begin at 0 when the server starts,
//! and again when a host or VM comes back after an hour. So many VMs and hosts have series of their own: the others are one.
//!
//! A window's sums are added evenly over the window's length after it came, so that rates are true whatever windows and
//! ranges are long:
//! ```text
//!  windows    |--- 600 s: 300 s of steal ---|---- 600 s: 60 s ----|
//!  came                                     ^                     ^
//!  counter    0                             0 ...... 300 evenly   300 ... 360 evenly
//! ```
//! Windows that come together are added one after the other. Late ones are only counted.

use std::collections::BTreeMap;
use std::fmt;

use detect::{Owner, Summary, VmSummary};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;

use crate::alerts::{KINDS, short, vm_labels};
use model::VcpuTimeState;

use crate::metrics::plain;
use crate::watch::{LATE_S, end_s, is_late};

/// A series is dropped after this long without a window.
const FORGET_S: u64 = 3600;
const MAX_HOSTS: usize = 1000;
/// Exit reasons of a VM.
const MAX_REASONS: usize = 24;
/// Bytes of a label.
const MAX_LABEL: usize = 160;
/// What has no series of its own.
const OTHER: &str = "other";

/// A sum; a part of it is still to be added.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    settled: u64,
    pending: u64,
}

impl Sum {
    fn add(&mut self, more: u64) {
        self.pending = self.pending.saturating_add(more);
    }

    /// Adds a part of what is pending.
    fn settle(&mut self, (passed_s, for_s): (u64, u64)) {
        let more = u128::from(self.pending) * u128::from(passed_s) / u128::from(for_s);
        let more = u64::try_from(more).unwrap_or(self.pending);
        self.settled = self.settled.saturating_add(more);
        self.pending -= more;
    }
}

/// How long sums are still added to.
#[derive(Debug, Clone, Copy, Default)]
struct Adding {
    since_s: u64,
    for_s: u64,
}

impl Adding {
    /// Which part of what was pending is added by now: so many seconds' of so many.
    fn part(self, now_s: u64) -> (u64, u64) {
        let for_s = self.for_s.max(1);
        (now_s.saturating_sub(self.since_s).min(for_s), for_s)
    }

    /// A window of this length comes; of a series of many in the same second, it is beside the one before.
    fn extend(&mut self, now_s: u64, length_s: u64, is_of_many: bool) {
        let left_s = (self.since_s + self.for_s).saturating_sub(now_s);
        if is_of_many && self.since_s == now_s {
            self.for_s = left_s.max(length_s);
            return;
        }
        // Windows that overlap do not add up to an ever longer delay.
        let for_s = left_s.saturating_add(length_s).min(LATE_S.max(length_s));
        *self = Self { since_s: now_s, for_s };
    }
}

/// Totals of a host.
#[derive(Debug, Clone, Default)]
struct HostTotals {
    last_s: u64,
    adding: Adding,
    /// In the last window.
    cpus: u32,
    vcpus: u64,
    vms: usize,
    end_unix_s: u64,
    windows: u64,
    late: u64,
    window_ns: Sum,
    cpu_ns: Sum,
    demand_ns: Sum,
    samples: Sum,
    missing: Sum,
}

/// Totals of a VM.
#[derive(Debug, Clone, Default)]
struct VmTotals {
    last_s: u64,
    adding: Adding,
    /// In the last window.
    vcpus: u32,
    states: BTreeMap<VcpuTimeState, Sum>,
    /// How many, and how long they took.
    exits: BTreeMap<String, (Sum, Sum)>,
    labels: Vec<(&'static str, String)>,
}

/// Totals of all hosts and VMs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    hosts: BTreeMap<String, HostTotals>,
    vms: BTreeMap<(String, String), VmTotals>,
    left_out: u64,
    /// Open findings by kind; whether they are silenced.
    pub(crate) open: BTreeMap<(&'static str, bool), u64>,
    /// Hosts that are silent: since when, s since 1970, and whether that is silenced.
    silent: BTreeMap<String, (u32, bool)>,
}

impl Totals {
    /// Adds a window. `most_vms` have series of their own.
    pub(crate) fn take(&mut self, window: &Summary, now_s: u64, most_vms: usize) {
        self.hosts.retain(|_, host| now_s < host.last_s + FORGET_S);
        self.vms.retain(|_, vm| now_s < vm.last_s + FORGET_S);
        let is_known =
            |hosts: &BTreeMap<_, _>, name| hosts.contains_key(name) || hosts.len() < MAX_HOSTS;
        let mut host = short(&window.host, MAX_LABEL);
        if !is_known(&self.hosts, &host) {
            host = OTHER.to_owned();
        }
        let totals = self.hosts.entry(host.clone()).or_default();
        totals.last_s = now_s;
        totals.see(window);
        if is_late(window, now_s) {
            totals.late += 1;
            return;
        }
        totals.add(window, now_s, host == OTHER);
        let length_s = window.length_ns / 1_000_000_000;
        for (name, vm) in &window.vms {
            let mut key = (host.clone(), short(name, MAX_LABEL));
            if !self.vms.contains_key(&key) && most_vms <= self.vms.len() {
                key.1 = OTHER.to_owned();
                self.left_out += 1;
            }
            let is_of_many = key.1 == OTHER;
            self.vms.entry(key).or_default().add(vm, now_s, length_s, is_of_many);
        }
    }

    /// A host is silent.
    pub(crate) fn add_silent(&mut self, host: &str, silent: (u32, bool)) {
        if self.silent.len() < MAX_HOSTS {
            self.silent.insert(short(host, MAX_LABEL), silent);
        }
    }

    /// In Prometheus' text format, as it is at this second.
    pub(crate) fn text(mut self, now_s: u64) -> Result<String, fmt::Error> {
        self.hosts.values_mut().for_each(|host| host.settle(now_s));
        self.vms.values_mut().for_each(|vm| vm.settle(now_s));
        let mut registry = Registry::with_prefix("vmscope");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(plain(&text))
    }
}

impl HostTotals {
    /// What the host is by its last window.
    fn see(&mut self, window: &Summary) {
        let end_s = end_s(window);
        if self.end_unix_s <= end_s {
            self.cpus = window.cpus;
            self.vcpus = window.vms.values().map(|vm| u64::from(vm.vcpus)).sum();
            self.vms = window.vms.len();
            self.end_unix_s = end_s;
        }
    }

    fn add(&mut self, window: &Summary, now_s: u64, is_of_many: bool) {
        let of_vms: u64 = window.vms.values().map(VmSummary::demand_ns).sum();
        let others = window.owners.iter().filter(|(owner, _)| !matches!(owner, Owner::Vm(_)));
        let of_others: u64 = others.map(|(_, used)| used.ns).sum();
        self.settle(now_s);
        self.adding.extend(now_s, window.length_ns / 1_000_000_000, is_of_many);
        self.windows += 1;
        let cpu_ns = window.length_ns.saturating_mul(window.cpus.into());
        for (sum, more) in [
            (&mut self.window_ns, window.length_ns),
            (&mut self.cpu_ns, cpu_ns),
            (&mut self.demand_ns, of_vms.saturating_add(of_others)),
            (&mut self.samples, window.samples),
            (&mut self.missing, window.samples_missing),
        ] {
            sum.add(more);
        }
    }

    fn settle(&mut self, now_s: u64) {
        let part = self.adding.part(now_s);
        let Self { window_ns, cpu_ns, demand_ns, samples, missing, .. } = self;
        [window_ns, cpu_ns, demand_ns, samples, missing].into_iter().for_each(|it| it.settle(part));
    }
}

impl VmTotals {
    fn add(&mut self, vm: &VmSummary, now_s: u64, length_s: u64, is_of_many: bool) {
        self.last_s = now_s;
        self.settle(now_s);
        self.adding.extend(now_s, length_s, is_of_many);
        self.vcpus = vm.vcpus;
        self.labels = vm_labels(&vm.labels);
        for (state, ns) in &vm.states {
            self.states.entry(*state).or_default().add(*ns);
        }
        for (reason, exits) in &vm.exits {
            let mut reason = short(reason, MAX_LABEL);
            if !self.exits.contains_key(&reason) && MAX_REASONS <= self.exits.len() {
                reason = OTHER.to_owned();
            }
            let (count, ns) = self.exits.entry(reason).or_default();
            count.add(exits.count);
            ns.add(exits.ns);
        }
    }

    fn settle(&mut self, now_s: u64) {
        let part = self.adding.part(now_s);
        self.states.values_mut().for_each(|sum| sum.settle(part));
        for (count, ns) in self.exits.values_mut() {
            count.settle(part);
            ns.settle(part);
        }
    }
}

type Labels<'l> = Vec<(&'static str, &'l str)>;

/// A metric of some value for each of these labels.
fn write<'l>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, MetricType),
    values: impl Iterator<Item = (Labels<'l>, f64)>,
) -> fmt::Result {
    let is_counter = matches!(kind, MetricType::Counter);
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let mut series: MetricEncoder<'_> = metric.encode_family(&labels)?;
        if is_counter {
            series.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        } else {
            series.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_vms(&mut encoder)?;
        self.encode_hosts(&mut encoder)?;
        let silent = self.silent.iter().map(|(host, (since_s, silenced))| {
            let silenced = if *silenced { "true" } else { "false" };
            (vec![("host", host.as_str()), ("silenced", silenced)], f64::from(*since_s))
        });
        let help = "Since when no windows of a host have come";
        let name = "host_silent_since_timestamp_seconds";
        write(&mut encoder, (name, help, MetricType::Gauge), silent)?;
        let open = KINDS.iter().flat_map(|kind| [(*kind, false), (*kind, true)]);
        let open = open.map(|(kind, silenced)| {
            let count = self.open.get(&(kind, silenced)).copied().unwrap_or(0);
            let silenced = if silenced { "true" } else { "false" };
            (vec![("kind", kind), ("silenced", silenced)], count as f64)
        });
        write(&mut encoder, ("findings_open", "Findings that are open", MetricType::Gauge), open)?;
        let (name, help) =
            ("metrics_vms_left_out", "VMs of windows that were added to the VM other");
        let left_out = ConstCounter::new(self.left_out);
        let metric = encoder.encode_descriptor(name, help, None, left_out.metric_type())?;
        left_out.encode(metric)
    }
}

impl Totals {
    fn encode_vms(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.vms.iter().flat_map(|((host, name), vm)| {
            VcpuTimeState::ALL.iter().copied().map(move |state| {
                let ns = vm.states.get(&state).map_or(0, |sum| sum.settled);
                let labels = vec![("host", host.as_str()), ("vm", name), ("state", state.name())];
                (labels, seconds(ns))
            })
        });
        let help = "Time of a VM's vCPUs in a state";
        write(encoder, ("vm_vcpu_seconds", help, MetricType::Counter), states)?;
        let exits = || {
            self.vms.iter().flat_map(|((host, name), vm)| {
                vm.exits.iter().map(move |(reason, exits)| {
                    let labels = vec![("host", host.as_str()), ("vm", name), ("reason", reason)];
                    (labels, (exits.0.settled, exits.1.settled))
                })
            })
        };
        let counts = exits().map(|(labels, (count, _))| (labels, count as f64));
        let help = "VM exits, where they are counted";
        write(encoder, ("vm_exits", help, MetricType::Counter), counts)?;
        let times = exits().map(|(labels, (_, ns))| (labels, seconds(ns)));
        let help = "Time that the VMM worked or waited for VM exits";
        write(encoder, ("vm_exit_seconds", help, MetricType::Counter), times)?;
        let vcpus = self.vms.iter().map(|((host, name), vm)| {
            (vec![("host", host.as_str()), ("vm", name)], f64::from(vm.vcpus))
        });
        write(encoder, ("vm_vcpus", "vCPUs of a VM", MetricType::Gauge), vcpus)?;
        let known =
            self.vms.iter().filter(|((_, name), vm)| name != OTHER && !vm.labels.is_empty());
        let info = known.map(|((host, name), vm)| {
            let labels = vm.labels.iter().map(|(name, value)| (*name, value.as_str()));
            (vec![("host", host.as_str()), ("vm", name)].into_iter().chain(labels).collect(), 1.0)
        });
        let help = "What a VM's manager knows of it, 1 for each VM";
        write(encoder, ("vm_info", help, MetricType::Gauge), info)
    }

    fn encode_hosts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&HostTotals) -> f64;
        let metrics: [(&str, &str, MetricType, Value); 12] = [
            ("host_cpus", "CPUs of a host", MetricType::Gauge, |host| host.cpus.into()),
            ("host_vms", "VMs of a host", MetricType::Gauge, |host| host.vms as f64),
            ("host_vcpus", "vCPUs of a host's VMs", MetricType::Gauge, |host| host.vcpus as f64),
            (
                "host_last_window_timestamp_seconds",
                "End of a host's last window",
                MetricType::Gauge,
                |host| host.end_unix_s as f64,
            ),
            ("host_windows", "Windows", MetricType::Counter, |host| host.windows as f64),
            (
                "host_windows_late",
                "Windows that came too late for the other counters",
                MetricType::Counter,
                |host| host.late as f64,
            ),
            ("host_window_seconds", "Length of windows", MetricType::Counter, |host| {
                seconds(host.window_ns.settled)
            }),
            ("host_cpu_seconds", "Time of a host's CPUs", MetricType::Counter, |host| {
                seconds(host.cpu_ns.settled)
            }),
            (
                "host_cpu_demand_seconds",
                "CPU time that VMs and processes of a host had or wanted",
                MetricType::Counter,
                |host| seconds(host.demand_ns.settled),
            ),
            ("host_samples", "Samples", MetricType::Counter, |host| host.samples.settled as f64),
            (
                "host_samples_missing",
                "Samples that were lost, and interrupts that never came",
                MetricType::Counter,
                |host| host.missing.settled as f64,
            ),
            (
                "host_overcommit_ratio",
                "vCPUs of a host's VMs for each of its CPUs",
                MetricType::Gauge,
                |host| host.vcpus as f64 / f64::from(host.cpus.max(1)),
            ),
        ];
        for (name, help, kind, value) in metrics {
            let values =
                self.hosts.iter().map(|(name, host)| (vec![("host", name.as_str())], value(host)));
            write(encoder, (name, help, kind), values)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use detect::{ExitUse, OwnerUse};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn window(host: &str, vms: &[&str]) -> Summary {
        let io = ExitUse { count: 9, ns: S, functions: Vec::new() };
        let vm = VmSummary {
            vcpus: 2,
            states: BTreeMap::from([
                (VcpuTimeState::GuestUser, 4 * S),
                (VcpuTimeState::StealOutside, S / 2),
            ]),
            exits: BTreeMap::from([("io".to_owned(), io)]),
            labels: BTreeMap::from([("project".to_owned(), "shop".to_owned())]),
            ..VmSummary::default()
        };
        let process = OwnerUse { ns: S, functions: Vec::new() };
        Summary {
            host: host.to_owned(),
            start_s: 1000,
            length_ns: 10 * S,
            cpus: 4,
            samples: 90,
            samples_missing: 10,
            vms: vms.iter().map(|name| ((*name).to_owned(), vm.clone())).collect(),
            owners: BTreeMap::from([(Owner::Process("sh".to_owned()), process)]),
            ..Summary::default()
        }
    }

    #[track_caller]
    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|said| said == *line), "{line}: {text}");
        }
    }

    #[test]
    fn windows_are_added_up() {
        let mut totals = Totals::default();
        totals.take(&window("kvm1", &["db", "web"]), 5, 10);
        totals.take(&window("kvm1", &["db"]), 6, 10);
        totals.open.insert(("exits", true), 3);
        totals.silent.insert("kvm9".to_owned(), (1234, false));
        let text = totals.text(30).unwrap();
        has(
            &text,
            &[
                "# TYPE vmscope_vm_vcpu_seconds_total counter",
                "vmscope_vm_vcpu_seconds_total{host=\"kvm1\",vm=\"db\",state=\"guest_user\"} 8.0",
                "vmscope_vm_vcpu_seconds_total{host=\"kvm1\",vm=\"web\",state=\"steal_outside\"} 0.5",
                "vmscope_vm_vcpu_seconds_total{host=\"kvm1\",vm=\"web\",state=\"halt\"} 0.0",
                "vmscope_vm_exits_total{host=\"kvm1\",vm=\"db\",reason=\"io\"} 18.0",
                "vmscope_vm_exit_seconds_total{host=\"kvm1\",vm=\"db\",reason=\"io\"} 2.0",
                "vmscope_vm_vcpus{host=\"kvm1\",vm=\"db\"} 2.0",
                "vmscope_vm_info{host=\"kvm1\",vm=\"db\",project=\"shop\"} 1.0",
                "vmscope_host_overcommit_ratio{host=\"kvm1\"} 0.5",
                "vmscope_host_cpu_seconds_total{host=\"kvm1\"} 80.0",
                "vmscope_host_cpu_demand_seconds_total{host=\"kvm1\"} 15.5",
                "vmscope_host_samples_missing_total{host=\"kvm1\"} 20.0",
                "vmscope_host_last_window_timestamp_seconds{host=\"kvm1\"} 1010.0",
                "vmscope_findings_open{kind=\"exits\",silenced=\"true\"} 3.0",
                "vmscope_findings_open{kind=\"exits\",silenced=\"false\"} 0.0",
                "vmscope_host_silent_since_timestamp_seconds{host=\"kvm9\",silenced=\"false\"} 1234.0",
                "vmscope_metrics_vms_left_out_total 0",
            ],
        );
    }

    /// The steal of a VM as a scrape at each of these seconds has it.
    #[track_caller]
    fn check_steal(totals: &Totals, expected: &[(u64, f64)]) {
        let name = "vmscope_vm_vcpu_seconds_total{host=\"kvm1\",vm=\"db\",state=\"steal_outside\"}";
        for (second, value) in expected {
            let text = totals.clone().text(*second).unwrap();
            has(&text, &[&format!("{name} {value:?}")]);
        }
    }

    fn of(start_s: u32, length_s: u64, steal_s: u64) -> Summary {
        let mut window = window("kvm1", &["db"]);
        (window.start_s, window.length_ns) = (start_s, length_s * S);
        let db = window.vms.get_mut("db").unwrap();
        db.states = BTreeMap::from([(VcpuTimeState::StealOutside, steal_s * S)]);
        window
    }

    /// Any range of ten minutes has ten minutes' worth, wherever it begins.
    #[test]
    fn counters_grow_evenly_whatever_windows_are_long() {
        let mut totals = Totals::default();
        totals.take(&of(1000, 600, 300), 1605, 10);
        check_steal(&totals, &[(1605, 0.0), (1905, 150.0), (2205, 300.0), (3000, 300.0)]);
        totals.take(&of(1600, 600, 60), 2205, 10);
        check_steal(&totals, &[(2205, 300.0), (2505, 330.0), (2805, 360.0)]);
        // A moment early: the rest of the one before is added first.
        totals.take(&of(2200, 600, 600), 2801, 10);
        check_steal(&totals, &[(3405, 960.0)]);
    }

    /// An hour's windows within a minute of an agent that was cut off: rates stay those of one window at a time.
    #[test]
    fn late_windows_are_counted_and_no_more() {
        let mut totals = Totals::default();
        for minute in 0..60 {
            totals.take(&of(1000 + 60 * minute, 60, 6), 4600 + u64::from(minute) / 2, 10);
        }
        let text = totals.clone().text(4629).unwrap();
        // The last ten minutes are not late.
        has(&text, &["vmscope_host_windows_late_total{host=\"kvm1\"} 50.0"]);
        has(&text, &["vmscope_host_windows_total{host=\"kvm1\"} 10.0"]);
        let at = |second| {
            let text = totals.clone().text(second).unwrap();
            let line =
                text.lines().find(|line| line.contains("db\",state=\"steal_outside")).unwrap();
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        // 10 windows of 60 s, as fast as they were.
        assert!((at(4689) - at(4629) - 6.0).abs() < 0.1, "{}", at(4689) - at(4629));
        assert!((at(9999) - 60.0).abs() < 1e-6, "{}", at(9999));
    }

    #[test]
    fn series_are_bounded_and_forgotten() {
        let mut totals = Totals::default();
        for host in 0..MAX_HOSTS + 5 {
            totals.take(&window(&format!("kvm{host}"), &["a", "b"]), 5, 7);
        }
        assert_eq!(totals.hosts.len(), MAX_HOSTS + 1);
        // Each host has an `other`, if it has no VM of its own.
        assert_eq!(totals.vms.len(), 7 + MAX_HOSTS + 1 - 3);
        assert_eq!(totals.left_out, 2 * (MAX_HOSTS as u64 + 5) - 7);
        totals.take(&window("new", &[]), 5 + FORGET_S, 7);
        assert_eq!((totals.hosts.len(), totals.vms.len()), (1, 0));
    }

    #[test]
    fn hostile_names_are_labels_like_others_and_each_once() {
        let evil = "<b>\u{1b}[31m\u{202e}\"\\\n".repeat(100);
        let mut totals = Totals::default();
        // Cut, they are the same.
        totals.take(&window("kvm1", &[&format!("{evil}1"), &format!("{evil}2")]), 5, 10);
        let text = totals.text(30).unwrap();
        let of_vm: Vec<&str> =
            text.lines().filter(|l| l.starts_with("vmscope_vm_vcpus{")).collect();
        assert_eq!(of_vm.len(), 1, "{of_vm:?}");
        assert!(of_vm[0].contains("\\\\u{202e}\\\"\\\\\\\\u{a}"), "{}", of_vm[0]);
        assert!(text.chars().filter(|c| *c != '\n').all(|c| !model::is_unsafe(c)));
    }
}
