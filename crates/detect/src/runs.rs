//! Two groups of runs of one job: whether it became slower, and in which functions.
//!
//! ```text
//!   runs of the base:  a1 a2 ... an     all n * m differences b - a, sorted: d1 <= d2 <= ...
//!   new runs:          b1 b2 ... bm     the change is their median (Hodges and Lehmann), its interval dk to d(nm + 1 - k)
//! ```
//! k is the rank below which the statistic of Mann and Whitney lies with half of the error's probability, by the normal
//! distribution. So a run that something disturbed counts as one run, however slow it was, and no distribution is assumed.

pub mod report;

use std::collections::{BTreeMap, BTreeSet};

/// Probability that an interval misses the true change.
const ERROR: f64 = 0.01;

/// A function of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobFunction {
    pub process: String,
    pub function: String,
    /// The file that holds it; `None`: unknown.
    pub module: Option<String>,
}

/// What a run took.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobRun {
    /// CPU time of its functions, ns. What others stole is not in it.
    pub functions: BTreeMap<JobFunction, u64>,
    /// From its begin to its end, ns.
    pub wall_ns: u64,
}

/// A change of a figure, as a part of the base's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Median over the base's runs, ns.
    pub base_ns: u64,
    /// Median over the new runs, ns.
    pub new_ns: u64,
    /// 0.03: 3 % more.
    pub change: f64,
    /// It lies between these with a probability of 99 %, for a function with that of all functions together.
    pub low: f64,
    pub high: f64,
    /// Probability that groups of equal runs are closer together than these.
    pub confidence: f64,
}

/// A shift in one function's CPU time, as a part of the whole job's.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionShift {
    pub function: JobFunction,
    pub shift: Shift,
}

/// Whether CPU time changed by as much as counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Slower,
    Faster,
    /// Or none that can be seen: the interval says how large it may be.
    NoChange,
}

/// How the new runs differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub verdict: Verdict,
    /// Runs of each group.
    pub base_runs: usize,
    pub new_runs: usize,
    /// The smallest change that counts, as a part of the base's CPU time.
    pub least: f64,
    pub cpu: Shift,
    pub wall: Shift,
    /// Functions that changed for certain, the largest change first; of those that have `least` of the time, before or
    /// after. `None`: the runs are too few for so many functions.
    pub functions: Option<Vec<FunctionShift>>,
}

/// Two groups that can't be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error(
        "{base} runs and {new} are too few for a verdict: make at least 6 of each, better 20 (--runs)"
    )]
    TooFewRuns { base: usize, new: usize },
    #[error("no run has CPU time of the job: was it so short, or --vm or --process another one?")]
    NoTime,
}

impl JobRun {
    fn cpu_ns(&self) -> u64 {
        self.functions.values().sum()
    }
}

