//! Answers requests.

use crate::body::{self, BodyError, Content, Pieces};
use crate::cache::{Cache, HITS, MISSES};
use crate::conditional::{Outcome, Selected, Version, accepts_encoding, ranges};
use crate::limits::{RETRY_AFTER_SECS, SETTLED, SLOT_WAIT, SMALL_BODY_BYTES};
use crate::listing::{self, Encoded};
use crate::media_type::{is_compressible, media_type};
use crate::path::{Target, target};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use glasshouse::http::{
    Connected, Connection, HttpError, Method, Request, Response, Slot, Slots, Status, TraceContext,
};
use glasshouse::sync::Semaphore;
use glasshouse::trace::Counter;
use glasshouse::tracing::field::{Empty, display};
use glasshouse::tracing::{Instrument, info, info_span, warn};
use glasshouse::{File, FileError, FileKind, Files, HttpDate, Metadata, Open, Platform, Stream};

pub(crate) static REQUESTS: Counter = Counter::new("requests");

/// What follows a name of a compressed file, and its encoding. Better ones first.
const ENCODINGS: [(&str, &str); 2] = [(".br", "br"), (".gz", "gzip")];
/// The file of a directory.
const INDEX: &str = "index.html";

/// A directory that is served.
pub(crate) struct Site<P, D> {
    pub platform: P,
    pub files: D,
    /// For bodies in progress that are not small.
    pub bodies: Slots,
    /// Pages of directories that may be made at once: the entries of one may take much memory.
    pub listings: Semaphore,
    /// Whether a directory without [`INDEX`] has a page.
    pub lists: bool,
    pub cache: RefCell<Cache>,
}

/// A file that was found.
struct Found<F> {
    path: String,
    content: Content<F>,
    metadata: Metadata,
    media_type: &'static str,
    encoding: Option<&'static str>,
}

/// What a URL leads to.
enum Lookup<F> {
    File(Found<F>),
    /// It is a directory, whose URL ends with a slash.
    AddSlash,
    /// A directory without [`INDEX`]; its entries may be shown.
    List,
}

