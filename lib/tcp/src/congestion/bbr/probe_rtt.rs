//! ProbeRTT: every five seconds little is in flight for a moment, so that the round trip without a queue is seen; and the restart of a connection
//! that had nothing to send.

use super::{Bbr, State};
use crate::congestion::Ack;
use core::time::Duration;
use glass_api::Instant;

/// How long little is in flight, at least (`ProbeRTTDuration`).
const DURATION: Duration = Duration::from_millis(200);

/// The state of ProbeRTT.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeRtt {
    /// When it has lasted long enough; `None` until little is in flight.
    done_at: Option<Instant>,
    is_round_done: bool,
    /// What is sent until so much is delivered shows no bandwidth (`MarkConnectionAppLimited`).
    pub limited_until: u64,
}

impl Bbr {
    /// `CheckProbeRTT`.
    pub(super) fn check_probe_rtt(&mut self, ack: &Ack) {
        if self.state != State::ProbeRtt && self.model.is_probe_rtt_due && !self.is_idle_restart {
            self.save_window();
            self.state = State::ProbeRtt;
            self.probe_rtt.done_at = None;
            self.cycle.stop_probe();
            self.model.rounds.start();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(ack);
        }
        if ack.delivered_bytes > 0 {
            self.is_idle_restart = false;
        }
    }

    /// `HandleProbeRTT`.
    fn handle_probe_rtt(&mut self, ack: &Ack) {
        self.probe_rtt.limited_until = self.model.rounds.delivered + ack.in_flight;
        match self.probe_rtt.done_at {
            None if ack.in_flight <= self.probe_rtt_window() => {
                self.probe_rtt.done_at = Some(ack.now + DURATION);
                self.probe_rtt.is_round_done = false;
                self.model.rounds.start();
            }
            None => {}
            Some(_) => {
                self.probe_rtt.is_round_done |= self.model.rounds.is_start;
                if self.probe_rtt.is_round_done {
                    self.check_probe_rtt_done(ack.now);
                }
            }
        }
    }

    /// `CheckProbeRTTDone`.
    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt.done_at.is_none_or(|done| now <= done) {
            return;
        }
        self.model.probe_rtt_min_at = now;
        self.restore_window();
        // `ExitProbeRTT`.
        self.model.reset_short_term();
        if self.full_pipe.is_reached {
            self.start_down(now);
            self.state = State::Cruise;
        } else {
            self.enter_startup();
        }
    }

    /// `ProbeRTTCwnd`.
    pub(super) fn probe_rtt_window(&self) -> u64 {
        self.bdp(State::ProbeRtt.window_gain()).max(self.min_window())
    }

    /// `HandleRestartFromIdle`.
    pub(super) fn restart_from_idle(&mut self, now: Instant) {
        self.is_idle_restart = true;
        self.model.restart_aggregation(now);
        if self.state.is_probe_bw() {
            self.set_pace(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(now);
        }
    }
}
