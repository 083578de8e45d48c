//! The block of instructions that QEMU's emulator is executing, from QEMU's memory.
//!
//! A vCPU that is emulated stops between two blocks, and its registers do not show the one before. QEMU has more: the instruction pointer in its
//! state of the vCPU is that of an instruction of the block, from the block's start on, until the emulator has left it (from 7.2 on, where translated code does not
//! depend on its address: `CF_PCREL`, target/i386/tcg/translate.c and target/arm/translate-a64.c). Translated code has the address of that state in a
//! register of the host (`TCG_AREG0`, tcg/HOST/tcg-target.h), and near its start are the general registers and the instruction pointer (`CPUX86State`,
//! target/i386/cpu.h; `CPUARMState`, target/arm/cpu.h, behind 64 bytes for the registers of AArch32).
//!
//! QEMU promises none of this. So it counts only where the words at that address are the registers that the gdbstub sends while the VM is held.

use glass_profiler_core::arch::{Architecture, Registers, aarch64, x86_64};

use crate::sys::read_process;

/// The first version of QEMU that has the instruction pointer of each block.
const VERSION_LEAST: (u32, u32) = (7, 2);
/// The most words that are compared: general registers and instruction pointer.
const WORDS_MAX: usize = aarch64::GENERAL + 2;
/// Where QEMU has the general registers of x86-64, in the order of DWARF's numbers: its own order is that of instructions (Intel SDM volume 2, table 3-1).
const PLACES: [usize; x86_64::GENERAL] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// The words of a vCPU's state that are compared; the last one is the instruction pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Words {
    words: [u64; WORDS_MAX],
    count: usize,
}

impl Words {
    /// Their offset in the state in bytes, and how many they are.
    fn place(architecture: Architecture) -> (u64, usize) {
        match architecture {
            Architecture::X86_64 => (0, x86_64::GENERAL + 1),
            Architecture::Aarch64 => (64, aarch64::GENERAL + 2),
        }
    }

    fn read(pid: u32, state: u64, architecture: Architecture) -> Option<Words> {
        let (offset, count) = Words::place(architecture);
        let mut bytes = [[0; 8]; WORDS_MAX];
        let read = read_process(pid, state.checked_add(offset)?, bytes[..count].as_flattened_mut());
        (read == count * 8).then(|| Words { words: bytes.map(u64::from_le_bytes), count })
    }

    fn read_pointer(pid: u32, state: u64, architecture: Architecture) -> Option<u64> {
        let (offset, count) = Words::place(architecture);
        let mut bytes = [0; 8];
        let read = read_process(pid, state.checked_add(offset + (count as u64 - 1) * 8)?, &mut bytes);
        (read == bytes.len()).then(|| u64::from_le_bytes(bytes))
    }

    /// Those of a vCPU with these registers, if all are known.
    fn of(registers: &Registers) -> Option<Words> {
        let mut words = [0; WORDS_MAX];
        let count = match registers {
            Registers::X86_64(registers) => {
                for (place, value) in PLACES.iter().zip(registers.general()?) {
                    words[*place] = value;
                }
                words[x86_64::GENERAL] = registers.rip;
                x86_64::GENERAL + 1
            }
            Registers::Aarch64(registers) => {
                words[..aarch64::GENERAL].copy_from_slice(&registers.general);
                words[aarch64::GENERAL..].copy_from_slice(&[registers.sp, registers.pc]);
                WORDS_MAX
            }
        };
        Some(Words { words, count })
    }
}

/// Whether the version of QEMU that its monitor prints has it.
pub(super) fn is_shown_by(version: &str) -> bool {
    let mut numbers = version.trim_start().splitn(3, '.').map(|number| number.parse().ok());
    matches!((numbers.next(), numbers.next()), (Some(Some(major)), Some(Some(minor))) if (major, minor) >= VERSION_LEAST)
}

/// What is known of a vCPU in QEMU's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Emulated {
    architecture: Architecture,
    /// Where its state may be.
    address: Option<u64>,
    /// The state was found there. It stays there.
    is_known: bool,
    /// The instruction pointer that was there when the vCPU was stopped, until it is used.
    block: Option<u64>,
    /// What is there in this hold, once it was read.
    words: Option<Words>,
}

impl Emulated {
    /// Nothing is known yet of a vCPU of this kind.
    pub(super) fn new(architecture: Architecture) -> Emulated {
        Emulated { architecture, ..Emulated::default() }
    }

