//! One connection: its credit, its halves, and what waits to be sent.

use crate::config::Config;
use crate::header::{Ends, Type};
use crate::received::Received;
use crate::stack::ListenerId;
use alloc::collections::VecDeque;
use core::task::Waker;
use glass_api::{Buf, Instant};
use glass_lib_trace::Presence;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// We have requested it, and wait until then for the answer.
    Connecting(Instant),
    /// It is open, at least one half of it.
    Open,
    /// Both halves are closed; the peer has until then to end it.
    Closing(Instant),
    /// It has ended: the peer has reset it, or its time is over.
    Ended(End),
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Both sides had closed it.
    Closed,
    Reset,
    TimedOut,
}

/// Who looks after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It waits to be accepted.
    Listener(ListenerId),
    Service,
    /// The service has released it; it ends by itself.
    Unheld,
}

/// A connection's packets that are no data. They are sent in this order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControlPackets {
    pub request: bool,
    pub response: bool,
    pub credit_update: bool,
    /// The peer has requested an update. It gets one once it has credit, also when other packets have granted that meanwhile: peers such
    /// as vhost-device-vsock 0.3.0 wait for that operation.
    pub credit_answer: bool,
    pub credit_request: bool,
    /// Flags of a shutdown.
    pub shutdown: u32,
}

impl ControlPackets {
    pub(crate) fn is_any(&self) -> bool {
        *self != ControlPackets::default()
    }
}

/// The data of a packet to send.
pub(crate) struct Unsent {
    pub data: Buf,
    /// A message ends with it.
    pub ends_message: bool,
}

pub(crate) struct Connection {
    /// Its number in the trace.
    pub number: u32,
    pub ends: Ends,
    pub state: State,
    pub owner: Owner,
    pub kind: Type,
    pub received: Received,
    /// Of messages: the lengths of those that were received whole.
    pub whole: VecDeque<u32>,
    /// Of messages: bytes of the one that is being received.
    pub part_bytes: u32,
    /// All bytes that were received, modulo 2^32.
    received_total: u32,
    /// All bytes that the service has read.
    pub consumed_total: u32,
    /// The value of it in the last packet to the peer.
    consumed_granted: u32,
    /// All bytes that were taken for sending.
    sent_total: u32,
    /// The window of the peer's last packet.
    pub peer_window: u32,
    peer_consumed: u32,
    /// Data in order, not with the device yet.
    pub unsent: VecDeque<Unsent>,
    pub unsent_bytes: usize,
    /// The peer sends no more.
    pub peer_sends_no_more: bool,
    /// The peer receives no more.
    pub peer_receives_no_more: bool,
    /// We send no more: the service has closed its half.
    pub closed: bool,
    pub control: ControlPackets,
    /// It is in the stack's list of those that have something to send.
    pub is_queued: bool,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
}

impl Connection {
    pub(crate) fn new(ends: Ends, kind: Type, state: State, owner: Owner) -> Connection {
        Connection {
            number: 0,
            ends,
            state,
            owner,
            kind,
            received: Received::default(),
            whole: VecDeque::new(),
            part_bytes: 0,
            received_total: 0,
            consumed_total: 0,
            consumed_granted: 0,
            sent_total: 0,
            peer_window: 0,
            peer_consumed: 0,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            peer_sends_no_more: false,
            peer_receives_no_more: false,
            closed: false,
            control: ControlPackets::default(),
            is_queued: false,
            reader: None,
            writer: None,
        }
    }

    /// The connection opens or ends. The trace has 16 bits for a port, so it shows the lower ones.
    pub(crate) fn trace(&self, presence: Presence) {
        let Ends { local_port, peer_port, .. } = self.ends;
        glass_lib_trace::connection(self.number, presence, 0, local_port as u16, peer_port as u16);
    }

    /// Takes the credit that a packet's header grants. A peer cannot have consumed what was never sent to it.
    pub(crate) fn take_credit(&mut self, window_bytes: u32, consumed: u32) -> bool {
        let outstanding = self.sent_total.wrapping_sub(self.peer_consumed);
        if consumed.wrapping_sub(self.peer_consumed) > outstanding {
            return false;
        }
        (self.peer_window, self.peer_consumed) = (window_bytes, consumed);
        if self.credit_bytes() > 0 {
            self.wake_writer();
        }
        true
    }

    /// Bytes that the peer has room for.
    pub(crate) fn credit_bytes(&self) -> u32 {
        // A peer may shrink its window below what is in flight.
        self.peer_window.saturating_sub(self.sent_total.wrapping_sub(self.peer_consumed))
    }

    /// Whether the peer has consumed all that was sent to it.
    pub(crate) fn is_all_consumed(&self) -> bool {
        self.sent_total == self.peer_consumed
    }

    /// Bytes that the peer may send.
    pub(crate) fn granted_bytes(&self, config: &Config) -> u32 {
        config.buffer_bytes.saturating_sub(self.received_total.wrapping_sub(self.consumed_total))
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_read(&self) -> bool {
        self.received.bytes() == 0 && self.whole.is_empty()
    }

    /// Counts a part of a message. `false` for what this connection cannot hold: a message that is longer than the window, or so many
    /// short ones that their lengths would take more memory than it.
    pub(crate) fn note_part(&mut self, bytes: u32, ends_message: bool, config: &Config) -> bool {
        self.part_bytes += bytes;
        if !ends_message {
            return !self.whole.is_empty() || self.granted_bytes(config) > 0;
        }
        let whole_max = config.buffer_bytes as usize / core::mem::size_of::<u32>();
        if self.whole.len() >= whole_max || self.whole.try_reserve(1).is_err() {
            return false;
        }
        self.whole.push_back(core::mem::take(&mut self.part_bytes));
        true
    }

    pub(crate) fn note_received(&mut self, bytes: u32) {
        self.received_total = self.received_total.wrapping_add(bytes);
        self.wake_reader();
    }

    /// Counts what the service has read, and queues a credit update when the peer may otherwise soon have to wait: once its credit is
    /// less than half of the window and less than two packets.
    pub(crate) fn note_read(&mut self, bytes: usize, config: &Config) {
        self.consumed_total = self.consumed_total.wrapping_add(bytes as u32);
        let in_flight = self.received_total.wrapping_sub(self.consumed_granted);
        let known_bytes = config.buffer_bytes.saturating_sub(in_flight);
        let enough_bytes = match self.kind {
            Type::Stream => (config.buffer_bytes / 2).min(config.packet_bytes_max as u32 * 2),
            // A sender waits for room for a whole message.
            Type::Message => config.buffer_bytes,
        };
        if known_bytes < enough_bytes && self.consumed_granted != self.consumed_total {
            self.control.credit_update = true;
        }
    }

    pub(crate) fn note_taken(&mut self, bytes: usize) {
        self.sent_total = self.sent_total.wrapping_add(bytes as u32);
    }

    /// Our window and what was consumed, for a header.
    pub(crate) fn grant(&mut self) -> u32 {
        self.consumed_granted = self.consumed_total;
        self.control.credit_update = false;
        self.consumed_total
    }

    pub(crate) fn end(&mut self, end: End) {
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Ended(end);
        }
        self.unsent.clear();
        self.unsent_bytes = 0;
        self.control = ControlPackets::default();
        self.wake_reader();
        self.wake_writer();
    }

    pub(crate) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(crate) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}
