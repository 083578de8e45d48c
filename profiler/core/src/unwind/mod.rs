//! Unwinds registers and a copied piece of stack to a chain of return addresses.
//!
//! The code that depends on the processor is in a module for each.

pub(crate) mod aarch64;
mod orc;
pub mod skid;
pub(crate) mod x86_64;

use std::ops::Range;
use std::sync::Arc;

use crate::arch::Registers;
use crate::cfi::rule::Failure;
use crate::image::Image;
use crate::model::StackEnd;

/// The most frames of a stack; more end it as [`StackEnd::TooDeep`].
pub const DEPTH_MAX: usize = 512;

/// A read within this distance above the copied piece counts as a piece that is too short; a read
/// further away is a wild address.
const STACK_BYTES_PLAUSIBLE: u64 = 16 << 20;

/// One function call: an address within the calling instruction, and the image it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallAddress {
    /// Index into the images of the [`AddressSpace`], `None` outside of all.
    pub image: Option<u32>,
    /// The address for which the image was linked; as it is if there is no image.
    pub address: u64,
}

/// An unwound stack, innermost call first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallChain {
    /// The calls.
    pub calls: Vec<CallAddress>,
    /// Which of them, behind the innermost, were interrupted: their addresses are those of the next instruction, as the innermost one's is.
    pub interrupted: Vec<u32>,
    /// Why there are no more.
    pub end: StackEnd,
}

/// Pieces of memory that were copied with a sample: address and bytes of each, the one at the stack pointer first.
#[derive(Debug, Clone, Copy)]
pub struct StackMemory<'a>(pub &'a [(u64, Vec<u8>)]);

impl StackMemory<'_> {
    /// The eight bytes at an address.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.0.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk::<8>()?))
        })
    }

    /// Which of the pieces an address is in.
    pub(crate) fn piece(&self, address: u64) -> Option<usize> {
        self.0.iter().position(|(start, bytes)| address.checked_sub(*start).is_some_and(|at| at < bytes.len() as u64))
    }

    /// `CopyEnded` for an address that may be on the same stack, but was not copied.
    pub(crate) fn end_at(&self, address: u64) -> Option<StackEnd> {
        let plausible = |(start, bytes): &(u64, Vec<u8>)| {
            let end = start.saturating_add(bytes.len() as u64);
            let beyond = address.wrapping_add(8) > end && address >= *start;
            beyond && address - end.min(address) < STACK_BYTES_PLAUSIBLE
        };
        self.0.iter().any(plausible).then_some(StackEnd::CopyEnded)
    }
}

/// An image in an address space.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) range: Range<u64>,
    pub(crate) bias: u64,
    image_index: u32,
    pub(crate) image: Arc<Image>,
}

impl Placed {
    /// Whether a thread starts with the call at `address`. For the innermost function, which has not called, a table decides if there is one: the
    /// thread that starts another is in `clone`, too.
    fn is_root(&self, address: u64, has_called: bool) -> bool {
        let image = &self.image;
        let is_described = || image.is_covered(address) || image.is_covered_by_debug(address);
        image.is_root(address) && (has_called || !is_described())
    }
}

/// How a chain ends whose last call has no caller because of `failure`; `is_covered`: a table described the call.
fn end_by(failure: Failure, is_covered: bool, placed: Option<&Placed>, stack: StackMemory<'_>) -> StackEnd {
    match failure {
        // Its file has tables, so its functions need no frame pointer: this was a guess.
        Failure::Unreadable(_) if !is_covered && placed.is_some_and(|placed| placed.image.has_tables()) => {
            StackEnd::NoUnwindInfo
        }
        Failure::Unreadable(address) => {
            let otherwise = if is_covered { StackEnd::BadAddress } else { StackEnd::NoUnwindInfo };
            stack.end_at(address).unwrap_or(otherwise)
        }
        Failure::Rule if is_covered => StackEnd::RuleFailed,
        Failure::Rule => StackEnd::NoUnwindInfo,
    }
}

/// The images of a process or guest, with their addresses.
#[derive(Clone, Default)]
pub struct AddressSpace {
    placed: Vec<Placed>,
}

