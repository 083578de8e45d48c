//! x86-64: the TSC, and the system call in the registers of a stopped thread of this host.

use glass_profiler_core::arch;
use glass_profiler_core::arch::x86_64::{GENERAL, Registers};

/// Registers of a thread as ptrace has them.
pub(crate) type ThreadRegisters = libc::user_regs_struct;

/// Whether a thread whose system call was interrupted can be put in front of it again.
pub(crate) const CAN_CALL_AGAIN: bool = true;
/// Where the code's segment, which has the level of privilege, and the stack pointer are in `struct pt_regs`, in bytes.
pub(crate) const RED_ZONE_REGISTERS: Option<[i16; 2]> = Some([17 * 8, 19 * 8]);
/// Bytes of the `syscall` instruction.
const CALL_BYTES: u64 = 2;

/// The general registers and ip, as bits of the numbers that the kernel gives to registers (`enum perf_event_x86_regs`).
pub(crate) const PERF_REGISTERS: u64 = 0x1ff | 0xff << 16;
/// How many those are.
pub(crate) const PERF_REGISTERS_COUNT: usize = 17;

/// Those registers, in the order in which the kernel has them: ax, bx, cx, dx, si, di, bp, sp, ip, r8 to r15.
pub(crate) fn of_perf(words: &[u64; PERF_REGISTERS_COUNT]) -> arch::Registers {
    /// DWARF's numbers of those before ip.
    const BEFORE_IP: [usize; 8] = [0, 3, 2, 1, 4, 5, 6, 7];
    let mut general = [0; GENERAL];
    for (number, word) in BEFORE_IP.into_iter().zip(words) {
        general[number] = *word;
    }
    general[BEFORE_IP.len()..].copy_from_slice(&words[BEFORE_IP.len() + 1..]);
    Registers::of_all(words[BEFORE_IP.len()], general).into()
}

/// The clock of this machine's processors: the TSC.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and Linux permits it; it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The instruction pointer.
pub(crate) fn ip(registers: &ThreadRegisters) -> u64 {
    registers.rip
}

/// Those that unwinding takes, if this architecture's code can be unwound.
pub(crate) fn for_unwinding(registers: &ThreadRegisters) -> Option<arch::Registers> {
    let it = registers;
    // In the order of DWARF's numbers: System V ABI for AMD64, figure 3.36.
    let general = [
        it.rax, it.rdx, it.rcx, it.rbx, it.rsi, it.rdi, it.rbp, it.rsp, it.r8, it.r9, it.r10, it.r11, it.r12, it.r13,
        it.r14, it.r15,
    ];
    Some(Registers::of_all(it.rip, general).into())
}

/// Where QEMU has the state of the vCPU whose translated code the thread executes (`TCG_AREG0` of tcg/i386/tcg-target.h).
pub(crate) fn emulator_state(registers: &ThreadRegisters) -> u64 {
    registers.r14
}

/// The stack pointer.
pub(crate) fn sp(registers: &ThreadRegisters) -> u64 {
    registers.rsp
}

/// Whether the thread is in a system call, which it has not left yet.
pub(crate) fn is_in_call(registers: &ThreadRegisters) -> bool {
    registers.orig_rax as i64 >= 0
}

/// The number of the system call in which the thread is, or that has just returned.
pub(crate) fn call(registers: &ThreadRegisters) -> u64 {
    registers.orig_rax
}

/// Its first two arguments.
pub(crate) fn arguments(registers: &ThreadRegisters) -> [u64; 2] {
    [registers.rdi, registers.rsi]
}

/// Its result. Linux puts `-ENOSYS` there when it starts.
pub(crate) fn result(registers: &ThreadRegisters) -> u64 {
    registers.rax
}

/// Puts the thread in front of the system call `number`, which was interrupted, again.
pub(crate) fn call_again(registers: &mut ThreadRegisters, number: u64) {
    registers.rip = registers.rip.wrapping_sub(CALL_BYTES);
    registers.rax = number;
    // No system call is in progress: the kernel must not restart one by itself.
    registers.orig_rax = u64::MAX;
}

/// Whether the thread is in front of the system call `number`, where [`call_again`] has put it.
pub(crate) fn is_to_call(registers: &ThreadRegisters, number: u64) -> bool {
    registers.rax == number && registers.orig_rax == u64::MAX
}

/// Puts a thread from in front of a system call behind it, with this result.
pub(crate) fn return_with(registers: &mut ThreadRegisters, result: u64) {
    registers.rip = registers.rip.wrapping_add(CALL_BYTES);
    registers.rax = result;
}

/// Whether a system call waits for descriptors.
pub(crate) fn is_poll(number: i64) -> bool {
    matches!(number, libc::SYS_ppoll | libc::SYS_poll)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_the_kernels_samples() {
        let words = [100, 103, 102, 101, 104, 105, 106, 107, 0x40_1000, 108, 109, 110, 111, 112, 113, 114, 115];
        let general = std::array::from_fn(|number| 100 + number as u64);
        assert_eq!(of_perf(&words), Registers::of_all(0x40_1000, general).into());
    }
}
