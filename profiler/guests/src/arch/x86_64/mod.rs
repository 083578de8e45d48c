//! x86-64.

pub(crate) mod all;
pub(crate) mod gates;
pub(crate) mod gdb;
pub(crate) mod kvm;
pub(crate) mod note;
pub(crate) mod xen;

use glass_profiler_core::arch::Width;
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::mode::CodeSegment;
use glass_profiler_core::arch::x86_64::paging::Paging;

/// The level of privilege of processes.
const LEVEL_USER: u8 = 3;

/// What a core's registers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreState {
    /// As addresses in memory.
    pub(crate) registers: Registers,
    pub(crate) paging: Paging,
    /// How wide the code is that runs.
    pub(crate) width: Width,
    /// It may do more than processes may.
    pub(crate) is_privileged: bool,
    /// The core has not been started since its reset.
    pub(crate) is_at_reset: bool,
    /// Where its interrupt table is, if that is known.
    pub(crate) interrupt_table: Option<u64>,
}

impl CoreState {
    /// What these registers say, which count from the bases of segments; `level` is that of privilege, 0 to 3.
    pub(crate) fn new(registers: Registers, paging: Paging, code: CodeSegment, level: u8) -> CoreState {
        CoreState {
            registers,
            paging,
            width: code.width(&paging),
            is_privileged: level != LEVEL_USER,
            is_at_reset: code.is_at_reset(&paging, registers.rip),
            interrupt_table: None,
        }
    }

    /// The same with registers that count from the bases of the code's and the stack's segment, which code of 64 bits
    /// ignores.
    pub(crate) fn in_segments(mut self, code: u64, stack: u64) -> CoreState {
        if self.width != Width::Bits64 {
            self.registers = self.registers.in_segments(code, stack);
        }
        self
    }
}
