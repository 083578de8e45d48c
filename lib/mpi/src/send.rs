//! The sending side: short messages in one slot, longer ones in pieces, long ones after the receiver requests them.

use crate::error::Error;
use crate::group::Communicator;
use crate::request::{Kind, Request, Status};
use crate::slab::Id;
use crate::sys::{Body, INLINE_BYTES, Memory, Staging};
use crate::trace::Other;
use crate::world::{Content, Unexpected, World};
use alloc::rc::Rc;
use glass_formats::trace::MpiRole;

/// A message or its beginning; a piece has its position and length in word 0.
pub(crate) const FIRST: u8 = 1;
/// The next piece of the message that began.
pub(crate) const MORE: u8 = 2;
/// A long message: the sender's request, and the address of its bytes.
pub(crate) const OFFER: u8 = 3;
/// The receiver wants the message: the sender's request, the receiver's.
pub(crate) const WANTED: u8 = 4;
/// A piece of a long message: the receiver's request, the offset, position and length.
pub(crate) const PIECE: u8 = 5;
/// The receiver has the message: the sender's request.
pub(crate) const DONE: u8 = 6;

/// Longer messages wait for their receiver. Below, the message is gone when the call returns.
pub const EAGER_BYTES_MAX: usize = 4 << 10;
/// Pieces in which both sides work at once.
const MESSAGE_PIECE_BYTES: usize = 2 << 10;
const STREAM_PIECE_BYTES: usize = 8 << 10;

/// What a send waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// That the buffer may be used again.
    Standard,
    /// That the receiver has begun to receive.
    Synchronous,
}

impl World {
    /// Sends `memory` to rank `destination` of the communicator and returns when the memory may be used again. `None` is a rank that
    /// does not exist: nothing is sent.
    #[inline]
    pub fn send(
        &mut self,
        communicator: &Communicator,
        destination: Option<usize>,
        tag: i32,
        memory: Memory,
        mode: Mode,
    ) -> Result<(), Error> {
        let Some(peer) = self.receiver(communicator, destination, tag, memory.bytes())? else { return Ok(()) };
        if mode == Mode::Standard && self.try_send_short(peer, communicator.context, tag, memory) {
            return Ok(());
        }
        let id = self.start_send_in(communicator, communicator.context, peer, tag, memory, mode, None);
        self.wait(id).map(drop)
    }

    /// Begins to send; the memory is lent until the request is done. `packed` is the memory, if it is ours.
    pub fn start_send(
        &mut self,
        communicator: &Communicator,
        destination: Option<usize>,
        tag: i32,
        memory: Memory,
        mode: Mode,
    ) -> Result<Id, Error> {
        let Some(peer) = self.receiver(communicator, destination, tag, memory.bytes())? else {
            return Ok(self.done_request(communicator.group(), Status::EMPTY));
        };
        Ok(self.start_send_in(communicator, communicator.context, peer, tag, memory, mode, None))
    }

    /// As [`World::start_send`], of bytes that the library keeps until they are sent.
    pub fn start_send_bytes(
        &mut self,
        communicator: &Communicator,
        destination: Option<usize>,
        tag: i32,
        bytes: &[u8],
        mode: Mode,
    ) -> Result<Id, Error> {
        let Some(peer) = self.receiver(communicator, destination, tag, bytes.len())? else {
            return Ok(self.done_request(communicator.group(), Status::EMPTY));
        };
        let staging = Staging::new(bytes.len());
        let memory = staging.memory();
        memory.write(0, bytes);
        Ok(self.start_send_in(communicator, communicator.context, peer, tag, memory, mode, Some(staging)))
    }

    /// The rank of the job to which a message of the program goes; the event about it.
    #[inline]
    fn receiver(
        &self,
        communicator: &Communicator,
        to: Option<usize>,
        tag: i32,
        bytes: usize,
    ) -> Result<Option<usize>, Error> {
        let peer = match to {
            Some(to) => Some(communicator.group().member(to).ok_or(Error::Rank)?),
            None => None,
        };
        self.about_message(MpiRole::Send, communicator, peer.map_or(Other::None, Other::Rank), Some(tag), bytes);
        Ok(peer)
    }

    /// Sends a message of one slot and at most one piece, if there is room and nothing waits before it.
    #[inline]
    pub(crate) fn try_send_short(&mut self, peer: usize, context: u32, tag: i32, memory: Memory) -> bool {
        let out = &mut self.outgoing[peer];
        let bytes = memory.bytes();
        if bytes > MESSAGE_PIECE_BYTES || peer == self.rank || !out.messages.is_empty() || !out.ring.has_slot() {
            return false;
        }
        let mut body = Body::new(FIRST, context, tag, bytes as u64);
        if bytes <= INLINE_BYTES {
            body.inline = bytes as u16;
            body.data[..bytes].copy_from_slice(memory.as_slice());
        } else {
            let Some(position) = out.ring.push_bulk(&memory) else { return false };
            body.set_word(0, u64::from(position) | (bytes as u64) << 32);
        }
        // Before it is: no trace shows that a message was received and then sent.
        self.trace.sent(peer, out.ring.position(), bytes, false);
        out.ring.push(&body);
        true
    }

    #[allow(clippy::too_many_arguments)] // A message is what these are.
    pub(crate) fn start_send_in(
        &mut self,
        communicator: &Communicator,
        context: u32,
        peer: usize,
        tag: i32,
        memory: Memory,
        mode: Mode,
        staging: Option<Staging>,
    ) -> Id {
        let is_rendezvous = mode == Mode::Synchronous || memory.bytes() > EAGER_BYTES_MAX;
        let kind = Kind::Send { context, tag, is_rendezvous, peer_request: 0 };
        let mut request = Request::new(kind, memory, Rc::clone(communicator.group()));
        request.staging = staging;
        let id = self.requests.insert(request);
        if peer == self.rank {
            self.send_to_self(id.index, context, tag, memory, mode);
        } else {
            self.outgoing[peer].messages.push_back(id.index);
            self.unsent += 1;
            if self.outgoing[peer].messages.len() == 1 {
                self.flush(peer);
            }
        }
        id
    }

