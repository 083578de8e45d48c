//! Bounds of a stack.

use core::time::Duration;

/// Bounds of a [`Stack`](crate::Stack).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Bytes that a peer may send before a service has read them, for each connection.
    pub buffer_bytes: u32,
    /// Connections that there are at once, those that open and close included.
    pub connections_max: usize,
    /// Connections of a port that wait to be accepted.
    pub backlog_max: usize,
    /// The longest payload of a packet.
    pub packet_bytes_max: usize,
    /// Bytes that all connections together may have queued for the device.
    pub queued_bytes_max: usize,
    /// How long a peer may take to answer a request for a connection.
    pub connect_timeout: Duration,
    /// How long a peer may take to end a connection whose halves are both closed; then it is reset.
    pub close_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            // What Linux grants, so that a peer made for it works as well.
            buffer_bytes: 256 << 10,
            connections_max: 1024,
            backlog_max: 128,
            packet_bytes_max: 64 << 10,
            queued_bytes_max: 4 << 20,
            connect_timeout: Duration::from_secs(2),
            close_timeout: Duration::from_secs(8),
        }
    }
}
