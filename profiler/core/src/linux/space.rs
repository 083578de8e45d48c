//! The address space of a guest's kernel, over its physical memory. The guest runs meanwhile, and may have written anything: each read may
//! fail, and what it returns proves nothing.

use std::cell::RefCell;
use std::fmt;

use crate::arch::Paging;
use crate::arch::paging::Translator;
use crate::memory::Physical;

/// An address space for one walk through structures. It keeps translations of pages, so the next walk takes another one.
pub struct Space<'a> {
    memory: &'a dyn Physical,
    paging: Paging,
    translator: RefCell<Translator>,
}

impl<'a> Space<'a> {
    /// The one that these registers select.
    pub fn new(memory: &'a dyn Physical, paging: impl Into<Paging>) -> Space<'a> {
        let paging = paging.into();
        Space { memory, paging, translator: RefCell::new(Translator::new(paging)) }
    }

    /// Copies from a virtual address; `None` if not all of it is there.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        (self.translator.borrow_mut().read(&self.memory, address, into) == into.len()).then_some(())
    }

    /// Copies as much as there is; returns how much.
    pub fn read_some(&self, address: u64, into: &mut [u8]) -> usize {
        self.translator.borrow_mut().read(&self.memory, address, into)
    }

    /// So many bytes from an address.
    pub fn bytes(&self, address: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read(address, &mut bytes).map(|()| bytes)
    }

    /// A word of 8 bytes.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    /// A text up to its zero, or up to `bytes_max`; other bytes than UTF-8 are replaced.
    pub fn text(&self, address: u64, bytes_max: usize) -> Option<String> {
        let mut bytes = vec![0; bytes_max];
        // It may be at the end of what is mapped.
        let read = self.read_some(address, &mut bytes);
        let end = bytes[..read].iter().position(|byte| *byte == 0).or((read == bytes_max).then_some(read))?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// The physical address of a virtual one.
    pub fn physical(&self, address: u64) -> Option<u64> {
        let page = self.translator.borrow_mut().translate_page(&self.memory, address & !4095)?;
        Some(page | address & 4095)
    }

    /// How many bits of an address of the kernel's code select a byte, where that depends on the guest; else 64.
    pub fn address_bits(&self) -> u8 {
        self.paging.aarch64().map_or(64, |paging| paging.address_bits(u64::MAX))
    }

    /// The physical memory.
    pub fn memory(&self) -> &'a dyn Physical {
        self.memory
    }
}

impl fmt::Debug for Space<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("translator", &self.translator).finish_non_exhaustive()
    }
}

/// The unsigned number of `count` bytes, at most 8, at an offset of a copied structure.
#[must_use]
pub fn number(bytes: &[u8], at: u32, count: u32) -> Option<u64> {
    let bytes = bytes.get(at as usize..)?.get(..count.min(8) as usize)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The word of 8 bytes at an offset of a copied structure.
#[must_use]
pub fn word(bytes: &[u8], at: u32) -> Option<u64> {
    number(bytes, at, 8)
}
