//! Every size and bound of the service, with its reason.

use core::time::Duration;
use glasshouse::http::Limits;

/// Bytes of one device request while data streams. Large enough that a request's fixed cost (a
/// thread hand-over in a process, an exit in a VM) vanishes beside its copy, small enough to stay
/// in a core's second-level cache between the receive, the checksum and the write.
pub const CHUNK_BYTES: usize = 128 * 1024;

/// Chunks that one upload or download holds: one that the network fills or empties, the others
/// under way to or from the device.
pub const CHUNKS_PER_TRANSFER: usize = 4;

/// Uploads that stream at once. Together with the downloads: 16 transfers x 4 chunks x 128 KiB =
/// 8 MiB, a quarter of the smallest VM (32 MiB).
pub const UPLOADS_MAX: usize = 8;

/// Downloads that stream at once; see [`UPLOADS_MAX`]. Clients that wait for an item do not count.
pub const DOWNLOADS_MAX: usize = 8;

/// Of the [`UPLOADS_MAX`] and of the [`DOWNLOADS_MAX`] so many at most for one address, so that another finds a place at once.
pub const SHARE_MAX: usize = 6;

/// While others wait for its place, a client must move [`SLOW_BYTES`] in so much time that is spent waiting for it.
pub const SLOW_TIME: Duration = Duration::from_secs(2);

/// See [`SLOW_TIME`]: 64 KiB a second, half a megabit.
pub const SLOW_BYTES: u64 = 128 * 1024;

/// Chunks that are kept for the next transfer.
pub const POOL_CHUNKS_MAX: usize = (UPLOADS_MAX + DOWNLOADS_MAX) * CHUNKS_PER_TRANSFER;

/// How long a request waits for one of the [`UPLOADS_MAX`] or [`DOWNLOADS_MAX`] places before it
/// is answered 503. Its body is not read meanwhile, so TCP holds the sender back.
pub const PLACE_WAIT: Duration = Duration::from_secs(5);

/// What a 503 asks the client to wait.
pub const RETRY_AFTER_SECS: u32 = 1;

/// Longest `?wait=` that is honoured; more is treated as this much.
pub const WAIT_SECS_MAX: u64 = 24 * 60 * 60;

/// How long a client that has ended its half of the connection still waits for an item. It may read the answer, and whether it does
/// cannot be seen; if it has left, it must not hold its place for ever.
pub const HALF_CLOSED_WAIT: Duration = Duration::from_secs(30);

/// Connections that are open at once. At the bound a new one takes the place of one that rests. Beside its TCP buffers one
/// costs 4 KiB, or 16 KiB with a very long head.
pub const CONNECTIONS_MAX: usize = 512;

/// A small VM's network has a lower bound of its own, 64 with 32 MiB. An eighth of it is left to connections that open or
/// close.
pub const CONNECTIONS_SPARE: usize = 8;

/// Clients that wait for an item at once are so large a part of all connections, a half, so that they never keep the uploads
/// away that would end their waiting.
pub const WAITING_PART: usize = 2;

/// Pause after a connection could not be accepted, so that a lasting failure costs next to nothing.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What one client may send and how slow it may be while no other one waits: 64 KiB in each 30 seconds of waiting for it. An
/// upload that stands still is ended after one to two of these windows.
pub const HTTP: Limits = Limits { progress_bytes_min: 64 * 1024, ..Limits::DEFAULT };
