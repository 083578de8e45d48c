//! The registers of a process that a Linux keeps at the top of the thread's own stack when that enters the kernel (`struct pt_regs` of
//! `arch/x86/include/asm/ptrace.h` and `arch/arm64/include/asm/ptrace.h`).

use glass_profiler_core::arch::{Registers, aarch64, x86_64};

/// How they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// By a kernel of x86-64.
    X86_64,
    /// By one of AArch64: bytes of all that is kept, and how many bits of an address of code select a byte.
    Aarch64 { bytes: u32, address_bits: u8 },
}

impl Entry {
    /// How the kernel of a core with these registers keeps them; `bytes` as its types have it.
    pub(crate) fn of(registers: &Registers, bytes: u32) -> Entry {
        match registers {
            Registers::X86_64(_) => Entry::X86_64,
            Registers::Aarch64(registers) => Entry::Aarch64 { bytes, address_bits: registers.address_bits },
        }
    }

    /// The registers that are kept below the address behind the stack, of which there are these bytes from `start` on. `None` of a thread of the
    /// kernel, and of 32-bit code.
    pub(crate) fn registers(self, top: u64, start: u64, bytes: &[u8]) -> Option<Registers> {
        let words = |below: u64, count: usize| {
            let at = usize::try_from(top.checked_sub(below)?.checked_sub(start)?).ok()?;
            let (words, _) = bytes.get(at..)?.get(..8 * count)?.as_chunks::<8>();
            Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>())
        };
        match self {
            Entry::X86_64 => of_x86_64(words),
            Entry::Aarch64 { bytes, address_bits } => of_aarch64(&words(bytes.into(), IN_AARCH64)?, address_bits),
        }
    }
}

fn of_x86_64(words: impl Fn(u64, usize) -> Option<Vec<u64>>) -> Option<Registers> {
    /// What is above the registers, by the kernel's version (`TOP_OF_KERNEL_STACK_PADDING`).
    const PADDINGS: [u64; 2] = [0, 16];
    const WORDS: usize = 21;
    const CODE_SEGMENT: usize = 17;
    const STACK_SEGMENT: usize = 20;
    /// The places of the registers, in the order of their DWARF numbers.
    const PLACES: [usize; 16] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
    const RIP: usize = 16;
    PADDINGS.into_iter().find_map(|padding| {
        let saved = words(padding + 8 * WORDS as u64, WORDS)?;
        // Those of 64-bit code.
        let is_user = saved[CODE_SEGMENT] == 0x33 && saved[STACK_SEGMENT] == 0x2b;
        is_user.then(|| x86_64::Registers::of_all(saved[RIP], PLACES.map(|place| saved[place])).into())
    })
}

/// x0 to x30, the stack pointer, the program counter and the processor's state: they come first.
const IN_AARCH64: usize = aarch64::GENERAL + 3;

fn of_aarch64(saved: &[u64], address_bits: u8) -> Option<Registers> {
    /// In the state: the level of exceptions, and whether the code is of 32 bits; both are 0 in a process of 64 bits.
    const LEVEL_AND_WIDTH: u64 = 0x1f;
    let (general, rest) = saved.split_first_chunk::<{ aarch64::GENERAL }>()?;
    let [sp, pc, state] = *rest.first_chunk()?;
    let is_user = state & LEVEL_AND_WIDTH == 0 && pc >> 63 == 0 && pc != 0;
    is_user.then(|| aarch64::Registers { pc, sp, general: *general, address_bits }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_a_process_of_aarch64() {
        const TOP: u64 = 0xffff_8000_0804_0000;
        let of = |state: u64, pc: u64, bytes: u32| {
            let mut saved: Vec<u64> = (100..131).chain([0x7fff_0000, pc, state]).collect();
            saved.resize(42, 0);
            let bytes_of: Vec<u8> = saved.iter().flat_map(|word| word.to_le_bytes()).collect();
            let entry = Entry::Aarch64 { bytes, address_bits: 39 };
            entry.registers(TOP, TOP - bytes_of.len() as u64, &bytes_of)
        };
        let Some(Registers::Aarch64(found)) = of(0x6000_0000, 0x40_1000, 336) else { panic!("no registers") };
        assert_eq!((found.pc, found.sp, found.address_bits), (0x40_1000, 0x7fff_0000, 39));
        assert_eq!((found.general[0], found.lr()), (100, 130));
        // Of a kernel thread, of 32-bit code, of an address of the kernel, and below the copy.
        for (state, pc, bytes) in
            [(5, 0x40_1000, 336), (0x10, 0x40_1000, 336), (0, 1 << 63, 336), (0, 1, 344), (0, 0, 336)]
        {
            assert_eq!(of(state, pc, bytes), None);
        }
    }
}
