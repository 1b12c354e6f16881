//! What VMs and hosts did, added up over the windows that came, for Prometheus. Counters begin at 0 when the server starts,
//! and again when a host or VM comes back after an hour. So many VMs and hosts have series of their own: the others are one.

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

/// A series is dropped after this long without a window.
const FORGET_S: u64 = 3600;
const MAX_HOSTS: usize = 1000;
/// Exit reasons of a VM.
const MAX_REASONS: usize = 24;
/// Bytes of a label.
const MAX_LABEL: usize = 160;
/// What has no series of its own.
const OTHER: &str = "other";

/// Totals of a host.
#[derive(Debug, Clone, Default)]
struct HostTotals {
    last_s: u64,
    /// In the last window.
    cpus: u32,
    vcpus: u64,
    vms: usize,
    end_unix_s: u64,
    windows: u64,
    window_ns: u64,
    cpu_ns: u64,
    demand_ns: u64,
    samples: u64,
    missing: u64,
}

/// Totals of a VM.
#[derive(Debug, Clone, Default)]
struct VmTotals {
    last_s: u64,
    /// In the last window.
    vcpus: u32,
    states: BTreeMap<VcpuTimeState, u64>,
    /// How many, and how long they took.
    exits: BTreeMap<String, (u64, u64)>,
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
        self.hosts.entry(host.clone()).or_default().add(window, now_s);
        for (name, vm) in &window.vms {
            let mut key = (host.clone(), short(name, MAX_LABEL));
            if !self.vms.contains_key(&key) && most_vms <= self.vms.len() {
                key.1 = OTHER.to_owned();
                self.left_out += 1;
            }
            self.vms.entry(key).or_default().add(vm, now_s);
        }
    }

    /// In Prometheus' text format.
    pub(crate) fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("vmscope");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(plain(&text))
    }
}

impl HostTotals {
    fn add(&mut self, window: &Summary, now_s: u64) {
        let of_vms: u64 = window.vms.values().map(VmSummary::demand_ns).sum();
        let others = window.owners.iter().filter(|(owner, _)| !matches!(owner, Owner::Vm(_)));
        let of_others: u64 = others.map(|(_, used)| used.ns).sum();
        self.last_s = now_s;
        self.cpus = window.cpus;
        self.vcpus = window.vms.values().map(|vm| u64::from(vm.vcpus)).sum();
        self.vms = window.vms.len();
        self.end_unix_s = u64::from(window.start_s) + window.length_ns / 1_000_000_000;
        self.windows += 1;
        let cpu_ns = window.length_ns.saturating_mul(window.cpus.into());
        for (sum, more) in [
            (&mut self.window_ns, window.length_ns),
            (&mut self.cpu_ns, cpu_ns),
            (&mut self.demand_ns, of_vms.saturating_add(of_others)),
            (&mut self.samples, window.samples),
            (&mut self.missing, window.samples_missing),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl VmTotals {
    fn add(&mut self, vm: &VmSummary, now_s: u64) {
        self.last_s = now_s;
        self.vcpus = vm.vcpus;
        self.labels = vm_labels(&vm.labels);
        for (state, ns) in &vm.states {
            let sum = self.states.entry(*state).or_default();
            *sum = sum.saturating_add(*ns);
        }
        for (reason, exits) in &vm.exits {
            let mut reason = short(reason, MAX_LABEL);
            if !self.exits.contains_key(&reason) && MAX_REASONS <= self.exits.len() {
                reason = OTHER.to_owned();
            }
            let (count, ns) = self.exits.entry(reason).or_default();
            *count = count.saturating_add(exits.count);
            *ns = ns.saturating_add(exits.ns);
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
                let ns = vm.states.get(&state).copied().unwrap_or(0);
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
                    (labels, *exits)
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
        let metrics: [(&str, &str, MetricType, Value); 11] = [
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
            ("host_window_seconds", "Length of windows", MetricType::Counter, |host| {
                seconds(host.window_ns)
            }),
            ("host_cpu_seconds", "Time of a host's CPUs", MetricType::Counter, |host| {
                seconds(host.cpu_ns)
            }),
            (
                "host_cpu_demand_seconds",
                "CPU time that VMs and processes of a host had or wanted",
                MetricType::Counter,
                |host| seconds(host.demand_ns),
            ),
            ("host_samples", "Samples", MetricType::Counter, |host| host.samples as f64),
            (
                "host_samples_missing",
                "Samples that were lost, and interrupts that never came",
                MetricType::Counter,
                |host| host.missing as f64,
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
        let text = totals.text().unwrap();
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
                "vmscope_metrics_vms_left_out_total 0",
            ],
        );
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
        let text = totals.text().unwrap();
        let of_vm: Vec<&str> =
            text.lines().filter(|l| l.starts_with("vmscope_vm_vcpus{")).collect();
        assert_eq!(of_vm.len(), 1, "{of_vm:?}");
        assert!(of_vm[0].contains("\\\\u{202e}\\\"\\\\\\\\u{a}"), "{}", of_vm[0]);
        assert!(text.chars().filter(|c| *c != '\n').all(|c| !model::is_unsafe(c)));
    }
}
