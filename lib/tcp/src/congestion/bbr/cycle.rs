//! ProbeBW: every few seconds the rate is raised (Refill, Up), lowered until the queue is gone (Down), and held (Cruise).

use super::model::Sample;
use super::{Bbr, State};
use crate::congestion::Ack;
use core::time::Duration;
use glass_api::Instant;

/// The largest share of losses for which a probe is not too high, in thousandths (`LossThresh`).
const LOSS_PER_MILLE: u64 = 20;
/// Of `inflight_longterm` so many hundredths stay free for others (`Headroom`).
const HEADROOM_PERCENT: u64 = 15;
/// The time from one probe to the next, and what is added at random.
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM_MS: u64 = 1000;
/// Rounds from one probe to the next, at most: Reno would have to grow by a segment in each.
const PROBE_ROUNDS_MAX: u64 = 63;
/// Segments that must be sent without a probe before their losses count, and the largest share of them that counts, in thousandths.
const QUIET_SEGMENTS: u64 = 200;
const QUIET_PER_MILLE_MAX: u64 = 40;
/// A delay that is no queue: hosts and VMs that wait for a core add as much to a round trip.
const QUIET_DELAY_MIN: Duration = Duration::from_millis(1);
/// Doublings of the growth of `inflight_longterm`.
const DOUBLINGS_MAX: u32 = 30;

/// What the acknowledgements are about (`BBR.ack_phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// The state of the cycle.
#[derive(Debug, Clone, Copy)]
pub struct Cycle {
    phase: AckPhase,
    /// When it started, and how long it lasts.
    start: Instant,
    wait: Duration,
    /// The acknowledgements are about a probe (`BBR.is_bw_probe_sample`).
    pub is_probe_sample: bool,
    /// The last probe lost too much (`BBR.prev_probe_too_high`).
    pub was_too_high: bool,
    /// It was ended early because of the one before (`BBR.prev_probe_precautionary`).
    was_precautionary: bool,
    /// Growth of `inflight_longterm`.
    doublings: u32,
    acked: u64,
    /// `None` while it does not grow.
    acked_per_segment: Option<u64>,
    /// Nothing probes, and there is no queue.
    is_quiet: bool,
    /// What was delivered and lost in this cycle while that was so, and which share was lost, in thousandths.
    quiet_delivered: u64,
    quiet_lost: u64,
    quiet_per_mille: u64,
}

impl Cycle {
    pub fn new(now: Instant) -> Cycle {
        Cycle {
            phase: AckPhase::Init,
            start: now,
            wait: Duration::ZERO,
            is_probe_sample: false,
            was_too_high: false,
            was_precautionary: false,
            doublings: 0,
            acked: 0,
            acked_per_segment: None,
            is_quiet: false,
            quiet_delivered: 0,
            quiet_lost: 0,
            quiet_per_mille: 0,
        }
    }

    /// The largest share of losses for which a probe is not too high, in thousandths.
    pub fn tolerated(&self) -> u64 {
        LOSS_PER_MILLE + 2 * self.quiet_per_mille
    }

    /// Counts what is delivered while nothing probes.
    pub fn count_delivered(&mut self, state: State, ack: &Ack, min_rtt: Option<Duration>, segment_bytes: u64) {
        let is_without_probe = self.phase == AckPhase::Init && matches!(state, State::Down | State::Cruise);
        let is_without_queue =
            min_rtt.zip(ack.rtt).is_some_and(|(min, rtt)| rtt <= min + (min / 8).max(QUIET_DELAY_MIN));
        self.is_quiet = is_without_probe && is_without_queue;
        if self.is_quiet {
            self.quiet_delivered += ack.delivered_bytes;
            // As soon as something is known: the first cruise would slow down for seconds.
            self.judge_quiet(segment_bytes, false);
        }
    }

    /// Counts what is lost while nothing probes: by an acknowledgement, or by a timer after one.
    pub fn count_lost(&mut self, bytes: u64) {
        if self.is_quiet {
            self.quiet_lost += bytes;
        }
    }

    /// The share that was lost in this cycle, if that is enough to judge; until then that of the last one. At the end of a cycle counting starts
    /// again.
    fn judge_quiet(&mut self, segment_bytes: u64, is_end: bool) {
        let all = self.quiet_delivered + self.quiet_lost;
        if all < QUIET_SEGMENTS * segment_bytes {
            return;
        }
        self.quiet_per_mille = (self.quiet_lost * 1000 / all).min(QUIET_PER_MILLE_MAX);
        if is_end {
            (self.quiet_delivered, self.quiet_lost) = (0, 0);
        }
    }

    /// The acknowledgements of one round more are about the probe.
    pub fn stop_probe(&mut self) {
        self.phase = AckPhase::ProbeStopping;
    }
}

impl Bbr {
    /// `EnterProbeBW`, or the end of a probe (`StartProbeBW_DOWN`).
    pub(super) fn start_down(&mut self, now: Instant) {
        self.model.reset_signals();
        self.cycle.acked_per_segment = None;
        self.model.rounds.since_probe = self.random_below(2);
        self.cycle.wait = PROBE_WAIT + Duration::from_millis(self.random_below(PROBE_WAIT_RANDOM_MS + 1));
        self.cycle.start = now;
        self.cycle.stop_probe();
        self.model.rounds.start();
        self.state = State::Down;
    }

