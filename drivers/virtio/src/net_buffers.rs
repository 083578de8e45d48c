//! A network card's buffers and the two directions that they travel in.

use crate::dma::{Dma, DmaMemory, Users};
use crate::error::SetupError;
use crate::offload::{self, HEADER_BYTES, Verdict};
use crate::queue::{Queue, Segment};
use crate::session::Session;
use crate::transport::Transport;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use glass_trace::{Operation, UNREQUESTED_MIN};

/// Descriptors each way, as many as QEMU has by default.
pub const QUEUE_SIZE: u16 = 256;

/// Room for an Ethernet frame of 1514 bytes and its header.
pub const SMALL_BYTES: usize = 2048;
/// Room for a joined segment: 64 KiB, an Ethernet header and ours, to the next page.
pub const LARGE_BYTES: usize = 65536 + 4096;
/// With fewer large buffers than this, small ones and no offload pass more.
const LARGE_MIN: usize = 8;
const LARGE_MAX: usize = 64;
/// Frames shorter than their Ethernet header are no frames.
const FRAME_BYTES_MIN: usize = 14;

/// How many buffers of which kind a budget buys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub receive_stride: usize,
    pub receive_count: usize,
    pub small_count: usize,
    pub large_count: usize,
}

impl Plan {
    /// Half of the memory receives, the rest sends; of that a quarter is for short frames.
    pub fn new(memory_bytes: usize, receive_large: bool, send_large: bool) -> Plan {
        let half = memory_bytes / 2;
        let small = |bytes: usize| (bytes / SMALL_BYTES).clamp(16, usize::from(QUEUE_SIZE));
        let large = |bytes: usize| (bytes / LARGE_BYTES).min(LARGE_MAX);
        let (receive_stride, receive_count) = match large(half) {
            count if receive_large && count >= LARGE_MIN => (LARGE_BYTES, count),
            _ => (SMALL_BYTES, small(half)),
        };
        let (small_count, large_count) = match large(half / 4 * 3) {
            count if send_large && count >= LARGE_MIN => (small(half / 4).min(128), count),
            _ => (small(half), 0),
        };
        Plan { receive_stride, receive_count, small_count, large_count }
    }
}

/// Buffers of one size in one piece of memory.
pub struct Pool {
    pub memory: DmaMemory,
    pub stride: usize,
    pub free: Vec<u16>,
}

impl Pool {
    pub fn new<T: Transport>(
        session: &mut Session<T>,
        dma: &impl Dma,
        users: Users,
        stride: usize,
        count: usize,
    ) -> Result<Pool, SetupError> {
        let memory = session.allocate(dma, stride * count, users)?;
        Ok(Pool { memory, stride, free: (0..count as u16).rev().collect() })
    }
}

/// Which buffer of which pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BufferId {
    pub large: bool,
    pub index: u16,
}

/// A frame on its way out.
#[derive(Clone, Copy)]
pub struct Sent {
    pub buffer: BufferId,
    pub bytes: u32,
    /// Its number in the trace.
    pub number: u64,
}

pub struct Receiver {
    pub queue: Queue,
    pub pool: Pool,
    /// The last frame with its header, as it was copied from its buffer: as long as a buffer.
    pub copy: Vec<u8>,
    /// Which buffer a token stands for.
    pub buffer_of: Vec<u16>,
    pub verify: bool,
    /// Handed to the stack so far.
    pub frames: u64,
    /// The card's name in the trace.
    pub name: u32,
}

pub struct Transmitter {
    pub queue: Queue,
    pub small: Pool,
    /// For frames that the device cuts.
    pub large: Option<Pool>,
    /// Which frame a token stands for.
    pub sent_of: Vec<Sent>,
    pub checksum_offload: bool,
    /// Sent so far.
    pub frames: u64,
    /// The card's name in the trace.
    pub name: u32,
}

impl Receiver {
    /// Hands a buffer to the device.
    pub fn give(&mut self, index: u16) {
        let address = self.pool.memory.device_address(usize::from(index) * self.pool.stride);
        let segment = Segment { address, bytes: self.pool.stride as u32, device_writes: true };
        // SAFETY: the session keeps the pool until the device is reset, and the buffer came from its free list or
        // from a completion, so no request names it. There are no references to memory that a device writes.
        match unsafe { self.queue.add(&[segment]) } {
            Ok(token) => self.buffer_of[token.index()] = index,
            // Only when the queue is broken: there are no more buffers than descriptors.
            Err(_) => self.pool.free.push(index),
        }
    }

