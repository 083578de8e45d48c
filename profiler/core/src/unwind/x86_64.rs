//! Unwinding of x86-64 code of 64 bits.
//!
//! Unwind tables (`.eh_frame`, `.debug_frame`, Linux's ORC) first; where there is no entry for an address, frame
//! pointers, with a check of the instruction in the innermost function: before `push rbp`, after it
//! and at `ret` the frame pointer still or already belongs to the caller; in assembly without a
//! frame it always does.

use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder as _};

use super::{AddressSpace, CallChain, DEPTH_MAX, Placed, StackMemory};
use crate::arch::x86_64::Registers;
use crate::arch::x86_64::orc::{OrcRegisters, OrcStep};
use crate::model::StackEnd;

/// Unwind rules that were used lately.
#[derive(Default)]
pub(crate) struct Cache(Box<CacheX86_64>);

/// Unwinds from `registers` through pieces of memory.
pub(crate) fn unwind(
    space: &AddressSpace,
    cache: &mut Cache,
    registers: Registers,
    stack: StackMemory<'_>,
) -> CallChain {
    let mut read = |address: u64| stack.word(address).ok_or(());
    // Other registers are known only for a function that was interrupted.
    let mut interrupted = None;
    // The frame pointer was saved by a function; it is not an arbitrary value of the innermost one.
    let mut is_saved = false;
    let mut calls = Vec::new();
    let mut frame = FrameAddress::from_instruction_pointer(registers.rip);
    let mut unwound = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
    loop {
        let (call, placed) = space.call(frame.address_for_lookup());
        if placed.is_none() && !calls.is_empty() {
            return CallChain { calls, end: StackEnd::BadAddress };
        }
        calls.push(call);
        if placed.is_some_and(|placed| placed.image.is_root(call.address)) {
            return CallChain { calls, end: StackEnd::Complete };
        }
        if calls.len() == DEPTH_MAX {
            return CallChain { calls, end: StackEnd::TooDeep };
        }
        if let Some(orc) = placed.and_then(|placed| placed.image.orc.as_ref()) {
            let known = OrcRegisters::new(unwound.ip(), unwound.get(Reg::RSP), unwound.get(Reg::RBP));
            let mut caller = interrupted.take().unwrap_or(known);
            let step = orc.step(call.address, &mut caller, &mut |address| stack.word(address));
            (unwound, interrupted) = (UnwindRegsX86_64::new(caller.ip, caller.sp, caller.bp), Some(caller));
            let end = match step {
                OrcStep::Caller => match FrameAddress::from_return_address(caller.ip) {
                    Some(next) => {
                        frame = next;
                        continue;
                    }
                    None => StackEnd::Complete,
                },
                OrcStep::Interrupted => {
                    frame = FrameAddress::from_instruction_pointer(caller.ip);
                    continue;
                }
                OrcStep::Start => StackEnd::Complete,
                OrcStep::CannotRead(address) => stack.end_at(address).unwrap_or(StackEnd::BadAddress),
                OrcStep::Unknown => StackEnd::NoUnwindInfo,
            };
            return CallChain { calls, end };
        }
        interrupted = None;
        let by_eh = placed.is_some_and(|placed| placed.image.is_covered(call.address));
        let covered = by_eh || placed.is_some_and(|placed| placed.image.is_covered_by_debug(call.address));
        let next = if let Some(placed) = placed.filter(|_| covered) {
            is_saved = true;
            let tables = placed.image.tables();
            let unwinder = if by_eh { &tables.eh } else { &tables.debug };
            let linked = match frame {
                FrameAddress::InstructionPointer(_) => Some(FrameAddress::from_instruction_pointer(call.address)),
                FrameAddress::ReturnAddress(_) => FrameAddress::from_return_address(call.address.wrapping_add(1)),
            };
            let linked = linked.ok_or(framehop::Error::ReturnAddressIsNull);
            linked.and_then(|linked| unwinder.unwind_frame(linked, &mut unwound, &mut cache.0, &mut read))
        } else {
            let innermost = placed.filter(|_| calls.len() == 1);
            match innermost.and_then(|placed| caller_by_instruction(space, placed, &mut unwound, &mut read)) {
                Some(next) => Ok(Some(next)),
                None if unwound.get(Reg::RBP) == 0 && !is_saved => Err(framehop::Error::DidNotAdvance),
                None => {
                    is_saved = true;
                    caller_by_frame_pointer(&mut unwound, &mut read)
                }
            }
        };
        let end = match next {
            Ok(Some(return_address)) => match FrameAddress::from_return_address(return_address) {
                Some(next) => {
                    frame = next;
                    continue;
                }
                None => StackEnd::Complete,
            },
            Ok(None) | Err(framehop::Error::ReturnAddressIsNull) => StackEnd::Complete,
            Err(framehop::Error::CouldNotReadStack(address)) => {
                let otherwise = if covered { StackEnd::BadAddress } else { StackEnd::NoUnwindInfo };
                stack.end_at(address).unwrap_or(otherwise)
            }
            Err(_) if covered => StackEnd::BadAddress,
            Err(_) => StackEnd::NoUnwindInfo,
        };
        return CallChain { calls, end };
    }
}

