//! Wrong instructions of x86-64.
#![allow(unsafe_code)]

use core::arch::asm;

/// The code of a function that does nothing.
pub const RETURN: [u8; 4] = [0xc3; 4];

pub fn invalid() {
    // SAFETY: none: this is an invalid instruction exception.
    unsafe { asm!("ud2") };
}

pub fn privileged() {
    // SAFETY: none: ring 3 may not do this, so it is a general protection fault.
    unsafe { asm!("hlt") };
}
