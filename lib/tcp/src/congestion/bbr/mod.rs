//! BBR, version 3 (draft-ietf-ccwg-bbr, of August 2026; sections are cited by their titles): sends at the rate at which the path delivers, with what
//! that needs in flight, and probes for more every few seconds. Losses matter where they show that a probe put too much in flight.
//!
//! Rates are bytes a second, volumes bytes, gains hundredths; there are no floats. A part of the draft's functions is in each file: [`model`] what
//! is held true of the path, [`startup`] Startup and Drain, [`cycle`] the phases of ProbeBW, [`probe_rtt`] ProbeRTT, [`loss`] losses; here are
//! the order of it all, and what comes out.
//!
//! Four things are not the draft's. By it 3 % of random losses leave a quarter of the rate of a path of 100 Mbit/s and 40 ms, and a Startup that
//! overfills a short queue leaves 0.7 of the rate for three seconds:
//!
//! * What is lost while nothing probes and there is no queue (a round trip of at most 9/8 of the smallest, or a millisecond more) is no sign of too much in flight. Twice that share, at most 8 %, is tolerated besides the
//!   2 % of the draft (`Cycle::tolerated`; twice, because a round of some dozens of segments loses twice the mean now and then).
//! * A round lowers the short-term model only if it lost more than is tolerated. By the draft any loss does.
//! * Losses end Startup only in a round that did not deliver a quarter more than before.
//! * What was sent in Startup and is found to be lost after its end changes nothing: the queue that lost it is being drained.

mod cycle;
mod filter;
mod loss;
mod model;
mod probe_rtt;
mod startup;
#[cfg(test)]
mod tests;

use super::{Ack, Control, Lost, Start, initial_window};
use core::time::Duration;
use cycle::Cycle;
use glass_api::Instant;
use loss::Undo;
use model::{Model, Sample};
use probe_rtt::ProbeRtt;
use startup::FullPipe;

/// Segments in the smallest window, for receivers that acknowledge every other one (`MinPipeCwnd`).
const MIN_SEGMENTS: u64 = 4;
/// Percent by which the pace is below the bandwidth (`PacingMarginPercent`).
const PACING_MARGIN_PERCENT: u64 = 1;
/// Bytes that are sent at once, at most, and the part of a second that they take at the pace (`SetSendQuantum`).
const QUANTUM_BYTES_MAX: u64 = 64 << 10;
const QUANTA_PER_SEC: u64 = 1000;
/// Quanta in flight that offloads need (`UpdateOffloadBudget`).
const OFFLOAD_QUANTA: u64 = 3;
/// The round trip before the first is measured, for the first pace (`InitPacingRate`).
const RTT_UNKNOWN: Duration = Duration::from_millis(1);

