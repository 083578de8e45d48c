//! The copy of a stack while its core stands: as much of it as the chain of frame pointers needs.

use glass_profiler_core::arch::Registers;

use crate::arch::entry::Entry;

/// Bytes that are copied at first. After that the copy is doubled until the chain ends or there is no room.
const FIRST_BYTES: usize = 1 << 10;

/// A chain of frame pointers, as far as it is known.
struct Chain {
    /// Address of the first word of its next frame: the caller's frame pointer, and then the return address.
    frame: u64,
    /// It has a frame that returns to code.
    has_caller: bool,
}

impl Chain {
    /// Follows the chain through `copied`, the bytes of the stack from `start` on. Returns whether its end is there: a frame without
    /// a caller, whose frame pointer and return address are 0, above frames that return to code. Code without frame pointers may have
    /// any address in the register, that of zeros on its stack too, so nothing else counts as an end.
    #[inline(always)]
    fn ends_in(&mut self, start: u64, copied: &[u8], is_code: &impl Fn(u64) -> bool) -> bool {
        loop {
            let at = self.frame.checked_sub(start).and_then(|at| usize::try_from(at).ok());
            let Some(frame) = at.and_then(|at| copied.get(at..)?.first_chunk::<16>()) else { return false };
            let (words, _) = frame.as_chunks::<8>();
            let [caller, return_address] = [0, 1].map(|word| u64::from_le_bytes(words[word]));
            if caller == 0 {
                return self.has_caller && return_address == 0;
            }
            if caller <= self.frame || !is_code(return_address) {
                return false;
            }
            *self = Chain { frame: caller, has_caller: true };
        }
    }
}

/// Copies a stack to `room` from the stack pointer on, by `read`, which returns how much there was. Returns the number of bytes: of a stack
/// whose outermost frame is found less is copied, because no caller is above it. `is_code`: whether an address may be one that a function
/// returns to.
#[inline(always)]
pub(crate) fn copy<E>(
    (stack_pointer, frame_pointer): (u64, u64),
    room: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
    is_code: impl Fn(u64) -> bool,
) -> Result<usize, E> {
    let start = stack_pointer;
    let mut chain = Chain { frame: frame_pointer, has_caller: false };
    let mut copied = 0;
    let mut end = FIRST_BYTES.min(room.len());
    loop {
        copied += read(start.wrapping_add(copied as u64), &mut room[copied..end])?;
        if copied < end || end == room.len() || chain.ends_in(start, &room[..copied], &is_code) {
            return Ok(copied);
        }
        end = (2 * end).min(room.len());
    }
}

/// How much of the stack that an interrupt left for its own can be copied too: where that begins. The
/// last word of an interrupt stack, which an unmapped page follows, is where the other stack was.
pub(crate) fn left_stack(start: u64, copied: &[u8]) -> Option<u64> {
    // With four levels of page tables the kernel begins higher than with five.
    const KERNEL_START: u64 = 0xff00_0000_0000_0000;
    let end = start.checked_add(copied.len() as u64).filter(|end| end.is_multiple_of(4096))?;
    let pointer = u64::from_le_bytes(*copied.last_chunk::<8>()?);
    let is_other = pointer >= KERNEL_START && pointer.is_multiple_of(8) && !(start..end).contains(&pointer);
    is_other.then_some(pointer)
}

/// Where the chain of frame pointers leads from a copied stack, which begins at `start`: of a process to the stack of a goroutine, if it has
/// changed from that to its thread's for a call of C or of Go's runtime; of a kernel of AArch64 to the stack that an interrupt has left. Code of other
/// languages may have any number in the register.
pub(crate) fn left_by_frames(start: u64, frame_pointer: u64, copied: &[u8]) -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let mut pointer = frame_pointer;
    while let Some(offset) = pointer.checked_sub(start).and_then(|at| usize::try_from(at).ok()) {
        let Some(next) = copied.get(offset..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let next = u64::from_le_bytes(*next);
        // A chain goes up on one stack.
        if next <= pointer && next >= start {
            return None;
        }
        pointer = next;
    }
    // Both of a process, or both of the kernel.
    let may_be = start >> 63 == pointer >> 63 && pointer >= PAGE_BYTES && pointer.is_multiple_of(8);
    may_be.then_some(pointer)
}

/// Whether the words at a frame pointer may be a frame: the caller's frame pointer, which is above it or the last one, and a return address.
pub(crate) fn is_frame(pointer: u64, words: [u8; 16]) -> bool {
    /// No frame is larger.
    const FRAME_BYTES_MAX: u64 = 1 << 20;
    let [caller, return_address] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| words[at + byte])));
    let is_above = caller > pointer && caller - pointer < FRAME_BYTES_MAX && caller.is_multiple_of(8);
    // A pointer authentication code may be around the bit that selects the half.
    let is_same_half = return_address >> 55 & 1 == pointer >> 55 & 1;
    (is_above || caller == 0) && return_address != 0 && is_same_half
}

