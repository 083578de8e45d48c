//! The registers of a frame while a stack is unwound, by their DWARF numbers, and which of them have a meaning on each processor.

use std::fmt;

use super::rule::{Failure, Step};
use crate::arch::{aarch64, x86_64};

/// Copies machine code from a linked address; returns how much of it there is.
pub(crate) type Code<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

/// The registers of a kind of processor as unwind tables name them.
pub(crate) trait Convention: fmt::Debug + Copy + Eq {
    /// Words of all registers that are followed.
    type Values: AsRef<[u64]> + AsMut<[u64]> + fmt::Debug + Copy + Eq;
    /// None of them.
    const NONE: Self::Values;
    /// The frame pointer.
    const FP: u8;
    /// The stack pointer.
    const SP: u8;
    /// The instruction pointer.
    const IP: u8;
    /// The column of the return address: the caller's instruction pointer, or a register that it is called by.
    const RETURN: u8;
    /// A call leaves the return address in a register, where functions may keep it.
    const CALLS_BY_REGISTER: bool = Self::RETURN != Self::IP;

    /// An address of code without what a processor adds to it, where addresses have so many bits.
    fn code_address(address: u64, _address_bits: u8) -> u64 {
        address
    }

    /// Whether code is that by which a signal handler returns to the kernel, although no table describes it.
    fn returns_from_signal(_code: Code<'_>, _address: u64, _has_called: bool) -> bool {
        false
    }

    /// Goes to the registers that a signal has interrupted, by what the kernel leaves on the stack.
    fn interrupted_at(
        _registers: &mut RegisterFile<Self>,
        _read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<Step, Failure> {
        Err(Failure::Rule)
    }
}

/// System V ABI for AMD64, figure 3.36.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct X86_64;

impl Convention for X86_64 {
    type Values = [u64; 17];
    const NONE: [u64; 17] = [0; 17];
    const FP: u8 = 6;
    const SP: u8 = 7;
    const IP: u8 = 16;
    const RETURN: u8 = 16;

    /// musl and Go have no unwind tables for it, or wrong ones.
    fn returns_from_signal(code: Code<'_>, address: u64, has_called: bool) -> bool {
        /// `mov rax, 15` and `syscall`: 15 is `rt_sigreturn`.
        const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
        /// Bytes of the first of the two instructions.
        const MOVE_BYTES: u64 = 7;
        let is_at = |start: u64| {
            let mut there = [0; CODE.len()];
            code(start, &mut there) == there.len() && there == CODE
        };
        match has_called {
            // No call returns there: the kernel has put its start on the stack as a return address.
            true => is_at(address.wrapping_add(1)),
            // Within the system call the instruction pointer is behind it, which is no longer in its function.
            false => [0, MOVE_BYTES, CODE.len() as u64].into_iter().any(|bytes| is_at(address.wrapping_sub(bytes))),
        }
    }

    /// `struct ucontext` of `arch/x86/include/uapi/asm/sigcontext.h`.
    fn interrupted_at(
        registers: &mut RegisterFile<X86_64>,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<Step, Failure> {
        /// DWARF numbers in the order of the record, from this offset on: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
        const OFFSET: u64 = 40;
        const ORDER: [u8; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, X86_64::IP];
        let at = registers.sp().wrapping_add(OFFSET);
        let mut interrupted = *registers;
        for (number, index) in ORDER.into_iter().zip(0..) {
            let at = at.wrapping_add(index * 8);
            interrupted.set(number, Some(read(at).ok_or(Failure::Unreadable(at))?));
        }
        *registers = interrupted;
        Ok(Step::Interrupted)
    }
}

/// DWARF for the Arm 64-bit Architecture, 4.1: x0 to x30, sp, pc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aarch64;

impl Convention for Aarch64 {
    type Values = [u64; 33];
    const NONE: [u64; 33] = [0; 33];
    const FP: u8 = aarch64::FP as u8;
    const SP: u8 = 31;
    const IP: u8 = 32;
    const RETURN: u8 = aarch64::LR as u8;

