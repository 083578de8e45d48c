//! What Rust cannot check: memory slots, descriptors, and memory that readers of the trace share. The only module with `unsafe`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::slice;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use glass_formats::trace::{CONTROL_BYTES, Control};
use kvm_bindings::{
    KVM_MEM_READONLY, kvm_irqchip, kvm_lapic_state, kvm_regs, kvm_sregs, kvm_userspace_memory_region, kvm_vcpu_events,
    kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{VcpuFd, VmFd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MprotectFlags, UserfaultfdFlags, madvise, mprotect, userfaultfd};
use rustix::process::Pid;
use vm_memory::{
    ByteValued, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion,
};
use vmm_sys_util::eventfd::EventFd;

const PAGE_BYTES: usize = 4096;

/// Memory that a VM uses as long as it lives. Its fields are in the order of their end.
pub struct Slots {
    vm: VmFd,
    /// Whether there is one for the windows.
    has_windows: bool,
    windows: MmapRegion,
    memory: GuestMemoryMmap,
    /// The same as KVM sees it.
    _seen: GuestMemoryMmap,
}

impl Slots {
    /// Gives a new VM its memory, which KVM uses by the mapping `seen`, and `windows` at the physical address `address` for reading only, if KVM can: then a read there is no exit.
    pub fn new(
        vm: VmFd,
        memory: GuestMemoryMmap,
        seen: GuestMemoryMmap,
        windows: MmapRegion,
        address: u64,
    ) -> Result<Slots> {
        let mut slot = 0;
        let mut add = |guest_phys_addr, memory_size, userspace_addr, flags| {
            let region = kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
            slot += 1;
            // SAFETY: the mapping is a part of the returned value, which is dropped after the VM, or is kept by a vCPU until the process ends.
            unsafe { vm.set_user_memory_region(region) }
        };
        for region in seen.iter() {
            let (start, bytes) = (region.start_addr().0, region.len());
            add(start, bytes, region.as_ptr() as u64, 0).context("KVM does not take the VM's memory")?;
        }
        let has_windows = add(address, windows.size() as u64, windows.as_ptr() as u64, KVM_MEM_READONLY).is_ok();
        Ok(Slots { vm, has_windows, windows, memory, _seen: seen })
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

/// Sets what may be done with the page of memory at an address, by this process and by KVM.
pub fn protect_page(memory: &GuestMemoryMmap, address: GuestAddress, is_read: bool, is_written: bool) -> Result<()> {
    let start = GuestAddress(address.0 & !(PAGE_BYTES as u64 - 1));
    let page = memory.get_slice(start, PAGE_BYTES).context("the page is not in RAM")?;
    let mut flags = MprotectFlags::empty();
    flags.set(MprotectFlags::READ, is_read);
    flags.set(MprotectFlags::WRITE, is_written);
    // SAFETY: the page is a part of this mapping, which only KVM uses.
    unsafe { mprotect(page.ptr_guard_mut().as_ptr().cast(), PAGE_BYTES, flags) }.context("a page cannot be opened")
}

/// `UFFDIO_API` and `UFFDIO_REGISTER`, their structures' version and features, and a mode (`linux/userfaultfd.h`).
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;

/// As long as the result lives, a fault in this memory maps the page that was used alone, and not those of the file around it: so the kernel's table has
/// exactly what is used. It needs no rights.
///
/// # Errors
/// The kernel is older than Linux 6.7.
pub fn without_neighbours(memory: &GuestMemoryMmap) -> io::Result<OwnedFd> {
    // SAFETY: no page is registered by it, and its faults are never waited for.
    let watch =
        unsafe { userfaultfd(UserfaultfdFlags::from_bits_retain(libc::O_CLOEXEC as u32 | UFFD_USER_MODE_ONLY)) }?;
    // Nothing is write-protected, and what would be is not waited for.
    let mut api = [UFFD_API, UFFD_FEATURE_WP_ASYNC, 0];
    // SAFETY: the structure has three numbers of 64 bits.
    let agreed = unsafe { libc::ioctl(watch.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    ensure_done(agreed)?;
    for region in memory.iter() {
        let mut register = [region.as_ptr() as u64, region.len(), UFFDIO_REGISTER_MODE_WP, 0];
        // SAFETY: the structure has four numbers of 64 bits; what the memory has stays.
        let registered = unsafe { libc::ioctl(watch.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) };
        ensure_done(registered)?;
    }
    Ok(watch)
}

fn ensure_done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A structure of KVM as bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Plain<T>(pub T);

// SAFETY: these structures consist of numbers and of arrays of numbers without gaps (`kvm_irqchip` of a union of such ones of the same size), so any bytes
// are a value.
unsafe impl ByteValued for Plain<kvm_regs> {}
// SAFETY: as above.
unsafe impl ByteValued for Plain<kvm_sregs> {}
// SAFETY: as above.
unsafe impl ByteValued for Plain<kvm_xcrs> {}
// SAFETY: as above.
unsafe impl ByteValued for Plain<kvm_vcpu_events> {}
// SAFETY: as above.
unsafe impl ByteValued for Plain<kvm_lapic_state> {}
// SAFETY: as above.
unsafe impl ByteValued for Plain<kvm_irqchip> {}

/// Gives a new processor its extended registers.
pub fn set_extended_state(processor: &VcpuFd, state: &kvm_xsave) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: KVM reads more than the structure only if this process has permitted larger registers to its guests (`arch_prctl`), which it never does.
    unsafe { processor.set_xsave(state) }
}

/// Makes a process like this one, which must have no other threads: `None` in that, and its number here.
pub fn fork() -> io::Result<Option<Pid>> {
    ensure_single_thread()?;
    // SAFETY: there is one thread, so no lock is held and nothing is half done in the new process.
    let pid = unsafe { libc::fork() };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid::from_raw(pid)) }
}

fn ensure_single_thread() -> io::Result<()> {
    let threads = glass_lib_jail::threads()?;
    if threads == 1 { Ok(()) } else { Err(io::Error::other(format!("there are {threads} threads"))) }
}

/// A counter that does not block, as KVM takes it, and the same one as a file.
pub fn event() -> Result<(EventFd, File)> {
    let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("there are no descriptors")?;
    let copy = file.try_clone().context("there are no descriptors")?;
    // SAFETY: it owns the descriptor from here on.
    let event = unsafe { EventFd::from_raw_fd(copy.into_raw_fd()) };
    Ok((event, file.into()))
}

/// The memory file of a process's trace, which is found by its name as long as it is open (docs/formats/trace.md).
pub struct TraceFile {
    region: MmapRegion,
}

impl TraceFile {
    /// A new one, zero, with room for so many words of rings.
    pub fn new(words: usize) -> Result<TraceFile> {
        let bytes = CONTROL_BYTES + words * size_of::<u64>();
        let make = || {
            let file = memfd_create("glass-trace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&file, bytes as u64)?;
            // A process that opens it must not be able to remove pages, which would be a SIGBUS here.
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok::<_, rustix::io::Errno>(File::from(file))
        };
        let file = make().context("there is no memory for the record of exits")?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes);
        Ok(TraceFile { region: region.context("there is no memory for the record of exits")? })
    }

    /// Its control pages.
    pub fn control(&self) -> &Control {
        // SAFETY: the mapping is longer, aligned to a page, readable and writable, lives as long as `self` and cannot shrink. `Control` is made of
        // atomics, so that it may change at any time, and every byte pattern is a value of it.
        unsafe { &*self.region.as_ptr().cast::<Control>() }
    }

    /// The words of its rings.
    pub fn area(&self) -> &[AtomicU64] {
        let words = (self.region.size() - CONTROL_BYTES) / size_of::<u64>();
        // SAFETY: as above; the pages of control are whole ones, so that the words are aligned, and both end with the mapping.
        unsafe { slice::from_raw_parts(self.region.as_ptr().add(CONTROL_BYTES).cast::<AtomicU64>(), words) }
    }
}

/// This host's TSC now.
pub fn ticks() -> u64 {
    // SAFETY: every processor for x86-64 has the instruction, and Linux lets processes use it unless they have requested otherwise.
    unsafe { core::arch::x86_64::_rdtsc() }
}
