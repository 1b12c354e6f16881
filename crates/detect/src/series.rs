//! One number per window (a share, a rate): what is normal for it, and since when it is not.
//!
//! ```text
//!  learning --20 values--> normal --3, or 10 and more values off--> open --back, or a day old--> normal
//! ```
//!
//! *Normal* is the median of the last 120 values, with the median absolute deviation as scale. Once there are two weeks of
//! values, the level of each hour of the week is taken off first. Values of an open change are not learned.
//!
//! A change begins when one of these rules holds, each beyond the rule's least effect:
//!
//! - *sudden*: the last 3 values are all 6 scales off, to the same side, and no 2 values in a row that are normal were as
//!   far off. A disturbance of less than a window's length, which touches two windows, is none. Nor are two of them in a
//!   row: what is not the VM's own doing must be off by much the same in all 3, or last for a fourth.
//! - *slow*: a step on top of a quadratic trend ([`step`](crate::step)) with a score of 6 (of code) or 8, at least 10
//!   values ago, that the last 5 values have not taken back.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::hours::Hours;
use crate::rule::Rule;
use crate::season::Season;
use crate::step::{Step, Trend, median_and_scale, median_of, quantile, step};

/// Values that are remembered.
const REMEMBERED: usize = 120;
/// Values without which nothing is normal. What comes every hour is a guest's own business: it must have been seen.
pub(crate) const LEARNING: usize = 20;
const LEARNING_OWN: usize = 64;
/// Values after which median and scale are taken anew.
const REFRESH: u8 = 8;
/// Three values that are off by this many scales are a change.
const OFF: f32 = 6.0;
/// The percentage of values whose distance the scale must explain, and that distance in normal noise.
const TAIL: (usize, f32) = (90, 1.2816);
/// Of three values of what others do to a VM the lowest is at least this part of the highest, or it takes a fourth: two
/// disturbances that follow one another are none.
const ALIKE: f32 = 0.5;
/// Values after a slow change.
const SLOW_MARGIN: usize = 10;
/// Values between two looks for a slow change.
const SLOW_EVERY: u32 = 4;
/// Of an open change: values that are kept to see whether it is over.
const KEPT_WHILE_OPEN: usize = 60;
const DAY_S: u32 = 86_400;

/// A change that began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shift {
    /// Begin of the first window after the change, s since 1970, and the interval that holds it with 95 %.
    pub(crate) began_s: u32,
    pub(crate) interval_s: (u32, u32),
    pub(crate) before: f32,
    pub(crate) after: f32,
    /// In standard errors.
    pub(crate) score: f64,
    /// Windows since it began.
    pub(crate) windows: usize,
}

/// What a value did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Event {
    None,
    Began(Shift),
    /// The change lasts; the level now.
    Lasts(f32),
    Over,
    /// It has lasted so long that it is normal now.
    Normal,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(from = "(u32, f32)", into = "(u32, f32)")]
struct Value {
    at_s: u32,
    value: f32,
}

impl From<(u32, f32)> for Value {
    fn from((at_s, value): (u32, f32)) -> Self {
        Self { at_s, value }
    }
}

impl From<Value> for (u32, f32) {
    fn from(Value { at_s, value }: Value) -> Self {
        (at_s, value)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Open {
    began_s: u32,
    before: f32,
    size: f32,
    /// So many values tell whether it is over.
    needed: usize,
    recent: VecDeque<Value>,
}

/// The series. It takes 3.5 KiB at most.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    values: VecDeque<Value>,
    season: Season,
    /// The values are off the usual level of their hour.
    is_seasonal: bool,
    /// The last value as it came.
    last: f32,
    /// The first median: it never moves, so that a mean of many deviations only moves when they do.
    anchor: Option<f32>,
    median: f32,
    scale: f32,
    /// The farthest that two values in a row were off among the values remembered.
    run: f32,
    since_refresh: u8,
    taken: u32,
    open: Option<Box<Open>>,
    hours: Hours,
}

impl Series {
    /// A series that was 0 so far: of what was not there.
    pub(crate) fn absent(windows: impl Iterator<Item = u32>) -> Self {
        let values: VecDeque<_> = windows.map(|at_s| Value { at_s, value: 0.0 }).collect();
        let skip = values.len().saturating_sub(REMEMBERED);
        Self { values: values.into_iter().skip(skip).collect(), ..Self::default() }
    }