    fn code_address(address: u64, address_bits: u8) -> u64 {
        aarch64::Registers { address_bits, ..aarch64::Registers::default() }.stripped(address)
    }
}

/// The registers of a frame, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterFile<C: Convention> {
    values: C::Values,
    /// A bit for each register.
    known: u64,
    /// The bits of an address of code.
    address_bits: u8,
}

impl RegisterFile<X86_64> {
    /// Of a function that was interrupted: a sample.
    pub(crate) fn of(registers: &x86_64::Registers) -> RegisterFile<X86_64> {
        let mut file = RegisterFile::of_frame(registers.rip, registers.rsp, registers.rbp);
        for (number, value) in (0..).zip(registers.general().into_iter().flatten()) {
            file.set(number, Some(value));
        }
        file
    }
}

impl RegisterFile<Aarch64> {
    /// Of a function that was interrupted: a sample.
    pub(crate) fn of(registers: &aarch64::Registers) -> RegisterFile<Aarch64> {
        let mut file = RegisterFile::of_frame(registers.pc, registers.sp, registers.fp());
        file.address_bits = registers.address_bits;
        for (number, value) in (0..).zip(registers.general) {
            file.set(number, Some(value));
        }
        file
    }
}

impl<C: Convention> RegisterFile<C> {
    /// Of a frame of which nothing else is known.
    pub(crate) fn of_frame(ip: u64, sp: u64, fp: u64) -> RegisterFile<C> {
        let mut file = RegisterFile { values: C::NONE, known: 0, address_bits: u8::MAX };
        file.set(C::IP, Some(ip));
        file.set(C::SP, Some(sp));
        file.set(C::FP, Some(fp));
        file
    }

    /// The frame of a caller, of which nothing else is known; its return address as it is in memory.
    pub(crate) fn caller_frame(&self, return_address: u64, sp: u64, fp: u64) -> RegisterFile<C> {
        let ip = C::code_address(return_address, self.address_bits);
        RegisterFile { address_bits: self.address_bits, ..RegisterFile::of_frame(ip, sp, fp) }
    }

    /// How many registers are followed.
    pub(crate) fn count() -> usize {
        C::NONE.as_ref().len()
    }

    /// The value of a register, if it is known.
    #[inline]
    pub(crate) fn get(&self, number: u8) -> Option<u64> {
        let value = self.values.as_ref().get(usize::from(number))?;
        (self.known & 1 << number != 0).then_some(*value)
    }

    /// Sets a register's value, or that it is not known. Registers that are not followed are ignored.
    #[inline]
    pub(crate) fn set(&mut self, number: u8, value: Option<u64>) {
        let Some(known) = self.values.as_mut().get_mut(usize::from(number)) else { return };
        *known = value.unwrap_or(0);
        self.known = self.known & !(1 << number) | u64::from(value.is_some()) << number;
    }

    /// Continues in the caller, where the return address is in the register of its column. Fails if that is not known.
    pub(crate) fn return_by_register(&mut self) -> Result<(), Failure> {
        if C::CALLS_BY_REGISTER {
            let address = self.get(C::RETURN).ok_or(Failure::Rule)?;
            self.set(C::IP, Some(C::code_address(address, self.address_bits)));
            // The call has overwritten what the caller had there.
            self.set(C::RETURN, None);
        }
        Ok(())
    }

    /// The instruction pointer; 0 if it is not known.
    pub(crate) fn ip(&self) -> u64 {
        self.values.as_ref()[usize::from(C::IP)]
    }

    /// The stack pointer; 0 if it is not known.
    pub(crate) fn sp(&self) -> u64 {
        self.values.as_ref()[usize::from(C::SP)]
    }

    /// The frame pointer; 0 if it is not known.
    pub(crate) fn fp(&self) -> u64 {
        self.values.as_ref()[usize::from(C::FP)]
    }
}
