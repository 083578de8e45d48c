//! Memory of a machine that is read from outside.

use std::sync::Arc;

/// Physical memory that can be read.
pub trait Physical {
    /// Copies from a guest-physical address; false if not all of it is RAM, or not now.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// Copies from several guest-physical addresses, in this order, each to its room. Returns for how many: until the first of which not all is RAM.
    /// Where a read is a system call, all of these may be one.
    fn read_each(&self, pieces: &mut [(u64, &mut [u8])]) -> usize {
        read_in_turn(self, pieces)
    }
}

/// What [`Physical::read_each`] does where each piece is read by itself.
pub fn read_in_turn<M: Physical + ?Sized>(memory: &M, pieces: &mut [(u64, &mut [u8])]) -> usize {
    let is_missing = |(address, into): &mut (u64, &mut [u8])| !memory.read(*address, into);
    pieces.iter_mut().position(is_missing).unwrap_or(pieces.len())
}

impl<T: Physical + ?Sized> Physical for Arc<T> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }

    fn read_each(&self, pieces: &mut [(u64, &mut [u8])]) -> usize {
        (**self).read_each(pieces)
    }
}

impl<T: Physical + ?Sized> Physical for &T {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }

    fn read_each(&self, pieces: &mut [(u64, &mut [u8])]) -> usize {
        (**self).read_each(pieces)
    }
}
