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

/// Bytes of an upload that can be resumed after which its progress is saved, while more arrive: what a power cut costs at most. An upload
/// that is interrupted in another way keeps all that arrived.
pub const SAVE_BYTES: u64 = 8 << 20;

/// Pages of the index that are always taken if there is memory for them: 4,095 items, as an index of version 2 had at most. 260 KiB.
pub const INDEX_PAGES_ALWAYS: u32 = 65;

/// Memory that a larger index leaves to all else: the chunks of all transfers (see [`UPLOADS_MAX`]), small uploads and connections.
pub const MEMORY_BESIDE_INDEX: usize = 12 << 20;

/// Requests in flight that read the index at the start, each of at most [`INDEX_READ_BLOCKS`], or that write it.
pub const INDEX_WRITES: usize = 8;
/// See [`INDEX_WRITES`]: 256 KiB.
pub const INDEX_READ_BLOCKS: u32 = 64;

/// How long an upload can be resumed after its last request, and a complete one is known.
pub const RESUME_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an upload can be resumed after a restart at least: a clock that shows a wrong time must not end it.
pub const RESUME_TIME_AFTER_START: Duration = Duration::from_secs(10 * 60);

/// How often expired uploads are looked for.
pub const EXPIRY_PERIOD: Duration = Duration::from_secs(60);

/// How long a request for an upload waits until another one, which it ends, has stored what arrived.
pub const TAKE_OVER_WAIT: Duration = Duration::from_secs(10);

/// Bytes of the field Upload-Metadata (tus), which is kept in memory.
pub const METADATA_BYTES_MAX: usize = 1024;

/// Uploads that can be resumed, with those that were completed lately, at most. Each has an object of 1 KiB, and up to two entries of the index.
const RESUMABLE_MAX: usize = 256;

/// The bound for an index with room for `items_max` items: a quarter of it.
pub fn resumable_max(items_max: usize) -> usize {
    (items_max / 8).clamp(1, RESUMABLE_MAX)
}

/// Concurrent uploads. Together with the downloads: 16 transfers x 4 chunks x 128 KiB =
/// 8 MiB, a quarter of the smallest VM (32 MiB).
pub const UPLOADS_MAX: usize = 8;

/// Uploads that announce at most so many bytes take one of the [`SMALL_UPLOADS_MAX`] slots instead, which need less memory: many of them are
/// written and flushed together, also beside large ones that are slow.
pub const SMALL_BYTES: u64 = 16 * 1024;

/// Concurrent uploads of at most [`SMALL_BYTES`]: 1 MiB.
pub const SMALL_UPLOADS_MAX: usize = 64;

/// Maximum of the [`SMALL_UPLOADS_MAX`] for one address.
const SMALL_SHARE_MAX: usize = 48;

/// Concurrent downloads; see [`UPLOADS_MAX`]. Clients that wait for an item do not count.
pub const DOWNLOADS_MAX: usize = 8;

/// Maximum of the [`UPLOADS_MAX`], and of the [`DOWNLOADS_MAX`], for one address, so that another address gets a slot immediately.
pub const SHARE_MAX: usize = 6;

/// While others wait for its slot, a client must transfer [`SLOW_BYTES`] in so much time that is spent waiting for it.
pub const SLOW_TIME: Duration = Duration::from_secs(2);

/// See [`SLOW_TIME`]: 64 KiB a second, half a megabit.
pub const SLOW_BYTES: u64 = 128 * 1024;

/// An upload that has sent so many bytes, and continues as fast as [`SLOW_BYTES`] in [`SLOW_TIME`], keeps the space of its whole length.
pub const KEPT_BYTES: u64 = 256 * 1024;

/// How often uploads are looked at for [`KEPT_BYTES`]: one that pauses keeps its space for twice as long, while others want it.
pub const PACE_TIME: Duration = Duration::from_secs(10);

/// The uploads, or the downloads, that may be in progress.
pub(crate) const fn transfers(count: usize) -> SlotLimits {
    SlotLimits { count, share: SHARE_MAX, slow_time: SLOW_TIME, slow_bytes: SLOW_BYTES }
}

/// The uploads of at most [`SMALL_BYTES`] that may be in progress.
pub(crate) const SMALL_UPLOADS: SlotLimits = SlotLimits { share: SMALL_SHARE_MAX, ..transfers(SMALL_UPLOADS_MAX) };

/// Chunks that are kept for the next transfer.
pub const POOL_CHUNKS_MAX: usize = (UPLOADS_MAX + DOWNLOADS_MAX) * CHUNKS_PER_TRANSFER;

/// How long a request waits for one of the [`UPLOADS_MAX`] or [`DOWNLOADS_MAX`] slots before it
/// is answered 503. Its body is not read meanwhile, so TCP holds the sender back.
pub const SLOT_WAIT: Duration = Duration::from_secs(5);

/// How long a consumer has an item if it requests no other time, in seconds, and how long at most.
pub const LEASE_SECS: u64 = 60;
/// See [`LEASE_SECS`].
pub const LEASE_SECS_MAX: u64 = 12 * 60 * 60;

/// How often an item is given out by leases before it is set aside.
pub const TRIES: u32 = 10;

/// Items in an answer with a list, and at most.
pub const LIST_ITEMS: u64 = 100;
/// See [`LIST_ITEMS`]: about 100 KiB.
pub const LIST_ITEMS_MAX: u64 = 1000;

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

/// Days of `--scrub` at most.
pub const SCRUB_DAYS_MAX: u64 = 1000;

/// The scrub pauses so long after each read, or less if it would take longer than its days allow: at most 1 MiB in a second. A pass over a
/// small queue takes minutes, and then the service sleeps.
pub const SCRUB_PAUSE: Duration = Duration::from_millis(125);

/// The scrub pauses so many times as long as its last read took: it has a sixteenth of the disk's time at most, and less while the disk is
/// busy, because its reads take longer then.
pub const SCRUB_PAUSE_READS: u32 = 15;

/// The scrub pauses at most so long: the clock of a VM continues while the VM is paused during a read.
pub const SCRUB_PAUSE_MAX: Duration = Duration::from_secs(60);

/// An uploader that was quiet for so long may send as much at once as its rate allows in this time.
pub const RATE_BURST: Duration = Duration::from_secs(60);

/// Bytes of lines of the access log that wait to be written: about 250. Further ones are dropped and counted.
pub const LOG_WAITING_BYTES: usize = 64 * 1024;

/// Pause after lines were written: with [`LOG_WAITING_BYTES`] at most 640 KiB a second are, however many requests arrive.
pub const LOG_PAUSE: Duration = Duration::from_millis(100);

/// How long the end of the service waits for the last lines.
pub const LOG_END_WAIT: Duration = Duration::from_secs(2);

/// Characters of a User-Agent, and of a method, in the log.
pub const LOG_AGENT_CHARACTERS: usize = 128;
/// See [`LOG_AGENT_CHARACTERS`].
pub const LOG_METHOD_CHARACTERS: usize = 16;

/// Origins whose pages may send requests.
pub const ORIGINS_MAX: usize = 64;

/// How often files with certificates and tokens are checked for a change.
pub const RELOAD_PERIOD: Duration = Duration::from_secs(2);

/// How long requests in flight may continue after the request to end.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);

/// Bounds for one client while no other one waits: at least 64 KiB in each 30 seconds of waiting for it. An
/// upload without progress is ended after one to two of these windows.
pub const HTTP: Limits = Limits { progress_bytes_min: 64 * 1024, ..Limits::DEFAULT };
