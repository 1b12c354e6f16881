//! What interrupted what.
//!
//! ```text
//!  pieces   | openat | irq | openat | page fault | openat |  user  | irq |
//!  nested   | openat                                      |        | irq |
//!                    | irq |        | page fault |
//! ```

use model::HostNs;
use trace_analysis::timeline::{Slice, Work};

/// Something executed, and what interrupted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nested {
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    pub(super) work: Work,
    pub(super) inner: Vec<Slice>,
}

/// `pieces` in time order, without those that need no slice of their own.
pub(super) fn nest(pieces: &[Slice]) -> Vec<Nested> {
    let mut nested: Vec<Nested> = Vec::new();
    // What may turn out to have interrupted the last of `nested`.
    let mut within: Vec<Slice> = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.begin < piece.end) {
        let Some(rank) = rank(piece.work) else { continue };
        let follows = within.last().map(|slice| slice.end).or(nested.last().map(|last| last.end));
        if let Some(last) = nested.last_mut().filter(|_| follows == Some(piece.begin)) {
            if last.work == piece.work {
                last.inner.append(&mut within);
                last.end = piece.end;
                continue;
            }
            if self::rank(last.work) < Some(rank) {
                within.push(*piece);
                continue;
            }
        }
        nested.extend(within.drain(..).map(alone));
        nested.push(alone(*piece));
    }
    nested.extend(within.drain(..).map(alone));
    nested
}

/// Which may interrupt which: the higher the lower. `None`: has no slice.
fn rank(work: Work) -> Option<u8> {
    match work {
        Work::Syscall(_) | Work::Vcpu => Some(0),
        Work::Fault { .. } => Some(1),
        Work::Interrupt(_) => Some(2),
        Work::Unknown => Some(3),
        Work::Idle | Work::User | Work::KernelTask => None,
    }
}

fn alone(slice: Slice) -> Nested {
    Nested { begin: slice.begin, end: slice.end, work: slice.work, inner: Vec::new() }
}

#[cfg(test)]
mod test {
    use model::Interrupt;

    use super::*;

    /// A letter is a nanosecond: o a system call, f a page fault, i an interrupt, u user, ? unknown.
    fn slices(drawn: &str) -> Vec<Slice> {
        let work = |letter| match letter {
            'o' => Work::Syscall(2),
            'f' => Work::Fault { estimated: false },
            'i' => Work::Interrupt(Interrupt::Device(1)),
            'u' => Work::User,
            _ => Work::Unknown,
        };
        let slice = |(at, letter)| Slice {
            begin: HostNs(at),
            end: HostNs(at + 1),
            task: None,
            work: work(letter),
        };
        (0..).zip(drawn.chars()).map(slice).collect()
    }

    #[test]
    fn what_comes_back_was_interrupted() {
        let check = |drawn: &str, expected: &str| {
            let text = |nested: &Nested| {
                let letter =
                    |at: HostNs| drawn.chars().nth(usize::try_from(at.0).unwrap()).unwrap();
                let inner: String = nested.inner.iter().map(|slice| letter(slice.begin)).collect();
                format!("{}{}-{}({inner})", letter(nested.begin), nested.begin.0, nested.end.0)
            };
            let nested = nest(&slices(drawn));
            assert_eq!(nested.iter().map(text).collect::<Vec<_>>().join(" "), expected, "{drawn}");
        };
        check("uoou", "o1-3()");
        check("oio", "o0-3(i)");
        check("oifo", "o0-4(if)");
        check("oifou", "o0-4(if)");
        check("oiu", "o0-1() i1-2()");
        check("ouo", "o0-1() o2-3()");
        check("fio", "f0-1() i1-2() o2-3()");
        check("ii", "i0-2()");
        check("u", "");
        check("?", "?0-1()");
    }
}
