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

use super::{AddressSpace, CallChain, StackMemory, UnwindCache};
use crate::arch::Registers;
use crate::event::Skid;

/// What the registers and the code of a processor show of calls.
pub trait Calls: Copy + Into<Registers> {
    /// The instruction pointer.
    fn ip(&self) -> u64;

    /// The registers when the function at `start` was entered, if the stack was the same.
    fn entered(self, start: u64) -> Self;

    /// The return address of a function at its first instruction; `top_of_stack` is the memory from the stack pointer upwards.
    fn return_address(&self, top_of_stack: &[u8]) -> Option<u64>;

    /// The caller's registers within the call that returns to an address, of those at the first instruction of the function that was called.
    fn in_call_before(self, return_address: u64) -> Self;

    /// The target of the direct call that ends at `address`, if there is one.
    fn target_of_call_before(space: &AddressSpace, address: u64) -> Option<u64>;

    /// Whether an indirect call ends at `address`.
    fn is_indirect_call_before(space: &AddressSpace, address: u64) -> bool;

    /// Where code at `start` leaves its function, if it has no return and no indirect jump, and direct jumps to the start of only one other function.
    fn only_jump(start: u64, code: &[u8], is_function: &dyn Fn(u64) -> bool) -> Option<u64>;
}

/// Unwinds from the corrected registers.
pub(crate) fn unwind(
    space: &AddressSpace,
    cache: &mut UnwindCache,
    registers: impl Calls,
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
pub enum Correction<R> {
    /// They are right.
    None,
    /// The function at the instruction pointer has just been called: the time was its caller's, whose registers these are.
    InCaller(R),
    /// A function has just returned to it: the time was its, at this address or after it.
    InCallee(u64),
    /// Another function has jumped to the one at the instruction pointer as its last action: the time was that one's.
    InJump {
        /// The registers, as far as unwinding needs them, when that one was entered: its stack was the same.
        entered: R,
        /// The block of instructions that jumped.
        block: u64,
    },
}

/// The correction for a sample; `stack` is the memory from the stack pointer upwards.
pub fn correction<R: Calls>(space: &AddressSpace, registers: R, stack: &[u8], skid: Skid) -> Correction<R> {
    let Skid::NextBlock { has_returned, block } = skid else { return Correction::None };
    let return_address = registers.return_address(stack);
    // At the instruction pointer the emulator had left the block, and was on its way to the next one.
    match block.filter(|block| *block != registers.ip() && space.code::<1>(*block).is_some()) {
        Some(block) => correction_of(space, registers, return_address, has_returned, block),
        None => inferred(space, registers, return_address, has_returned),
    }
}

/// The correction if the time was in this block of instructions.
fn correction_of<R: Calls>(
    space: &AddressSpace,
    registers: R,
    return_address: Option<u64>,
    has_returned: bool,
    block: u64,
) -> Correction<R> {
    let ip = registers.ip();
    let function = space.function_start(block);
    let is_in = |address| function.is_some() && space.function_start(address) == function;
    if has_returned && is_call_before::<R>(space, ip) {
        // In a loop the address of an earlier return may still be there.
        let is_callee = !is_in(ip) || R::target_of_call_before(space, ip) == function;
        return if is_callee { Correction::InCallee(block) } else { Correction::None };
    }
    let Some(return_address) = return_address.filter(|address| is_called::<R>(space, ip, *address)) else {
        return Correction::None;
    };
    match function {
        _ if is_in(return_address.wrapping_sub(1)) => Correction::InCaller(registers.in_call_before(return_address)),
        _ if is_in(ip) => Correction::None,
        Some(start) => Correction::InJump { entered: registers.entered(start), block },
        // Without unwind tables nothing shows where the function begins.
        None => inferred(space, registers, Some(return_address), false),
    }
}

/// The correction by the code before the return address.
fn inferred<R: Calls>(
    space: &AddressSpace,
    registers: R,
    return_address: Option<u64>,
    has_returned: bool,
) -> Correction<R> {
    let ip = registers.ip();
    if has_returned {
        // The target of an indirect call is unknown.
        let callee = R::target_of_call_before(space, ip).filter(|target| space.code::<1>(*target).is_some());
        return callee
            .map_or(Correction::None, |callee| Correction::InCallee(function_that_returns::<R>(space, callee)));
    }
    let is_called = |address: &u64| match R::target_of_call_before(space, *address) {
        Some(target) => target == ip && space.code::<1>(ip).is_some(),
        // Which function an indirect call leads to is not known, but this is the start of one.
        None => space.is_function_start(ip) && R::is_indirect_call_before(space, *address),
    };
    let caller = return_address.filter(is_called).map(|address| registers.in_call_before(address));
    caller.map_or(Correction::None, Correction::InCaller)
}

/// Whether a call ends at an address.
fn is_call_before<R: Calls>(space: &AddressSpace, address: u64) -> bool {
    R::target_of_call_before(space, address).is_some() || R::is_indirect_call_before(space, address)
}

/// Whether `ip` is the start of a function that will return to `return_address`, after a call of it or of one that has jumped to it.
fn is_called<R: Calls>(space: &AddressSpace, ip: u64, return_address: u64) -> bool {
    let is_start = space.is_function_start(ip) || R::target_of_call_before(space, return_address) == Some(ip);
    is_start && is_call_before::<R>(space, return_address)
}

/// The function that returns to where the one at `start` was called: that one, or the one that it always jumps to as its last action. Only where its bytes can
/// have no other meaning; otherwise `start`.
fn function_that_returns<R: Calls>(space: &AddressSpace, start: u64) -> u64 {
    /// One jumps to another, that one to a third.
    const JUMPS_MAX: usize = 4;
    /// A longer one has a byte like a return's somewhere.
    const BYTES_MAX: usize = 256;
    let mut function = start;
    for _ in 0..JUMPS_MAX {
        let code = space.function_code(function, BYTES_MAX);
        match code.and_then(|code| R::only_jump(function, &code, &|address| space.is_function_start(address))) {
            Some(next) => function = next,
            None => break,
        }
    }
    function
}
