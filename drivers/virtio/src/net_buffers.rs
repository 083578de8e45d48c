//! A network card's buffers and the two directions that they travel in.

use crate::net_header::{self, HEADER_BYTES};
use crate::queue::{Queue, Segment, Used};
use crate::session::Session;
use crate::transport::Transport;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use glass_drivers_device::{Dma, DmaMemory, SetupError, Users, Verdict, Violation};
use glass_lib_trace::{Operation, UNREQUESTED_MIN};

/// Descriptors each way, as many as QEMU has by default.
pub const QUEUE_SIZE: u16 = 256;

/// Room for an Ethernet frame of 1514 bytes and its header.
pub const SMALL_BYTES: usize = 2048;
/// Room for a joined segment: 64 KiB, an Ethernet header and ours, to the next page.
pub const LARGE_BYTES: usize = 65536 + 4096;
/// With fewer large buffers than this, small ones and no offload pass more.
const LARGE_MIN: usize = 8;
const LARGE_MAX: usize = 64;
/// Sizes of buffers of which a received frame may take several: a joined segment fills four, eight or sixteen.
const MERGED_BYTES: [usize; 3] = [LARGE_BYTES / 4, LARGE_BYTES / 8, LARGE_BYTES / 16];
/// Buffers that a device has at the start. It uses one after the other, so each costs a VM's first frames the first use of a page.
const OFFERED_FIRST: usize = 32;
/// Completed transmissions are taken at the latest after so many frames: a buffer that was used lately is used again, and others are not touched.
const REAP_PERIOD: u64 = 16;
/// Frames shorter than their Ethernet header are no frames.
const FRAME_BYTES_MIN: usize = 14;

/// What a card and its driver have agreed on, as far as buffers depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// The device may hand over joined segments of TCP over IPv4.
    pub guest_tso_v4: bool,
    /// The same over IPv6.
    pub guest_tso_v6: bool,
    /// A received frame may be spread over several buffers.
    pub merged: bool,
    /// The device cuts segments that are sent, of either kind.
    pub host_tso: bool,
}

/// How many buffers of which kind a budget buys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub receive_stride: usize,
    pub receive_count: usize,
    /// Longest frame that is received, with its header.
    pub receive_bytes_max: usize,
    pub small_count: usize,
    pub large_count: usize,
}

impl Plan {
    /// Half of the memory receives, the rest sends; of that a quarter is for short frames. Joined segments are agreed on only where
    /// [`Plan::accepts_guest_tso`].
    pub fn new(memory_bytes: usize, agreed: Agreed) -> Plan {
        let half = memory_bytes / 2;
        let small = |bytes: usize| (bytes / SMALL_BYTES).clamp(16, usize::from(QUEUE_SIZE));
        let large = |bytes: usize| (bytes / LARGE_BYTES).min(LARGE_MAX);
        let has_guest_tso = agreed.guest_tso_v4 || agreed.guest_tso_v6;
        let (receive_stride, receive_count) = match has_guest_tso {
            true if agreed.merged => {
                let fits = |stride: &usize| half / stride >= usize::from(QUEUE_SIZE);
                (MERGED_BYTES.into_iter().find(fits).unwrap_or(SMALL_BYTES), usize::from(QUEUE_SIZE))
            }
            true => (LARGE_BYTES, large(half)),
            false => (SMALL_BYTES, small(half)),
        };
        let (small_count, large_count) = match large(half / 4 * 3) {
            count if agreed.host_tso && count >= LARGE_MIN => (small(half / 4).min(128), count),
            _ => (small(half), 0),
        };
        let receive_bytes_max = if has_guest_tso { LARGE_BYTES } else { SMALL_BYTES };
        Plan { receive_stride, receive_count, receive_bytes_max, small_count, large_count }
    }

    /// Whether so much memory is enough to receive joined segments, merged or not.
    pub fn accepts_guest_tso(memory_bytes: usize) -> bool {
        memory_bytes / 2 / LARGE_BYTES >= LARGE_MIN
    }

