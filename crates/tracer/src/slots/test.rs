use model::{
    BlockOp, BlockRequest, Interrupt, LockKind, Pid, PrevState, SLOT_KIND_SHIFT, TaskName, Tid,
    TraceStack, Vector,
};

use super::*;

const LAP: u64 = 1 << 56;

fn slot(kind: u8, low: u64, payload: u64) -> Slot {
    Slot { tag: LAP | u64::from(kind) << SLOT_KIND_SHIFT | low, payload }
}

fn more(data: u64, payload: u64) -> Slot {
    slot(SLOT_MORE, data, payload)
}

fn halves(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn read(record: &[Slot]) -> Result<TraceEvent, DecodeError> {
    decode(record, RingId { machine: MachineId(2), cpu: 3 }, HostNs(99))
}

#[test]
fn records_become_events() {
    let check = |record: &[Slot], what: TraceEventKind| {
        let event = TraceEvent { time: HostNs(99), machine: MachineId(2), cpu: 3, kind: what };
        assert_eq!(read(record), Ok(event));
        assert_eq!(record_slots(record[0].kind()), Some(record.len()));
    };
    let (five, six) = (Tid(5), Tid(6));
    let switch = |prev_state, stack| TraceEventKind::Switch {
        prev: five,
        prev_state,
        stack,
        user_stack: None,
        next: six,
    };
    let pair = halves(5, 6);
    check(&[slot(1, 0, pair)], switch(PrevState::Runnable, None));
    check(&[slot(2, 0, pair), more(0, 7)], switch(PrevState::Sleep, Some(TraceStack(7))));
    check(&[slot(2, 0, pair), more(0, 0xffff_fff2)], switch(PrevState::Sleep, None));
    let disk = |io| PrevState::Uninterruptible { io };
    check(&[slot(3, 0, pair), more(1, 0)], switch(disk(true), Some(TraceStack(0))));
    check(&[slot(3, 0, pair), more(0, 0)], switch(disk(false), Some(TraceStack(0))));
    let both = halves(1, 7);
    let switch_of_both = TraceEventKind::Switch {
        prev: five,
        prev_state: PrevState::Sleep,
        stack: Some(TraceStack(7)),
        user_stack: TraceStack::of_user(0),
        next: six,
    };
    check(&[slot(2, 0, pair), more(0, both)], switch_of_both);
    check(&[slot(4, 0, pair)], switch(PrevState::Stopped, None));
    check(&[slot(5, 0, pair)], switch(PrevState::Dead, None));
    check(&[slot(6, 0, pair)], TraceEventKind::Waking { task: six, by: five });
    check(&[slot(7, 0, pair)], TraceEventKind::Wakeup { task: six, target_cpu: 5 });
    let fork = |kernel| TraceEventKind::Fork { parent: five, child: six, pid: Pid(4), kernel };
    check(&[slot(8, 0, pair), more(0, 4)], fork(false));
    check(&[slot(8, 0, pair), more(1, 4)], fork(true));
    let name = |text: &str| {
        let mut bytes = [0; 16];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let (low, high) = bytes.split_at(8);
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().unwrap());
        more(word(low) & ((1 << SLOT_KIND_SHIFT) - 1), word(low) >> 48 | word(high) << 16)
    };
    let exec = |text: &[u8]| TraceEventKind::Exec { task: six, name: TaskName::new(text) };
    check(&[slot(9, 0, 6), name("cc1")], exec(b"cc1"));
    check(&[slot(9, 0, 6), name("sevenbytes")], exec(b"sevenbytes"));
    check(&[slot(9, 0, 6), name("fifteen-letters")], exec(b"fifteen-letter"));
    let rename = TraceEventKind::Rename { task: six, name: TaskName::new(b"kworker/u8:1") };
    check(&[slot(10, 0, 6), name("kworker/u8:1")], rename);
    check(&[slot(11, 0, 6)], TraceEventKind::Exit { task: six });
    check(&[slot(12, 0, halves(39, 6))], TraceEventKind::SyscallEnter { task: six, number: 39 });
    let end = |number, failed| TraceEventKind::SyscallExit { task: six, number, failed };
    check(&[slot(13, 0, halves(39, 6))], end(39, false));
    check(&[slot(13, 0, halves(39 | 1 << 31, 6))], end(39, true));
    check(&[slot(14, 0, 24)], TraceEventKind::InterruptEnter(Interrupt::Device(24)));
    check(&[slot(15, 0, 24)], TraceEventKind::InterruptExit(Interrupt::Device(24)));
    check(&[slot(16, 0, 1)], TraceEventKind::InterruptEnter(Interrupt::Soft(1)));
    check(&[slot(17, 0, 1)], TraceEventKind::InterruptExit(Interrupt::Soft(1)));
    check(&[slot(18, 0, 0)], TraceEventKind::InterruptEnter(Interrupt::Vector(Vector::LocalTimer)));
    check(
        &[slot(18, 0, 2)],
        TraceEventKind::InterruptEnter(Interrupt::Vector(Vector::CallFunction)),
    );
    check(
        &[slot(19, 0, 3)],
        TraceEventKind::InterruptExit(Interrupt::Vector(Vector::CallFunctionSingle)),
    );
    check(&[slot(19, 0, 5)], TraceEventKind::InterruptExit(Interrupt::Vector(Vector::Other)));
    check(&[slot(20, 0, u64::MAX)], TraceEventKind::FaultEnter { address: u64::MAX, user: true });
    check(&[slot(21, 0, 8)], TraceEventKind::FaultEnter { address: 8, user: false });
    check(&[slot(22, 0, 1)], TraceEventKind::FaultExit { major: true });
    check(&[slot(22, 0, 0)], TraceEventKind::FaultExit { major: false });
    let request = |op| BlockRequest {
        request: 0xffff_8000,
        disk: 0x10_0001,
        sector: 77,
        bytes: 4096,
        op,
        task: five,
    };
    let slots =
        |kind, op| [slot(kind, 0, 0xffff_8000), more(77, halves(0x10_0001, 5)), more(op, 4096)];
    check(&slots(23, 1), TraceEventKind::BlockInsert(request(BlockOp::Write)));
    check(&slots(24, 0), TraceEventKind::BlockIssue(request(BlockOp::Read)));
    check(&[slot(25, 0, 9)], TraceEventKind::BlockRequeue { request: 9 });
    check(&[slot(29, 0, 9)], TraceEventKind::BlockMerge { request: 9 });
    check(
        &[slot(26, 0, 9), more(0, 512)],
        TraceEventKind::BlockComplete { request: 9, bytes: 512 },
    );
    let begin =
        |kind, owner, stack| TraceEventKind::LockBegin { task: six, lock: 8, kind, owner, stack };
    let lock =
        |flags, stack, owner| [slot(27, 0, 8), more(flags, halves(stack, owner)), more(0, 6)];
    check(&lock(1 << 5, 3, 5), begin(LockKind::Mutex, Some(five), Some(TraceStack(3))));
    check(&lock(1 << 2, u32::MAX, 0), begin(LockKind::SemWrite, None, None));
    check(&[slot(28, 0, 8), more(0, 6)], TraceEventKind::LockEnd { task: six, lock: 8 });
}

