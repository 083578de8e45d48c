//! AArch64: registers and page tables.

pub mod paging;

/// How many general registers there are, x0 to x30; they are numbered as in DWARF (DWARF for the Arm 64-bit Architecture, 4.1).
pub const GENERAL: usize = 31;
/// The frame pointer and the link register, which has the return address (AAPCS64, 6.1.1).
pub const FP: usize = 29;
/// See [`FP`].
pub const LR: usize = 30;

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Program counter.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// x0 to x30.
    pub general: [u64; GENERAL],
    /// How many bits of an address of code select a byte. Above them are copies of bit 55, or a pointer authentication code.
    pub address_bits: u8,
}

impl Default for Registers {
    fn default() -> Registers {
        Registers { pc: 0, sp: 0, general: [0; GENERAL], address_bits: ADDRESS_BITS }
    }
}

/// The bits of addresses of nearly all systems.
const ADDRESS_BITS: u8 = 48;
/// The bit that selects one of two address spaces, in every address (Arm Architecture Reference Manual, D8.2).
const SELECTING_BIT: u32 = 55;

impl Registers {
    /// The frame pointer, if the code keeps one.
    #[must_use]
    pub fn fp(&self) -> u64 {
        self.general[FP]
    }

    /// The link register, without a pointer authentication code.
    #[must_use]
    pub fn lr(&self) -> u64 {
        self.stripped(self.general[LR])
    }

    /// An address of code without its pointer authentication code (Arm Architecture Reference Manual, D8.10).
    #[must_use]
    pub fn stripped(&self, address: u64) -> u64 {
        // At least 16, so that neither shift is one by all bits.
        let bits = u32::from(self.address_bits).clamp(16, SELECTING_BIT);
        let above = u64::MAX << bits;
        if address >> SELECTING_BIT & 1 == 1 { address | above } else { address & !above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_codes_are_stripped() {
        let of = |address_bits, address| Registers { address_bits, ..Registers::default() }.stripped(address);
        assert_eq!(of(48, 0x0012_ffff_8000_1234), 0x0000_ffff_8000_1234);
        assert_eq!(of(48, 0xfe92_8000_8000_1234), 0xffff_8000_8000_1234);
        // With fewer bits the code is longer.
        assert_eq!(of(39, 0x0012_34a5_8000_1234), 0x0000_0025_8000_1234);
        assert_eq!(of(39, 0xfe92_34a5_8000_1234), 0xffff_ffa5_8000_1234);
        assert_eq!((of(0, 0x12_3456), of(255, 0x0012_3456)), (0x3456, 0x0012_3456), "any number of bits");
    }
}
