//! A synthetic trace: an upload queue under load, for tests and benchmarks of readers of traces.

mod ring;
mod upload;
mod world;

use super::raw::{Function, RawTrace};

/// Names in the guest's table, from number 1 on.
const NAMES: [&str; 23] = [
    "listener",
    "connection",
    "housekeeper",
    "disk 0",
    "network 0",
    "bytes from the client",
    "room on the disk's queue",
    "index to be free",
    "new client",
    "next round",
    "bytes received",
    "open uploads",
    "free memory",
    "upload",
    "bytes",
    "client",
    "upload_queue::service",
    "upload_queue::index",
    "upload_queue::housekeeping",
    "network: a frame to come",
    "write",
    "flush",
    "length",
];

const FUNCTIONS: [(&str, &str); 14] = [
    ("upload_queue::upload::receive", "apps/upload-queue/src/upload.rs"),
    ("glass_net::stream::Stream::read", "lib/net/src/stream.rs"),
    ("<smoltcp::socket::tcp::Socket>::recv_slice", "smoltcp/src/socket/tcp.rs"),
    ("core::ptr::copy_nonoverlapping", "core/src/ptr/mod.rs"),
    ("upload_queue::store::Store::write", "apps/upload-queue/src/store.rs"),
    ("upload_queue::places::find", "apps/upload-queue/src/places.rs"),
    ("glass_virtio::block::Disk::submit", "drivers/virtio/src/block.rs"),
    ("glass_virtio::queue::Queue::add", "drivers/virtio/src/queue.rs"),
    ("upload_queue::service::answer", "apps/upload-queue/src/service.rs"),
    ("glass_http::connection::Connection::respond", "lib/http/src/connection.rs"),
    ("glass_executor::executor::Executor::run_ready", "lib/executor/src/executor.rs"),
    ("glass_net::stack::Stack::poll", "lib/net/src/stack.rs"),
    ("smoltcp::iface::Interface::poll", "smoltcp/src/iface/interface.rs"),
    ("alloc::vec::Vec<T>::push", "alloc/src/vec/mod.rs"),
];

/// An upload queue on two cores under load, recorded from a moment at which it was already running: `events` events,
/// and up to a thousand more until its core has completed the round. The same seed gives the same trace. Eight clients
/// upload at a time; an upload is a span that receives, writes to the disk, waits for the index, writes that, flushes
/// and answers.
///
/// ```
/// use glass_profiler_core::trace::{build, example};
/// let trace = build(&example::queue(20_000, 1));
/// assert!((20_000..21_000).contains(&trace.event_count));
/// assert!(trace.spans.iter().any(|span| trace.name(span.name) == "upload"));
/// ```
pub fn queue(events: usize, seed: u64) -> RawTrace {
    let (rings, clock) = world::run(events, seed);
    let names = std::iter::once("").chain(NAMES).map(str::to_owned).collect();
    let function = |(number, (name, file)): (u32, &(&str, &str))| Function {
        number,
        name: (*name).to_owned(),
        file: Some((*file).to_owned()),
        line: Some(20 + 31 * number),
    };
    let functions = (0..).zip(&FUNCTIONS).map(function).collect();
    RawTrace { rings, names, clock, functions, ..RawTrace::default() }
}

/// The number of a name.
fn name(text: &str) -> u32 {
    NAMES.iter().position(|known| *known == text).map_or(0, |index| index as u32 + 1)
}
