//! Median and spread of repeated measurements, and the order in which contestants take turns.

/// Summary of repeated measurements of one quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// How many measurements.
    pub count: usize,
    /// The 50th percentile.
    pub median: f64,
    /// The 10th percentile.
    pub low: f64,
    /// The 90th percentile.
    pub high: f64,
}

impl Summary {
    /// Sums up `samples`; `None` if there are none or one is not a number.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part| percentile(&sorted, part);
        Some(Summary { count: sorted.len(), median: at(0.5), low: at(0.1), high: at(0.9) })
    }
}

/// The value below which `part` (0 to 1) of the samples lie; `None` without any.
pub fn percentile_of(samples: &[f64], part: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| percentile(&sorted, part))
}

/// The value below which `part` (0 to 1) of the sorted, non-empty samples lie, interpolated between
/// the two nearest.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// The geometric mean of ratios, none of which is 0. `None` without any.
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp())
}

/// The order in which `contestants` run in `round`: each round starts with another one, so that none
/// profits from always following the same neighbour.
pub fn turn(contestants: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..contestants).map(move |index| (index + round) % contestants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread_are_interpolated() {
        let samples: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&samples), Some(Summary { count: 11, median: 5.0, low: 1.0, high: 9.0 }));
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().low, 1.1);
    }

    #[test]
    fn one_sample_is_its_own_spread_and_none_is_nothing() {
        assert_eq!(Summary::of(&[7.0]), Some(Summary { count: 1, median: 7.0, low: 7.0, high: 7.0 }));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn a_ratio_and_its_inverse_have_the_mean_1() {
        assert!((geometric_mean(&[4.0, 0.25]).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn each_round_begins_with_another_contestant() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| turn(3, round).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
