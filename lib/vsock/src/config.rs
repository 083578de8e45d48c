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
    /// Whether the device carries messages (VIRTIO_VSOCK_F_SEQPACKET).
    pub has_messages: bool,
    /// The longest payload of a packet.
    pub packet_bytes_max: usize,
    /// Bytes that all connections together may have queued for the device.
    pub queued_bytes_max: usize,
    /// How long a peer may take to answer a request for a connection.
    pub connect_timeout: Duration,
    /// How long a peer may take to end a connection whose halves are both closed; then it is reset.
    pub close_timeout: Duration,
}

/// Packets and receive buffers of a machine that shares its memory with its service.
const SHARE: usize = 6;
const BUFFER_BYTES: usize = 64 << 10;

impl Config {
    /// Bounds for a machine with `memory_bytes` of memory: connections that are not read hold a sixth of it. A peer that sends only
    /// packets of a quarter of a device's buffer makes them hold up to twice as much.
    pub fn for_memory(memory_bytes: usize) -> Config {
        let share_bytes = memory_bytes / SHARE;
        Config {
            buffer_bytes: BUFFER_BYTES as u32,
            connections_max: (share_bytes / (2 * BUFFER_BYTES)).clamp(16, 1024),
            queued_bytes_max: (share_bytes / 4).clamp(256 << 10, 4 << 20),
            ..Config::default()
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            // What Linux grants, so that a peer made for it works as well.
            buffer_bytes: 256 << 10,
            connections_max: 1024,
            backlog_max: 128,
            has_messages: true,
            packet_bytes_max: 64 << 10,
            queued_bytes_max: 4 << 20,
            connect_timeout: Duration::from_secs(2),
            close_timeout: Duration::from_secs(8),
        }
    }
}
