//! Loss recovery of the sending half: RACK-TLP (RFC 8985), NewReno for peers without SACK (RFC 6582), proportional rate reduction
//! (RFC 6937), timeouts (RFC 6298), and what undoes a recovery that was not necessary (RFC 3522, RFC 3708).

use crate::congestion::{Lost, Phase};
use crate::prr::Reduction;
use crate::scoreboard::{Fate, Range};
use crate::sender::{Acknowledgement, Sender};
use core::time::Duration;
use glass_api::Instant;

/// Acknowledgements of a peer without SACK that show a loss.
const REPEATS: u64 = 3;
/// How long a peer may delay the acknowledgement of a single segment (RFC 8985, section 7.2).
const ACK_DELAY_MAX: Duration = Duration::from_millis(200);
/// A probe is not sent sooner: on a short path a peer that is busy would receive everything twice.
const PROBE_AFTER_MIN: Duration = Duration::from_millis(10);
/// When a probe is sent before a round trip was measured.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// What may show that a recovery was not necessary.
#[derive(Debug)]
pub struct Undo {
    /// What was not acknowledged when it started.
    from: u64,
    /// Something was retransmitted, and of so many bytes it is not known that this was not necessary.
    has_retransmitted: bool,
    retransmitted: i64,
    /// Timestamps have shown that an original arrived.
    has_originals: bool,
}

impl Undo {
    fn new(from: u64) -> Undo {
        Undo { from, has_retransmitted: false, retransmitted: 0, has_originals: false }
    }

    /// So many bytes were retransmitted although the original arrived.
    pub fn sees_originals(&mut self, bytes: u64) {
        self.has_originals = true;
        self.retransmitted -= bytes as i64;
    }
}

/// A tail loss probe.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// The end of all that was sent then.
    end: u64,
    is_retransmission: bool,
}

impl Sender {
    /// Marks what is lost, and returns how much that is.
    pub(crate) fn find_losses(&mut self, now: Instant, ack: &Acknowledgement, advances: bool) -> u64 {
        let mut lost_bytes = 0;
        if !self.has_sack {
            let is_new = self.phase == Phase::Open && self.repeats == REPEATS && self.una >= self.recovery_end;
            // A part of what was in flight: the next segment is lost too (RFC 6582, section 3.2).
            let is_partial = self.phase == Phase::Recovery && advances && self.una < self.recovery_end;
            if is_new || is_partial {
                let segment = self.segment;
                self.lose_first(now, segment, &mut lost_bytes);
            }
            return lost_bytes;
        }
        if let Some((_, end)) = ack.duplicate {
            self.rack.sees_duplicate(self.una, self.next);
            debug_assert!(end <= self.next);
        }
        // Without a hole and without a retransmission, what is in flight was sent after all that has arrived.
        if self.board.sacked_bytes() > 0 || self.phase != Phase::Open || self.probe.is_some() {
            lost_bytes = self.detect(now);
        } else {
            self.reorder_at = None;
        }
        lost_bytes
    }

    fn lose_first(&mut self, now: Instant, bytes: u64, lost_bytes: &mut u64) {
        let Sender { board, rate, control, .. } = self;
        board.lose_first(bytes, |range| {
            *lost_bytes += range.bytes();
            let total = rate.loses(range.bytes());
            control.on_lost(&lost(now, range, total));
        });
    }

    /// Marks what is lost by its time. Returns how much that is. A lost probe of the path is no sign of congestion (RFC 4821, section 7.6.2).
    fn detect(&mut self, now: Instant) -> u64 {
        let Sender { board, rate, control, rack, rtt, segment, search, phase, .. } = self;
        let mut lost_bytes = 0;
        let (round_trips, recovers) = ((rtt.min(), rtt.smoothed()), *phase != Phase::Open);
        self.reorder_at = rack.detect(now, board, *segment, round_trips, recovers, |range| {
            if range.is_probe {
                return search.loses_probe(now, *segment);
            }
            lost_bytes += range.bytes();
            let total = rate.loses(range.bytes());
            control.on_lost(&lost(now, range, total));
        });
        lost_bytes
    }