/// The registers of the process whose thread called or was interrupted into the kernel whose stack these pieces are: the kernel keeps them at the
/// top of the thread's own stack. `None` of a thread of the kernel, and of 32-bit code.
pub(crate) fn registers_of_user(pieces: &[(u64, Vec<u8>)], entry: Entry) -> Option<Registers> {
    /// Bytes of a stack, and its alignment (`THREAD_SIZE`).
    const STACK_BYTES: u64 = 16 << 10;
    // The stack of an interrupt, if there is one, is the first.
    let (start, bytes) = pieces.last()?;
    entry.registers((start & !(STACK_BYTES - 1)).checked_add(STACK_BYTES)?, *start, bytes)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    const START: u64 = 0x10_0000;

    /// The bytes that are copied of a stack of 8 KiB with frames at these offsets, the last one with this return address.
    fn copied(frames: &[u64], return_address: u64, room: usize) -> usize {
        let mut stack = vec![0x55; 8 << 10];
        for (index, at) in frames.iter().enumerate() {
            let next = frames.get(index + 1);
            let words = [next.map_or(0, |next| START + next), if next.is_some() { 0x40_1000 } else { return_address }];
            for (word, value) in words.iter().enumerate() {
                stack[*at as usize + 8 * word..][..8].copy_from_slice(&value.to_le_bytes());
            }
        }
        let frame_pointer = frames.first().map_or(0, |first| START + first);
        let read = |address: u64, into: &mut [u8]| -> Result<usize, Infallible> {
            let there = stack.get((address - START) as usize..).unwrap_or_default();
            let count = there.len().min(into.len());
            into[..count].copy_from_slice(&there[..count]);
            Ok(count)
        };
        let mut room = vec![1; room];
        let copied = super::copy((START, frame_pointer), &mut room, read, |address| address == 0x40_1000).unwrap();
        assert!(room[..copied] == stack[..copied], "the copy is what was there");
        copied
    }

    #[test]
    fn a_chain_leads_to_the_stack_of_a_goroutine() {
        const GOROUTINE: u64 = 0xc0_0012_3450;
        let stack = |frames: &[(u64, u64)]| {
            let mut bytes = vec![0; 256];
            for (at, next) in frames {
                bytes[*at as usize..][..8].copy_from_slice(&next.to_le_bytes());
            }
            bytes
        };
        let left = super::left_by_frames;
        let leads = stack(&[(16, START + 64), (64, GOROUTINE)]);
        assert_eq!(left(START, START + 16, &leads), Some(GOROUTINE));
        assert_eq!(left(START, GOROUTINE, &leads), Some(GOROUTINE));
        // The stack of the thread may be near to it, above or below.
        assert_eq!(left(GOROUTINE + 512, GOROUTINE + 528, &stack(&[(16, GOROUTINE)])), Some(GOROUTINE));
        assert_eq!(left(GOROUTINE - 512, GOROUTINE - 496, &stack(&[(16, GOROUTINE)])), Some(GOROUTINE));
        // An end, circles, no word, the kernel's stack.
        for frames in [[(16, 0)], [(16, START + 16)], [(16, START + 8)], [(16, GOROUTINE + 4)], [(16, u64::MAX - 7)]] {
            assert_eq!(left(START, START + 16, &stack(&frames)), None, "{frames:x?}");
        }
        assert_eq!(left(START, START + 252, &leads), None);
        assert_eq!(left(0xffff_8000_0000_0000, GOROUTINE, &leads), None);
    }

    #[test]
    fn a_frame_has_a_caller_above_it() {
        let is_frame = |caller: u64, return_address: u64| {
            let words: Vec<u8> = [caller, return_address].into_iter().flat_map(u64::to_le_bytes).collect();
            super::is_frame(START, words.try_into().unwrap())
        };
        assert!(is_frame(START + 64, 0x40_1000) && is_frame(0, 0x40_1000));
        assert!(!is_frame(START, 0x40_1000) && !is_frame(START - 8, 0x40_1000) && !is_frame(START + 4, 0x40_1000));
        assert!(
            !is_frame(START + (2 << 20), 0x40_1000)
                && !is_frame(START + 64, 0)
                && !is_frame(START + 64, 0xffff_8000_0000_1000)
        );
    }

    #[test]
    fn no_more_is_copied_than_the_chain_needs() {
        assert_eq!(copied(&[16, 64, 400], 0, 4096), 1024);
        assert_eq!(copied(&[16, 1008], 0, 4096), 1024);
        // The return address of the last frame is in the next part.
        assert_eq!(copied(&[16, 1016], 0, 4096), 2048);
        assert_eq!(copied(&[16, 1500, 3000], 0, 8192), 4096);
        assert_eq!(copied(&[16, 64], 0, 512), 512);
    }

    #[test]
    fn without_its_end_all_there_is_is_copied() {
        // A function without a frame pointer may hold 0, or any other number, in the register.
        assert_eq!(copied(&[], 0, 4096), 4096);
        assert_eq!(copied(&[16, 64], 0x40_2000, 4096), 4096);
        assert_eq!(copied(&[64, 16], 0, 4096), 4096, "a chain goes up");
        assert_eq!(copied(&[64], 0, 4096), 4096, "zeros that the register points to");
        assert_eq!(copied(&[16, 6000], 0, 4096), 4096);
        assert_eq!(copied(&[], 0, 16 << 10), 8 << 10, "the stack's memory ends");
        assert_eq!(copied(&[16, 64], 0, 0), 0);
    }
}
