//! x86-64: registers, modes, unwind tables and page tables.

pub mod mode;
pub mod orc;
pub mod paging;

/// How many general registers there are; they are numbered as in DWARF (System V ABI for AMD64, figure 3.36).
pub const GENERAL: usize = 16;
/// The general registers in the order of their DWARF numbers, as gdb names them.
pub const GENERAL_NAMES: [&str; GENERAL] =
    ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const RBP: usize = 6;
const RSP: usize = 7;

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer, if the code keeps one.
    pub rbp: u64,
    /// The other general registers by their DWARF numbers, if they are known. Those at the numbers of `rbp` and `rsp` are 0.
    pub others: Option<[u64; GENERAL]>,
}

impl Registers {
    /// Registers of which the others are not known.
    #[must_use]
    pub fn new(rip: u64, rsp: u64, rbp: u64) -> Registers {
        Registers { rip, rsp, rbp, others: None }
    }

    /// All of them: `general` by their DWARF numbers.
    #[must_use]
    pub fn of_all(rip: u64, general: [u64; GENERAL]) -> Registers {
        let (rbp, rsp) = (general[RBP], general[RSP]);
        let mut others = general;
        (others[RBP], others[RSP]) = (0, 0);
        Registers { rip, rsp, rbp, others: Some(others) }
    }

    /// The general registers by their DWARF numbers, if all are known.
    #[must_use]
    pub fn general(&self) -> Option<[u64; GENERAL]> {
        let mut general = self.others?;
        (general[RBP], general[RSP]) = (self.rbp, self.rsp);
        Some(general)
    }

    /// The same as linear addresses: with the bases of the code's and the stack's segment added.
    #[must_use]
    pub fn in_segments(self, code: u64, stack: u64) -> Registers {
        let Registers { rip, rsp, rbp, others } = self;
        let (rsp, rbp) = (rsp.wrapping_add(stack), rbp.wrapping_add(stack));
        Registers { rip: rip.wrapping_add(code), rsp, rbp, others }
    }
}
