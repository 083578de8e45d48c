//! The service's side of a stack: opening ports and connections.

use crate::config::Config;
use crate::header::{Header, Type};
use crate::messages::{MessageListener, Messages};
use crate::stack::{ListenerId, Packet, Stack};
use crate::stream::Stream;
use crate::trace::ACCEPT;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::future::poll_fn;
use glass_api::{Buf, Instant, NetError, Port, VsockAddress};
use glass_lib_trace::{BlockKind, block};

/// The connections of one machine, shared by its driver, its listeners and its streams. Clones share them.
#[derive(Clone)]
pub struct Sockets {
    pub(crate) shared: Rc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) stack: RefCell<Stack>,
    clock: Box<dyn Fn() -> Instant>,
}

impl Shared {
    pub(crate) fn now(&self) -> Instant {
        (self.clock)()
    }
}

/// The driver's side.
impl Sockets {
    /// Sockets of the machine `cid` by the time of `clock`. `seed` chooses the first free port.
    pub fn new(cid: u64, config: Config, seed: u64, clock: impl Fn() -> Instant + 'static) -> Sockets {
        let stack = RefCell::new(Stack::new(cid, config, seed));
        Sockets { shared: Rc::new(Shared { stack, clock: Box::new(clock) }) }
    }

    /// [`Stack::receive`].
    pub fn receive(&self, header: Header, buffer: Buf, bytes: usize) -> Option<Buf> {
        self.shared.stack.borrow_mut().receive(self.shared.now(), header, buffer, bytes)
    }

    /// [`Stack::next_packet`].
    pub fn next_packet(&self) -> Option<Packet> {
        self.shared.stack.borrow_mut().next_packet()
    }

    /// [`Stack::has_packets`].
    pub fn has_packets(&self) -> bool {
        self.shared.stack.borrow().has_packets()
    }

    /// [`Stack::poll`].
    pub fn poll(&self) {
        self.shared.stack.borrow_mut().poll(self.shared.now());
    }

    /// [`Stack::next_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.stack.borrow().next_deadline()
    }

    /// [`Stack::is_delivering`].
    pub fn is_delivering(&self) -> bool {
        self.shared.stack.borrow().is_delivering()
    }

    /// [`Stack::reset_all`].
    pub fn reset_all(&self, cid: u64) {
        self.shared.stack.borrow_mut().reset_all(cid);
    }

    /// [`Stack::announce`].
    pub fn announce(&self) {
        self.shared.stack.borrow().announce();
    }

    /// [`Stack::connection_count`].
    pub fn connection_count(&self) -> usize {
        self.shared.stack.borrow().connection_count()
    }
}

/// The service's side.
impl Sockets {
    /// Listens on a port; 0 picks a free one.
    pub fn listen(&self, port: u32) -> Result<Listener, NetError> {
        self.open(port, Type::Stream)
    }

    /// Listens on a port for messages; 0 picks a free one.
    pub fn listen_messages(&self, port: u32) -> Result<MessageListener, NetError> {
        self.open(port, Type::Message).map(MessageListener)
    }

    fn open(&self, port: u32, kind: Type) -> Result<Listener, NetError> {
        let (id, port) = self.shared.stack.borrow_mut().listen(port, kind)?;
        Ok(Listener { shared: self.shared.clone(), id, port })
    }

    /// Opens a connection.
    pub async fn connect(&self, remote: VsockAddress) -> Result<Stream, NetError> {
        self.connect_kind(remote, Type::Stream).await
    }

    /// Opens a connection of messages.
    pub async fn connect_messages(&self, remote: VsockAddress) -> Result<Messages, NetError> {
        self.connect_kind(remote, Type::Message).await.map(Messages)
    }

    async fn connect_kind(&self, remote: VsockAddress, kind: Type) -> Result<Stream, NetError> {
        let now = self.shared.now();
        let id = self.shared.stack.borrow_mut().connect(now, remote.cid.into(), remote.port, kind)?;
        // Dropping the stream undoes everything, whether the wait fails or is cancelled.
        let stream = Stream::new(self.shared.clone(), id, remote);
        stream.connected().await?;
        Ok(stream)
    }
}

/// An open port; see [`glass_api::Listener`].
pub struct Listener {
    shared: Rc<Shared>,
    id: ListenerId,
    port: u32,
}

impl Listener {
    pub(crate) fn number(&self) -> u32 {
        self.port
    }
}

impl glass_api::Listener for Listener {
    type Stream = Stream;

    async fn accept(&mut self) -> Result<Stream, NetError> {
        let accept = poll_fn(|context| {
            let accepted = self.shared.stack.borrow_mut().poll_accept(self.id, context.waker());
            if accepted.is_pending() {
                block(BlockKind::Accept, &ACCEPT, self.port.into());
            }
            accepted
        });
        let (id, ends) = accept.await;
        // A context identifier has 32 bits; the upper half of the field is reserved (virtio 1.2, section 5.10.4).
        let peer = VsockAddress { cid: ends.peer_cid as u32, port: ends.peer_port };
        Ok(Stream::new(self.shared.clone(), id, peer))
    }

    fn port(&self) -> Port {
        Port::Vsock(self.port)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stack.borrow_mut().close_listener(self.id);
    }
}