/// `BBR.state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Startup,
    /// Since this round.
    Drain(u64),
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl State {
    /// Hundredths, of the table *Summary of Control Behavior in the State Machine*.
    fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain(_) => 50,
            State::Down => 90,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
            State::Up => 125,
        }
    }

    /// Hundredths, of the same table.
    fn window_gain(self) -> u64 {
        match self {
            State::Startup | State::Drain(_) | State::Down | State::Cruise | State::Refill => 200,
            State::Up => 225,
            State::ProbeRtt => 50,
        }
    }

    /// `IsInAProbeBWState`.
    fn is_probe_bw(self) -> bool {
        matches!(self, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// `IsProbingBW`.
    fn is_probing(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }
}

/// See the module's description.
#[derive(Debug, Clone)]
pub struct Bbr {
    segment_bytes: u64,
    state: State,
    model: Model,
    full_pipe: FullPipe,
    cycle: Cycle,
    probe_rtt: ProbeRtt,
    undo: Undo,
    /// `C.cwnd`, and `BBR.prior_cwnd`.
    window: u64,
    prior_window: u64,
    /// `C.pacing_rate`.
    pace: u64,
    /// `BBR.idle_restart`.
    is_idle_restart: bool,
    /// What is chosen at random.
    random: u64,
}

impl Bbr {
    /// For a connection that has just opened (`OnInit`).
    pub fn new(start: &Start) -> Bbr {
        let segment_bytes = start.segment_bytes.max(1);
        let window = initial_window(segment_bytes);
        let nanos = start.rtt.unwrap_or(RTT_UNKNOWN).as_nanos().max(1);
        let pace = u128::from(window * State::Startup.pacing_gain() / 100) * 1_000_000_000 / nanos;
        Bbr {
            segment_bytes,
            state: State::Startup,
            model: Model::new(start.now, start.rtt),
            full_pipe: FullPipe::default(),
            cycle: Cycle::new(start.now),
            probe_rtt: ProbeRtt::default(),
            undo: Undo::default(),
            window,
            prior_window: 0,
            pace: u64::try_from(pace).unwrap_or(u64::MAX),
            is_idle_restart: false,
            // Not 0, where the generator would stay.
            random: start.seed | 1,
        }
    }

    /// `UpdateModelAndState`, with the rate that the acknowledgement shows.
    fn update_model_and_state(&mut self, ack: &Ack, sample: &Sample) {
        self.model.update_delivery(sample);
        self.model.adapt_to_losses(self.window, self.state.is_probing(), self.cycle.tolerated());
        self.cycle.count_delivered(self.state, ack, self.model.min_rtt, self.segment_bytes);
        self.model.update_aggregation(ack, self.window, self.full_pipe.is_reached);
        self.full_pipe.check(self.model.rounds.is_start, sample);
        self.check_startup_done(ack, sample);
        self.check_drain_done(ack);
        self.update_cycle(ack, sample);
        self.model.update_min_rtt(ack.now, ack.rtt);
        self.check_probe_rtt(ack);
        self.model.advance_delivery(sample);
    }

    fn sample(&self, ack: &Ack) -> Option<Sample> {
        let of = ack.rate?;
        let is_app_limited = of.is_app_limited || of.prior_delivered < self.probe_rtt.limited_until;
        Some(Sample { rate: of.bytes_per_sec(), of, is_app_limited })
    }

    /// `SetPacingRateWithGain`.
    fn set_pace(&mut self, gain_percent: u64) {
        let rate = u128::from(self.model.bw()) * u128::from(gain_percent * (100 - PACING_MARGIN_PERCENT)) / 10_000;
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if self.full_pipe.is_reached || rate > self.pace {
            self.pace = rate;
        }
    }

    fn quantum(&self) -> u64 {
        (self.pace / QUANTA_PER_SEC).min(QUANTUM_BYTES_MAX).max(2 * self.segment_bytes)
    }

    fn min_window(&self) -> u64 {
        MIN_SEGMENTS * self.segment_bytes
    }

    /// `BDPMultiple` of `BBR.bw`.
    fn bdp(&self, gain_percent: u64) -> u64 {
        self.model.bdp(self.model.bw(), gain_percent).unwrap_or(initial_window(self.segment_bytes))
    }

    /// `QuantizationBudget`.
    fn with_budget(&self, bytes: u64) -> u64 {
        let probe = if self.state == State::Up { 2 * self.segment_bytes } else { 0 };
        bytes.max(OFFLOAD_QUANTA * self.quantum()).max(self.min_window()) + probe
    }

    /// `Inflight(1.0)` at the highest known bandwidth.
    fn inflight(&self) -> u64 {
        let bdp = self.model.bdp(self.model.max_bw(), 100);
        self.with_budget(bdp.unwrap_or(initial_window(self.segment_bytes)))
    }

    /// `TargetInflight`.
    fn target_inflight(&self) -> u64 {
        self.bdp(100).min(self.window)
    }

    /// `SetCwnd`.
    fn set_window(&mut self, newly_acked: u64) {
        let max = self.with_budget(self.bdp(self.state.window_gain()).saturating_add(self.model.extra_acked()));
        let is_early = self.model.rounds.delivered < initial_window(self.segment_bytes);
        if self.full_pipe.is_reached {
            self.window = (self.window + newly_acked).min(max);
        } else if self.window < max || is_early {
            self.window += newly_acked;
        }
        self.window = self.window.max(self.min_window());
        if self.state == State::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        self.bound_window_for_model();
    }

    /// `BoundCwndForModel`.
    fn bound_window_for_model(&mut self) {
        let longterm = match self.state {
            State::Down | State::Refill | State::Up => self.model.inflight_longterm,
            State::Cruise | State::ProbeRtt => self.inflight_with_headroom(),
            State::Startup | State::Drain(_) => None,
        };
        let cap = longterm.into_iter().chain(self.model.inflight_shortterm).min();
        if let Some(cap) = cap {
            self.window = self.window.min(cap.max(self.min_window()));
        }
    }

    /// `SaveCwnd`.
    fn save_window(&mut self) {
        let is_known_good = !self.undo.is_in_recovery && self.state != State::ProbeRtt;
        self.prior_window = if is_known_good { self.window } else { self.prior_window.max(self.window) };
    }

    /// `RestoreCwnd`.
    fn restore_window(&mut self) {
        self.window = self.window.max(self.prior_window);
    }

    /// A number below `limit` (xorshift64*).
    fn random_below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit.max(1)
    }
}

impl Control for Bbr {
    fn on_ack(&mut self, ack: &Ack) {
        if let Some(sample) = self.sample(ack) {
            self.update_model_and_state(ack, &sample);
        }
        self.set_pace(self.state.pacing_gain());
        self.set_window(ack.delivered_bytes);
    }

    fn on_lost(&mut self, lost: &Lost) {
        self.handle_lost(lost);
    }

    fn on_recovery_start(&mut self, _: Instant, _: u64) {
        self.start_recovery();
    }

    fn on_recovery_end(&mut self, _: Instant) {
        self.undo.is_in_recovery = false;
        self.restore_window();
    }

    fn on_timeout(&mut self, _: Instant, _: u64, _: bool) {
        self.start_recovery();
        // Everything in flight is lost, so that is one segment more than nothing.
        self.window = self.segment_bytes;
    }

    fn on_spurious(&mut self, _: Instant) {
        self.undo_loss();
    }

    fn on_idle_restart(&mut self, now: Instant, _: Duration, _: Duration) {
        self.restart_from_idle(now);
    }

    fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes.max(1);
    }

    fn window_bytes(&self) -> u64 {
        self.window
    }

    fn reduces_by_prr(&self) -> bool {
        false
    }

    fn pacing_bytes_per_sec(&self) -> Option<u64> {
        Some(self.pace.max(self.segment_bytes))
    }
}
