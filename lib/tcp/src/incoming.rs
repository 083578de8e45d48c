//! What a received segment does to a connection (RFC 9293, section 3.10.7).

use crate::connection::{Clocks, Connection, End, Offer, Opening, State};
use crate::number::{Numbering, SYN_POSITION};
use crate::sender::Acknowledgement;
use crate::wire::{Flags, Header, Segment};
use core::time::Duration;
use glass_api::Instant;

/// How long a connection that both ends have closed answers late segments.
pub(crate) const REST: Duration = Duration::from_secs(10);
/// The least time between two acknowledgements of what the peer should not have sent (RFC 5961, section 7).
const CHALLENGE_PERIOD: Duration = Duration::from_millis(500);
/// A timestamp older than this does not show the order of segments (RFC 7323, section 5.5).
const CLOCK_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 3600);
/// Blocks of one acknowledgement.
const SACKS_MAX: usize = 4;

impl Connection {
    /// Processes a segment between its ends. Call [`Connection::poll_transmit`] afterwards.
    pub fn receive(&mut self, now: Instant, segment: &Segment) {
        match self.state {
            State::Closed => {}
            State::SynSent => self.receive_opening(now, &segment.header),
            State::SynReceived => self.receive_crossed(now, segment),
            State::TimeWait => self.receive_in_time_wait(now, segment),
            _ => self.receive_open(now, segment),
        }
    }

    /// In SYN-SENT (section 3.10.7.3).
    fn receive_opening(&mut self, now: Instant, header: &Header) {
        let is_answer = header.flags.has(Flags::ACK);
        if is_answer && header.ack != self.own.to_wire(SYN_POSITION + 1) {
            if !header.flags.has(Flags::RST) {
                self.parting = Some(Header { seq: header.ack, flags: Flags::RST, ..Header::default() });
            }
            return;
        }
        if header.flags.has(Flags::RST) {
            if is_answer {
                self.finish(End::Reset);
            }
            return;
        }
        if !header.flags.has(Flags::SYN) {
            return;
        }
        let offer = Offer::of(header);
        if is_answer {
            self.open(now, Numbering::new(header.seq), &offer);
            self.receiver.request_ack();
        } else if let Some(opening) = &mut self.opening {
            // Both ends open at the same time: our SYN is retransmitted, with an acknowledgement.
            (opening.offer, opening.sent_at) = (Some(offer), None);
            let until = opening.until;
            let opening = *opening;
            *self = Connection::new(now, self.own, Numbering::new(header.seq), &offer, self.settings, None);
            self.state = State::SynReceived;
            self.opening = Some(Opening { until, ..opening });
        }
    }

    /// In SYN-RECEIVED after both ends have sent a SYN.
    fn receive_crossed(&mut self, now: Instant, segment: &Segment) {
        let header = &segment.header;
        let position = self.receiver.numbering().nearest(header.seq, self.receiver.next());
        if header.flags.has(Flags::RST) {
            if position == self.receiver.next() {
                self.finish(End::Reset);
            }
            return;
        }
        if !header.flags.has(Flags::ACK) {
            return;
        }
        if header.ack != self.own.to_wire(SYN_POSITION + 1) {
            self.parting = Some(Header { seq: header.ack, flags: Flags::RST, ..Header::default() });
            return;
        }
        let Some(offer) = self.opening.and_then(|opening| opening.offer) else { return };
        self.open(now, self.receiver.numbering(), &offer);
        if header.flags.has(Flags::SYN) {
            self.receiver.request_ack();
        } else {
            self.receive_open(now, segment);
        }
    }

    /// The peer has acknowledged our SYN.
    fn open(&mut self, now: Instant, peer: Numbering, offer: &Offer) {
        let opening = self.opening.take();
        let sent_once = opening.filter(|opening| opening.tries == 1 && opening.offer.is_none());
        let rtt = sent_once.and_then(|opening| opening.sent_at).map(|sent_at| now.since(sent_at));
        *self = Connection::new(now, self.own, peer, offer, self.settings, rtt);
    }

