//! What a connection sends, and when.

use crate::connection::{Connection, End, State};
use crate::number::SYN_POSITION;
use crate::transmit::{Lengths, Piece};
use crate::wire::{Flags, Header, Options, TIMESTAMP_BYTES, Timestamps};
use core::time::Duration;
use glass_api::Instant;

/// After so long a SYN is retransmitted, and twice as long after the next one (RFC 6298, section 2.1).
pub(crate) const RESEND_AFTER: Duration = Duration::from_secs(1);
/// Waits for the answer to a SYN double so often.
pub(crate) const RESEND_SHIFT_MAX: u32 = 5;
/// Keep-alive probes in the time after which a peer is gone.
const KEEP_ALIVES: u32 = 4;

/// A segment to send. Its header comes from here, its payload from [`Connection::payload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The header, ports and checksum aside.
    pub header: Header,
    /// Bytes of its payload.
    pub payload_bytes: usize,
    /// The payload is to be cut into segments of so many bytes; `None` if it is one.
    pub cut_bytes: Option<u16>,
    /// It was sent before.
    pub is_retransmission: bool,
    /// Where the payload starts in the send buffer.
    offset: usize,
}

impl Transmit {
    fn plain(header: Header) -> Transmit {
        Transmit { header, payload_bytes: 0, cut_bytes: None, is_retransmission: false, offset: 0 }
    }
}

impl Connection {
    /// The payload of a segment that was just returned, in two pieces.
    pub fn payload(&self, transmit: &Transmit) -> [&[u8]; 2] {
        self.sender.ring.pieces(transmit.offset, transmit.payload_bytes)
    }

    /// The next segment to send now, which counts as sent; `None` if there is none until [`Connection::next_deadline`], or until something
    /// is received, read or written. `frame_bytes` is the longest frame that the card cuts into segments, headers of TCP included and
    /// those before it not; 0 if it cuts none.
    pub fn poll_transmit(&mut self, now: Instant, frame_bytes: usize) -> Option<Transmit> {
        self.advance(now);
        if let Some(header) = self.parting.take() {
            return Some(Transmit::plain(header));
        }
        match self.state {
            State::Closed => None,
            State::SynSent | State::SynReceived => self.poll_opening(now),
            State::TimeWait => self.poll_ack(now),
            _ => self.poll_open(now, frame_bytes),
        }
    }

    /// The answer to the segment that was received last, if it has to be answered by itself: when several acknowledge what is out of
    /// order, the peer counts them (RFC 5681, section 4.2). All others are for [`Connection::poll_transmit`].
    pub fn poll_answer(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(header) = self.parting.take() {
            return Some(Transmit::plain(header));
        }
        if self.receiver.is_urgent() { self.poll_ack(now) } else { None }
    }

    fn poll_opening(&mut self, now: Instant) -> Option<Transmit> {
        if self.opening_deadline()? > now {
            return None;
        }
        let clock = self.clock(now);
        let opening = self.opening.as_mut()?;
        opening.sent_at = Some(now);
        opening.tries += 1;
        let shift = self.settings.shift();
        let window = u16::try_from(self.settings.receive_bytes).unwrap_or(u16::MAX);
        let mut header = Header { seq: self.own.to_wire(SYN_POSITION), flags: Flags::SYN, window, ..Header::default() };
        header.options.segment_bytes = Some(self.settings.segment_bytes);
        let answer = opening.offer;
        if answer.is_none_or(|offer| offer.shift.is_some()) {
            header.options.shift = Some(shift);
        }
        header.options.sack_permitted = answer.is_none_or(|offer| offer.has_sack);
        if answer.is_none_or(|offer| offer.timestamps.is_some()) {
            let echo = answer.and_then(|offer| offer.timestamps).map_or(0, |timestamps| timestamps.value);
            header.options.timestamps = Some(Timestamps { value: clock, echo });
        }
        if answer.is_some() {
            header.flags = Flags::SYN | Flags::ACK;
            header.ack = self.receiver.numbering().to_wire(self.receiver.next());
        }
        Some(Transmit::plain(header))
    }

    /// When our SYN is sent; at once if it never was.
    fn opening_deadline(&self) -> Option<Instant> {
        let opening = self.opening.as_ref()?;
        let Some(sent_at) = opening.sent_at else { return Some(Instant(0)) };
        Some(sent_at + RESEND_AFTER * (1 << opening.tries.saturating_sub(1).min(RESEND_SHIFT_MAX)))
    }

