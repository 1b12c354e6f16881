//! Which VMs and vCPUs there are: rows stay as they are during a window. Those that ended before it are forgotten if there is
//! another one, and the others move up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use host::vms::{VmNames, VmProcess};
use model::{Guest, HostNs, Pid, Tid, Vcpu, VcpuId, Vm, VmId};
use probes::{FoundVcpu, VCPU_FIELD};
use recording::RECORD_SIZE;

/// The rows of the recording's `vms` and `vcpus` tables so far.
#[derive(Debug, Default)]
pub(crate) struct VmTable {
    pub(crate) vms: Vec<Vm>,
    pub(crate) vcpus: Vec<Vcpu>,
    /// What each VM's process says of it, by row.
    processes: Vec<VmProcess>,
    /// By the VMM's process and the kernel's address of the VM.
    by_kvm: HashMap<(Pid, u64), VmId>,
    /// By thread: the row, and the kernel's address of the vCPU.
    watched: HashMap<Tid, (VcpuId, u64)>,
    /// By VM and number: when a vCPU was first met, which may be before it has a thread; `None`: with its VM.
    first_met: HashMap<(VmId, u32), Option<HostNs>>,
    /// Unplugged vCPUs without a row, by VM and number: the thread that each is still met with.
    unplugged: HashMap<(VmId, u32), Tid>,
    pub(crate) numbers: Numbers,
}

/// By what numbers the kernel's records call vCPUs: these stay when rows move up.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// By number.
    rows: Vec<Option<VcpuId>>,
    /// Some number is not that of its row.
    differ: bool,
}

/// The rows that stayed, by their old places.
#[derive(Debug)]
pub(crate) struct RowRemap {
    vms: Vec<Option<VmId>>,
    vcpus: Vec<Option<VcpuId>>,
    /// Threads of vCPUs without a row: the kernel must not take them for those that have their numbers next.
    pub(crate) unwatched: Vec<Tid>,
}

/// What is new since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) vms: Vec<(VmId, VmProcess)>,
    /// Threads whose samples are from now on those of this vCPU, with the number for the kernel's records.
    pub(crate) watch: Vec<(Tid, FoundVcpu, VcpuId, u32)>,
}

impl VmTable {
    /// Takes what the finder met. `started` is the time for VMs not seen before: `None` while the
    /// recording has not begun. A VM that ended and is there again has another row, of the same name.
    pub(crate) fn update(
        &mut self,
        mut found: Vec<FoundVcpu>,
        started: Option<HostNs>,
        describe: impl Fn(Pid) -> VmProcess,
        names: &VmNames,
    ) -> Changes {
        let mut changes = Changes::default();
        let is_new = |vcpu: &&FoundVcpu| !self.by_kvm.contains_key(&(vcpu.pid, vcpu.kvm));
        let new: BTreeSet<Pid> = found.iter().filter(is_new).map(|vcpu| vcpu.pid).collect();
        let new: HashMap<Pid, VmProcess> =
            new.into_iter().map(|pid| (pid, describe(pid))).collect();
        let named = self.named(&new, names);
        // The oldest is first, whichever process id it has.
        found.sort_by_key(|vcpu| new.get(&vcpu.pid).map_or(0, |process| process.began_ticks));
        for vcpu in found {
            let vm = match self.by_kvm.get(&(vcpu.pid, vcpu.kvm)) {
                Some(vm) => *vm,
                // Its vCPUs are met with it.
                None => {
                    let process = new.get(&vcpu.pid).cloned().unwrap_or_default();
                    let name = named.get(&vcpu.pid).unwrap_or(&process.name);
                    let vm = self.add_vm(&vcpu, name, process.clone(), started);
                    changes.vms.push((vm, process));
                    vm
                }
            };
            let is_new = changes.vms.iter().any(|(new, _)| *new == vm);
            let met = self.first_met.entry((vm, vcpu.number));
            met.or_insert(started.filter(|_| !is_new));
            // A vCPU that has not run yet has no thread; its first sample will make us look again.
            let Some(tid) = vcpu.tid else { continue };
            let Some(row) = self.row(vm, vcpu.number, tid, started) else { continue };
            let watch = (row, vcpu.vcpu);
            if self.watched.insert(tid, watch) != Some(watch) {
                let number = self.numbers.number_of(row);
                changes.watch.push((tid, vcpu, row, number));
            }
        }
        changes
    }

