//! Startup, which doubles the rate in each round until the pipe is full, and Drain, which removes the queue that this makes.

use super::model::Sample;
use super::{Bbr, State};
use crate::congestion::{Ack, Phase};

/// The pipe is full after so many rounds that did not deliver a quarter more.
const ROUNDS_WITHOUT_GROWTH: u32 = 3;
/// Pieces that a round must lose before it ends Startup (`BBRStartupFullLossCnt`).
const PIECES_LOST: u32 = 6;
/// Rounds after which Drain ends in any case.
const DRAIN_ROUNDS: u64 = 3;

/// Looks for a plateau in the delivery rate (*Exiting Acceleration Based on Bandwidth Plateau*).
#[derive(Debug, Clone, Copy, Default)]
pub struct FullPipe {
    baseline: u64,
    rounds: u32,
    /// `BBR.full_bw_now`: since it last started to look.
    pub is_now: bool,
    /// `BBR.full_bw_reached`: ever.
    pub is_reached: bool,
    /// So much was delivered when Startup ended.
    startup_end: Option<u64>,
}

impl FullPipe {
    /// `ResetFullBW`, and a first rate.
    pub fn reset(&mut self, baseline: u64) {
        *self = FullPipe { baseline, rounds: 0, is_now: false, ..*self };
    }

    /// `CheckFullBWReached`.
    pub fn check(&mut self, is_round_start: bool, sample: &Sample) {
        if self.is_now || !is_round_start || sample.is_app_limited {
            return;
        }
        if sample.rate >= self.baseline.saturating_add(self.baseline / 4) {
            return self.reset(sample.rate);
        }
        self.rounds += 1;
        if self.rounds >= ROUNDS_WITHOUT_GROWTH {
            (self.is_now, self.is_reached) = (true, true);
        }
    }
}

impl Bbr {
    pub(super) fn enter_startup(&mut self) {
        self.state = State::Startup;
        self.full_pipe.startup_end = None;
    }

    /// Whether something was sent in a Startup that has ended, when so much had been delivered.
    pub(super) fn is_of_startup(&self, prior_delivered: u64) -> bool {
        self.full_pipe.startup_end.is_some_and(|end| prior_delivered <= end)
    }

    /// `CheckStartupDone`.
    pub(super) fn check_startup_done(&mut self, ack: &Ack, sample: &Sample) {
        self.check_startup_high_loss(ack, sample);
        if self.state == State::Startup && self.full_pipe.is_reached {
            self.state = State::Drain(self.model.rounds.count);
            self.full_pipe.startup_end = Some(self.model.rounds.delivered);
        }
    }

    /// *Exiting Startup Based on Packet Loss*.
    fn check_startup_high_loss(&mut self, ack: &Ack, sample: &Sample) {
        let pieces = self.model.lost_pieces_of_round().unwrap_or(0);
        let is_lossy = ack.phase == Phase::Recovery
            && pieces >= PIECES_LOST
            && self.full_pipe.rounds > 0
            && self.is_inflight_too_high(sample.of.lost_bytes, sample.of.sent_in_flight);
        if self.full_pipe.is_reached || !is_lossy {
            return;
        }
        self.undo.state = Some(State::Startup);
        (self.full_pipe.is_now, self.full_pipe.is_reached) = (true, true);
        self.model.inflight_longterm = Some(self.bdp(100).max(self.model.inflight_latest()));
    }

    /// `CheckDrainDone`.
    pub(super) fn check_drain_done(&mut self, ack: &Ack) {
        if let State::Drain(start) = self.state
            && (ack.in_flight <= self.inflight() || self.model.rounds.count > start + DRAIN_ROUNDS)
        {
            self.start_down(ack.now);
        }
    }
}
