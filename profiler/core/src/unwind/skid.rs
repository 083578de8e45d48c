//! Corrects samples whose registers are late: an emulator that translates whole blocks can stop
//! only between two of them, and is at the start of the next one while the time went into the
//! one before.
//!
//! Within a function the difference is some instructions. It matters at calls and returns: without
//! this, all the time of a function that is one block (a write to a device and its return) would count
//! for its caller.

use super::x86_64::{is_indirect_call_before, target_of_call_before};
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
    }
}

/// The correction of a sample's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correction {
    /// They are right.
    None,
    /// The function at `rip` has just been called: the time was its caller's, whose registers these are.
    InCaller(Registers),
    /// The function that starts at this address has just returned to `rip`: the time was its.
    InCallee(u64),
}

/// The correction for a sample; `stack` is the memory from `registers.rsp` upwards.
pub fn correction(space: &AddressSpace, registers: Registers, stack: &[u8], skid: Skid) -> Correction {
    let Skid::NextBlock { has_returned } = skid else { return Correction::None };
    if has_returned {
        // The target of an indirect call is unknown.
        let callee = target_of_call_before(space, registers.rip).filter(|target| space.code::<1>(*target).is_some());
        return callee.map_or(Correction::None, Correction::InCallee);
    }
    let Some(return_address) = stack.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Correction::None;
    };
    let is_called = match target_of_call_before(space, return_address) {
        Some(target) => target == registers.rip && space.code::<1>(registers.rip).is_some(),
        // Which function an indirect call leads to is not known, but this is the start of one.
        None => space.is_function_start(registers.rip) && is_indirect_call_before(space, return_address),
    };
    if !is_called {
        return Correction::None;
    }
    // Within the call, so that the lookup finds the line of the call and not the one after it.
    let rip = return_address.wrapping_sub(1);
    let mut caller = registers;
    (caller.rip, caller.rsp) = (rip, registers.rsp.wrapping_add(8));
    Correction::InCaller(caller)
}
