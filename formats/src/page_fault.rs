//! What a VMM sends of each page fault of a copy, to the process that records them: both are the same program, so there is no version.

/// Bytes of the guest's stack behind a fault, at most.
pub const STACK_BYTES_MAX: usize = 16 << 10;
const WORDS: usize = 6 + GENERAL;
const GENERAL: usize = 16;

/// The first read of a page, or the first write to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageFault {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// The physical address of the page.
    pub address: u64,
    /// Whether it was a write. A write to a page that was not read before is both, in two faults of the same instruction.
    pub is_write: bool,
    /// For how long the guest stood.
    pub paused_ns: u64,
    /// The guest's instruction pointer.
    pub rip: u64,
    /// Its general registers by their DWARF numbers.
    pub general: [u64; GENERAL],
    /// Bytes that follow: its stack from the stack pointer on, at most [`STACK_BYTES_MAX`].
    pub stack_bytes: u64,
}

impl PageFault {
    /// Bytes of it.
    pub const BYTES: usize = 8 * WORDS;

    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; PageFault::BYTES] {
        let PageFault { time_ns, address, is_write, paused_ns, rip, general, stack_bytes } = *self;
        let words = [time_ns, address, is_write.into(), paused_ns, rip, stack_bytes];
        let mut bytes = [0; PageFault::BYTES];
        for (into, word) in bytes.as_chunks_mut().0.iter_mut().zip(words.iter().chain(&general)) {
            *into = word.to_le_bytes();
        }
        bytes
    }

    /// The one that was sent; `None` if no VMM of ours sends such a one.
    pub fn from_bytes(bytes: &[u8; PageFault::BYTES]) -> Option<PageFault> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [time_ns, address, is_write, paused_ns, rip, stack_bytes, ..] = words;
        let mut general = [0; GENERAL];
        general.copy_from_slice(&words[WORDS - GENERAL..]);
        let is_possible = is_write <= 1 && stack_bytes <= STACK_BYTES_MAX as u64;
        let is_write = is_write == 1;
        is_possible.then_some(PageFault { time_ns, address, is_write, paused_ns, rip, general, stack_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_arrives_as_it_was_sent() {
        let general = core::array::from_fn(|index| index as u64 + 100);
        let fault = PageFault { time_ns: 1, address: 2, is_write: true, paused_ns: 3, rip: 4, general, stack_bytes: 5 };
        let mut bytes = fault.to_bytes();
        assert_eq!(PageFault::from_bytes(&bytes), Some(fault));
        bytes[41] = 0x50;
        assert_eq!(PageFault::from_bytes(&bytes), None, "a stack of 20 KiB");
    }
}
