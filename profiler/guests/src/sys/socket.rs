//! Sockets that exist before they are connected: the watchdog must hold one by then.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::check;

/// Where to connect to.
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A socket that is not connected yet.
pub(crate) fn open_socket(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    let family = match endpoint {
        Endpoint::Unix(_) => libc::AF_UNIX,
        Endpoint::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        Endpoint::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
    };
    // SAFETY: takes numbers only.
    let descriptor = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let descriptor = check(libc::c_long::from(descriptor))? as i32;
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Connects, or fails after `timeout`. A signal does not end it: Linux waits on when connect(2) is called once more.
pub(crate) fn connect_socket(socket: &OwnedFd, endpoint: &Endpoint, timeout: Duration) -> io::Result<()> {
    let (address, start) = (RawAddress::of(endpoint)?, Instant::now());
    loop {
        let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        set_timeout(socket, left)?;
        match connect_to(socket, &address) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) if start.elapsed() >= timeout => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
}

fn set_timeout(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let limit = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(timeout.subsec_micros()),
    };
    // SAFETY: `limit` is valid for the size that is given. On Linux this limits connect(2) too.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const limit).cast(),
            size_of_val(&limit) as libc::socklen_t,
        )
    };
    check(libc::c_long::from(result)).map(drop)
}

/// An address in the kernel's form; created before a fork for use after it.
pub(crate) struct RawAddress {
    storage: libc::sockaddr_storage,
    size: libc::socklen_t,
    family: i32,
}

impl RawAddress {
    /// Fails if the path is too long for a socket.
    pub(crate) fn of(endpoint: &Endpoint) -> io::Result<RawAddress> {
        match endpoint {
            Endpoint::Unix(path) => {
                let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
                let bytes = path.as_os_str().as_bytes();
                if bytes.len() >= address.sun_path.len() {
                    return Err(io::Error::other("the socket's path is longer than 107 bytes"));
                }
                address.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
                Ok(RawAddress::from(&address, libc::AF_UNIX))
            }
            Endpoint::Tcp(SocketAddr::V4(tcp)) => {
                let address = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: tcp.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(tcp.ip().octets()) },
                    sin_zero: [0; 8],
                };
                Ok(RawAddress::from(&address, libc::AF_INET))
            }
            Endpoint::Tcp(SocketAddr::V6(tcp)) => {
                let address = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: tcp.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: tcp.ip().octets() },
                    sin6_scope_id: tcp.scope_id(),
                };
                Ok(RawAddress::from(&address, libc::AF_INET6))
            }
        }
    }

    /// `T` is one of the socket address structures.
    fn from<T: Copy>(address: &T, family: i32) -> RawAddress {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        const { assert!(align_of::<T>() <= align_of::<libc::sockaddr_storage>()) };
        // SAFETY: zeros are a valid value: the structure holds only integers.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: the storage is large enough and aligned for `T` (asserted above), and ours alone.
        unsafe { (&raw mut storage).cast::<T>().write(*address) };
        RawAddress { storage, size: size_of::<T>() as libc::socklen_t, family }
    }

    pub(super) fn family(&self) -> i32 {
        self.family
    }

    pub(super) fn pointer(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.size)
    }
}

fn connect_to(socket: &OwnedFd, address: &RawAddress) -> io::Result<()> {
    let (pointer, size) = address.pointer();
    // SAFETY: `address` holds one of the socket address structures, valid for its size.
    let result = unsafe { libc::connect(socket.as_raw_fd(), pointer, size) };
    check(libc::c_long::from(result)).map(|_| ())
}

/// Whether a socket has something to read or has ended, waiting for that at most this long.
pub(crate) fn can_read(socket: &impl AsRawFd, at_most: Duration) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec { tv_sec: at_most.as_secs() as libc::time_t, tv_nsec: at_most.subsec_nanos().into() };
    // SAFETY: `poll` is one valid structure and `limit` a valid time; no signals are named.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) > 0 }
}