    /// Whether a change is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// By how much the last value is off the first ones, as far as one series may count among many. `None`: still learning.
    pub(crate) fn deviation(&self, floor: f32) -> Option<f32> {
        let limit = 4.0 * self.scale.max(floor);
        Some((self.last - self.anchor?).clamp(-limit, limit))
    }

    /// The open change is no news: its level is normal from now on.
    pub(crate) fn accept(&mut self) {
        if let Some(open) = self.open.take() {
            self.values.iter_mut().for_each(|v| v.value += open.size);
            self.remember(open.recent);
            self.median += open.size;
            self.since_refresh = 0;
        }
    }

    /// Nothing comes any more; whether a change was open.
    pub(crate) fn forget_change(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// What is normal; 0 before anything was learned.
    pub(crate) fn normal(&self) -> f32 {
        self.median
    }

    /// Medians of the last `after` values, and of up to 60 before them.
    pub(crate) fn around(&self, after: usize) -> (f32, f32) {
        let n = self.values.len();
        let last = n.saturating_sub(after);
        let part = |from: usize, to: usize| median_of(self.values.range(from..to).map(|v| v.value));
        (part(last.saturating_sub(60), last), part(last, n))
    }

    /// Takes a window's value; `noise` is the standard deviation that sampling alone gives it.
    pub(crate) fn push(&mut self, at_s: u32, raw: f32, noise: f32, rule: &Rule) -> Event {
        if self.season.is_known(at_s) && !self.is_seasonal {
            self.is_seasonal = true;
            let season = &self.season;
            self.values.iter_mut().for_each(|v| v.value -= season.usual(v.at_s, v.value));
            self.since_refresh = 0;
        }
        let usual = if self.is_seasonal { self.season.usual(at_s, raw) } else { 0.0 };
        self.last = raw;
        let value = Value { at_s, value: raw - usual };
        if self.open.is_some() {
            return self.push_open(value, usual, rule);
        }
        self.season.learn(at_s, raw);
        self.remember([value]);
        self.taken += 1;
        if rule.is_own {
            self.note_run(at_s, rule.sign);
        }
        let found = self.sudden(noise, rule).or_else(|| self.slow(rule));
        self.refresh(rule);
        let Some(shift) = found else { return Event::None };
        self.begin(&shift);
        let (before, after) = (shift.before + usual, shift.after + usual);
        Event::Began(Shift { before, after, ..shift })
    }

    fn remember(&mut self, values: impl IntoIterator<Item = Value>) {
        self.values.extend(values);
        let too_many = self.values.len().saturating_sub(REMEMBERED);
        self.values.drain(..too_many);
    }

    fn begin(&mut self, shift: &Shift) {
        let size = shift.after - shift.before;
        let certain = 4.0 * self.scale / size.abs().max(f32::MIN_POSITIVE);
        let needed = (3..KEPT_WHILE_OPEN).find(|n| certain * certain <= *n as f32);
        let keep = self.values.iter().take_while(|v| v.at_s < shift.began_s).count();
        let recent = self.values.split_off(keep);
        self.open = Some(Box::new(Open {
            began_s: shift.began_s,
            before: shift.before,
            size,
            needed: needed.unwrap_or(KEPT_WHILE_OPEN),
            recent,
        }));
    }

    fn push_open(&mut self, value: Value, usual: f32, rule: &Rule) -> Event {
        let Some(open) = &mut self.open else { return Event::None };
        open.recent.push_back(value);
        if KEPT_WHILE_OPEN < open.recent.len() {
            open.recent.pop_front();
        }
        let skip = open.recent.len().saturating_sub(open.needed);
        let enough = open.needed <= open.recent.len();
        let level = median_of(open.recent.iter().skip(skip).map(|v| v.value));
        let is_back = (level - open.before) / open.size < 0.5;
        let is_old = rule.is_own && DAY_S <= value.at_s.saturating_sub(open.began_s);
        if rule.is_own {
            self.hours.note(value.at_s, level * rule.sign);
        }
        match &mut self.open {
            Some(open) if enough && is_back => {
                // What has gone away by itself is a part of the owner's life.
                let recent =
                    if rule.is_own { std::mem::take(&mut open.recent) } else { VecDeque::new() };
                self.open = None;
                self.remember(recent);
                Event::Over
            }
            Some(open) if is_old => {
                self.values = std::mem::take(&mut open.recent);
                self.open = None;
                self.since_refresh = 0;
                Event::Normal
            }
            _ => Event::Lasts(level + usual),
        }
    }

    /// The last three values are far off.
    fn sudden(&self, noise: f32, rule: &Rule) -> Option<Shift> {
        let n = self.values.len();
        if n < LEARNING + 3 {
            return self.at_first(rule);
        }
        if rule.is_own && n < LEARNING_OWN {
            return None;
        }
        let scale = self.scale.max(noise).max(rule.floor);
        // Few values make the scale uncertain.
        let scale = scale * (1.0 + 10.0 / n as f32);
        let off = |back: usize| (self.values[n - back].value - self.median) * rule.sign;
        let least = (OFF * scale).max(rule.sudden).max(self.run + rule.sudden / 2.0);
        let (lowest, highest) = (off(3).min(off(2)).min(off(1)), off(3).max(off(2)).max(off(1)));
        let is_even = rule.is_own || ALIKE * highest <= lowest;
        if lowest < least || !is_even && off(4) < least {
            return None;
        }
        let from = n.saturating_sub(40);
        let part: Vec<f32> = self.values.range(from..).map(|v| v.value).collect();
        let found = step(&part, Trend::Constant, 2);
        let found = found.filter(|found| part.len() <= found.at + 4);
        let at = found.map_or(n - 3, |found| from + found.at);
        let interval =
            found.map_or((at, at), |found| (from + found.interval.0, from + found.interval.1));
        let after = median_of(self.values.range(n - 2..).map(|v| v.value));
        if self.was_so_yesterday(after, rule) {
            return None;
        }
        let score = f64::from((after - self.median).abs() / scale);
        Some(self.shift(at, interval, (self.median, after), score))
    }

    /// Nothing was learned yet, and three values are beyond what is normal for anybody.
    fn at_first(&self, rule: &Rule) -> Option<Shift> {
        let limit = rule.at_first?;
        let n = self.values.len();
        let last = self.values.range(n.checked_sub(3)?..);
        let lowest = last.map(|v| v.value).fold(f32::MAX, f32::min);
        (limit <= lowest)
            .then(|| self.shift(n - 3, (0, n - 3), (0.0, lowest), f64::from(lowest / rule.floor)))
    }

    fn slow(&self, rule: &Rule) -> Option<Shift> {
        let n = self.values.len();
        if n < REMEMBERED / 2 || !self.taken.is_multiple_of(SLOW_EVERY) {
            return None;
        }
        let values: Vec<f32> = self.values.iter().map(|v| v.value).collect();
        let found: Step = step(&values, Trend::Quadratic, SLOW_MARGIN)?;
        let size = found.size * f64::from(rule.sign);
        if found.score < rule.score || size < f64::from(rule.slow) {
            return None;
        }
        let level = |part: &[f32]| median_of(part.iter().copied());
        let nearby = 40;
        let before = level(&values[found.at.saturating_sub(nearby)..found.at]);
        let after = level(&values[found.at..n.min(found.at + nearby)]);
        let now = level(&values[n - 5..]);
        let rise = (after - before) * rule.sign;
        let stays = rise / 2.0 <= (now - before) * rule.sign;
        // What the trend explains half of is not worth a finding.
        let is_step = size / 2.0 <= f64::from(rise);
        if rise < rule.slow || !stays || !is_step || self.was_so_yesterday(after, rule) {
            return None;
        }
        Some(self.shift(found.at, found.interval, (before, after), found.score))
    }

    fn shift(&self, at: usize, interval: (usize, usize), levels: (f32, f32), score: f64) -> Shift {
        let at_s = |n: usize| self.values.get(n).or(self.values.back()).map_or(0, |v| v.at_s);
        Shift {
            began_s: at_s(at),
            interval_s: (at_s(interval.0), at_s(interval.1)),
            before: levels.0,
            after: levels.1,
            score,
            windows: self.values.len() - at,
        }
    }

    /// Now and then, takes median, scale and the farthest run anew, of all but the last values.
    fn refresh(&mut self, rule: &Rule) {
        let n = self.values.len().saturating_sub(2);
        let is_due = self.since_refresh == 0 || n == LEARNING;
        if n < LEARNING || !is_due {
            self.since_refresh = (self.since_refresh + 1) % REFRESH;
            return;
        }
        self.since_refresh = 1;
        let mut values: Vec<f32> = self.values.range(..n).map(|v| v.value).collect();
        let (middle, scale) = median_and_scale(&mut values.clone());
        values.iter_mut().for_each(|v| *v = (*v - middle) * rule.sign);
        let tail = quantile(&mut values.clone(), TAIL.0) / TAIL.1;
        let least = |run: &[f32]| run.iter().copied().fold(f32::MAX, f32::min);
        self.run = values.windows(2).map(least).fold(0.0, f32::max);
        (self.median, self.scale) = (middle, scale.max(tail));
        self.anchor = self.anchor.or(Some(middle));
    }

    fn note_run(&mut self, at_s: u32, sign: f32) {
        if let Some(from) = self.values.len().checked_sub(3) {
            let last = self.values.range(from..).map(|v| v.value * sign);
            self.hours.note(at_s, last.fold(f32::MAX, f32::min));
        }
    }

    /// Whether three values in a row reached almost this level in the last day, but not just now.
    fn was_so_yesterday(&self, level: f32, rule: &Rule) -> bool {
        let now_s = self.values.back().map_or(0, |v| v.at_s);
        let almost = self.median + (level - self.median) * 0.9;
        rule.is_own && almost * rule.sign <= self.hours.highest_before(now_s)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Measure;
    use crate::rule::rule;

    const HOUR: u32 = 3600;

    /// What happens to a series of steal with one value a minute: `began 31+5` (found in window 31, begun in 5), `over 70`.
    fn check(measure: &Measure, values: &[f32], expected: &str) {
        let found = events(measure, values.iter().copied(), 60);
        assert_eq!(found.join(", "), expected);
    }

    fn events(measure: &Measure, values: impl Iterator<Item = f32>, length_s: u32) -> Vec<String> {
        let mut series = Series::default();
        let event = |(n, value): (u32, f32)| {
            // Monday, 5 January 1970, is the first hour of a week that begins at midnight.
            let at_s = 4 * 24 * HOUR + n * length_s;
            match series.push(at_s, value, 0.0, &rule(measure)) {
                Event::None | Event::Lasts(_) => None,
                Event::Began(shift) => {
                    Some(format!("began {n}+{}", (at_s - shift.began_s) / length_s))
                }
                Event::Over => Some(format!("over {n}")),
                Event::Normal => Some(format!("normal {n}")),
            }
        };
        (0..).zip(values).filter_map(event).collect()
    }

    /// Parts of a length with a level each, with a little noise.
    fn levels(parts: &[(usize, f32)]) -> Vec<f32> {
        let all = parts.iter().flat_map(|(n, level)| std::iter::repeat_n(*level, *n));
        all.zip([0.0, 0.004, -0.004, 0.002, -0.002].iter().cycle()).map(|(l, n)| l + n).collect()
    }

    fn function() -> Measure {
        Measure::Function(crate::Code::default())
    }

    #[test]
    fn a_change_is_found_in_three_values_and_is_over_when_it_is() {
        let steal = Measure::StealOutside;
        check(&steal, &levels(&[(50, 0.01), (20, 0.3), (20, 0.01)]), "began 52+2, over 71");
        check(&steal, &levels(&[(50, 0.01), (20, 0.06), (20, 0.01)]), "began 52+2, over 71");
    }

    #[test]
    fn blips_and_small_changes_are_none() {
        let steal = Measure::StealOutside;
        check(&steal, &levels(&[(50, 0.01), (2, 0.9), (50, 0.01)]), "");
        check(&steal, &levels(&[(50, 0.01), (50, 0.02)]), "");
        check(&steal, &levels(&[(50, 0.1), (50, 0.0)]), "");
    }

    #[test]
    fn what_is_bad_from_the_first_window_on_is_found() {
        check(&Measure::StealOutside, &levels(&[(20, 0.3)]), "began 2+2");
        check(&Measure::StealVmm, &levels(&[(40, 0.3)]), "");
    }

    #[test]
    fn a_small_step_is_found_when_it_has_lasted() {
        let noise = |n: usize| ((n * 7919 % 97) as f32 / 97.0 - 0.5) * 0.02;
        let values: Vec<f32> =
            (0..200).map(|n| noise(n) + if n < 100 { 0.1 } else { 0.12 }).collect();
        let found = events(&function(), values.into_iter(), 60);
        assert_eq!(found.len(), 1, "{found:?}");
        let (at, ago) = found[0].strip_prefix("began ").unwrap().split_once('+').unwrap();
        let (at, ago): (i32, i32) = (at.parse().unwrap(), ago.parse().unwrap());
        assert!(at < 160 && (at - ago - 100).abs() <= 6, "{found:?}");
    }

    #[test]
    fn a_rhythm_is_no_change() {
        let day = |n: u32| 0.3 + 0.2 * (n as f32 / 1440.0 * std::f32::consts::TAU).sin();
        let noise = |n: u32| ((n * 7919 % 97) as f32 / 97.0 - 0.5) * 0.02;
        let found = events(&function(), (0..3 * 1440).map(|n| day(n) + noise(n)), 60);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_job_is_found_the_first_time_and_not_the_next_day() {
        let is_at_two = |n: u32| (120..140).contains(&(n % 1440));
        let values = (0..3 * 1440).map(|n| if is_at_two(n) { 0.3 } else { 0.01 });
        assert_eq!(events(&function(), values, 60), ["began 122+2", "over 141"]);
    }

    #[test]
    fn what_comes_every_week_is_normal_after_two() {
        // Windows of 10 minutes; a job on Mondays from 09:00 to 12:00.
        let is_monday = |n: u32| (54..72).contains(&(n % 1008));
        let values =
            |weeks: u32| (0..weeks * 1008).map(move |n| if is_monday(n) { 0.3 } else { 0.01 });
        let found = events(&function(), values(5), 600);
        let late = |event: &&String| {
            let number = event.split([' ', '+']).nth(1).unwrap();
            2 * 1008 + 10 < number.parse::<u32>().unwrap()
        };
        assert_eq!(found.iter().find(late), None, "{found:?}");
        assert!(!found.is_empty());
    }

    #[test]
    fn after_a_day_a_changed_function_is_normal_and_stolen_time_is_not() {
        let values = levels(&[(100, 0.01), (2000, 0.3)]);
        check(&function(), &values, "began 102+2, normal 1540");
        check(&Measure::StealOutside, &values, "began 102+2");
    }
}
