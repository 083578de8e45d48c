//! Converts ticks of the guest's clock to nanoseconds since the start of the recording.

use crate::trace::raw::ClockPoint;

/// Assumed without a known rate: a tick is a nanosecond.
const TICKS_PER_SECOND_ASSUMED: u64 = 1_000_000_000;
/// Two points are used together if their distance is this many times their error: the rate between
/// them is then right to a thousandth.
const ERRORS_APART: u64 = 1_000;
/// Points with a larger error cause a warning.
const ERROR_MAX_NS: u64 = 1_000_000;

/// The clock of one trace: straight lines between points.
#[derive(Debug)]
pub(super) struct Clock {
    /// In order, at least one.
    pieces: Vec<Piece>,
    /// A warning, if there is one.
    pub(super) warning: Option<String>,
}

/// Valid from its ticks to those of the next; the first also before, the last also after.
#[derive(Debug, Clone, Copy)]
struct Piece {
    ticks: u64,
    time_ns: i64,
    ns_per_tick: f64,
}

impl Clock {
    /// The clock through `points`; `first_ticks` is time 0 if there are none.
    pub(super) fn new(points: &[ClockPoint], first_ticks: u64) -> Clock {
        let known_rate = points.iter().rev().map(|point| point.ticks_per_second).find(|rate| *rate > 0);
        let kept = usable(points);
        let measured = kept.first().zip(kept.last()).filter(|(first, last)| last.ticks > first.ticks);
        let rate = known_rate.map(|rate| rate as f64).or_else(|| {
            measured
                .map(|(first, last)| (last.ticks - first.ticks) as f64 * 1e9 / (last.time_ns - first.time_ns) as f64)
        });
        let error_ns = kept.iter().map(|point| point.error_ns).max().unwrap_or(0);
        let warning = if kept.is_empty() {
            Some(
                "the guest's clock was not compared with the host's, and its rate is not known: times are its ticks \
                 since the first event, taken for nanoseconds"
                    .into(),
            )
        } else if rate.is_none() {
            Some("the rate of the guest's clock is not known: its ticks are taken for nanoseconds".into())
        } else if error_ns == u64::MAX {
            Some(
                "the guest's clock was not compared with the host's: its times are right among each other, but not beside samples"
                    .into(),
            )
        } else if error_ns > ERROR_MAX_NS {
            Some(format!(
                "the guest's clock is known to {:.1} ms only: events may lie as far from the samples",
                error_ns as f64 / 1e6
            ))
        } else {
            None
        };
        let rate = rate.unwrap_or(TICKS_PER_SECOND_ASSUMED as f64);
        Clock { pieces: pieces(&kept, 1e9 / rate, first_ticks), warning }
    }

    /// How long the `ticks` before `end_ticks` are.
    pub(super) fn duration_ns(&self, end_ticks: u64, ticks: u64) -> u64 {
        let [start_ns, end_ns] = [end_ticks.saturating_sub(ticks), end_ticks].map(|ticks| self.time_ns(ticks, &mut 0));
        u64::try_from(end_ns.saturating_sub(start_ns)).unwrap_or(0)
    }

    /// The time of `ticks`. `hint` is the caller's position in the table, for its next call.
    pub(super) fn time_ns(&self, ticks: u64, hint: &mut usize) -> i64 {
        let after = |index: usize| self.pieces.get(index + 1).map_or(u64::MAX, |next| next.ticks);
        let is_here = self.pieces.get(*hint).is_some_and(|piece| piece.ticks <= ticks) && ticks < after(*hint);
        if !is_here {
            *hint = self.pieces.partition_point(|piece| piece.ticks <= ticks).saturating_sub(1);
        }
        let Some(piece) = self.pieces.get(*hint) else { return 0 };
        let distance = match ticks >= piece.ticks {
            true => (ticks - piece.ticks) as f64,
            false => -((piece.ticks - ticks) as f64),
        };
        let time_ns = piece.time_ns.saturating_add((distance * piece.ns_per_tick).round() as i64);
        // Rounding must not exceed the next piece's start.
        self.pieces.get(*hint + 1).map_or(time_ns, |next| time_ns.min(next.time_ns))
    }
}

