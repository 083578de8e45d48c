//! What BBR holds true of the path: bandwidth, round trip, how much may be in flight. Sections *Updating Network Path Model Parameters* of the
//! draft, and below.

use super::filter::{OfRounds, TwoSlots};
use crate::congestion::{Ack, RateSample};
use core::time::Duration;
use glass_api::Instant;

/// The age after which a smaller round trip is no longer needed to replace it (`MinRTTFilterLen`).
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
/// The interval of phases that look for a smaller round trip (`ProbeRTTInterval`).
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// Half of the rounds in which acknowledgements that arrive together are remembered (`ExtraAckedFilterLen`), and before the pipe is full.
const AGGREGATION_ROUNDS: u64 = 5;
const AGGREGATION_ROUNDS_STARTUP: u64 = 1;
/// A round with losses leaves at least so many tenths (`Beta`).
pub const BETA_TENTHS: u64 = 7;

/// A rate sample as BBR uses it.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Bytes a second.
    pub rate: u64,
    /// What the acknowledgement's sender reported.
    pub of: RateSample,
    /// As there, or the sender was in ProbeRTT.
    pub is_app_limited: bool,
}

/// Round trips counted in packets (*BBR.round_count*).
#[derive(Debug, Clone, Copy, Default)]
pub struct Rounds {
    /// All bytes that were delivered.
    pub delivered: u64,
    /// A round ends with the delivery of what was sent after so many had been delivered.
    next: u64,
    /// Rounds so far, and since the last bandwidth probe.
    pub count: u64,
    pub since_probe: u64,
    /// The last acknowledgement has ended one.
    pub is_start: bool,
}

impl Rounds {
    /// A round starts now.
    pub fn start(&mut self) {
        self.next = self.delivered;
    }

    fn update(&mut self, sample: &RateSample) {
        self.delivered = sample.total_delivered;
        self.is_start = sample.prior_delivered >= self.next;
        if self.is_start {
            self.start();
            self.count += 1;
            self.since_probe += 1;
        }
    }
}

/// The model. `None` is infinite.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub rounds: Rounds,
    max_bw: TwoSlots,
    pub bw_shortterm: Option<u64>,
    pub inflight_shortterm: Option<u64>,
    pub inflight_longterm: Option<u64>,
    pub min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    probe_rtt_min: Option<Duration>,
    /// When that was measured, or ProbeRTT ended.
    pub probe_rtt_min_at: Instant,
    /// The last one is due for a refresh.
    pub is_probe_rtt_due: bool,
    latest: Latest,
    aggregation: Aggregation,
}

/// The delivery in this round, to which losses make the model adapt.
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    bw: u64,
    inflight: u64,
    round_delivered: u64,
    is_round_start: bool,
    is_loss_in_round: bool,
    /// Pieces that were lost in it.
    pieces: u32,
    lost: u64,
    start_delivered: u64,
}

/// *BBR.extra_acked*.
#[derive(Debug, Clone, Copy)]
struct Aggregation {
    since: Instant,
    delivered: u64,
    extra: OfRounds,
}

impl Model {
    pub fn new(now: Instant, rtt: Option<Duration>) -> Model {
        Model {
            rounds: Rounds::default(),
            max_bw: TwoSlots::default(),
            bw_shortterm: None,
            inflight_shortterm: None,
            inflight_longterm: None,
            min_rtt: rtt,
            min_rtt_at: now,
            probe_rtt_min: rtt,
            probe_rtt_min_at: now,
            is_probe_rtt_due: false,
            latest: Latest::default(),
            aggregation: Aggregation { since: now, delivered: 0, extra: OfRounds::default() },
        }
    }

    /// `BBR.max_bw`, bytes a second.
    pub fn max_bw(&self) -> u64 {
        self.max_bw.max()
    }

    /// `BBR.bw`, bytes a second.
    pub fn bw(&self) -> u64 {
        self.bw_shortterm.map_or(self.max_bw(), |bound| bound.min(self.max_bw()))
    }

    /// `BDPMultiple` with a gain in hundredths; `None` without any round trip.
    pub fn bdp(&self, bw: u64, gain_percent: u64) -> Option<u64> {
        let product = u128::from(bw) * self.min_rtt?.as_nanos() * u128::from(gain_percent);
        Some(u64::try_from(product / 100_000_000_000).unwrap_or(u64::MAX))
    }

    /// `BBR.extra_acked`, bytes.
    pub fn extra_acked(&self) -> u64 {
        self.aggregation.extra.max()
    }

    /// `UpdateLatestDeliverySignals` and `UpdateMaxBw`.
    pub fn update_delivery(&mut self, sample: &Sample) {
        let latest = &mut self.latest;
        latest.bw = latest.bw.max(sample.rate);
        latest.inflight = latest.inflight.max(sample.of.delivered_bytes);
        latest.is_round_start = sample.of.prior_delivered >= latest.round_delivered;
        if latest.is_round_start {
            latest.round_delivered = sample.of.total_delivered;
        }
        self.rounds.update(&sample.of);
        if sample.rate > 0 && (sample.rate >= self.max_bw() || !sample.is_app_limited) {
            self.max_bw.add(sample.rate);
        }
    }

