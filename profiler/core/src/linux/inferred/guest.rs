//! A guest while structures are inferred: its memory, with a bound for all reads, and copies of its tasks.

use std::cell::Cell;
use std::ops::Range;

use super::super::kernel::Kernel;
use super::super::space::{Space, number};
use super::super::structures::pointer;
use crate::memory::Physical;

/// The most reads; an ordinary guest takes some 100,000.
const READS_MAX: u32 = 8 << 20;
/// Bytes of a task that are copied: those of Debian's kernels have up to 10 KiB, and what is behind the last member that is wanted is of no use.
pub(super) const TASK_BYTES: u32 = 9 << 10;
/// Bytes of a name (`TASK_COMM_LEN`).
const NAME_BYTES: usize = 16;

/// A guest.
pub(super) struct Guest<'a> {
    pub(super) kernel: &'a Kernel,
    space: Space<'a>,
    /// How many more reads there may be.
    left: Cell<u32>,
    /// Where the kernel's code and data are.
    pub(super) image: Range<u64>,
}

impl<'a> Guest<'a> {
    pub(super) fn new(kernel: &'a Kernel, memory: &'a dyn Physical) -> Guest<'a> {
        let image = kernel.text..kernel.text.saturating_add(kernel.image_bytes(memory));
        Guest { kernel, space: kernel.space(memory), left: Cell::new(READS_MAX), image }
    }

    pub(super) fn space(&self) -> &Space<'a> {
        &self.space
    }

    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.space.read(address, into)
    }

    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    pub(super) fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes).map(|()| u32::from_le_bytes(bytes))
    }

    pub(super) fn bytes(&self, address: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read(address, &mut bytes).map(|()| bytes)
    }

    /// The pointer at an address.
    pub(super) fn pointer(&self, address: u64) -> Option<u64> {
        pointer(self.word(address)?, 8)
    }

    /// The words at an address, as many as can be read of these.
    pub(super) fn words(&self, address: u64, count: usize) -> Vec<u64> {
        let bytes = self.bytes(address, count * 8).unwrap_or_default();
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Whether a name of a task is at an address.
    pub(super) fn has_name(&self, address: u64) -> bool {
        let mut name = [0; NAME_BYTES];
        self.read(address, &mut name).is_some() && is_text(&name)
    }

    /// Where the kernel's image has a text; `None` if nowhere.
    pub(super) fn places_of(&self, text: &[u8], count_max: usize) -> Option<Vec<u64>> {
        const CHUNK_BYTES: u64 = 1 << 20;
        let (memory, finder) = (self.space.memory(), memchr::memmem::Finder::new(text));
        let (mut places, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES as usize + text.len() - 1]);
        for start in (0..self.image.end - self.image.start).step_by(CHUNK_BYTES as usize) {
            // In physical memory: a part of the image may be no longer mapped.
            if memory.read(self.kernel.text_physical + start, &mut chunk) {
                places.extend(finder.find_iter(&chunk).map(|at| self.kernel.text.wrapping_add(start + at as u64)));
            }
        }
        places.truncate(count_max);
        (!places.is_empty()).then_some(places)
    }

    /// Calls a function with each word of the kernel's image and its address.
    pub(super) fn each_word(&self, mut each: impl FnMut(u64, u64)) {
        const CHUNK_BYTES: u64 = 64 << 10;
        let mut chunk = [0; CHUNK_BYTES as usize];
        for start in (0..self.image.end - self.image.start).step_by(CHUNK_BYTES as usize) {
            if self.space.memory().read(self.kernel.text_physical + start, &mut chunk) {
                let words = chunk.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                words.zip((start..).step_by(8)).for_each(|(word, at)| each(self.kernel.text.wrapping_add(at), word));
            }
        }
    }

    /// The addresses of a function.
    pub(super) fn function(&self, name: &str) -> Option<Range<u64>> {
        self.kernel.symbols.range(name)
    }
}

/// How many words a structure has at most of which these are some: no two of them overlap, and what is behind one may be another.
pub(super) fn words_of(addresses: impl Iterator<Item = u64>, words_max: usize) -> usize {
    let mut sorted: Vec<u64> = addresses.collect();
    sorted.sort_unstable();
    let apart = sorted.windows(2).map(|pair| (pair[1] - pair[0]) as usize / 8).filter(|words| *words > 0);
    apart.min().map_or(words_max, |words| words.min(words_max))
}

/// Whether bytes begin with a text of printable characters and its zero.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|byte| *byte == 0);
    end.is_some_and(|end| end > 0 && bytes[..end].iter().all(|byte| matches!(byte, b' '..=b'~')))
}

/// A task, copied.
pub(super) struct Copied {
    /// Where it is.
    pub(super) start: u64,
    bytes: Vec<u8>,
}

impl Copied {
    pub(super) fn read(guest: &Guest<'_>, start: u64) -> Option<Copied> {
        Some(Copied { start, bytes: guest.bytes(start, TASK_BYTES as usize)? })
    }

    pub(super) fn word(&self, at: u32) -> u64 {
        number(&self.bytes, at, 8).unwrap_or(0)
    }

    pub(super) fn half(&self, at: u32) -> u32 {
        number(&self.bytes, at, 4).unwrap_or(0) as u32
    }

    pub(super) fn byte(&self, at: u32) -> u8 {
        self.bytes.get(at as usize).copied().unwrap_or(0)
    }

    pub(super) fn pointer(&self, at: u32) -> Option<u64> {
        pointer(self.word(at), 8)
    }
}
