//! One connection: its state, and what its owner does with it.
//!
//! `incoming.rs` has what received segments do, `outgoing.rs` what is sent and when.

use crate::congestion::Kind;
use crate::number::{Numbering, SYN_POSITION};
use crate::receiver::{Receiver, shift_of};
use crate::ring::Ring;
use crate::sender::{Parts, Sender};
use crate::wire::{Header, TIMESTAMP_BYTES, Timestamps};
use core::time::Duration;
use glass_api::Instant;

/// A peer that wants shorter segments does not get them.
const SEGMENT_BYTES_MIN: u16 = 64;
/// The longest payload that a peer receives which does not say (RFC 9293, section 3.7.1).
pub(crate) const SEGMENT_BYTES_DEFAULT: u16 = 536;

/// What the owner of a connection chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Received data that is not read, at most. Memory is allocated as it is needed.
    pub receive_bytes: usize,
    /// Written data that is not acknowledged, at most.
    pub send_bytes: usize,
    /// How much [`Connection::lengthen`] may make of either. The window's shift allows for it.
    pub buffer_bytes_max: usize,
    /// The longest segment that the path of our side passes: the MTU without the headers of IP and TCP.
    pub segment_bytes: u16,
    /// How its rate reacts to loss.
    pub congestion: Kind,
    /// How long it may take to open.
    pub open_timeout: Duration,
    /// A peer that is silent for so long is gone. Idle peers get four keep-alive probes in this time.
    pub peer_timeout: Duration,
    /// How long an acknowledgement may wait for a second segment.
    pub ack_delay: Duration,
    /// A secret number that differs from connection to connection: where its timestamps start, and a seed of choices at random.
    pub seed: u64,
}

/// The states of RFC 9293, section 3.3.2. LISTEN has no connection, and SYN-RECEIVED is [`crate::HalfOpen`] except when both ends open
/// at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// SYNs were sent and received, and ours is not acknowledged.
    SynReceived,
    /// Both ends may send.
    Established,
    /// We have closed.
    FinWait1,
    /// We have closed, and the peer has acknowledged that.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both have closed, at the same time.
    Closing,
    /// Both have closed, we last.
    LastAck,
    /// Both have closed and acknowledged it; late segments are answered.
    TimeWait,
    /// There is no connection any more.
    Closed,
}

/// Why a connection is [`State::Closed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both ends have closed it.
    Finished,
    /// The peer has reset it, or refused to open it.
    Reset,
    /// The peer did not answer in time.
    TimedOut,
    /// We have reset it.
    Aborted,
}

/// What a SYN offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The longest payload that its sender receives.
    pub segment_bytes: u16,
    /// The shift of its sender's windows; `None` if neither end may shift.
    pub shift: Option<u8>,
    /// It understands SACK.
    pub has_sack: bool,
    /// It has timestamps.
    pub timestamps: Option<Timestamps>,
    /// Its window, which is never shifted.
    pub window: u16,
}

impl Offer {
    /// Of the header of a SYN.
    pub fn of(header: &Header) -> Offer {
        let options = &header.options;
        Offer {
            segment_bytes: options.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT).max(SEGMENT_BYTES_MIN),
            shift: options.shift,
            has_sack: options.sack_permitted,
            timestamps: options.timestamps,
            window: header.window,
        }
    }
}

/// The clocks of a connection whose ends both have timestamps (RFC 7323).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    /// The peer's newest timestamp, and when it was received.
    pub(crate) recent: u32,
    pub(crate) recent_at: Instant,
}

/// The SYN that we have sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) sent_at: Option<Instant>,
    pub(crate) tries: u32,
    pub(crate) until: Instant,
    /// What the peer's SYN offered, when both ends open at the same time.
    pub(crate) offer: Option<Offer>,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) settings: Settings,
    pub(crate) state: State,
    pub(crate) end: Option<End>,
    pub(crate) own: Numbering,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// The shift of the peer's windows.
    pub(crate) shift: u8,
    pub(crate) clocks: Option<Clocks>,
    pub(crate) opening: Option<Opening>,
    /// The segment that set the peer's window: its position, and what it acknowledged (RFC 9293, SND.WL1 and SND.WL2).
    pub(crate) window_from: (u64, u64),
    /// When something was received that the peer can have sent, and when it was probed.
    pub(crate) heard_at: Instant,
    pub(crate) probed_at: Instant,
    pub(crate) wants_keep_alive: bool,
    /// The last acknowledgement of something that the peer should not have sent.
    pub(crate) challenged_at: Option<Instant>,
    /// A reset, or a refusal of what does not belong to this connection, that is to be sent.
    pub(crate) parting: Option<Header>,
    /// The end of TIME-WAIT.
    pub(crate) rest_until: Instant,
}

