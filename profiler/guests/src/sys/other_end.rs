//! The other end of a connection, taken from the process that has it: bytes that it has not read yet can be withdrawn.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::check;
use super::tracee::Process;

/// The most descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 65_536;
/// The most bytes that are withdrawn.
const BYTES_MAX: usize = 64 << 10;

/// The socket of another process that is connected to one of ours. It is taken for each use, as the connection would not end with
/// that process otherwise.
#[derive(Debug)]
pub(crate) struct OtherEnd {
    process: Process,
    number: i32,
    addresses: [Vec<u8>; 2],
}

/// The two addresses of a socket, its own and that of its peer, in the kernel's form.
fn addresses(socket: &impl AsRawFd) -> io::Result<[Vec<u8>; 2]> {
    let get = |call: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32| {
        let mut bytes = vec![0u8; size_of::<libc::sockaddr_storage>()];
        let mut size = bytes.len() as libc::socklen_t;
        // SAFETY: both calls write at most `size` bytes to `bytes`, which has so many, and the size of the address to `size`.
        check(unsafe { call(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut size) }.into())?;
        bytes.truncate(size as usize);
        Ok::<_, io::Error>(bytes)
    };
    Ok([get(libc::getsockname)?, get(libc::getpeername)?])
}

impl OtherEnd {
    /// Finds the socket of a process that is connected to `socket`. Needs the rights of a debugger. `Ok(None)` if there is none yet: the
    /// process has not accepted the connection.
    pub(crate) fn find(pid: u32, socket: &impl AsRawFd) -> io::Result<Option<OtherEnd>> {
        let [own, peer] = addresses(socket)?;
        let mut end = OtherEnd { process: Process::open(pid)?, number: 0, addresses: [peer, own] };
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().take(DESCRIPTORS_MAX) {
            let is_socket = fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| is_socket)
            else {
                continue;
            };
            end.number = number;
            if end.take().is_some() {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// A copy of the descriptor, if it is still the same socket.
    fn take(&self) -> Option<OwnedFd> {
        let socket = self.process.descriptor(self.number).ok()?;
        addresses(&socket).is_ok_and(|found| found == self.addresses).then_some(socket)
    }

    /// Whether there are bytes that the process has not read.
    pub(crate) fn has_unread(&self) -> bool {
        let Some(socket) = self.take() else { return false };
        let mut count: libc::c_int = 0;
        // SAFETY: FIONREAD writes one number of this type.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut count) };
        result == 0 && count > 0
    }

    /// Removes the bytes that the process has not read. Returns whether there were any.
    pub(crate) fn withdraw(&self) -> bool {
        let Some(socket) = self.take() else { return false };
        let mut bytes = vec![0u8; BYTES_MAX];
        // SAFETY: `bytes` has room for its length.
        let count =
            unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        count > 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn what_was_not_read_is_withdrawn() {
        let path = std::env::temp_dir().join(format!("glass-other-end-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut ours = UnixStream::connect(&path).unwrap();
        assert!(OtherEnd::find(std::process::id(), &ours).unwrap().is_none(), "it was not accepted");
        let (mut theirs, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let end = OtherEnd::find(std::process::id(), &ours).unwrap().unwrap();
        assert!(!end.has_unread() && !end.withdraw());
        ours.write_all(b"first").unwrap();
        assert!(end.has_unread() && end.withdraw());
        assert!(!end.has_unread() && !end.withdraw());
        ours.write_all(b"second").unwrap();
        let mut bytes = [0; 6];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes, end.has_unread()), (b"second", false));
    }
}
