//! Relates a guest's clock of events to the host's.
//!
//! A process reads the same TSC as we do. That of a VM is ours plus an unknown offset. A request that we
//! write at host ticks `a`, and that the guest sees at its ticks `t`, bounds the offset from
//! above, `t - a`, because the guest cannot see it before it is written. An event of guest ticks `t` that we see at host ticks `b`
//! bounds it from below, `t - b`. QEMU's own clock stops while it stops the VM, so the offset may jump downwards:
//! then the bounds contradict each other, and the older ones are dropped. Our own VMM reads the guest's clock when it makes it, and states it: that
//! is used as long as it is within the bounds.

use std::collections::VecDeque;

use glass_profiler_core::trace::raw::ClockPoint;

use crate::sys::ClockPair;

/// Bounds from below are dropped after this time, as a jump makes them wrong.
const WINDOW_NS: u64 = 2_000_000_000;
/// Bounds of each kind that are kept at most.
const BOUNDS_MAX: usize = 256;
/// After a jump further ones are expected for this time.
const RESTLESS_NS: u64 = 1_000_000_000;
/// Two clocks whose rates differ by more than this share are not the same clock.
const SAME_RATE: f64 = 0.03;

/// Both of the host's clocks for a guest that counts the host's time at this rate: its ticks, from whatever start, are the first.
pub(super) fn at_rate(pair: ClockPair, ticks_per_second: u64) -> ClockPair {
    let ticks = u128::from(pair.time_ns) * u128::from(ticks_per_second) / 1_000_000_000;
    // The time was read between two reads of the ticks, which are at least as frequent.
    ClockPair { ticks: ticks as u64, ..pair }
}

/// The rate of the host's TSC.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostClock {
    first: ClockPair,
    hz: f64,
}

impl HostClock {
    /// From two reads of the clocks, some time apart.
    pub(super) fn new(first: ClockPair, second: ClockPair) -> HostClock {
        let mut clock = HostClock { first, hz: 1e9 };
        clock.refine(second);
        clock
    }

    /// The longer the time since the first read, the more precise.
    pub(super) fn refine(&mut self, now: ClockPair) {
        let (ticks, ns) = (now.ticks.saturating_sub(self.first.ticks), now.time_ns.saturating_sub(self.first.time_ns));
        if ticks > 0 && ns > 0 {
            self.hz = ticks as f64 * 1e9 / ns as f64;
        }
    }

    pub(super) fn hz(&self) -> u64 {
        self.hz as u64
    }

    /// Whether a guest that reports this rate, 0 if none, counts at another one.
    pub(super) fn is_other(&self, guest_hz: u64) -> bool {
        guest_hz > 0 && (guest_hz as f64 / self.hz - 1.0).abs() > SAME_RATE
    }

    pub(super) fn ns_of(&self, ticks: u64) -> u64 {
        (ticks as f64 * 1e9 / self.hz).ceil() as u64
    }

    /// A point of a guest that counts our ticks.
    pub(super) fn own_point(&self, now: ClockPair) -> ClockPoint {
        ClockPoint {
            ticks: now.ticks,
            time_ns: now.time_ns,
            ticks_per_second: self.hz(),
            error_ns: self.ns_of(now.error_ticks),
        }
    }
}

/// A bound of the offset, and when it was found.
#[derive(Debug, Clone, Copy)]
struct Bound {
    offset: i64,
    time_ns: u64,
}

/// The bounds of the offset of a VM's TSC.
#[derive(Debug, Default)]
pub(super) struct Offset {
    lower: VecDeque<Bound>,
    upper: VecDeque<Bound>,
    jumped_ns: Option<u64>,
    /// What the VMM states, and its maximum error.
    stated: Option<(i64, u64)>,
    /// The newest answer: guest ticks, and the host ticks before and after it.
    answer: Option<(u64, ClockPair, ClockPair)>,
}

fn difference(guest: u64, host: u64) -> i64 {
    guest.wrapping_sub(host) as i64
}

fn push(bounds: &mut VecDeque<Bound>, bound: Bound) {
    if bounds.len() == BOUNDS_MAX {
        bounds.pop_front();
    }
    bounds.push_back(bound);
}

impl Offset {
    /// The guest has answered at its `ticks` a request that was written after `asked`; seen at `seen`.
    pub(super) fn answered(&mut self, ticks: u64, asked: ClockPair, seen: ClockPair) {
        let upper = difference(ticks, asked.ticks.wrapping_sub(asked.error_ticks));
        self.answer = Some((ticks, asked, seen));
        let before = self.lower.len();
        self.lower.retain(|bound| bound.offset <= upper);
        if self.lower.len() < before {
            // A later request cannot be seen earlier: the guest's clock was stopped in between.
            self.jumped_ns = Some(seen.time_ns);
        }
        // Bounds from above hold after a jump downwards too, but this one is tighter then.
        push(&mut self.upper, Bound { offset: upper, time_ns: seen.time_ns });
        self.seen(ticks, seen);
    }

