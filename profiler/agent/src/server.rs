//! The server of the page and the metrics, on one thread: HTTP/1.1 on an address of the loopback. Pages of recordings are made by `glass report`, two at a
//! time, and kept.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::glass::Glass;
use crate::metrics;
use crate::page::{self, Range};
use crate::segments::{Segment, Segments};
use crate::state::State;

/// Connections at once, and how long the head of a request may take.
const CONNECTIONS_MAX: usize = 64;
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Pages of recordings that are kept, and that are made at once.
const PAGES_MAX: usize = 32;
const MAKERS: usize = 2;
/// Recordings of each side of a difference at most.
const SIDE_MAX: usize = 120;

type Answer = Response<Full<Bytes>>;

struct Server {
    glass: Glass,
    /// Pages that were made.
    pages: PathBuf,
    segments: Arc<Mutex<Segments>>,
    state: Arc<State>,
    makers: Semaphore,
}

/// Starts the thread, and returns the address.
pub fn start(
    listen: SocketAddr,
    glass: Glass,
    pages: PathBuf,
    segments: Arc<Mutex<Segments>>,
    state: Arc<State>,
) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(listen)
        .with_context(|| format!("cannot listen on {listen}: give another address with --listen"))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    fs::create_dir_all(&pages).with_context(|| format!("cannot make {}", pages.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let server = Arc::new(Server { glass, pages, segments, state, makers: Semaphore::new(MAKERS) });
    let run = move || runtime.block_on(accept(listener, server));
    std::thread::Builder::new().name("server".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(address)
}

async fn accept(listener: std::net::TcpListener, server: Arc<Server>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors, say.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let server = server.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).keep_alive(true);
            // A client that goes away is none of our concern.
            let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            drop(place);
        });
    }
}

impl Server {
    async fn answer(self: Arc<Server>, request: Request<Incoming>) -> Answer {
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        }
        // A page of the internet must not read this one by a name of its own that leads here.
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !is_local(host) {
            return text(
                StatusCode::FORBIDDEN,
                "this page is for 127.0.0.1 and localhost: have a proxy send Host: localhost\n",
            );
        }
        let query = request.uri().query().unwrap_or_default();
        let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        match parts[..] {
            [""] => self.overview(),
            ["metrics"] => with_type("text/plain; version=0.0.4", metrics::text(&self.state.lock()).into()),
            ["segment", vm, file] => self.of_segment(vm, file).await,
            ["recording", vm, file] => self.recording(vm, file),
            ["difference", vm] => self.difference(vm, query).await,
            _ => text(StatusCode::NOT_FOUND, "there is no such page; / has all\n"),
        }
    }

    fn segments(&self) -> std::sync::MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overview(&self) -> Answer {
        let segments: Vec<Segment> = self.segments().all().cloned().collect();
        with_type("text/html; charset=utf-8", page::overview(&self.state.lock(), &segments, SystemTime::now()).into())
    }

    fn find(&self, vm: &str, file: &str) -> Option<PathBuf> {
        let segments = self.segments();
        segments.find(vm, file).map(|segment| segments.path(segment))
    }

    fn recording(&self, vm: &str, file: &str) -> Answer {
        match self.find(vm, file).map(fs::read) {
            Some(Ok(bytes)) => {
                let mut answer = with_type("application/octet-stream", bytes.into());
                let name = format!("attachment; filename=\"{vm}-{file}\"");
                if let Ok(value) = name.parse() {
                    answer.headers_mut().insert(CONTENT_DISPOSITION, value);
                }
                answer
            }
            _ => gone(),
        }
    }

    async fn of_segment(self: Arc<Server>, vm: &str, file: &str) -> Answer {
        let Some(recording) = self.find(vm, file) else { return gone() };
        let name = format!("{vm}-{file}.html");
        self.made(name, move |glass, page| glass.page(&recording, page)).await
    }

    async fn difference(self: Arc<Server>, vm: &str, query: &str) -> Answer {
        let (Some(before), Some(after)) = (Range::of(query, "a"), Range::of(query, "b")) else {
            return text(StatusCode::BAD_REQUEST, "give two ranges: choose them on the page /\n");
        };
        let side = |range: &Range| -> Vec<PathBuf> {
            let segments = self.segments();
            let inside = segments.all().filter(|segment| segment.vm == vm && range.contains(segment));
            inside.take(SIDE_MAX).map(|segment| segments.path(segment)).collect()
        };
        let (before_files, after_files) = (side(&before), side(&after));
        if before_files.is_empty() || after_files.is_empty() {
            return gone();
        }
        let name = format!("{vm}-{}-{}-{}-{}.html", before.from_ms, before.to_ms, after.from_ms, after.to_ms);
        let make = move |glass: &Glass, page: &Path| glass.difference(&before_files, &after_files, page);
        self.made(name, make).await
    }

    /// A page that `make` writes, unless it was made before.
    async fn made(
        self: Arc<Server>,
        name: String,
        make: impl FnOnce(&Glass, &Path) -> Result<()> + Send + 'static,
    ) -> Answer {
        let path = self.pages.join(&name);
        if let Ok(bytes) = fs::read(&path) {
            return with_type("text/html; charset=utf-8", bytes.into());
        }
        let Ok(_place) = self.makers.acquire().await else { return gone() };
        let server = self.clone();
        let work = move || -> Result<Vec<u8>> {
            let part = server.pages.join(format!("part-{name}"));
            make(&server.glass, &part)?;
            fs::rename(&part, &path)?;
            forget_old(&server.pages);
            Ok(fs::read(&path)?)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(bytes)) => with_type("text/html; charset=utf-8", bytes.into()),
            Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("the page cannot be made: {error:#}\n")),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be made\n"),
        }
    }
}

/// Removes pages until [`PAGES_MAX`] are left: those that were made first.
fn forget_old(folder: &Path) {
    let mut pages: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file.path())))
        .collect();
    pages.sort();
    let count = pages.len().saturating_sub(PAGES_MAX);
    for (_, path) in &pages[..count] {
        let _ = fs::remove_file(path);
    }
}

/// Whether a `Host` is this host's loopback, with any port.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

fn with_type(kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-cache"));
    answer
}

fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = with_type("text/plain; charset=utf-8", text.to_owned().into());
    *answer.status_mut() = status;
    answer
}

fn gone() -> Answer {
    text(StatusCode::NOT_FOUND, "this recording is not kept any more: / has those that are\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_are_local() {
        for (host, is) in [
            ("127.0.0.1:4040", true),
            ("localhost", true),
            ("[::1]:4040", true),
            ("evil.example:4040", false),
            ("", false),
            ("127.0.0.1.evil.example", false),
        ] {
            assert_eq!(is_local(host), is, "{host}");
        }
    }
}
