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
}
