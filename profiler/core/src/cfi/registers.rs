//! The registers of a frame while a stack is unwound, by their DWARF numbers.

use crate::arch::x86_64::Registers;

/// The stack pointer, the frame pointer and the return address (System V ABI for AMD64, figure 3.36).
pub(crate) const RBP: u8 = 6;
pub(crate) const RSP: u8 = 7;
pub(crate) const RETURN: u8 = 16;
/// How many registers the unwinder follows: the general ones and the return address.
pub(crate) const COUNT: usize = 17;

/// The registers of a frame, as far as they are known. The return address is the instruction pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterFile {
    values: [u64; COUNT],
    /// A bit for each register.
    known: u32,
}

impl RegisterFile {
    /// Of a function that was interrupted: a sample.
    pub(crate) fn of(registers: &Registers) -> RegisterFile {
        let mut file = RegisterFile::of_frame(registers.rip, registers.rsp, registers.rbp);
        for (number, value) in (0..).zip(registers.general().into_iter().flatten()) {
            file.set(number, Some(value));
        }
        file
    }

    /// Of a frame of which nothing else is known.
    pub(crate) fn of_frame(rip: u64, rsp: u64, rbp: u64) -> RegisterFile {
        let mut file = RegisterFile { values: [0; COUNT], known: 0 };
        file.set(RETURN, Some(rip));
        file.set(RSP, Some(rsp));
        file.set(RBP, Some(rbp));
        file
    }

    /// The value of a register, if it is known.
    #[inline]
    pub(crate) fn get(&self, number: u8) -> Option<u64> {
        let value = self.values.get(usize::from(number))?;
        (self.known & 1 << number != 0).then_some(*value)
    }

    /// Sets a register's value, or that it is not known. Registers that are not followed are ignored.
    #[inline]
    pub(crate) fn set(&mut self, number: u8, value: Option<u64>) {
        let Some(known) = self.values.get_mut(usize::from(number)) else { return };
        *known = value.unwrap_or(0);
        self.known = self.known & !(1 << number) | u32::from(value.is_some()) << number;
    }

    /// The instruction pointer; 0 if it is not known.
    pub(crate) fn ip(&self) -> u64 {
        self.values[usize::from(RETURN)]
    }

    /// The stack pointer; 0 if it is not known.
    pub(crate) fn sp(&self) -> u64 {
        self.values[usize::from(RSP)]
    }

    /// The frame pointer; 0 if it is not known.
    pub(crate) fn bp(&self) -> u64 {
        self.values[usize::from(RBP)]
    }
}
