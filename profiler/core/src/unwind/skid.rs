//! Corrects samples whose registers are late: an emulator that translates whole blocks can stop
//! only between two of them, and is at the start of the next one while the time went into the
//! one before.
//!
//! Within a function the difference is some instructions. It matters at calls, returns and jumps to other functions: without
//! this, all the time of a function that is one block (a write to a device and its return) would count
//! for its caller.
//!
//! Which block was before is known exactly if the emulator has shown it. Otherwise it is inferred from the code before the return address:
//! after an indirect call, or where a function has jumped to another one, that shows too little, and the sample stays as it is.

use super::x86_64::{function_that_returns, is_indirect_call_before, target_of_call_before};
use super::{AddressSpace, CallChain, StackMemory, UnwindCache};
use crate::arch::x86_64::Registers;
use crate::event::Skid;

/// Unwinds from the corrected registers.
pub(crate) fn unwind(
    space: &AddressSpace,
    cache: &mut UnwindCache,
    registers: Registers,
    stack: StackMemory<'_>,
    skid: Skid,
) -> CallChain {
    let top = stack.0.first().map_or(&[][..], |(_, bytes)| bytes);
    match correction(space, registers, top, skid) {
        Correction::None => space.unwind(cache, &registers.into(), stack),
        Correction::InCaller(caller) => space.unwind(cache, &caller.into(), stack),
        Correction::InCallee(callee) => {
            let mut chain = space.unwind(cache, &registers.into(), stack);
            chain.calls.insert(0, space.at(callee));
            chain.interrupted.iter_mut().for_each(|index| *index += 1);
            chain
        }
        Correction::InJump { entered, block } => {
            let mut chain = space.unwind(cache, &entered.into(), stack);
            if let Some(innermost) = chain.calls.first_mut() {
                *innermost = space.at(block);
            }
            chain
        }
    }
}

/// The correction of a sample's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correction {
    /// They are right.
    None,
    /// The function at `rip` has just been called: the time was its caller's, whose registers these are.
    InCaller(Registers),
    /// A function has just returned to `rip`: the time was its, at this address or after it.
    InCallee(u64),
    /// Another function has jumped to the one at `rip` as its last action: the time was that one's.
    InJump {
        /// The registers, as far as unwinding needs them, when that one was entered: its stack was the same.
        entered: Registers,
        /// The block of instructions that jumped.
        block: u64,
    },
}

/// The correction for a sample; `stack` is the memory from `registers.rsp` upwards.
pub fn correction(space: &AddressSpace, registers: Registers, stack: &[u8], skid: Skid) -> Correction {
    let Skid::NextBlock { has_returned, block } = skid else { return Correction::None };
    let return_address = stack.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    // At `rip` the emulator had left the block, and was on its way to the next one.
    match block.filter(|block| *block != registers.rip && space.code::<1>(*block).is_some()) {
        Some(block) => correction_of(space, registers, return_address, has_returned, block),
        None => inferred(space, registers, return_address, has_returned),
    }
}

/// The correction if the time was in this block of instructions.
fn correction_of(
    space: &AddressSpace,
    registers: Registers,
    return_address: Option<u64>,
    has_returned: bool,
    block: u64,
) -> Correction {
    let rip = registers.rip;
    let function = space.function_start(block);
    let is_in = |address| function.is_some() && space.function_start(address) == function;
    if has_returned && is_call_before(space, rip) {
        // In a loop the address of an earlier return may still be below the stack.
        let is_callee = !is_in(rip) || target_of_call_before(space, rip) == function;
        return if is_callee { Correction::InCallee(block) } else { Correction::None };
    }
    let Some(return_address) = return_address.filter(|address| is_called(space, rip, *address)) else {
        return Correction::None;
    };
    match function {
        _ if is_in(return_address.wrapping_sub(1)) => in_caller(registers, return_address),
        _ if is_in(rip) => Correction::None,
        Some(rip) => Correction::InJump { entered: Registers { rip, ..registers }, block },
        // Without unwind tables nothing shows where the function begins.
        None => inferred(space, registers, Some(return_address), false),
    }
}

/// The correction by the code before the return address.
fn inferred(space: &AddressSpace, registers: Registers, return_address: Option<u64>, has_returned: bool) -> Correction {
    if has_returned {
        // The target of an indirect call is unknown.
        let callee = target_of_call_before(space, registers.rip).filter(|target| space.code::<1>(*target).is_some());
        return callee.map_or(Correction::None, |callee| Correction::InCallee(function_that_returns(space, callee)));
    }
    let is_called = |address: &u64| match target_of_call_before(space, *address) {
        Some(target) => target == registers.rip && space.code::<1>(registers.rip).is_some(),
        // Which function an indirect call leads to is not known, but this is the start of one.
        None => space.is_function_start(registers.rip) && is_indirect_call_before(space, *address),
    };
    return_address.filter(is_called).map_or(Correction::None, |address| in_caller(registers, address))
}

/// The time was that of the caller, which continues at `return_address`.
fn in_caller(registers: Registers, return_address: u64) -> Correction {
    // Within the call, so that the lookup finds the line of the call and not the one after it.
    let rip = return_address.wrapping_sub(1);
    Correction::InCaller(Registers { rip, rsp: registers.rsp.wrapping_add(8), ..registers })
}

/// Whether a call ends at an address.
fn is_call_before(space: &AddressSpace, address: u64) -> bool {
    target_of_call_before(space, address).is_some() || is_indirect_call_before(space, address)
}

/// Whether `rip` is the start of a function that will return to `return_address`, after a call of it or of one that has jumped to it.
fn is_called(space: &AddressSpace, rip: u64, return_address: u64) -> bool {
    let is_start = space.is_function_start(rip) || target_of_call_before(space, return_address) == Some(rip);
    is_start && is_call_before(space, return_address)
}
