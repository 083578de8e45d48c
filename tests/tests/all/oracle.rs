//! Sampled shares agree with the shares that QEMU counts.

use glass_tests::limit::{say, within};
use glass_tests::oracle::comparison::{self, Function};
use glass_tests::programs;
use glass_tests::queue::World;
use std::time::Duration;

/// The most that a function's sampled share may differ from the counted one, in percentage points, the function
/// in which the guest waits for its devices included. Samples that wait for QEMU's main loop
/// show up to 29 points too much of that one, and without the correction of
/// `profiler/core/src/unwind/skid.rs` others differ by 17 to 38.
const POINTS_MAX: f64 = 4.0;
/// A quiet host collects twice as many. On a busy host QEMU's threads wait for a CPU, the guest mostly
/// where it waits for QEMU's main loop, and late samples find it there.
const SAMPLES_PER_SEC_MIN: u64 = 120;
/// The allowance for chance: so many standard deviations of a share of that many samples.
const DEVIATIONS: f64 = 4.0;

#[test]
fn sampled_shares_of_the_queue_are_the_counted_ones() {
    within(Duration::from_secs(600), || compare(World::Tcg));
}

/// The queue in an emulated VM.
pub fn compare(_world: World) {
    let seconds = if programs::is_long() { 30 } else { 6 };
    let Some(comparison) = comparison::run(seconds).unwrap() else { return };
    if comparison.samples < u64::from(seconds) * SAMPLES_PER_SEC_MIN {
        return programs::skip(&format!("the host is too busy: {} samples in {seconds} s", comparison.samples));
    }
    let Some(worst) = comparison.worst() else { panic!("no function ran") };
    let points = worst.difference_points();
    let chance = DEVIATIONS * worst.deviation_points(comparison.samples);
    let Function { name, sampled_percent, time_percent, .. } = worst;
    let text = format!(
        "{} samples; the largest difference is {points:.2} points (chance {chance:.2}): {sampled_percent:.1} % sampled and {time_percent:.1} % counted of {name}",
        comparison.samples
    );
    say(&format!("oracle: {text}"));
    assert!(points <= POINTS_MAX + chance, "{text}");
}