    /// The vCPU's thread is stopped; `state` returns what its register points to where translated code has its state.
    pub(super) fn stopped(&mut self, pid: u32, state: impl FnOnce() -> Option<u64>) {
        if !self.is_known {
            self.address = state();
        }
        let pointer = self.address.and_then(|address| Words::read_pointer(pid, address, self.architecture));
        (self.block, self.words) = (pointer, None);
    }

    /// Forgets the block: the vCPU has continued.
    pub(super) fn forget(&mut self) {
        (self.block, self.words) = (None, None);
    }

    /// The instruction pointer, if the vCPU has these registers in this hold.
    pub(super) fn block(&mut self, pid: u32, registers: &Registers) -> Option<u64> {
        self.block?;
        if self.words.is_none() {
            self.words = Words::read(pid, self.address?, self.architecture);
        }
        // Otherwise they may be those of another vCPU.
        if self.words? != Words::of(registers)? {
            return None;
        }
        self.is_known = true;
        self.block.take()
    }
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
    fn registers(rip: u64) -> Registers {
        x86_64::Registers::of_all(rip, std::array::from_fn(|index| index as u64 + 1)).into()
    }

    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15, rip.
    const STATE: [u64; 17] = [1, 3, 2, 4, 8, 7, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 0x1000];
    const RIP: usize = 16;

    fn read(state: &[u64], architecture: Architecture) -> Option<Words> {
        Words::read(std::process::id(), state.as_ptr() as u64, architecture)
    }

    #[test]
    fn the_state_is_only_where_all_registers_are() {
        assert_eq!(read(&STATE, Architecture::X86_64), Words::of(&registers(0x1000)));
        for place in 0..STATE.len() {
            let mut other = STATE;
            other[place] ^= 1 << 40;
            assert_ne!(read(&other, Architecture::X86_64), Words::of(&registers(0x1000)), "{place}");
        }
        assert_eq!(Words::of(&x86_64::Registers::new(0x1000, 8, 7).into()), None, "not all are known");
    }

    #[test]
    fn the_state_of_another_processor() {
        // Sixteen registers of AArch32, x0 to x30, sp, pc.
        let state: [u64; 8 + 33] = std::array::from_fn(|index| index as u64);
        let general = std::array::from_fn(|number| number as u64 + 8);
        let registers = aarch64::Registers { pc: 40, sp: 39, general, address_bits: 48 };
        assert_eq!(read(&state, Architecture::Aarch64), Words::of(&registers.into()));
        let other = aarch64::Registers { sp: 38, ..registers };
        assert_ne!(read(&state, Architecture::Aarch64), Words::of(&other.into()));
        let pointer = Words::read_pointer(std::process::id(), state.as_ptr() as u64, Architecture::Aarch64);
        assert_eq!(pointer, Some(40));
    }

    #[test]
    fn a_block_is_of_one_stop_and_of_a_state_that_is_known() {
        let pid = std::process::id();
        let (mut running, other) = (STATE, [0u64; 17]);
        running[RIP] = 0xff0;
        let at = |state: &[u64; 17]| state.as_ptr() as u64;
        let mut vcpu = Emulated::new(Architecture::X86_64);
        // Not in translated code; an address of something else; one that is not mapped.
        vcpu.stopped(pid, || None);
        assert_eq!(vcpu.block(pid, &registers(0x1000)), None);
        for address in [at(&other), 0, u64::MAX - 3] {
            vcpu.stopped(pid, || Some(address));
            assert_eq!(vcpu.block(pid, &registers(0x1000)), None);
        }
        vcpu.stopped(pid, || Some(at(&running)));
        std::hint::black_box(&mut running)[RIP] = 0x1000;
        assert_eq!(vcpu.block(pid, &registers(0x1001)), None, "of another vCPU");
        assert_eq!(vcpu.block(pid, &registers(0x1000)), Some(0xff0));
        assert_eq!(vcpu.block(pid, &registers(0x1000)), None, "of this stop only");
        // The place stays, wherever the thread is stopped later.
        std::hint::black_box(&mut running)[RIP] = 0xfe0;
        vcpu.stopped(pid, || panic!("it is known"));
        std::hint::black_box(&mut running)[RIP] = 0x1000;
        let mut next = vcpu;
        assert_eq!(next.block(pid, &registers(0x1000)), Some(0xfe0));
        vcpu.forget();
        assert_eq!(vcpu.block(pid, &registers(0x1000)), None);
    }
}
