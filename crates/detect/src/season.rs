//! The level of each hour of the week.

use serde::{Deserialize, Serialize};

const HOUR_S: u32 = 3600;
const HOURS: u32 = 168;
/// Of data, after which the levels are used.
const LEARNING_S: u32 = 14 * 86_400;
/// Weeks over which a level is averaged.
const WEEKS: f32 = 4.0;

/// Learns it. 1.4 KiB.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Season {
    /// By hour of the week: mean, and how many weeks it is of.
    levels: Box<[(f32, f32)]>,
    first_s: u32,
    /// The hour that is being added up.
    hour: u32,
    sum: f32,
    n: f32,
}

impl Season {
    /// Whether two weeks are known.
    pub(crate) fn is_known(&self, at_s: u32) -> bool {
        !self.levels.is_empty() && self.first_s.saturating_add(LEARNING_S) <= at_s
    }

    /// The usual value next to this one: whatever lies between the levels of this hour, the one before and the one after is
    /// usual, since what comes every week is not on time to the minute.
    pub(crate) fn usual(&self, at_s: u32, value: f32) -> f32 {
        let hour = at_s / HOUR_S + HOURS;
        let near = [hour - 1, hour, hour + 1].map(|hour| self.levels[(hour % HOURS) as usize]);
        let known = || near.iter().filter(|(_, weeks)| 0.0 < *weeks).map(|(level, _)| *level);
        let (low, high) = (known().fold(f32::MAX, f32::min), known().fold(f32::MIN, f32::max));
        if low <= high { value.clamp(low, high) } else { value }
    }

    pub(crate) fn learn(&mut self, at_s: u32, value: f32) {
        let hour = at_s / HOUR_S;
        if self.levels.is_empty() {
            self.levels = vec![(0.0, 0.0); HOURS as usize].into();
            (self.first_s, self.hour) = (at_s, hour);
        }
        if hour != self.hour {
            let (level, weeks) = &mut self.levels[(self.hour % HOURS) as usize];
            *weeks = (*weeks + 1.0).min(WEEKS);
            *level += (self.sum / self.n.max(1.0) - *level) / *weeks;
            (self.hour, self.sum, self.n) = (hour, 0.0, 0.0);
        }
        self.sum += value;
        self.n += 1.0;
    }
}