    /// The names of processes that run new VMs. No other VM of this table has them, but for what each was before.
    fn named(&self, new: &HashMap<Pid, VmProcess>, names: &VmNames) -> HashMap<Pid, String> {
        if new.is_empty() {
            return HashMap::new();
        }
        let again: BTreeSet<String> = new.values().map(VmProcess::identity).collect();
        let mut before = BTreeMap::new();
        for (vm, process) in self.vms.iter().zip(&self.processes) {
            let is_there = vm.ended.is_none() || !again.contains(&process.identity());
            if is_there && !new.contains_key(&vm.pid) {
                before.entry(vm.pid).or_insert((process, vm.name.clone()));
            }
        }
        let known = before.iter().map(|(pid, (_, name))| (pid.0, name.clone())).collect();
        let vms: Vec<&VmProcess> =
            before.values().map(|(process, _)| *process).chain(new.values()).collect();
        let all = names.of(&vms, &known);
        vms.iter().zip(all).map(|(vm, name)| (Pid(vm.pid), name)).collect()
    }

    /// What tells each VM from others for good, by row.
    pub(crate) fn identities(&self) -> Vec<String> {
        self.processes.iter().map(VmProcess::identity).collect()
    }

    /// The row of a vCPU that the finder met again.
    pub(crate) fn row_of(&self, found: &FoundVcpu) -> Option<VcpuId> {
        let vm = *self.by_kvm.get(&(found.pid, found.kvm))?;
        let is_it =
            |vcpu: &Vcpu| vcpu.vm == vm && vcpu.number == found.number && vcpu.ended.is_none();
        self.vcpus.iter().rposition(is_it).map(VcpuId::from_index)
    }

