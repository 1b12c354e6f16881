//! Where in a row of values a step is, how sure that is, and from when to when it may have been.
//!
//! The values are a step on top of a trend and of noise:
//!
//! ```text
//!  value = trend(t) + size * (t >= at) + noise
//! ```
//!
//! For every possible `at`, least squares give the size and by how much the step improves the fit, its *gain*. The best
//! `at` has the highest gain. A daily rhythm is a trend of the second degree over two hours, so it is no step. `exp(gain /
//! 2 sigma^2)` is the likelihood of each `at`: the interval holds 95 % of it. The noise may be correlated in time: the
//! residuals' correlation tells how many independent values the row stands for.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    /// The first value after it.
    pub(crate) at: usize,
    /// It lies here with a probability of 95 %: first and last possible `at`.
    pub(crate) interval: (usize, usize),
    pub(crate) size: f64,
    /// Its size in standard errors: 0 if nothing is there.
    pub(crate) score: f64,
}

/// What the values do beside the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trend {
    Constant,
    /// They follow a parabola.
    Quadratic,
}

/// Values that lie farther from the median count as this many scales: one outlier makes no step.
const CLIP: f64 = 4.0;

/// The most likely step with at least `margin` values on both sides. `None`: too few values.
pub(crate) fn step(values: &[f32], trend: Trend, margin: usize) -> Option<Step> {
    let n = values.len();
    let basis = basis(n, trend);
    let margin = margin.max(1);
    if n < 2 * margin || n <= basis.len() + 2 {
        return None;
    }
    let y = clipped(values);
    let weights: Vec<f64> = basis.iter().map(|p| dot(p, &y)).collect();
    let fits = fits(&y, &basis, &weights);
    let best = (margin..=n - margin).max_by(|a, b| fits[*a].gain().total_cmp(&fits[*b].gain()))?;
    let fit = fits[best];
    if fit.left <= 1e-9 {
        return None;
    }
    let size = fit.projection / fit.left;
    let residuals = residuals(&y, &basis, &weights, (best, size));
    let freedom = n - basis.len() - 1;
    let variance = dot(&residuals, &residuals) / freedom as f64 * inflation(&residuals);
    let variance = variance.max(1e-12);
    let likelihood = |at: usize| ((fits[at].gain() - fit.gain()) / (2.0 * variance)).exp();
    let interval = middle(margin..=n - margin, likelihood);
    Some(Step { at: best, interval, size, score: (fit.gain() / variance).sqrt() })
}

/// Of a step at an instant, with the trend taken out of it.
#[derive(Debug, Clone, Copy, Default)]
struct Fit {
    /// Its product with the values.
    projection: f64,
    /// What is left of it, squared.
    left: f64,
}

impl Fit {
    fn gain(self) -> f64 {
        if self.left <= 1e-9 { 0.0 } else { self.projection * self.projection / self.left }
    }
}

fn fits(y: &[f64], basis: &[Vec<f64>], weights: &[f64]) -> Vec<Fit> {
    let mut fits = vec![Fit::default(); y.len() + 1];
    let mut sum = 0.0;
    let mut of_basis = vec![0.0; basis.len()];
    for at in (0..y.len()).rev() {
        sum += y[at];
        let (mut projection, mut left) = (sum, (y.len() - at) as f64);
        for ((p, of_p), weight) in basis.iter().zip(&mut of_basis).zip(weights) {
            *of_p += p[at];
            projection -= *of_p * weight;
            left -= *of_p * *of_p;
        }
        fits[at] = Fit { projection, left };
    }
    fits
}

fn residuals(y: &[f64], basis: &[Vec<f64>], weights: &[f64], step: (usize, f64)) -> Vec<f64> {
    let (at, size) = step;
    let stepped: Vec<f64> =
        y.iter().enumerate().map(|(n, y)| if n < at { *y } else { y - size }).collect();
    // What the step took away changes the trend's weights, too.
    let weights: Vec<f64> =
        basis.iter().zip(weights).map(|(p, w)| w - size * p[at..].iter().sum::<f64>()).collect();
    let fitted = |n: usize| basis.iter().zip(&weights).map(|(p, w)| p[n] * w).sum::<f64>();
    stepped.iter().enumerate().map(|(n, y)| y - fitted(n)).collect()
}

/// Orthonormal polynomials.
fn basis(n: usize, trend: Trend) -> Vec<Vec<f64>> {
    let degree = match trend {
        Trend::Constant => 0,
        Trend::Quadratic => 2,
    };
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for power in 0..=degree {
        let at = |t: usize| (2.0 * t as f64 / n.max(2) as f64 - 1.0).powi(power);
        let mut p: Vec<f64> = (0..n).map(at).collect();
        for known in &basis {
            let common = dot(known, &p);
            p.iter_mut().zip(known).for_each(|(p, known)| *p -= common * known);
        }
        let length = dot(&p, &p).sqrt().max(f64::MIN_POSITIVE);
        p.iter_mut().for_each(|p| *p /= length);
        basis.push(p);
    }
    basis
}