/// The return address of the innermost function if it has no frame, not yet or no longer. Judged by
/// the next instruction, or by a word on top of the stack that can only be the return address.
/// Updates the registers to the caller's.
fn caller_by_instruction(
    space: &AddressSpace,
    placed: &Placed,
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const PUSH_RBP: u8 = 0x55;
    const RET: u8 = 0xc3;
    const MOV_RBP_RSP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];
    let address = registers.ip();
    let mut code = [0; ENDBR64.len()];
    let count = placed.image.code(address.wrapping_sub(placed.bias), &mut code);
    let code = &code[..count];
    let stack_pointer = registers.get(Reg::RSP);
    let saved = MOV_RBP_RSP.iter().any(|instruction| code.starts_with(instruction));
    let at = if saved { stack_pointer.checked_add(8)? } else { stack_pointer };
    let return_address = read(at).ok()?;
    let frameless = saved
        || matches!(code, [PUSH_RBP | RET, ..])
        || code.starts_with(&ENDBR64)
        || is_called_from(space, address, return_address);
    if !frameless {
        return None;
    }
    if saved {
        registers.set(Reg::RBP, read(stack_pointer).ok()?);
    }
    registers.set(Reg::RSP, at.checked_add(8)?);
    registers.set_ip(return_address);
    Some(return_address)
}

/// Whether `return_address` follows a direct call of the small function that `address` is in.
fn is_called_from(space: &AddressSpace, address: u64, return_address: u64) -> bool {
    /// Assembly without a frame (memcpy and the like) is shorter.
    const FUNCTION_BYTES_MAX: u64 = 4096;
    target_of_call_before(space, return_address).is_some_and(|target| address.wrapping_sub(target) < FUNCTION_BYTES_MAX)
}

/// The return address beside the saved frame pointer; `None` at the chain's end. framehop's own rule
/// for an address without table treats the innermost function as one without frame, which is right
/// for hand-written assembly and wrong for a compiler's code.
///
/// A frame pointer that was saved as 0 marks the start of a thread. In an innermost function without a frame pointer,
/// the register may have any value.
fn caller_by_frame_pointer(
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Result<Option<u64>, framehop::Error> {
    let frame = registers.get(Reg::RBP);
    if frame == 0 {
        return Ok(None);
    }
    let stack_pointer = frame.checked_add(16).ok_or(framehop::Error::IntegerOverflow)?;
    if stack_pointer <= registers.get(Reg::RSP) {
        return Err(framehop::Error::FramepointerUnwindingMovedBackwards);
    }
    let mut read = |address| read(address).map_err(|()| framehop::Error::CouldNotReadStack(address));
    let (caller_frame, return_address) = (read(frame)?, read(frame + 8)?);
    registers.set(Reg::RSP, stack_pointer);
    registers.set(Reg::RBP, caller_frame);
    registers.set_ip(return_address);
    Ok((return_address != 0).then_some(return_address))
}

/// The target of the direct call that ends at `address`, if there is one.
pub fn target_of_call_before(space: &AddressSpace, address: u64) -> Option<u64> {
    const CALL: u8 = 0xe8;
    const CALL_BYTES: usize = 5;
    let [CALL, offset @ ..] = space.code::<CALL_BYTES>(address.wrapping_sub(CALL_BYTES as u64))? else {
        return None;
    };
    Some(address.wrapping_add_signed(i64::from(i32::from_le_bytes(offset))))
}