    /// In all states between ESTABLISHED and LAST-ACK (section 3.10.7.4).
    fn receive_open(&mut self, now: Instant, segment: &Segment) {
        let Segment { header, payload, .. } = segment;
        let flags = header.flags;
        let position = self.receiver.numbering().nearest(header.seq, self.receiver.next());
        if !flags.has(Flags::RST) && !self.is_in_time(now, segment, position) {
            return;
        }
        let length = segment.sequence_length();
        if !self.receiver.is_acceptable(position, length) {
            return self.receive_unacceptable(now, segment, position);
        }
        if flags.has(Flags::RST) {
            // Only the next number resets; another one in the window may be a guess (RFC 5961, section 3.2).
            if position == self.receiver.next() {
                self.finish(End::Reset);
            } else {
                self.challenge(now);
            }
            return;
        }
        if flags.has(Flags::SYN) {
            // RFC 5961, section 4.2.
            return self.challenge(now);
        }
        if !flags.has(Flags::ACK) || !self.acknowledge(now, segment, position) {
            return;
        }
        self.hear(now, header, position);
        if self.state == State::Closed || length == 0 {
            return;
        }
        if !self.receiver.is_finished() {
            let delay = self.settings.ack_delay;
            self.receiver.receive(now, position, payload, flags.has(Flags::FIN), delay);
            self.receiver.measure(now, self.sender.rtt.smoothed().unwrap_or_default());
            if self.receiver.is_finished() {
                self.peer_closed(now);
            }
        } else {
            self.receiver.request_ack();
        }
    }

    /// The peer has sent something. Its newest timestamp is the one to return, also if it has sent old data again: it measures how long
    /// that took (RFC 7323, section 4.3).
    fn hear(&mut self, now: Instant, header: &Header, position: u64) {
        self.heard_at = now;
        if let (Some(clocks), Some(timestamps)) = (&mut self.clocks, header.options.timestamps)
            && (timestamps.value.wrapping_sub(clocks.recent) as i32) >= 0
            && position <= self.receiver.acknowledged()
        {
            *clocks = Clocks { recent: timestamps.value, recent_at: now };
        }
    }

    /// Protection against wrapped sequence numbers (RFC 7323, section 5.3), and what has no timestamp although it must (section 3.2).
    fn is_in_time(&mut self, now: Instant, segment: &Segment, position: u64) -> bool {
        let Some(clocks) = self.clocks else { return true };
        let Some(timestamps) = segment.header.options.timestamps else { return false };
        let is_old = (timestamps.value.wrapping_sub(clocks.recent) as i32) < 0;
        if !is_old || now.since(clocks.recent_at) > CLOCK_AGE_MAX {
            return true;
        }
        self.answer_old(now, segment, position);
        false
    }

    /// Acknowledges what is not acceptable. Data that was received before is reported as a duplicate, and its sender waits for that.
    fn answer_old(&mut self, now: Instant, segment: &Segment, position: u64) {
        let end = position + segment.payload.len() as u64;
        let is_old = end <= self.receiver.next();
        if segment.sequence_length() > 0 && is_old {
            self.receiver.repeats(position, end);
        } else if segment.sequence_length() > 0 || position + 1 == self.receiver.next() {
            // What does not fit the window, or a probe of it.
            self.receiver.request_ack();
        } else {
            self.challenge(now);
        }
    }

    fn receive_unacceptable(&mut self, now: Instant, segment: &Segment, position: u64) {
        let Segment { header, .. } = segment;
        let flags = header.flags;
        if flags.has(Flags::RST) {
            return;
        }
        if flags.has(Flags::SYN) {
            return self.challenge(now);
        }
        // What was received before, or does not fit a window of 0, still acknowledges. Otherwise two ends that retransmit, each what the
        // other one has, would never hear of it.
        let near = self.receiver.next().saturating_sub(position) <= u64::from(u32::MAX) / 4;
        if flags.has(Flags::ACK) && position <= self.receiver.next() && near && self.acknowledge(now, segment, position)
        {
            self.hear(now, header, position);
        }
        if self.state != State::Closed {
            self.answer_old(now, segment, position);
        }
    }