    /// `AdaptLowerBoundsFromCongestion`, at the end of a round.
    pub fn adapt_to_losses(&mut self, window: u64, is_probing: bool, tolerated: u64) {
        if !self.latest.is_round_start {
            return;
        }
        if !is_probing && self.latest.is_loss_in_round && self.is_round_beyond(tolerated) {
            let share = |bytes: u64| bytes / 10 * BETA_TENTHS;
            let bw = self.bw_shortterm.unwrap_or(self.max_bw());
            self.bw_shortterm = Some(self.latest.bw.max(share(bw)));
            let inflight = self.inflight_shortterm.unwrap_or(window);
            self.inflight_shortterm = Some(self.latest.inflight.max(share(inflight)));
        }
        self.latest.is_loss_in_round = false;
        self.latest.lost = 0;
        self.latest.start_delivered = self.rounds.delivered;
    }

    /// Whether more than so many thousandths of this round's data were lost.
    fn is_round_beyond(&self, per_mille: u64) -> bool {
        let delivered = self.rounds.delivered.saturating_sub(self.latest.start_delivered);
        self.latest.lost.saturating_mul(1000) > (delivered + self.latest.lost).saturating_mul(per_mille)
    }

    /// `AdvanceLatestDeliverySignals`.
    pub fn advance_delivery(&mut self, sample: &Sample) {
        if self.latest.is_round_start {
            self.latest.bw = sample.rate;
            self.latest.inflight = sample.of.delivered_bytes;
            self.latest.pieces = 0;
        }
    }

    /// `NoteLoss`.
    pub fn note_loss(&mut self, bytes: u64) {
        if !self.latest.is_loss_in_round {
            self.latest.round_delivered = self.rounds.delivered;
        }
        self.latest.is_loss_in_round = true;
        self.latest.pieces += 1;
        self.latest.lost += bytes;
    }

    /// `ResetCongestionSignals`.
    pub fn reset_signals(&mut self) {
        self.latest.is_loss_in_round = false;
        self.latest.bw = 0;
        self.latest.inflight = 0;
    }

    /// No loss was one.
    pub fn forget_loss(&mut self) {
        self.latest.is_loss_in_round = false;
    }

    /// `ResetShortTermModel`.
    pub fn reset_short_term(&mut self) {
        self.bw_shortterm = None;
        self.inflight_shortterm = None;
    }

    /// `AdvanceMaxBwFilter`.
    pub fn advance_max_bw(&mut self) {
        self.max_bw.advance();
    }

    /// Whether a round with losses has just ended, and how many pieces it lost.
    pub fn lost_pieces_of_round(&self) -> Option<u32> {
        self.latest.is_round_start.then_some(self.latest.pieces)
    }

    /// The most that was delivered in a round trip lately.
    pub fn inflight_latest(&self) -> u64 {
        self.latest.inflight
    }

    /// `UpdateACKAggregation`. Returns nothing; see [`Model::extra_acked`].
    pub fn update_aggregation(&mut self, ack: &Ack, window: u64, is_full: bool) {
        let bw = u128::from(self.bw());
        let aggregation = &mut self.aggregation;
        let expected = bw * ack.now.since(aggregation.since).as_nanos() / 1_000_000_000;
        let mut expected = u64::try_from(expected).unwrap_or(u64::MAX);
        if aggregation.delivered <= expected {
            (aggregation.delivered, aggregation.since, expected) = (0, ack.now, 0);
        }
        aggregation.delivered += ack.delivered_bytes;
        let extra = (aggregation.delivered - expected).min(window);
        let length = if is_full { AGGREGATION_ROUNDS } else { AGGREGATION_ROUNDS_STARTUP };
        aggregation.extra.add(extra, self.rounds.count, length);
    }

    /// The interval of aggregation starts after a time without data.
    pub fn restart_aggregation(&mut self, now: Instant) {
        self.aggregation.since = now;
        self.aggregation.delivered = 0;
    }

    /// `UpdateMinRTT`.
    pub fn update_min_rtt(&mut self, now: Instant, rtt: Option<Duration>) {
        self.is_probe_rtt_due = now.since(self.probe_rtt_min_at) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = rtt
            && (self.is_probe_rtt_due || self.probe_rtt_min.is_none_or(|min| rtt < min))
        {
            self.probe_rtt_min = Some(rtt);
            self.probe_rtt_min_at = now;
        }
        let is_old = now.since(self.min_rtt_at) > MIN_RTT_AGE;
        let Some(min) = self.probe_rtt_min else { return };
        if is_old || self.min_rtt.is_none_or(|known| min < known) {
            self.min_rtt = Some(min);
            self.min_rtt_at = self.probe_rtt_min_at;
        }
    }
}
