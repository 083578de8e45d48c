//! The unsafe code: memory that this process shares with readers of its trace, an option of TCP, and addresses of vsock.

#[cfg(target_arch = "aarch64")]
#[path = "sys/arch/aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "sys/arch/x86_64.rs"]
mod arch;

pub(crate) use arch::{discard_fetched_instructions, nominal_rate};
use glass_api::VsockAddress;
use glass_formats::trace::{CONTROL_BYTES, Control};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketAddrAny};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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
    // A process that opens the file must not be able to remove pages, which would be a SIGBUS here.
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
    // The file is zero as the static was: no code writes to it before `glass_lib_trace::start`, which comes later.
    let placed =
        unsafe { rustix::mm::mmap(place, CONTROL_BYTES, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
    assert_eq!(placed, place, "MAP_FIXED maps at the given address");
    let is_first = FILE.set(file).is_ok();
    assert!(is_first, "the trace is shared once a process");
    // SAFETY: the mapping above is `area_bytes` long, aligned to a page, readable and writable, never unmapped, and
    // cannot shrink. Every byte pattern is a value of `AtomicU64`.
    Ok(unsafe { slice::from_raw_parts(area.cast::<AtomicU64>(), area_bytes / size_of::<AtomicU64>()) })
}

const _: () = assert!(CONTROL_BYTES == size_of::<Control>() && CONTROL_BYTES.is_multiple_of(4096));
const _: () = assert!(align_of::<Control>() == 4096);

/// Has a TCP socket take no more bytes while it has at least so many that were not sent yet (tcp(7), `TCP_NOTSENT_LOWAT`).
pub(crate) fn set_tcp_notsent_lowat(socket: &OwnedFd, bytes: u32) -> Result<(), Errno> {
    let length = size_of::<u32>() as libc::socklen_t;
    let place = ptr::from_ref(&bytes).cast::<c_void>();
    // SAFETY: the kernel reads `length` bytes of `bytes`, and only those.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, place, length) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)) }
}

/// An address of the host's vsock, for system calls.
pub(crate) struct SocketAddress(libc::sockaddr_vm);

impl SocketAddress {
    pub(crate) fn new(address: VsockAddress) -> SocketAddress {
        // SAFETY: it is a structure of integers, of which zero is a value.
        let mut raw: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        raw.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        (raw.svm_cid, raw.svm_port) = (address.cid, address.port);
        SocketAddress(raw)
    }
}

// SAFETY: the pointer is to a whole `sockaddr_vm`, which `self` keeps until `f` returns, and the length is its length.
unsafe impl SocketAddrArg for SocketAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f((&raw const self.0).cast(), size_of::<libc::sockaddr_vm>() as SocketAddrLen)
    }
}

/// The address of vsock in what the kernel has returned, if it is one.
pub(crate) fn vsock_address(any: &SocketAddrAny) -> Option<VsockAddress> {
    if any.address_family() != AddressFamily::VSOCK || (any.addr_len() as usize) < size_of::<libc::sockaddr_vm>() {
        return None;
    }
    // SAFETY: the kernel has written at least as many bytes there, and any bytes are a value of a structure of integers.
    let raw: libc::sockaddr_vm = unsafe { any.as_ptr().cast::<libc::sockaddr_vm>().read_unaligned() };
    Some(VsockAddress { cid: raw.svm_cid, port: raw.svm_port })
}
