//! The memory that all ranks share, and copies out of another rank's own.

use super::variable;
use alloc::format;
use alloc::string::String;
use core::ptr::{self, NonNull};
use glass_lib_mpi::{Header, Memory, Segment};

/// Up to so many ranks the whole memory is some MB.
const RANKS_POPULATED_MAX: usize = 8;
/// In a VM: address of each rank's own memory, its length, and where that of rank 0 is for all of them; the others' follow.
const OWN_MEMORY: &str = "GLASS_MPI_MEMORY";

/// Maps the memory that all ranks share: the file of a descriptor, made long enough, or memory of our own for the only rank.
pub(crate) fn segment(descriptor: Option<i32>, bytes: usize, ranks: usize, rank: usize) -> Result<Segment, String> {
    let (flags, file) = match descriptor {
        Some(file) => {
            // All ranks give it the same length; what is new in it is zero.
            // SAFETY: a call with plain numbers.
            if unsafe { libc::ftruncate(file, bytes as libc::off_t) } != 0 {
                return Err(format!("descriptor {file} cannot be made {bytes} bytes long"));
            }
            // Pages of few ranks are made at once, so that no message waits for one.
            (libc::MAP_SHARED | if ranks <= RANKS_POPULATED_MAX { libc::MAP_POPULATE } else { 0 }, file)
        }
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
    let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
    let start = start.ok_or_else(|| format!("{bytes} bytes cannot be mapped"))?;
    // SAFETY: the mapping has this length, begins at a page and is never removed; the launcher made the file empty and gives each
    // rank its number, and `job::join` is called once in a process.
    Ok(unsafe { Segment::new(start, ranks, rank) })
}

/// How to read other ranks' memory.
#[derive(Debug)]
pub(crate) enum Peers {
    /// They are processes, as they wrote it into the launcher's page.
    Processes(NonNull<Header>),
    /// They are in one VM, where each one's memory is at another address too.
    Windows(Windows),
}

/// Where the memory of a VM's ranks is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    /// The address of each rank's memory for itself.
    own: u64,
    bytes: u64,
    /// The address of rank 0's memory for all.
    first: u64,
}

impl Windows {
    fn parse(text: &str) -> Option<Windows> {
        let mut numbers = text.split(':').map(|number| number.parse().ok());
        Some(Windows { own: numbers.next()??, bytes: numbers.next()??, first: numbers.next()?? })
    }

    /// Where this rank finds what `rank` has at `address`. What is not a rank's own, such as constants, is where it is for all.
    fn find(&self, rank: usize, address: u64) -> u64 {
        match address.checked_sub(self.own).filter(|offset| *offset < self.bytes) {
            Some(offset) => self.first + rank as u64 * self.bytes + offset,
            None => address,
        }
    }
}

impl Peers {
    pub fn of(segment: &Segment) -> Peers {
        let windows = variable(OWN_MEMORY).and_then(|text| Windows::parse(&text));
        windows.map_or_else(|| Peers::Processes(NonNull::from(segment.header())), Peers::Windows)
    }

    /// Copies from the memory of `rank` at `address`; false if that cannot be done.
    pub fn read(&self, rank: usize, address: u64, into: Memory) -> bool {
        match self {
            Peers::Processes(header) => {
                // SAFETY: the page is part of a mapping that is never removed.
                let (state, pid) = unsafe { header.as_ref() }.state(rank);
                let pid = i32::try_from(pid).ok().filter(|pid| state != 0 && *pid > 0);
                pid.is_some_and(|pid| read_process(pid, address, into))
            }
            Peers::Windows(windows) => {
                let from = windows.find(rank, address) as *const u8;
                // SAFETY: the sender lends this memory until it gets our answer, and `into` is lent for writing; they are different
                // pages of the same VM, or the copy allows an overlap.
                unsafe { ptr::copy(from, into.address() as *mut u8, into.bytes()) };
                true
            }
        }
    }
}

/// Copies from another process; false if the kernel does not let us, or the memory is not there.
fn read_process(pid: i32, address: u64, into: Memory) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranks_memory_is_found_and_constants_are_common() {
        let windows = Windows::parse("4096:1000:70000").unwrap();
        assert_eq!((windows.find(0, 4096), windows.find(2, 5095)), (70_000, 72_999));
        assert_eq!((windows.find(1, 4095), windows.find(1, 5096)), (4095, 5096));
        assert_eq!(Windows::parse("4096:1000"), None);
        assert_eq!(Windows::parse("4096:x:1"), None);
    }
}