    /// The VMs that run, with their processes and their vCPUs, by thread.
    pub(crate) fn running(&self) -> impl Iterator<Item = (VmId, u32, BTreeMap<u32, VcpuId>)> + '_ {
        let running = self.vms.iter().enumerate().filter(|(_, vm)| vm.ended.is_none());
        running.map(|(index, vm)| {
            let id = VmId::from_index(index);
            let rows = self.vcpus.iter().enumerate();
            let there = rows.filter(|(_, vcpu)| vcpu.vm == id && vcpu.ended.is_none());
            let by_tid = there.map(|(row, vcpu)| (vcpu.tid.0, VcpuId::from_index(row)));
            (id, vm.pid.0, by_tid.collect())
        })
    }

    /// Thread `tid` has ended; whether it was a vCPU's, which has ended with it if no other thread runs it.
    pub(crate) fn thread_ended(&mut self, tid: Tid, time: HostNs) -> bool {
        let Some((row, _)) = self.watched.remove(&tid) else { return false };
        // Another thread may run the vCPU by now.
        let vcpu = &mut self.vcpus[row.index()];
        if vcpu.tid == tid {
            vcpu.ended = Some(time);
        }
        true
    }

    /// The samples of thread `tid` are not those of its vCPU from now on.
    pub(crate) fn unwatch(&mut self, tid: Tid) {
        self.watched.remove(&tid);
    }

    /// Process `pid` has ended; the VMs that ended with it.
    pub(crate) fn process_ended(&mut self, pid: Pid, time: HostNs) -> Vec<String> {
        self.by_kvm.retain(|(vmm, _), _| *vmm != pid);
        let of_process = |vm: &&mut Vm| vm.pid == pid && vm.ended.is_none();
        let ended = self.vms.iter_mut().filter(of_process);
        ended
            .map(|vm| {
                vm.ended = Some(time);
                vm.name.clone()
            })
            .collect()
    }

    /// Forgets VMs and vCPUs that ended before `start`, the begin of a window. The others were there before it.
    pub(crate) fn forget_ended(&mut self, start: HostNs) -> RowRemap {
        let stays = |ended: Option<HostNs>| ended.is_none_or(|ended| start < ended);
        let vms = places(self.vms.iter().map(|vm| stays(vm.ended)));
        let vms: Vec<_> = vms.map(|place| place.map(VmId::from_index)).collect();
        let vcpu_stays = |vcpu: &Vcpu| vms[vcpu.vm.index()].is_some() && stays(vcpu.ended);
        let vcpus = places(self.vcpus.iter().map(vcpu_stays));
        let vcpus = vcpus.map(|place| place.map(VcpuId::from_index)).collect();
        let mut moved = RowRemap { vms, vcpus, unwatched: Vec::new() };
        let watched = self.watched.iter();
        let unwatched = watched.filter(|(_, (vcpu, _))| moved.vcpu(*vcpu).is_none());
        moved.unwatched = unwatched.map(|(tid, _)| *tid).collect();
        self.remap(&moved);
        let before = |started: Option<HostNs>| started.filter(|started| start < *started);
        self.vms.iter_mut().for_each(|vm| vm.started = before(vm.started));
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.started = before(vcpu.started));
        self.first_met.values_mut().for_each(|met| *met = before(*met));
        moved
    }

    fn remap(&mut self, moved: &RowRemap) {
        let Self { vms, vcpus, processes, by_kvm, watched, first_met, unplugged, numbers } = self;
        *unplugged = std::mem::take(unplugged)
            .into_iter()
            .filter_map(|((vm, number), tid)| Some(((moved.vm(vm)?, number), tid)))
            .collect();
        for (vcpu, place) in vcpus.iter().zip(&moved.vcpus) {
            if let (None, Some(vm)) = (place, moved.vm(vcpu.vm)) {
                unplugged.insert((vm, vcpu.number), vcpu.tid);
            }
        }
        keep(vms, &moved.vms);
        keep(processes, &moved.vms);
        keep(vcpus, &moved.vcpus);
        // Their VMs stay with them.
        vcpus.iter_mut().for_each(|vcpu| vcpu.vm = moved.vm(vcpu.vm).unwrap_or(vcpu.vm));
        by_kvm.retain(|_, vm| moved.vm(*vm).map(|place| *vm = place).is_some());
        watched.retain(|_, (vcpu, _)| moved.vcpu(*vcpu).map(|place| *vcpu = place).is_some());
        *first_met = std::mem::take(first_met)
            .into_iter()
            .filter_map(|((vm, number), met)| Some(((moved.vm(vm)?, number), met)))
            .collect();
        numbers.remap(moved);
    }

    /// A process may run several VMs, which have one name.
    fn add_vm(
        &mut self,
        vcpu: &FoundVcpu,
        name: &str,
        process: VmProcess,
        started: Option<HostNs>,
    ) -> VmId {
        let id = VmId::from_index(self.vms.len());
        let living = self.vms.iter().filter(|vm| vm.ended.is_none());
        let taken = |name: &str| living.clone().any(|vm| vm.name == name);
        let candidates = (0_u32..).map(|n| match n {
            0 => name.to_owned(),
            1 => format!("{name}-{}", vcpu.pid),
            n => format!("{name}-{}-{n}", vcpu.pid),
        });
        let mut free = candidates.skip_while(|name| taken(name));
        let name = free.next().expect("there are more numbers than VMs");
        self.vms.push(Vm {
            name,
            pid: vcpu.pid,
            started,
            ended: None,
            guest: Guest::Unmapped { reason: "it was not queried".to_owned() },
            labels: process.labels.clone(),
        });
        self.processes.push(process);
        self.by_kvm.insert((vcpu.pid, vcpu.kvm), id);
        id
    }

    /// The row of a vCPU; one that moved to another thread keeps it. An unplugged one keeps its thread's number, and is met
    /// until it is plugged in again, as a new row with a new thread.
    fn row(&mut self, vm: VmId, number: u32, tid: Tid, now: Option<HostNs>) -> Option<VcpuId> {
        let rows = self.vcpus.iter_mut().enumerate();
        let known = rows.rev().find(|(_, v)| v.vm == vm && v.number == number);
        let started = match known {
            Some((index, vcpu)) if vcpu.ended.is_none() => {
                vcpu.tid = tid;
                return Some(VcpuId::from_index(index));
            }
            Some((_, vcpu)) if vcpu.tid == tid => return None,
            Some(_) => now,
            None => match self.unplugged.get(&(vm, number)) {
                Some(then) if *then == tid => return None,
                Some(_) => {
                    self.unplugged.remove(&(vm, number));
                    now
                }
                None => self.first_met.get(&(vm, number)).copied().flatten(),
            },
        };
        self.vcpus.push(Vcpu { vm, number, tid, started, ended: None });
        let row = VcpuId::from_index(self.vcpus.len() - 1);
        self.numbers.add(row);
        Some(row)
    }
}

