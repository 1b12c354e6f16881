//! Every sample is in exactly one row: over random samples, all views, all kinds of rows.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod world;

use std::sync::Arc;

use analysis::results::ResultsBuilder;
use analysis::vcpu_timeline::{Segment, VcpuTimeline, VcpuTimelines};
use analysis::{Aggregator, By, Profile, Query, Resolver, Selection, View};
use model::{
    CpuId, Cr3, GuestVirt, HostMode, HostNs, HostVirt, Pid, RecordConsumer, Sample, StackId, Tid,
    VcpuId, VcpuSample, VcpuState, WindowKey,
};

const VIEWS: [View; 4] = [View::Unified, View::Host, View::Guest, View::Native];
const STATES: [u8; 9] = *b"G.HpPVWT?";
const KINDS: [By; 7] =
    [By::Function, By::Address, By::Process, By::Thread, By::Module, By::Vm, By::Cpu];

/// A linear congruential generator (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }

    fn sample(&mut self) -> Sample {
        let addresses = [
            0x40_0010,
            0x40_0020,
            0x40_1234,
            0x5010,
            0x7f_0010,
            0xffff_ffff_9a00_0010,
            0xffff_ffff_8100_0200,
            0,
            u64::MAX,
        ];
        let vcpu = VcpuSample {
            vcpu: VcpuId(self.below(5) as u32),
            ip: GuestVirt(self.one_of(&addresses)),
            cr3: (self.below(8) > 0)
                .then_some(())
                .map(|()| Cr3::new(self.one_of(&[0xa000, 0xc000, 0x100_0000, 0xe000]))),
            fs_base: GuestVirt(self.one_of(&[0, 0xf0, 0xf2, 0xf3])),
            cpl: self.one_of(&[0, 3, 3, 1]) as u8,
            kernel_stack: None,
            task: None,
            asid: 1,
            exit_reason: 0,
            exit_info: 0,
            waits: None,
            kicked: false,
        };
        Sample {
            time: HostNs(self.below(2 * world::START.0)),
            cpu: CpuId(self.below(3) as u32),
            pid: Pid(self.one_of(&[0, 300, 555, 1000, 2000]) as u32),
            tid: Tid(self.one_of(&[0, 1001, 1002, 2001]) as u32),
            host_ip: HostVirt(self.one_of(&addresses)),
            host_mode: if self.below(2) == 0 { HostMode::Kernel } else { HostMode::User },
            stack: (self.below(2) == 0).then_some(StackId(self.below(2) as u32)),
            vcpu: match self.below(5) {
                0 => VcpuState::None,
                1 => VcpuState::Unknown,
                2 => VcpuState::Vmm(vcpu),
                _ => VcpuState::Guest(vcpu),
            },
        }
    }
}

/// A timeline for each vCPU of the tables, drawn by lot, on a CPU whose occupants are the drawn world's.
fn random_axis(random: &mut Random) -> VcpuTimelines {
    let (mut axis, header) = (world::axis::axis(), world::header());
    for timeline in &mut axis.timelines {
        let mut segments = Vec::new();
        let mut from = header.start;
        while from < header.end {
            let state = world::axis::state(random.one_of(&STATES.map(u64::from)) as u8 as char);
            let to = HostNs(from.0 + 1 + random.below(20 * world::MS)).min(header.end);
            segments.push(Segment { from, to, state, cpu: Some(CpuId(0)), place: None });
            from = to;
        }
        *timeline = VcpuTimeline { from: header.start, to: header.end, segments, ..*timeline };
    }
    axis
}

fn profile(query: Query, samples: &[Sample], axis: &VcpuTimelines) -> Profile {
    let (tables, header) = (world::tables(), world::header());
    let resolver = Resolver::new(&tables);
    let mut aggregator = Aggregator::new(&resolver, &header, query);
    samples.iter().for_each(|sample| aggregator.push(sample));
    aggregator.finish_on(axis)
}

fn assert_adds_up(profile: &Profile, what: &str) {
    let shown: u64 = profile.rows.iter().map(|row| row.samples).sum();
    assert_eq!(shown + profile.other.samples, profile.total, "{what}");
    assert_eq!(profile.shares.sum(), profile.total, "{what}");
    let unnamed: u64 = profile.unresolved.iter().map(|u| u.samples).sum();
    assert!(unnamed <= profile.total, "{what}");
    assert!(profile.rows.is_sorted_by(|a, b| a.samples >= b.samples), "{what}");
}