    /// Processes the acknowledgement of a segment. Returns whether it can be one of the peer's.
    fn acknowledge(&mut self, now: Instant, segment: &Segment, position: u64) -> bool {
        let header = &segment.header;
        let ack = self.own.nearest(header.ack, self.sender.una);
        // What was never sent, or is older than any window, is a guess (RFC 5961, section 5.2).
        if ack > self.sender.next || ack + self.sender.window_max < self.sender.una {
            self.challenge(now);
            return false;
        }
        let is_newest = ack >= self.sender.una && (position, ack) >= self.window_from;
        if is_newest {
            self.window_from = (position, ack);
        }
        let mut sacks = [(0, 0); SACKS_MAX];
        let (mut count, mut duplicate) = (0, None);
        if self.sender.has_sack {
            for (index, (start, end)) in header.options.sacks.blocks().iter().enumerate() {
                let start = self.own.nearest(*start, self.sender.una);
                let end = self.own.nearest(*end, self.sender.una);
                if start >= end || end > self.sender.next {
                    continue;
                }
                if index == 0 && (end <= ack || self.is_inside_next(header, start, end)) {
                    duplicate = Some((start, end));
                } else if start >= ack.max(self.sender.una) {
                    sacks[count] = (start, end);
                    count += 1;
                }
            }
        }
        let echo = header.options.timestamps.filter(|timestamps| self.clocks.is_some() && timestamps.echo != 0);
        let acknowledgement = Acknowledgement {
            position: ack.max(self.sender.una),
            sacks: &sacks[..count],
            duplicate,
            window: is_newest.then(|| u64::from(header.window) << self.shift),
            echo: echo.map(|timestamps| (timestamps.echo, self.clock(now))),
            is_plain: segment.sequence_length() == 0 && ack == self.sender.una,
        };
        self.sender.acknowledges(now, &acknowledgement);
        if self.sender.is_fin_acknowledged() {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => self.rest(now),
                State::LastAck => self.finish(End::Finished),
                _ => {}
            }
        }
        true
    }

    /// Whether the first block is a part of the second one, so a duplicate (RFC 2883, section 4).
    fn is_inside_next(&self, header: &Header, start: u64, end: u64) -> bool {
        let Some((next_start, next_end)) = header.options.sacks.blocks().get(1) else { return false };
        let (next_start, next_end) =
            (self.own.nearest(*next_start, self.sender.una), self.own.nearest(*next_end, self.sender.una));
        next_start <= start && end <= next_end
    }

    /// All data and the FIN of the peer have arrived.
    fn peer_closed(&mut self, now: Instant) {
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.rest(now),
            _ => {}
        }
    }

    /// Enters TIME-WAIT.
    fn rest(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.rest_until = now + REST;
        self.sender.clear();
        self.receiver.release();
    }

    /// In TIME-WAIT: a FIN that comes again is acknowledged again. Resets are ignored (RFC 1337).
    fn receive_in_time_wait(&mut self, now: Instant, segment: &Segment) {
        let flags = segment.header.flags;
        if flags.has(Flags::RST) {
            return;
        }
        if flags.has(Flags::FIN) {
            self.rest_until = now + REST;
            self.receiver.request_ack();
        } else if segment.sequence_length() > 0 {
            self.challenge(now);
        }
    }

    /// Acknowledges what the peer should not have sent, not too often (RFC 5961, section 7).
    fn challenge(&mut self, now: Instant) {
        if self.challenged_at.is_none_or(|at| now.since(at) >= CHALLENGE_PERIOD) {
            self.challenged_at = Some(now);
            self.receiver.request_ack();
        }
    }
}
