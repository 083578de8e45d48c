//! How much a peer may send, and how long it may take.

use core::time::Duration;

/// Limits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's head, with line ends; a longer one is answered with 431.
    pub head_bytes_max: usize,
    /// Bytes of a request line; a longer one is answered with 414.
    pub request_line_bytes_max: usize,
    /// From the first byte of a head to its last; a slower one is answered with 408.
    pub head_timeout: Duration,
    /// How long a connection may be open without a request; then it is closed without a response.
    pub idle_timeout: Duration,
    /// Time spent waiting for the peer, in which it must receive or send [`Limits::progress_bytes_min`].
    /// Time that the service takes is not counted.
    pub progress_window: Duration,
    /// See [`Limits::progress_window`]. The end of a body counts as enough.
    pub progress_bytes_min: u64,
    /// How long data from the peer is discarded after our half was closed, so that
    /// the peer reads the answer instead of a reset.
    pub linger_timeout: Duration,
    /// Bytes that are discarded at most in that time.
    pub linger_bytes_max: u64,
}

impl Limits {
    /// Default limits, for a server that is reachable from the internet.
    pub const DEFAULT: Limits = Limits {
        head_bytes_max: 16 * 1024,
        request_line_bytes_max: 8 * 1024,
        head_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        progress_window: Duration::from_secs(30),
        progress_bytes_min: 8 * 1024,
        linger_timeout: Duration::from_secs(5),
        linger_bytes_max: 4 * 1024 * 1024,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