impl RowRemap {
    /// Where a VM's row is now; `None`: it was forgotten.
    pub(crate) fn vm(&self, vm: VmId) -> Option<VmId> {
        self.vms.get(vm.index()).copied().flatten()
    }

    /// The same of a vCPU.
    pub(crate) fn vcpu(&self, vcpu: VcpuId) -> Option<VcpuId> {
        self.vcpus.get(vcpu.index()).copied().flatten()
    }
}

impl Numbers {
    /// How many numbers were ever used at a time.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The row of a number.
    pub(crate) fn row(&self, number: VcpuId) -> Option<VcpuId> {
        self.rows.get(number.index()).copied().flatten()
    }

    /// Replaces numbers by rows, unless they are equal. An unused number becomes one of no row.
    pub(crate) fn to_rows<'a>(&self, records: &'a [u8], room: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.differ {
            return records;
        }
        room.clear();
        room.extend_from_slice(records);
        for record in room.chunks_exact_mut(RECORD_SIZE) {
            let field = &mut record[VCPU_FIELD];
            let number = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
            if number < probes::VCPU_UNKNOWN {
                let row = self.row(VcpuId(number)).map_or(probes::VCPU_UNKNOWN - 1, |row| row.0);
                field.copy_from_slice(&row.to_le_bytes());
            }
        }
        room
    }

    fn number_of(&self, row: VcpuId) -> u32 {
        let number = self.rows.iter().position(|of| *of == Some(row));
        VcpuId::from_index(number.expect("every row was given a number")).0
    }

    fn add(&mut self, row: VcpuId) {
        let free = self.rows.iter().position(Option::is_none);
        let number = free.unwrap_or(self.rows.len());
        match free {
            Some(number) => self.rows[number] = Some(row),
            None => self.rows.push(Some(row)),
        }
        self.differ |= number != row.index();
    }

    fn remap(&mut self, moved: &RowRemap) {
        for row in &mut self.rows {
            *row = row.and_then(|row| moved.vcpu(row));
        }
        let used = self.rows.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.rows.truncate(used);
        let differs =
            |(number, row): (usize, &Option<VcpuId>)| *row != Some(VcpuId::from_index(number));
        self.differ = self.rows.iter().enumerate().any(differs);
    }
}

/// The new rows of the VMs and vCPUs that stay.
fn places(stays: impl Iterator<Item = bool>) -> impl Iterator<Item = Option<usize>> {
    let mut next = 0..;
    stays.map(move |stays| if stays { next.next() } else { None })
}

/// Leaves out the rows without a place.
fn keep<T, I>(rows: &mut Vec<T>, places: &[Option<I>]) {
    let mut places = places.iter();
    rows.retain(|_| places.next().is_some_and(Option::is_some));
}

#[cfg(test)]
mod test {
    use model::CpuId;
    use probes::VcpuSnapshot;

    use super::*;

