//! Sockets that exist before they are connected: the watchdog must hold one by then.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

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
    // SAFETY: the kernel just made this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Connects, or fails after `timeout`.
pub(crate) fn connect_socket(socket: &OwnedFd, endpoint: &Endpoint, timeout: Duration) -> io::Result<()> {
    let limit = libc::timeval { tv_sec: timeout.as_secs() as libc::time_t, tv_usec: 0 };
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
    check(libc::c_long::from(result))?;
    match endpoint {
        Endpoint::Unix(path) => {
            let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
            let bytes = path.as_os_str().as_bytes();
            if bytes.len() >= address.sun_path.len() {
                return Err(io::Error::other("the socket's path is longer than 107 bytes"));
            }
            address.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
            connect_to(socket, &address)
        }
        Endpoint::Tcp(SocketAddr::V4(tcp)) => connect_to(
            socket,
            &libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: tcp.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(tcp.ip().octets()) },
                sin_zero: [0; 8],
            },
        ),
        Endpoint::Tcp(SocketAddr::V6(tcp)) => connect_to(
            socket,
            &libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: tcp.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: tcp.ip().octets() },
                sin6_scope_id: tcp.scope_id(),
            },
        ),
    }
}

fn connect_to<T>(socket: &OwnedFd, address: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: `address` is one of the socket address structures, valid for its size.
    let result = unsafe { libc::connect(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), size) };
    check(libc::c_long::from(result)).map(|_| ())
}
