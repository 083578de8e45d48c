//! A histogram of durations: fixed size, any number of values, quantiles within 2 %.

use crate::model::Distribution;

/// Sub-buckets a power of two: the error of a quantile is at most 1 in 64 of the value.
const STEPS: u64 = 64;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = ((64 - STEPS_LOG2 + 1) as usize) * STEPS as usize;

/// Counts durations in buckets that grow with the value.
#[derive(Debug, Clone)]
pub struct Durations {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { counts: vec![0; BUCKETS], count: 0, sum_ns: 0, max_ns: 0 }
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let shift = exponent - STEPS_LOG2;
    ((u64::from(shift) + 1) * STEPS + (value >> shift) - STEPS) as usize
}

/// The largest value of a bucket.
fn bucket_end(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    let first = (STEPS + index % STEPS) << shift;
    first + ((1 << shift) - 1)
}

impl Durations {
    /// Adds a duration.
    pub fn add(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
        self.max_ns = self.max_ns.max(nanoseconds);
    }

    /// How many were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value that at least `share` (0 to 1) of the durations do not exceed; 0 if there are none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_end(index).min(self.max_ns);
            }
        }
        0
    }

    /// The summary that a recording keeps.
    pub fn distribution(&self) -> Distribution {
        Distribution {
            count: self.count,
            median_ns: self.quantile_ns(0.5),
            p99_ns: self.quantile_ns(0.99),
            max_ns: self.max_ns,
            sum_ns: self.sum_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_added_is_all_zeros() {
        assert_eq!(Durations::default().distribution(), Distribution::default());
    }

    proptest! {
        #[test]
        fn each_value_lies_in_its_bucket(value: u64) {
            let index = bucket(value);
            prop_assert!(index < BUCKETS);
            prop_assert!(bucket_end(index) >= value);
            prop_assert!(index == 0 || bucket_end(index - 1) < value);
            prop_assert!(bucket_end(index) - value <= value / STEPS);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_list(mut values in proptest::collection::vec(0u64..10_000_000, 1..300)) {
            let mut durations = Durations::default();
            values.iter().for_each(|value| durations.add(*value));
            values.sort_unstable();
            let summary = durations.distribution();
            let exact = |share: f64| values[((values.len() as f64 * share).ceil() as usize).max(1) - 1];
            prop_assert_eq!(summary.max_ns, *values.last().unwrap());
            for (got, want) in [(summary.median_ns, exact(0.5)), (summary.p99_ns, exact(0.99))] {
                prop_assert!(got >= want && got - want <= want / STEPS + 1, "{} for {}", got, want);
            }
        }
    }
}
