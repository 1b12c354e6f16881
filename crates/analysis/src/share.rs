//! Whole numbers shared out in proportion.

use std::collections::BTreeMap;

/// `n` in proportion to the weights, by largest remainder; all get 0 if all weights are 0.
pub(crate) fn shared_out<K: Ord + Copy>(n: u64, weights: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let total: u128 = weights.values().map(|weight| u128::from(*weight)).sum();
    if total == 0 {
        return BTreeMap::new();
    }
    let product = |weight: u64| u128::from(n) * u128::from(weight);
    let whole =
        |weight: u64| u64::try_from(product(weight) / total).expect("a part is at most the whole");
    let mut shared: BTreeMap<K, u64> =
        weights.iter().map(|(key, weight)| (*key, whole(*weight))).collect();
    let left = n - shared.values().sum::<u64>();
    let mut by_remainder: Vec<_> =
        weights.iter().map(|(key, weight)| (product(*weight) % total, key)).collect();
    by_remainder.sort_by_key(|(remainder, _)| std::cmp::Reverse(*remainder));
    for ((_, key), _) in by_remainder.into_iter().zip(0..left) {
        *shared.entry(*key).or_default() += 1;
    }
    shared
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn largest_remainders_first() {
        let weights = [('a', 1), ('b', 1), ('c', 1)].into();
        let check = |n, expected: [u64; 3]| {
            assert!(shared_out(n, &weights).into_values().eq(expected), "{n}");
        };
        check(0, [0, 0, 0]);
        check(1, [1, 0, 0]);
        check(5, [2, 2, 1]);
        check(u64::MAX, [u64::MAX / 3; 3]);
        assert_eq!(shared_out(3, &[('a', 0)].into()), BTreeMap::new());
    }
}