impl Settings {
    /// The shift of the windows that we announce.
    pub(crate) fn shift(&self) -> u8 {
        shift_of(self.receive_bytes.max(self.buffer_bytes_max))
    }
}

impl Connection {
    /// Opens one, with our first sequence number; [`Connection::poll_transmit`] has its SYN.
    pub fn connect(now: Instant, initial: u32, settings: Settings) -> Connection {
        let silent =
            Offer { segment_bytes: SEGMENT_BYTES_MIN, shift: None, has_sack: false, timestamps: None, window: 0 };
        let mut connection = Connection::new(now, Numbering::new(initial), Numbering::new(0), &silent, settings, None);
        connection.state = State::SynSent;
        let until = now + settings.open_timeout;
        connection.opening = Some(Opening { sent_at: None, tries: 0, until, offer: None });
        connection
    }

    /// One whose handshake is done.
    pub(crate) fn new(
        now: Instant,
        own: Numbering,
        peer: Numbering,
        offer: &Offer,
        settings: Settings,
        rtt: Option<Duration>,
    ) -> Connection {
        let segment = u64::from(offer.segment_bytes.min(settings.segment_bytes));
        let segment = segment - if offer.timestamps.is_some() { TIMESTAMP_BYTES as u64 } else { 0 };
        let parts = Parts {
            control: settings.congestion,
            segment,
            window: offer.window.into(),
            has_sack: offer.has_sack,
            rtt,
            seed: settings.seed,
        };
        let shift = if offer.shift.is_some() { settings.shift() } else { 0 };
        let ring = Ring::new(settings.receive_bytes);
        Connection {
            settings,
            state: State::Established,
            end: None,
            own,
            sender: Sender::new(now, Ring::new(settings.send_bytes), &parts),
            receiver: Receiver::new(peer, ring, shift, settings.segment_bytes.into(), offer.has_sack),
            shift: offer.shift.unwrap_or(0),
            clocks: offer.timestamps.map(|timestamps| Clocks { recent: timestamps.value, recent_at: now }),
            opening: None,
            window_from: (SYN_POSITION, SYN_POSITION + 1),
            heard_at: now,
            probed_at: now,
            wants_keep_alive: false,
            challenged_at: None,
            parting: None,
            rest_until: now,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it is closed; `None` if it is not.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The shifts of the peer's windows and of ours.
    pub fn shifts(&self) -> (u8, u8) {
        (self.shift, self.receiver.shift())
    }

    /// Bytes that can be read now.
    pub fn readable(&self) -> usize {
        self.receiver.readable()
    }

    /// Whether all that the peer sends has arrived: it has closed.
    pub fn has_peer_closed(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Moves received data into `buf`; returns how many bytes.
    pub fn read(&mut self, buf: &mut [u8]) -> usize {
        let count = self.receiver.ring().read(buf);
        self.release_if_over();
        count
    }

    /// The bytes that can be read now, in two pieces; [`Connection::skip`] takes them.
    pub fn received(&mut self) -> [&[u8]; 2] {
        let count = self.readable();
        self.receiver.ring().pieces(0, count)
    }

    /// Drops up to `max` received bytes; returns how many.
    pub fn skip(&mut self, max: usize) -> usize {
        let count = max.min(self.readable());
        self.receiver.ring().remove(count);
        self.release_if_over();
        count
    }

    /// A connection that is over keeps no memory but for what was not read.
    fn release_if_over(&mut self) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            self.receiver.release();
        }
    }

    /// Whether data may be written: the connection is open and we have not closed it.
    pub fn is_writable(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Bytes that can be written now.
    pub fn space(&self) -> usize {
        if self.is_writable() { self.sender.ring.space() } else { 0 }
    }

    /// Bytes that may be received and not read.
    pub fn receive_limit(&mut self) -> usize {
        self.receiver.ring().limit()
    }

    /// Bytes that may be written and not acknowledged.
    pub fn send_limit(&self) -> usize {
        self.sender.ring.limit()
    }

    /// Whether a longer receive buffer is worth its memory: half of it is read in a round trip, or what has arrived behind missing data takes half of it. Several
    /// round trips pass until data is retransmitted that was lost twice, and the peer is to send meanwhile.
    pub fn is_receive_buffer_short(&self) -> bool {
        self.receiver.is_short()
    }

    /// Whether a longer send buffer is worth its memory: it is full, and shorter than twice what both windows allow.
    pub fn is_send_buffer_short(&self) -> bool {
        self.is_writable() && self.sender.is_ring_short()
    }

    /// How many bytes longer both buffers may become: for receiving, and for sending.
    pub fn growth(&mut self) -> (usize, usize) {
        let most = self.settings.buffer_bytes_max;
        (most.saturating_sub(self.receiver.ring().limit()), most.saturating_sub(self.sender.ring.limit()))
    }

    /// Makes both buffers so many bytes longer, no longer than [`Settings::buffer_bytes_max`].
    pub fn lengthen(&mut self, receive_bytes: usize, send_bytes: usize) {
        let (receive_most, send_most) = self.growth();
        self.receiver.lengthen(receive_bytes.min(receive_most));
        self.sender.ring.lengthen(send_bytes.min(send_most));
    }

    /// Bytes that were written and not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sender.ring.len()
    }

    /// Queues what fits of `data`; returns how many bytes. 0 if there is no space or no memory.
    pub fn write(&mut self, data: &[u8]) -> usize {
        if self.is_writable() { self.sender.ring.write(data) } else { 0 }
    }

    /// Has `fill` write up to `max` bytes into the send buffer, and queues as many as it returns. It is given what is free in one piece, which may be
    /// less than there is space, and is not called if that is nothing.
    pub fn write_with(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> usize {
        if !self.is_writable() {
            return 0;
        }
        let piece = self.sender.ring.free_piece(max);
        let free = piece.len();
        if free == 0 {
            return 0;
        }
        let count = fill(piece).min(free);
        self.sender.ring.extend(count);
        count
    }

    /// Whether a short last segment waits for more data while something is in flight. Closing ends it.
    pub fn hold_short(&mut self, holds: bool) {
        self.sender.holds_short = holds;
    }

    /// Ends our half after all that was written.
    pub fn close(&mut self) {
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            State::SynSent | State::SynReceived => return self.finish(End::Aborted),
            other => other,
        };
        self.sender.is_closed = true;
    }

    /// Resets the connection.
    pub fn abort(&mut self) {
        match self.state {
            State::Closed => {}
            // The peer has nothing to reset.
            State::SynSent | State::TimeWait => self.finish(End::Aborted),
            _ => self.reset(End::Aborted),
        }
    }

    /// Ends the connection without a segment: our address is not ours any more.
    pub fn expire(&mut self) {
        if self.state != State::Closed {
            self.finish(End::TimedOut);
        }
    }

    /// Whether a reset is to be sent.
    pub fn has_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// Closes it with a reset.
    pub(crate) fn reset(&mut self, end: End) {
        let header = self.reset_header();
        self.finish(end);
        self.parting = Some(header);
    }

    /// There is no connection any more. What was received can still be read.
    pub(crate) fn finish(&mut self, end: End) {
        self.state = State::Closed;
        self.end = Some(end);
        self.opening = None;
        self.sender.clear();
        self.receiver.end();
    }

    /// Whether a SYN may open the next connection between the same ends although this one is in TIME-WAIT: it is newer than all that this
    /// one has received (RFC 9293, section 3.10.7.4; RFC 6191).
    pub fn may_reopen(&self, syn: &Header) -> bool {
        if self.state != State::TimeWait {
            return false;
        }
        let position = self.receiver.numbering().nearest(syn.seq, self.receiver.next());
        let is_newer = position >= self.receiver.next();
        match (&self.clocks, syn.options.timestamps) {
            (Some(clocks), Some(timestamps)) => {
                let difference = timestamps.value.wrapping_sub(clocks.recent) as i32;
                difference > 0 || (difference == 0 && is_newer)
            }
            _ => is_newer,
        }
    }

    /// Memory that the data of both directions uses.
    pub fn allocated(&mut self) -> usize {
        self.sender.ring.allocated() + self.receiver.ring().allocated()
    }
}