    fn send_to_self(&mut self, index: u32, context: u32, tag: i32, memory: Memory, mode: Mode) {
        if let Some(receive) = self.take_posted(context, self.rank, tag) {
            if let Some(request) = self.requests.at_mut(receive) {
                request.begin(self.rank, tag, memory.bytes() as u64);
                request.accept(0, memory.as_slice());
            }
            self.finish(receive);
            self.finish(index);
            return;
        }
        let bytes = memory.as_slice().to_vec();
        let total = bytes.len() as u64;
        let content = match mode {
            Mode::Standard => Content::Bytes(bytes),
            Mode::Synchronous => Content::Own { bytes, request: index },
        };
        let entry = self.unexpected.insert(Unexpected { context, source: self.rank, tag, total, position: 0, content });
        self.arrivals.push_back(entry.index);
        if mode == Mode::Standard {
            self.finish(index);
        }
    }

    /// Sends a step of a protocol, when there is room.
    pub(crate) fn answer(&mut self, peer: usize, body: Body) {
        let out = &mut self.outgoing[peer];
        if out.control.is_empty() && out.ring.has_slot() {
            out.ring.push(&body);
        } else {
            out.control.push_back(body);
            self.unsent += 1;
        }
    }

    /// Sends what waits for room in the ring to `peer`; whether anything moved.
    pub(crate) fn flush(&mut self, peer: usize) -> bool {
        let mut has_moved = false;
        while self.outgoing[peer].ring.has_slot() {
            let out = &mut self.outgoing[peer];
            if let Some(body) = out.control.pop_front() {
                out.ring.push(&body);
                self.unsent -= 1;
            } else if let Some(index) = out.messages.front().copied() {
                let Some(is_sent) = self.push_message(peer, index) else { return has_moved };
                if is_sent {
                    self.outgoing[peer].messages.pop_front();
                    self.unsent -= 1;
                }
            } else if let Some(index) = out.streams.front().copied() {
                let Some(is_sent) = self.push_piece(peer, index) else { return has_moved };
                if is_sent {
                    self.outgoing[peer].streams.pop_front();
                    self.unsent -= 1;
                }
            } else {
                return has_moved;
            }
            has_moved = true;
        }
        has_moved
    }

    /// Sends the next slot of a message: `None` if there is no room, else whether it was the last.
    fn push_message(&mut self, peer: usize, index: u32) -> Option<bool> {
        let Some(request) = self.requests.at_mut(index) else { return Some(true) };
        let Kind::Send { context, tag, is_rendezvous, .. } = request.kind else { return Some(true) };
        let (memory, ring) = (request.memory, &mut self.outgoing[peer].ring);
        let total = memory.bytes();
        if is_rendezvous {
            let mut body = Body::new(OFFER, context, tag, total as u64);
            body.set_word(0, index.into());
            body.set_word(1, memory.address() as u64);
            self.trace.sent(peer, ring.position(), total, true);
            ring.push(&body);
            return Some(true);
        }
        let is_first = request.offset == 0;
        let mut body = Body::new(if is_first { FIRST } else { MORE }, context, tag, total as u64);
        if total <= INLINE_BYTES {
            body.inline = total as u16;
            body.data[..total].copy_from_slice(memory.as_slice());
            request.offset = total;
        } else {
            let piece = memory.part(request.offset, MESSAGE_PIECE_BYTES.min(total - request.offset));
            let position = ring.push_bulk(&piece)?;
            body.set_word(0, u64::from(position) | (piece.bytes() as u64) << 32);
            request.offset += piece.bytes();
        }
        if is_first {
            self.trace.sent(peer, ring.position(), total, false);
        }
        ring.push(&body);
        let is_sent = request.offset == total;
        if is_sent {
            self.finish(index);
        }
        Some(is_sent)
    }

    /// Sends the next piece of a long message that the receiver requested; as [`World::push_message`].
    fn push_piece(&mut self, peer: usize, index: u32) -> Option<bool> {
        let Some(request) = self.requests.at_mut(index) else { return Some(true) };
        let Kind::Send { peer_request, .. } = request.kind else { return Some(true) };
        let ring = &mut self.outgoing[peer].ring;
        let total = request.memory.bytes();
        let piece = request.memory.part(request.offset, STREAM_PIECE_BYTES.min(total - request.offset));
        let mut body = Body::new(PIECE, 0, 0, total as u64);
        body.set_word(0, peer_request.into());
        body.set_word(1, request.offset as u64);
        if piece.bytes() > 0 {
            let position = ring.push_bulk(&piece)?;
            body.set_word(2, u64::from(position) | (piece.bytes() as u64) << 32);
        }
        ring.push(&body);
        request.offset += piece.bytes();
        let is_sent = request.offset == total;
        if is_sent {
            self.finish(index);
        }
        Some(is_sent)
    }

    /// The receiver requests a long message.
    pub(crate) fn begin_stream(&mut self, peer: usize, index: u32, receiver: u32) {
        let Some(request) = self.requests.at_mut(index) else { return };
        let Kind::Send { peer_request, .. } = &mut request.kind else { return };
        *peer_request = receiver;
        self.outgoing[peer].streams.push_back(index);
        self.unsent += 1;
        self.flush(peer);
    }
}
