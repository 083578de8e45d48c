//! What needs unsafe code: memory that this process shares with whoever looks at its trace.

use glass_formats::trace::{CONTROL_BYTES, Control};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Kept open, since this is how the file is found: `/proc/PID/fd/N`.
static FILE: OnceLock<OwnedFd> = OnceLock::new();

/// Puts a new memory file named `glass-trace` in the place of the control pages, and behind them in the file
/// an area of `area_bytes` for rings, which takes memory only where it is written. Once a process.
pub(crate) fn share(control: &'static Control, area_bytes: usize) -> io::Result<&'static [AtomicU64]> {
    // Beyond its limit for files a process is killed by a signal, even if the file is memory.
    let bytes = (CONTROL_BYTES + area_bytes) as u64;
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < bytes) {
        return Err(io::Error::other(format!("files of {bytes} bytes are above the limit of this process")));
    }
    let file = rustix::fs::memfd_create("glass-trace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    // Whoever opens the file must not be able to take pages away under our feet, which would be a SIGBUS.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let area = unsafe {
        let length = area_bytes;
        rustix::mm::mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, &file, CONTROL_BYTES as u64)?
    };
    let place = ptr::from_ref(control).cast_mut().cast::<c_void>();
    // SAFETY: `Control` is aligned to pages and made of whole ones (`const` below), so that nothing else lies in those
    // that are replaced. It consists of atomics, which may change at any time, and is never freed, being a static.
    // The file is zero as the static was: nobody writes to it before `glass_trace::start`, which comes later.
    let placed =
        unsafe { rustix::mm::mmap(place, CONTROL_BYTES, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
    assert_eq!(placed, place, "MAP_FIXED maps where it is told");
    let is_first = FILE.set(file).is_ok();
    assert!(is_first, "the trace is shared once a process");
    // SAFETY: the mapping above is `area_bytes` long, aligned to a page, readable and writable, never unmapped, and
    // cannot shrink. Every byte pattern is a value of `AtomicU64`.
    Ok(unsafe { slice::from_raw_parts(area.cast::<AtomicU64>(), area_bytes / size_of::<AtomicU64>()) })
}

const _: () = assert!(CONTROL_BYTES == size_of::<Control>() && CONTROL_BYTES.is_multiple_of(4096));
const _: () = assert!(align_of::<Control>() == 4096);
