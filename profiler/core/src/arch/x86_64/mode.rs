//! The mode of a core, from its registers.

use super::paging::Paging;
use crate::arch::Width;

/// The bit of CR0 for protected mode.
pub const CR0_PROTECTION: u64 = 1;
/// The address at which a core starts after a reset, and waits if it is not the first one.
const RESET_SELECTOR: u16 = 0xf000;
const RESET_POINTER: u64 = 0xfff0;

/// The code segment, as far as the source can read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CodeSegment {
    /// The selector.
    pub selector: u16,
    /// Its descriptor's bit L, 64-bit code; `None` if the source cannot read it.
    pub is_long: Option<bool>,
    /// Its descriptor's bit D, 32-bit and not 16-bit code.
    pub is_32_bit: Option<bool>,
}

impl CodeSegment {
    /// The width of the code that runs. Without a descriptor the usual case is assumed: 64-bit code in long mode,
    /// 32-bit code in protected mode.
    #[must_use]
    pub fn width(&self, paging: &Paging) -> Width {
        if paging.cr0 & CR0_PROTECTION == 0 {
            return Width::Bits16;
        }
        if paging.is_long() && self.is_long.unwrap_or(true) {
            return Width::Bits64;
        }
        if self.is_32_bit.unwrap_or(true) { Width::Bits32 } else { Width::Bits16 }
    }

    /// Whether a core waits to be started: it has not run since its reset. `instruction_pointer` counts from the
    /// segment's base.
    #[must_use]
    pub fn is_at_reset(&self, paging: &Paging, instruction_pointer: u64) -> bool {
        paging.cr0 & CR0_PROTECTION == 0 && self.selector == RESET_SELECTOR && instruction_pointer == RESET_POINTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Paging = Paging { cr0: 1 << 31 | 1, cr3: 0, cr4: 1 << 5, efer: Some(1 << 10) };

    #[test]
    fn widths() {
        let segment = CodeSegment { selector: 8, is_long: Some(true), is_32_bit: Some(false) };
        assert_eq!(segment.width(&LONG), Width::Bits64);
        assert_eq!(CodeSegment::default().width(&LONG), Width::Bits64);
        assert_eq!(CodeSegment { is_32_bit: Some(true), is_long: Some(false), ..segment }.width(&LONG), Width::Bits32);
        assert_eq!(CodeSegment { is_long: Some(false), ..segment }.width(&LONG), Width::Bits16);
        // Protected mode: with or without paging, and in a segment of 16 bits.
        for paging in
            [Paging { efer: Some(0), ..LONG }, Paging { cr4: 0, efer: None, ..LONG }, Paging { cr0: 1, ..LONG }]
        {
            assert_eq!(CodeSegment::default().width(&paging), Width::Bits32);
            assert_eq!(segment.width(&paging), Width::Bits16);
        }
        assert_eq!(CodeSegment::default().width(&Paging { cr0: 0x6000_0010, ..LONG }), Width::Bits16);
    }

    #[test]
    fn a_core_that_waits_to_be_started() {
        let reset = Paging { cr0: 0x6000_0010, ..Paging::default() };
        let segment = CodeSegment { selector: 0xf000, ..CodeSegment::default() };
        assert!(segment.is_at_reset(&reset, 0xfff0));
        assert!(!segment.is_at_reset(&reset, 0xe05b));
        assert!(!segment.is_at_reset(&LONG, 0xfff0));
        assert!(!CodeSegment { selector: 0x9f00, ..segment }.is_at_reset(&reset, 0xfff0));
    }
}
