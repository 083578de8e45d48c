//! A machine's whole network: TCP/IP and vsock behind one [`glass_api::Net`].

use crate::messages;
use crate::sockets::{self, Sockets};
use crate::stream;
use alloc::vec::Vec;
use core::net::IpAddr;
use glass_api::{
    Address, Buf, Listener, Net, NetError, NetInfo, Port, ReadHalf, Split, Stream, VsockAddress, WriteHalf,
};

/// A network `N` of TCP/IP, and vsock where there is a device. The address decides between them.
#[derive(Clone)]
pub struct Joined<N> {
    /// TCP/IP.
    pub ip: N,
    /// Vsock; without it, what has its addresses fails with [`NetError::NoVsock`].
    pub vsock: Option<Sockets>,
}

/// One of both: a listener, a stream or a half of one.
pub enum Either<I, V> {
    /// Of TCP.
    Ip(I),
    /// Of vsock.
    Vsock(V),
}

impl<N: Net> Net for Joined<N> {
    type Listener = Either<N::Listener, sockets::Listener>;
    type Stream = Either<N::Stream, stream::Stream>;
    type Datagrams = N::Datagrams;
    type MessageListener = messages::MessageListener;
    type Messages = messages::Messages;

    async fn up(&self) -> Result<NetInfo, NetError> {
        self.ip.up().await
    }

    async fn listen(&self, port: impl Into<Port>) -> Result<Self::Listener, NetError> {
        match (port.into(), &self.vsock) {
            (Port::Tcp(port), _) => self.ip.listen(port).await.map(Either::Ip),
            (Port::Vsock(port), Some(vsock)) => vsock.listen(port).map(Either::Vsock),
            (Port::Vsock(_), None) => Err(NetError::NoVsock),
        }
    }

    async fn bind(&self, port: u16) -> Result<Self::Datagrams, NetError> {
        self.ip.bind(port).await
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.ip.resolve(name).await
    }

    async fn connect_to(&self, remote: Address) -> Result<Self::Stream, NetError> {
        match (remote, &self.vsock) {
            (Address::Ip(remote), _) => self.ip.connect(remote).await.map(Either::Ip),
            (Address::Vsock(remote), Some(vsock)) => vsock.connect(remote).await.map(Either::Vsock),
            (Address::Vsock(_), None) => Err(NetError::NoVsock),
        }
    }

    async fn listen_messages(&self, port: u32) -> Result<messages::MessageListener, NetError> {
        self.vsock.as_ref().ok_or(NetError::NoVsock)?.listen_messages(port)
    }

    async fn connect_messages(&self, remote: VsockAddress) -> Result<messages::Messages, NetError> {
        self.vsock.as_ref().ok_or(NetError::NoVsock)?.connect_messages(remote).await
    }
}

/// The same call for both.
macro_rules! each {
    ($self:ident, $one:ident => $call:expr) => {
        match $self {
            Either::Ip($one) => $call,
            Either::Vsock($one) => $call,
        }
    };
}

impl<I: Listener, V: Listener> Listener for Either<I, V> {
    type Stream = Either<I::Stream, V::Stream>;

    async fn accept(&mut self) -> Result<Self::Stream, NetError> {
        match self {
            Either::Ip(listener) => listener.accept().await.map(Either::Ip),
            Either::Vsock(listener) => listener.accept().await.map(Either::Vsock),
        }
    }

    fn port(&self) -> Port {
        each!(self, listener => listener.port())
    }
}

impl<I: Stream, V: Stream> Stream for Either<I, V> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        each!(self, stream => stream.read(buf).await)
    }

    async fn skip(&mut self, max_bytes: usize) -> Result<usize, NetError> {
        each!(self, stream => stream.skip(max_bytes).await)
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        each!(self, stream => stream.write(data).await)
    }

    async fn write_with(&mut self, max_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<usize, NetError> {
        each!(self, stream => stream.write_with(max_bytes, fill).await)
    }

    async fn write_buf(&mut self, data: &Buf) -> Result<usize, NetError> {
        each!(self, stream => stream.write_buf(data).await)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        each!(self, stream => stream.close().await)
    }

    fn peer(&self) -> Address {
        each!(self, stream => stream.peer())
    }
}

impl<I: Split, V: Split> Split for Either<I, V> {
    type ReadHalf = Either<I::ReadHalf, V::ReadHalf>;
    type WriteHalf = Either<I::WriteHalf, V::WriteHalf>;

    fn split(self) -> (Self::ReadHalf, Self::WriteHalf) {
        match self {
            Either::Ip(stream) => {
                let (reader, writer) = stream.split();
                (Either::Ip(reader), Either::Ip(writer))
            }
            Either::Vsock(stream) => {
                let (reader, writer) = stream.split();
                (Either::Vsock(reader), Either::Vsock(writer))
            }
        }
    }
}

impl<I: ReadHalf, V: ReadHalf> ReadHalf for Either<I, V> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        each!(self, half => half.read(buf).await)
    }

    fn peer(&self) -> Address {
        each!(self, half => half.peer())
    }
}

impl<I: WriteHalf, V: WriteHalf> WriteHalf for Either<I, V> {
    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        each!(self, half => half.write(data).await)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        each!(self, half => half.close().await)
    }

    fn peer(&self) -> Address {
        each!(self, half => half.peer())
    }
}
