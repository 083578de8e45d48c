//! How fast data is delivered (draft-ietf-ccwg-bbr, section 4.1).

use crate::congestion::RateSample;
use core::time::Duration;
use glass_api::Instant;

/// What is remembered of a piece of data when it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// All that was delivered then, and when that changed last.
    pub delivered: u64,
    delivered_at: Instant,
    /// When the data was sent that was delivered last then.
    first_sent_at: Instant,
    /// Bytes in flight, itself included.
    pub in_flight: u64,
    /// All that was lost then.
    pub lost: u64,
    /// There was too little data.
    pub is_app_limited: bool,
}

/// The counters of one connection.
#[derive(Debug, Default)]
pub struct Rate {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    /// Until so much is delivered, samples are limited by the application; 0 if they are not.
    app_limited_until: u64,
    /// The newest data that this acknowledgement delivers: when it was sent, and what was remembered.
    newest: Option<(Instant, Stamp)>,
    rounds: u64,
    round_end: u64,
}

impl Rate {
    /// Data is sent now, with `before` bytes in flight already; returns what to remember of it.
    pub fn sends(&mut self, now: Instant, bytes: u64, before: u64) -> Stamp {
        if before == 0 {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        Stamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            in_flight: before + bytes,
            lost: self.lost,
            is_app_limited: self.app_limited_until != 0,
        }
    }

    /// There is less to send than may be sent.
    pub fn limit_by_app(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// `bytes` of data that was sent at `sent_at` are delivered.
    pub fn delivers(&mut self, now: Instant, bytes: u64, sent_at: Instant, stamp: &Stamp) {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.newest.is_none_or(|(newest, _)| sent_at >= newest) {
            self.newest = Some((sent_at, *stamp));
            self.first_sent_at = sent_at;
        }
    }

    /// So much is lost; returns how much is lost in all.
    pub fn loses(&mut self, bytes: u64) -> u64 {
        self.lost += bytes;
        self.lost
    }

    /// All that was delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The sample of the acknowledgement whose data was reported by [`Rate::delivers`], and whether a round trip ended with it.
    pub fn sample(&mut self, min_rtt: Option<Duration>) -> (Option<RateSample>, bool) {
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let Some((sent_at, stamp)) = self.newest.take() else { return (None, false) };
        let is_round_start = stamp.delivered >= self.round_end;
        if is_round_start {
            self.rounds += 1;
            self.round_end = self.delivered;
        }
        let sending = sent_at.since(stamp.first_sent_at);
        let acknowledging = self.delivered_at.since(stamp.delivered_at);
        let interval = sending.max(acknowledging);
        // It would be faster than the path: acknowledgements that waited together, or of retransmitted data.
        if interval.is_zero() || min_rtt.is_some_and(|min| interval < min) {
            return (None, is_round_start);
        }
        let sample = RateSample {
            delivered_bytes: self.delivered - stamp.delivered,
            interval,
            prior_delivered: stamp.delivered,
            total_delivered: self.delivered,
            sent_in_flight: stamp.in_flight,
            lost_bytes: self.lost - stamp.lost,
            is_app_limited: stamp.is_app_limited,
        };
        (Some(sample), is_round_start)
    }

    /// Round trips so far.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn at(millis: u64) -> Instant {
        Instant(1_000_000_000) + Duration::from_millis(millis)
    }

    #[test]
    fn a_sample_is_what_arrives_in_the_longer_of_two_times() {
        let mut rate = Rate::default();
        // Four segments, one each two milliseconds; their acknowledgements arrive together.
        let stamps: Vec<Stamp> = (0..4).map(|index| rate.sends(at(2 * index), 1000, 1000 * index)).collect();
        for (index, stamp) in (0..4).zip(&stamps) {
            rate.delivers(at(20), 1000, at(2 * index), stamp);
        }
        let (sample, is_round) = rate.sample(Some(Duration::from_millis(10)));
        let sample = sample.expect("something was delivered");
        assert_eq!((sample.delivered_bytes, sample.interval, is_round), (4000, Duration::from_millis(20), true));
        assert_eq!((sample.bytes_per_sec(), sample.sent_in_flight), (200_000, 4000));
        // After a pause the time starts anew.
        let stamp = rate.sends(at(500), 1000, 0);
        rate.delivers(at(510), 1000, at(500), &stamp);
        assert_eq!(rate.sample(None).0.map(|sample| sample.interval), Some(Duration::from_millis(10)));
        // Less time than a round trip takes is no sample.
        let stamp = rate.sends(at(520), 1000, 0);
        rate.delivers(at(521), 1000, at(520), &stamp);
        assert_eq!(rate.sample(Some(Duration::from_millis(10))).0, None);
    }

    #[test]
    fn what_was_sent_with_too_little_data_is_marked() {
        let mut rate = Rate::default();
        rate.limit_by_app(500);
        let limited = rate.sends(at(0), 1000, 500);
        assert!(limited.is_app_limited);
        rate.delivers(at(10), 1000, at(0), &limited);
        assert_eq!(rate.sample(None).0.map(|sample| sample.is_app_limited), Some(true));
        assert!(!rate.sends(at(11), 1000, 0).is_app_limited);
    }
}