impl<P: Platform, D: Files> Site<P, D> {
    /// Answers a request.
    pub(crate) async fn handle<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        request: Request,
        client: &Connected,
    ) -> Result<(), HttpError> {
        REQUESTS.add(1);
        let span =
            info_span!("request", method = request.method_name(), target = request.target(), trace_context = Empty);
        if !span.is_disabled() {
            span.record("trace_context", display(TraceContext::of(&request, &self.platform)));
        }
        async {
            if !matches!(request.method(), Method::Get | Method::Head) {
                let refusal = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "GET, HEAD");
                return connection.respond(refusal, b"only GET and HEAD are answered\n").await;
            }
            let Some(target) = target(request.path()) else {
                return self.refuse(connection, Status::BAD_REQUEST, "the path is not valid\n").await;
            };
            match self.lookup(&target, &request).await {
                Ok(Lookup::File(found)) => self.answer(connection, &request, found, client).await,
                Ok(Lookup::List) => self.list(connection, &request, &target.path, client).await,
                Ok(Lookup::AddSlash) => {
                    let response = Response::new(Status::MOVED_PERMANENTLY);
                    let response = response.header("Location", with_slash(&target.path, request.query()));
                    connection.respond(response, b"").await
                }
                Err(error) => self.refuse_file(connection, &target.path, error).await,
            }
        }
        .instrument(span)
        .await
    }

    async fn refuse<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        status: Status,
        text: &str,
    ) -> Result<(), HttpError> {
        info!(status = status.0, "answered");
        connection.respond_text(status, text).await
    }

    async fn refuse_file<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        path: &str,
        error: FileError,
    ) -> Result<(), HttpError> {
        let (status, text) = refusal(error);
        if status == Status::SERVICE_UNAVAILABLE {
            warn!("{path}: {error}");
        }
        self.refuse(connection, status, text).await
    }

    /// Answers with the page of a directory, which exists or not.
    async fn list<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        request: &Request,
        path: &str,
        client: &Connected,
    ) -> Result<(), HttpError> {
        let Some(slot) = self.take_slot(client).await else { return self.busy(connection).await };
        let page = {
            let _place = self.listings.acquire().await;
            match self.files.read_dir(path).await {
                Ok(entries) => listing::page(path, entries),
                Err(error) => return self.refuse_file(connection, path, error).await,
            }
        };
        info!(status = 200, "answered");
        let response = Response::new(Status::OK)
            .header("Content-Type", "text/html; charset=utf-8")
            // It has no version that a client could compare, and nothing of it is a script.
            .header("Cache-Control", "no-cache")
            .header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
        connection.start(response, page.len() as u64).await?;
        match request.method() {
            Method::Head => connection.omit_body(),
            _ => {
                let mut to = body::Client { connection, clock: &self.platform, slot: Some(slot) };
                to.write(page.as_bytes()).await?;
            }
        }
        Ok(())
    }

    /// A file from the cache, if it still is of that version, or opened.
    async fn open(&self, path: &str) -> Result<(Content<D::File>, Metadata), FileError> {
        let cached = self.cache.borrow_mut().get(path);
        if let Some((bytes, version)) = cached {
            if self.files.metadata(path).await == Ok(version) {
                HITS.add(1);
                return Ok((Content::Cached(bytes), version));
            }
            self.cache.borrow_mut().remove(path);
        }
        let file = self.files.open(path, Open::Read).await?;
        let metadata = file.metadata().await?;
        if self.cache.borrow().is_on() {
            MISSES.add(1);
        }
        Ok((Content::File(file), metadata))
    }

    /// Opens the file that a URL names, or a compressed one beside it if the client takes that.
    async fn lookup(&self, target: &Target, request: &Request) -> Result<Lookup<D::File>, FileError> {
        let mut path = match (target.is_directory, target.path.is_empty()) {
            (false, _) => target.path.clone(),
            (true, true) => String::from(INDEX),
            (true, false) => format!("{}/{INDEX}", target.path),
        };
        let media_type = media_type(&path);
        let (mut content, mut metadata) = match self.open(&path).await {
            Err(FileError::IsADirectory) if !target.is_directory => return Ok(Lookup::AddSlash),
            Err(FileError::NotFound | FileError::IsADirectory) if target.is_directory && self.lists => {
                return Ok(Lookup::List);
            }
            // A directory that is called like an index has no page.
            Err(FileError::IsADirectory) => return Err(FileError::NotFound),
            opened => opened?,
        };
        let mut encoding = None;
        if is_compressible(media_type) {
            for (suffix, name) in ENCODINGS {
                let compressed = format!("{path}{suffix}");
                if accepts_encoding(request, name)
                    && let Ok(opened) = self.open(&compressed).await
                {
                    (content, metadata) = opened;
                    (path, encoding) = (compressed, Some(name));
                    break;
                }
            }
        }
        if metadata.kind != FileKind::File {
            return Err(FileError::NotFound);
        }
        Ok(Lookup::File(Found { path, content, metadata, media_type, encoding }))
    }

    async fn answer<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        request: &Request,
        found: Found<D::File>,
        client: &Connected,
    ) -> Result<(), HttpError> {
        let metadata = &found.metadata;
        let now = self.platform.wall().map_or(Duration::ZERO, |wall| wall.since_epoch);
        let version = Version::of(metadata, self.is_settled(metadata), now);
        let head = |status| {
            let mut response = Response::new(status);
            if let Some(etag) = &version.etag {
                response = response.header("ETag", etag).header("Last-Modified", HttpDate(version.modified));
            }
            if is_compressible(found.media_type) {
                response = response.header("Vary", "Accept-Encoding");
            }
            response.header("Accept-Ranges", "bytes")
        };
        match version.outcome(request) {
            Outcome::Refused => {
                return self.refuse(connection, Status::PRECONDITION_FAILED, "it is another version\n").await;
            }
            Outcome::Known => {
                info!(status = 304, "answered");
                return connection.respond(head(Status::NOT_MODIFIED), b"").await;
            }
            Outcome::Answer => {}
        }
        let wanted = if request.method() == Method::Get && version.allows_range(request) {
            ranges(request, metadata.bytes)
        } else {
            Selected::Whole
        };
        let mut response = head(match &wanted {
            Selected::Whole => Status::OK,
            Selected::Ranges(_) => Status::PARTIAL_CONTENT,
            Selected::Unsatisfiable => {
                let range = format!("bytes */{}", metadata.bytes);
                let refusal = Response::new(Status::RANGE_NOT_SATISFIABLE).header("Content-Range", range);
                return connection.respond(refusal, b"no part of the range is in the file\n").await;
            }
        });
        if let Some(encoding) = found.encoding {
            response = response.header("Content-Encoding", encoding);
        }
        // Most files of a site are text, and a browser would guess another encoding.
        let charset = if found.media_type.starts_with("text/") { "; charset=utf-8" } else { "" };
        let content_type = format!("{}{charset}", found.media_type);
        let sent = match wanted {
            Selected::Ranges(ranges) if ranges.len() > 1 => {
                let mut random = [0; 8];
                self.platform.fill_random(&mut random);
                let boundary = format!("{:016x}", u64::from_ne_bytes(random));
                let multipart = format!("multipart/byteranges; boundary={boundary}");
                let parts = Parts { content_type, boundary, ranges, bytes: metadata.bytes };
                self.send_parts(connection, response.header("Content-Type", multipart), &found, parts, client).await
            }
            Selected::Ranges(ranges) => {
                let range = ranges.into_iter().next().unwrap_or(0..0);
                let place = format!("bytes {}-{}/{}", range.start, range.end - 1, metadata.bytes);
                let response = response.header("Content-Type", content_type).header("Content-Range", place);
                self.send(connection, response, request, &found, range, client).await
            }
            _ => {
                let response = response.header("Content-Type", content_type);
                self.send(connection, response, request, &found, 0..metadata.bytes, client).await
            }
        };
        match sent {
            Ok(()) => Ok(()),
            Err(BodyError::Http(error)) => Err(error),
            Err(BodyError::File(error)) => {
                warn!("a file cannot be read: {error}");
                self.fail(connection).await
            }
            Err(BodyError::Busy) => self.busy(connection).await,
            Err(BodyError::Changed) => {
                info!("a file has changed while it was sent");
                self.fail(connection).await
            }
        }
    }

    /// A slot for a body, for which the connection is kept; `None` if none was free in time.
    async fn take_slot(&self, client: &Connected) -> Option<Slot> {
        let slot = self.bodies.wait_for(&self.platform, client.peer(), SLOT_WAIT).await?;
        client.keep(true);
        Some(slot)
    }

    async fn busy<S: Stream>(&self, connection: &mut Connection<S, P>) -> Result<(), HttpError> {
        info!(status = 503, "answered");
        let response = Response::new(Status::SERVICE_UNAVAILABLE).header("Retry-After", RETRY_AFTER_SECS);
        connection.respond(response, b"too many large files are being sent\n").await
    }

    /// Answers 503 if no answer was started; otherwise the connection is reset, as its body has no end.
    async fn fail<S: Stream>(&self, connection: &mut Connection<S, P>) -> Result<(), HttpError> {
        if connection.is_answered() {
            return Err(HttpError::WrongLength { missing_bytes: 1 });
        }
        self.refuse(connection, Status::SERVICE_UNAVAILABLE, "the file cannot be read now\n").await
    }

    /// Whether the file's times show a change that comes now. Those of an empty file do not: Linux truncates a file before it changes its
    /// times, so a file that is replaced in place is empty and old for a moment.
    fn is_settled(&self, metadata: &Metadata) -> bool {
        let now = self.platform.wall().map(|wall| wall.since_epoch);
        let is_old = |now| metadata.changed + SETTLED < now && metadata.modified + SETTLED < now;
        metadata.bytes > 0 && now.is_none_or(is_old)
    }

    /// Sends a response whose body is one part of a file.
    async fn send<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        response: Response,
        request: &Request,
        found: &Found<D::File>,
        range: Range<u64>,
        client: &Connected,
    ) -> Result<(), BodyError> {
        let bytes = range.end - range.start;
        if request.method() == Method::Head || bytes == 0 {
            connection.start(response, bytes).await?;
            connection.omit_body();
            return Ok(());
        }
        let slot = match bytes {
            ..=SMALL_BODY_BYTES => None,
            _ => Some(self.take_slot(client).await.ok_or(BodyError::Busy)?),
        };
        let mut to = body::Client { connection, clock: &self.platform, slot };
        let file = match &found.content {
            Content::File(file) => file,
            Content::Cached(content) => {
                to.connection.start(response, bytes).await?;
                return Ok(to.write(body::part(content, &range)).await?);
            }
        };
        let is_whole = bytes == found.metadata.bytes;
        let (files, path, version) = (&self.files, &*found.path, &found.metadata);
        let mut pieces = Pieces { files, path, file, version, range };
        // A file that may change within the tick of a clock is not kept.
        let kept = is_whole && self.is_settled(&found.metadata);
        let place = kept.then(|| self.cache.borrow_mut().reserve(&found.path, bytes)).flatten();
        if let Some(mut place) = place {
            body::read(pieces, place.bytes()).await?;
            let content = self.cache.borrow_mut().put(&found.path, found.metadata, place);
            to.connection.start(response, bytes).await?;
            return Ok(to.write(&content.bytes).await?);
        }
        // Before the head: what fails here has an answer.
        let first = pieces.next(None).await?;
        to.connection.start(response, bytes).await?;
        body::send(&mut to, pieces, first).await
    }

    /// Sends several parts of a file (RFC 9110, section 14.6).
    async fn send_parts<S: Stream>(
        &self,
        connection: &mut Connection<S, P>,
        response: Response,
        found: &Found<D::File>,
        parts: Parts,
        client: &Connected,
    ) -> Result<(), BodyError> {
        let slot = Some(self.take_slot(client).await.ok_or(BodyError::Busy)?);
        let mut to = body::Client { connection, clock: &self.platform, slot };
        to.connection.start(response, parts.total_bytes()).await?;
        for range in &parts.ranges {
            to.write(parts.head(range).as_bytes()).await?;
            match &found.content {
                Content::Cached(content) => to.write(body::part(content, range)).await?,
                Content::File(file) => {
                    let (files, path, version) = (&self.files, &*found.path, &found.metadata);
                    let mut pieces = Pieces { files, path, file, version, range: range.clone() };
                    let first = pieces.next(None).await?;
                    body::send(&mut to, pieces, first).await?;
                }
            }
        }
        Ok(to.write(parts.end().as_bytes()).await?)
    }
}

