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

use super::CoreState;

/// The level of privilege of processes.
const LEVEL_USER: u8 = 3;

impl CoreState {
    /// What these registers say, which count from the bases of segments; `level` is that of privilege, 0 to 3. `segments` are the bases of the
    /// code's and the stack's segment, which code of 64 bits ignores.
    pub(crate) fn of_x86_64(
        registers: Registers,
        paging: Paging,
        code: CodeSegment,
        level: u8,
        segments: [u64; 2],
    ) -> CoreState {
        let width = code.width(&paging);
        let is_at_reset = code.is_at_reset(&paging, registers.rip);
        let [code, stack] = segments;
        let registers = if width == Width::Bits64 { registers } else { registers.in_segments(code, stack) };
        CoreState {
            registers: registers.into(),
            paging: paging.into(),
            width,
            is_privileged: level != LEVEL_USER,
            is_at_reset,
            interrupt_table: None,
        }
    }
}