/// Unwind rules that were used lately. One for all address spaces.
#[derive(Default)]
pub struct UnwindCache {
    x86_64: x86_64::Cache,
    aarch64: aarch64::Cache,
}

impl AddressSpace {
    /// Adds an image at `range`, `bias` above the addresses it was linked for. It replaces what was
    /// mapped there before: what is beside it stays, as the kernel has it. `image_index` is what [`CallAddress::image`] will be.
    pub fn add(&mut self, range: Range<u64>, bias: u64, image_index: u32, image: Arc<Image>) {
        if range.is_empty() {
            return;
        }
        let range = self.joined(range, bias, image_index);
        let mut beside = Vec::new();
        self.placed.retain(|placed| {
            let is_covered = placed.range.start < range.end && range.start < placed.range.end;
            if is_covered {
                let parts = [placed.range.start..range.start, range.end..placed.range.end];
                let parts = parts.into_iter().filter(|part| part.start < part.end);
                beside.extend(parts.map(|part| Placed { range: part, ..placed.clone() }));
            }
            !is_covered
        });
        self.placed.append(&mut beside);
        self.placed.push(Placed { range, bias, image_index, image });
        self.placed.sort_by_key(|placed| placed.range.start);
    }

    /// A range joined with adjacent ranges of the same image: memory for generated code grows by pages.
    fn joined(&self, range: Range<u64>, bias: u64, image_index: u32) -> Range<u64> {
        let beside = |placed: &&Placed| {
            let touches = placed.range.start <= range.end && range.start <= placed.range.end;
            touches && (placed.image_index, placed.bias) == (image_index, bias)
        };
        let joined =
            |all: Range<u64>, placed: &Placed| all.start.min(placed.range.start)..all.end.max(placed.range.end);
        self.placed.iter().filter(beside).fold(range.clone(), joined)
    }

    fn find(&self, address: u64) -> Option<&Placed> {
        let after = self.placed.partition_point(|placed| placed.range.start <= address);
        self.placed[..after].last().filter(|placed| placed.range.contains(&address))
    }

    /// The call address for an address within the calling instruction, and the image it is in.
    pub(crate) fn call(&self, address: u64) -> (CallAddress, Option<&Placed>) {
        match self.find(address) {
            Some(placed) => {
                let call = CallAddress { image: Some(placed.image_index), address: address.wrapping_sub(placed.bias) };
                (call, Some(placed))
            }
            None => (CallAddress { image: None, address }, None),
        }
    }

    /// The machine code at an address, if that much of it is known.
    pub fn code<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let placed = self.find(address)?;
        let mut code = [0; BYTES];
        (placed.image.code(address.wrapping_sub(placed.bias), &mut code) == BYTES).then_some(code)
    }

    /// Whether a function starts at an address, by its unwind table.
    pub fn is_function_start(&self, address: u64) -> bool {
        self.function_start(address) == Some(address)
    }

    /// Where the function begins that an address is in, by its unwind table.
    fn function_start(&self, address: u64) -> Option<u64> {
        let placed = self.find(address)?;
        Some(placed.image.function_start(address.wrapping_sub(placed.bias))?.wrapping_add(placed.bias))
    }

    /// The machine code of the function that begins at an address, if the unwind table has one of at most so many bytes.
    fn function_code(&self, start: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let placed = self.find(start)?;
        let linked = start.wrapping_sub(placed.bias);
        let bytes = placed.image.function_bytes(linked)? as usize;
        let mut code = vec![0; Some(bytes).filter(|bytes| *bytes <= bytes_max)?];
        (placed.image.code(linked, &mut code) == bytes).then_some(code)
    }

    /// The call address for an instruction that is being executed.
    pub fn at(&self, instruction: u64) -> CallAddress {
        self.call(instruction).0
    }

    /// Unwinds from `registers` through pieces of memory. For code of 64 bits only.
    pub fn unwind(&self, cache: &mut UnwindCache, registers: &Registers, stack: StackMemory<'_>) -> CallChain {
        match registers {
            Registers::X86_64(registers) => x86_64::unwind(self, &mut cache.x86_64, *registers, stack),
            Registers::Aarch64(registers) => aarch64::unwind(self, &mut cache.aarch64, *registers, stack),
        }
    }
}