#[test]
fn rows_add_up_to_the_total() {
    let tables = world::tables();
    for seed in 0..40 {
        let mut random = Random(seed);
        let samples: Vec<Sample> = (0..300).map(|_| random.sample()).collect();
        let guests = samples
            .iter()
            .filter(|s| matches!(s.vcpu, VcpuState::Guest(_) | VcpuState::Unknown))
            .count() as u64;
        let axis = random_axis(&mut random);
        for view in VIEWS {
            for by in KINDS {
                let vm = (view == View::Guest).then_some("vm1");
                let limit = [None, Some(0), Some(1), Some(5)][random.below(4) as usize];
                let selection = Selection::new(&tables, view, vm, None, None).unwrap();
                let profile = profile(Query { selection, by, limit }, &samples, &axis);
                let what = format!("seed {seed} {view:?} {by:?} {limit:?}");
                assert_adds_up(&profile, &what);
                match view {
                    View::Unified | View::Host => assert_eq!(profile.total, 300, "{what}"),
                    View::Native => assert_eq!(profile.total, 300 - guests, "{what}"),
                    View::Guest => assert!(200 <= profile.total, "{what}"),
                }
            }
        }
    }
}

#[test]
fn order_of_samples_does_not_matter() {
    let tables = world::tables();
    let mut random = Random(7);
    let mut samples: Vec<Sample> = (0..500).map(|_| random.sample()).collect();
    for by in KINDS {
        let selection = Selection::all(&tables, View::Unified).unwrap();
        let query = Query { selection, by, limit: Some(4) };
        let forward = profile(query.clone(), &samples, &VcpuTimelines::default());
        samples.reverse();
        assert_eq!(forward, profile(query, &samples, &VcpuTimelines::default()), "{by:?}");
    }
}

#[test]
fn a_vms_parts_add_up_to_the_vm() {
    let tables = world::tables();
    let mut random = Random(3);
    let samples: Vec<Sample> = (0..2000).map(|_| random.sample()).collect();
    let total = |vm, vcpu| {
        let selection = Selection::new(&tables, View::Unified, Some(vm), vcpu, None).unwrap();
        profile(
            Query { selection, by: By::Function, limit: None },
            &samples,
            &VcpuTimelines::default(),
        )
        .total
    };
    let everything = {
        let selection = Selection::all(&tables, View::Unified).unwrap();
        profile(Query { selection, by: By::Vm, limit: None }, &samples, &VcpuTimelines::default())
    };
    let of_vm = |vm: &str| {
        let rows = everything.rows.iter().filter(|row| row.label.vm.as_deref() == Some(vm));
        rows.map(|row| row.samples).sum::<u64>()
    };
    assert_eq!(total("vm1", None), of_vm("vm1"));
    assert_eq!(total("vm2", None), of_vm("vm2"));
    assert!(total("vm1", Some(0)) + total("vm1", Some(1)) < total("vm1", None));
}

#[test]
fn result_tables_add_up_to_the_windows_time() {
    let (tables, header) = (world::tables(), world::header());
    let resolver = Resolver::new(&tables);
    let window = Arc::new(WindowKey { host: "h".into(), boot: "b".into(), window_ns: 1 });
    let length_ns = header.end.since(header.start);
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut samples: Vec<Sample> =
            (0..random.one_of(&[0, 3, 300])).map(|_| random.sample()).collect();
        samples.sort_by_key(|sample| sample.time);
        let results = |slice_ns| {
            let mut builder = ResultsBuilder::new(&resolver, &header);
            samples.iter().for_each(|sample| builder.push_sample(sample));
            builder.finish(&window, slice_ns)
        };
        for slice_ns in [1 + random.below(length_ns), 60_000_000_000] {
            let results = results(slice_ns);
            for cpu in &header.cpus {
                let rows = results.cpu_time.iter().filter(|result| result.row.cpu == *cpu);
                let ns: u64 = rows.clone().map(|result| result.row.ns).sum();
                assert_eq!(ns, length_ns, "seed {seed}, CPU {cpu}");
                let seen: u64 = rows.map(|result| result.row.samples).sum();
                let pushed = samples.iter().filter(|sample| sample.cpu.0 == *cpu).count();
                assert_eq!(seen, pushed as u64, "seed {seed}, CPU {cpu}");
            }
            for vm in &results.vms {
                let of_vm = results.vcpu_time.iter().filter(|result| result.row.vm == vm.row.vm);
                let ns: u64 = of_vm.clone().map(|result| result.row.ns).sum();
                assert_eq!(ns, vm.row.vcpu_ns, "seed {seed}, VM {}", vm.row.vm);
                let lost = [
                    (&["steal_outside"][..], vm.row.steal_outside_ns),
                    (&["steal_vmm", "steal_vmm_waiting"], vm.row.steal_vmm_ns),
                    (&["throttled"], vm.row.throttled_ns),
                ];
                for (states, sum) in lost {
                    let rows = of_vm.clone().map(|result| &result.row);
                    let rows = rows.filter(|row| states.contains(&row.state.as_str()));
                    let ns: u64 = rows.map(|row| row.ns).sum();
                    assert_eq!(Some(ns), sum, "seed {seed}, VM {}, {states:?}", vm.row.vm);
                }
            }
        }
        assert_eq!(results(1 << 30), results(1 << 30), "seed {seed}");
    }
}