/// Compares two groups of runs. `least` is the smallest change that counts, as a part of the base's CPU time.
///
/// # Errors
/// With too few runs for an interval, or none with CPU time.
pub fn compare(base: &[JobRun], new: &[JobRun], least: f64) -> Result<Comparison, CompareError> {
    let too_few = CompareError::TooFewRuns { base: base.len(), new: new.len() };
    let all = |value: &dyn Fn(&JobRun) -> u64| {
        let values = |runs: &[JobRun]| runs.iter().map(value).collect::<Vec<_>>();
        (values(base), values(new))
    };
    let ranks = Ranks::new(base.len(), new.len(), ERROR).ok_or(too_few)?;
    let (before, after) = all(&JobRun::cpu_ns);
    let whole_ns = median(&before);
    if whole_ns == 0 {
        return Err(CompareError::NoTime);
    }
    let cpu = ranks.shift(&before, &after, whole_ns);
    let (before, after) = all(&|run| run.wall_ns);
    let wall = ranks.shift(&before, &after, median(&before).max(1));
    let verdict = match () {
        () if 0.0 < cpu.low && least <= cpu.change => Verdict::Slower,
        () if cpu.high < 0.0 && cpu.change <= -least => Verdict::Faster,
        () => Verdict::NoChange,
    };
    let names: BTreeSet<&JobFunction> =
        base.iter().chain(new).flat_map(|run| run.functions.keys()).collect();
    let mut looked_at = Vec::new();
    for function in names {
        let (before, after) = all(&|run| run.functions.get(function).copied().unwrap_or(0));
        let most = median(&before).max(median(&after));
        if least * whole_ns as f64 <= most as f64 {
            looked_at.push((function, before, after));
        }
    }
    // The error of one of many is that of each, times their number (Bonferroni).
    let error = ERROR / looked_at.len().max(1) as f64;
    let functions = Ranks::new(base.len(), new.len(), error).map(|ranks| {
        let shift = |(function, before, after): &(&JobFunction, Vec<u64>, Vec<u64>)| {
            let shift = ranks.shift(before, after, whole_ns);
            FunctionShift { function: (*function).clone(), shift }
        };
        let mut sure: Vec<FunctionShift> = looked_at.iter().map(shift).collect();
        sure.retain(|function| function.shift.is_sure());
        sure.sort_by(|a, b| b.shift.change.abs().total_cmp(&a.shift.change.abs()));
        sure
    });
    let (base_runs, new_runs) = (base.len(), new.len());
    Ok(Comparison { verdict, base_runs, new_runs, least, cpu, wall, functions })
}

impl Shift {
    /// Whether its interval lies on one side of zero.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        0.0 < self.low || self.high < 0.0
    }
}

/// Which of the sorted differences of two groups bound the interval.
#[derive(Debug, Clone, Copy)]
struct Ranks {
    /// Number of differences.
    pairs: usize,
    /// From 1.
    lower: usize,
    /// Mean and standard deviation of the statistic between groups of equal runs.
    mean: f64,
    deviation: f64,
}

impl Ranks {
    /// `None`: so few runs have no interval of such a small error.
    fn new(n: usize, m: usize, error: f64) -> Option<Self> {
        let pairs = n * m;
        let mean = pairs as f64 / 2.0;
        let deviation = (pairs as f64 * (n + m + 1) as f64 / 12.0).sqrt();
        let rank = (mean - quantile(1.0 - error / 2.0) * deviation).floor();
        if rank < 1.0 {
            return None;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and below the number of pairs"
        )]
        let lower = rank as usize;
        Some(Self { pairs, lower, mean, deviation })
    }

    fn shift(&self, base: &[u64], new: &[u64], whole_ns: u64) -> Shift {
        let part = |ns: f64| ns / whole_ns as f64;
        let by = |a: &u64, b: &u64| *b as f64 - *a as f64;
        let pairs = base.iter().flat_map(|a| new.iter().map(move |b| by(a, b)));
        let mut differences: Vec<f64> = pairs.collect();
        differences.sort_by(f64::total_cmp);
        let half = self.pairs / 2;
        let middle = if self.pairs.is_multiple_of(2) {
            f64::midpoint(differences[half - 1], differences[half])
        } else {
            differences[half]
        };
        let more = differences.iter().filter(|by| 0.0 < **by).count() as f64;
        let equal = differences.iter().filter(|by| **by == 0.0).count() as f64;
        let statistic = more + equal / 2.0;
        let z = ((statistic - self.mean).abs() - 0.5).max(0.0) / self.deviation;
        Shift {
            base_ns: median(base),
            new_ns: median(new),
            change: part(middle),
            low: part(differences[self.lower - 1]),
            high: part(differences[self.pairs - self.lower]),
            confidence: 2.0 * below(z) - 1.0,
        }
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => 0,
        (half, 0) => u64::midpoint(sorted[half - 1], sorted[half]),
        (half, _) => sorted[half],
    }
}

