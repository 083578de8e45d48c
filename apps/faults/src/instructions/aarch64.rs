//! Wrong instructions of AArch64.
#![allow(unsafe_code)]

use core::arch::asm;

/// The code of a function that does nothing.
pub const RETURN: [u8; 4] = 0xd65f_03c0_u32.to_le_bytes();

pub fn invalid() {
    // SAFETY: none: this is an undefined instruction.
    unsafe { asm!("udf #0") };
}

pub fn privileged() {
    // SAFETY: none: this register is EL3's, so the instruction is undefined.
    unsafe { asm!("msr scr_el3, xzr") };
}
