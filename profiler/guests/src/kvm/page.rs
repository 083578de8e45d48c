//! The page that KVM shares with a VMM for each vCPU (`struct kvm_run` of `linux/kvm.h`): if asked to,
//! KVM writes the registers there whenever `KVM_RUN` returns (`KVM_CAP_SYNC_REGS`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use glass_profile::event::Registers;

use crate::memory::Paging;
use crate::sys::Map;
use crate::vm::CoreRegisters;

/// `KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS`.
pub(super) const WANTED: u64 = 1 | 2;

// Offsets in bytes. They are the kernel's interface to programs and never change.
const VALID_REGISTERS: usize = 288;
const GENERAL: usize = 304;
const SYSTEM: usize = GENERAL + GENERAL_BYTES;
const END: usize = SYSTEM + SYSTEM_BYTES;
/// Bytes of `struct kvm_regs` and `struct kvm_sregs`.
pub(super) const GENERAL_BYTES: usize = 18 * 8;
pub(super) const SYSTEM_BYTES: usize = 312;

const RSP: usize = GENERAL + 6 * 8;
const RBP: usize = GENERAL + 7 * 8;
const RIP: usize = GENERAL + 16 * 8;
/// Segments begin with their base.
const CS_BASE: usize = SYSTEM;
const CS_SELECTOR: usize = SYSTEM + 12;
const SS_BASE: usize = SYSTEM + 5 * 24;
const CR0: usize = SYSTEM + 8 * 24 + 2 * 16;
const CR3: usize = CR0 + 16;
const CR4: usize = CR0 + 24;
const EFER: usize = CR0 + 40;

/// The bit of EFER that says that segments have no base.
const EFER_LONG: u64 = 1 << 10;

/// The shared page of one vCPU.
#[derive(Debug)]
pub(super) struct RunPage {
    map: Map,
    /// What the VMM itself had asked KVM to write.
    previous: u64,
}

impl RunPage {
    /// Maps the page of a vCPU and asks for registers.
    pub(super) fn open(vcpu: &OwnedFd) -> io::Result<RunPage> {
        let map = Map::new(vcpu.as_fd(), 4096, true)?;
        let previous = map.load(VALID_REGISTERS);
        map.store(VALID_REGISTERS, previous | WANTED);
        Ok(RunPage { map, previous })
    }

    /// The registers when `KVM_RUN` returned last.
    pub(super) fn registers(&self) -> CoreRegisters {
        let mut bytes = [0; END];
        let copied = self.map.read(0, &mut bytes);
        debug_assert!(copied, "the page is longer");
        parse(&bytes)
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        self.map.store(VALID_REGISTERS, self.previous);
    }
}

/// The same, of the two structures apart.
pub(super) fn parse_parts(general: &[u8; GENERAL_BYTES], system: &[u8; SYSTEM_BYTES]) -> CoreRegisters {
    let mut bytes = [0; END];
    bytes[GENERAL..SYSTEM].copy_from_slice(general);
    bytes[SYSTEM..].copy_from_slice(system);
    parse(&bytes)
}

fn parse(bytes: &[u8; END]) -> CoreRegisters {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let registers = Registers { rip: word(RIP), rsp: word(RSP), rbp: word(RBP) };
    CoreRegisters {
        registers: match word(EFER) & EFER_LONG {
            0 => registers.in_segments(word(CS_BASE), word(SS_BASE)),
            _ => registers,
        },
        paging: Paging { cr0: word(CR0), cr3: word(CR3), cr4: word(CR4), efer: Some(word(EFER)) },
        ring: bytes[CS_SELECTOR] & 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_where_the_kernel_puts_them() {
        // Numbers from a C program that printed offsetof() of linux/kvm.h.
        assert_eq!((VALID_REGISTERS, GENERAL, SYSTEM, END), (288, 304, 448, 760));
        let mut bytes = [0u8; END];
        for (at, value) in [(352, 1), (360, 2), (432, 3), (672, 4), (688, 5), (696, 6), (712, 7)] {
            bytes[at] = value;
        }
        bytes[460] = 0x33;
        let core = parse(&bytes);
        assert_eq!(core.registers, Registers { rsp: 1, rbp: 2, rip: 3 });
        assert_eq!(core.paging, Paging { cr0: 4, cr3: 5, cr4: 6, efer: Some(7) });
        assert_eq!(core.ring, 3);
        // Before the switch to long mode addresses are within segments: a vCPU that was never started stands at the
        // reset vector, and not at 0xfff0.
        bytes[448..456].copy_from_slice(&0xffff_0000u64.to_le_bytes());
        bytes[568..576].copy_from_slice(&0x100u64.to_le_bytes());
        assert_eq!(parse(&bytes).registers, Registers { rsp: 0x101, rbp: 0x102, rip: 0xffff_0003 });
        bytes[713] = 4;
        assert_eq!(parse(&bytes).registers, Registers { rsp: 1, rbp: 2, rip: 3 });
    }
}
