//! A pair of sockets between two processes of ours that keeps messages apart (`SOCK_SEQPACKET`), and never blocks.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::check;

/// Room for messages on their way, in bytes, if the kernel grants so much.
const ROOM_BYTES: libc::c_int = 4 << 20;

/// One end.
#[derive(Debug)]
pub(crate) struct Packets(OwnedFd);

/// What there was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// Nothing yet.
    Nothing,
    /// The other end is closed, and there will be nothing.
    End,
}

impl Packets {
    /// Both ends. A process that this one starts gets neither, unless it is given one.
    pub(crate) fn pair() -> io::Result<(Packets, Packets)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` has room for the two descriptors.
        check(libc::c_long::from(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }))?;
        // SAFETY: the kernel has just created both descriptors, and no other code has them.
        let ends = ends.map(|end| Packets(unsafe { OwnedFd::from_raw_fd(end) }));
        let [one, other] = ends;
        one.widen();
        other.widen();
        Ok((one, other))
    }

    /// An end that another process has made.
    pub(crate) fn of(socket: OwnedFd) -> Packets {
        Packets(socket)
    }

    /// The socket, to be given to another process.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.0
    }

    /// Whether the socket is one of these; any descriptor could be given to a program.
    pub(crate) fn is_one(socket: &OwnedFd) -> bool {
        let mut kind: libc::c_int = 0;
        let mut size = size_of_val(&kind) as libc::socklen_t;
        // SAFETY: `kind` is a valid place of the size that is given.
        let result = unsafe {
            let place = (&raw mut kind).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE, place, &raw mut size)
        };
        result == 0 && kind == libc::SOCK_SEQPACKET
    }

    /// Requests more room: as root beyond the limit of the machine, otherwise up to that.
    fn widen(&self) {
        let bytes = ROOM_BYTES;
        for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
            // SAFETY: the option is a number of the size that is given. If it is refused, the room stays as it is.
            unsafe {
                let (place, size) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
                libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, option, place, size);
            }
        }
    }

    /// Sends a message; false if there is no room for it now.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<bool> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and the length are those of `message`, which is only read.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
        match check(sent as libc::c_long) {
            Ok(_) => Ok(true),
            Err(error) if is_for_later(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Receives a message into `room`. One that is longer is an error.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Received> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the pointer and the length are those of `room`, which is ours alone.
        let count = unsafe { libc::recv(self.0.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) };
        match check(count as libc::c_long) {
            // No message is empty.
            Ok(0) => Ok(Received::End),
            Ok(count) if count as usize > room.len() => Err(io::Error::other("a message is too long")),
            Ok(count) => Ok(Received::Message(count as usize)),
            Err(error) if is_for_later(&error) => Ok(Received::Nothing),
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => Ok(Received::End),
            Err(error) => Err(error),
        }
    }

    /// Waits until there is a message or the end, or, if `also_for_room`, room for one; at most this long, perhaps shorter. Returns whether a signal has
    /// ended it.
    pub(crate) fn wait(&self, also_for_room: bool, at_most: Duration) -> bool {
        let events = if also_for_room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 };
        let limit =
            libc::timespec { tv_sec: at_most.as_secs() as libc::time_t, tv_nsec: at_most.subsec_nanos().into() };
        // SAFETY: `poll` is one valid structure and `limit` a valid time; no signals are named. The caller looks for itself.
        let result = unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) };
        result < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_apart_and_neither_end_blocks() {
        let (one, other) = Packets::pair().unwrap();
        let mut room = [0; 64 << 10];
        assert_eq!(other.receive(&mut room).unwrap(), Received::Nothing);
        for length in [1, 5, 60_000] {
            assert!(one.send(&vec![7; length]).unwrap());
        }
        for length in [1, 5, 60_000] {
            assert_eq!(other.receive(&mut room).unwrap(), Received::Message(length));
        }
        // A reader that does not read takes no more than the room there is.
        let sent = (0..1_000_000).take_while(|_| one.send(&[1; 4096]).unwrap()).count();
        assert!((10..10_000).contains(&sent), "{sent}");
        assert!(other.receive(&mut room[..100]).is_err(), "longer than the room");
        drop(one);
        let rest = (0..sent).take_while(|_| other.receive(&mut room).unwrap() == Received::Message(4096)).count();
        assert_eq!(rest, sent - 1);
        assert_eq!(other.receive(&mut room).unwrap(), Received::End);
        assert!(other.send(&[1]).is_err());
    }
}
