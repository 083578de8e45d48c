//! Time: the processor's counter, scaled.

use crate::arch::ticks;
use crate::arch::time::Frequency;
use crate::cores::this_core;
use core::sync::atomic::Ordering;
use glass_api::Instant;

/// Bits after the binary point of the clock's scale.
const SCALE_BITS: u32 = 32;
const NS_PER_S: u128 = 1_000_000_000;

/// Sets the clock; `origin` is the counter's value that is time zero.
pub fn initialize(frequency: &Frequency, origin: u64) {
    let hz = frequency.hz();
    let core = this_core();
    core.clock_origin.set(origin);
    core.clock_scale.set(scale(hz));
    core.state().tsc_hz.store(hz, Ordering::Relaxed);
    glass_lib_trace::set_rate(hz);
}

/// Nanoseconds per tick as a fixed-point number.
fn scale(hz: u64) -> u64 {
    ((NS_PER_S << SCALE_BITS) / u128::from(hz.max(1))) as u64
}

/// Continues at the time that it had when the counter was `before`: the counter is `ticks` now, be it of another machine's start.
pub fn continue_from(before: u64, ticks: u64) {
    let origin = &this_core().clock_origin;
    origin.set(origin.get().wrapping_add(ticks.wrapping_sub(before)));
}

/// Time since the image was entered.
pub fn now() -> Instant {
    instant(ticks())
}

/// The time when the counter was `ticks`.
pub fn instant(ticks: u64) -> Instant {
    let core = this_core();
    // The origin of a copy may be before the counter's zero, and the counter of another core a little before the origin.
    let ticks = ticks.wrapping_sub(core.clock_origin.get()).cast_signed().max(0).cast_unsigned();
    Instant(((u128::from(ticks) * u128::from(core.clock_scale.get())) >> SCALE_BITS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_ticks_is_a_second() {
        for hz in [1_000_000u64, 2_596_124_000, 5_000_000_000] {
            let ns = (u128::from(hz) * u128::from(scale(hz))) >> SCALE_BITS;
            assert!(ns.abs_diff(NS_PER_S) <= u128::from(hz >> 31) + 2, "{hz} {ns}");
        }
    }
}