    /// Whether so much memory is enough to send segments that the device cuts.
    pub fn sends_large(memory_bytes: usize) -> bool {
        Plan::new(memory_bytes, Agreed { host_tso: true, ..Agreed::default() }).large_count > 0
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
    /// The last frame with its header, as it was copied from its buffers: as long as the longest frame.
    pub copy: Vec<u8>,
    /// Which buffer a token stands for.
    pub buffer_of: Vec<u16>,
    pub verify: bool,
    pub agreed: Agreed,
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

    /// Hands the device its first buffers: enough for two frames of the greatest length.
    pub fn give_first(&mut self) {
        let of_longest = self.copy.len().div_ceil(self.pool.stride);
        self.give_more(OFFERED_FIRST.max(2 * of_longest));
    }

    fn give_more(&mut self, count: usize) {
        for _ in 0..count.min(self.pool.free.len()) {
            let Some(index) = self.pool.free.pop() else { return };
            self.give(index);
        }
    }

    /// Copies the next good frame and gives its buffers back to the device: the frame's length without the header. Takes at most one
    /// round of the queue, so that a flood of bad frames cannot keep it forever.
    pub fn next(&mut self) -> Option<usize> {
        for _ in 0..self.queue.size() {
            let used = self.queue.pop().ok()??;
            let left = self.queue.in_flight();
            // It has used half of what it had before it was looked at, and may soon have none left.
            let wants_more = self.queue.pending() >= left / 2;
            let taken = self.take(used);
            // Only now: the buffer that was taken is known by its descriptor, which may be used again.
            if wants_more {
                self.give_more(left.into());
            }
            if let Some(frame_bytes) = taken {
                self.frames += 1;
                // A buffer waits for a frame as long as it takes, so only the frame's arrival is an event. In flight are
                // the buffers that the device has left.
                glass_lib_trace::complete(
                    self.name,
                    self.frames | UNREQUESTED_MIN,
                    frame_bytes as u32,
                    left.into(),
                    false,
                );
                return Some(frame_bytes);
            }
        }
        None
    }

    /// Copies the frame that starts in this buffer, and gives all of its buffers back: its length without the header, if it is one for
    /// the stack. Only the copy is parsed: the device may still write the buffers.
    fn take(&mut self, first: Used) -> Option<usize> {
        let first_bytes = self.append(0, first);
        if (first.bytes_written as usize) < HEADER_BYTES {
            return None;
        }
        let header = *self.copy.first_chunk().expect("the copy has room for a header");
        let buffers = if self.agreed.merged { net_header::buffers(&header) } else { 1 };
        let mut frame_end = first_bytes;
        // All buffers of a frame are completed at once (virtio 1.2, section 5.1.6.4), so one that is missing will never come.
        for _ in 1..buffers {
            let Ok(Some(used)) = self.queue.pop() else {
                self.queue.break_with(Violation::BufferCount { buffers });
                return None;
            };
            frame_end = match frame_end {
                Some(end) => self.append(end, used),
                None => {
                    self.give(self.buffer_of[used.token.index()]);
                    None
                }
            };
        }
        if buffers == 0 {
            self.queue.break_with(Violation::BufferCount { buffers });
            return None;
        }
        let frame_bytes = frame_end?.checked_sub(HEADER_BYTES)?;
        let Agreed { guest_tso_v4, guest_tso_v6, .. } = self.agreed;
        let (header, frame) = self.copy[..HEADER_BYTES + frame_bytes].split_first_chunk()?;
        let is_good = frame_bytes >= FRAME_BYTES_MIN
            && net_header::is_agreed(header, guest_tso_v4, guest_tso_v6)
            && (!self.verify || net_header::verify(header, frame) == Verdict::Good);
        is_good.then_some(frame_bytes)
    }

    /// Copies what the device has written into a buffer to `start` of the copy, and gives the buffer back: where the copy ends. `None`
    /// if it is too long.
    fn append(&mut self, start: usize, used: Used) -> Option<usize> {
        let index = self.buffer_of[used.token.index()];
        let end = start + used.bytes_written as usize;
        let target = self.copy.get_mut(start..end);
        let copied = target.map(|target| self.pool.memory.copy_to(usize::from(index) * self.pool.stride, target));
        self.give(index);
        copied.map(|()| end)
    }
}

impl Transmitter {
    /// Takes back what the device has sent.
    pub fn reap(&mut self) -> bool {
        let mut progress = false;
        while let Ok(Some(used)) = self.queue.pop() {
            let Sent { buffer: BufferId { large, index }, bytes, number } = self.sent_of[used.token.index()];
            glass_lib_trace::complete(self.name, number, bytes, self.queue.in_flight().into(), false);
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
        !pool.free.is_empty() && self.queue.has_space(1)
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
            if self.small.free.is_empty() || self.frames.is_multiple_of(REAP_PERIOD) {
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
            net_header::prepare(header, frame, segment_bytes);
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
                glass_lib_trace::submit(self.name, Operation::Transmit, number, bytes, self.queue.in_flight().into());
            }
            // `is_ready` saw room, so the queue is broken and the frame lost with it.
            Err(_) => self.pool(buffer).free.push(buffer.index),
        }
        result
    }
}
