//! Every bound.

use core::time::Duration;
use glasshouse::http::{Limits, SlotLimits};

/// Open connections; a small VM's network has a lower bound. At the bound, one that sends no large body is reset for a new one: the oldest
/// of the address that has the most.
pub const CONNECTIONS_MAX: usize = 512;
/// A body of a file that is not longer needs no slot: the buffers of its connection take it, so it does not wait behind clients that do
/// not read.
pub const SMALL_BODY_BYTES: u64 = 16 << 10;
/// Bytes of a file that are read at once. A body in progress has two such pieces.
pub const PIECE_BYTES: usize = 64 << 10;
/// One part in so many of the memory is for bodies in progress.
pub const BODY_SHARE: u64 = 4;
/// Slots for larger bodies, whatever the memory; further ones wait for one, for [`SLOT_WAIT`] at most. Those of one address get three
/// quarters of them.
pub const BODIES_MIN: usize = 4;
/// See [`BODIES_MIN`]. Half of the connections have none, and can be reset for new ones.
pub const BODIES_MAX: usize = CONNECTIONS_MAX / 2;
/// How long a request waits for a slot before it is answered 503.
pub const SLOT_WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` of a 503.
pub const RETRY_AFTER_SECS: u32 = 1;
/// While others wait for its slot, a client must receive [`SLOW_BYTES`] in so much time that is spent waiting for it.
pub const SLOW_TIME: Duration = Duration::from_secs(2);
/// See [`SLOW_TIME`]: 64 KiB a second, half a megabit.
pub const SLOW_BYTES: u64 = 128 << 10;
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
/// Those of a connection.
pub const HTTP: Limits = Limits::DEFAULT;

/// The slots for bodies with so much memory and so many connections.
pub(crate) fn bodies(memory_bytes: u64, connections_max: usize) -> SlotLimits {
    let fit = usize::try_from(memory_bytes / BODY_SHARE / (2 * PIECE_BYTES as u64)).unwrap_or(usize::MAX);
    let count = fit.clamp(BODIES_MIN, BODIES_MAX).min(connections_max / 2).max(1);
    SlotLimits { count, share: (count * 3 / 4).max(1), slow_time: SLOW_TIME, slow_bytes: SLOW_BYTES }
}
