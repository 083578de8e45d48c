//! Input of a console: what the host has written for us.

use crate::queue::{Queue, QueueOptions, Segment};
use crate::session::Session;
use crate::transport::Transport;
use alloc::vec::Vec;
use glass_drivers_device::{Dma, DmaMemory, SetupError, Users};

pub const INPUT_BUFFERS: u16 = 4;
const INPUT_BUFFER_BYTES: usize = 256;

/// Every descriptor of the queue has a buffer of the same number.
pub struct Input {
    pub queue: Queue,
    memory: DmaMemory,
    /// By token.
    buffer_of: Vec<u16>,
    /// The buffer that is being read: its number, what was read of it and its length.
    current: Option<(u16, usize, usize)>,
}

impl Input {
    pub fn new<T: Transport>(
        session: &mut Session<T>,
        dma: &impl Dma,
        number: u16,
        options: QueueOptions,
    ) -> Result<Input, SetupError> {
        let queue = Queue::new(session, dma, number, options)?;
        let memory = session.allocate(dma, usize::from(INPUT_BUFFERS) * INPUT_BUFFER_BYTES, Users::DeviceWrites)?;
        Ok(Input { buffer_of: (0..queue.size()).collect(), queue, memory, current: None })
    }

    /// Gives the device all of its buffers.
    pub fn open(&mut self) {
        (0..INPUT_BUFFERS.min(self.queue.size())).for_each(|index| self.give(index));
    }

    fn give(&mut self, index: u16) {
        let address = self.memory.device_address(usize::from(index) * INPUT_BUFFER_BYTES);
        let segment = Segment { address, bytes: INPUT_BUFFER_BYTES as u32, device_writes: true };
        // SAFETY: the session keeps the memory until the device is reset; the buffer was never given away or came
        // back by a completion and was read. There are no references to memory that a device writes.
        if let Ok(token) = unsafe { self.queue.add(&[segment]) } {
            self.buffer_of[token.index()] = index;
        }
    }

    /// Copies input into `bytes` and returns how much; 0 when there is none.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut count = 0;
        // One round of the queue at most, so that a flood of empty completions cannot keep us.
        for _ in 0..=INPUT_BUFFERS {
            if count == bytes.len() {
                break;
            }
            let Some((index, start, end)) = self.current.take().or_else(|| self.next()) else { break };
            let piece = (bytes.len() - count).min(end - start);
            let offset = usize::from(index) * INPUT_BUFFER_BYTES + start;
            self.memory.copy_to(offset, &mut bytes[count..count + piece]);
            count += piece;
            if start + piece < end {
                self.current = Some((index, start + piece, end));
            } else {
                self.give(index);
            }
        }
        count
    }

    fn next(&mut self) -> Option<(u16, usize, usize)> {
        let used = self.queue.pop().ok()??;
        Some((self.buffer_of[used.token.index()], 0, used.bytes_written as usize))
    }

    /// Whether [`Input::read`] would find any.
    pub fn has_input(&self) -> bool {
        self.current.is_some() || self.queue.has_used()
    }
}