/// The parts of a multipart response.
struct Parts {
    content_type: String,
    boundary: String,
    ranges: Vec<Range<u64>>,
    /// Of the file.
    bytes: u64,
}

impl Parts {
    fn head(&self, range: &Range<u64>) -> String {
        format!(
            "\r\n--{}\r\nContent-Type: {}\r\nContent-Range: bytes {}-{}/{}\r\n\r\n",
            self.boundary,
            self.content_type,
            range.start,
            range.end - 1,
            self.bytes
        )
    }

    fn end(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }

    fn total_bytes(&self) -> u64 {
        let part = |range: &Range<u64>| self.head(range).len() as u64 + range.end - range.start;
        self.ranges.iter().map(part).sum::<u64>() + self.end().len() as u64
    }
}

/// The URL of a directory, with the query of the request. The names are encoded again: browsers read a backslash as a slash, and two of
/// these at the start of a URL as another server's name.
fn with_slash(path: &str, query: Option<&str>) -> String {
    let mut url = String::new();
    for name in path.split('/') {
        url += &format!("/{}", Encoded(name));
    }
    match query {
        Some(query) => url + "/?" + query,
        None => url + "/",
    }
}

/// The answer to a request for a file that cannot be opened.
fn refusal(error: FileError) -> (Status, &'static str) {
    match error {
        FileError::NotFound | FileError::NotADirectory | FileError::IsADirectory | FileError::BadPath => {
            (Status::NOT_FOUND, "there is no such file\n")
        }
        FileError::SymbolicLink | FileError::Denied => (Status::FORBIDDEN, "this file is not served\n"),
        _ => (Status::SERVICE_UNAVAILABLE, "the file cannot be read now\n"),
    }
}
