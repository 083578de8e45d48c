//! Every bound.

use core::time::Duration;
use glasshouse::http::Limits;

/// Connections at once; further ones wait until one ends.
pub const CONNECTIONS_MAX: usize = 512;
/// Bytes of a file that are read at once. A body in progress has two such pieces.
pub const PIECE_BYTES: usize = 64 << 10;
/// One part in so many of the memory is for bodies in progress.
pub const BODY_SHARE: u64 = 4;
/// Bodies in progress, whatever the memory; further ones wait.
pub const BODIES_MIN: usize = 4;
/// See [`BODIES_MIN`].
pub const BODIES_MAX: usize = 256;
/// Names in the page of a directory; further ones are left out.
pub const LISTED_MAX: usize = 1000;
/// Bytes of that page, but for its end: those of a body in progress.
pub const LISTING_BYTES_MAX: usize = 2 * PIECE_BYTES;
/// A file may take one part in so many of the cache.
pub const CACHED_FILE_SHARE: usize = 4;
/// What an entry of the cache costs beside its path and its content, some more than it does.
pub const CACHE_ENTRY_BYTES: usize = 256;
/// `--cache` may be one part in so many of the memory.
pub const CACHE_SHARE: u64 = 2;
/// Ranges in one request; one with more gets the whole file.
pub const RANGES_MAX: usize = 16;
/// A file that has changed less than this ago has no entity tag: its times may not show the next change.
pub const SETTLED: Duration = Duration::from_secs(2);
/// How long the end of the service waits for responses in progress.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Those of a connection.
pub const HTTP: Limits = Limits::DEFAULT;