    /// Enters or leaves a recovery after an acknowledgement.
    pub(crate) fn change_phase(
        &mut self,
        now: Instant,
        ack: &Acknowledgement,
        before: (u64, u64),
        bytes: (u64, u64),
        advances: bool,
    ) {
        let (prior_in_flight, outstanding) = before;
        let (delivered_bytes, lost_bytes) = bytes;
        if self.phase != Phase::Open && self.is_spurious(ack) {
            self.undo_recovery(now);
            return;
        }
        if self.phase != Phase::Open && self.una >= self.recovery_end {
            // What was found to be lost has arrived before it could be retransmitted, so it was late.
            let was_unnecessary = self.undo.as_ref().is_some_and(|undo| !undo.has_retransmitted);
            if was_unnecessary {
                self.undo_recovery(now);
                return;
            }
            self.end_recovery(now);
        }
        if self.phase == Phase::Open && lost_bytes > 0 {
            self.start_recovery(now, prior_in_flight, outstanding);
        }
        if self.phase == Phase::Recovery {
            let (target, in_flight) = (self.control.window_bytes(), self.in_flight());
            self.reduction.acknowledges(delivered_bytes, in_flight, target, self.segment, advances && lost_bytes == 0);
            if !self.has_sack && lost_bytes > 0 {
                // The first segment that is missing is sent at each partial acknowledgement (RFC 6582, section 3.2).
                self.reduction.permit(in_flight, self.segment);
            }
        }
    }

    fn start_recovery(&mut self, now: Instant, prior_in_flight: u64, outstanding: u64) {
        self.phase = Phase::Recovery;
        self.recovery_end = self.next;
        self.control.on_recovery_start(now, prior_in_flight);
        self.reduction = Reduction::start(outstanding, self.in_flight(), self.segment);
        self.undo = Some(Undo::new(self.una));
        (self.probe, self.wants_probe) = (None, false);
    }

    fn end_recovery(&mut self, now: Instant) {
        self.phase = Phase::Open;
        self.repeats = 0;
        self.undo = None;
        self.rack.recovers();
        self.control.on_recovery_end(now);
    }

    /// Whether an acknowledgement shows that nothing was lost.
    fn is_spurious(&mut self, ack: &Acknowledgement) -> bool {
        let is_timeout = self.phase == Phase::Loss;
        let Some(undo) = self.undo.as_mut().filter(|undo| undo.has_retransmitted) else { return false };
        // The original has arrived before what a timeout has retransmitted (RFC 3522).
        if undo.has_originals {
            return is_timeout || undo.retransmitted <= 0;
        }
        // All that was retransmitted has arrived twice (RFC 3708).
        let Some((start, end)) = ack.duplicate.filter(|(start, _)| *start >= undo.from) else { return false };
        undo.retransmitted -= (end - start) as i64;
        undo.retransmitted <= 0
    }

    fn undo_recovery(&mut self, now: Instant) {
        self.phase = Phase::Open;
        self.undo = None;
        self.repeats = 0;
        self.board.restore_lost();
        self.rack.is_reordered = true;
        self.control.on_spurious(now);
    }

    /// Something is retransmitted.
    pub(crate) fn note_retransmission(&mut self, bytes: u64) {
        if let Some(undo) = &mut self.undo {
            undo.has_retransmitted = true;
            undo.retransmitted += bytes as i64;
        }
    }

    /// When the next probe of the tail is due (RFC 8985, section 7.2).
    fn probe_at(&self) -> Option<Instant> {
        let is_quiet = self.phase == Phase::Open && self.board.sacked_bytes() == 0 && self.board.lost_bytes() == 0;
        if !self.has_sack || !is_quiet || self.probe.is_some() || self.wants_probe || self.board.is_empty() {
            return None;
        }
        let wait = match self.rtt.smoothed() {
            None => PROBE_AFTER,
            Some(rtt) if self.board.in_flight() <= self.segment => 2 * rtt + ACK_DELAY_MAX,
            Some(rtt) => (2 * rtt).max(PROBE_AFTER_MIN),
        };
        // Not later than the timeout, which it comes instead of.
        Some(self.active_at + wait).min(self.timeout_at())
    }

    fn timeout_at(&self) -> Option<Instant> {
        (!self.board.is_empty()).then(|| self.progress_at + self.rtt.timeout())
    }

    /// When something is to be done if nothing is acknowledged.
    pub(crate) fn loss_deadline(&self) -> Option<Instant> {
        [self.timeout_at(), self.probe_at(), self.reorder_at].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.reorder_at.is_some_and(|at| at <= now) {
            let (in_flight, outstanding) = (self.in_flight(), self.next - self.una);
            let lost_bytes = self.detect(now);
            if self.phase == Phase::Open && lost_bytes > 0 {
                self.start_recovery(now, in_flight, outstanding);
            }
        }
        if self.probe_at().is_some_and(|at| at <= now) {
            self.wants_probe = true;
        } else if !self.wants_probe && self.timeout_at().is_some_and(|at| at <= now) {
            self.time_out(now);
        }
        if self.persist_at.is_some_and(|at| at <= now) {
            (self.persist_at, self.wants_persist) = (None, true);
            self.persists += 1;
        }
    }

