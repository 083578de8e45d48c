//! The service: start, accept connections, end.

use crate::cache::Cache;
use crate::config::{Config, ConfigError};
use crate::limits::{
    ACCEPT_PAUSE, BODIES_MAX, BODIES_MIN, BODY_SHARE, CACHE_SHARE, CONNECTIONS_MAX, HTTP, PIECE_BYTES, SHUTDOWN_WAIT,
};
use crate::site::Site;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::pin::Pin;
use glasshouse::fat::{Fat, MountError};
use glasshouse::future::{Either, select, select_slice};
use glasshouse::http::Connection;
use glasshouse::sync::{Latch, Semaphore};
use glasshouse::trace::Name;
use glasshouse::{Files, Listener, Net, NetError, Platform, Port};

static CONNECTION_PLACE: Name = Name::new("place for a connection");
static BODY_PLACE: Name = Name::new("place for a body");
static LISTING_PLACE: Name = Name::new("place for a listing");

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
    let mut listeners = Vec::new();
    for port in config.ports {
        let mut place = String::new();
        if let Port::Tcp(_) = port {
            place = format!("{} ", net.up().await.map_err(ServeError::Net)?.address);
        }
        let listener = net.listen(port).await.map_err(ServeError::Net)?;
        platform.print(format_args!("web-server: listening on {place}{}", listener.port()));
        listeners.push(listener);
    }
    let share_bytes = memory_bytes / BODY_SHARE;
    let bodies = usize::try_from(share_bytes / (2 * PIECE_BYTES as u64)).unwrap_or(usize::MAX);
    let bodies = Semaphore::named(&BODY_PLACE, bodies.clamp(BODIES_MIN, BODIES_MAX));
    let site = Rc::new(Site {
        platform: platform.clone(),
        files,
        bodies,
        listings: Semaphore::named(&LISTING_PLACE, 1),
        lists: config.lists,
        cache: RefCell::new(Cache::new(cache_bytes)),
    });
    let connections = Semaphore::named(&CONNECTION_PLACE, CONNECTIONS_MAX);
    let stop = Latch::new();
    let mut accepting: Vec<_> = listeners
        .into_iter()
        .map(|listener| Box::pin(accept(site.clone(), listener, connections.clone(), stop.clone())))
        .collect();
    select(select_slice(Pin::new(&mut accepting[..])), platform.shutdown()).await;
    stop.open();
    // The ports are closed first: who connects now is refused at once.
    drop(accepting);
    if platform.timeout(SHUTDOWN_WAIT, connections.acquire_many(CONNECTIONS_MAX)).await.is_err() {
        platform.print(format_args!("web-server: connections were cut: they took too long"));
    }
    Ok(())
}

async fn accept<P: Platform, D: Files>(
    site: Rc<Site<P, D>>,
    mut listener: <P::Net as Net>::Listener,
    connections: Semaphore,
    stop: Latch,
) {
    let mut last_error = None;
    loop {
        let place = connections.acquire().await;
        match listener.accept().await {
            Ok(stream) => {
                let (own, stop) = (site.clone(), stop.clone());
                let mut connection = Connection::new(stream, site.platform.clone(), HTTP);
                let task = async move {
                    let _place = place;
                    loop {
                        // Between two requests the end of the service ends the connection.
                        let failed = match select(connection.next_request(), stop.wait()).await {
                            Either::First(Ok(Some(request))) => own.handle(&mut connection, request).await.err(),
                            Either::First(Err(error)) => Some(error),
                            Either::First(Ok(None)) | Either::Second(()) => break,
                        };
                        if let Some(error) = failed {
                            connection.refuse(&error).await;
                            break;
                        }
                    }
                    connection.close().await;
                };
                // A client beyond the limit of tasks is reset by the drop of its connection.
                let _ = site.platform.spawn("connection", task);
            }
            Err(error) => {
                if last_error != Some(error) {
                    site.platform.print(format_args!("web-server: a connection was not accepted: {error}"));
                }
                last_error = Some(error);
                site.platform.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
