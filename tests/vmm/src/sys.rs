//! The guest's memory: mappings of this process, and the slots in which KVM has them. The only module with `unsafe`.

use std::ptr;

use anyhow::{Context, Result};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use crate::layout::{Source, Zone};

/// How far apart marks are.
const MARK_EVERY: u64 = 2 << 20;
const PAGE: usize = 4096;

/// The memory that the guest has so far.
#[derive(Default)]
pub struct Memory {
    guest: GuestMemoryMmap,
    slots: u32,
}

impl Memory {
    /// The memory by physical addresses.
    pub fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Maps a zone, and gives it to the guest.
    pub fn add(&mut self, vm: &VmFd, zone: &Zone) -> Result<()> {
        let bytes = zone.parts.iter().map(|part| part.bytes).sum::<u64>() as usize;
        let mut host = map(zone.source, bytes).context("cannot map the guest's memory")?;
        for part in &zone.parts {
            // SAFETY: `map` has just mapped it for reading and writing, nothing unmaps it, and no reference to it is made.
            let region = unsafe { MmapRegion::build_raw(host, part.bytes as usize, PROTECTION, libc::MAP_SHARED)? };
            let region = GuestRegionMmap::new(region, GuestAddress(part.address)).context("a zone has no end")?;
            self.guest = self.guest.insert_region(region.into())?;
            let slot = kvm_userspace_memory_region {
                slot: self.slots,
                guest_phys_addr: part.address,
                memory_size: part.bytes,
                userspace_addr: host as u64,
                flags: 0,
            };
            // SAFETY: the memory stays mapped as long as this process, and so the VM, lives.
            unsafe { vm.set_user_memory_region(slot)? };
            self.slots += 1;
            host = host.wrapping_add(part.bytes as usize);
        }
        Ok(())
    }

    /// Writes the marks of the slots from a number on.
    pub fn write_marks(&self, from: u32) -> Result<()> {
        let mut regions: Vec<_> = self.guest.iter().map(|region| (region.start_addr().0, region.len())).collect();
        // Slots are added in the order of their addresses.
        regions.drain(..from as usize);
        for (start, bytes) in regions {
            let marks = (start..start + bytes).step_by(MARK_EVERY as usize).map(|at| at + MARK_EVERY - 8);
            for address in marks.filter(|address| *address < start + bytes) {
                self.guest.write_obj(mark(address), GuestAddress(address))?;
            }
        }
        Ok(())
    }
}

/// What is written at an address.
fn mark(address: u64) -> u64 {
    address ^ 0x5a5a_1234_5678_a5a5
}

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps memory that is touched page by page, however large it is.
fn map(source: Source, bytes: usize) -> std::io::Result<*mut u8> {
    let check = |address: *mut libc::c_void| match address {
        libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
        address => Ok(address),
    };
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new mappings at addresses of the kernel's choice; the one at a given address replaces a part of the first, which is ours. The
    // descriptor is a new one, and the mapping outlives it.
    let address = unsafe {
        match source {
            Source::Memfd | Source::Sealed => {
                let file = libc::memfd_create(c"ch_ram".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
                if file < 0 || libc::ftruncate(file, bytes as libc::off_t) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                if source == Source::Sealed && libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                check(libc::mmap(ptr::null_mut(), bytes, PROTECTION, libc::MAP_SHARED | libc::MAP_NORESERVE, file, 0))?
            }
            Source::Anonymous => check(libc::mmap(ptr::null_mut(), bytes, PROTECTION, private, -1, 0))?,
            Source::Guarded => {
                let all = check(libc::mmap(ptr::null_mut(), bytes + 2 * PAGE, libc::PROT_NONE, private, -1, 0))?;
                let inside = all.wrapping_byte_add(PAGE);
                check(libc::mmap(inside, bytes, PROTECTION, private | libc::MAP_FIXED, -1, 0))?
            }
        }
    };
    // SAFETY: the mapping is ours; without huge pages a mark takes 4 KiB. RAM is a mapping of its own, as other VMMs have it.
    unsafe {
        libc::madvise(address, bytes, libc::MADV_NOHUGEPAGE);
        libc::madvise(address, bytes, libc::MADV_DONTDUMP);
    }
    Ok(address.cast())
}

/// Nothing of a test that has died stays behind.
pub fn end_with_parent() {
    // SAFETY: it takes numbers and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
