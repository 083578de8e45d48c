//! The time for which a profiler stopped the guest's thread, which belongs to no function.

use super::Slice;
use anyhow::{Context, Result, ensure};
use prost::Message;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The fields of a recording that are read; docs/formats/recording.md.
#[derive(Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packets: Vec<Packet>,
}

#[derive(Message)]
struct Packet {
    #[prost(uint64, tag = "8")]
    timestamp_ns: u64,
    #[prost(message, optional, tag = "60001")]
    glass: Option<Glass>,
}

#[derive(Message)]
struct Glass {
    #[prost(message, optional, tag = "3")]
    sample: Option<Sample>,
}

#[derive(Message)]
struct Sample {
    #[prost(uint64, tag = "4")]
    held_ns: u64,
}

/// The pauses of samples, in order, in nanoseconds of `CLOCK_BOOTTIME`.
pub fn intervals(recording: &Path) -> Result<Vec<Range<u64>>> {
    let bytes = std::fs::read(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    let trace = Trace::decode(&*bytes).context("the recording is not a Perfetto trace")?;
    let held = |packet: Packet| {
        let sample = packet.glass?.sample?;
        Some(packet.timestamp_ns..packet.timestamp_ns + sample.held_ns)
    };
    let mut intervals: Vec<Range<u64>> = trace.packets.into_iter().filter_map(held).collect();
    intervals.sort_by_key(|interval| interval.start);
    ensure!(intervals.iter().any(|interval| !interval.is_empty()), "the recording has no pauses");
    Ok(intervals)
}

/// The ticks of each function's slices that lie in the intervals.
///
/// A guest does not stop for the whole of an interval: its threads run for moments, to release locks. That time is left out too,
/// since no sample can be taken in it.
pub fn ticks<'a>(slices: &[Slice<'a>], intervals: &[Range<u64>]) -> HashMap<&'a str, u64> {
    let mut ticks = HashMap::new();
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else { return ticks };
    let ns_per_tick = last.end_ns.saturating_sub(first.end_ns) as f64
        / (last.end_ticks.saturating_sub(first.end_ticks) as f64).max(1.0);
    for slice in slices {
        let start_ns = slice.end_ns.saturating_sub((slice.ticks as f64 * ns_per_tick) as u64);
        let after = intervals.partition_point(|interval| interval.end <= start_ns);
        let overlaps = intervals[after..].iter().take_while(|interval| interval.start < slice.end_ns);
        let held_ns: u64 =
            overlaps.map(|interval| interval.end.min(slice.end_ns).saturating_sub(interval.start.max(start_ns))).sum();
        *ticks.entry(slice.function).or_default() += ((held_ns as f64 / ns_per_tick) as u64).min(slice.ticks);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_time_is_the_part_of_slices_in_intervals() {
        let slice = |function, ticks, end_ticks, end_ns| Slice { function, ticks, end_ticks, end_ns };
        // Two ticks are one nanosecond.
        let slices = [slice("a", 200, 2_000, 1_000), slice("b", 2_000, 6_000, 3_000), slice("a", 20, 10_000, 5_000)];
        let intervals = [950..1_500, 2_500..2_600, 2_900..4_000];
        let ticks = ticks(&slices, &intervals);
        assert_eq!(ticks["a"], 100);
        assert_eq!(ticks["b"], 2 * (100 + 100));
    }
}