    /// The retransmission timer has expired (RFC 6298, section 5; RFC 8985, section 6.3).
    fn time_out(&mut self, now: Instant) {
        let in_flight = self.in_flight();
        if self.board.first().is_some_and(|first| first.fate == Fate::Sacked) {
            self.board.forget_sacks();
        }
        // What was sent in the last round trip may still be on its way.
        let round_trip = self.rtt.smoothed().unwrap_or_default();
        let Sender { board, rate, control, segment, search, una, .. } = self;
        board.lose(
            u64::MAX,
            |range| range.start == *una || now.since(range.sent_at) >= round_trip,
            |range| {
                if range.is_probe {
                    search.loses_probe(now, *segment);
                }
                let total = rate.loses(range.bytes());
                control.on_lost(&lost(now, range, total));
            },
        );
        self.suspect_path();
        let is_first = self.phase != Phase::Loss;
        self.control.on_timeout(now, in_flight, is_first);
        if is_first {
            self.undo = Some(Undo::new(self.una));
        }
        self.phase = Phase::Loss;
        self.recovery_end = self.next;
        self.rtt.back_off();
        self.must_retransmit = true;
        self.progress_at = now;
        self.repeats = 0;
        self.reorder_at = None;
        (self.probe, self.wants_probe) = (None, false);
    }

    /// A tail loss probe is sent: new data, or a retransmission of the last.
    pub(crate) fn sends_probe(&mut self, now: Instant, end: u64, is_retransmission: bool) {
        self.wants_probe = false;
        self.probe = Some(Probe { end, is_retransmission });
        // The timer starts again (RFC 8985, section 7.3).
        self.progress_at = now;
    }

    /// Ends the probe's episode: its loss was repaired, or nothing was lost (RFC 8985, section 7.4.2).
    pub(crate) fn end_probe(&mut self, now: Instant, ack: &Acknowledgement, advances: bool) {
        let Some(probe) = self.probe.filter(|probe| ack.position >= probe.end) else { return };
        let has_both = ack.duplicate.is_some_and(|(_, end)| end == probe.end);
        if !probe.is_retransmission || has_both || (!advances && ack.sacks.is_empty()) {
            self.probe = None;
        } else if ack.position > probe.end {
            self.probe = None;
            if self.phase == Phase::Open {
                let in_flight = self.in_flight();
                self.control.on_recovery_start(now, in_flight);
                self.control.on_recovery_end(now);
            }
        }
    }
}

fn lost(now: Instant, range: &Range, total: u64) -> Lost {
    let Range { stamp, .. } = range;
    Lost {
        now,
        bytes: range.bytes(),
        sent_in_flight: stamp.in_flight,
        lost_since_sent: total - stamp.lost,
        prior_delivered: stamp.delivered,
        is_app_limited: stamp.is_app_limited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Kind;
    use crate::ring::Ring;
    use crate::sender::Parts;
    use crate::transmit::Lengths;

    const RTT: Duration = Duration::from_millis(10);

    #[test]
    fn what_arrives_before_it_is_retransmitted_was_not_lost() {
        let mut ring = Ring::new(20_000);
        ring.write(&[0; 10_000]);
        let parts =
            Parts { control: Kind::NewReno, segment: 1000, window: 60_000, has_sack: true, rtt: Some(RTT), seed: 1 };
        let mut sender = Sender::new(Instant(0), ring, &parts);
        let first = sender.next;
        while sender.next_piece(Instant(0), Lengths { segment: 1000, frame: 1000 }).is_some() {}
        let window = sender.control.window_bytes();
        let ack = Acknowledgement {
            position: first,
            sacks: &[(first + 1000, first + 4000)],
            duplicate: None,
            window: None,
            echo: None,
            is_plain: true,
        };
        // The first segment is overtaken by three others, and arrives before anything is sent.
        let now = Instant(0) + RTT;
        sender.acknowledges(now, &ack);
        assert_eq!(sender.phase, Phase::Recovery);
        assert!(sender.control.window_bytes() < window);
        sender.acknowledges(now, &Acknowledgement { position: first + 10_000, sacks: &[], ..ack });
        assert_eq!(sender.phase, Phase::Open);
        assert!(sender.control.window_bytes() >= window);
    }
}
