//! Shared memory mappings that another party writes to, read with volatile loads.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A shared mapping of a file descriptor.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the value, not to a thread; all accesses are volatile or atomic.
unsafe impl Send for Map {}

// SAFETY: threads that share it read with volatile loads, as beside the other party, or use atomics; none has a reference into the mapping.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` of `file`. It must not shrink later: a read would then raise SIGBUS, which
    /// ends the process: check `cannot_shrink`.
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize, writable: bool) -> io::Result<Map> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Map { start, bytes, writable })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the mapping, for requests that name a range.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Copies from the mapping; returns false if the range is not all inside. Concurrent writes of another party
    /// may be copied in part.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else { return false };
        if offset.checked_add(into.len()).is_none_or(|end| end > self.bytes) {
            return false;
        }
        let mut done = 0;
        // Whole words where both sides allow it: a byte at a time would be 8 times as slow.
        while done < into.len() && (offset + done) % 8 != 0 {
            // SAFETY: `offset + done` is below `self.bytes`, checked above.
            into[done] = unsafe { self.start.as_ptr().add(offset + done).read_volatile() };
            done += 1;
        }
        let mut words = into[done..].chunks_exact_mut(8);
        for word in &mut words {
            // SAFETY: within the mapping as above, and aligned to 8: the mapping is page-aligned.
            let value = unsafe { self.start.as_ptr().add(offset + done).cast::<u64>().read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
            done += 8;
        }
        for byte in words.into_remainder() {
            // SAFETY: within the mapping as above.
            *byte = unsafe { self.start.as_ptr().add(offset + done).read_volatile() };
            done += 1;
        }
        true
    }

    /// Removes the pages from this process; what is read is mapped again.
    pub(crate) fn release(&self) {
        // SAFETY: the range is one mapping of ours, shared with the file, so its content stays as it is (madvise(2), MADV_DONTNEED). A failure leaves the pages.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// A 64-bit word that the kernel and we hand back and forth.
    ///
    /// Panics if the word is outside, not aligned, or the mapping is read-only.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            self.writable && offset.is_multiple_of(8) && offset + 8 <= self.bytes,
            "word at {offset} of {}",
            self.bytes
        );
        // SAFETY: aligned and inside (asserted), writable, alive as long as `self`; the kernel accesses
        // it with atomic-sized loads and stores too.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast::<u64>()) }
    }

    /// Loads a word with acquire ordering. Pairs with the kernel's write barrier before it moves
    /// `data_head`.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores a word with release ordering: what was read before it may be overwritten.
    pub(crate) fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are what mmap returned and got; nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};
    use std::os::unix::fs::FileExt;

    /// What this process has in memory of a mapping, in KiB.
    fn resident_kib(map: &Map) -> u64 {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (_, own) = all.split_once(&format!("\n{:x}-", map.address())).unwrap();
        let line = own.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_released_can_be_read_again() {
        const BYTES: usize = 1 << 20;
        // SAFETY: a name that ends with a zero, and a new descriptor of ours, or -1.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"map".as_ptr(), 0)) };
        let content: Vec<u8> = (0..BYTES).map(|at| (at / 999) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        let map = Map::new(file.as_fd(), BYTES, false).unwrap();
        for _ in 0..2 {
            let mut found = vec![0; BYTES];
            assert!(map.read(0, &mut found) && found == content);
            assert_eq!(resident_kib(&map), BYTES as u64 >> 10);
            map.release();
            assert_eq!(resident_kib(&map), 0);
        }
    }
}
