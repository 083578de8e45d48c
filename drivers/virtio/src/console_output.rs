//! Output of a console: text that is gathered in buffers until it is sent.

use crate::queue::{Queue, QueueOptions, Segment};
use crate::session::Session;
use crate::transport::Transport;
use alloc::vec::Vec;
use core::mem;
use glass_drivers_device::{Dma, DmaMemory, SetupError, Users};
use glass_lib_trace::{Group, Name, Operation};

static WAITING_BYTES: Name = Name::new("console: bytes that the host has not read");

const QUEUE_SIZE: u16 = 64;

/// Buffers on their way to the host, and the one that is being filled.
pub struct Output {
    pub queue: Queue,
    memory: DmaMemory,
    buffers: u16,
    buffer_bytes: usize,
    free: Vec<u16>,
    /// The buffer that is being filled, and how far.
    current: Option<(u16, usize)>,
    /// By token: what is on its way to the host.
    sent_of: Vec<Sent>,
    /// Buffers that were sent so far.
    sent_count: u64,
    /// Bytes on their way to the host, as far as we have looked.
    waiting_bytes: u64,
    /// A writer wants to hear when there is room.
    wants_space: bool,
    /// There is some, and the writer does not know it yet.
    space_freed: bool,
    /// The console's name in the trace.
    pub name: u32,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    buffer: u16,
    bytes: u32,
    /// Its number in the trace.
    number: u64,
}

impl Output {
    pub fn new<T: Transport>(
        session: &mut Session<T>,
        dma: &impl Dma,
        number: u16,
        event_idx: bool,
        (buffers, buffer_bytes): (u16, usize),
    ) -> Result<Output, SetupError> {
        let queue = Queue::new(session, dma, number, QueueOptions { size: QUEUE_SIZE, event_idx, table_entries: 0 })?;
        let buffers = buffers.clamp(1, queue.size());
        let buffer_bytes = buffer_bytes.clamp(64, 1 << 16);
        Ok(Output {
            memory: session.allocate(dma, usize::from(buffers) * buffer_bytes, Users::DeviceReads)?,
            buffers,
            buffer_bytes,
            free: (0..buffers).rev().collect(),
            current: None,
            sent_of: alloc::vec![Sent::default(); usize::from(queue.size())],
            queue,
            sent_count: 0,
            waiting_bytes: 0,
            wants_space: false,
            space_freed: false,
            name: 0,
        })
    }

    /// Whether [`Output::write`] takes `bytes` bytes now, or if that is more than there ever is room for, whether
    /// everything is free.
    pub fn has_space(&mut self, bytes: usize) -> bool {
        let is_enough = |output: &Output| {
            let current = output.current.map_or(0, |(_, filled)| output.buffer_bytes - filled);
            let free = output.free.len() * output.buffer_bytes + current;
            free >= bytes.min(usize::from(output.buffers) * output.buffer_bytes)
        };
        if !is_enough(self) {
            self.reap();
        }
        is_enough(self)
    }

    pub fn want_space(&mut self) {
        self.wants_space = true;
    }

    pub fn wants_space(&self) -> bool {
        self.wants_space
    }

    pub fn space_freed(&self) -> bool {
        self.space_freed
    }

    pub fn take_space_freed(&mut self) -> bool {
        mem::take(&mut self.space_freed)
    }

    /// Writers that wait for room need not wait any more.
    pub fn end_wait(&mut self) {
        self.space_freed |= mem::take(&mut self.wants_space);
    }

    /// Takes as much of `text` as there is room for and returns how much.
    pub fn write(&mut self, text: &[u8]) -> usize {
        let mut rest = text;
        while !rest.is_empty() {
            let Some((index, filled)) = self.current.or_else(|| Some((self.take_buffer()?, 0))) else { break };
            let count = rest.len().min(self.buffer_bytes - filled);
            let start = usize::from(index) * self.buffer_bytes + filled;
            // SAFETY: the buffer is off the free list and not sent yet, so no request names it, and
            // the reference ends with the statement.
            unsafe { self.memory.slice_mut(start..start + count) }.copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            self.current = Some((index, filled + count));
            if filled + count == self.buffer_bytes {
                self.send_current();
            }
        }
        text.len() - rest.len()
    }

    fn take_buffer(&mut self) -> Option<u16> {
        if self.free.is_empty() {
            self.reap();
        }
        self.free.pop()
    }

    /// Takes back what the host has read. Usually that is done when the next buffer is needed; a writer that waits, and a
    /// trace, want to know it earlier.
    pub fn reap_if_wanted(&mut self) {
        if self.wants_space || glass_lib_trace::is_on(Group::Devices) || glass_lib_trace::is_on(Group::Counters) {
            self.reap();
        }
    }

    pub fn reap(&mut self) {
        let mut progress = false;
        while let Ok(Some(used)) = self.queue.pop() {
            let Sent { buffer, bytes, number } = self.sent_of[used.token.index()];
            self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes.into());
            glass_lib_trace::complete(self.name, number, bytes, self.queue.in_flight().into(), false);
            self.free.push(buffer);
            progress = true;
        }
        if progress {
            self.end_wait();
            glass_lib_trace::gauge(&WAITING_BYTES, self.waiting_bytes as i64);
        }
    }

    /// Sends the buffer that is being filled.
    pub fn send_current(&mut self) {
        let Some((buffer, filled)) = self.current.take() else { return };
        let address = self.memory.device_address(usize::from(buffer) * self.buffer_bytes);
        let bytes = filled as u32;
        // SAFETY: the session keeps the memory until the device is reset; the buffer is neither free nor current
        // any more, so only the device uses it until its completion.
        match unsafe { self.queue.add(&[Segment { address, bytes, device_writes: false }]) } {
            Ok(token) => {
                self.sent_count += 1;
                self.sent_of[token.index()] = Sent { buffer, bytes, number: self.sent_count };
                self.waiting_bytes += u64::from(bytes);
                let in_flight = self.queue.in_flight().into();
                glass_lib_trace::submit(self.name, Operation::Write, self.sent_count, bytes, in_flight);
                glass_lib_trace::gauge(&WAITING_BYTES, self.waiting_bytes as i64);
            }
            // Only when the queue is broken: there are no more buffers than descriptors.
            Err(_) => self.free.push(buffer),
        }
    }
}
