//! The time of day, read from the machine's clock once a minute.

use crate::arch;
use crate::clock;
use crate::cores::this_core;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use glass_api::{Instant, WallSource, WallTime};

/// How long a reading is good: the host's clock may be set, and ours drifts by a few parts in a million.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// The time of day at `now`, by what it was when it was read.
fn later((at, wall): (Instant, Option<WallTime>), now: Instant) -> Option<WallTime> {
    wall.map(|wall| WallTime { since_epoch: wall.since_epoch.saturating_add(now.since(at)), ..wall })
}

/// The time of day.
pub fn now() -> Option<WallTime> {
    let (core, now) = (this_core(), clock::now());
    if let Some(reading) = core.wall.get().filter(|reading| now.since(reading.0) < READ_AGAIN) {
        return later(reading, now);
    }
    let expected = core.wall.get().and_then(|reading| later(reading, now));
    let wall = read().map(|read| agree(read, expected));
    core.wall.set(Some((now, wall)));
    wall
}

/// What was read, as exactly as what was expected allows: a clock of whole seconds shows a second of which we may know a
/// part.
fn agree(read: WallTime, expected: Option<WallTime>) -> WallTime {
    let resolution = if read.source == WallSource::Rtc { Duration::from_secs(1) } else { Duration::ZERO };
    let expected = expected.filter(|expected| expected.source == read.source);
    let latest = read.since_epoch.saturating_add(resolution);
    let since_epoch =
        expected.map_or(read.since_epoch, |expected| expected.since_epoch.clamp(read.since_epoch, latest));
    WallTime { since_epoch, ..read }
}

/// One core at a time reads.
static IS_READING: AtomicBool = AtomicBool::new(false);

fn read() -> Option<WallTime> {
    while IS_READING.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        spin_loop();
    }
    let wall = arch::wall::read();
    IS_READING.store(false, Ordering::Release);
    wall
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_whole_seconds_gets_more_exact() {
        let rtc = |millis| WallTime { since_epoch: Duration::from_millis(millis), source: WallSource::Rtc };
        assert_eq!(agree(rtc(5000), None), rtc(5000));
        // Within the second that it shows, at its end, and at its start.
        assert_eq!(agree(rtc(65_000), Some(rtc(65_300))), rtc(65_300));
        assert_eq!(agree(rtc(65_000), Some(rtc(66_300))), rtc(66_000));
        assert_eq!(agree(rtc(65_000), Some(rtc(64_900))), rtc(65_000));
        let kvm = WallTime { source: WallSource::Kvm, ..rtc(65_000) };
        assert_eq!(agree(kvm, Some(WallTime { source: WallSource::Kvm, ..rtc(65_300) })), kvm);
    }
}