    fn found(kvm: u64, pid: u32, tid: u32, number: u32) -> FoundVcpu {
        let tid = (tid != 0).then_some(Tid(tid));
        FoundVcpu {
            pid: Pid(pid),
            tid,
            number,
            protected: false,
            kvm,
            vcpu: kvm + u64::from(number),
            vmcb: 0,
            seen: VcpuSnapshot {
                time: HostNs(0),
                cpu: CpuId(0),
                off_cpu: None,
                exit_reason: 0,
                waits: None,
            },
        }
    }

    /// Of a folder that is not there: nothing is remembered.
    fn names() -> VmNames {
        VmNames::in_folder(std::path::Path::new("/proc/none"))
    }

    impl VmTable {
        /// A VM of this process with one vCPU on this thread.
        pub(crate) fn with_one_vcpu(pid: u32, tid: u32) -> Self {
            let mut table = Self::default();
            update(&mut table, &[found(0x10, pid, tid, 0)]);
            table
        }
    }

    fn update(table: &mut VmTable, vcpus: &[FoundVcpu]) -> (Vec<u32>, Vec<(u32, u32)>) {
        update_at(table, None, vcpus)
    }

    fn update_at(
        table: &mut VmTable,
        now: Option<u64>,
        vcpus: &[FoundVcpu],
    ) -> (Vec<u32>, Vec<(u32, u32)>) {
        let describe = |pid: Pid| VmProcess {
            pid: pid.0,
            name: if pid.0 < 100 { "web".into() } else { "db".into() },
            ..VmProcess::default()
        };
        let changes = table.update(vcpus.to_vec(), now.map(HostNs), describe, &names());
        (
            changes.vms.iter().map(|(vm, _)| vm.0).collect(),
            changes.watch.iter().map(|(tid, _, row, _)| (tid.0, row.0)).collect(),
        )
    }

    #[test]
    fn the_oldest_of_several_vms_has_their_name() {
        let mut table = VmTable::default();
        // Process ids begin anew some time: that of the younger VM is the smaller one.
        let two = vec![found(0x20, 60, 61, 0), found(0x10, 70, 71, 0)];
        let describe = |pid: Pid| VmProcess {
            pid: pid.0,
            name: "web".into(),
            began_ticks: if pid == Pid(60) { 9 } else { 5 },
            ..VmProcess::default()
        };
        table.update(two, None, describe, &names());
        let vms: Vec<_> = table.vms.iter().map(|vm| (vm.pid.0, vm.name.as_str())).collect();
        assert_eq!(vms, [(70, "web"), (60, "web-user0")]);
    }

    /// A VM that is destroyed and started within a window of an agent; another one of its name is there since.
    #[test]
    fn a_vm_that_starts_again_has_its_name() {
        let mut table = VmTable::default();
        let folder = tempfile::tempdir().unwrap();
        let names = VmNames::in_folder(folder.path());
        let describe = |pid: Pid| VmProcess {
            pid: pid.0,
            name: "web".into(),
            // Processes 50 to 59 run the same VM, one after the other.
            uuid: Some(format!("{}aaaaaaa-1", pid.0 / 10)),
            ..VmProcess::default()
        };
        let mut begin = |pid: u32, time: u64| {
            let vcpu = found(u64::from(pid), pid, pid + 100, 0);
            table.update(vec![vcpu], Some(HostNs(time)), describe, &names);
            let name = table.vms.last().unwrap().name.clone();
            table.process_ended(Pid(pid), HostNs(time + 1));
            name
        };
        assert_eq!([begin(50, 1), begin(51, 5), begin(52, 9)], ["web", "web", "web"]);
        assert_eq!(begin(60, 20), "web-6aaaaaaa", "another VM's name while its rows are there");
        assert_eq!(begin(53, 30), "web");
        table.forget_ended(HostNs(100));
        assert_eq!(table.vms, []);
        let mut begin = |pid: u32| {
            table.update(vec![found(1, pid, pid + 100, 0)], None, describe, &names);
            table.vms.last().unwrap().name.clone()
        };
        assert_eq!([begin(61), begin(54)], ["web-6aaaaaaa", "web"]);
    }

