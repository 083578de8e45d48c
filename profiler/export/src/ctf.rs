//! A trace in the Common Trace Format 1.8: a folder with a description, `metadata`, and a stream of events for each
//! ring. babeltrace2 and Trace Compass read it.
//!
//! Events are written as the guest wrote them, one class for each kind, with named fields and without interpretation.
//! `docs/guides/exports.md` describes the contents.

mod fields;
mod metadata;
mod stream;

use std::io::{self, Write};

use glass_profiler_core::recording::Recording;

/// Name of the file that describes the others.
const METADATA: &str = "metadata";

/// The reader's clock: converts ticks to seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clock {
    ticks_per_second: u64,
    /// Seconds since 1970 at ticks of zero, rounded down.
    offset_s: i64,
    /// The remainder, in ticks.
    offset_ticks: u64,
}

impl Clock {
    fn of(recording: &Recording) -> Clock {
        let points = &recording.trace.clock;
        let point = points.iter().rev().find(|point| point.ticks_per_second > 0);
        let Some(point) = point else {
            return Clock { ticks_per_second: 1_000_000_000, offset_s: 0, offset_ticks: 0 };
        };
        let rate = i128::from(point.ticks_per_second);
        let unix_ns = i128::from(recording.profile.origin.start_unix_ns) + i128::from(point.time_ns);
        let offset = unix_ns * rate / 1_000_000_000 - i128::from(point.ticks);
        Clock {
            ticks_per_second: point.ticks_per_second,
            offset_s: offset.div_euclid(rate).clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            offset_ticks: offset.rem_euclid(rate) as u64,
        }
    }
}

/// The result of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Events in all streams.
    pub events: u64,
    /// Events that got the time of the one before, because theirs was earlier, which the format does not allow.
    pub moved: u64,
}

/// Writes the files of a recording's trace. `create` creates a file; its name is valid on any file system.
pub fn write<W: Write>(recording: &Recording, mut create: impl FnMut(&str) -> io::Result<W>) -> io::Result<Written> {
    let mut description = create(METADATA)?;
    metadata::write(recording, Clock::of(recording), &mut description)?;
    description.flush()?;
    let mut written = Written::default();
    for (index, ring) in (0u32..).zip(&recording.trace.rings) {
        if ring.chunks.iter().all(|chunk| chunk.events.is_empty()) {
            continue;
        }
        let mut output = create(&format!("ring_{index}"))?;
        let of_ring = stream::write(index, ring, metadata::uuid(recording), &mut output)?;
        output.flush()?;
        written.events += of_ring.events;
        written.moved += of_ring.moved;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::trace::raw::ClockPoint;

    #[test]
    fn ticks_become_seconds_since_1970() {
        let mut recording = Recording::default();
        recording.profile.origin.start_unix_ns = 1_700_000_000_500_000_000;
        recording.trace.clock =
            vec![ClockPoint { ticks: 3_000, time_ns: 1_000, ticks_per_second: 2_000_000_000, error_ns: 0 }];
        // 1000 ns after the start, less 1500 ns of ticks.
        let clock = Clock::of(&recording);
        assert_eq!((clock.offset_s, clock.offset_ticks), (1_700_000_000, 1_000_000_000 - 1_000));
        recording.trace.clock[0].ticks = u64::MAX;
        assert!(Clock::of(&recording).offset_s < 0);
    }
}
