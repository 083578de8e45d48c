//! The service: start, accept connections, end.

use crate::access::Access;
use crate::boxed::boxed;
use crate::config::{Config, ConfigError};
use crate::cors::Origins;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::items::{Disk, Items};
use crate::leases::Leases;
use crate::limits::{
    CONNECTIONS_MAX, DOWNLOADS_MAX, EXPIRY_PERIOD, HTTP, LOG_END_WAIT, RESUME_TIME, RESUME_TIME_AFTER_START,
    SHUTDOWN_WAIT, SMALL_UPLOADS, UPLOADS_MAX, WAITING_PART, transfers,
};
use crate::log::{self, AccessLog, LogFile};
use crate::metrics::Traffic;
use crate::operator::{FoundFiles, OperatorFiles};
use crate::reload::Reload;
use crate::routes::{Client, Queue};
use crate::scrub::Scrub;
use crate::settings;
use crate::status::Transfers;
use crate::store::Store;
use crate::telemetry::{self, CONNECTION_SLOT, DOWNLOAD_SLOT, UPLOAD_SLOT, WAITING_SLOT};
use crate::tls::{self, Tls};
use crate::watched::Watched;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::net::IpAddr;
use core::pin::Pin;
use core::time::Duration;
use glasshouse::future::{select, select_slice};
use glasshouse::http::{Connections, SlotLimits, Slots};
use glasshouse::sync::Latch;
use glasshouse::{Listener, Net, NetError, Platform, Port, SpawnError};

