//! Port I/O and the ring-0 services: everything that is one instruction in assembly.

use core::arch::asm;

/// What `int 4` does for ring 3; the numbers are those of boot.s.
mod service {
    pub const IDLE: u64 = 0;
    pub const WRMSR: u64 = 1;
    pub const CPUID: u64 = 2;
    pub const LOAD_PAGE_TABLES: u64 = 3;
}

struct Registers {
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
}

/// # Safety
/// The service must not take away memory or rights that running code relies on.
unsafe fn call_service(number: u64, mut rax: u64, mut rcx: u64, mut rdx: u64) -> Registers {
    let rsi;
    // SAFETY: boot.s preserves every register but those listed, returns here with IF still 0, and
    // runs on a stack of its own; the caller answers for what the service does.
    unsafe { asm!("int 4", in("r8") number, inout("rax") rax, inout("rcx") rcx, inout("rdx") rdx, out("rsi") rsi) };
    Registers { rax, rcx, rdx, rsi }
}

/// Halts until an interrupt arrives and returns its vector. An interrupt that became pending
/// earlier ends the halt at once.
pub fn halt() -> u8 {
    // SAFETY: halting changes nothing.
    unsafe { call_service(service::IDLE, 0, 0, 0) }.rax as u8
}

/// Writes a model-specific register.
///
/// # Safety
/// The new value must keep the machine in a state that the running code can live in.
pub unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller vouches for the value.
    unsafe { call_service(service::WRMSR, value & 0xffff_ffff, u64::from(register), value >> 32) };
}

/// CPUID as the VMM defines it: `[eax, ebx, ecx, edx]`.
pub fn cpuid(leaf: u32) -> [u32; 4] {
    // SAFETY: reading has no effect.
    let result = unsafe { call_service(service::CPUID, u64::from(leaf), 0, 0) };
    [result.rax as u32, result.rsi as u32, result.rcx as u32, result.rdx as u32]
}

/// Makes the tables at `root` (physical) the core's page tables.
///
/// # Safety
/// They must map all code, stacks and data in use where they are now.
pub unsafe fn load_page_tables(root: u64) {
    // SAFETY: the caller vouches for the tables.
    unsafe { call_service(service::LOAD_PAGE_TABLES, root, 0, 0) };
}

/// Time-stamp counter.
pub fn read_tsc() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Writes a byte to a port.
pub fn write_port8(port: u16, value: u8) {
    // SAFETY: ports reach devices of the VMM, which cannot touch memory through the ports used here.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes a word to a port.
pub fn write_port16(port: u16, value: u16) {
    // SAFETY: as for `write_port8`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) };
}

/// Reads a word from a port.
pub fn read_port16(port: u16) -> u16 {
    let value;
    // SAFETY: as for `write_port8`.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes a double word to a port.
pub fn write_port32(port: u16, value: u32) {
    // SAFETY: as for `write_port8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) };
}

/// Reads a byte from a port.
pub fn read_port8(port: u16) -> u8 {
    let value;
    // SAFETY: as for `write_port8`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes bytes to one port, one exit for many on most hosts.
pub fn write_port_bytes(port: u16, bytes: &[u8]) {
    // SAFETY: `rep outsb` reads exactly the slice; DF is 0 as the ABI demands.
    unsafe {
        asm!("rep outsb", inout("rsi") bytes.as_ptr() => _, inout("rcx") bytes.len() => _, in("dx") port,
            options(readonly, nostack, preserves_flags));
    }
}

/// Makes hypercall `number` with the arguments `operation`, `argument` and 1, by a service of boot.s; returns the result.
///
/// # Safety
/// `service` must be one that makes hypercalls, and what the hypervisor does with `argument` must leave the running code its memory.
pub unsafe fn call_hypervisor(service: u64, number: u64, operation: u64, argument: *mut u8) -> u64 {
    let mut result = number;
    // SAFETY: boot.s preserves every register but those listed, which the hypervisor may change; the caller answers for the operation.
    unsafe {
        asm!("int 4", inout("r8") service => _, inout("rax") result, inout("rdi") operation => _, inout("rsi") argument => _,
            inout("rdx") 1_u64 => _, out("r10") _, out("r9") _);
    }
    result
}
