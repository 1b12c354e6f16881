//! Unwound stacks, checked.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use api::guest::{StackPart, UnwoundStack};
use model::StackEnd;

use crate::check::{is_kernel_address, is_user_address};

/// Checks the answer to `n_requested` stacks; `None`: it is not one to them. A part ends before an address of the other half.
pub(crate) fn check(stacks: Vec<UnwoundStack>, n_requested: usize) -> Option<Vec<UnwoundStack>> {
    let part = |part: StackPart, is_sound: fn(u64) -> bool| {
        let n_sound = part.frames.iter().take_while(|frame| is_sound(**frame)).count();
        let end = if n_sound < part.frames.len() { StackEnd::Outside } else { part.end };
        let mut frames = part.frames;
        frames.truncate(n_sound);
        StackPart { frames, end, basis: part.basis.filter(|_| end.is_whole()) }
    };
    let stack = |stack: UnwoundStack| UnwoundStack {
        kernel: stack.kernel.map(|it| part(it, is_kernel_address)),
        user: stack.user.map(|it| part(it, is_user_address)),
        interpreter: stack.interpreter,
    };
    (stacks.len() == n_requested).then(|| stacks.into_iter().map(stack).collect())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn addresses_of_the_other_half_end_a_part() {
        const KERNEL: u64 = 0xffff_ffff_8100_0000;
        let part =
            |frames: &[u64], end| Some(StackPart { frames: frames.to_vec(), end, basis: None });
        let whole = StackEnd::Start;
        for (kernel, user, expected) in [
            (
                part(&[KERNEL, 1], whole),
                part(&[1, 2], whole),
                [part(&[KERNEL], StackEnd::Outside), part(&[1, 2], whole)],
            ),
            (None, part(&[KERNEL], whole), [None, part(&[], StackEnd::Outside)]),
        ] {
            let [expected_kernel, expected_user] = expected;
            let expected =
                UnwoundStack { kernel: expected_kernel, user: expected_user, interpreter: None };
            assert_eq!(
                check(vec![UnwoundStack { kernel, user, interpreter: None }], 1),
                Some(vec![expected])
            );
        }
        assert_eq!(check(vec![UnwoundStack::default()], 2), None);
    }
}
