//! Two requests to Linux that have no safe form: attaching to a TAP device, and how much of a TCP connection is not acknowledged.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Attaches to the existing TAP device `name` of this thread's network namespace. Each read and each write is a frame with the header of
/// virtio-net in front (Linux, `Documentation/networking/tuntap.rst`), and returns at once. Frames are received uncut and without checksums.
pub fn open_tap(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: zeroes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the kernel reads and writes one `ifreq`, which lives until the call returns.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    let offloads = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4);
    // SAFETY: the argument is a number.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) })?;
    Ok(file)
}

/// Bytes that were written to `stream` and that its peer has not acknowledged (tcp(7), `SIOCOUTQ`).
pub fn unacknowledged_bytes(stream: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `int`, which lives until the call returns.
    checked(unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ as _, &mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

fn checked(returned: libc::c_int) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
