//! Waits as folded stacks.

use super::drawn::{self, Drawing};
use crate::fixture::HOSTILE;
use crate::formats::golden;

fn folded(drawing: &Drawing) -> String {
    let mut out = Vec::new();
    export::trace::folded::write(drawing.run("small"), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn waits_have_stacks_and_causes() {
    golden("trace/small.folded", &folded(&drawn::small()));
}

#[test]
fn names_separate_no_frames() {
    let frames = |text: &str| -> Vec<usize> {
        let mut frames: Vec<usize> = text.lines().map(|line| line.split(';').count()).collect();
        frames.sort_unstable();
        frames.dedup();
        frames
    };
    let honest = frames(&folded(&drawn::small()));
    for name in HOSTILE {
        assert_eq!(frames(&folded(&drawn::hostile(name))), honest, "{name:?}");
    }
}
