//! The block of instructions that QEMU's emulator is executing, from QEMU's memory.
//!
//! A vCPU that is emulated stops between two blocks, and its registers do not show the one before. QEMU has more: the instruction pointer in its
//! state of the vCPU is that of an instruction of the block, from the block's start on, until the emulator has left it (from 7.2 on, where translated code does not
//! depend on its address: `CF_PCREL`, target/i386/tcg/translate.c). Translated code has the address of that state in a register of the host
//! (`TCG_AREG0`, tcg/HOST/tcg-target.h), and it begins with the general registers and the instruction pointer (`CPUX86State`, target/i386/cpu.h).
//!
//! QEMU promises none of this. So it counts only where the words at that address are the registers that the gdbstub sends while the VM is held.

use glass_profiler_core::arch::x86_64::{GENERAL, Registers};

use crate::sys::read_process;

/// The first version of QEMU that has the instruction pointer of each block.
const VERSION_LEAST: (u32, u32) = (7, 2);
/// The words that are compared: general registers and instruction pointer.
const WORDS: usize = GENERAL + 1;
/// Where QEMU has the general registers, in the order of DWARF's numbers: its own order is that of instructions (Intel SDM volume 2, table 3-1).
const PLACES: [usize; GENERAL] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// Whether the version of QEMU that its monitor prints has it.
pub(super) fn is_shown_by(version: &str) -> bool {
    let mut numbers = version.trim_start().splitn(3, '.').map(|number| number.parse().ok());
    matches!((numbers.next(), numbers.next()), (Some(Some(major)), Some(Some(minor))) if (major, minor) >= VERSION_LEAST)
}

/// What is known of a vCPU in QEMU's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Emulated {
    /// Where its state may be.
    address: Option<u64>,
    /// The state was found there. It stays there.
    is_known: bool,
    /// The instruction pointer that was there when the vCPU was stopped, until it is used.
    block: Option<u64>,
    /// What is there in this hold, once it was read.
    words: Option<[u64; WORDS]>,
}

impl Emulated {
    /// The vCPU's thread is stopped; `state` returns what its register points to where translated code has its state.
    pub(super) fn stopped(&mut self, pid: u32, state: impl FnOnce() -> Option<u64>) {
        if !self.is_known {
            self.address = state();
        }
        let words = self.address.and_then(|address| read_words::<1>(pid, address.checked_add(GENERAL as u64 * 8)?));
        (self.block, self.words) = (words.map(|[pointer]| pointer), None);
    }

    /// Forgets the block: the vCPU has continued.
    pub(super) fn forget(&mut self) {
        (self.block, self.words) = (None, None);
    }

    /// The instruction pointer, if the vCPU has these registers in this hold.
    pub(super) fn block(&mut self, pid: u32, registers: &Registers) -> Option<u64> {
        self.block?;
        if self.words.is_none() {
            self.words = read_words(pid, self.address?);
        }
        // Otherwise they may be those of another vCPU.
        if !is_state(&self.words?, registers) {
            return None;
        }
        self.is_known = true;
        self.block.take()
    }
}

fn read_words<const COUNT: usize>(pid: u32, address: u64) -> Option<[u64; COUNT]> {
    let mut bytes = [[0; 8]; COUNT];
    let read = read_process(pid, address, bytes.as_flattened_mut());
    (read == COUNT * 8).then(|| bytes.map(u64::from_le_bytes))
}

/// Whether QEMU's state of a vCPU begins with these registers.
fn is_state(words: &[u64; WORDS], registers: &Registers) -> bool {
    let Some(general) = registers.general() else { return false };
    words[GENERAL] == registers.rip && PLACES.iter().zip(general).all(|(place, value)| words[*place] == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_qemu() {
        for version in ["7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\r\n", "7.2.0\n", "8.0.0", "10.1.90"] {
            assert!(is_shown_by(version), "{version}");
        }
        for version in
            ["7.1.9\n", "6.2.0Debian", "", "7", "7.x.2", "unknown command: 'info version'\r\n", "99999999999.9"]
        {
            assert!(!is_shown_by(version), "{version}");
        }
    }

    /// General registers by their DWARF numbers, from 1 on.
    fn registers() -> Registers {
        Registers::of_all(0x1000, std::array::from_fn(|index| index as u64 + 1))
    }

    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15, rip.
    const STATE: [u64; WORDS] = [1, 3, 2, 4, 8, 7, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 0x1000];

    #[test]
    fn the_state_is_only_where_all_registers_are() {
        assert!(is_state(&STATE, &registers()));
        for place in 0..WORDS {
            let mut other = STATE;
            other[place] ^= 1 << 40;
            assert!(!is_state(&other, &registers()), "{place}");
        }
        assert!(!is_state(&STATE, &Registers::new(0x1000, 8, 7)), "not all are known");
    }

    #[test]
    fn a_block_is_of_one_stop_and_of_a_state_that_is_known() {
        let pid = std::process::id();
        let (mut running, other) = (STATE, [0u64; WORDS]);
        running[GENERAL] = 0xff0;
        let at = |state: &[u64; WORDS]| state.as_ptr() as u64;
        let mut vcpu = Emulated::default();
        // Not in translated code; an address of something else; one that is not mapped.
        vcpu.stopped(pid, || None);
        assert_eq!(vcpu.block(pid, &registers()), None);
        for address in [at(&other), 0, u64::MAX - 3] {
            vcpu.stopped(pid, || Some(address));
            assert_eq!(vcpu.block(pid, &registers()), None);
        }
        vcpu.stopped(pid, || Some(at(&running)));
        std::hint::black_box(&mut running)[GENERAL] = 0x1000;
        let another = Registers { rip: 0x1001, ..registers() };
        assert_eq!(vcpu.block(pid, &another), None, "of another vCPU");
        assert_eq!(vcpu.block(pid, &registers()), Some(0xff0));
        assert_eq!(vcpu.block(pid, &registers()), None, "of this stop only");
        // The place stays, wherever the thread is stopped later.
        std::hint::black_box(&mut running)[GENERAL] = 0xfe0;
        vcpu.stopped(pid, || panic!("it is known"));
        std::hint::black_box(&mut running)[GENERAL] = 0x1000;
        let mut next = vcpu;
        assert_eq!(next.block(pid, &registers()), Some(0xfe0));
        vcpu.forget();
        assert_eq!(vcpu.block(pid, &registers()), None);
    }
}
