//! Means with confidence intervals, of runs and of pairs of runs.

/// A mean, and where the true one lies with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The mean of what was measured.
    pub mean: f64,
    /// Lower end; `None`: one measurement tells none.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Measurements, or pairs.
    pub n: usize,
}

/// The mean of measurements that do not depend on each other; `None` of none. The interval is Student's.
#[must_use]
pub fn mean(values: &[f64]) -> Option<Interval> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let Some(quantile) = student(n - 1) else {
        return Some(Interval { mean, low: None, high: None, n });
    };
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let half = quantile * (squares / (n - 1) as f64 / n as f64).sqrt();
    Some(Interval { mean, low: Some(mean - half), high: Some(mean + half), n })
}

/// The mean of measurements of something that is never below zero: nor is its interval, whose lower half says no more then.
#[must_use]
pub fn mean_of_sizes(values: &[f64]) -> Option<Interval> {
    let interval = mean(values)?;
    Some(Interval { low: interval.low.map(|low| low.max(0.0)), ..interval })
}

/// By which part a remedy changes a figure, from pairs (without, with) measured one after the other: -0.25 is a quarter less.
/// Taken from logarithms, so that half and double are equally far; `None` without pairs.
#[must_use]
pub fn change(pairs: &[(f64, f64)]) -> Option<Interval> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(without, with)| 0.0 < *without && 0.0 < *with)
        .map(|(without, with)| (with / without).ln())
        .collect();
    let of_logs = mean(&logs)?;
    let part = |log: f64| log.exp() - 1.0;
    let Interval { mean, low, high, n } = of_logs;
    Some(Interval { mean: part(mean), low: low.map(part), high: high.map(part), n })
}

/// By which part the second measurements differ from the first ones, which are not paired with them (Welch's interval of the
/// means of logarithms); `None`: one side has none.
#[must_use]
pub fn difference(first: &[f64], second: &[f64]) -> Option<Interval> {
    let logs = |values: &[f64]| -> Vec<f64> {
        values.iter().filter(|value| 0.0 < **value).map(|value| value.ln()).collect()
    };
    let (first, second) = (logs(first), logs(second));
    let spread = |logs: &[f64], mean: f64| {
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let freedom = logs.len() as f64 - 1.0;
        (squares / freedom / logs.len() as f64, freedom)
    };
    let (a, b) = (mean(&first)?, mean(&second)?);
    let by = b.mean - a.mean;
    let part = |log: f64| log.exp() - 1.0;
    let n = first.len().min(second.len());
    let known = |half: Option<f64>| Interval {
        mean: part(by),
        low: half.map(|half| part(by - half)),
        high: half.map(|half| part(by + half)),
        n,
    };
    if n < 2 {
        return Some(known(None));
    }
    let ((var_a, freedom_a), (var_b, freedom_b)) =
        (spread(&first, a.mean), spread(&second, b.mean));
    let var = var_a + var_b;
    // Never less than that of the smaller side, nor more than of both.
    let freedom = var.powi(2) / (var_a.powi(2) / freedom_a + var_b.powi(2) / freedom_b);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts saturate, and what is no number becomes 0"
    )]
    let freedom = (freedom as usize).max(n - 1);
    Some(known(student(freedom).map(|quantile| quantile * var.sqrt())))
}

/// `(a, b)` of the line a + b x that is nearest to the points; `None` of less than two different x.
#[must_use]
pub fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let (x_sum, y_sum) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (x_mean, y_mean) = (x_sum / n, y_sum / n);
    let xx: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    let xy: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    if xx <= 0.0 || !xx.is_finite() {
        return None;
    }
    let slope = xy / xx;
    Some((y_mean - slope * x_mean, slope))
}

/// The middle one, or the mean of the two middle ones; `None` of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[half - 1], upper)) }
}

impl Interval {
    /// Whether it lies on one side of zero.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        matches!((self.low, self.high), (Some(low), Some(high)) if 0.0 < low || high < 0.0)
    }
}

/// Student's distribution, 0.975: by degrees of freedom; `None` of none. Tables end at 30; beyond, the error of the formula
/// (first term of Cornish-Fisher) is below 0.2 %.
fn student(freedom: usize) -> Option<f64> {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let index = freedom.checked_sub(1)?;
    let normal: f64 = 1.959_964;
    let beyond = normal + (normal.powi(3) + normal) / (4.0 * freedom as f64);
    Some(TABLE.get(index).copied().unwrap_or(beyond))
}

#[cfg(test)]
mod test {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-3 * expected.abs().max(1.0), "{found} {expected}");
    }

    #[test]
    fn intervals_are_students() {
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[4.0]), Some(Interval { mean: 4.0, low: None, high: None, n: 1 }));
        // By hand: mean 5, standard deviation 2, 2 / sqrt(3) * 4.303 = 4.969.
        let found = mean(&[3.0, 5.0, 7.0]).unwrap();
        near(found.mean, 5.0);
        near(found.low.unwrap(), 5.0 - 4.969);
        near(found.high.unwrap(), 5.0 + 4.969);
        // A time: between 0 and 10 + 24.8.
        let found = mean_of_sizes(&[0.1, 20.0, 10.0]).unwrap();
        assert_eq!(found.low, Some(0.0));
        assert!(34.0 < found.high.unwrap());
        assert!((student(31).unwrap() / 2.0395 - 1.0).abs() < 0.002);
        near(student(1000).unwrap(), 1.9623);
    }

    #[test]
    fn a_change_is_by_pairs() {
        // Each pair is a quarter faster, however much the pairs differ.
        let found = change(&[(100.0, 75.0), (200.0, 150.0), (50.0, 37.5)]).unwrap();
        near(found.mean, -0.25);
        assert!(found.is_sure() && found.n == 3);
        let found = change(&[(100.0, 50.0), (100.0, 200.0)]).unwrap();
        near(found.mean, 0.0);
        assert!(!found.is_sure());
        assert_eq!(change(&[(0.0, 1.0)]), None);
    }

    #[test]
    fn a_difference_is_of_means() {
        let found = difference(&[100.0, 100.0], &[200.0, 200.0]).unwrap();
        near(found.mean, 1.0);
        assert!(found.is_sure());
        // By hand: logarithms 0, 1, 2 and 1, 2, 3; both variances of the mean 1/3, 4 degrees: 1 +- 2.776 sqrt(2/3).
        let [a, b]: [Vec<f64>; 2] =
            [0, 1].map(|low| (low..low + 3).map(|n| f64::from(n).exp()).collect());
        let found = difference(&a, &b).unwrap();
        near(found.mean, 1_f64.exp() - 1.0);
        near(found.low.unwrap(), (1.0 - 2.776 * (2.0_f64 / 3.0).sqrt()).exp() - 1.0);
        assert!(!found.is_sure());
        assert_eq!(difference(&[1.0], &[2.0, 3.0]).unwrap().low, None);
        assert_eq!(difference(&[], &[2.0]), None);
    }

    #[test]
    fn the_nearest_line() {
        let (a, b) = line(&[(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]).unwrap();
        near(a, 1.0);
        near(b, 2.0);
        assert_eq!(line(&[(1.0, 3.0), (1.0, 4.0)]), None);
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