/// By how much correlation in time multiplies the variance of a mean; estimated too low from few values, which is made up for.
fn inflation(residuals: &[f64]) -> f64 {
    let n = residuals.len() as f64;
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let seen = products / dot(residuals, residuals).max(f64::MIN_POSITIVE);
    let correlation = (seen + (1.0 + 3.0 * seen.max(0.0)) / n).clamp(0.0, 0.9);
    (1.0 + correlation) / (1.0 - correlation)
}

/// First and last of the middle 95 % of the weight.
fn middle(all: std::ops::RangeInclusive<usize>, weight: impl Fn(usize) -> f64) -> (usize, usize) {
    let total: f64 = all.clone().map(&weight).sum();
    let beyond = |reached: &mut f64, at: usize| {
        *reached += weight(at);
        Some((at, 0.025 * total < *reached))
    };
    let first = |(at, is_in): (usize, bool)| is_in.then_some(at);
    let (low, high) = (*all.start(), *all.end());
    let from = all.clone().scan(0.0, beyond).find_map(first).unwrap_or(low);
    let to = all.rev().scan(0.0, beyond).find_map(first).unwrap_or(high);
    (from, to)
}

fn clipped(values: &[f32]) -> Vec<f64> {
    let (median, scale) = median_and_scale(&mut values.to_vec());
    let (median, limit) = (f64::from(median), CLIP * f64::from(scale));
    // Where more than half are equal the scale says nothing.
    let limit = if limit <= 0.0 { f64::MAX } else { limit };
    values.iter().map(|v| median + (f64::from(*v) - median).clamp(-limit, limit)).collect()
}

/// Median, and the median absolute deviation as a standard deviation of normal noise. Changes the values.
pub(crate) fn median_and_scale(values: &mut [f32]) -> (f32, f32) {
    let middle = median(values);
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    (middle, 1.4826 * median(values))
}

/// The median; 0 of nothing.
pub(crate) fn median_of(values: impl Iterator<Item = f32>) -> f32 {
    median(&mut values.collect::<Vec<_>>())
}

fn median(values: &mut [f32]) -> f32 {
    nth(values, values.len() / 2)
}

/// The value that this percentage is below; 0 of nothing. Reorders the values.
pub(crate) fn quantile(values: &mut [f32], percent: usize) -> f32 {
    nth(values, values.len() * percent / 100)
}

fn nth(values: &mut [f32], n: usize) -> f32 {
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(n, f32::total_cmp).1 }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod test {
    use super::*;

    /// Uniform in -1 .. 1.
    fn noise(seed: &mut u64) -> f64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f64 / f64::from(1u32 << 23) - 1.0
    }

    fn row(n: usize, seed: &mut u64, value: impl Fn(usize) -> f64) -> Vec<f32> {
        (0..n).map(|t| (value(t) + noise(seed)) as f32).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut seed = 1;
        let values = row(120, &mut seed, |t| if t < 70 { 5.0 } else { 9.0 });
        for trend in [Trend::Constant, Trend::Quadratic] {
            let found = step(&values, trend, 5).unwrap();
            assert_eq!(found.at, 70);
            assert!((found.size - 4.0).abs() < 0.5, "{found:?}");
            assert!(12.0 < found.score, "{found:?}");
        }
    }

    #[test]
    fn a_daily_rhythm_is_no_step() {
        let mut seed = 2;
        for phase in 0..24 {
            let at =
                |t: usize| (f64::from(phase) / 24.0 + t as f64 / 1440.0) * std::f64::consts::TAU;
            let values = row(120, &mut seed, |t| 20.0 * at(t).sin());
            let found = step(&values, Trend::Quadratic, 10).unwrap();
            assert!(found.score < 4.5, "{phase}: {found:?}");
        }
    }

    #[test]
    fn an_outlier_is_no_step() {
        let mut seed = 3;
        let values = row(120, &mut seed, |t| if t == 60 { 1000.0 } else { 0.0 });
        assert!(step(&values, Trend::Quadratic, 3).unwrap().score < 4.5);
    }

    #[test]
    fn the_interval_holds_the_step_19_times_in_20() {
        let mut seed = 4;
        let holds = |_: &usize| {
            let values = row(100, &mut seed, |t| if t < 50 { 0.0 } else { 0.8 });
            let (from, to) = step(&values, Trend::Constant, 5).unwrap().interval;
            (from..=to).contains(&50)
        };
        let held = (0..400).filter(holds).count();
        assert!((370..=400).contains(&held), "{held}");
    }

    #[test]
    fn few_or_equal_values_have_no_step() {
        assert_eq!(step(&[], Trend::Constant, 1), None);
        assert_eq!(step(&[1.0; 3], Trend::Quadratic, 1), None);
        assert!(step(&[1.0; 50], Trend::Quadratic, 3).is_none_or(|found| found.size.abs() < 1e-6));
    }
}
