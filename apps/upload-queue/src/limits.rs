//! Every size and bound of the service, with its reason.

use core::time::Duration;
use glasshouse::http::{Limits, SlotLimits};

/// Bytes of one device request while data streams. Large enough that a request's fixed cost (a
/// thread switch in a process, an exit in a VM) is negligible beside its copy, small enough to stay
/// in a core's second-level cache between the receive, the checksum and the write.
pub const CHUNK_BYTES: usize = 128 * 1024;

/// Chunks that one upload or download holds: one that the network fills or empties, the others
/// in flight to or from the device.
pub const CHUNKS_PER_TRANSFER: usize = 4;

/// Bytes of data that are written before a flush of their own: the flush at the end of a long upload then has little left to do. A disk
/// of 2 GB/s takes 8 ms for them.
pub const EARLY_FLUSH_BYTES: u64 = 16 << 20;

/// Concurrent uploads. Together with the downloads: 16 transfers x 4 chunks x 128 KiB =
/// 8 MiB, a quarter of the smallest VM (32 MiB).
pub const UPLOADS_MAX: usize = 8;

/// Concurrent downloads; see [`UPLOADS_MAX`]. Clients that wait for an item do not count.
pub const DOWNLOADS_MAX: usize = 8;

/// Maximum of the [`UPLOADS_MAX`], and of the [`DOWNLOADS_MAX`], for one address, so that another address gets a slot immediately.
pub const SHARE_MAX: usize = 6;

/// While others wait for its slot, a client must transfer [`SLOW_BYTES`] in so much time that is spent waiting for it.
pub const SLOW_TIME: Duration = Duration::from_secs(2);

/// See [`SLOW_TIME`]: 64 KiB a second, half a megabit.
pub const SLOW_BYTES: u64 = 128 * 1024;

/// The uploads, or the downloads, that may be in progress.
pub(crate) const fn transfers(count: usize) -> SlotLimits {
    SlotLimits { count, share: SHARE_MAX, slow_time: SLOW_TIME, slow_bytes: SLOW_BYTES }
}

/// Chunks that are kept for the next transfer.
pub const POOL_CHUNKS_MAX: usize = (UPLOADS_MAX + DOWNLOADS_MAX) * CHUNKS_PER_TRANSFER;

/// How long a request waits for one of the [`UPLOADS_MAX`] or [`DOWNLOADS_MAX`] slots before it
/// is answered 503. Its body is not read meanwhile, so TCP holds the sender back.
pub const SLOT_WAIT: Duration = Duration::from_secs(5);

/// `Retry-After` of a 503.
pub const RETRY_AFTER_SECS: u32 = 1;

/// Longest `?wait=` that is honoured; more is treated as this much.
pub const WAIT_SECS_MAX: u64 = 24 * 60 * 60;

/// How long a client that has closed its half of the connection still waits for an item. Whether it still reads
/// cannot be detected; if it does not, it must not wait indefinitely.
pub const HALF_CLOSED_WAIT: Duration = Duration::from_secs(30);

/// Open connections; a small VM's network has a lower bound, about 55 with 32 MiB. At the bound, an idle one is reset for a new one. In addition to its TCP buffers a connection
/// costs 4 KiB, or 16 KiB with a very long head.
pub const CONNECTIONS_MAX: usize = 512;

/// At most one in so many connections (half of them) may wait for an item, so that uploads, which end
/// these waits, always get a connection.
pub const WAITING_PART: usize = 2;

/// A disk that has a request in flight for so long does not answer: `/readyz` reports it.
pub const DISK_ANSWER_TIME: Duration = Duration::from_secs(5);

/// How long requests in flight may continue after the request to end.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);

/// Bounds for one client while no other one waits: at least 64 KiB in each 30 seconds of waiting for it. An
/// upload without progress is ended after one to two of these windows.
pub const HTTP: Limits = Limits { progress_bytes_min: 64 * 1024, ..Limits::DEFAULT };
