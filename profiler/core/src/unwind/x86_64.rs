//! Unwinding of x86-64 code of 64 bits.
//!
//! Unwind tables (`.eh_frame`, `.debug_frame`, Linux's ORC) first; where there is no entry for an address, frame
//! pointers, with a check of the instruction in the innermost function: before `push rbp`, after it
//! and at `ret` the frame pointer still or already belongs to the caller; in assembly without a
//! frame it always does.

use super::skid::Calls;
use super::{AddressSpace, CallChain, DEPTH_MAX, Placed, StackMemory, end_by, orc};
use crate::arch::x86_64::Registers;
use crate::arch::x86_64::orc::{OrcRegisters, OrcStep};
use crate::cfi::registers::{Convention, RegisterFile, X86_64};
use crate::cfi::rule::{Failure, Rules, Step};
use crate::model::StackEnd;

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
    let mut frame = RegisterFile::<X86_64>::of(&registers);
    // Where Linux's own tables have led, with the place of the registers that they find for an interrupted function.
    let mut by_orc = OrcRegisters::of(&registers);
    // The frame's code was called away, and not interrupted: the call is in front of the instruction pointer.
    let mut has_called = false;
    // The frame pointer was saved by a function; it is not an arbitrary value of the innermost one.
    let mut is_saved = false;
    // Where the stack begins on which the frame is.
    let mut stack_start = registers.rsp;
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
        if has_called && placed.is_some_and(|placed| placed.image.switches_stack(call.address)) {
            let Some(caller) = caller_on_other_stack(space, stack_start, &frame, &mut read) else {
                return CallChain { calls, interrupted, end: StackEnd::OtherStack };
            };
            (frame, stack_start, is_saved) = (caller, caller.sp(), true);
            by_orc = OrcRegisters::new(frame.ip(), frame.sp(), frame.fp());
            continue;
        }
        if let Some(orc) = placed.and_then(|placed| placed.image.orc.as_ref()) {
            let step = orc::step(space, orc, (call.address, has_called), &mut by_orc, &mut read);
            frame = RegisterFile::of_frame(by_orc.ip, by_orc.sp, by_orc.bp);
            has_called = step == OrcStep::Caller && !orc::is_start(space, by_orc.ip);
            let end = match step {
                OrcStep::Caller | OrcStep::Interrupted if frame.ip() != 0 => continue,
                OrcStep::Caller | OrcStep::Interrupted | OrcStep::Start => StackEnd::Complete,
                OrcStep::CannotRead(address) => stack.end_at(address).unwrap_or(StackEnd::BadAddress),
                OrcStep::Unknown => StackEnd::NoUnwindInfo,
            };
            return CallChain { calls, interrupted, end };
        }
        let by_table = placed.and_then(|placed| {
            let code = |address, into: &mut [u8]| placed.image.code(address, into);
            cache.0.step(&placed.image.frames, &code, (call.address, has_called), &mut frame, &mut read)
        });
        let is_covered = by_table.is_some();
        let step = by_table.unwrap_or_else(|| {
            let innermost = placed.filter(|_| calls.len() == 1);
            let was_saved = std::mem::replace(&mut is_saved, true);
            match innermost.and_then(|placed| caller_by_instruction(space, placed, &mut frame, &mut read)) {
                Some(step) => {
                    is_saved = false;
                    Ok(step)
                }
                None if frame.fp() == 0 && !was_saved => Err(Failure::Rule),
                None if placed.is_some_and(|placed| placed.image.encodes_registers) => {
                    caller_in_kernel(&mut frame, &mut read)
                }
                None => caller_by_frame_pointer(&mut frame, &mut read),
            }
        });
        is_saved |= is_covered;
        let end = match step {
            Ok(step @ (Step::Caller | Step::Interrupted)) => {
                has_called = step == Step::Caller;
                by_orc = OrcRegisters::new(frame.ip(), frame.sp(), frame.fp());
                continue;
            }
            Ok(Step::End) => StackEnd::Complete,
            Err(failure) => end_by(failure, is_covered, placed, stack),
        };
        return CallChain { calls, interrupted, end };
    }
}

