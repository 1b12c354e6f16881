//! The highest level of each hour of the last day.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A day, and an hour on both sides.
const HOURS: usize = 26;

/// The highest level of each of the last hours.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hours {
    /// The hour, and the highest level in it.
    levels: VecDeque<(u32, f32)>,
}

impl Hours {
    pub(crate) fn note(&mut self, at_s: u32, level: f32) {
        let hour = at_s / 3600;
        match self.levels.back_mut() {
            Some((last, highest)) if *last == hour => *highest = highest.max(level),
            _ => self.levels.push_back((hour, level)),
        }
        if HOURS < self.levels.len() {
            self.levels.pop_front();
        }
    }

    /// The highest of all hours but this one and the one before.
    pub(crate) fn highest_before(&self, now_s: u32) -> f32 {
        let before = self.levels.iter().filter(|(hour, _)| hour + 2 <= now_s / 3600);
        before.map(|(_, level)| *level).fold(f32::MIN, f32::max)
    }
}