    /// The VMM states its guest's clock: ticks of the host, of the guest and of the host, read in this order. It holds as long as no event and no
    /// answer contradicts it.
    pub(super) fn state(&mut self, [before, ticks, after]: [u64; 3]) {
        let width = after.saturating_sub(before);
        self.stated = Some((difference(ticks, before.wrapping_add(width / 2)), width / 2 + 1));
    }

    /// An event of these ticks was seen.
    pub(super) fn seen(&mut self, ticks: u64, seen: ClockPair) {
        let offset = difference(ticks, seen.ticks.wrapping_add(seen.error_ticks));
        let time_ns = seen.time_ns;
        let before = self.upper.len();
        self.upper.retain(|bound| bound.offset >= offset);
        if self.upper.len() < before {
            self.jumped_ns = Some(time_ns);
        }
        // A bound that is followed by a tighter one is useless: it is looser and expires sooner.
        while self.lower.back().is_some_and(|last| last.offset <= offset) {
            self.lower.pop_back();
        }
        push(&mut self.lower, Bound { offset, time_ns });
        while self.lower.len() > 1
            && self.lower.front().is_some_and(|first| first.time_ns.saturating_add(WINDOW_NS) < time_ns)
        {
            self.lower.pop_front();
        }
    }

    /// Whether the offset has jumped recently, so that it should be measured often.
    pub(super) fn is_restless(&self, now_ns: u64) -> bool {
        self.jumped_ns.is_some_and(|jumped| now_ns.saturating_sub(jumped) < RESTLESS_NS)
    }

    /// The offset is not below this; `None` if no event was seen.
    pub(super) fn at_least(&self) -> Option<i64> {
        self.lower.iter().map(|bound| bound.offset).max()
    }

    /// The offset, and its maximum error in ticks. `None` while one of the bounds is missing and the VMM states nothing.
    pub(super) fn estimate(&self) -> Option<(i64, u64)> {
        let lower = self.at_least();
        let upper = self.upper.iter().map(|bound| bound.offset).min();
        let is_possible = |(offset, error): &(i64, u64)| {
            lower.is_none_or(|lower| offset.saturating_add_unsigned(*error) >= lower)
                && upper.is_none_or(|upper| offset.saturating_sub_unsigned(*error) <= upper)
        };
        if let Some(stated) = self.stated.filter(is_possible) {
            return Some(stated);
        }
        let (lower, upper) = (lower?, upper?);
        let width = upper.checked_sub(lower)?.max(0);
        Some((lower.wrapping_add(width / 2), width as u64 / 2 + 1))
    }

    /// The guest's clock now; `guest_hz` is the rate that the guest reports, 0 if none.
    pub(super) fn point(&self, now: ClockPair, host: &HostClock, guest_hz: u64) -> Option<ClockPoint> {
        if host.is_other(guest_hz) {
            // The VM's TSC is scaled: the offset is not constant. Only the guest's answers relate the clocks.
            let (ticks, asked, seen) = self.answer?;
            let half = seen.time_ns.saturating_sub(asked.time_ns) / 2;
            let time_ns = asked.time_ns + half;
            return Some(ClockPoint { ticks, time_ns, ticks_per_second: guest_hz, error_ns: half + 1 });
        }
        let (offset, error_ticks) = self.estimate()?;
        Some(ClockPoint {
            ticks: now.ticks.wrapping_add_signed(offset),
            time_ns: now.time_ns,
            ticks_per_second: host.hz(),
            error_ns: host.ns_of(error_ticks.saturating_add(now.error_ticks)),
        })
    }

