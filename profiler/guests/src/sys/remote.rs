//! Memory of other processes.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Copies from the memory of a process; returns how many bytes could be read.
pub(crate) fn read_process(pid: u32, address: u64, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the local range is `into`; the remote one is in another process, where the kernel checks it.
    let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Copies from several places of a process's memory, in this order, each to its room; returns how many bytes could be read. At most 1,024 places (`UIO_MAXIOV`).
pub(crate) fn read_process_each(pid: u32, places: &mut [(u64, &mut [u8])]) -> usize {
    let local: Vec<libc::iovec> = places
        .iter_mut()
        .map(|(_, into)| libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() })
        .collect();
    let remote: Vec<libc::iovec> = places
        .iter()
        .map(|(address, into)| libc::iovec { iov_base: *address as usize as *mut libc::c_void, iov_len: into.len() })
        .collect();
    let count = places.len() as libc::c_ulong;
    // SAFETY: the local ranges are the rooms, which do not overlap; the remote ones are in another process, where the kernel checks them.
    let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Whether a file is sealed against becoming smaller, which only a memfd can be.
pub(crate) fn cannot_shrink(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes two numbers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_ends_the_copy() {
        let value = 0x1234_5678u64;
        let mut bytes = [0; 8];
        assert_eq!(read_process(std::process::id(), &raw const value as u64, &mut bytes), 8);
        assert_eq!(u64::from_le_bytes(bytes), value);
        assert_eq!(read_process(std::process::id(), 0, &mut bytes), 0);
        assert_eq!(read_process(1 << 22 | 1, &raw const value as u64, &mut bytes), 0);
    }

    #[test]
    fn several_places_are_read_up_to_one_that_is_not_mapped() {
        let values = [1u64, 2, 3];
        let at = |index: usize| &raw const values[index] as u64;
        let (mut one, mut two, mut three) = ([0; 8], [0; 8], [0; 8]);
        let mut places = [(at(2), &mut one[..]), (at(0), &mut two[..]), (0, &mut three[..])];
        assert_eq!(read_process_each(std::process::id(), &mut places), 16);
        assert_eq!([one, two].map(u64::from_le_bytes), [3, 1]);
    }
}