    #[test]
    fn rows_are_given_once() {
        let mut table = VmTable::default();
        let two = [found(0x10, 50, 51, 0), found(0x10, 50, 0, 1)];
        assert_eq!(update(&mut table, &two), (vec![0], vec![(51, 0)]));
        assert_eq!(update(&mut table, &two), (vec![], vec![]));
        assert_eq!(two.map(|vcpu| table.row_of(&vcpu)), [Some(VcpuId(0)), None]);
        // The second vCPU has run by now, and another VM of the same name is there.
        let more = [found(0x10, 50, 51, 0), found(0x10, 50, 52, 1), found(0x20, 60, 61, 0)];
        assert_eq!(update(&mut table, &more), (vec![1], vec![(52, 1), (61, 2)]));
        let names: Vec<_> = table.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["web", "web-user0"]);
    }

    #[test]
    fn a_thread_that_runs_another_vcpu_is_watched_anew() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0)]);
        // The process made its VM anew: same thread, same number, another vCPU in the kernel.
        let again = FoundVcpu { vcpu: 0x99, ..found(0x10, 50, 51, 0) };
        assert_eq!(update(&mut table, &[again]), (vec![], vec![(51, 0)]));
        let three = [found(0x20, 50, 61, 0), found(0x30, 50, 71, 0)];
        update(&mut table, &three);
        let names: Vec<_> = table.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["web", "web-50", "web-50-2"]);
    }

    #[test]
    fn a_vm_that_ended_is_closed_and_its_address_is_free() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0), found(0x20, 110, 111, 0)]);
        assert!(table.thread_ended(Tid(51), HostNs(8)));
        assert!(!table.thread_ended(Tid(51), HostNs(8)));
        assert_eq!(table.process_ended(Pid(50), HostNs(9)), ["web"]);
        assert_eq!(table.process_ended(Pid(50), HostNs(10)), Vec::<String>::new());
        assert_eq!(table.vms[0].ended, Some(HostNs(9)));
        // A new VM gets the old one's kernel address and thread id: new rows all the same.
        assert_eq!(update(&mut table, &[found(0x10, 120, 51, 0)]), (vec![2], vec![(51, 2)]));
    }

    #[test]
    fn a_vcpu_that_is_plugged_in_has_its_own_time() {
        let mut table = VmTable::default();
        // The second one exists from the VM's begin, and runs later.
        update(&mut table, &[found(0x10, 50, 51, 0), found(0x10, 50, 0, 1)]);
        let all =
            |third| [found(0x10, 50, 51, 0), found(0x10, 50, 52, 1), found(0x10, 50, third, 2)];
        assert_eq!(update_at(&mut table, Some(20), &all(0)), (vec![], vec![(52, 1)]));
        assert_eq!(update_at(&mut table, Some(30), &all(53)), (vec![], vec![(53, 2)]));
        // Unplugged: it is met as it was. Plugged in again: with a thread of its own.
        assert!(table.thread_ended(Tid(53), HostNs(40)));
        assert_eq!(update_at(&mut table, Some(50), &all(53)), (vec![], vec![]));
        assert_eq!(table.row_of(&all(53)[2]), None);
        assert_eq!(update_at(&mut table, Some(60), &all(54)), (vec![], vec![(54, 3)]));
        assert_eq!(table.row_of(&all(54)[2]), Some(VcpuId(3)));
        let times: Vec<_> = table
            .vcpus
            .iter()
            .map(|vcpu| (vcpu.started.map(|time| time.0), vcpu.ended.map(|time| time.0)))
            .collect();
        assert_eq!(times, [(None, None), (None, None), (Some(20), Some(40)), (Some(60), None)]);
        // All of a VM that starts in mid-recording are as old as it.
        update_at(&mut table, Some(70), &[found(0x20, 60, 61, 0)]);
        assert_eq!(table.vcpus[4].started, None);
    }

    #[test]
    fn a_vcpu_outlives_a_thread_that_ran_it_before() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0)]);
        assert_eq!(update(&mut table, &[found(0x10, 50, 52, 0)]), (vec![], vec![(52, 0)]));
        assert!(table.thread_ended(Tid(51), HostNs(8)), "the kernel has to forget it");
        assert_eq!(table.vcpus[0].ended, None);
        assert!(table.thread_ended(Tid(52), HostNs(9)));
        assert_eq!(table.vcpus[0].ended, Some(HostNs(9)));
    }

    /// The main thread of a VMM may end before the threads of its vCPUs, or while they run on.
    #[test]
    fn threads_of_a_vm_that_ended_are_not_watched_for_the_next_one() {
        let mut table = VmTable::default();
        update(&mut table, &[found(0x10, 50, 51, 0), found(0x20, 110, 111, 0)]);
        table.process_ended(Pid(50), HostNs(8));
        assert_eq!(table.forget_ended(HostNs(7)).unwatched, []);
        assert_eq!(table.forget_ended(HostNs(10)).unwatched, [Tid(51)]);
        assert_eq!(table.forget_ended(HostNs(11)).unwatched, []);
    }

    #[test]
    fn those_that_ended_before_a_window_are_forgotten() {
        let mut table = VmTable::default();
        let db = [found(0x20, 110, 111, 0), found(0x20, 110, 112, 1)];
        update(&mut table, &[&[found(0x10, 50, 51, 0)], &db[..]].concat());
        table.thread_ended(Tid(51), HostNs(8));
        table.process_ended(Pid(50), HostNs(8));
        assert!(table.thread_ended(Tid(112), HostNs(9)));
        // It ended within the window: it is one of its VMs.
        assert_eq!(table.forget_ended(HostNs(7)).vm(VmId(1)), Some(VmId(1)));
        let moved = table.forget_ended(HostNs(10));
        assert_eq!([0, 1].map(|vm| moved.vm(VmId(vm))), [None, Some(VmId(0))]);
        assert_eq!([0, 1, 2].map(|vcpu| moved.vcpu(VcpuId(vcpu))), [None, Some(VcpuId(0)), None]);
        let names: Vec<_> = table.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!((names, table.vcpus.len()), (vec!["db"], 1));
        assert_eq!((table.vcpus[0].vm, table.row_of(&db[0])), (VmId(0), Some(VcpuId(0))));
        // The kernel goes on to call it 1; its records say 0 now.
        let record = |number: u32| {
            let mut record = [0; RECORD_SIZE];
            record[VCPU_FIELD].copy_from_slice(&number.to_le_bytes());
            record
        };
        let rows = |table: &VmTable, number| {
            let mut room = Vec::new();
            let records = table.numbers.to_rows(&record(number), &mut room).to_vec();
            u32::from_le_bytes(records[VCPU_FIELD].try_into().unwrap())
        };
        assert_eq!(
            [1, probes::VCPU_NONE, probes::VCPU_UNKNOWN].map(|number| rows(&table, number)),
            [0, probes::VCPU_NONE, probes::VCPU_UNKNOWN]
        );
        // The second one is unplugged, and still met with its old thread. The next VM has the free number and the name.
        assert_eq!(update_at(&mut table, Some(12), &db), (vec![], vec![]));
        let web = found(0x10, 50, 61, 0);
        assert_eq!(update_at(&mut table, Some(12), &[web]), (vec![1], vec![(61, 1)]));
        assert_eq!((rows(&table, 0), table.vms[1].name.as_str()), (1, "web"));
        assert_eq!(table.vms[1].started, Some(HostNs(12)));
        // Plugged in again.
        let again = found(0x20, 110, 113, 1);
        assert_eq!(update_at(&mut table, Some(15), &[again]), (vec![], vec![(113, 2)]));
        assert_eq!(table.vcpus[2].started, Some(HostNs(15)));
        table.forget_ended(HostNs(20));
        assert_eq!((table.vms[1].started, table.vcpus[2].started), (None, None));
    }
}
