//! Unwinding of AArch64 code.
//!
//! Unwind tables (`.eh_frame`, `.debug_frame`) first; where there is no entry for an address, frame records (AAPCS64, 6.4.6): the frame pointer points
//! to the caller's frame pointer, and behind that is the return address. The innermost function may have no record, not yet or no longer; then
//! its return address is in the link register.

use super::skid::Calls;
use super::{AddressSpace, CallChain, DEPTH_MAX, StackMemory, end_by};
use crate::arch::aarch64::Registers;
use crate::cfi::registers::{Aarch64, Convention, RegisterFile};
use crate::cfi::rule::{Failure, Rules, Step};
use crate::model::StackEnd;

/// Bytes of an instruction.
const INSTRUCTION_BYTES: u64 = 4;
/// Bytes of a frame record.
const RECORD_BYTES: u64 = 16;

/// Unwind rules that were used lately.
#[derive(Default)]
pub(crate) struct Cache(Rules);

/// Unwinds from `registers` through pieces of memory.
pub(crate) fn unwind(
    space: &AddressSpace,
    cache: &mut Cache,
    registers: Registers,
    stack: StackMemory<'_>,
) -> CallChain {
    let mut read = |address: u64| stack.word(address);
    let (mut calls, mut interrupted) = (Vec::new(), Vec::new());
    let mut frame = RegisterFile::<Aarch64>::of(&registers);
    // The frame's code was called away, and not interrupted: the call is in front of the program counter.
    let mut has_called = false;
    // The frame pointer was saved by a function; it is not an arbitrary value of the innermost one.
    let mut is_saved = false;
    // No frame record is below this: a record does not show how much of the stack its function has above it, so behind one the stack pointer is not known.
    let mut floor = registers.sp;
    let mut piece = 0;
    loop {
        let (call, placed) = space.call(frame.ip().wrapping_sub(u64::from(has_called)));
        if placed.is_none() && !calls.is_empty() {
            return CallChain { calls, interrupted, end: StackEnd::BadAddress };
        }
        if !has_called && !calls.is_empty() {
            interrupted.push(calls.len() as u32);
        }
        calls.push(call);
        if placed.is_some_and(|placed| placed.is_root(call.address, has_called)) {
            return CallChain { calls, interrupted, end: StackEnd::Complete };
        }
        if calls.len() == DEPTH_MAX {
            return CallChain { calls, interrupted, end: StackEnd::TooDeep };
        }
        let by_table = placed.and_then(|placed| {
            let code = |address, into: &mut [u8]| placed.image.code(address, into);
            cache.0.step(&placed.image.frames, &code, (call.address, has_called), &mut frame, &mut read)
        });
        let by_table = by_table.filter(|step| *step != Err(Failure::Rule) || frame.get(Aarch64::SP).is_some());
        let is_covered = by_table.is_some();
        let step = by_table.unwrap_or_else(|| {
            let was_saved = std::mem::replace(&mut is_saved, true);
            if calls.len() == 1 && caller_by_register(space, &mut frame, &mut read) {
                is_saved = false;
                return Ok(if frame.ip() == 0 { Step::End } else { Step::Caller });
            }
            if frame.fp() == 0 && !was_saved {
                return Err(Failure::Rule);
            }
            floor = floor.max(frame.sp());
            // An interrupt has a stack of its own, and so has a goroutine that was left: each piece of memory is gone up once.
            if let Some(next) =
                frame.get(Aarch64::FP).and_then(|record| stack.piece(record)).filter(|next| *next > piece)
            {
                (piece, floor) = (next, 0);
            }
            caller_by_record(&mut frame, &mut floor, &mut read)
        });
        is_saved |= is_covered;
        let end = match step {
            Ok(step @ (Step::Caller | Step::Interrupted)) => {
                has_called = step == Step::Caller;
                continue;
            }
            Ok(Step::End) => StackEnd::Complete,
            Err(failure) => end_by(failure, is_covered, placed, stack),
        };
        return CallChain { calls, interrupted, end };
    }
}