    /// `StartProbeBW_REFILL`.
    pub(super) fn start_refill(&mut self) {
        self.cycle.judge_quiet(self.segment_bytes, true);
        self.model.reset_short_term();
        self.cycle.doublings = 0;
        self.cycle.acked = 0;
        self.cycle.was_precautionary = false;
        self.cycle.phase = AckPhase::Refilling;
        self.model.rounds.start();
        self.state = State::Refill;
    }

    /// `StartProbeBW_UP`.
    fn start_up(&mut self, sample: &Sample) {
        self.cycle.is_probe_sample = true;
        self.cycle.phase = AckPhase::ProbeStarting;
        self.model.rounds.start();
        self.full_pipe.reset(sample.rate);
        self.state = State::Up;
        self.raise_slope();
    }

    /// `UpdateProbeBWCyclePhase`.
    pub(super) fn update_cycle(&mut self, ack: &Ack, sample: &Sample) {
        let is_decided = !self.full_pipe.is_reached || self.adapt_long_term(ack, sample);
        if is_decided {
            return;
        }
        let state = self.state;
        match state {
            State::Down | State::Cruise if self.is_time_to_probe(ack.now) => self.start_refill(),
            State::Down if self.is_time_to_cruise(ack.in_flight) => self.state = State::Cruise,
            // One round of it fills the pipe.
            State::Refill if self.model.rounds.is_start => self.start_up(sample),
            State::Up if self.is_time_to_go_down(ack, sample) => {
                self.cycle.was_too_high = false;
                self.start_down(ack.now);
            }
            _ => {}
        }
    }

    /// `IsTimeToProbeBW`.
    fn is_time_to_probe(&self, now: Instant) -> bool {
        let reno_rounds = self.target_inflight() / self.segment_bytes;
        now > self.cycle.start + self.cycle.wait || self.model.rounds.since_probe >= reno_rounds.min(PROBE_ROUNDS_MAX)
    }

    /// `IsTimeToCruise`.
    fn is_time_to_cruise(&self, in_flight: u64) -> bool {
        self.inflight_with_headroom().is_none_or(|limit| in_flight <= limit) && in_flight <= self.inflight()
    }

    /// `IsTimeToGoDown`.
    fn is_time_to_go_down(&mut self, ack: &Ack, sample: &Sample) -> bool {
        let Some(longterm) = self.model.inflight_longterm else { return self.full_pipe.is_now };
        if self.cycle.was_too_high && ack.in_flight >= longterm {
            self.cycle.was_precautionary = true;
            return true;
        }
        if ack.is_window_limited && self.window >= longterm {
            // The bandwidth is limited by that volume, so a plateau proves nothing.
            self.full_pipe.reset(sample.rate);
            return false;
        }
        self.full_pipe.is_now
    }

    /// `InflightWithHeadroom`; `None` without a limit.
    pub(super) fn inflight_with_headroom(&self) -> Option<u64> {
        let longterm = self.model.inflight_longterm?;
        let headroom = (longterm / 100 * HEADROOM_PERCENT).max(self.segment_bytes);
        Some(longterm.saturating_sub(headroom).max(self.min_window()))
    }

    /// `AdaptLongTermModel`. Returns whether it has changed the state.
    fn adapt_long_term(&mut self, ack: &Ack, sample: &Sample) -> bool {
        let is_round_start = self.model.rounds.is_start;
        if self.cycle.phase == AckPhase::ProbeStarting && is_round_start {
            self.cycle.phase = AckPhase::ProbeFeedback;
        }
        if self.cycle.phase == AckPhase::ProbeStopping && is_round_start {
            self.cycle.is_probe_sample = false;
            self.cycle.phase = AckPhase::Init;
            if self.state.is_probe_bw() && !sample.is_app_limited {
                self.model.advance_max_bw();
            }
            if self.state.is_probe_bw() && self.cycle.was_precautionary && !self.cycle.was_too_high {
                self.start_refill();
                return true;
            }
        }
        let Some(longterm) = self.model.inflight_longterm else { return false };
        if !self.is_inflight_too_high(sample.of.lost_bytes, sample.of.sent_in_flight) {
            self.model.inflight_longterm = Some(longterm.max(sample.of.sent_in_flight));
            if self.state == State::Up {
                self.probe_upward(ack);
            }
        }
        false
    }

    /// `ProbeInflightLongtermUpward`.
    fn probe_upward(&mut self, ack: &Ack) {
        let (Some(longterm), Some(acked_per_segment)) = (self.model.inflight_longterm, self.cycle.acked_per_segment)
        else {
            return;
        };
        if !ack.is_window_limited || self.window < longterm {
            return;
        }
        self.cycle.acked += ack.delivered_bytes;
        let segments = self.cycle.acked / acked_per_segment;
        self.cycle.acked -= segments * acked_per_segment;
        self.model.inflight_longterm = Some(longterm + segments * self.segment_bytes);
        if self.model.rounds.is_start {
            self.raise_slope();
        }
    }

    /// `RaiseInflightLongtermSlope`: a segment in the first round, twice as many in each that follows.
    fn raise_slope(&mut self) {
        let segments = 1_u64 << self.cycle.doublings;
        self.cycle.doublings = (self.cycle.doublings + 1).min(DOUBLINGS_MAX);
        self.cycle.acked_per_segment = Some((self.window / segments).max(self.segment_bytes));
    }
}
