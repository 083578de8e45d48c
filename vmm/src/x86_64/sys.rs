//! What Rust cannot check: memory slots and descriptors. The only module with `unsafe`.

use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};

use anyhow::{Context, Result};
use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{Advice, madvise};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

const PAGE_BYTES: usize = 4096;

/// Memory that a VM uses as long as it lives. Its fields are in the order of their end.
pub struct Slots {
    vm: VmFd,
    /// Whether there is one for the windows.
    has_windows: bool,
    windows: MmapRegion,
    memory: GuestMemoryMmap,
}

impl Slots {
    /// Gives a new VM its memory, and `windows` at the physical address `address` for reading only, if KVM can: then a read there is no exit.
    pub fn new(vm: VmFd, memory: GuestMemoryMmap, windows: MmapRegion, address: u64) -> Result<Slots> {
        let mut slot = 0;
        let mut add = |guest_phys_addr, memory_size, userspace_addr, flags| {
            let region = kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
            slot += 1;
            // SAFETY: the mapping is a part of the returned value, which is dropped after the VM, or is kept by a vCPU until the process ends.
            unsafe { vm.set_user_memory_region(region) }
        };
        for region in memory.iter() {
            let (start, bytes) = (region.start_addr().0, region.len());
            add(start, bytes, region.as_ptr() as u64, 0).context("KVM does not take the VM's memory")?;
        }
        let has_windows = add(address, windows.size() as u64, windows.as_ptr() as u64, KVM_MEM_READONLY).is_ok();
        Ok(Slots { vm, has_windows, windows, memory })
    }

    /// The VM.
    pub fn vm(&self) -> &VmFd {
        &self.vm
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// What the guest reads of the devices' windows; `None` if each of its reads is an exit.
    pub fn windows(&self) -> Option<&MmapRegion> {
        Some(&self.windows).filter(|_| self.has_windows)
    }
}

/// Makes the pages of a range of the guest's memory, all at once. A host that cannot makes each when it is used.
pub fn populate(memory: &GuestMemoryMmap, address: GuestAddress, bytes: u64) {
    let Ok(range) = memory.get_slice(address, bytes as usize) else { return };
    let pointer = range.ptr_guard_mut();
    let (start, end) = (pointer.as_ptr().addr() & !(PAGE_BYTES - 1), pointer.as_ptr().addr() + range.len());
    // SAFETY: no byte changes, and no page that is not mapped is mapped by it.
    let _ = unsafe { madvise(pointer.as_ptr().with_addr(start).cast(), end - start, Advice::LinuxPopulateWrite) };
}

/// A counter that does not block, as KVM takes it, and the same one as a file.
pub fn event() -> Result<(EventFd, File)> {
    let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("there are no descriptors")?;
    let copy = file.try_clone().context("there are no descriptors")?;
    // SAFETY: it owns the descriptor from here on.
    let event = unsafe { EventFd::from_raw_fd(copy.into_raw_fd()) };
    Ok((event, file.into()))
}
