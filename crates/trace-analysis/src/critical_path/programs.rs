//! Programs whose critical path is known: what a wait contributes is that wait.

use model::Interrupt;

use super::tests::check;
use crate::test_timelines::{By, Random};

const TIMER: By = By::Interrupt(Interrupt::Soft(1));

/// `first` works while the holder works under its lock, and then waits for it for a short time.
#[test]
fn a_lock_after_a_computation() {
    check(
        &[("first", "", "000000000000aa0"), ("holder", "", "111111111111111")],
        &[('a', By::Unlock("holder"))],
        "ffffffffffffhhf",
        "uuuuuuuuuuuuuuu",
    );
}

/// A compiler waits for a page that a stranger's compiler has, which is at work all the time.
#[test]
fn a_stranger_that_has_a_page() {
    check(
        &[
            ("make", "", "0aaaaaaaaaa0"),
            ("cc1", "make", " 00000b0000 "),
            ("rustc", "", "11111111xxxx"),
        ],
        &[('a', By::Task("cc1")), ('b', By::Task("rustc"))],
        "mcccccrccccm",
        "uuuuuuuuuuuu",
    );
}

/// A kernel task that slept for long wakes a task that waited for a moment, also while that one's parent sleeps.
#[test]
fn a_kernel_task_that_woke_up_late() {
    check(
        &[("sh", "", "0aaaaaaaaa0"), ("echo", "sh", " 00000bb00 "), ("kdamond", "", "ttttttt1ttt")],
        &[('a', By::Task("echo")), ('b', By::Task("kdamond")), ('t', TIMER)],
        "seeeeekkees",
        "uuuuuuiuuuu",
    );
}

/// A write whose completion was handled by a task that another process had kept busy.
#[test]
fn a_worker_of_several_tasks() {
    check(
        &[("dd", "", "000000aaa0"), ("kworker", "", "bbbbbbb110"), ("vmscope", "", "1111111xxx")],
        &[('a', By::Task("kworker")), ('b', By::Task("vmscope"))],
        "ddddddvkkd",
        "uuuuuuuuuu",
    );
}

/// The trace ends while a parent waits for a child that it had worked beside.
#[test]
fn a_child_that_is_not_over() {
    check(&[("make", "", "000xx"), ("cc1", "make", " 1111")], &[], "mmmmm", "uuuee");
}

/// One column of each task: what they do.
#[derive(Default)]
struct Program {
    lines: [String; 4],
    who: String,
    what: String,
}

const NAMES: [&str; 4] = ["main", "holder", "worker", "stranger"];

impl Program {
    /// `n` columns in which main, holder, worker and stranger do these, and the path is in that task doing that.
    fn columns(&mut self, n: u64, tasks: [char; 4], who: char, what: char) {
        let n = usize::try_from(n).unwrap();
        for (line, letter) in self.lines.iter_mut().zip(tasks) {
            line.extend(std::iter::repeat_n(letter, n));
        }
        self.who.extend(std::iter::repeat_n(who, n));
        self.what.extend(std::iter::repeat_n(what, n));
    }

    /// `main` computes and then waits. Meanwhile and before: a stranger is at work, or whom it will wait for.
    fn step(&mut self, random: &mut Random) {
        let [computes, first, then] = [0; 3].map(|_| 1 + random.below(20));
        match random.below(6) {
            0 => {
                self.columns(computes, ['0', 'i', 'i', '1'], 'm', 'u');
                self.columns(first, ['t', 'i', 'i', '1'], 'm', 'i');
            }
            // Who has the lock had it before.
            1 => {
                self.columns(computes, ['0', '1', 'i', '.'], 'm', 'u');
                self.columns(first, ['h', '1', 'i', '.'], 'h', 'u');
            }
            // The worker sleeps before, and for a part of the wait.
            2 => {
                self.columns(computes, ['0', 'i', 'i', '1'], 'm', 'u');
                self.columns(first, ['b', 'i', 'i', '1'], 'w', 'i');
                self.columns(then, ['b', 'i', '1', '.'], 'w', 'u');
            }
            // The worker itself waited for the lock, since before or not.
            3 => {
                let before = random.below(computes);
                self.columns(computes - before, ['0', '.', '1', '.'], 'm', 'u');
                self.columns(before, ['0', '1', 'h', '.'], 'm', 'u');
                self.columns(first, ['b', '1', 'h', '.'], 'h', 'u');
                self.columns(then, ['b', 'i', '1', '.'], 'w', 'u');
            }
            // The worker waits for a CPU, since before.
            4 => {
                self.columns(computes, ['0', 'i', '.', '1'], 'm', 'u');
                self.columns(first, ['b', 'i', '.', '1'], 'w', 'r');
                self.columns(then, ['b', 'i', '1', '.'], 'w', 'u');
            }
            // Two waits, one after another.
            _ => {
                self.columns(computes, ['0', '1', 'i', '.'], 'm', 'u');
                self.columns(first, ['h', '1', 'i', '.'], 'h', 'u');
                self.columns(1, ['0', '1', 'i', '.'], 'm', 'u');
                self.columns(then, ['h', '1', 'i', '.'], 'h', 'u');
            }
        }
        self.columns(1, ['0', 'i', 'i', '1'], 'm', 'u');
    }
}

#[test]
fn twenty_random_programs() {
    for seed in 0..20 {
        let random = &mut Random(seed);
        let mut program = Program::default();
        for _ in 0..3 + random.below(10) {
            program.step(random);
        }
        let lines: Vec<_> = NAMES
            .iter()
            .zip(&program.lines)
            .map(|(name, line)| (*name, "", line.as_str()))
            .collect();
        let wakers =
            [('t', TIMER), ('i', TIMER), ('h', By::Unlock("holder")), ('b', By::Task("worker"))];
        check(&lines, &wakers, &program.who, &program.what);
    }
}
