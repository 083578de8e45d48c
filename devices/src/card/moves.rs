//! Moving frames: from the guest's queue to the host's network, and from there into the buffers that the guest has offered.

use super::HEADER_BYTES;
use super::Link;
use super::datagrams::{Batch, Datagram};
use crate::device::Turn;
use crate::rings::{Buffer, PIECES_MAX, Ring, Round, copy_to};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use virtio_queue::QueueT;
use vm_memory::{Address, Bytes, GuestMemoryMmap};

/// Where in its header the number of a frame's buffers is.
const HEADER_BUFFERS: u64 = 10;
/// The longest frame: what an IP packet can have, an Ethernet header with a tag, and the header.
const FRAME_BYTES_MAX: usize = 65535 + 18 + HEADER_BYTES;
/// Frames of one direction until the other one has its turn.
const TURN: usize = 64;

/// What is kept of the frames that are sent.
pub(crate) struct Transmitter {
    /// Whether datagrams may be sent as one frame.
    joins: bool,
    /// Whether it was reported that frames could not be sent.
    is_reported: bool,
}

/// What is kept of the frames that are received.
pub(crate) struct Receiver {
    pub(crate) header_bytes: usize,
    /// Whether a frame may have several buffers.
    is_merged: bool,
    /// A frame that did not have room for the longest one when it was read.
    frame: Vec<u8>,
    /// How long it is; zero without one.
    frame_bytes: usize,
}

/// Buffers that were taken from the receive queue and are not yet filled, in their order.
#[derive(Default)]
struct Space {
    buffers: VecDeque<Buffer>,
    pieces: Vec<libc::iovec>,
    bytes: usize,
}

/// A frame that the guest has queued.
struct Frame {
    head: u16,
    /// Which of the pieces it has.
    pieces: Range<usize>,
    /// If it can be joined to others.
    datagram: Option<Datagram>,
}

impl Transmitter {
    pub(crate) fn new() -> Transmitter {
        Transmitter { joins: true, is_reported: false }
    }

    /// Sends what the guest has queued.
    pub(crate) fn turn(
        &mut self,
        link: &mut impl Link,
        memory: &GuestMemoryMmap,
        ring: &mut Ring,
        header_bytes: usize,
    ) -> Turn {
        if !ring.is_running() {
            return Turn::NeedsGuest;
        }
        let mut round = ring.round(memory);
        let (mut pieces, mut frames) = (Vec::new(), Vec::with_capacity(TURN));
        while frames.len() < TURN
            && let Some(buffer) = ring.next_buffer(memory, &mut round, false, &mut pieces)
        {
            let range = pieces.len() - buffer.pieces..pieces.len();
            let joins = self.joins && header_bytes == HEADER_BYTES && link.takes_joined_datagrams();
            let datagram = if joins { Datagram::parse(&pieces[range.clone()]) } else { None };
            frames.push(Frame { head: buffer.head, pieces: range, datagram });
        }
        let mut turn = if frames.len() == TURN || round.is_cut() { Turn::Busy } else { Turn::Done };
        let mut left = &frames[..];
        while !left.is_empty() {
            left = &left[self.send(link, left, &pieces)..];
        }
        // All at once: a guest that waits for room then has room for many, and is woken once for them.
        let used: Vec<(u16, u32)> = frames.iter().map(|frame| (frame.head, 0)).collect();
        let is_wanted = !used.is_empty() && ring.complete(memory, &used);
        if !ring.is_running() {
            return Turn::NeedsGuest;
        }
        // A notification costs the guest an exit, so it makes one only while nothing is looked for.
        if turn == Turn::Done && ring.queue.enable_notification(memory).unwrap_or(false) {
            turn = Turn::Busy;
        }
        if is_wanted {
            ring.interrupt();
        }
        turn
    }

    /// Sends the first frame, and those that become one with it: how many that are.
    fn send(&mut self, link: &mut impl Link, frames: &[Frame], pieces: &[libc::iovec]) -> usize {
        if self.joins
            && let Some(first) = &frames[0].datagram
        {
            let mut batch = Batch::new(first);
            while let Some(Frame { datagram: Some(next), .. }) = frames.get(batch.count())
                && batch.add(next)
            {}
            if batch.count() > 1 && self.send_batch(link, &batch, frames, pieces) {
                return batch.count();
            }
        }
        // SAFETY: the guest's memory has the pieces, and they are only read.
        let sent = unsafe { link.write(&pieces[frames[0].pieces.clone()]) };
        if let Err(error) = sent
            && !self.is_reported
        {
            // As on any network: the frame is lost.
            self.is_reported = true;
            eprintln!("a frame cannot be sent ({error}); others are not reported");
        }
        1
    }