    /// The same for a guest that has not answered yet: its clock is at least at its newest event. The error is that
    /// of an unrelated clock, as there is no bound from the other side.
    pub(super) fn guess(&self, now: ClockPair, host: &HostClock) -> Option<ClockPoint> {
        let ticks = now.ticks.wrapping_add_signed(self.at_least()?);
        Some(ClockPoint { ticks, time_ns: now.time_ns, ticks_per_second: host.hz(), error_ns: u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 2_000_000_000;
    const MS: u64 = 1_000_000;

    fn at(time_ns: u64) -> ClockPair {
        ClockPair { ticks: time_ns * 2 + 77_000_000_000, time_ns, error_ticks: 10 }
    }

    fn host() -> HostClock {
        HostClock::new(at(0), at(100 * MS))
    }

    /// The guest's ticks at a host's time if they were `offset` behind the host's.
    fn guest(time_ns: u64, behind: u64) -> u64 {
        at(time_ns).ticks - behind
    }

    fn error(offset: &Offset, time_ns: u64, behind: u64) -> (u64, u64) {
        let point = offset.point(at(time_ns), &host(), HZ).unwrap();
        (point.ticks.abs_diff(guest(time_ns, behind)) / 2, point.error_ns)
    }

    #[test]
    fn the_rate_of_the_host_is_measured() {
        assert_eq!(host().hz(), HZ);
        assert_eq!(host().ns_of(HZ), 1_000_000_000);
        assert_eq!(host().own_point(at(MS)).error_ns, 5);
    }

    #[test]
    fn request_and_answer_bound_the_offset() {
        let mut offset = Offset::default();
        assert_eq!(offset.point(at(MS), &host(), HZ), None);
        // Requested at 10 ms, seen by the guest at 10.4 ms, its answer seen by us at 11 ms.
        offset.answered(guest(10 * MS + 400_000, 5_000), at(10 * MS), at(11 * MS));
        let (off, claimed) = error(&offset, 20 * MS, 5_000);
        assert!(off <= claimed && (499_000..501_000).contains(&claimed), "{off} of {claimed}");
        // An event seen 20 us after it happened makes it narrower.
        offset.seen(guest(15 * MS, 5_000), at(15 * MS + 20_000));
        let (off, claimed) = error(&offset, 20 * MS, 5_000);
        assert!(off <= claimed && claimed < 220_000, "{off} of {claimed}");
    }

    #[test]
    fn a_clock_that_stood_still_is_followed() {
        let mut offset = Offset::default();
        let mut behind = 0;
        for step in 1..500u64 {
            let now = step * 10 * MS;
            // The VM is stopped for 1 ms in every tenth of a second, and for 300 ms once.
            if step.is_multiple_of(10) {
                behind += 2 * if step == 250 { 300 * MS } else { MS };
            }
            offset.answered(guest(now, behind), at(now - 30_000), at(now + 50_000));
            let (off, claimed) = error(&offset, now + 60_000, behind);
            assert!(off <= claimed && claimed <= 41_000, "{off} of {claimed} at {step}");
        }
        assert!(offset.is_restless(5_000 * MS) && !offset.is_restless(9_000 * MS));
    }

    #[test]
    fn the_window_forgets_bounds_from_below() {
        let mut offset = Offset::default();
        offset.answered(guest(10 * MS, 0), at(10 * MS - 1_000), at(10 * MS + 1_000));
        // A jump smaller than the distance of the bounds cannot be detected, but the old bounds expire soon.
        for step in 2..400u64 {
            offset.seen(guest(step * 10 * MS, 1_500), at(step * 10 * MS + 100));
        }
        let (off, claimed) = error(&offset, 4_100 * MS, 1_500);
        assert!(off <= claimed && claimed < 2_000, "{off} of {claimed}");
        assert!(offset.lower.len() <= BOUNDS_MAX);
    }

    #[test]
    fn a_scaled_clock_goes_by_its_answers() {
        let mut offset = Offset::default();
        offset.answered(1_000, at(10 * MS), at(11 * MS));
        let point = offset.point(at(50 * MS), &host(), 3 * HZ).unwrap();
        assert_eq!((point.ticks, point.time_ns, point.ticks_per_second), (1_000, 10 * MS + MS / 2, 3 * HZ));
        assert_eq!(point.error_ns, MS / 2 + 1);
    }

    /// A guest that counts 62.5 MHz of the host's time is followed as closely as one that counts its ticks; by its answers alone the error was that of
    /// an answer, up to a quarter of a second (2026-11-28).
    #[test]
    fn a_clock_that_counts_time() {
        const RATE: u64 = 62_500_000;
        let mut offset = Offset::default();
        let at = |time_ns| at_rate(at(time_ns), RATE);
        let guest = |time_ns: u64| (time_ns - 3 * MS) / 16;
        let host = HostClock::new(at(0), at(100 * MS));
        assert_eq!(host.hz(), RATE);
        offset.answered(guest(10 * MS), at(9 * MS), at(11 * MS));
        for step in 2..20 {
            offset.seen(guest(step * 10 * MS), at(step * 10 * MS + 2_000));
            offset.answered(guest(step * 10 * MS + 5_000), at(step * 10 * MS + 3_000), at(step * 10 * MS + 9_000));
        }
        let point = offset.point(at(300 * MS), &host, RATE).unwrap();
        let error_ns = point.ticks.abs_diff(guest(300 * MS)) * 16;
        assert!(error_ns <= point.error_ns && point.error_ns < 3_000, "{error_ns} of {}", point.error_ns);
    }

    #[test]
    fn nonsense_does_no_harm() {
        let mut offset = Offset::default();
        for ticks in [0, u64::MAX, 1 << 63, 5, 1 << 62, u64::MAX / 3] {
            offset.answered(ticks, at(5), at(6));
            offset.seen(!ticks, at(7));
            let _ = offset.point(at(8), &host(), ticks);
            let _ = offset.guess(at(8), &host());
        }
    }

    #[test]
    fn what_the_vmm_states_holds_within_the_bounds() {
        let (truth, mut offset) = (5_000_000_000_i64, Offset::default());
        let guest = |host: ClockPair| host.ticks.wrapping_add_signed(truth);
        let read = at(MS).ticks;
        offset.state([read, read.wrapping_add_signed(truth) + 300, read + 600]);
        assert_eq!(offset.estimate(), Some((truth, 301)));
        // Events and answers are much later seen than they happened.
        offset.seen(guest(at(10 * MS)), at(30 * MS));
        offset.answered(guest(at(50 * MS)), at(40 * MS), at(60 * MS));
        assert_eq!(offset.estimate(), Some((truth, 301)));
        // Its clock was changed.
        offset.seen(guest(at(100 * MS)) + 10 * MS, at(100 * MS));
        assert_ne!(offset.estimate().map(|(offset, _)| offset), Some(truth));
    }
}
