//! The clock of the CPU beside the clock of the machine.

use super::arch::ticks;
use super::monotonic_ns;

/// Pairs of which the best is taken.
const LOOKS: usize = 5;

/// Both clocks at the same moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClockPair {
    /// The clock of the CPU.
    pub(crate) ticks: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub(crate) time_ns: u64,
    /// How many ticks the two may be apart.
    pub(crate) error_ticks: u64,
}

/// Both clocks: of several pairs of reads the fastest.
pub(crate) fn read_pair() -> ClockPair {
    let look = |_| {
        let before = ticks();
        let time_ns = monotonic_ns();
        let took = ticks().wrapping_sub(before);
        ClockPair { ticks: before.wrapping_add(took / 2), time_ns, error_ticks: took / 2 + 1 }
    };
    (0..LOOKS).map(look).min_by_key(|pair| pair.error_ticks).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_go_forward_together() {
        let first = read_pair();
        std::thread::sleep(std::time::Duration::from_millis(3));
        let second = read_pair();
        assert!(second.ticks > first.ticks && second.time_ns > first.time_ns);
        let hz = (second.ticks - first.ticks) as f64 * 1e9 / (second.time_ns - first.time_ns) as f64;
        assert!((1e8..1e11).contains(&hz), "{hz}");
    }
}
