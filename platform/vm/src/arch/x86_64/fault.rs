//! What boot.s saves at an exception, in words.

use crate::cores::Core;
use crate::serial::print_line;
use core::fmt;

/// The registers that boot.s saves at an exception, in its order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// rax rbx rcx rdx rsi rdi rbp r8..r15
    pub registers: [u64; 15],
    pub vector: u64,
    pub error_code: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub cr2: u64,
}

/// Names of the registers.
const REGISTER_NAMES: [&str; 15] =
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const RBP: usize = 6;
/// The vector by which a crash of another core stops this one.
const NON_MASKABLE: u64 = 2;

impl Fault {
    /// No exception yet.
    pub const NONE: Fault =
        Fault { registers: [0; 15], vector: 0, error_code: 0, rip: 0, cs: 0, rflags: 0, rsp: 0, cr2: 0 };

    /// Whether it is the interrupt by which a crash of another core stops this one.
    pub fn is_stop(&self) -> bool {
        self.vector == NON_MASKABLE
    }

    /// Where the code was.
    pub fn program_counter(&self) -> u64 {
        self.rip
    }

    /// The end of the stack in use.
    pub fn stack_pointer(&self) -> u64 {
        self.rsp
    }

    /// The frame of the function.
    pub fn frame_pointer(&self) -> u64 {
        self.registers[RBP]
    }

    /// Prints all registers.
    pub fn print(&self) {
        print_line(format_args!(
            "rip {:016x}  rsp {:016x}  rflags {:x}  cs {:x}",
            self.rip, self.rsp, self.rflags, self.cs
        ));
        for (names, values) in REGISTER_NAMES.chunks(3).zip(self.registers.chunks(3)) {
            print_line(format_args!(
                "{} {:016x}  {} {:016x}  {} {:016x}",
                names[0], values[0], names[1], values[1], names[2], values[2]
            ));
        }
    }
}

/// The stack that overflows first on this core. A program that has crashed in a system call of its own has none.
pub fn stack(core: &Core) -> (u64, u64) {
    let process = core.arch.program.try_borrow().ok();
    let process = process.as_ref().and_then(|process| process.as_ref());
    let kernels = (core.stack_bottom.get(), core.arch.stack_top.get());
    process.map_or(kernels, |process| (process.stack.start, process.stack.end))
}

/// Prints which C program runs on this core, if one does.
pub fn print_program(core: &Core) {
    if let Ok(Some(process)) = core.arch.program.try_borrow().as_deref() {
        print_line(format_args!("rank {} of the C program, whose file is at {:#x}", process.rank, process.start));
    }
}

/// Why the exception was raised, on a core whose stack is from `stack.0` to `stack.1`.
pub struct Cause {
    /// What was saved.
    pub fault: Fault,
    /// The stack's lowest byte and its end.
    pub stack: (u64, u64),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let fault = &self.fault;
        let name = match fault.vector {
            0 => "division error",
            NON_MASKABLE => "non-maskable interrupt",
            3 => "breakpoint",
            6 => "invalid instruction",
            8 => "double fault",
            12 => "stack segment fault",
            13 => "general protection fault",
            14 => return self.page_fault(f),
            16 | 19 => "floating-point error",
            17 => "misaligned access",
            18 => "machine check",
            _ => "unexpected exception",
        };
        write!(f, "{name} (vector {}, error code {:#x})", fault.vector, fault.error_code)
    }
}

impl Cause {
    fn page_fault(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (bottom, top) = self.stack;
        let fault = &self.fault;
        if (bottom.wrapping_sub(4096)..bottom).contains(&fault.cr2) {
            return write!(f, "stack overflow: the stack of {} KiB is used up", (top - bottom) / 1024);
        }
        let what = match (fault.error_code & 0x10 != 0, fault.error_code & 2 != 0) {
            (true, _) => "execution of",
            (false, true) => "write to",
            (false, false) => "read of",
        };
        let state = if fault.error_code & 1 != 0 { "protected" } else { "unmapped" };
        write!(f, "page fault: {what} {state} address {:#x}", fault.cr2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_page_fault_below_the_stack_is_an_overflow() {
        let cause = |cr2| {
            let fault = Fault { vector: 14, error_code: 2, cr2, ..Fault::NONE };
            Cause { fault, stack: (0x5000, 0x9000) }.to_string()
        };
        assert_eq!(cause(0x4ff8), "stack overflow: the stack of 16 KiB is used up");
        assert_eq!(cause(0x3fff), "page fault: write to unmapped address 0x3fff");
        assert_eq!(cause(0x5000), "page fault: write to unmapped address 0x5000");
    }
}
