//! AArch64: the virtual counter, and the system call in the registers of a stopped thread of this host. Not run on hardware.

use glass_profiler_core::arch;
use glass_profiler_core::arch::aarch64::{GENERAL, Registers};

/// Registers of a thread as ptrace has them.
pub(crate) type ThreadRegisters = libc::user_regs_struct;

/// Whether a thread whose system call was interrupted can be put in front of it again: its result replaces its first argument, which ptrace does not show.
pub(crate) const CAN_CALL_AGAIN: bool = false;
/// Nothing is kept below the stack pointer (AAPCS64, 6.4.5.1).
pub(crate) const RED_ZONE_REGISTERS: Option<[i16; 2]> = None;
/// Bytes of the `svc` instruction.
const CALL_BYTES: u64 = 4;
/// The register with the number of a system call.
const NUMBER: usize = 8;

/// x0 to x29, the link register, sp and pc, as bits of the numbers that the kernel gives to registers (`enum perf_event_arm_regs`).
pub(crate) const PERF_REGISTERS: u64 = (1 << PERF_REGISTERS_COUNT) - 1;
/// How many those are.
pub(crate) const PERF_REGISTERS_COUNT: usize = GENERAL + 2;

/// Those registers, in that order.
pub(crate) fn of_perf(words: &[u64; PERF_REGISTERS_COUNT]) -> arch::Registers {
    let general = std::array::from_fn(|number| words[number]);
    Registers { general, sp: words[GENERAL], pc: words[GENERAL + 1], ..Registers::default() }.into()
}

/// The clock of this machine's processors: CNTVCT_EL0 (Arm Architecture Reference Manual, D12.1).
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: Linux permits the register to processes; it touches no memory.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// The instruction pointer.
pub(crate) fn ip(registers: &ThreadRegisters) -> u64 {
    registers.pc
}

/// Those that unwinding takes, if this architecture's code can be unwound.
pub(crate) fn for_unwinding(registers: &ThreadRegisters) -> Option<arch::Registers> {
    let ThreadRegisters { regs: general, sp, pc, .. } = *registers;
    Some(Registers { pc, sp, general, ..Registers::default() }.into())
}

/// Where QEMU has the state of the vCPU whose translated code the thread executes (`TCG_AREG0` of tcg/aarch64/tcg-target.h).
pub(crate) fn emulator_state(registers: &ThreadRegisters) -> u64 {
    registers.regs[19]
}

/// The stack pointer.
pub(crate) fn sp(registers: &ThreadRegisters) -> u64 {
    registers.sp
}

/// Whether the thread is in a system call, which it has not left yet: ptrace does not show it.
pub(crate) fn is_in_call(_registers: &ThreadRegisters) -> bool {
    false
}

/// The number of the system call in which the thread is, or that has just returned.
pub(crate) fn call(registers: &ThreadRegisters) -> u64 {
    registers.regs[NUMBER]
}

/// Its first two arguments, or its result and its second argument.
pub(crate) fn arguments(registers: &ThreadRegisters) -> [u64; 2] {
    [registers.regs[0], registers.regs[1]]
}

/// Its result.
pub(crate) fn result(registers: &ThreadRegisters) -> u64 {
    registers.regs[0]
}

/// Puts the thread in front of the system call `number`, which was interrupted, again.
pub(crate) fn call_again(registers: &mut ThreadRegisters, number: u64) {
    registers.pc = registers.pc.wrapping_sub(CALL_BYTES);
    registers.regs[NUMBER] = number;
}

/// Whether the thread is in front of the system call `number`.
pub(crate) fn is_to_call(registers: &ThreadRegisters, number: u64) -> bool {
    registers.regs[NUMBER] == number
}

/// Puts a thread from in front of a system call behind it, with this result.
pub(crate) fn return_with(registers: &mut ThreadRegisters, result: u64) {
    registers.pc = registers.pc.wrapping_add(CALL_BYTES);
    registers.regs[0] = result;
}

/// Whether a system call waits for descriptors.
pub(crate) fn is_poll(number: i64) -> bool {
    number == libc::SYS_ppoll
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_the_kernels_samples() {
        let words = std::array::from_fn(|number| 100 + number as u64);
        let general = std::array::from_fn(|number| 100 + number as u64);
        assert_eq!(of_perf(&words), Registers { pc: 132, sp: 131, general, ..Registers::default() }.into());
    }
}
