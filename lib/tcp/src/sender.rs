//! The sending half: what is queued, what is in flight, and what acknowledgements mean for it.
//!
//! `recovery.rs` decides what is lost, and `transmit.rs` what is sent next.

use crate::congestion::{Ack, Control, Kind, Phase, Start};
use crate::number::SYN_POSITION;
use crate::pacing::Pacing;
use crate::path_mtu::Search;
use crate::prr::Reduction;
use crate::rack::Rack;
use crate::rate::Rate;
use crate::recovery::{Probe, Undo};
use crate::ring::Ring;
use crate::rtt::RoundTrip;
use crate::scoreboard::{Range, Scoreboard};
use alloc::boxed::Box;
use core::time::Duration;
use glass_api::Instant;

/// A ring with less space than this part of it is full: the writer fills it again when there is space that is worth it.
const RING_FULL_PART: usize = 4;

/// What an acknowledgement reports, in positions.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledgement<'s> {
    /// Everything before is acknowledged. Not after what was sent.
    pub position: u64,
    /// What arrived out of order.
    pub sacks: &'s [(u64, u64)],
    /// What arrived twice (RFC 2883), where it ends.
    pub duplicate: Option<(u64, u64)>,
    /// The window of the peer, if this is the newest that is known.
    pub window: Option<u64>,
    /// Our clock, as the peer returned it, and now, in milliseconds.
    pub echo: Option<(u32, u32)>,
    /// The segment has neither data nor FIN.
    pub is_plain: bool,
}

/// The sending half of a connection that is open.
#[derive(Debug)]
pub struct Sender {
    /// Data that is not acknowledged, and the position of its first byte.
    pub(crate) ring: Ring,
    pub(crate) base: u64,
    /// The first position that is not acknowledged, and the first that was not sent.
    pub(crate) una: u64,
    pub(crate) next: u64,
    /// Nothing follows the data in the ring but a FIN.
    pub(crate) is_closed: bool,
    /// The peer's window, and the largest one that it had.
    pub(crate) window: u64,
    pub(crate) window_max: u64,
    /// Payload of a full segment, and the search for a longer one.
    pub(crate) segment: u64,
    pub(crate) search: Search,
    /// The peer understands SACK.
    pub(crate) has_sack: bool,
    pub(crate) board: Scoreboard,
    pub(crate) control: Box<dyn Control>,
    pub(crate) rtt: RoundTrip,
    pub(crate) rate: Rate,
    pub(crate) rack: Rack,
    pub(crate) pacing: Pacing,
    pub(crate) phase: Phase,
    /// The recovery is over when everything before is acknowledged.
    pub(crate) recovery_end: u64,
    pub(crate) reduction: Reduction,
    pub(crate) undo: Option<Undo>,
    /// A tail loss probe that is not answered; and one is to be sent.
    pub(crate) probe: Option<Probe>,
    pub(crate) wants_probe: bool,
    /// The retransmission timer has expired: the first segment is sent whatever is in flight.
    pub(crate) must_retransmit: bool,
    /// Repeated acknowledgements of a peer without SACK.
    pub(crate) repeats: u64,
    /// The retransmission timer runs since then.
    pub(crate) progress_at: Instant,
    /// New data was sent or something was acknowledged last then.
    pub(crate) active_at: Instant,
    /// More is lost then if it does not arrive.
    pub(crate) reorder_at: Option<Instant>,
    /// The next probe of a window that is too small, how many there were, and whether one is due.
    pub(crate) persist_at: Option<Instant>,
    pub(crate) persists: u32,
    pub(crate) wants_persist: bool,
    /// A short last segment waits for more data while something is in flight (RFC 9293, section 3.7.4).
    pub(crate) holds_short: bool,
    /// The congestion window has stopped us in this round trip.
    pub(crate) is_window_limited: bool,
}

/// What a sender is made of.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    /// How its rate reacts to loss.
    pub control: Kind,
    /// Payload of a full segment, timestamps deducted.
    pub segment: u64,
    /// The peer's window.
    pub window: u64,
    /// The peer understands SACK.
    pub has_sack: bool,
    /// The round trip of the handshake, if nothing of it was retransmitted.
    pub rtt: Option<Duration>,
    /// Differs from connection to connection.
    pub seed: u64,
}

