//! Calls for tests of function tracing: many small ones that are timed, then a few of every shape.

use core::hint::black_box;
use core::time::Duration;
use glasshouse::{Error, Platform};

/// Calls that are timed together: at most 1 ms even if all are traced, so that few rounds are preempted.
const TIMED: u64 = 20_000;
/// Pause between rounds, in which other tasks run.
const PAUSE: Duration = Duration::from_millis(5);
/// How often [`climb`] calls itself.
const HEIGHT: u64 = 3;

/// Prints after each round how many nanoseconds a call of [`tiny`] took.
pub(crate) async fn serve(platform: &impl Platform) -> Result<(), Error> {
    let mut value = 1;
    loop {
        let start = platform.now();
        for _ in 0..TIMED {
            value = tiny(value);
        }
        let took = platform.now() - start;
        platform.print(format_args!("function {:.2}", took.as_nanos() as f64 / TIMED as f64));
        value = shapes(value);
        platform.sleep(PAUSE).await;
    }
}

#[inline(never)]
fn tiny(value: u64) -> u64 {
    black_box(value).wrapping_add(1)
}

/// Recursion, then a tail call.
#[inline(never)]
fn shapes(value: u64) -> u64 {
    let value = climb(value, HEIGHT);
    black_box(hand_over(value))
}

#[inline(never)]
fn climb(value: u64, height: u64) -> u64 {
    if height == 0 {
        return last(value);
    }
    // The code after the call keeps it from becoming a loop.
    black_box(climb(value, height - 1)).wrapping_add(height)
}

/// Ends with a jump to [`last`].
#[inline(never)]
fn hand_over(value: u64) -> u64 {
    last(value.wrapping_mul(3))
}

#[inline(never)]
fn last(value: u64) -> u64 {
    black_box(value) ^ 1
}
