//! Memory of a machine that is read from outside.

use std::sync::Arc;

/// Physical memory that can be read.
pub trait Physical {
    /// Copies from a guest-physical address; false if not all of it is RAM, or not now.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

impl<T: Physical + ?Sized> Physical for Arc<T> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }
}

impl<T: Physical + ?Sized> Physical for &T {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }
}
