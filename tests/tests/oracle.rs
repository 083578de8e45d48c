//! What is sampled is what QEMU counts.
#![forbid(unsafe_code)]

use glass_tests::limit::{say, within};
use glass_tests::oracle::comparison::{self, Function};
use glass_tests::programs;
use std::time::Duration;

/// The most that a function's sampled share may differ from the counted one, in percentage points, of what
/// the guest does when it does not wait. Without the correction of `profiler/core/src/skid.rs` it is 17 to 38.
const POINTS_MAX: f64 = 8.0;
/// And for chance: so many standard deviations of a share of that many samples.
const DEVIATIONS: f64 = 4.0;

#[test]
fn sampled_shares_of_the_queue_are_the_counted_ones() {
    within(Duration::from_secs(180), || {
        let Some(comparison) = comparison::run(if programs::is_long() { 30 } else { 6 }).unwrap() else { return };
        let all_points = comparison.worst().map_or(0.0, Function::difference_points);
        let comparison = comparison.without_spinning();
        let Some(worst) = comparison.worst() else { panic!("no function ran") };
        let points = worst.difference_points();
        let share = worst.time_percent / 100.0;
        let chance = DEVIATIONS * 100.0 * (share * (1.0 - share) / comparison.samples as f64).sqrt();
        let Function { name, sampled_percent, time_percent, .. } = worst;
        let text = format!(
            "{} samples of work; the largest difference is {points:.2} points (chance {chance:.2}): {sampled_percent:.1} % sampled and {time_percent:.1} % counted of {name}; with spinning {all_points:.2} points",
            comparison.samples
        );
        say(&format!("oracle: {text}"));
        assert!(points <= POINTS_MAX + chance, "{text}");
    });
}
