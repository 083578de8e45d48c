//! What boot.s saves at an exception, in words.

use crate::cores::Core;
use crate::serial::print_line;
use core::fmt;

/// The registers that boot.s saves at an exception, in its order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// x0 to x30
    pub registers: [u64; 31],
    /// Of the vector, from the start of the table.
    pub number: u64,
    pub sp: u64,
    pub pc: u64,
    pub spsr: u64,
    pub esr: u64,
    pub far: u64,
}

/// Which of four in a row of vectors.
const KIND_FIQ: u64 = 2;
const KIND_SYSTEM_ERROR: u64 = 3;
/// Names of registers in a row.
const ROW: usize = 3;

impl Fault {
    /// No exception yet.
    pub const NONE: Fault = Fault { registers: [0; 31], number: 0, sp: 0, pc: 0, spsr: 0, esr: 0, far: 0 };

    /// Whether it is the interrupt by which a crash of another core stops this one.
    pub fn is_stop(&self) -> bool {
        self.number % 4 == KIND_FIQ
    }

    /// Where the code was.
    pub fn program_counter(&self) -> u64 {
        self.pc
    }

    /// The end of the stack in use.
    pub fn stack_pointer(&self) -> u64 {
        self.sp
    }

    /// The frame of the function.
    pub fn frame_pointer(&self) -> u64 {
        self.registers[29]
    }

    /// Prints all registers.
    pub fn print(&self) {
        let Fault { pc, sp, spsr, esr, far, .. } = self;
        print_line(format_args!("pc {pc:016x}  sp {sp:016x}  spsr {spsr:x}  esr {esr:x}  far {far:016x}"));
        for (row, values) in self.registers.chunks(ROW).enumerate() {
            print_line(format_args!("{}", Row { first: row * ROW, values }));
        }
    }
}

/// Some registers in a line.
struct Row<'a> {
    first: usize,
    values: &'a [u64],
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (index, value) in self.values.iter().enumerate() {
            let space = if index == 0 { "" } else { "  " };
            write!(f, "{space}x{:<2} {value:016x}", self.first + index)?;
        }
        Ok(())
    }
}

/// The stack that overflows first on this core.
pub fn stack(core: &Core) -> (u64, u64) {
    (core.stack_bottom.get(), core.arch.stack_top.get())
}

/// C programs do not run on this processor.
pub fn print_program(_: &Core) {}

/// Why the exception was raised, on a core whose stack is from `stack.0` to `stack.1`.
pub struct Cause {
    /// What was saved.
    pub fault: Fault,
    /// The stack's lowest byte and its end.
    pub stack: (u64, u64),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Fault { number, esr, .. } = self.fault;
        // Classes of ESR_EL1 (Arm Architecture Reference Manual, D17.2.37).
        let name = match (number % 4, esr >> 26) {
            (KIND_SYSTEM_ERROR, _) => "system error",
            (KIND_FIQ, _) => "fast interrupt",
            (_, 0x00) => "invalid instruction",
            (_, 0x20 | 0x21 | 0x24 | 0x25) => return self.memory_fault(f),
            (_, 0x22) => "misaligned program counter",
            (_, 0x26) => "misaligned stack pointer",
            (_, 0x2c) => "floating-point error",
            (_, 0x30..=0x35 | 0x3c) => "breakpoint",
            _ => "unexpected exception",
        };
        write!(f, "{name} (vector {number}, syndrome {esr:#x})")
    }
}

impl Cause {
    fn memory_fault(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (bottom, top) = self.stack;
        let Fault { esr, far, number, .. } = self.fault;
        if (bottom.wrapping_sub(4096)..bottom).contains(&far) {
            return write!(f, "stack overflow: the stack of {} KiB is used up", (top - bottom) / 1024);
        }
        let is_execution = esr >> 26 < 0x24;
        let what = match (is_execution, esr & 1 << 6 != 0) {
            (true, _) => "execution of",
            (false, true) => "write to",
            (false, false) => "read of",
        };
        // The fault status, without the level of the table.
        let state = match esr & 0x3c {
            0x00 | 0x04 | 0x08 => "unmapped",
            0x0c => "protected",
            _ if esr & 0x3f == 0x21 => "misaligned",
            _ => return write!(f, "memory error at {far:#x} (vector {number}, syndrome {esr:#x})"),
        };
        write!(f, "page fault: {what} {state} address {far:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_page_fault_below_the_stack_is_an_overflow() {
        let cause = |far, esr| {
            let fault = Fault { number: 0, esr, far, ..Fault::NONE };
            Cause { fault, stack: (0x5000, 0x9000) }.to_string()
        };
        assert_eq!(cause(0x4ff8, 0x9600_0047), "stack overflow: the stack of 16 KiB is used up");
        assert_eq!(cause(0x3fff, 0x9600_0047), "page fault: write to unmapped address 0x3fff");
        assert_eq!(cause(0x3fff, 0x9600_0007), "page fault: read of unmapped address 0x3fff");
        assert_eq!(cause(0x5000, 0x9600_004f), "page fault: write to protected address 0x5000");
        assert_eq!(cause(0x5000, 0x8600_000f), "page fault: execution of protected address 0x5000");
    }
}
