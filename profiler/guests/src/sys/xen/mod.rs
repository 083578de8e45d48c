//! Xen's hypercalls and the memory of other domains, as Linux offers them to a dom0: `/dev/xen/privcmd`,
//! `/dev/xen/hypercall`, and a process that lets a domain run on if we die.

mod calls;
mod guardian;

pub(crate) use calls::{Call, Hypercalls};
pub(crate) use guardian::Guardian;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Map, check};

/// Bytes of a page, and of a frame.
pub(crate) const PAGE_BYTES: usize = 4096;

/// `_IOC(_IOC_NONE, 'P', number, size)` of `xen/privcmd.h`.
const fn request(number: u64, bytes: u64) -> libc::Ioctl {
    (bytes << 16 | (b'P' as u64) << 8 | number) as libc::Ioctl
}

const MMAPBATCH_V2: libc::Ioctl = request(4, size_of::<MapBatch>() as u64);

/// `struct privcmd_mmapbatch_v2`.
#[repr(C)]
struct MapBatch {
    count: u32,
    domain: u16,
    address: u64,
    frames: *const u64,
    errors: *mut i32,
}

/// Maps frames of a domain one after the other, to be read. Returns the mapping and which of its pages may be read: to
/// read one of the others would end us by SIGBUS.
pub(crate) fn map_foreign(device: BorrowedFd<'_>, domain: u16, frames: &[u64]) -> io::Result<(Map, Vec<bool>)> {
    let map = Map::new(device, frames.len() * PAGE_BYTES, false)?;
    let mut errors = vec![0; frames.len()];
    let count = u32::try_from(frames.len()).map_err(io::Error::other)?;
    let address = map.address();
    let batch = MapBatch { count, domain, address, frames: frames.as_ptr(), errors: errors.as_mut_ptr() };
    // SAFETY: the structure is the one that the request wants, both arrays have `count` elements, and the range at
    // `address` is a mapping of this device that nothing has read yet.
    let result = check(libc::c_long::from(unsafe { libc::ioctl(device.as_raw_fd(), MMAPBATCH_V2, &raw const batch) }));
    match result {
        // Frames that are paged out make it fail with this, and the others are mapped.
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok((map, errors.iter().map(|error| *error == 0).collect())),
    }
}
