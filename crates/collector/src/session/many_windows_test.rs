//! Sessions that go on, window after window.

use model::{Cr3, GuestVirt, VcpuSample};

use super::*;
use crate::{Naming, Recorder};

/// Makes recordings, window after window.
impl Host {
    fn recorder(self, folder: &std::path::Path) -> (tempfile::TempDir, DrawnKernel, Recorder) {
        let first = folder.join("0");
        let recorder =
            Recorder::from_session(self.session, &first, &|| false, &mut |_| ()).unwrap();
        (self._root, self.kernel, recorder)
    }
}

#[test]
fn recordings_follow_one_another_without_a_lost_sample() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = DrawnKernel::new();
    kernel.vcpu(0);
    let (root, kernel, mut recorder) = Host::new(kernel).recorder(folder.path());
    let roots = Roots { proc: root.path().join("proc"), ..Roots::default() };
    std::fs::write(roots.proc.join("kallsyms"), "").unwrap();
    std::fs::write(roots.proc.join("modules"), "").unwrap();
    let mut naming = Naming::new(roots.proc.clone(), Vec::new(), folder.path().join("symbols"));
    recorder.attach().unwrap();
    let began = recorder.header().start;
    let mut unfinished = Vec::new();
    for n in 1..=3 {
        (0..100).for_each(|_| kernel.tick());
        recorder.poll().unwrap();
        if n == 2 {
            recorder.set_period(2 * PERIOD_NS).unwrap();
        }
        recorder.cut(&folder.path().join(n.to_string())).unwrap();
        assert!(recorder.take_settled().is_none(), "events of its processes may still come in");
        (0..60).for_each(|_| kernel.tick());
        recorder.poll().unwrap();
        let window = recorder.take_settled().unwrap();
        let left = folder.path().join((n - 1).to_string());
        let left = recording::Recording::open(&left).unwrap();
        assert_eq!(left.header.end, window.header().end, "also if it is never finished");
        unfinished.push(window);
        assert!(recorder.take_settled().is_none());
    }
    unfinished.extend(recorder.end().unwrap());
    assert_eq!(unfinished.len(), 4);
    let (mut all, mut edge) = (Vec::new(), began);
    for window in unfinished {
        assert_eq!(window.header().start, edge, "not a nanosecond is uncovered");
        edge = window.header().end;
        let collected = window.finish(&mut naming, &mut |_| ()).unwrap();
        let recording = recording::Recording::open(&collected.summary.path).unwrap();
        assert_eq!(recording.header.hostname, "kvm1");
        assert_eq!((recording.tables.vms.len(), recording.tables.vcpus.len()), (1, 1));
        let reason = "no vsock device";
        assert!(recording.header.notes.iter().any(|note| note.text.contains(reason)));
        recording
            .for_each_batch(&mut |samples| {
                let of_first = samples.iter().filter(|sample| sample.cpu == CpuId(0));
                all.extend(of_first.map(|sample| sample.time.0));
            })
            .unwrap();
    }
    let each_ms = (1..).map(|n| began.0 + n * PERIOD_NS);
    let expected: Vec<u64> = each_ms.take_while(|time| *time <= edge.0).collect();
    assert_eq!(all, expected, "every sample once, in order");
}

#[test]
fn a_window_that_cannot_be_written_is_lost_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (_root, kernel, mut recorder) = Host::new(DrawnKernel::new()).recorder(folder.path());
    recorder.attach().unwrap();
    kernel.tick();
    recorder.lose_window().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    recorder.poll().unwrap();
    // There is no folder for the next one either.
    assert!(recorder.cut(&folder.path().join("none/1")).is_err());
    recorder.poll().unwrap();
    assert!(recorder.take_settled().is_none());
    recorder.cut(&folder.path().join("2")).unwrap();
    let edge = recorder.header().start;
    kernel.tick();
    let last = recorder.end().unwrap();
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].header().start, edge);
}

/// Longer than a look that found nothing new waits for the next one.
const LOOK_AGAIN_NS: u64 = 3_000_000_000;

#[test]
fn a_session_of_many_windows_remembers_one() {
    let mut host = Host::sampling(DrawnKernel::new());
    host.kernel.vcpu(0);
    for round in 0..200 {
        let (pid, tid) = (Pid(1000 + round), Tid(2000 + round));
        // Another VM has taken the place of the one before.
        host.kernel.with(|drawn| {
            drawn.now += LOOK_AGAIN_NS;
            drawn.vcpus.truncate(1);
            let other = FoundVcpu { pid, tid: Some(tid), ..drawn.vcpus[0].clone() };
            drawn.vcpus.push(other);
        });
        host.kernel.unknown();
        host.poll();
        host.kernel.with(|drawn| {
            let number = drawn.watched[&tid];
            let sample = vmm_sample(HostNs(drawn.now), pid, tid, VcpuId(number));
            drawn.rings.entry(0).or_default().extend(recording::encode(&sample));
        });
        let mut sink = host.sink();
        let end = host.session.next_window(&mut sink).0.unwrap();
        let mut of_other = sink.samples.iter().filter(|sample| sample.pid == pid);
        let VcpuState::Vmm(vcpu) = &of_other.next().unwrap().vcpu else { panic!() };
        let vm = end.vcpus[vcpu.vcpu.index()].vm;
        assert_eq!(end.vms[vm.index()].pid, pid, "round {round}");
        assert!(end.vms.len() <= 3 && end.vcpus.len() <= 3, "round {round}: {:?}", end.vms);
        assert!(host.session.vms.numbers.len() <= 3 && host.session.reachable.len() <= 2);
    }
}

/// A vCPU's thread in its VMM.
fn vmm_sample(time: HostNs, pid: Pid, tid: Tid, vcpu: VcpuId) -> Sample {
    let vcpu = VcpuSample {
        vcpu,
        ip: GuestVirt(0x1000),
        cr3: Some(Cr3::new(0x2000)),
        fs_base: GuestVirt(0),
        cpl: 3,
        kernel_stack: None,
        task: None,
        asid: 1,
        exit_reason: 0x78,
        exit_info: 0,
        waits: None,
        kicked: false,
    };
    Sample {
        time,
        cpu: CpuId(0),
        pid,
        tid,
        host_ip: model::HostVirt(0),
        host_mode: model::HostMode::Kernel,
        stack: None,
        vcpu: VcpuState::Vmm(vcpu),
    }
}