    /// Copies the next good frame and gives its buffer back to the device: the frame's length without the header. Takes at most one
    /// round of the queue, so that a flood of bad frames cannot keep it forever.
    pub fn next(&mut self) -> Option<usize> {
        for _ in 0..self.queue.size() {
            let used = self.queue.pop().ok()??;
            let index = self.buffer_of[used.token.index()];
            let frame_bytes = (used.bytes_written as usize).saturating_sub(HEADER_BYTES);
            let is_good = frame_bytes >= FRAME_BYTES_MIN && self.copy_good(index, frame_bytes);
            if is_good {
                self.frames += 1;
                // A buffer waits for a frame as long as it takes, so only the frame's arrival is an event. In flight are
                // the buffers that the device has left.
                let (number, left) = (self.frames | UNREQUESTED_MIN, self.queue.in_flight().into());
                glass_trace::complete(self.name, number, frame_bytes as u32, left, false);
            }
            self.give(index);
            if is_good {
                return Some(frame_bytes);
            }
        }
        None
    }

    /// Copies header and frame out of a buffer; whether the frame is one for the stack. Only the copy is looked at: the device may
    /// still write the buffer.
    fn copy_good(&mut self, index: u16, frame_bytes: usize) -> bool {
        let copy = &mut self.copy[..HEADER_BYTES + frame_bytes];
        self.pool.memory.copy_to(usize::from(index) * self.pool.stride, copy);
        let (header, frame) = copy.split_first_chunk().expect("the copy begins with a header");
        !self.verify || offload::verify(header, frame) == Verdict::Good
    }
}

impl Transmitter {
    /// Takes back what the device has sent.
    pub fn reap(&mut self) -> bool {
        let mut progress = false;
        while let Ok(Some(used)) = self.queue.pop() {
            let Sent { buffer: BufferId { large, index }, bytes, number } = self.sent_of[used.token.index()];
            glass_trace::complete(self.name, number, bytes, self.queue.in_flight().into(), false);
            match &mut self.large {
                Some(pool) if large => pool.free.push(index),
                _ => self.small.free.push(index),
            }
            progress = true;
        }
        progress
    }

    /// Whether any frame could be sent now, whatever its length turns out to be.
    pub fn is_ready(&self) -> bool {
        let pool = self.large.as_ref().unwrap_or(&self.small);
        !pool.free.is_empty() && self.queue.has_room(1)
    }

    pub fn make_ready(&mut self) -> bool {
        if self.is_ready() {
            return true;
        }
        self.reap();
        self.is_ready()
    }

    /// The smallest buffer that holds a frame of that length.
    pub fn take(&mut self, frame_bytes: usize) -> Option<BufferId> {
        let bytes = HEADER_BYTES + frame_bytes;
        if bytes <= SMALL_BYTES {
            if self.small.free.is_empty() {
                self.reap();
            }
            if let Some(index) = self.small.free.pop() {
                return Some(BufferId { large: false, index });
            }
        }
        let large = self.large.as_mut()?;
        if bytes > LARGE_BYTES {
            return None;
        }
        large.free.pop().map(|index| BufferId { large: true, index })
    }

    fn pool(&mut self, buffer: BufferId) -> &mut Pool {
        match &mut self.large {
            Some(pool) if buffer.large => pool,
            _ => &mut self.small,
        }
    }

    /// Builds a frame with `fill` in a buffer and hands it to the device.
    pub fn send<R>(
        &mut self,
        buffer: BufferId,
        frame_bytes: usize,
        segment_bytes: Option<NonZeroU16>,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let checksum_offload = self.checksum_offload;
        let pool = self.pool(buffer);
        let start = usize::from(buffer.index) * pool.stride;
        let range = start..start + HEADER_BYTES + frame_bytes;
        // SAFETY: the buffer came from the free list, so no request names it; `slice_mut` checks that
        // the range is inside the pool, `take` that it is inside the buffer.
        let bytes = unsafe { pool.memory.slice_mut(range) };
        let (header, frame) = bytes.split_first_chunk_mut::<HEADER_BYTES>().expect("a buffer is longer than a header");
        *header = [0; HEADER_BYTES];
        let result = fill(frame);
        if checksum_offload {
            offload::prepare(header, frame, segment_bytes);
        }
        let address = pool.memory.device_address(start);
        let segment = Segment { address, bytes: (HEADER_BYTES + frame_bytes) as u32, device_writes: false };
        // SAFETY: the session keeps the pools until the device is reset; the buffer is off its free list until its
        // completion puts it back, and no reference to it is left.
        match unsafe { self.queue.add(&[segment]) } {
            Ok(token) => {
                self.frames += 1;
                let (bytes, number) = (frame_bytes as u32, self.frames);
                self.sent_of[token.index()] = Sent { buffer, bytes, number };
                glass_trace::submit(self.name, Operation::Transmit, number, bytes, self.queue.in_flight().into());
            }
            // `is_ready` saw room, so the queue is broken and the frame lost with it.
            Err(_) => self.pool(buffer).free.push(buffer.index),
        }
        result
    }
}