impl Sender {
    /// For a connection that opens now, with the buffer `ring`.
    pub fn new(now: Instant, ring: Ring, parts: &Parts) -> Sender {
        let Parts { control, segment, window, has_sack, rtt, seed } = *parts;
        let mut round_trip = RoundTrip::default();
        if let Some(rtt) = rtt {
            round_trip.sample(now, rtt);
        }
        let first = SYN_POSITION + 1;
        Sender {
            ring,
            base: first,
            una: first,
            next: first,
            is_closed: false,
            window,
            window_max: window,
            segment,
            search: Search::new(segment),
            has_sack,
            board: Scoreboard::default(),
            control: control.start(&Start { now, segment_bytes: segment, rtt, seed }),
            rtt: round_trip,
            rate: Rate::default(),
            rack: Rack::default(),
            pacing: Pacing::default(),
            phase: Phase::Open,
            recovery_end: first,
            reduction: Reduction::default(),
            undo: None,
            probe: None,
            wants_probe: false,
            must_retransmit: false,
            repeats: 0,
            progress_at: now,
            active_at: now,
            reorder_at: None,
            persist_at: None,
            persists: 0,
            wants_persist: false,
            holds_short: false,
            is_window_limited: false,
        }
    }

    /// The position after the data; a FIN would have it.
    pub(crate) fn data_end(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// Bytes that were not sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.data_end().saturating_sub(self.next)
    }

    /// Whether the ring is full and holds less than twice what both windows allow, as Linux has it (`tcp_sndbuf_expand`): the windows grow while what was lost is
    /// retransmitted and kept.
    pub(crate) fn is_ring_short(&self) -> bool {
        let (limit, window) = (self.ring.limit(), self.congestion_window().min(self.window));
        self.ring.space() <= limit / RING_FULL_PART && (limit as u64) < 2 * window
    }

    /// Whether our FIN was acknowledged.
    pub fn is_fin_acknowledged(&self) -> bool {
        self.is_closed && self.una > self.data_end()
    }

    /// Bytes in flight. Those of which a peer without SACK reports only the number have arrived.
    pub(crate) fn in_flight(&self) -> u64 {
        let arrived = self.repeats * self.segment;
        let most = self.board.in_flight().saturating_sub(self.segment);
        self.board.in_flight() - arrived.min(most)
    }

    /// How much may be in flight.
    pub(crate) fn congestion_window(&self) -> u64 {
        if self.phase == Phase::Recovery && self.control.reduces_by_prr() {
            self.reduction.window()
        } else {
            self.control.window_bytes()
        }
    }

    /// Processes an acknowledgement. Returns whether it moves the start of what is not acknowledged.
    pub fn acknowledges(&mut self, now: Instant, ack: &Acknowledgement) -> bool {
        let is_repeat = self.is_repeat(ack);
        if let Some(window) = ack.window {
            self.window = window;
            self.window_max = self.window_max.max(window);
        }
        let advances = ack.position > self.una;
        if !advances && ack.sacks.is_empty() && ack.duplicate.is_none() && !is_repeat {
            if ack.is_plain {
                self.end_probe(now, ack, false);
            }
            return false;
        }
        let (prior_in_flight, outstanding) = (self.in_flight(), self.next - self.una);
        let prior_delivered = self.rate.delivered();
        let acked_bytes = ack.position.saturating_sub(self.una);
        let rtt = self.deliver(now, ack);
        if advances {
            self.una = ack.position;
            let count = self.una.min(self.data_end()) - self.base;
            self.ring.remove(count as usize);
            self.base += count;
            (self.progress_at, self.active_at) = (now, now);
            (self.persist_at, self.persists, self.must_retransmit) = (None, 0, false);
            self.rtt.forgive();
        }
        let mut delivered_bytes = self.rate.delivered() - prior_delivered;
        if is_repeat {
            self.repeats += 1;
            delivered_bytes += self.segment;
        } else if advances {
            self.repeats = self.repeats.saturating_sub(acked_bytes / self.segment.max(1));
        }
        if delivered_bytes > 0 {
            self.active_at = now;
        }
        self.end_probe(now, ack, advances);
        let lost_bytes = self.find_losses(now, ack, advances);
        self.change_phase(now, ack, (prior_in_flight, outstanding), (delivered_bytes, lost_bytes), advances);
        self.report(now, acked_bytes, (delivered_bytes, lost_bytes), prior_in_flight, rtt);
        advances
    }