    fn poll_open(&mut self, now: Instant, frame_bytes: usize) -> Option<Transmit> {
        let options = self.options(now);
        let header_bytes = Header { options, ..Header::default() }.bytes();
        // A full segment has room for timestamps; other options take from its payload.
        let more = options.bytes() - options.timestamps.map_or(0, |_| TIMESTAMP_BYTES);
        let segment = self.sender.segment.saturating_sub(more as u64).max(1);
        let frame = (frame_bytes.saturating_sub(header_bytes) as u64).max(segment);
        let lengths = Lengths { segment, frame: frame - frame % segment };
        if let Some(piece) = self.sender.next_piece(now, lengths) {
            return Some(self.data(&piece, options, lengths));
        }
        if core::mem::take(&mut self.sender.wants_persist) || core::mem::take(&mut self.wants_keep_alive) {
            // The number before makes the peer answer, whatever its window is.
            let mut header = self.header(options, Flags::ACK);
            header.seq = self.own.to_wire(self.sender.una - 1);
            return Some(Transmit::plain(header));
        }
        self.poll_ack(now)
    }

    fn poll_ack(&mut self, now: Instant) -> Option<Transmit> {
        if !self.receiver.is_ack_due(now) {
            return None;
        }
        let options = self.options(now);
        Some(Transmit::plain(self.header(options, Flags::ACK)))
    }

    fn data(&mut self, piece: &Piece, options: Options, lengths: Lengths) -> Transmit {
        let mut flags = Flags::ACK;
        if piece.is_last && piece.bytes > 0 {
            flags = flags | Flags::PSH;
        }
        if piece.has_fin {
            flags = flags | Flags::FIN;
        }
        let mut header = self.header(options, flags);
        header.seq = self.own.to_wire(piece.start);
        Transmit {
            header,
            payload_bytes: piece.bytes as usize,
            cut_bytes: u16::try_from(lengths.segment).ok().filter(|_| piece.bytes > lengths.segment && !piece.is_probe),
            is_retransmission: piece.is_retransmission,
            offset: (piece.start.min(self.sender.data_end()) - self.sender.base) as usize,
        }
    }

    /// A header that acknowledges all that has arrived.
    fn header(&mut self, options: Options, flags: Flags) -> Header {
        Header {
            seq: self.own.to_wire(self.sender.next),
            ack: self.receiver.numbering().to_wire(self.receiver.next()),
            flags,
            window: self.receiver.announce(),
            options,
        }
    }

    pub(crate) fn reset_header(&mut self) -> Header {
        let ack = self.receiver.numbering().to_wire(self.receiver.next());
        let flags = Flags::RST | Flags::ACK;
        Header { seq: self.own.to_wire(self.sender.next), ack, flags, ..Header::default() }
    }

    fn options(&self, now: Instant) -> Options {
        let timestamps = self.clocks.map(|clocks| Timestamps { value: self.clock(now), echo: clocks.recent });
        let mut options = Options { timestamps, ..Options::default() };
        if self.sender.has_sack {
            options.sacks = self.receiver.sacks(if timestamps.is_some() { 3 } else { 4 });
        }
        options
    }

    /// Our clock of timestamps, in milliseconds.
    pub(crate) fn clock(&self, now: Instant) -> u32 {
        clock(now, self.settings.seed)
    }

    /// Does what is due.
    fn advance(&mut self, now: Instant) {
        match self.state {
            State::Closed => return,
            State::TimeWait => {
                if self.rest_until <= now {
                    self.finish(End::Finished);
                }
                return;
            }
            State::SynSent | State::SynReceived => {
                if self.opening.is_some_and(|opening| opening.until <= now) {
                    self.finish(End::TimedOut);
                }
                return;
            }
            _ => {}
        }
        if self.heard_at + self.settings.peer_timeout <= now {
            return self.reset(End::TimedOut);
        }
        if self.keep_alive_at().is_some_and(|at| at <= now) {
            (self.wants_keep_alive, self.probed_at) = (true, now);
            self.sender.ring.release();
            self.receiver.release();
        }
        self.sender.advance(now);
    }

    /// When an idle peer is probed. One that has to acknowledge something is not idle.
    fn keep_alive_at(&self) -> Option<Instant> {
        let is_idle = self.sender.board.is_empty() && self.sender.persist_at.is_none();
        is_idle.then(|| self.heard_at.max(self.probed_at) + self.settings.peer_timeout / KEEP_ALIVES)
    }

    /// When [`Connection::poll_transmit`] is to be called, after it has returned `None`, if nothing else happens.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let deadlines = match self.state {
            State::Closed => return None,
            State::TimeWait => [Some(self.rest_until), self.receiver.ack_at(), None, None],
            State::SynSent | State::SynReceived => {
                [self.opening_deadline(), self.opening.map(|opening| opening.until), None, None]
            }
            _ => [
                self.sender.next_deadline(now),
                self.receiver.ack_at(),
                Some(self.heard_at + self.settings.peer_timeout),
                self.keep_alive_at(),
            ],
        };
        deadlines.into_iter().flatten().min()
    }
}

/// The clock of timestamps of a connection with this seed: milliseconds from a secret start (RFC 7323, section 7.1).
pub(crate) fn clock(now: Instant, seed: u64) -> u32 {
    ((now.0 / 1_000_000) as u32).wrapping_add(seed as u32)
}
