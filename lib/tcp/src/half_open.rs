//! A handshake of which a SYN was received: what has to be remembered until the peer acknowledges our answer.
//!
//! A flood of SYNs comes from addresses that never answer, so this is small and has no buffers.

use crate::connection::{Connection, Offer, Settings};
use crate::number::{Numbering, SYN_POSITION};
use crate::outgoing::{RESEND_AFTER, RESEND_SHIFT_MAX, clock};
use crate::wire::{Flags, Header, Segment, Timestamps};
use glass_api::Instant;

/// A connection in SYN-RECEIVED whose peer has opened it.
#[derive(Debug, Clone, Copy)]
pub struct HalfOpen {
    own: Numbering,
    peer: Numbering,
    offer: Offer,
    settings: Settings,
    answered_at: Instant,
    answers: u32,
}

/// What a segment means for a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It completes it.
    Opens,
    /// It ends it.
    Resets,
    /// It is the SYN again: answer it.
    Repeats,
    /// It acknowledges what we have not sent: refuse it (RFC 9293, section 3.10.7.4).
    Refuse,
    /// It means nothing.
    Ignore,
}

impl HalfOpen {
    /// Of a SYN without an acknowledgement, with our first sequence number. [`HalfOpen::answer`] is to be sent.
    pub fn new(now: Instant, syn: &Header, initial: u32, settings: Settings) -> HalfOpen {
        let (own, peer) = (Numbering::new(initial), Numbering::new(syn.seq));
        HalfOpen { own, peer, offer: Offer::of(syn), settings, answered_at: now, answers: 0 }
    }

    /// The answer to the SYN, which counts as sent.
    pub fn answer(&mut self, now: Instant) -> Header {
        (self.answered_at, self.answers) = (now, self.answers + 1);
        let mut header = Header {
            seq: self.own.to_wire(SYN_POSITION),
            ack: self.peer.to_wire(SYN_POSITION + 1),
            flags: Flags::SYN | Flags::ACK,
            window: u16::try_from(self.settings.receive_bytes).unwrap_or(u16::MAX),
            ..Header::default()
        };
        header.options.segment_bytes = Some(self.settings.segment_bytes);
        header.options.shift = self.offer.shift.map(|_| self.settings.shift());
        header.options.sack_permitted = self.offer.has_sack;
        let value = clock(now, self.settings.seed);
        header.options.timestamps = self.offer.timestamps.map(|theirs| Timestamps { value, echo: theirs.value });
        header
    }

    /// How often the SYN was answered.
    pub fn answers(&self) -> u32 {
        self.answers
    }

    /// When the answer is to be retransmitted.
    pub fn resend_at(&self) -> Instant {
        self.answered_at + RESEND_AFTER * (1 << self.answers.saturating_sub(1).min(RESEND_SHIFT_MAX))
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What a segment between its ends means.
    pub fn reply(&self, segment: &Segment) -> Reply {
        let header = &segment.header;
        let position = self.peer.nearest(header.seq, SYN_POSITION + 1);
        if header.flags.has(Flags::RST) {
            // Only the next number counts (RFC 5961, section 3.2).
            return if position == SYN_POSITION + 1 { Reply::Resets } else { Reply::Ignore };
        }
        if header.flags.has(Flags::SYN) {
            return if position == SYN_POSITION { Reply::Repeats } else { Reply::Ignore };
        }
        if !header.flags.has(Flags::ACK) {
            return Reply::Ignore;
        }
        if header.ack == self.own.to_wire(SYN_POSITION + 1) { Reply::Opens } else { Reply::Refuse }
    }

    /// The connection, when a segment [opens](Reply::Opens) it, which is to be given to [`Connection::receive`] then.
    pub fn open(self, now: Instant) -> Connection {
        let rtt = (self.answers == 1).then(|| now.since(self.answered_at));
        Connection::new(now, self.own, self.peer, &self.offer, self.settings, rtt)
    }
}
