//! Memory of the program that calls: regions that an operation reads or writes until it is complete.

use crate::basic::Basic;
use alloc::boxed::Box;
use alloc::vec;
use core::ptr::{self, NonNull};
use core::slice;

/// A region of bytes. The caller of [`Memory::new`] promises that it is valid for as long as an operation has it.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    start: *mut u8,
    bytes: usize,
}

impl Memory {
    /// A region without bytes.
    pub const EMPTY: Memory = Memory { start: NonNull::dangling().as_ptr(), bytes: 0 };

    /// A region of `bytes` bytes at `start`.
    ///
    /// # Safety
    /// Until every operation that gets it is complete, the region is valid for reads, for writes too where the operation receives, and
    /// is accessed by nothing else. `start` may be anything where `bytes` is 0.
    pub const unsafe fn new(start: *mut u8, bytes: usize) -> Memory {
        if bytes == 0 { Memory::EMPTY } else { Memory { start, bytes } }
    }

    /// Its length.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// Its beginning, for a type that lays it out.
    pub(crate) fn base(&self) -> Base {
        Base(self.start)
    }

    /// The part of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// When it is not inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Memory {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "a part lies outside of its region");
        // SAFETY: the sum stays inside of the region, by the assertion.
        Memory { start: unsafe { self.start.add(offset) }, bytes }
    }

    /// The bytes, for reading.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the maker of the region promised that it is valid and that nothing else writes it.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The bytes, for writing. `&mut self` because two slices from one region must not live at once.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the maker of the region promised that it is valid and that nothing else has it.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Writes what fits of `from` at `offset`; returns how many bytes did not.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.bytes.saturating_sub(offset));
        if count > 0 {
            // SAFETY: `offset + count` lies inside of the region; the source is memory of another owner, or the copy allows an overlap.
            unsafe { ptr::copy(from.as_ptr(), self.start.add(offset), count) };
        }
        from.len() - count
    }

    /// Copies `from` to the beginning; the two may overlap.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn copy_from(&self, from: &Memory) {
        assert!(from.bytes <= self.bytes, "a copy is longer than its target");
        // SAFETY: both are valid by their makers' promise, the length fits, and `copy` allows an overlap.
        unsafe { ptr::copy(from.start, self.start, from.bytes) };
    }
}

mod private {
    /// Only numbers: every pattern of bits is a value, and there are no gaps.
    pub trait Number {}
}

/// A number that messages can have.
pub trait Element: Copy + private::Number {
    /// What it is.
    const BASIC: Basic;
}

macro_rules! elements {
    ($($number:ty = $basic:expr;)*) => { $(
        impl private::Number for $number {}
        impl Element for $number {
            const BASIC: Basic = $basic;
        }
    )* };
}

elements! {
    i8 = Basic::Int(1);
    i16 = Basic::Int(2);
    i32 = Basic::Int(4);
    i64 = Basic::Int(8);
    u8 = Basic::Unsigned(1);
    u16 = Basic::Unsigned(2);
    u32 = Basic::Unsigned(4);
    u64 = Basic::Unsigned(8);
    f32 = Basic::Float(4);
    f64 = Basic::Float(8);
}

impl Memory {
    /// Numbers that are sent. The caller's operation is over before the borrow ends: it waits, and a wait that fails ends all progress
    /// (`World::wait_until`).
    pub(crate) fn of_slice<T: Element>(slice: &[T]) -> Memory {
        Memory { start: slice.as_ptr().cast_mut().cast(), bytes: size_of_val(slice) }
    }

    /// Numbers that are received; as [`Memory::of_slice`].
    pub(crate) fn of_mut_slice<T: Element>(slice: &mut [T]) -> Memory {
        Memory { start: slice.as_mut_ptr().cast(), bytes: size_of_val(slice) }
    }
}

/// Where a program's buffer begins that a type lays out: its elements may lie before and behind.
#[derive(Debug, Clone, Copy)]
pub struct Base(*mut u8);

impl Base {
    /// The buffer at `start`.
    ///
    /// # Safety
    /// What [`Memory::new`] requires holds for every byte that the type and the count used with it cover.
    pub const unsafe fn new(start: *mut u8) -> Base {
        Base(start)
    }

    /// The region of `bytes` bytes at `offset`.
    pub fn memory(&self, offset: isize, bytes: usize) -> Memory {
        if bytes == 0 { Memory::EMPTY } else { Memory { start: self.0.wrapping_offset(offset), bytes } }
    }

    /// The same buffer seen from `offset`.
    pub fn at(&self, offset: isize) -> Base {
        Base(self.0.wrapping_offset(offset))
    }
}

/// Memory of the library for one operation, which owns it until it is complete.
#[derive(Debug)]
pub(crate) struct Staging(NonNull<[u8]>);

impl Staging {
    pub fn new(bytes: usize) -> Staging {
        Staging(NonNull::from(Box::leak(vec![0u8; bytes].into_boxed_slice())))
    }

    /// All of it. The caller drops the staging after the last use of what this returns.
    pub fn memory(&self) -> Memory {
        Memory { start: self.0.as_ptr().cast(), bytes: self.0.len() }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::leak`, and is given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