    /// Whether it is an acknowledgement that a peer without SACK repeats because something is missing (RFC 5681, section 2).
    fn is_repeat(&self, ack: &Acknowledgement) -> bool {
        let same_window = ack.window.is_none_or(|window| window == self.window);
        !self.has_sack && ack.is_plain && ack.position == self.una && same_window && !self.board.is_empty()
    }

    /// Notes what has arrived. Returns the round trip of what was sent last.
    fn deliver(&mut self, now: Instant, ack: &Acknowledgement) -> Option<Duration> {
        let Sender { board, rate, rack, rtt, undo, segment, search, .. } = self;
        let min = rtt.min();
        // Bytes that were retransmitted once although the original arrived: what the peer returns is older (RFC 3522).
        let mut originals = 0;
        let mut is_original = |piece: &Range| {
            let Some((echo, clock)) = ack.echo.filter(|_| piece.retransmissions > 0) else { return false };
            let age = (now.0 / 1_000_000 - piece.sent_at.0 / 1_000_000) as u32;
            let is_older = (echo.wrapping_sub(clock.wrapping_sub(age)) as i32) < 0;
            if is_older && piece.retransmissions == 1 {
                originals += piece.bytes();
            }
            is_older
        };
        // Of what was sent once: when the first and when the last of it was.
        let (mut oldest, mut newest): (Option<Instant>, Option<Instant>) = (None, None);
        let mut has_path_probe = false;
        let mut deliver = |piece: &Range, in_order: bool| {
            rate.delivers(now, piece.bytes(), piece.sent_at, &piece.stamp);
            rack.delivers(now, piece, min, in_order && is_original(piece));
            search.is_proved |= piece.bytes() >= *segment;
            has_path_probe |= search.is_probe(piece);
            if piece.retransmissions == 0 {
                newest = newest.max(Some(piece.sent_at));
                if in_order {
                    oldest.get_or_insert(piece.sent_at);
                }
            }
        };
        let end = ack.position;
        board.acknowledge(end, |piece| deliver(piece, true));
        for (start, end) in ack.sacks {
            board.sack(*start, *end, |piece| deliver(piece, false));
        }
        search.acknowledge(end);
        if let Some(undo) = undo.as_mut().filter(|_| originals > 0) {
            undo.sees_originals(originals);
        }
        match (oldest, ack.echo) {
            (Some(oldest), _) => rtt.sample(now, now.since(oldest)),
            // Timestamps measure what was retransmitted, too (RFC 7323, section 4.1). Their unit is a millisecond.
            (None, Some((echo, clock))) if end > self.una => {
                rtt.sample(now, Duration::from_millis(clock.wrapping_sub(echo).min(60_000).into()));
            }
            _ => {}
        }
        if has_path_probe {
            self.lengthen_segment(now);
        }
        let newest = newest.map(|newest| now.since(newest));
        if let Some(newest) = newest {
            self.rtt.note_min(now, newest);
        }
        newest
    }

    /// Reports an acknowledgement to congestion control.
    fn report(
        &mut self,
        now: Instant,
        acked_bytes: u64,
        bytes: (u64, u64),
        prior_in_flight: u64,
        rtt: Option<Duration>,
    ) {
        let (delivered_bytes, lost_bytes) = bytes;
        if delivered_bytes == 0 {
            return;
        }
        let (rate, is_round_start) = self.rate.sample(self.rtt.min());
        let uses_half = 2 * prior_in_flight >= self.control.window_bytes();
        let ack = Ack {
            now,
            delivered_bytes,
            acked_bytes,
            lost_bytes,
            prior_in_flight,
            in_flight: self.in_flight(),
            rtt,
            min_rtt: self.rtt.min(),
            rate,
            round: self.rate.rounds(),
            is_round_start,
            is_window_limited: self.is_window_limited || uses_half,
            phase: self.phase,
        };
        self.control.on_ack(&ack);
        if is_round_start {
            self.is_window_limited = false;
        }
    }

    /// Forgets all data: the connection is over.
    pub fn clear(&mut self) {
        self.ring = Ring::new(0);
        self.base = self.una;
        self.board.clear();
        (self.reorder_at, self.persist_at) = (None, None);
    }
}