/// The return address of the innermost function if it has no frame, not yet or no longer. Judged by
/// the next instruction, or by a word on top of the stack that can only be the return address.
/// Updates the registers to the caller's.
fn caller_by_instruction(
    space: &AddressSpace,
    placed: &Placed,
    frame: &mut RegisterFile<X86_64>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<Step> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const PUSH_RBP: u8 = 0x55;
    const RET: u8 = 0xc3;
    const MOV_RBP_RSP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];
    let (address, stack_pointer) = (frame.ip(), frame.sp());
    let mut code = [0; ENDBR64.len()];
    let count = placed.image.code(address.wrapping_sub(placed.bias), &mut code);
    let code = &code[..count];
    let saved = MOV_RBP_RSP.iter().any(|instruction| code.starts_with(instruction));
    let at = if saved { stack_pointer.checked_add(8)? } else { stack_pointer };
    let return_address = read(at)?;
    let frameless = saved
        || matches!(code, [PUSH_RBP | RET, ..])
        || code.starts_with(&ENDBR64)
        || is_called_from(space, address, return_address);
    if !frameless {
        return None;
    }
    let frame_pointer = if saved { read(stack_pointer)? } else { frame.fp() };
    *frame = RegisterFile::of_frame(return_address, at.checked_add(8)?, frame_pointer);
    Some(if return_address == 0 { Step::End } else { Step::Caller })
}

/// Whether `return_address` follows a direct call of the small function that `address` is in.
fn is_called_from(space: &AddressSpace, address: u64, return_address: u64) -> bool {
    /// Assembly without a frame (memcpy and the like) is shorter.
    const FUNCTION_BYTES_MAX: u64 = 4096;
    Registers::target_of_call_before(space, return_address)
        .is_some_and(|target| address.wrapping_sub(target) < FUNCTION_BYTES_MAX)
}

