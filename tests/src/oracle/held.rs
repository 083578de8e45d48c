//! The time for which a profiler held the guest's thread, which belongs to no function.

use super::Gap;
use anyhow::{Context, Result, ensure};
use prost::Message;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// What is read of a recording; docs/formats/recording.md.
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

/// The intervals in which the guest was held for a sample, in order, in nanoseconds of `CLOCK_BOOTTIME`.
pub fn intervals(recording: &Path) -> Result<Vec<Range<u64>>> {
    let bytes = std::fs::read(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    let trace = Trace::decode(&*bytes).context("the recording is no Perfetto trace")?;
    let held = |packet: Packet| {
        let sample = packet.glass?.sample?;
        Some(packet.timestamp_ns..packet.timestamp_ns + sample.held_ns)
    };
    let mut intervals: Vec<Range<u64>> = trace.packets.into_iter().filter_map(held).collect();
    intervals.sort_by_key(|interval| interval.start);
    ensure!(
        intervals.iter().any(|interval| !interval.is_empty()),
        "the recording has no time in which the guest was held"
    );
    Ok(intervals)
}

/// The ticks of each function's gaps that lie in the intervals.
pub fn ticks(gaps: &[Gap], intervals: &[Range<u64>]) -> HashMap<String, u64> {
    let mut ticks = HashMap::new();
    let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else { return ticks };
    let ns_per_tick = last.end_ns.saturating_sub(first.end_ns) as f64
        / (last.end_ticks.saturating_sub(first.end_ticks) as f64).max(1.0);
    for gap in gaps {
        let start_ns = gap.end_ns.saturating_sub((gap.ticks as f64 * ns_per_tick) as u64);
        let after = intervals.partition_point(|interval| interval.end <= start_ns);
        let overlaps = intervals[after..].iter().take_while(|interval| interval.start < gap.end_ns);
        let held_ns: u64 =
            overlaps.map(|interval| interval.end.min(gap.end_ns).saturating_sub(interval.start.max(start_ns))).sum();
        *ticks.entry(gap.function.clone()).or_default() += ((held_ns as f64 / ns_per_tick) as u64).min(gap.ticks);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_time_is_the_part_of_gaps_in_intervals() {
        let gap =
            |function: &str, ticks, end_ticks, end_ns| Gap { function: function.to_owned(), ticks, end_ticks, end_ns };
        // Two ticks are one nanosecond.
        let gaps = [gap("a", 200, 2_000, 1_000), gap("b", 2_000, 6_000, 3_000), gap("a", 20, 10_000, 5_000)];
        let intervals = [950..1_500, 2_500..2_600, 2_900..4_000];
        let ticks = ticks(&gaps, &intervals);
        assert_eq!(ticks["a"], 100);
        assert_eq!(ticks["b"], 2 * (100 + 100));
    }
}
