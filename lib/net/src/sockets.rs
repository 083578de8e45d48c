//! The service's side: opening ports and connections.

use crate::state::Shared;
use crate::stream::Stream;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use glass_api::{Address, NetError, NetInfo, Port, VsockAddress};

/// A handle to a stack; see [`glass_api::Net`]. Clones are handles to the same stack.
///
/// `connect` fails with [`NetError::NoNetwork`] while we have no address of the remote's kind. The
/// stack does not connect to itself.
#[derive(Clone)]
pub struct Sockets {
    shared: Option<Rc<Shared>>,
}

impl Sockets {
    pub(crate) fn new(shared: Rc<Shared>) -> Sockets {
        Sockets { shared: Some(shared) }
    }

    /// The network of a machine that has no network device: everything fails with
    /// [`NetError::NoNetwork`].
    pub fn without_device() -> Sockets {
        Sockets { shared: None }
    }

    pub(crate) fn shared(&self) -> Result<&Rc<Shared>, NetError> {
        self.shared.as_ref().ok_or(NetError::NoNetwork)
    }
}

impl glass_api::Net for Sockets {
    type Listener = Listener;
    type Stream = Stream;
    type Datagrams = Datagrams;
    type MessageListener = Infallible;
    type Messages = Infallible;

    async fn up(&self) -> Result<NetInfo, NetError> {
        let shared = self.shared()?;
        loop {
            let changed = shared.address_changed.notified();
            let (address, connections_max) = {
                let state = shared.state.borrow();
                (state.address(), state.config.connections_max)
            };
            if let Some(address) = address {
                return Ok(NetInfo { address, connections_max });
            }
            changed.await;
        }
    }

    async fn listen(&self, port: impl Into<Port>) -> Result<Listener, NetError> {
        let Port::Tcp(port) = port.into() else { return Err(NetError::NoVsock) };
        let shared = self.shared()?;
        let (id, port) = shared.state.borrow_mut().listen(port)?;
        Ok(Listener { shared: shared.clone(), id, port })
    }

    async fn bind(&self, port: u16) -> Result<Datagrams, NetError> {
        let shared = self.shared()?;
        let (id, port) = shared.state.borrow_mut().bind(port)?;
        Ok(Datagrams { shared: shared.clone(), id, port })
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.query(name).await
    }

    async fn connect_to(&self, remote: Address) -> Result<Stream, NetError> {
        let Address::Ip(remote) = remote else { return Err(NetError::NoVsock) };
        let shared = self.shared()?;
        let id = shared.state.borrow_mut().connect(remote)?;
        // Dropping the stream undoes everything, whether the wait fails or is cancelled.
        let stream = Stream::new(shared.clone(), id, remote);
        stream.connected().await?;
        Ok(stream)
    }

    async fn listen_messages(&self, _port: u32) -> Result<Infallible, NetError> {
        Err(NetError::NoMessages)
    }

    async fn connect_messages(&self, _remote: VsockAddress) -> Result<Infallible, NetError> {
        Err(NetError::NoMessages)
    }
}

/// An open port; see [`glass_api::Listener`].
pub struct Listener {
    shared: Rc<Shared>,
    id: u64,
    port: u16,
}

impl glass_api::Listener for Listener {
    type Stream = Stream;

    async fn accept(&mut self) -> Result<Stream, NetError> {
        let accept = poll_fn(|context| self.shared.state.borrow_mut().poll_accept(self.id, context.waker()));
        let (id, remote) = accept.await;
        Ok(Stream::new(self.shared.clone(), id, remote.into()))
    }

    fn port(&self) -> Port {
        Port::Tcp(self.port)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().close_listener(self.id);
    }
}

/// A port that is open for datagrams; see [`glass_api::Datagrams`]. A datagram to a neighbour that does not answer is dropped after three
/// seconds. There are no fragments, so the longest datagram is that of one frame.
pub struct Datagrams {
    shared: Rc<Shared>,
    id: u64,
    port: u16,
}

impl glass_api::Datagrams for Datagrams {
    async fn send_to(&self, data: &[u8], remote: SocketAddr) -> Result<(), NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_send_to(self.id, data, remote, context)).await
    }

    async fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr), NetError> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_recv_from(self.id, buf, context)).await
    }

    fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().close_port(self.id);
    }
}
