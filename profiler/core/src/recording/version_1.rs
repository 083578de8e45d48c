//! Recordings of version 1, which have no guests: they have one guest, whose kind follows from other fields.

use super::proto::{MODE_GUEST_KERNEL, TracePacket};
use crate::arch::Architecture;
use crate::guest::{Guest, GuestId, GuestKind};

/// First id of threads that represent vCPUs.
const VCPU_TID: i32 = 1 << 24;
/// The process that represents a VM in a file.
const FILE_PID: u32 = 1;

/// The guest, as far as packets of version 1 describe it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pid: Option<u32>,
    name: String,
    has_vcpus: bool,
}

impl Seen {
    /// Evaluates a packet.
    pub(super) fn look(&mut self, packet: &TracePacket) {
        if let Some(tree) = &packet.process_tree {
            if let (None, Some(process)) = (self.pid, tree.processes.first()) {
                self.pid = process.pid.and_then(|pid| u32::try_from(pid).ok());
                let name = process.cmdline.first().map(Vec::as_slice).unwrap_or_default();
                self.name = String::from_utf8_lossy(name).into_owned();
            }
            self.has_vcpus |= tree.threads.iter().any(|thread| thread.tid.is_some_and(|tid| tid >= VCPU_TID));
        }
        let mode = packet.perf_sample.as_ref().and_then(|sample| sample.cpu_mode);
        self.has_vcpus |= mode == Some(MODE_GUEST_KERNEL);
    }

    /// The guest.
    pub(super) fn guest(self) -> Guest {
        let pid = self.pid.unwrap_or(0);
        let kind = match self.has_vcpus {
            true if pid == FILE_PID => GuestKind::File,
            true => GuestKind::Vm { vmm: pid },
            false => GuestKind::Process { pid },
        };
        Guest { id: GuestId(0), kind, name: self.name, architecture: Architecture::X86_64 }
    }
}