#[test]
fn what_no_probe_writes_is_refused() {
    let check = |record: &[Slot], expected| assert_eq!(read(record), Err(expected));
    check(&[], DecodeError::Cut(0));
    check(&[slot(0, 0, 0)], DecodeError::Kind(0));
    check(&[slot(200, 0, 0)], DecodeError::Kind(200));
    check(&[more(0, 0)], DecodeError::Kind(SLOT_MORE));
    check(&[slot(2, 0, 0)], DecodeError::Cut(2));
    check(&[slot(2, 0, 0), slot(11, 0, 0)], DecodeError::Cut(2));
    check(&[slot(11, 0, 0), more(0, 0)], DecodeError::Cut(11));
    check(&[slot(12, 0, u64::MAX)], DecodeError::Value(12));
    check(&[slot(13, 0, halves(1 << 16, 6))], DecodeError::Value(13));
    check(&[slot(14, 0, 1 << 32)], DecodeError::Value(14));
    check(&[slot(18, 0, 6)], DecodeError::Value(18));
    check(&[slot(8, 0, 0), more(0, 1 << 32)], DecodeError::Value(8));
    check(&[slot(23, 0, 0), more(0, 0), more(5, 0)], DecodeError::Value(23));
    check(&[slot(23, 0, 0), more(0, 0), more(0, 1 << 32)], DecodeError::Value(23));
}

#[test]
fn losses_are_summed_by_name() {
    let check = |lost: &[(usize, u64)], expected: &[(&str, u64)]| {
        let mut counters = [0; KINDS];
        lost.iter().for_each(|&(kind, count)| counters[kind] = count);
        let rows = lost_events(4, &counters);
        assert!(rows.iter().all(|row| row.cpu == 4));
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.kind.map_or("unknown", TraceEventTag::name), row.count))
            .collect();
        assert_eq!(rows, expected);
    };
    check(&[], &[]);
    check(&[(1, 2), (3, 4), (6, 1)], &[("switch", 6), ("waking", 1)]);
    check(&[(20, u64::MAX), (21, 1)], &[("fault_enter", u64::MAX)]);
}
