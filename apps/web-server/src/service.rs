//! The service: start, accept connections, end.

use crate::cache::{self, Cache};
use crate::config::{Config, ConfigError};
use crate::limits::{CACHE_SHARE, CONNECTIONS_MAX, HTTP, SHUTDOWN_WAIT, bodies};
use crate::site::{REQUESTS, Site};
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::pin::Pin;
use glasshouse::fat::{Fat, MountError};
use glasshouse::future::{select_slice, select3};
use glasshouse::http::{Connected, Connection, Connections, HttpError, Method, Request, Response, Slots, Status};
use glasshouse::sync::Semaphore;
use glasshouse::trace::{Gauge, Metric, Metrics, Name};
use glasshouse::{Files, Listener, Net, NetError, Platform, Port, Stream};

static CONNECTION_SLOT: Name = Name::new("slot for a connection");
static BODY_SLOT: Name = Name::new("slot for a body");
static LISTING_PLACE: Name = Name::new("place for a listing");
static METRICS_SLOT: Name = Name::new("slot for metrics");
static BODIES_WAITING: Gauge = Gauge::new("bodies waiting");

/// Clients of metrics at once.
const METRICS_CONNECTIONS_MAX: usize = 4;

/// Why the service cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeError {
    /// The arguments are invalid.
    Config(ConfigError),
    /// `--cache` is more than its part of the memory.
    CacheTooLarge {
        /// What it may be, in bytes.
        bytes_max: u64,
    },
    /// There is no directory to serve.
    NoFiles,
    /// There is no disk with files.
    NoDisk,
    /// The disk cannot be used.
    Disk(MountError),
    /// The network cannot be used.
    Net(NetError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ServeError::Config(error) => write!(f, "{error}"),
            ServeError::CacheTooLarge { bytes_max } => {
                write!(f, "--cache is more than half of the memory: give at most {}K", bytes_max >> 10)
            }
            ServeError::NoFiles => {
                write!(f, "there is no directory to serve: give one with --share, or a disk and --disk")
            }
            ServeError::NoDisk => write!(f, "there is no disk: give one with --disk FILE before the --"),
            ServeError::Disk(error) => write!(f, "the files on the disk cannot be served: {error}"),
            ServeError::Net(error) => write!(f, "the network cannot be used: {error}"),
        }
    }
}

impl core::error::Error for ServeError {}

/// Serves the platform's files, or those on its disk, over HTTP until its end is requested; then it finishes the responses in progress,
/// for [`SHUTDOWN_WAIT`] at most.
pub async fn serve(platform: impl Platform) -> Result<(), glasshouse::Error> {
    let config = Config::from_args(platform.args()).map_err(ServeError::Config)?;
    let memory_bytes = platform.memory().total_bytes;
    let bytes_max = memory_bytes / CACHE_SHARE;
    let cache_bytes = usize::try_from(config.cache_bytes.min(bytes_max)).unwrap_or(usize::MAX);
    if config.cache_bytes > bytes_max {
        return Err(ServeError::CacheTooLarge { bytes_max }.into());
    }
    if config.on_disk {
        let disk = platform.block(0).ok_or(ServeError::NoDisk)?;
        let files = Fat::mount(disk, platform.clone()).await.map_err(ServeError::Disk)?;
        serve_files(platform, files, config, cache_bytes).await
    } else {
        let files = platform.files().ok_or(ServeError::NoFiles)?;
        serve_files(platform, files, config, cache_bytes).await
    }
}

async fn serve_files<P: Platform, D: Files>(
    platform: P,
    files: D,
    config: Config,
    cache_bytes: usize,
) -> Result<(), glasshouse::Error> {
    let memory_bytes = platform.memory().total_bytes;
    let net = platform.net();
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
        platform.print(format_args!("web-server: listening on {place}{}", listener.port()));
        listeners.push(listener);
    }
    let mut metrics = None;
    if let Some(port) = config.metrics {
        if let Port::Tcp(_) = port {
            net.up().await.map_err(ServeError::Net)?;
        }
        let listener = net.listen(port).await.map_err(ServeError::Net)?;
        platform.print(format_args!("web-server: metrics on {}", listener.port()));
        metrics = Some(listener);
    }
    let site = Rc::new(Site {
        platform: platform.clone(),
        files,
        bodies: Slots::new(bodies(memory_bytes, connections_max), &BODY_SLOT, Some(&BODIES_WAITING)),
        listings: Semaphore::named(&LISTING_PLACE, 1),
        lists: config.lists,
        cache: RefCell::new(Cache::new(cache_bytes)),
    });
    let connections = Connections::new(connections_max, &CONNECTION_SLOT);
    let mut accepting: Vec<_> =
        listeners.into_iter().map(|listener| Box::pin(accept(site.clone(), listener, connections.clone()))).collect();
    let metered = async {
        match metrics {
            Some(listener) => accept_metrics(&platform, listener).await,
            None => core::future::pending().await,
        }
    };
    select3(select_slice(Pin::new(&mut accepting[..])), metered, platform.shutdown()).await;
    // The ports are closed first: who connects now is refused at once.
    drop(accepting);
    if platform.timeout(SHUTDOWN_WAIT, connections.finish()).await.is_err() {
        platform.print(format_args!("web-server: connections were cut: they took too long"));
    }
    Ok(())
}

async fn accept<P: Platform, D: Files>(
    site: Rc<Site<P, D>>,
    listener: <P::Net as Net>::Listener,
    connections: Connections,
) {
    let handler = |client: Rc<Connected>| {
        let site = site.clone();
        async move |connection: &mut _, request| site.handle(connection, request, &client).await
    };
    connections.accept(&site.platform, "web-server", listener, HTTP, handler).await;
}

async fn accept_metrics<P: Platform>(platform: &P, listener: impl Listener) {
    let connections = Connections::new(METRICS_CONNECTIONS_MAX, &METRICS_SLOT);
    let handler = |_: Rc<Connected>| async move |connection: &mut _, request| answer_metrics(connection, request).await;
    connections.accept(platform, "metrics", listener, HTTP, handler).await;
}

async fn answer_metrics<S: Stream, P: Platform>(
    connection: &mut Connection<S, P>,
    request: Request,
) -> Result<(), HttpError> {
    if !matches!(request.method(), Method::Get | Method::Head) || request.path() != "/metrics" {
        return connection.respond_text(Status::NOT_FOUND, "GET /metrics is answered\n").await;
    }
    let values = [
        Metric::Counter(&REQUESTS, "Requests that were answered or refused."),
        Metric::Counter(&cache::HITS, "Files from the cache."),
        Metric::Counter(&cache::MISSES, "Files that were not in the cache."),
        Metric::Gauge(&cache::BYTES, "Memory of the files in the cache."),
        Metric::Gauge(&BODIES_WAITING, "Clients that wait for a slot for their body."),
    ];
    let text = format!("{}", Metrics { service: "web-server", values: &values });
    let response = Response::new(Status::OK).header("Content-Type", Metrics::MEDIA_TYPE);
    connection.respond(response, text.as_bytes()).await
}
