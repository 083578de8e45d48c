//! The unsafe code: locks of bytes of a file that belong to the open file (Linux, fcntl(2), `F_OFD_SETLK`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Puts a reader's lock on one byte of `file`, which may be after its end. The lock belongs to this open file
/// and ends with it; several open files may hold one.
pub(crate) fn lock_shared(file: &File, byte: u64) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
}

/// Whether another open file of `file` has a lock on the byte.
pub(crate) fn is_locked(file: &File, byte: u64) -> io::Result<bool> {
    Ok(fcntl(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?.l_type != libc::F_UNLCK as libc::c_short)
}

fn fcntl(file: &File, command: libc::c_int, kind: libc::c_int, byte: u64) -> io::Result<libc::flock> {
    let start = libc::off_t::try_from(byte).map_err(io::Error::other)?;
    // The kernel requires 0 for the pid in these two commands.
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is borrowed. Both commands take a pointer to one `flock`, which
    // lives on our stack until the call returns, and the kernel keeps no pointer to it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}
