//! The service: start, accept connections, end.

use crate::config::{Config, ConfigError};
use crate::error::OpenError;
use crate::limits::{CONNECTIONS_MAX, DOWNLOADS_MAX, HTTP, SHUTDOWN_WAIT, UPLOADS_MAX, WAITING_PART, transfers};
use crate::routes::{Client, Queue};
use crate::store::Store;
use crate::telemetry::{self, CONNECTION_SLOT, DOWNLOAD_SLOT, UPLOAD_SLOT, WAITING_SLOT};
use crate::watched::Watched;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::pin::Pin;
use glasshouse::future::{select, select_slice};
use glasshouse::http::{Connections, SlotLimits, Slots};
use glasshouse::sync::Latch;
use glasshouse::{Listener, Net, NetError, Platform, Port, SpawnError};

/// Why the service cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeError {
    /// The arguments are invalid.
    Config(ConfigError),
    /// There is no disk to keep the queue on.
    NoDisk,
    /// The disk cannot be used.
    Open(OpenError),
    /// The network cannot be used.
    Net(NetError),
    /// The service's own task cannot run.
    Spawn(SpawnError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ServeError::Config(error) => write!(f, "{error}"),
            ServeError::NoDisk => write!(f, "there is no disk to keep the queue on: give one with --disk"),
            ServeError::Open(error) => write!(f, "{error}"),
            ServeError::Net(error) => write!(f, "the network cannot be used: {error}"),
            ServeError::Spawn(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for ServeError {}

/// Keeps a queue on the first disk and serves it over HTTP until its end is requested; then it finishes the requests in
/// flight, for [`SHUTDOWN_WAIT`] at most.
pub async fn serve(p: impl Platform) -> Result<(), glasshouse::Error> {
    let config = Config::from_args(p.args()).map_err(ServeError::Config)?;
    let disk = Watched::new(p.block(0).ok_or(ServeError::NoDisk)?, p.clone());
    let (store, recovery) = Store::open(disk.clone(), config.format).await.map_err(ServeError::Open)?;
    if config.discard {
        store.discard_removed();
    }
    if config.delete_by_connection {
        p.print(format_args!(
            "upload-queue: a DELETE without If-Match removes what its connection received: each connection must have one client, \
             without a proxy that shares connections among clients"
        ));
    }
    for remark in recovery.remarks() {
        p.print(format_args!("upload-queue: {remark}"));
    }
    let usage = store.usage();
    let used_bytes = usage.data_bytes - usage.free_bytes;
    p.print(format_args!("upload-queue: {} items recovered at commit {}", recovery.items, recovery.sequence));
    p.print(format_args!("upload-queue: {used_bytes} bytes used, {} bytes free", usage.free_bytes));
    let running = store.clone();
    p.spawn("commit", async move { running.run().await }).map_err(ServeError::Spawn)?;

    let net = p.net();
    let mut connections_max = CONNECTIONS_MAX;
    let mut listeners = Vec::new();
    for port in config.ports {
        let mut place = String::new();
        if let Port::Tcp(_) = port {
            let info = net.up().await.map_err(ServeError::Net)?;
            connections_max = Connections::bound(connections_max, &info);
            place = format!("{} ", info.address);
        }
        let listener = net.listen(port).await.map_err(ServeError::Net)?;
        p.print(format_args!("upload-queue: listening on {place}{}", listener.port()));
        listeners.push(listener);
    }
    let waiting_max = (connections_max / WAITING_PART).max(1);
    let queue = Rc::new(Queue {
        disk,
        store,
        deletes_by_connection: config.delete_by_connection,
        item_bytes_max: config.item_bytes_max.unwrap_or(usage.data_bytes).min(usage.data_bytes),
        uploads: Slots::new(transfers(UPLOADS_MAX), &UPLOAD_SLOT, Some(&telemetry::UPLOADS_WAITING)),
        downloads: Slots::new(transfers(DOWNLOADS_MAX), &DOWNLOAD_SLOT, Some(&telemetry::DOWNLOADS_WAITING)),
        waiting: Slots::new(SlotLimits { share: waiting_max, ..transfers(waiting_max) }, &WAITING_SLOT, None),
        stop: Latch::new(),
        platform: p.clone(),
    });
    let connections = Connections::new(connections_max, &CONNECTION_SLOT);
    // Only the end of the service ends accepting.
    let mut accepting: Vec<_> =
        listeners.into_iter().map(|listener| Box::pin(accept(queue.clone(), listener, connections.clone()))).collect();
    select(select_slice(Pin::new(&mut accepting[..])), p.shutdown()).await;
    queue.stop.open();
    // The ports are closed first: who connects now is refused at once.
    drop(accepting);
    if p.timeout(SHUTDOWN_WAIT, connections.finish()).await.is_err() {
        p.print(format_args!("upload-queue: {} connections were cut: they took too long", connections.count()));
    }
    p.print(format_args!("upload-queue: ended"));
    Ok(())
}

async fn accept<P: Platform>(queue: Rc<Queue<P>>, listener: <P::Net as Net>::Listener, connections: Connections) {
    let handler = |connected| {
        let (queue, client) = (queue.clone(), Client::new(connected));
        async move |connection: &mut _, request| queue.handle(connection, request, &client).await
    };
    connections.accept(&queue.platform, "upload-queue", listener, HTTP, handler).await;
}
