//! What losses change, and what is restored if there was none (*Updating the Model Upon Packet Loss*, and *Upon Detecting a Spurious Loss
//! Recovery*).

use super::model::BETA_TENTHS;
use super::{Bbr, State};
use crate::congestion::Lost;

/// What a spurious loss restores.
#[derive(Debug, Clone, Copy, Default)]
pub struct Undo {
    /// A recovery has not ended, or has not started but a loss was found.
    pub is_in_recovery: bool,
    /// The state that a loss has ended: Startup or Up.
    pub state: Option<State>,
    bw_shortterm: Option<u64>,
    inflight_shortterm: Option<u64>,
    inflight_longterm: Option<u64>,
}

impl Bbr {
    /// Whether so much was lost of what was in flight that it was too much (`IsInflightTooHigh`).
    pub(super) fn is_inflight_too_high(&self, lost: u64, sent_in_flight: u64) -> bool {
        lost.saturating_mul(1000) > sent_in_flight.saturating_mul(self.cycle.tolerated())
    }

    /// `HandleLostPacket`.
    pub(super) fn handle_lost(&mut self, lost: &Lost) {
        self.start_recovery();
        if self.is_of_startup(lost.prior_delivered) {
            return;
        }
        self.model.note_loss(lost.bytes);
        self.cycle.count_lost(lost.bytes);
        if self.cycle.is_probe_sample && self.is_inflight_too_high(lost.lost_since_sent, lost.sent_in_flight) {
            self.handle_inflight_too_high(lost);
        }
    }

    /// `HandleInflightTooHigh`.
    fn handle_inflight_too_high(&mut self, lost: &Lost) {
        self.cycle.was_too_high = true;
        // Once for each probe.
        self.cycle.is_probe_sample = false;
        if !lost.is_app_limited {
            let least = self.target_inflight() / 10 * BETA_TENTHS;
            self.model.inflight_longterm = Some(self.inflight_at_loss(lost).max(least));
        }
        if self.state == State::Up {
            self.undo.state = Some(State::Up);
            self.start_down(lost.now);
        }
    }

    /// The volume in flight at which losses became too many, maybe within this piece (`InflightAtLoss`).
    fn inflight_at_loss(&self, lost: &Lost) -> u64 {
        let tolerated = self.cycle.tolerated();
        let inflight = lost.sent_in_flight.saturating_sub(lost.bytes);
        let before = lost.lost_since_sent.saturating_sub(lost.bytes);
        let more = (inflight.saturating_mul(tolerated)).saturating_sub(before.saturating_mul(1000));
        inflight + more / 1000_u64.saturating_sub(tolerated).max(1)
    }

    /// `SaveStateUponLoss`, at the first loss of a recovery.
    pub(super) fn start_recovery(&mut self) {
        if self.undo.is_in_recovery {
            return;
        }
        self.save_window();
        self.undo = Undo {
            is_in_recovery: true,
            state: None,
            bw_shortterm: self.model.bw_shortterm,
            inflight_shortterm: self.model.inflight_shortterm,
            inflight_longterm: self.model.inflight_longterm,
        };
    }

    /// `HandleSpuriousLossDetection`.
    pub(super) fn undo_loss(&mut self) {
        self.restore_window();
        self.model.forget_loss();
        self.full_pipe.reset(0);
        let Undo { state, bw_shortterm, inflight_shortterm, inflight_longterm, .. } = core::mem::take(&mut self.undo);
        let model = &mut self.model;
        model.bw_shortterm = looser(model.bw_shortterm, bw_shortterm);
        model.inflight_shortterm = looser(model.inflight_shortterm, inflight_shortterm);
        model.inflight_longterm = looser(model.inflight_longterm, inflight_longterm);
        match state {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_pipe.is_reached = false;
                if self.state != State::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(State::Up) if !matches!(self.state, State::Up | State::ProbeRtt) => self.start_refill(),
            _ => {}
        }
    }
}

/// The larger of two bounds; none is the largest.
fn looser(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.max(other?))
}