/// Why the service cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeError {
    /// The arguments are invalid.
    Config(ConfigError),
    /// The file with the settings is invalid or cannot be read; the text states why.
    Settings(String),
    /// The access log cannot be written; the text states why.
    AccessLog(String),
    /// There is no disk to keep the queue on.
    NoDisk,
    /// There is a disk, and an engine.
    DiskAndEngine,
    /// The engine cannot be used; the text states why.
    Engine(String),
    /// The disk cannot be used.
    Open(OpenError),
    /// The network cannot be used.
    Net(NetError),
    /// The certificates cannot be used; the text states why.
    Tls(String),
    /// The tokens cannot be used; the text states why.
    Tokens(String),
    /// The service's own task cannot run.
    Spawn(SpawnError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ServeError::Config(error) => write!(f, "{error}"),
            ServeError::Settings(error) => write!(f, "the settings cannot be used: {error}"),
            ServeError::AccessLog(error) => write!(f, "the access log cannot be written: {error}"),
            ServeError::NoDisk => {
                write!(f, "there is no disk to keep the queue on: give one with --disk, or an engine with --store")
            }
            ServeError::DiskAndEngine => {
                write!(f, "the items are either on a disk or in an engine: give --disk or --store")
            }
            ServeError::Engine(error) => write!(f, "{error}"),
            ServeError::Open(error) => write!(f, "{error}"),
            ServeError::Net(error) => write!(f, "the network cannot be used: {error}"),
            ServeError::Tokens(error) => write!(f, "the tokens cannot be used: {error}"),
            ServeError::Tls(error) => write!(f, "{error}"),
            ServeError::Spawn(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for ServeError {}

/// Keeps a queue on the first disk and serves it over HTTP until its end is requested; then it finishes the requests in
/// flight, for [`SHUTDOWN_WAIT`] at most.
pub async fn serve(p: impl Platform) -> Result<(), glasshouse::Error> {
    let mut running = boxed(|| start(&p)).await?;
    select(select_slice(Pin::new(&mut running.accepting[..])), p.shutdown()).await;
    boxed(|| end(&p, running)).await;
    Ok(())
}

/// A service that has started.
struct Running<P: Platform> {
    queue: Rc<Queue<P>>,
    connections: Connections,
    /// What accepts, one for each port. Only the end of the service ends it.
    accepting: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Opens the queue and all that belongs to it, and listens.
async fn start<P: Platform>(p: &P) -> Result<Running<P>, glasshouse::Error> {
    let files = OperatorFiles::open(p).await;
    let (config, settings) = settings::read(p, files.clone()).await?;
    let mut random = [0; 8];
    p.fill_random(&mut random);
    let items = match &config.store {
        Some(_) if p.block(0).is_some() => return Err(ServeError::DiskAndEngine.into()),
        Some(address) => Items::Engine(Engine::open(p, address, config.tries).await.map_err(ServeError::Engine)?),
        None => Items::Disk(open_disk(p, &config, u64::from_le_bytes(random)).await?),
    };
    if config.delete_by_connection {
        p.print(format_args!(
            "upload-queue: a DELETE without If-Match removes what its connection received: each connection must have one client, \
             without a proxy that shares connections among clients"
        ));
    }
    let tls = match &config.tls {
        Some((chain, key)) => Some(identity(p, files.clone(), chain, key).await?),
        None => None,
    };
    let access = match &config.tokens {
        Some(path) => Some(tokens(p, files.clone(), path, config.store.is_none()).await?),
        None => None,
    };
    let log = match &config.access_log {
        Some(path) => Some(access_log(p, files, path).await?),
        None => None,
    };
    let net = p.net();
    let mut connections_max = CONNECTIONS_MAX;
    let mut listeners = Vec::new();
    let mut open_address = None;
    for &port in &config.ports {
        let mut place = String::new();
        if let Port::Tcp(_) = port {
            let info = net.up().await.map_err(ServeError::Net)?;
            connections_max = Connections::bound(connections_max, &info);
            place = format!("{} ", info.address);
            open_address = Some(info.address).filter(|address| !address.is_loopback());
        }
        let listener = net.listen(port).await.map_err(ServeError::Net)?;
        p.print(format_args!("upload-queue: listening on {place}{}", listener.port()));
        // The host alone reaches a port of vsock.
        let tls = tls.as_deref().filter(|_| matches!(port, Port::Tcp(_)));
        listeners.push(tls::lines::<_>(listener, tls));
    }
    if let Some(address) = open_address {
        warn(p, address, tls.is_some(), access.is_some());
    }
    let waiting_max = (connections_max / WAITING_PART).max(1);
    // How much an engine takes is not known.
    let bytes_max = items.disk_usage().map_or(i64::MAX as u64, |usage| usage.data_bytes);
    let queue = Rc::new(Queue {
        traffic: Traffic::default(),
        transfers: Transfers::default(),
        shown: Cell::default(),
        items,
        deletes_by_connection: Cell::new(config.delete_by_connection),
        item_bytes_max: config.item_bytes_max.unwrap_or(bytes_max).min(bytes_max),
        uploads: Slots::new(transfers(UPLOADS_MAX), &UPLOAD_SLOT, Some(&telemetry::UPLOADS_WAITING)),
        small_uploads: Slots::new(SMALL_UPLOADS, &UPLOAD_SLOT, Some(&telemetry::UPLOADS_WAITING)),
        downloads: Slots::new(transfers(DOWNLOADS_MAX), &DOWNLOAD_SLOT, Some(&telemetry::DOWNLOADS_WAITING)),
        waiting: Slots::new(SlotLimits { share: waiting_max, ..transfers(waiting_max) }, &WAITING_SLOT, None),
        access,
        origins: Origins::new(config.origins.clone()),
        log,
        stop: Latch::new(),
        platform: p.clone(),
    });
    p.spawn("expiry", expire(queue.clone())).map_err(ServeError::Spawn)?;
    if let Some(settings) = settings {
        p.spawn("settings", settings::follow(queue.clone(), settings, config)).map_err(ServeError::Spawn)?;
    }
    // What a panic leaves of the index and of the free space is not to be trusted: a start reads it from the disk (decision 59).
    let connections = Connections::new(connections_max, &CONNECTION_SLOT).ended_by_panics();
    let accepting =
        listeners.into_iter().map(|listener| boxed(|| accept(queue.clone(), listener, connections.clone()))).collect();
    Ok(Running { queue, connections, accepting })
}

/// Finishes the requests in flight, for [`SHUTDOWN_WAIT`] at most.
async fn end<P: Platform>(p: &P, running: Running<P>) {
    let Running { queue, connections, accepting } = running;
    queue.stop.open();
    // The ports are closed first: who connects now is refused at once.
    drop(accepting);
    if p.timeout(SHUTDOWN_WAIT, connections.finish()).await.is_err() {
        p.print(format_args!("upload-queue: {} connections were cut: they took too long", connections.count()));
    }
    if let Some(log) = &queue.log {
        // What is not written by then is lost.
        let _ = p.timeout(LOG_END_WAIT, log.finish()).await;
    }
    p.print(format_args!("upload-queue: ended"));
}

/// Opens the queue on the disk, and has its changes committed.
async fn open_disk<P: Platform>(p: &P, config: &Config, random: u64) -> Result<Disk<P>, ServeError> {
    let block = Watched::new(p.block(0).ok_or(ServeError::NoDisk)?, p.clone());
    // A new queue takes the whole disk anyway.
    let opened = match config.grow && !config.format {
        true => Store::open_and_grow(block.clone()).await,
        false => Store::open(block.clone(), config.format).await,
    };
    let (store, recovery) = opened.map_err(ServeError::Open)?;
    if config.discard {
        store.discard_removed();
    }
    for remark in recovery.remarks() {
        p.print(format_args!("upload-queue: {remark}"));
    }
    let usage = store.usage();
    let used_bytes = usage.data_bytes - usage.free_bytes;
    p.print(format_args!("upload-queue: {} items recovered at commit {}", recovery.items, recovery.sequence));
    if recovery.uploads > 0 {
        p.print(format_args!("upload-queue: {} uploads can be resumed", recovery.uploads));
    }
    p.print(format_args!("upload-queue: {used_bytes} bytes used, {} bytes free", usage.free_bytes));
    let running = store.clone();
    p.spawn("commit", async move { running.run().await }).map_err(ServeError::Spawn)?;
    set_expiry(p, &store);
    let scrub = (config.scrub_days > 0).then(|| Scrub::new(p.now()));
    if let Some(scrub) = &scrub {
        let period = Duration::from_secs(config.scrub_days * 24 * 60 * 60);
        p.spawn("scrub", scrub.clone().run(p.clone(), store.clone(), period)).map_err(ServeError::Spawn)?;
    }
    Ok(Disk { block, store, leases: Leases::new(random, config.tries), scrub })
}

/// What is open to those who can reach the service at an address that is not loopback.
fn warn(p: &impl Platform, address: IpAddr, has_tls: bool, has_tokens: bool) {
    if !has_tls {
        p.print(format_args!(
            "upload-queue: warning: there is no TLS: all between {address} and a client can read and change what is sent; \
             give --tls-chain and --tls-key, or put a proxy with TLS in front"
        ));
    }
    if !has_tokens {
        p.print(format_args!(
            "upload-queue: warning: there are no tokens: all who reach {address} can upload, receive and remove items; give --tokens"
        ));
    }
}

/// Opens the access log, and has it written.
async fn access_log<P: Platform>(p: &P, files: FoundFiles<P>, path: &str) -> Result<Rc<AccessLog>, ServeError> {
    let log = Rc::new(AccessLog::default());
    let spawned = if path == log::CONSOLE {
        p.spawn("access log", log.clone().write_to_console(p.clone()))
    } else {
        let file = LogFile::open(files.map_err(ServeError::AccessLog)?, path).await.map_err(ServeError::AccessLog)?;
        p.spawn("access log", log.clone().write_to_file(p.clone(), file))
    };
    spawned.map_err(ServeError::Spawn)?;
    Ok(log)
}

/// Reads the tokens, and has them read again when their file changes.
async fn tokens<P: Platform>(
    p: &P,
    files: FoundFiles<P>,
    path: &str,
    counts_items: bool,
) -> Result<Rc<Access>, ServeError> {
    let reload = Reload::new(files.map_err(ServeError::Tokens)?, &[path]).await;
    let access = Rc::new(Access::open(reload.files(), path, counts_items).await.map_err(ServeError::Tokens)?);
    p.print(format_args!("upload-queue: {} tokens are valid", access.count()));
    p.spawn("tokens", access.clone().renew(p.clone(), reload)).map_err(ServeError::Spawn)?;
    Ok(access)
}

/// Reads the identity for TLS, and has it read again when its files change.
async fn identity<P: Platform>(p: &P, files: FoundFiles<P>, chain: &str, key: &str) -> Result<Rc<Tls<P>>, ServeError> {
    let no_files = |advice| ServeError::Tls(format!("there are no files for TLS: {advice}"));
    let mut reload = Reload::new(files.map_err(no_files)?, &[chain, key]).await;
    let tls = Rc::new(Tls::open(p, reload.files(), chain, key).await.map_err(ServeError::Tls)?);
    let (renewed, platform) = (tls.clone(), p.clone());
    let renew = async move {
        loop {
            reload.changed(&platform).await;
            // Of two files that belong together one may be new and the other not yet.
            match renewed.reopen(reload.files()).await {
                Ok(()) => platform.print(format_args!("upload-queue: new certificates are used")),
                Err(error) => {
                    platform.print(format_args!("upload-queue: the certificates of before are used: {error}"))
                }
            }
        }
    };
    p.spawn("certificates", renew).map_err(ServeError::Spawn)?;
    Ok(tls)
}

/// Sets when the uploads that were found expire. The time of day decides at the start only, within bounds, and later that of this service: a
/// clock that jumps ends no upload.
fn set_expiry<P: Platform>(p: &P, store: &Store<Watched<P::Block, P>>) {
    let epoch_secs = p.wall().map_or(0, |now| now.since_epoch.as_secs());
    for upload in store.resumables() {
        let left = Duration::from_secs(upload.saved().deadline_secs.saturating_sub(epoch_secs));
        upload.expires.set(p.now() + left.clamp(RESUME_TIME_AFTER_START, RESUME_TIME));
    }
}

/// Forgets uploads that no client continues, and leases of items that are gone, without end.
async fn expire<P: Platform>(queue: Rc<Queue<P>>) {
    let p = &queue.platform;
    loop {
        p.sleep(EXPIRY_PERIOD).await;
        queue.items.tidy();
        let Ok(store) = queue.items.store() else { continue };
        for upload in store.resumables().iter().filter(|upload| upload.expires.get() <= p.now() && !upload.is_busy()) {
            if let Err(error) = store.forget(upload).await {
                p.print(format_args!("upload-queue: an expired upload is kept: {error}"));
            }
        }
    }
}

async fn accept<P: Platform>(
    queue: Rc<Queue<P>>,
    listener: impl Listener<Stream = tls::Line<P>>,
    connections: Connections,
) {
    let handler = |connected| {
        let (queue, client) = (queue.clone(), Client::new(connected));
        async move |connection: &mut _, request| queue.handle(connection, request, &client).await
    };
    connections.accept(&queue.platform, "upload-queue", listener, HTTP, handler).await;
}
