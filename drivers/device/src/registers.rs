//! Registers of a device in memory, whatever they mean.

use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence, fence};

/// A window of registers. An access is as wide as its name, lies inside the window and is aligned to its width.
pub trait Registers {
    /// Reads one byte.
    fn read_u8(&mut self, offset: usize) -> u8;
    /// Reads a 16-bit register.
    fn read_u16(&mut self, offset: usize) -> u16;
    /// Reads a 32-bit register.
    fn read_u32(&mut self, offset: usize) -> u32;
    /// Writes one byte.
    fn write_u8(&mut self, offset: usize, value: u8);
    /// Writes a 16-bit register.
    fn write_u16(&mut self, offset: usize, value: u16);
    /// Writes a 32-bit register.
    fn write_u32(&mut self, offset: usize, value: u32);
    /// Length of the window in bytes.
    fn bytes(&self) -> usize;
}

/// Keeps the call before it from being the last act of its function, where the compiler would make a jump of it. A write to a register may
/// take long, and a profiler of an emulated guest finds its function by the call (docs/decisions/0004-when-a-sample-is-taken-and-whose-it-is.md).
/// For the same reason the writes of [`MmioRegisters`] are never inlined.
#[inline(always)]
pub fn after_write() {
    compiler_fence(Ordering::SeqCst);
}

/// What was written to memory for the device is there before the register is. An instruction on AArch64 only: x86-64 keeps the order.
#[inline(always)]
fn before_write() {
    fence(Ordering::Release);
}

/// What the device has written to memory is read after its register was.
#[inline(always)]
fn after_read<T>(value: T) -> T {
    fence(Ordering::Acquire);
    value
}

/// Registers at an address.
#[derive(Debug)]
pub struct MmioRegisters {
    base: *mut u8,
    bytes: usize,
}

impl MmioRegisters {
    /// The `bytes` bytes of registers at virtual address `base`.
    ///
    /// # Safety
    /// `base` must be aligned to 4 and the bytes from it on be mapped, as long as the value lives, to memory that is no
    /// Rust object: a device's registers, or nothing (reads give all ones). A value that names registers of a device
    /// must be used for nothing but the driver of that device, and have no other driver: the device writes to whatever
    /// memory its registers name.
    pub unsafe fn new(base: usize, bytes: usize) -> MmioRegisters {
        MmioRegisters { base: ptr::with_exposed_provenance_mut(base), bytes }
    }

    /// The address of a register of type `T`.
    fn register<T>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(size_of::<T>()), "register {offset:#x} is not aligned");
        let is_inside = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        assert!(is_inside, "register {offset:#x} is outside of the window of {:#x} bytes", self.bytes);
        self.base.wrapping_add(offset).cast()
    }
}

// SAFETY, for each access: the caller of `new` vouches for the window, `register` keeps the access inside of it and aligned, and
// registers are no Rust object, so no reference can be affected.
impl Registers for MmioRegisters {
    fn read_u8(&mut self, offset: usize) -> u8 {
        // SAFETY: see above.
        after_read(unsafe { self.register::<u8>(offset).read_volatile() })
    }

    fn read_u16(&mut self, offset: usize) -> u16 {
        // SAFETY: see above.
        after_read(u16::from_le(unsafe { self.register::<u16>(offset).read_volatile() }))
    }

    fn read_u32(&mut self, offset: usize) -> u32 {
        // SAFETY: see above.
        after_read(u32::from_le(unsafe { self.register::<u32>(offset).read_volatile() }))
    }

    #[inline(never)]
    fn write_u8(&mut self, offset: usize, value: u8) {
        before_write();
        // SAFETY: see above.
        unsafe { self.register::<u8>(offset).write_volatile(value) }
    }

    #[inline(never)]
    fn write_u16(&mut self, offset: usize, value: u16) {
        before_write();
        // SAFETY: see above.
        unsafe { self.register::<u16>(offset).write_volatile(value.to_le()) }
    }

    #[inline(never)]
    fn write_u32(&mut self, offset: usize, value: u32) {
        before_write();
        // SAFETY: see above.
        unsafe { self.register::<u32>(offset).write_volatile(value.to_le()) }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_have_the_width_of_their_name() {
        let mut memory = [0u32; 4];
        // SAFETY: the array is 16 bytes, aligned to 4 and not used otherwise while the registers are.
        let mut registers = unsafe { MmioRegisters::new(memory.as_mut_ptr().expose_provenance(), 16) };
        registers.write_u32(4, 0x0403_0201);
        registers.write_u16(6, 0x0605);
        registers.write_u8(5, 7);
        assert_eq!((registers.read_u32(4), registers.read_u16(4), registers.read_u8(7)), (0x0605_0701, 0x0701, 6));
        assert_eq!(registers.bytes(), 16);
        assert_eq!(memory, [0, 0x0605_0701, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "register 0xe is not aligned")]
    fn a_register_is_aligned() {
        // SAFETY: nothing is accessed.
        unsafe { MmioRegisters::new(0x1000, 16) }.read_u32(14);
    }

    #[test]
    #[should_panic(expected = "register 0x10 is outside of the window of 0x10 bytes")]
    fn a_register_is_inside_of_its_window() {
        // SAFETY: nothing is accessed.
        unsafe { MmioRegisters::new(0x1000, 16) }.write_u16(16, 0);
    }
}