/// Probability that a normally distributed value lies below `z`, to 8e-8 (Abramowitz and Stegun, 26.2.17).
fn below(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - below(-z);
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let terms = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let sum = terms.iter().fold(0.0, |sum, term| (sum + term) * t);
    1.0 - (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum
}

/// The value below which a normally distributed one lies with this probability.
fn quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if below(middle) < probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod test {
    use super::*;

    fn function(name: &str) -> JobFunction {
        JobFunction { process: "job".to_owned(), function: name.to_owned(), module: None }
    }

    /// A run in two functions.
    fn run(hot_ns: u64, rest_ns: u64) -> JobRun {
        let functions = BTreeMap::from([(function("hot"), hot_ns), (function("rest"), rest_ns)]);
        JobRun { functions, wall_ns: hot_ns + rest_ns + 1000 }
    }

    /// Runs with noise of 2 %, and one in ten disturbed by 20 %.
    #[allow(clippy::cast_sign_loss, reason = "no noise is as large as the time")]
    fn runs(random: &mut fastrand::Rng, hot_ns: f64) -> Vec<JobRun> {
        let mut noise = |ns: f64| {
            let normal: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let disturbed = if random.u8(0..10) == 0 { 1.2 } else { 1.0 };
            (ns * (1.0 + 0.02 * normal) * disturbed) as u64
        };
        (0..20).map(|_| run(noise(hot_ns), noise(0.6e9))).collect()
    }

    #[test]
    fn quantiles_are_those_of_tables() {
        for (probability, expected) in [(0.5, 0.0), (0.975, 1.959_964), (0.995, 2.575_829)] {
            assert!((quantile(probability) - expected).abs() < 1e-5, "{probability}");
        }
    }

    #[test]
    fn a_shift_is_the_median_of_the_differences() {
        let base: Vec<JobRun> = (0..6).map(|n| run(1000 + n, 0)).collect();
        let new: Vec<JobRun> = (0..6).map(|n| run(1100 + n, 0)).collect();
        let found = compare(&base, &new, 0.01).unwrap();
        assert_eq!(found.verdict, Verdict::Slower);
        assert_eq!((found.cpu.base_ns, found.cpu.new_ns), (1002, 1102));
        assert!((found.cpu.change - 100.0 / 1002.0).abs() < 1e-9, "{:?}", found.cpu);
        // The least and the largest difference.
        assert_eq!((found.cpu.low, found.cpu.high), (95.0 / 1002.0, 105.0 / 1002.0));
        let faster = compare(&new, &base, 0.01).unwrap();
        assert_eq!(faster.verdict, Verdict::Faster);
        // A change that is certain, and too small to count.
        assert_eq!(compare(&base, &new, 0.2).unwrap().verdict, Verdict::NoChange);
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let one = vec![run(10, 0); 5];
        let few = compare(&one, &one, 0.01);
        assert_eq!(few, Err(CompareError::TooFewRuns { base: 5, new: 5 }));
        assert_eq!(
            compare(&[], &one, 0.01).unwrap_err(),
            CompareError::TooFewRuns { base: 0, new: 5 }
        );
        let idle = vec![run(0, 0); 6];
        assert_eq!(compare(&idle, &idle, 0.01), Err(CompareError::NoTime));
    }

    /// 100 comparisons of equal runs, and 100 where `hot` (40 % of the job) takes so much more that the job takes 3 % more.
    #[test]
    fn a_regression_is_found_and_none_made_up() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut false_alarms, mut found, mut named) = (0, 0, 0);
        for _ in 0..100 {
            let base = runs(&mut random, 0.4e9);
            let equal = compare(&base, &runs(&mut random, 0.4e9), 0.01).unwrap();
            false_alarms += usize::from(equal.verdict == Verdict::Slower);
            let slower = compare(&base, &runs(&mut random, 0.43e9), 0.01).unwrap();
            found += usize::from(slower.verdict == Verdict::Slower);
            let first = slower.functions.as_ref().unwrap().first().map(|first| &first.function);
            named += usize::from(first == Some(&function("hot")));
        }
        eprintln!("{found} of 100 found, {named} with their function, {false_alarms} false alarms");
        assert!(false_alarms <= 1, "{false_alarms}");
        assert!(75 <= found && 95 <= named, "{found} {named}");
    }
}
