//! Names and counters of the service's trace.

use glasshouse::trace::{Counter, Gauge, Name};

/// Uploads wait for it at their end, and consumers when there is no item.
pub(crate) static COMMIT: Name = Name::new("commit of the index");
/// The task of commits waits for it.
pub(crate) static CHANGE: Name = Name::new("change to commit");
pub(crate) static ABANDONED: Name = Name::new("abandoned request");
pub(crate) static UPLOAD_SLOT: Name = Name::new("slot for an upload");
pub(crate) static DOWNLOAD_SLOT: Name = Name::new("slot for a download");
pub(crate) static WAITING_SLOT: Name = Name::new("slot to wait for an item");
pub(crate) static CONNECTION_SLOT: Name = Name::new("slot for a connection");

/// Chunks that are kept for the next transfer.
pub(crate) static BUFFERS_FREE: Gauge = Gauge::new("buffers free");
/// Requests that wait for one of the slots that bound concurrent transfers.
pub(crate) static UPLOADS_WAITING: Gauge = Gauge::new("uploads waiting");
pub(crate) static DOWNLOADS_WAITING: Gauge = Gauge::new("downloads waiting");
/// Items that can be fetched, and bytes of the disk that are in use, including open uploads.
pub(crate) static ITEMS_QUEUED: Gauge = Gauge::new("items queued");
pub(crate) static BYTES_QUEUED: Gauge = Gauge::new("bytes queued");

/// Uploads that were answered 200.
pub(crate) static UPLOADS_DONE: Counter = Counter::new("uploads done");
/// Downloads that were completed.
pub(crate) static DOWNLOADS_DONE: Counter = Counter::new("downloads done");
/// Index writes.
pub(crate) static COMMITS: Counter = Counter::new("commits");
/// Flushes of the disk.
pub(crate) static FLUSHES: Counter = Counter::new("flushes");
