//! A step by a kernel's own tables (ORC), and what is done where these have no rule, or one of other code than runs: a kernel patches itself when it
//! boots (`arch/x86/kernel/alternative.c`), and its tables describe the code as it was linked. Seen in Debian's 5.10 to 7.2.
//!
//! | where | the tables | what is on the stack |
//! |---|---|---|
//! | a thunk for an indirect call (`__x86_indirect_thunk_*`), at its start | no rule | the return address of the call |
//! | the same behind its inner `call`, which overwrites its own return address by the target | no rule | an address in the thunk, then the return address |
//! | the calls that fill the predictor of returns (`FILL_RETURN_BUFFER` in `__switch_to_asm`) | of several variants, mixed | up to two words more, or less, than the rule expects |
//! | a return to the first instruction of a function, which no call precedes (`ret_from_fork`) | no rule in front of it | what that function has at its start |
//!
//! A word counts as a return address only if the tables have a rule for the byte in front of it: what a process leaves on a stack is not taken for one.

use super::AddressSpace;
use crate::arch::x86_64::orc::{OrcRegisters, OrcStep, OrcTable};

/// A call within a function leads no further than this.
const INNER_CALL_BYTES_MAX: u64 = 64;
const WORD: u64 = 8;
/// By how much the rule of another variant of the code may be wrong: its calls and those that run push up to two words.
const MOVED: [i64; 4] = [8, -8, 16, -16];

/// Goes from the code at `address`, in the terms of the table, to its caller. `has_called`: it has called another function, so a compiler has described it.
pub(super) fn step(
    space: &AddressSpace,
    orc: &OrcTable,
    (address, has_called): (u64, bool),
    registers: &mut OrcRegisters,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> OrcStep {
    let before = *registers;
    let step = orc.step(address, registers, read);
    let better = match step {
        _ if has_called => None,
        OrcStep::Unknown | OrcStep::Start if orc.is_without_rule(address) => by_top_of_stack(space, &before, read),
        OrcStep::Caller if !may_return_to(space, registers.ip) => MOVED.into_iter().find_map(|by| {
            let mut moved = before;
            moved.sp = before.sp.wrapping_add_signed(by);
            let is_call = orc.step(address, &mut moved, read) == OrcStep::Caller;
            (is_call && is_return_address(space, moved.ip)).then_some(moved)
        }),
        _ => None,
    };
    match better {
        Some(caller) => {
            *registers = caller;
            OrcStep::Caller
        }
        None => step,
    }
}

/// Whether a return to this address begins a function, and does not continue one.
pub(super) fn is_start(space: &AddressSpace, address: u64) -> bool {
    let (before, placed) = space.call(address.wrapping_sub(1));
    let orc = placed.and_then(|placed| placed.image.orc.as_ref());
    orc.is_some_and(|orc| orc.is_start(before.address.wrapping_add(1)))
}

/// The caller of code that has pushed nothing, or has called itself only.
fn by_top_of_stack(
    space: &AddressSpace,
    registers: &OrcRegisters,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<OrcRegisters> {
    // At the entry of a system call the stack is still the process's.
    if (registers.ip ^ registers.sp) >> 63 != 0 {
        return None;
    }
    let mut at = registers.sp;
    let mut ip = read(at)?;
    if !is_return_address(space, ip) && ip.abs_diff(registers.ip) < INNER_CALL_BYTES_MAX {
        at = at.checked_add(WORD)?;
        ip = read(at)?;
    }
    let sp = at.checked_add(WORD)?;
    is_return_address(space, ip).then(|| OrcRegisters::new(ip, sp, registers.bp))
}

/// Whether an address may be that of code behind a call: code that is in no image, of a module or made by the kernel, too.
fn may_return_to(space: &AddressSpace, address: u64) -> bool {
    /// From here on are the kernel and its modules (`Documentation/arch/x86/x86_64/mm.rst`).
    const KERNEL_START: u64 = 0xffff_ffff_8000_0000;
    let (call, placed) = space.call(address.wrapping_sub(1));
    let next = call.address.wrapping_add(1);
    match placed.map(|placed| &placed.image.orc) {
        Some(Some(orc)) => orc.has_rule(call.address) || orc.is_start(next),
        Some(None) => true,
        None => address >= KERNEL_START,
    }
}

/// Whether there is code of the kernel in front of an address that may have called.
fn is_return_address(space: &AddressSpace, address: u64) -> bool {
    let (call, placed) = space.call(address.wrapping_sub(1));
    placed.and_then(|placed| placed.image.orc.as_ref()).is_some_and(|orc| orc.has_rule(call.address))
}