/// The points in order, without those that go back and those too close to others for their error.
fn usable(points: &[ClockPoint]) -> Vec<ClockPoint> {
    let mut sorted = points.to_vec();
    sorted.sort_by_key(|point| point.ticks);
    let mut kept: Vec<ClockPoint> = Vec::with_capacity(sorted.len());
    for point in sorted {
        let Some(last) = kept.last().copied() else {
            kept.push(point);
            continue;
        };
        let error_ns = point.error_ns.saturating_add(last.error_ns);
        let is_forward = point.ticks > last.ticks && point.time_ns > last.time_ns;
        if is_forward && point.time_ns - last.time_ns >= error_ns.saturating_mul(ERRORS_APART) {
            kept.push(point);
        } else if is_forward && kept.len() == 1 && point.error_ns < last.error_ns / 2 {
            // A much more precise start.
            kept[0] = point;
        }
    }
    kept
}

fn pieces(kept: &[ClockPoint], ns_per_tick: f64, first_ticks: u64) -> Vec<Piece> {
    if kept.is_empty() {
        return vec![Piece { ticks: first_ticks, time_ns: 0, ns_per_tick }];
    }
    let mut pieces: Vec<Piece> = Vec::with_capacity(kept.len());
    for (index, point) in kept.iter().enumerate() {
        let slope = match kept.get(index + 1) {
            Some(next) => (next.time_ns - point.time_ns) as f64 / (next.ticks - point.ticks) as f64,
            // After the last point the same rate as before it, if that was measured rather than reported.
            None => pieces.last().map_or(ns_per_tick, |before| before.ns_per_tick),
        };
        let time_ns = i64::try_from(point.time_ns).unwrap_or(i64::MAX);
        pieces.push(Piece { ticks: point.ticks, time_ns, ns_per_tick: slope });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(ticks: u64, time_ns: u64, ticks_per_second: u64, error_ns: u64) -> ClockPoint {
        ClockPoint { ticks, time_ns, ticks_per_second, error_ns }
    }

    fn times(clock: &Clock, ticks: &[u64]) -> Vec<i64> {
        let mut hint = 0;
        ticks.iter().map(|ticks| clock.time_ns(*ticks, &mut hint)).collect()
    }

    #[test]
    fn lines_go_through_the_points_and_on_beyond_them() {
        // 2 ticks a nanosecond, then the guest was paused for 1,000 ns, then as before.
        let clock = Clock::new(&[point(1_000, 500, 0, 0), point(2_000, 1_000, 0, 0), point(2_002, 2_001, 0, 0)], 0);
        assert_eq!(clock.warning, None);
        assert_eq!(times(&clock, &[0, 1_000, 1_500, 2_000, 2_001]), [0, 500, 750, 1_000, 1_501]);
        let one = Clock::new(&[point(1_000, 500, 2_000_000_000, 0)], 0);
        assert_eq!(times(&one, &[3_000, 0, 1_000]), [1_500, 0, 500]);
    }

    #[test]
    fn points_too_close_for_their_errors_do_not_bend_the_clock() {
        let clock = Clock::new(&[point(0, 0, 1_000_000_000, 50), point(1_000, 1_040, 1_000_000_000, 50)], 0);
        assert_eq!(times(&clock, &[1_000, 10_000]), [1_000, 10_000]);
        let clock = Clock::new(&[point(0, 0, 1_000_000_000, 50), point(1_000_000, 1_000_040, 0, 50)], 0);
        assert_eq!(times(&clock, &[1_000_000]), [1_000_040]);
    }

    #[test]
    fn what_is_not_known_is_said() {
        let none = Clock::new(&[], 7);
        assert_eq!(times(&none, &[7, 1_007, u64::MAX, 0]), [0, 1_000, i64::MAX, -7]);
        assert!(none.warning.is_some_and(|warning| warning.contains("was not compared")));
        let no_rate = Clock::new(&[point(5, 5, 0, 0)], 0);
        assert!(no_rate.warning.is_some_and(|warning| warning.contains("rate of the guest's clock is not known")));
        let vague = Clock::new(&[point(5, 5, 1_000_000_000, 2_500_000)], 0);
        assert!(vague.warning.is_some_and(|warning| warning.contains("2.5 ms")));
    }

    #[test]
    fn points_that_go_back_are_left_out() {
        let clock = Clock::new(&[point(100, 100, 1_000_000_000, 0), point(200, 50, 0, 0), point(300, 300, 0, 0)], 0);
        assert_eq!(times(&clock, &[100, 200, 300, 250, 50]), [100, 200, 300, 250, 50]);
    }
}
