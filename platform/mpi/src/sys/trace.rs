//! The memory of the trace that a rank's events go to: the launcher's, or in a VM that of the kernel on the same core.

use super::variable;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use glass_formats::trace::{CONTROL_BYTES, CONTROL_MAGIC, Control, EVENT_BYTES, RINGS_MAX, Ring, TRACE_VERSION};
use glass_lib_mpi::trace::Trace;

/// For processes: the descriptor of the trace's file, in which the ring has the rank's number.
const FILE: &str = "GLASS_MPI_TRACE_FD";
/// In a VM: the address of the control pages and the number of the core's ring.
const ADDRESS: &str = "GLASS_MPI_TRACE";
const RING_BYTES_MAX: u64 = 1 << 30;

/// Where the events of `rank` go; [`Trace::NONE`] if nothing can trace them.
pub(crate) fn trace(rank: usize) -> Trace {
    let in_vm = variable(ADDRESS).and_then(|text| {
        let (address, ring) = text.split_once(':')?;
        of_kernel(address.parse().ok()?, ring.parse().ok()?)
    });
    let in_file = || of_file(variable(FILE)?.parse().ok()?, rank);
    in_vm.or_else(in_file).unwrap_or(Trace::NONE)
}

fn of_kernel(address: usize, ring: usize) -> Option<Trace> {
    let control = NonNull::new(ptr::with_exposed_provenance_mut::<Control>(address))?;
    // SAFETY: the kernel's static, which is mapped for all ranks and never goes away; it has named the address.
    let control = unsafe { control.as_ref() };
    let entry = control.rings.get(ring)?;
    let words =
        NonNull::new(ptr::with_exposed_provenance_mut::<AtomicU64>(entry.address.load(Ordering::Acquire) as usize))?;
    // SAFETY: the ring's memory, as the kernel has published it; this program runs on the core that the ring is of.
    unsafe { ring_of(control, ring, words) }
}

fn of_file(descriptor: i32, ring: usize) -> Option<Trace> {
    let control = map(descriptor, 0, CONTROL_BYTES)?.cast::<Control>();
    // SAFETY: the mapping has this size and is never removed; all of it is atomics.
    let control = unsafe { control.as_ref() };
    let entry = control.rings.get(ring)?;
    let bytes = entry.capacity.load(Ordering::Acquire).checked_mul(EVENT_BYTES as u64)?;
    let offset = entry.address.load(Ordering::Relaxed).checked_sub(control.area_address.load(Ordering::Relaxed))?;
    let end = offset.checked_add(bytes)?;
    if bytes == 0 || bytes > RING_BYTES_MAX || end > control.area_bytes.load(Ordering::Relaxed) {
        return None;
    }
    let words = map(descriptor, CONTROL_BYTES as u64 + offset, bytes as usize)?.cast();
    // SAFETY: a mapping of the ring's size that is never removed; the launcher gives each rank a ring of its own.
    unsafe { ring_of(control, ring, words) }
}

/// # Safety
/// `words` is the memory of ring `ring`, as long as its entry has it, and nothing else writes it while the program runs.
unsafe fn ring_of(control: &'static Control, ring: usize, words: NonNull<AtomicU64>) -> Option<Trace> {
    let is_known = control.magic.load(Ordering::Acquire) == CONTROL_MAGIC
        && control.version.load(Ordering::Relaxed) == TRACE_VERSION;
    let entry = control.rings.get(ring).filter(|_| is_known)?;
    let events = usize::try_from(entry.capacity.load(Ordering::Acquire)).ok()?;
    // SAFETY: as the caller promises.
    let words =
        unsafe { slice::from_raw_parts(words.as_ptr(), events.checked_mul(EVENT_BYTES / size_of::<AtomicU64>())?) };
    Some(Trace::new(&control.groups, Ring::new(&entry.head, words)?))
}

/// Maps a part of a file; `None` if the file is not that long, or the kernel does not allow it.
fn map(descriptor: i32, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a number; the file of the launcher is sealed against shrinking.
    let length = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
    if offset.checked_add(bytes as u64)? > u64::try_from(length).ok()? {
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, descriptor, libc::off_t::try_from(offset).ok()?)
    };
    NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)
}

const _: () = assert!(RINGS_MAX <= 256 && CONTROL_BYTES.is_multiple_of(4096));