    /// Sends datagrams as one frame. Whether the host takes such a frame.
    fn send_batch(&mut self, link: &mut impl Link, batch: &Batch, frames: &[Frame], pieces: &[libc::iovec]) -> bool {
        let mut headers = batch.headers();
        let mut iovecs = vec![libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: headers.len() }];
        for frame in &frames[..batch.count()] {
            let mut skipped = headers.len();
            for piece in &pieces[frame.pieces.clone()] {
                let now = skipped.min(piece.iov_len);
                skipped -= now;
                if now < piece.iov_len {
                    let start = piece.iov_base.wrapping_byte_add(now);
                    iovecs.push(libc::iovec { iov_base: start, iov_len: piece.iov_len - now });
                }
            }
        }
        if iovecs.len() > PIECES_MAX {
            return false;
        }
        // SAFETY: the guest's memory has the pieces, `headers` lives until the end, and they are only read.
        let sent = unsafe { link.write(&iovecs) };
        // Linux before 6.2 does not know the kind; anything else would go wrong with each datagram, too.
        self.joins = !sent.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
        self.joins
    }
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        Receiver { header_bytes: HEADER_BYTES, is_merged: false, frame: vec![0; FRAME_BYTES_MAX], frame_bytes: 0 }
    }

    /// Sets what the guest's driver has agreed to.
    pub(crate) fn agree(&mut self, header_bytes: usize, is_merged: bool) {
        (self.header_bytes, self.is_merged) = (header_bytes, is_merged);
        self.frame_bytes = 0;
    }

    /// Receives into the buffers that the guest has offered.
    pub(crate) fn turn(&mut self, link: &mut impl Link, memory: &GuestMemoryMmap, ring: &mut Ring) -> Turn {
        if !ring.is_running() {
            return Turn::NeedsGuest;
        }
        let mut round = ring.round(memory);
        let mut space = Space::default();
        let mut used = Vec::new();
        let (mut turn, mut is_wanted) = (Turn::Busy, false);
        for _ in 0..TURN {
            while space.bytes < FRAME_BYTES_MAX && (self.is_merged || space.buffers.is_empty()) {
                let Some(buffer) = ring.next_buffer(memory, &mut round, true, &mut space.pieces) else { break };
                space.bytes += buffer.bytes;
                space.buffers.push_back(buffer);
            }
            let Some(&Buffer { head, pieces, start, .. }) = space.buffers.front() else {
                turn = if round.is_cut() { Turn::Busy } else { Turn::NeedsGuest };
                break;
            };
            used.clear();
            if pieces == 0 || space.pieces[0].iov_len < self.header_bytes {
                // It is no buffer, and goes back as it is.
                used.push((head, 0));
            } else {
                let mut left = match self.next_frame(link, &mut space, &round) {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => continue,
                    Err(end) => {
                        turn = end;
                        break;
                    }
                };
                for buffer in &space.buffers {
                    let filled = left.min(buffer.bytes);
                    used.push((buffer.head, filled as u32));
                    left -= filled;
                    if left == 0 {
                        break;
                    }
                }
                if self.header_bytes == HEADER_BYTES {
                    let count = used.len() as u16;
                    // It is in the guest's memory: the header was written there.
                    let _ = memory.write_obj(count.to_le(), start.unchecked_add(HEADER_BUFFERS));
                }
            }
            space.take(used.len());
            is_wanted |= ring.complete(memory, &used);
        }
        if !ring.is_running() {
            return Turn::NeedsGuest;
        }
        // Buffers without a frame for them are no reason for a notification.
        if turn == Turn::NeedsGuest && ring.queue.enable_notification(memory).unwrap_or(false) {
            turn = Turn::Busy;
        }
        let queue = &mut ring.queue;
        queue.set_next_avail(queue.next_avail().wrapping_sub(space.buffers.len() as u16));
        if is_wanted {
            ring.interrupt();
        }
        turn
    }

    /// Reads a frame into the room: its length, `None` if it was lost, or why there is none.
    fn next_frame(&mut self, link: &mut impl Link, space: &mut Space, round: &Round) -> Result<Option<usize>, Turn> {
        if self.frame_bytes == 0 {
            let whole = [libc::iovec { iov_base: self.frame.as_mut_ptr().cast(), iov_len: self.frame.len() }];
            let is_direct = space.bytes >= FRAME_BYTES_MAX && space.pieces.len() <= PIECES_MAX;
            let pieces = if is_direct { &space.pieces[..] } else { &whole };
            // SAFETY: the pieces are the guest's memory, to which there are no references, or the frame, which is not used meanwhile.
            let bytes = match unsafe { link.read(pieces) } {
                Ok(bytes) if bytes > self.header_bytes => bytes,
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                // There is none, or the device is down.
                Err(_) => return Err(Turn::Done),
            };
            if is_direct {
                return Ok(Some(bytes));
            }
            self.frame_bytes = bytes;
        }
        let frame = &self.frame[..self.frame_bytes];
        if space.bytes < frame.len() {
            // Buffers of so many pieces that those of a round do not have room for it never will.
            if self.is_merged && !round.is_cut() {
                return Err(Turn::NeedsGuest);
            }
            self.frame_bytes = 0;
            return Ok(None);
        }
        space.write(frame);
        Ok(Some(std::mem::take(&mut self.frame_bytes)))
    }
}

impl Space {
    /// Removes the first buffers.
    fn take(&mut self, count: usize) {
        for buffer in self.buffers.drain(..count) {
            self.pieces.drain(..buffer.pieces);
            self.bytes -= buffer.bytes;
        }
    }

    /// Copies a frame into the first buffers.
    fn write(&mut self, frame: &[u8]) {
        // SAFETY: the pieces are memory of the guest, to which there are no references.
        unsafe { copy_to(&self.pieces, &[frame]) };
    }
}