/// Goes to the caller of the innermost function if that has no frame record, not yet or no longer, as its next instruction shows, or that it was
/// called from in front of the address in the link register, which is not that of the record.
fn caller_by_register(
    space: &AddressSpace,
    frame: &mut RegisterFile<Aarch64>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> bool {
    let Some(link) = frame.get(Aarch64::RETURN) else { return false };
    let caller = frame.caller_frame(link, frame.sp(), frame.fp());
    let instruction = |address| space.code(address).map(u32::from_le_bytes);
    let Some(next) = instruction(frame.ip()) else { return false };
    let pushed = instruction(frame.ip().wrapping_sub(INSTRUCTION_BYTES)).and_then(bytes_of_push);
    let mut has_record = || {
        let saved = frame.fp().checked_add(8).and_then(&mut *read);
        saved.is_some_and(|saved| frame.caller_frame(saved, 0, 0).ip() == caller.ip())
    };
    *frame = match pushed.filter(|_| sets_frame_pointer(next)) {
        Some(bytes) => frame.caller_frame(link, frame.sp().wrapping_add(bytes), frame.fp()),
        None if is_before_push(next) || is_return(next) => caller,
        None if is_called_from(space, frame.ip(), caller.ip()) && !has_record() => caller,
        None => return false,
    };
    true
}

/// Whether `return_address` follows a direct call of the small function that `address` is in.
fn is_called_from(space: &AddressSpace, address: u64, return_address: u64) -> bool {
    /// Assembly without a frame (memcpy and the like) is shorter.
    const FUNCTION_BYTES_MAX: u64 = 4096;
    Registers::target_of_call_before(space, return_address)
        .is_some_and(|target| address.wrapping_sub(target) < FUNCTION_BYTES_MAX)
}

/// Goes to the caller by the frame record that the frame pointer points to, above `floor`.
fn caller_by_record(
    frame: &mut RegisterFile<Aarch64>,
    floor: &mut u64,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Result<Step, Failure> {
    let record = frame.get(Aarch64::FP).ok_or(Failure::Rule)?;
    if record == 0 {
        return Ok(Step::End);
    }
    let above = record.checked_add(RECORD_BYTES).ok_or(Failure::Rule)?;
    if record < *floor {
        return Err(Failure::Rule);
    }
    *floor = above;
    let mut read = |address| read(address).ok_or(Failure::Unreadable(address));
    let (caller, return_address) = (read(record)?, read(record + 8)?);
    *frame = frame.caller_frame(return_address, 0, caller);
    frame.set(Aarch64::SP, None);
    Ok(if return_address == 0 { Step::End } else { Step::Caller })
}

/// Whether an instruction is in front of the one that pushes a frame record, or that one: `stp x29, x30, [sp, #-N]!`, `paciasp`, `pacibsp`, `bti`.
fn is_before_push(instruction: u32) -> bool {
    bytes_of_push(instruction).is_some() || matches!(instruction, 0xd503_233f | 0xd503_237f | 0xd503_245f | 0xd503_24df)
}

/// How many bytes `stp x29, x30, [sp, #-N]!` reserves, if that is the instruction.
fn bytes_of_push(instruction: u32) -> Option<u64> {
    let words = (instruction >> 15 & 0x7f) as i32;
    // Seven bits with a sign.
    let words = (words << 25) >> 25;
    (instruction & 0xffc0_7fff == 0xa980_7bfd && words < 0).then(|| u64::from(words.unsigned_abs()) * 8)
}

/// `add x29, sp, #N`, of which `mov x29, sp` is one.
fn sets_frame_pointer(instruction: u32) -> bool {
    instruction & 0xffc0_03ff == 0x9100_03fd
}

/// `ret`, `retaa`, `retab`.
fn is_return(instruction: u32) -> bool {
    instruction & 0xffff_f000 == 0xd65f_0000
}

fn instruction_before(space: &AddressSpace, address: u64) -> Option<u32> {
    space.code(address.wrapping_sub(INSTRUCTION_BYTES)).map(u32::from_le_bytes)
}

impl Calls for Registers {
    fn ip(&self) -> u64 {
        self.pc
    }

    fn entered(self, start: u64) -> Registers {
        Registers { pc: start, ..self }
    }

    fn return_address(&self, _top_of_stack: &[u8]) -> Option<u64> {
        Some(self.lr())
    }

    fn in_call_before(self, return_address: u64) -> Registers {
        Registers { pc: return_address.wrapping_sub(INSTRUCTION_BYTES), ..self }
    }

    /// `bl`.
    fn target_of_call_before(space: &AddressSpace, address: u64) -> Option<u64> {
        let instruction = instruction_before(space, address)?;
        let is_call = instruction & 0xfc00_0000 == 0x9400_0000;
        is_call.then(|| address.wrapping_sub(INSTRUCTION_BYTES).wrapping_add_signed(offset(instruction, 0, 26)))
    }

    /// `blr`, also with authentication.
    fn is_indirect_call_before(space: &AddressSpace, address: u64) -> bool {
        instruction_before(space, address).is_some_and(|instruction| instruction & 0xfeff_f000 == 0xd63f_0000)
    }

    fn only_jump(start: u64, code: &[u8], is_function: &dyn Fn(u64) -> bool) -> Option<u64> {
        let range = start..start.checked_add(code.len() as u64)?;
        let mut only = None;
        for (index, instruction) in code.as_chunks::<4>().0.iter().enumerate() {
            let instruction = u32::from_le_bytes(*instruction);
            // `br`, also with authentication.
            if is_return(instruction) || instruction & 0xfeff_f000 == 0xd61f_0000 {
                return None;
            }
            let Some(jump) = jump(instruction) else { continue };
            let target = start.wrapping_add(index as u64 * INSTRUCTION_BYTES).wrapping_add_signed(jump);
            if range.contains(&target) || !is_function(target) {
                continue;
            }
            if only.is_some_and(|only| only != target) {
                return None;
            }
            only = Some(target);
        }
        only
    }
}

/// How far a direct jump leads, if the instruction is one: `b`, `b.cond`, `cbz` and `cbnz`, `tbz` and `tbnz`.
fn jump(instruction: u32) -> Option<i64> {
    if instruction & 0xfc00_0000 == 0x1400_0000 {
        return Some(offset(instruction, 0, 26));
    }
    if instruction & 0xff00_0000 == 0x5400_0000 || instruction & 0x7e00_0000 == 0x3400_0000 {
        return Some(offset(instruction, 5, 19));
    }
    (instruction & 0x7e00_0000 == 0x3600_0000).then(|| offset(instruction, 5, 14))
}

/// An offset in instructions, in bytes: so many bits from `first` on, with a sign.
fn offset(instruction: u32, first: u32, bits: u32) -> i64 {
    let field = i64::from(instruction >> first) << (64 - bits) >> (64 - bits);
    field * INSTRUCTION_BYTES as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_around_a_frame_record() {
        // stp x29, x30, [sp, #-16]!; [sp, #-512]!; ldp x29, x30, [sp], #16; stp x19, x20, [sp, #-16]!
        let pushed = [0xa9bf_7bfd, 0xa9a0_7bfd, 0xa8c1_7bfd, 0xa9bf_53f3].map(bytes_of_push);
        assert_eq!(pushed, [Some(16), Some(512), None, None]);
        // paciasp, bti c; mov x29, sp; nop.
        assert!(is_before_push(0xd503_233f) && is_before_push(0xd503_245f) && !is_before_push(0x9100_03fd));
        // mov x29, sp; add x29, sp, #0x10; mov x0, sp.
        assert_eq!([0x9100_03fd, 0x9100_43fd, 0x9100_03e0].map(sets_frame_pointer), [true, true, false]);
        // ret, retaa; br x16.
        assert_eq!([0xd65f_03c0, 0xd65f_0bff, 0xd61f_0200].map(is_return), [true, true, false]);
    }

    #[test]
    fn offsets_of_jumps() {
        for (instruction, bytes) in [
            (0x1400_0001, Some(4)),      // b .+4
            (0x17ff_ffff, Some(-4)),     // b .-4
            (0x54ff_ffe1, Some(-4)),     // b.ne .-4
            (0xb400_0040, Some(8)),      // cbz x0, .+8
            (0x3507_ffe0, Some(0xfffc)), // cbnz w0, .+0xfffc
            (0x3707_ffe0, Some(-4)),     // tbnz w0, #0, .-4
            (0x9400_0001, None),         // bl .+4
            (0xd503_201f, None),         // nop
        ] {
            assert_eq!(jump(instruction), bytes, "{instruction:x}");
        }
    }

    #[test]
    fn the_only_jump_out_of_a_function() {
        const START: u64 = 0x1000;
        let jump = |code: &[u32]| {
            let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
            Registers::only_jump(START, &code, &|address| matches!(address, 0xf00 | 0x1080))
        };
        // b 0xf00; cbz x0, 0x1004 and b 0xf00; b.eq 0x1080 and b 0xf00.
        assert_eq!(jump(&[0x17ff_ffc0]), Some(0xf00));
        assert_eq!(jump(&[0xb400_0020, 0x17ff_ffbf]), Some(0xf00));
        assert_eq!(jump(&[0x5400_0400, 0x17ff_ffbf]), None, "two functions");
        assert_eq!(jump(&[0x17ff_ffc0, 0xd65f_03c0]), None, "a return");
        assert_eq!(jump(&[0x17ff_ffc0, 0xd61f_0200]), None, "an indirect jump");
        assert_eq!(jump(&[0x1400_0100]), None, "no function");
    }
}
