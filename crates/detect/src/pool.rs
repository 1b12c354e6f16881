//! The same function in many VMs: its mean shows changes that are too small to see in one VM.
//!
//! Each VM tells by how much the function's share is off its own first median. The mean over VMs has less noise than one
//! of them, by the square root of their number, and does not move when VMs with other shares come or go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rule::POOLED;
use crate::series::{Event, Series};
use crate::{Code, Measure, SeriesName};

/// Functions at most, with 3.5 KiB for each.
const MAX_POOLS: usize = 4096;
/// VMs that make a pool.
const MIN_VMS: u32 = 3;
/// Windows that a late host has time.
const WAIT: u32 = 2;

/// Pools of all functions.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pools {
    pools: BTreeMap<Code, Pool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Pool {
    series: Series,
    /// By number of the window in the fleet's time.
    open: BTreeMap<u32, Sum>,
    /// The first number that is still taken.
    next: u32,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Sum {
    deviation: f32,
    cpus: f64,
    n: u32,
}

/// What happened to a pool, and what a share of 1 is in CPUs there.
pub(crate) type Pooled = (SeriesName, Event, f64);

impl Pools {
    pub(crate) fn len(&self) -> usize {
        self.pools.len()
    }

    /// Takes what a VM says of a window that begins at `at_s`; `cpus` is what its share is of.
    pub(crate) fn take(
        &mut self,
        code: &Code,
        (at_s, length_s): (u32, u32),
        deviation: f32,
        cpus: f64,
    ) -> Option<Pooled> {
        let number = at_s / length_s.max(1);
        if !self.pools.contains_key(code) && !self.make_room(number) {
            return None;
        }
        let pool = self.pools.entry(code.clone()).or_default();
        if number < pool.next {
            return None;
        }
        let sum = pool.open.entry(number).or_default();
        sum.deviation += deviation;
        sum.cpus += cpus;
        sum.n += 1;
        let first = *pool.open.first_key_value()?.0;
        if number < first.saturating_add(WAIT) {
            return None;
        }
        let sum = pool.open.remove(&first)?;
        pool.next = first + 1;
        if sum.n < MIN_VMS {
            return None;
        }
        let mean = sum.deviation / sum.n as f32;
        let event = pool.series.push(first * length_s, mean, 0.0, &POOLED);
        let series = SeriesName { host: None, vm: None, measure: Measure::Function(code.clone()) };
        (event != Event::None).then_some((series, event, sum.cpus))
    }

    /// Forgets pools without a report for 1,440 windows if there are too many.
    fn make_room(&mut self, number: u32) -> bool {
        if MAX_POOLS <= self.pools.len() {
            self.pools.retain(|_, pool| number.saturating_sub(pool.next) < 1440);
        }
        self.pools.len() < MAX_POOLS
    }
}
