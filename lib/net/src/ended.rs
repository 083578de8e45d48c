//! Sockets of connections that have ended, for new ones: their buffers need not be allocated and zeroed again.

use alloc::vec::Vec;
use smoltcp::socket::tcp;

/// Closed sockets. Connections and they together never have more memory than connections alone have had: a socket is only kept when its
/// connection ends, and all are dropped before buffers are allocated.
#[derive(Default)]
pub(crate) struct Ended {
    sockets: Vec<tcp::Socket<'static>>,
    bytes: usize,
}

impl Ended {
    /// Keeps the socket of a connection that has ended, if the buffers of all of them have `bytes_max` bytes at most then.
    pub(crate) fn keep(&mut self, mut socket: tcp::Socket<'static>, bytes_max: usize) {
        let bytes = socket.recv_capacity() + socket.send_capacity();
        if self.bytes + bytes <= bytes_max {
            socket.abort();
            self.bytes += bytes;
            self.sockets.push(socket);
        }
    }

    /// A socket with receive and send buffers of these lengths in bytes. If there is none, drops all, to make room for new buffers.
    pub(crate) fn take(&mut self, receive: usize, send: usize) -> Option<tcp::Socket<'static>> {
        let fits = |socket: &tcp::Socket| (socket.recv_capacity(), socket.send_capacity()) == (receive, send);
        let Some(place) = self.sockets.iter().position(fits) else {
            *self = Ended::default();
            return None;
        };
        self.bytes -= receive + send;
        Some(self.sockets.swap_remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn socket(receive: usize, send: usize) -> tcp::Socket<'static> {
        let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(receive), buffer(send));
        socket.listen(80).unwrap();
        socket
    }

    #[test]
    fn a_socket_of_the_same_sizes_is_taken() {
        let mut ended = Ended::default();
        for (receive, send) in [(100, 200), (100, 100), (100, 100), (50, 51)] {
            ended.keep(socket(receive, send), 700);
        }
        let taken = ended.take(100, 100).unwrap();
        assert_eq!((taken.recv_capacity(), taken.send_capacity(), taken.is_open()), (100, 100, false));
        // Their bytes together are bounded, also after one was taken.
        ended.keep(socket(99, 102), 700);
        ended.keep(socket(100, 100), 700);
        assert!(ended.take(100, 200).is_some() && ended.take(100, 100).is_some());
        assert_eq!((ended.bytes, ended.sockets.len()), (200, 1));
        ended.keep(socket(100, 200), 700);
        assert!(ended.take(50, 51).is_none(), "there was no room for it");
        assert!(ended.take(100, 200).is_none() && ended.bytes == 0, "all are dropped before others are made");
    }
}
