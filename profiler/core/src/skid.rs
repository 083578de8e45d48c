//! Where a sample belongs whose registers are late: an emulator that translates whole blocks can stop
//! only between two of them, and stands at the begin of the next one while the time went into the
//! one before.
//!
//! Within a function the difference is some instructions. It matters at calls and returns: without
//! this, the time of a function that is one block (a write to a device and its return) would all be
//! its caller's.

use crate::event::{Registers, Skid};
use crate::unwind::AddressSpace;

const CALL: u8 = 0xe8;
const CALL_BYTES: u64 = 5;

/// What a sample's registers have to be corrected to.
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
        // An indirect call does not say what it called.
        return target_of_call_before(space, registers.rip).map_or(Correction::None, Correction::InCallee);
    }
    let Some(return_address) = stack.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Correction::None;
    };
    if target_of_call_before(space, return_address) != Some(registers.rip) {
        return Correction::None;
    }
    // Within the call, so that what is looked up is the line of the call and not the one after it.
    let rip = return_address.wrapping_sub(1);
    Correction::InCaller(Registers { rip, rsp: registers.rsp.wrapping_add(8), ..registers })
}

/// Where the direct call goes that ends in front of `address`.
fn target_of_call_before(space: &AddressSpace, address: u64) -> Option<u64> {
    let [CALL, offset @ ..] = space.code::<{ CALL_BYTES as usize }>(address.wrapping_sub(CALL_BYTES))? else {
        return None;
    };
    let target = address.wrapping_add_signed(i64::from(i32::from_le_bytes(offset)));
    space.code::<1>(target).map(|_| target)
}
