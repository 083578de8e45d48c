//! Connections of messages (SEQPACKET; virtio 1.2, section 5.10.6.6.2), as a service holds them.

use crate::sockets::Listener;
use crate::stream::Stream;
use glass_api::{Buf, NetError, VsockAddress};

/// An open port for messages; see [`glass_api::MessageListener`].
pub struct MessageListener(pub(crate) Listener);

/// A connection of messages; see [`glass_api::Messages`].
pub struct Messages(pub(crate) Stream);

impl glass_api::MessageListener for MessageListener {
    type Messages = Messages;

    async fn accept(&mut self) -> Result<Messages, NetError> {
        glass_api::Listener::accept(&mut self.0).await.map(Messages)
    }

    fn port(&self) -> u32 {
        self.0.number()
    }
}

impl glass_api::Messages for Messages {
    async fn send(&mut self, message: &[u8]) -> Result<(), NetError> {
        self.0.send_message(message).await
    }

    async fn receive(&mut self) -> Result<Option<Buf>, NetError> {
        self.0.receive_message().await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.0.end()
    }

    fn peer(&self) -> VsockAddress {
        self.0.address()
    }
}