/// The return address beside the saved frame pointer. The other registers are not known after it.
///
/// A frame pointer that was saved as 0 marks the start of a thread. In an innermost function without a frame pointer,
/// the register may have any value.
fn caller_by_frame_pointer(
    frame: &mut RegisterFile<X86_64>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Result<Step, Failure> {
    let pointer = frame.get(X86_64::FP).ok_or(Failure::Rule)?;
    if pointer == 0 {
        return Ok(Step::End);
    }
    let stack_pointer = pointer.checked_add(16).ok_or(Failure::Rule)?;
    if stack_pointer <= frame.sp() {
        return Err(Failure::Rule);
    }
    let mut read = |address| read(address).ok_or(Failure::Unreadable(address));
    let (caller_frame, return_address) = (read(pointer)?, read(pointer + 8)?);
    *frame = RegisterFile::of_frame(return_address, stack_pointer, caller_frame);
    Ok(if return_address == 0 { Step::End } else { Step::Caller })
}

/// The caller of a function of a Linux whose functions keep the frame pointer. Where the kernel was entered, that is the place of the registers at that time,
/// with its lowest bit set (`ENCODE_FRAME_POINTER` of `arch/x86/include/asm/frame.h`). Interrupts have a stack of their own, which may be above or below.
fn caller_in_kernel(
    frame: &mut RegisterFile<X86_64>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Result<Step, Failure> {
    /// Bytes of a kernel stack, and its alignment (`THREAD_SIZE`).
    const STACK_BYTES: u64 = 16 << 10;
    /// Bytes of `struct pt_regs`, and what may be behind it.
    const BYTES: u64 = 168;
    const PADDINGS: [u64; 2] = [0, 16];
    let pointer = frame.get(X86_64::FP).ok_or(Failure::Rule)?;
    if pointer & 1 == 0 {
        let is_other_stack = pointer != 0 && pointer / STACK_BYTES != frame.sp() / STACK_BYTES;
        if !is_other_stack {
            return caller_by_frame_pointer(frame, read);
        }
        let stack_pointer = pointer.checked_add(16).ok_or(Failure::Rule)?;
        let mut read = |address| read(address).ok_or(Failure::Unreadable(address));
        let (caller_frame, return_address) = (read(pointer)?, read(pointer + 8)?);
        *frame = RegisterFile::of_frame(return_address, stack_pointer, caller_frame);
        return Ok(if return_address == 0 { Step::End } else { Step::Caller });
    }
    let registers = pointer - 1;
    // At the top of a stack they are those of a process, or of a thread of the kernel that has just been made.
    if PADDINGS.iter().any(|padding| registers.wrapping_add(BYTES + padding).is_multiple_of(STACK_BYTES)) {
        return Ok(Step::End);
    }
    let mut read = |at: u64| {
        let address = registers.checked_add(at).ok_or(Failure::Rule)?;
        read(address).ok_or(Failure::Unreadable(address))
    };
    let (bp, ip, cs, sp) = (read(32)?, read(128)?, read(136)?, read(152)?);
    if cs & 3 != 0 || ip == 0 {
        return Ok(Step::End);
    }
    *frame = RegisterFile::of_frame(ip, sp, bp);
    Ok(Step::Interrupted)
}

/// The caller of a function that has called another one on another stack, which begins at `start`: it has set the frame pointer before,
/// and those that run now have only saved it.
fn caller_on_other_stack(
    space: &AddressSpace,
    start: u64,
    frame: &RegisterFile<X86_64>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<RegisterFile<X86_64>> {
    let this = start..frame.sp();
    let mut pointer = frame.get(X86_64::FP)?;
    while this.contains(&pointer) {
        let next = read(pointer)?;
        if next <= pointer && this.contains(&next) {
            return None;
        }
        pointer = next;
    }
    let (saved, return_address) = (read(pointer)?, read(pointer.checked_add(8)?)?);
    space.find(return_address)?;
    Some(RegisterFile::of_frame(return_address, pointer.checked_add(16)?, saved))
}

impl Calls for Registers {
    fn ip(&self) -> u64 {
        self.rip
    }

    fn entered(self, start: u64) -> Registers {
        Registers { rip: start, ..self }
    }

    fn return_address(&self, top_of_stack: &[u8]) -> Option<u64> {
        top_of_stack.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn in_call_before(self, return_address: u64) -> Registers {
        // Within the call, so that the lookup finds the line of the call and not the one after it.
        Registers { rip: return_address.wrapping_sub(1), rsp: self.rsp.wrapping_add(8), ..self }
    }

    fn target_of_call_before(space: &AddressSpace, address: u64) -> Option<u64> {
        const CALL: u8 = 0xe8;
        const CALL_BYTES: usize = 5;
        let [CALL, offset @ ..] = space.code::<CALL_BYTES>(address.wrapping_sub(CALL_BYTES as u64))? else {
            return None;
        };
        Some(address.wrapping_add_signed(i64::from(i32::from_le_bytes(offset))))
    }

    /// `call` of a register or of a word in memory (FF /2; Intel SDM volume 2, 2.1.5).
    fn is_indirect_call_before(space: &AddressSpace, address: u64) -> bool {
        /// The longest without a prefix: opcode, ModRM, SIB, displacement of 4 bytes.
        const CALL_BYTES_MAX: usize = 7;
        let Some(code) = space.code::<CALL_BYTES_MAX>(address.wrapping_sub(CALL_BYTES_MAX as u64)) else {
            return false;
        };
        (2..=CALL_BYTES_MAX).any(|bytes| {
            let call = &code[CALL_BYTES_MAX - bytes..];
            call[0] == 0xff && indirect_call_bytes(call[1], call.get(2).copied()) == Some(bytes)
        })
    }

    fn only_jump(start: u64, code: &[u8], is_function: &dyn Fn(u64) -> bool) -> Option<u64> {
        only_jump(start, code, is_function)
    }
}

/// Where code at `start` leaves its function, if it has no return and no indirect jump, and direct jumps to the start of only one other function. It is not
/// decoded: each byte may begin an instruction.
fn only_jump(start: u64, code: &[u8], is_function: impl Fn(u64) -> bool) -> Option<u64> {
    let end = start.checked_add(code.len() as u64)?;
    let mut only = None;
    for (at, byte) in code.iter().enumerate() {
        let after = &code[at + 1..];
        let near = |skipped: usize| {
            let offset = i32::from_le_bytes(*after.get(skipped..)?.first_chunk()?);
            Some((at + 1 + skipped + 4, i64::from(offset)))
        };
        let short = || Some((at + 2, i64::from(*after.first()? as i8)));
        let jump = match (byte, after.first()) {
            // `ret` near and far, with and without a number.
            (0xc2 | 0xc3 | 0xca | 0xcb, _) => return None,
            // `jmp` by a register or memory, and a far one by memory: FF /4 and /5.
            (0xff, Some(modrm)) if modrm >> 3 & 7 == 4 || modrm >> 3 & 7 == 5 && modrm >> 6 != 3 => return None,
            (0xe9, _) => near(0),
            (0x0f, Some(0x80..=0x8f)) => near(1),
            (0xeb | 0x70..=0x7f, _) => short(),
            _ => None,
        };
        let Some((length, offset)) = jump else { continue };
        let target = start.wrapping_add(length as u64).wrapping_add_signed(offset);
        if (start..end).contains(&target) || !is_function(target) {
            continue;
        }
        if only.is_some_and(|only| only != target) {
            return None;
        }
        only = Some(target);
    }
    only
}

/// The length of `FF /2` with this ModRM and this byte after it.
fn indirect_call_bytes(modrm: u8, next: Option<u8>) -> Option<usize> {
    const CALL: u8 = 2;
    let (mode, operation, base) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let has_sib = mode != 3 && base == 4;
    let displacement = match (mode, base) {
        (0, 5) | (2, _) => 4,
        (0, 4) if next.is_some_and(|sib| sib & 7 == 5) => 4,
        (1, _) => 1,
        _ => 0,
    };
    (operation == CALL).then_some(2 + usize::from(has_sib) + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_jump_out_of_a_function() {
        const START: u64 = 0x1000;
        // test $1, %sil; jne 1; jmp 0xf00; 1: call 0x2000.
        let code: &[u8] = &[0x40, 0xf6, 0xc6, 1, 0x75, 5, 0xe9, 0xf5, 0xfe, 0xff, 0xff, 0xe8, 0xf0, 0x0f, 0, 0];
        let jump = |code: &[u8]| only_jump(START, code, |address| matches!(address, 0xf00 | 0x1080 | 0x2000 | START));
        assert_eq!(jump(code), Some(0xf00));
        // The same by `jne`, and by `jmp` twice.
        assert_eq!(jump(&[0x0f, 0x85, 0xfa, 0xfe, 0xff, 0xff]), Some(0xf00));
        assert_eq!(jump(&[0xe9, 0xfb, 0xfe, 0xff, 0xff, 0xe9, 0xf6, 0xfe, 0xff, 0xff]), Some(0xf00));
        assert_eq!(jump(&[0xeb, 0x7e]), Some(0x1080));
        // A return, a byte that may be one, an indirect jump, another function, itself, no function, one that is cut off.
        for more in [&[0xc3][..], &[0xc2, 8, 0], &[0xb8, 0xc3, 0, 0, 0], &[0xff, 0xe0], &[0xff, 0x28], &[0xeb, 0x6e]] {
            assert_eq!(jump(&[code, more].concat()), None, "{more:x?}");
        }
        for other in [&[0xeb, 0xfe][..], &[0xe9, 0, 1, 0, 0], &[0xe9, 0xfb, 0xfe, 0xff], &[0xeb], &[0x0f], &[0xff], &[]]
        {
            assert_eq!(jump(other), None, "{other:x?}");
        }
        assert_eq!(only_jump(u64::MAX, code, |_| true), None);
    }

    #[test]
    fn frame_pointers_lead_through_interrupts_of_a_kernel() {
        const STACK: u64 = 0xffff_c900_0000_4000;
        const OF_INTERRUPTS: u64 = 0xffff_c900_0000_0000;
        let top = STACK + (16 << 10);
        // On the stack of interrupts, whose caller has its frame on the task's stack; there registers were saved, and those are in a function of the kernel
        // that was called by the system call.
        let saved = STACK + 0x1000;
        let words = [
            (OF_INTERRUPTS + 0x100, STACK + 0x800),
            (OF_INTERRUPTS + 0x108, 0x11),
            (STACK + 0x800, saved | 1),
            (STACK + 0x808, 0x22),
            (saved + 32, STACK + 0x2000),
            (saved + 128, 0x33),
            (saved + 136, 0x10),
            (saved + 152, STACK + 0x1800),
            (STACK + 0x2000, (top - 168) | 1),
            (STACK + 0x2008, 0x44),
        ];
        let mut read = |address| words.iter().find(|(at, _)| *at == address).map(|(_, word)| *word);
        let mut frame = RegisterFile::of_frame(0x10, OF_INTERRUPTS + 0x80, OF_INTERRUPTS + 0x100);
        let mut steps = Vec::new();
        for _ in 0..4 {
            let step = caller_in_kernel(&mut frame, &mut read).unwrap();
            steps.push((step, frame.ip(), frame.sp()));
        }
        let expected = [
            (Step::Caller, 0x11, OF_INTERRUPTS + 0x110),
            (Step::Caller, 0x22, STACK + 0x810),
            (Step::Interrupted, 0x33, STACK + 0x1800),
            (Step::Caller, 0x44, STACK + 0x2010),
        ];
        assert_eq!(steps, expected);
        assert_eq!(caller_in_kernel(&mut frame, &mut read), Ok(Step::End));
        // Registers that were not copied, and a chain that goes down on one stack.
        let mut frame = RegisterFile::of_frame(0x10, STACK, STACK + 0x100);
        let mut torn = |address| (address == STACK + 0x100).then_some(STACK + 0x201);
        assert!(caller_in_kernel(&mut frame, &mut torn).is_err());
        let mut frame = RegisterFile::of_frame(0x10, STACK + 0x200, STACK + 0x100);
        assert_eq!(caller_in_kernel(&mut frame, &mut |_| Some(STACK)), Err(Failure::Rule));
        let mut frame = RegisterFile::of_frame(0x10, STACK + 0x200, STACK + 0x301);
        assert_eq!(caller_in_kernel(&mut frame, &mut |_| None), Err(Failure::Unreadable(STACK + 0x320)));
    }

    #[test]
    fn lengths_of_indirect_calls() {
        for (call, bytes) in [
            (&[0xff, 0xd0][..], Some(2)),               // call *%rax
            (&[0xff, 0x10], Some(2)),                   // call *(%rax)
            (&[0xff, 0x50, 0x18], Some(3)),             // call *0x18(%rax)
            (&[0xff, 0x54, 0x24, 0x08], Some(4)),       // call *8(%rsp)
            (&[0xff, 0x15, 1, 2, 3, 4], Some(6)),       // call *0x4030201(%rip)
            (&[0xff, 0x93, 1, 2, 3, 4], Some(6)),       // call *0x4030201(%rbx)
            (&[0xff, 0x94, 0xc3, 1, 2, 3, 4], Some(7)), // call *0x4030201(%rbx,%rax,8)
            (&[0xff, 0x14, 0xc5, 1, 2, 3, 4], Some(7)), // call *0x4030201(,%rax,8)
            (&[0xff, 0xe0], None),                      // jmp *%rax
        ] {
            assert_eq!(indirect_call_bytes(call[1], call.get(2).copied()), bytes, "{call:x?}");
        }
    }
}
