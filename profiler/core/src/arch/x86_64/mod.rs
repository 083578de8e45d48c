//! x86-64: registers, modes, unwinding and page tables.

pub mod mode;
pub mod orc;
pub mod paging;
pub mod skid;
mod unwind;

pub(crate) use unwind::{Cache, Tables, unwind};

use crate::unwind::AddressSpace;

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer, if the code keeps one.
    pub rbp: u64,
}

impl Registers {
    /// The same as linear addresses: with the bases of the code's and the stack's segment added.
    #[must_use]
    pub fn in_segments(self, code: u64, stack: u64) -> Registers {
        let Registers { rip, rsp, rbp } = self;
        Registers { rip: rip.wrapping_add(code), rsp: rsp.wrapping_add(stack), rbp: rbp.wrapping_add(stack) }
    }
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
