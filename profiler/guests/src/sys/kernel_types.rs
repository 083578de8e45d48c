//! The description of the running kernel's types (BTF), without a copy.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

const PATH: &str = "/sys/kernel/btf/vmlinux";

/// A mapping of the kernel's own bytes.
#[derive(Debug)]
pub(crate) struct KernelTypes {
    start: NonNull<u8>,
    bytes: usize,
}

impl KernelTypes {
    /// Maps them. Fails on kernels that only let them be read: 6.12 does, 6.18 does not.
    pub(crate) fn map() -> io::Result<KernelTypes> {
        let file = File::open(PATH)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(KernelTypes { start, bytes })
    }
}

impl Deref for KernelTypes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes until `self` is dropped. They are read-only data of the kernel, in sysfs, where no process can put
        // another file: they neither change nor end.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are what mmap returned and got; slices of it borrow `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_what_is_read() {
        match KernelTypes::map() {
            Ok(types) => assert!(*types == std::fs::read(PATH).unwrap()[..]),
            Err(error) => println!("the kernel's types cannot be mapped: {error}"),
        }
    }
}
