//! The page that KVM shares with a VMM for each vCPU (`struct kvm_run` of `linux/kvm.h`): on request,
//! KVM writes the registers there whenever `KVM_RUN` returns (`KVM_CAP_SYNC_REGS`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::arch::CoreState;
use crate::arch::x86_64::all::AllRegisters;
use crate::arch::x86_64::kvm::{END, EXIT_HALT, EXIT_REASON, FLAGS, NESTED, VALID_REGISTERS, parse, parse_all};
use crate::sys::Map;

/// `KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS`.
pub(super) const WANTED: u64 = 1 | 2;

/// The shared page of one vCPU.
#[derive(Debug)]
pub(super) struct RunPage {
    map: Map,
    /// The registers that the VMM itself had requested from KVM.
    previous: u64,
}

impl RunPage {
    /// Maps the page of a vCPU and requests registers.
    pub(super) fn open(vcpu: &OwnedFd) -> io::Result<RunPage> {
        let map = Map::new(vcpu.as_fd(), 4096, true)?;
        let previous = map.load(VALID_REGISTERS);
        map.store(VALID_REGISTERS, previous | WANTED);
        Ok(RunPage { map, previous })
    }

    /// The registers at the last return of `KVM_RUN`.
    pub(super) fn registers(&self) -> CoreState {
        parse(&self.content())
    }

    /// The same with those that only a dump holds.
    pub(super) fn all_registers(&self) -> AllRegisters {
        parse_all(&self.content())
    }

    fn content(&self) -> [u8; END] {
        let mut bytes = [0; END];
        let copied = self.map.read(0, &mut bytes);
        debug_assert!(copied, "the page is longer");
        bytes
    }

    /// Whether `KVM_RUN` has returned because the guest halts: the VMM has its APIC.
    pub(super) fn has_exited_to_halt(&self) -> bool {
        let mut reason = [0; 4];
        self.map.read(EXIT_REASON as u64, &mut reason) && u32::from_ne_bytes(reason) == EXIT_HALT
    }

    /// Whether the registers are those of a guest that the guest itself runs. Kernels before 6.12 do not report it.
    pub(super) fn is_nested(&self) -> bool {
        let mut flags = [0; 2];
        self.map.read(FLAGS as u64, &mut flags) && u16::from_ne_bytes(flags) & NESTED != 0
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        self.map.store(VALID_REGISTERS, self.previous);
    }
}
