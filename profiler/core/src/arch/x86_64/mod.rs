//! x86-64: registers, modes, unwind tables and page tables.

pub mod mode;
pub mod orc;
pub mod paging;
pub(crate) mod tables;

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
