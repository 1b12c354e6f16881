//! Hostile guests: whatever bytes come, reading and merging them neither fails to end, nor panics, nor
//! touches a row of anybody else. Deterministic: the same bytes every run.

use std::time::{Duration, Instant};

use api::guest::{GuestImage, GuestMap, GuestThread, ModuleSymbols, Response, VERSION};
use guest::{CachedMap, MapSpan, SampleKey, fuzzing};
use model::{Clock, Guest, Owner, Pid, Tables, Vm, VmId};

mod common;

/// Xorshift: Marsaglia, "Xorshift RNGs" (2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        // Bytes that mean something to the encoding are likelier.
        match self.below(4) {
            0 => [0, 1, 2, 0x7f, 0x80, 0xff][self.below(6)],
            _ => self.next().to_le_bytes()[0],
        }
    }
}

fn tables() -> Tables {
    let vm = |name: &str| Vm {
        name: name.into(),
        pid: Pid(1),
        started: None,
        ended: None,
        labels: model::VmLabels::default(),
        guest: Guest::Unmapped { reason: String::new() },
    };
    Tables { vms: vec![vm("other"), vm("hostile")], ..Tables::default() }
}

/// Everything a frame's bytes can reach. Bounded by the frame's length, not by what it says.
fn swallow(bytes: &[u8]) {
    for response in fuzzing::responses(bytes) {
        match response {
            Response::Map(map) => {
                let mut known = CachedMap::default();
                known.add((*map).clone());
                known.add_new_session((*map).clone());
                known.add((*map).clone());
                known.next_module(|_| false);
                assert!(known.into_map().0.map.images.len() <= 2 * bytes.len());
                let mut tables = tables();
                let before = tables.vms.clone();
                let merged = guest::merge(
                    (*map).into(),
                    VmId(1),
                    Clock::default(),
                    MapSpan::default(),
                    SampleKey::Task,
                    &mut tables,
                );
                assert_eq!(tables.vms, before);
                assert!(tables.images.iter().all(|image| image.owner == Owner::Vm(VmId(1))));
                assert!(tables.modules.iter().all(|module| module.owner == Owner::Vm(VmId(1))));
                assert!(tables.images.len() <= bytes.len() + 1);
                assert!(tables.threads.len() + tables.mappings.len() <= bytes.len() + 1);
                assert!(tables.mappings.iter().all(|mapping| mapping.start < mapping.end
                    && mapping.module.index() < tables.modules.len()
                    && mapping.image.index() < tables.images.len()));
                assert!(merged.functions.is_sorted_by_key(|function| function.0));
                assert!(merged.notes.iter().all(|note| !note.text.chars().any(char::is_control)));
            }
            Response::Symbols(answers) => {
                for answer in answers {
                    if let Ok(functions) = guest::functions(answer) {
                        assert!(functions.len() <= bytes.len());
                    }
                }
            }
            other => swallow_trace(other, bytes.len()),
        }
    }
}

/// What a trace's answers can reach once they are checked.
fn swallow_trace(response: Response, length: usize) {
    let is_clean = |text: &str| !text.chars().any(char::is_control);
    match fuzzing::check_trace(response) {
        Some(Response::TraceStarted(started)) => {
            assert!(started.cpus.is_sorted() && started.cpus.last() < Some(&started.rings));
            assert!(started.head_pages.len() + started.slot_pages.len() <= length);
            assert!(started.after.is_sorted_by_key(|task| task.tid));
            assert!(started.after.iter().all(|task| is_clean(&task.name)));
        }
        Some(Response::TraceStopped(stopped)) => {
            let rows = stopped.stacks.iter().flat_map(|stack| &stack.functions);
            assert!(rows.into_iter().all(|row| (*row as usize) < stopped.functions.len()));
            assert!(stopped.functions.iter().all(|name| is_clean(name)));
            assert!(
                guest::printable_output(&stopped)
                    .lines()
                    .all(|line| is_clean(&line.replace('\t', "")))
            );
        }
        _ => {}
    }
}

#[test]
fn mutated_answers_are_harmless() {
    let [started, stopped] = common::trace();
    let valid = [
        Response::Map(Box::new(common::map())),
        Response::Symbols(vec![common::symbols()]),
        started,
        stopped,
    ]
    .map(|response| fuzzing::frame(&response));
    for frame in &valid {
        assert_eq!(fuzzing::responses(frame).len(), 1, "the answers are valid before mutation");
    }
    let random = &mut Random(0x9e37_79b9_7f4a_7c15);
    let began = Instant::now();
    for round in 0..40_000 {
        let mut bytes = valid[round % valid.len()].clone();
        for _ in 0..=random.below(8) {
            mutate(&mut bytes, random);
        }
        swallow(&bytes);
    }
    assert!(began.elapsed() < Duration::from_secs(120), "40,000 small frames must be quick");
}

/// Changes, removes, doubles or cuts; the header's length follows now and then.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.len() < 21 {
        return;
    }
    let content = 20 + random.below(bytes.len() - 20);
    match random.below(5) {
        0 => bytes.truncate(content),
        1 => drop(bytes.remove(content)),
        2 => bytes.insert(content, random.byte()),
        3 => {
            let tail = bytes[content..].to_vec();
            bytes.extend(tail);
        }
        _ => bytes[content] = random.byte(),
    }
    if random.below(8) != 0 {
        let length = u32::try_from(bytes.len() - 20).unwrap_or(0);
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
    }
}

#[test]
fn random_bytes_are_harmless() {
    let random = &mut Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..20_000 {
        let length = random.below(600);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        swallow(&bytes);
        // With a good header, decoding is reached.
        let mut frame = fuzzing::frame(&Response::Symbols(Vec::new()));
        frame.truncate(16);
        frame.extend(u32::try_from(length).unwrap_or(0).to_le_bytes());
        // A map, symbols, or whatever the first byte says.
        if let Some(first) = bytes.first_mut() {
            *first %= 10;
        }
        frame.extend(&bytes);
        swallow(&frame);
    }
}

/// No question asks for so much at a time: it is refused before all of it is in memory.
#[test]
fn lists_in_lists_are_bounded_together() {
    let thread = |tid| GuestThread { tid, name: String::new(), fs_base: 0 };
    let threads: Vec<_> = (0..1 << 18).map(thread).collect();
    let image = |id| GuestImage { id, threads: threads.clone(), ..common::map().images[0].clone() };
    let map = |n| GuestMap {
        version: VERSION,
        images: (0..n).map(image).collect(),
        ..GuestMap::default()
    };
    let answers = |map| fuzzing::responses(&fuzzing::frame(&Response::Map(Box::new(map)))).len();
    assert_eq!([answers(map(2)), answers(map(3))], [1, 0]);
    let symbols = |n| Response::Symbols(vec![ModuleSymbols::default(); n]);
    let answers = |n| fuzzing::responses(&fuzzing::frame(&symbols(n))).len();
    assert_eq!([answers(1), answers(2)], [1, 0]);
}

#[test]
fn a_list_that_says_it_is_long_allocates_little() {
    // A map whose list of images claims 2^60 entries, and nothing follows.
    let map = GuestMap { version: VERSION, ..GuestMap::default() };
    let mut frame = fuzzing::frame(&Response::Map(Box::new(map)));
    let end = frame.len();
    frame.truncate(end - 4); // before the lists of images, kernel threads, modules and problems
    frame.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
    let length = u32::try_from(frame.len() - 20).unwrap_or(0);
    frame[16..20].copy_from_slice(&length.to_le_bytes());
    assert!(fuzzing::responses(&frame).is_empty());
}
