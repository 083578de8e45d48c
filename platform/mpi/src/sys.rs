//! System calls on memory, and the symbol by which the C interface finds its host.

use crate::host::ProcessHost;
use glass_mpi::{Header, Memory, Segment};
use glass_mpi_abi::Host;
use std::io;
use std::ptr::{self, NonNull};

/// Up to so many ranks the whole memory is some MB.
const RANKS_POPULATED_MAX: usize = 8;

/// Maps the memory that all ranks share: the file of a descriptor, made long enough, or memory of our own for the only rank.
pub(crate) fn segment(descriptor: Option<i32>, bytes: usize, ranks: usize, rank: usize) -> io::Result<Segment> {
    let (flags, file) = match descriptor {
        Some(file) => {
            // All ranks give it the same length; what is new in it is zero.
            // SAFETY: a call with plain numbers.
            if unsafe { libc::ftruncate(file, bytes as libc::off_t) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // Pages of few ranks are made at once, so that no message waits for one.
            (libc::MAP_SHARED | if ranks <= RANKS_POPULATED_MAX { libc::MAP_POPULATE } else { 0 }, file)
        }
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the mapping has this length, begins at a page and is never removed; the launcher made the file empty and gives each
    // rank its number, and `job::join` is called once in a process.
    Ok(unsafe { Segment::new(start, ranks, rank) })
}

/// Which process each rank is, as they wrote it into the launcher's page.
#[derive(Debug)]
pub(crate) struct Pids(NonNull<Header>);

impl Pids {
    pub fn of(segment: &Segment) -> Pids {
        Pids(NonNull::from(segment.header()))
    }

    pub fn of_rank(&self, rank: usize) -> Option<i32> {
        // SAFETY: the page is part of a mapping that is never removed.
        let (state, pid) = unsafe { self.0.as_ref() }.state(rank);
        i32::try_from(pid).ok().filter(|pid| state != 0 && *pid > 0)
    }
}

/// Copies from another process; false if the kernel does not let us, or the memory is not there.
pub(crate) fn read_process(pid: i32, address: u64, into: Memory) -> bool {
    let mut done = 0;
    while done < into.bytes() {
        let rest = into.bytes() - done;
        let local = libc::iovec { iov_base: (into.address() + done) as *mut libc::c_void, iov_len: rest };
        let remote = libc::iovec { iov_base: (address as usize + done) as *mut libc::c_void, iov_len: rest };
        // SAFETY: the local region is `into`, which its maker lent for writing; the kernel checks the other.
        let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => done += count,
            _ => return false,
        }
    }
    true
}

/// Ends the process without running what other threads or the program have registered: its memory may be in use.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

#[unsafe(no_mangle)]
fn glass_mpi_host() -> &'static dyn Host {
    &ProcessHost
}
