//! Requests and their answers.

use crate::config::number;
use crate::download::Download;
use crate::error::{Health, StoreError};
use crate::format::Entry;
use crate::limits::{DISK_ANSWER_TIME, HALF_CLOSED_WAIT, RETRY_AFTER_SECS, SLOT_WAIT, WAIT_SECS_MAX};
use crate::store::Store;
use crate::telemetry::{DOWNLOADS_DONE, UPLOADS_DONE};
use crate::upload::Upload;
use crate::watched::Watched;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::Cell;
use core::fmt;
use core::pin::pin;
use core::time::Duration;
use glasshouse::future::{Either, Either3, Either4, select, select3, select4};
use glasshouse::http::{Connected, HttpError, Method, Request, RequestBody, Response, Slot, Slots, Status};
use glasshouse::sync::Latch;
use glasshouse::tracing::field::Empty;
use glasshouse::tracing::{Instrument, Span, info_span};
use glasshouse::{Instant, Net, Platform};

/// The state of one connection between requests.
pub(crate) struct Client {
    connected: Rc<Connected>,
    /// The item that it received whole last: with [`Queue::deletes_by_connection`] the one that its DELETE without If-Match removes.
    sent: Cell<Option<u64>>,
}

impl Client {
    pub(crate) fn new(connected: Rc<Connected>) -> Client {
        Client { connected, sent: Cell::new(None) }
    }
}

type Connection<P> = glasshouse::http::Connection<<<P as Platform>::Net as Net>::Stream, P>;

/// The shared state of all connections.
pub(crate) struct Queue<P: Platform> {
    pub(crate) platform: P,
    pub(crate) disk: Watched<P::Block, P>,
    pub(crate) store: Store<Watched<P::Block, P>>,
    pub(crate) item_bytes_max: u64,
    /// Whether a DELETE without If-Match is about the item that its connection received.
    pub(crate) deletes_by_connection: bool,
    pub(crate) uploads: Slots,
    pub(crate) downloads: Slots,
    /// Slots to wait for an item.
    pub(crate) waiting: Slots,
    /// Opened when the service is to end: requests in flight are finished, no other one is begun.
    pub(crate) stop: Latch,
}

impl<P: Platform> Queue<P> {
    /// Large futures are boxed: the frame of their poller would contain another copy for each span around it, and
    /// a profiler copies only a part of a stack.
    pub(crate) async fn handle(
        &self,
        connection: &mut Connection<P>,
        request: Request,
        client: &Client,
    ) -> Result<(), HttpError> {
        match (request.path(), request.method()) {
            ("/uploader", Method::Put) => {
                let span = info_span!("upload", bytes = body_bytes(&request), id = Empty);
                Box::pin(self.put(connection, &request, client, &span)).instrument(span.clone()).await
            }
            ("/uploader", Method::Post) => not_allowed::<P>(connection, "PUT", "Use PUT, not POST\n").await,
            ("/uploader", _) => not_allowed::<P>(connection, "PUT", "Method not supported\n").await,
            ("/downloader", Method::Get) => {
                let span = info_span!("download", bytes = Empty, id = Empty);
                Box::pin(self.get(connection, &request, client, &span)).instrument(span.clone()).await
            }
            ("/downloader", Method::Delete) => {
                self.delete(connection, &request, client).instrument(info_span!("delete")).await
            }
            ("/downloader", _) => not_allowed::<P>(connection, "GET, DELETE", "Method not supported\n").await,
            ("/healthz", Method::Get | Method::Head) => connection.respond_text(Status::OK, "ok\n").await,
            ("/readyz", Method::Get | Method::Head) => self.ready(connection).await,
            ("/", Method::Get | Method::Head) => connection.respond_text(Status::OK, &self.usage()).await,
            ("/healthz" | "/readyz" | "/", _) => {
                not_allowed::<P>(connection, "GET, HEAD", "Method not supported\n").await
            }
            (path, _) => connection.respond_text(Status::NOT_FOUND, &format!("Bad path '{path}'\n")).await,
        }
    }

    /// A slot for a transfer, for which the connection is kept; `None` if none was free in time.
    async fn take_slot(&self, slots: &Slots, client: &Client) -> Option<Slot> {
        let slot = slots.wait_for(&self.platform, client.connected.peer(), SLOT_WAIT).await?;
        client.connected.keep(true);
        Some(slot)
    }

    async fn put(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        span: &Span,
    ) -> Result<(), HttpError> {
        if let Some((status, text)) = refused_upload(request) {
            return refuse::<P>(connection, status, text).await;
        }
        let length = match request.body() {
            RequestBody::Length(length) => Some(length),
            RequestBody::Chunked => None,
            _ => return connection.respond_text(Status::LENGTH_REQUIRED, "Missing Content-Length\n").await,
        };
        if length.is_some_and(|length| length > self.item_bytes_max) {
            return self.too_large(connection).await;
        }
        let Some(slot) = self.take_slot(&self.uploads, client).await else {
            return busy::<P>(connection, "Too many uploads\n").await;
        };
        let begun = match length {
            Some(length) => self.store.upload(length),
            None => self.store.upload_of_unknown_length(self.item_bytes_max),
        };
        let mut upload = match begun {
            Ok(upload) => upload,
            Err(error) => return self.fail(connection, error).await,
        };
        // Its writes hold memory until the disk has completed them, also when the client is gone.
        let slot = Rc::new(slot);
        upload.hold(slot.clone());
        match self.receive(connection, upload, &slot).await {
            Ok(Ok(id)) => {
                span.record("id", id);
                let answer = connection.respond_text(Status::OK, "Accepted\n");
                let answered = answer.instrument(info_span!("answer")).await;
                UPLOADS_DONE.add(answered.is_ok().into());
                answered
            }
            Ok(Err(Refused::TooLarge)) => self.too_large(connection).await,
            Ok(Err(Refused::Client(HttpError::BodyCut { missing_bytes }))) => {
                let length = length.unwrap_or_default();
                let text =
                    format!("Upload has wrong size: Content-Length is {length} but got {}\n", length - missing_bytes);
                connection.respond_text(Status::BAD_REQUEST, &text).await
            }
            Ok(Err(Refused::Client(error))) => Err(error),
            Err(error) => self.fail(connection, error).await,
        }
    }

    async fn get(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        span: &Span,
    ) -> Result<(), HttpError> {
        // Whatever the result, the client does not mean the item before.
        client.sent.set(None);
        let Ok(wait) = wait_time(request.query()) else {
            return connection.respond_text(Status::BAD_REQUEST, "wait takes a number of seconds\n").await;
        };
        let deadline = wait.map(|wait| self.platform.now() + wait);
        // Several consumers may wait for one item, and another one may be faster.
        loop {
            if self.store.head().is_some() {
                let Some(slot) = self.take_slot(&self.downloads, client).await else {
                    return busy::<P>(connection, "Too many downloads\n").await;
                };
                if let Some(mut download) = self.store.fetch() {
                    let slot = Rc::new(slot);
                    download.hold(slot.clone());
                    let entry = *download.entry();
                    span.record("id", entry.id);
                    span.record("bytes", entry.length);
                    let sent = self.send(connection, download, &slot).instrument(info_span!("send")).await;
                    let whole = sent.as_ref().is_ok_and(|is_whole| *is_whole);
                    DOWNLOADS_DONE.add(whole.into());
                    client.sent.set(whole.then_some(entry.id));
                    return sent.map(drop);
                }
            } else {
                let Some(_slot) = self.waiting.take(client.connected.peer()) else {
                    return busy::<P>(connection, "Too many clients wait for an item\n").await;
                };
                client.connected.keep(true);
                let wait = self.wait_for_item(connection, deadline).instrument(info_span!("wait for an item"));
                if !wait.await {
                    return connection.respond(Response::new(Status::NO_CONTENT), &[]).await;
                }
            }
        }
    }

    /// Waits until there is an item; false after the timeout, or if the client has closed. A client that has only closed
    /// its own half may still read the answer, so it keeps waiting, for [`HALF_CLOSED_WAIT`] at most.
    async fn wait_for_item(&self, connection: &mut Connection<P>, deadline: Option<Instant>) -> bool {
        let mut item = pin!(self.item_comes());
        match select4(item.as_mut(), connection.wait_gone(), self.end_of(deadline), self.stop.wait()).await {
            Either4::First(()) => return true,
            Either4::Second(()) => connection.close_after_response(),
            Either4::Third(()) | Either4::Fourth(()) => return false,
        }
        if connection.is_broken() {
            return false;
        }
        let last = self.platform.now() + HALF_CLOSED_WAIT;
        let deadline = Some(deadline.map_or(last, |deadline| deadline.min(last)));
        matches!(select3(item, self.end_of(deadline), self.stop.wait()).await, Either3::First(()))
    }

    async fn end_of(&self, deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => self.platform.sleep_until(deadline).await,
            None => core::future::pending().await,
        }
    }

    async fn item_comes(&self) {
        loop {
            let changed = self.store.changed();
            if self.store.head().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Sends the item; false when its start could not be read and the client was answered with an error.
    async fn send(
        &self,
        connection: &mut Connection<P>,
        mut download: Download<Watched<P::Block, P>>,
        slot: &Slot,
    ) -> Result<bool, HttpError> {
        // Damage in the first chunk is found before the status is sent.
        let mut chunk = match download.next().await {
            Ok(chunk) => chunk,
            Err(error) => return self.fail(connection, error).await.map(|()| false),
        };
        let entry = *download.entry();
        let response =
            Response::new(Status::OK).header("Content-Type", "application/octet-stream").header("ETag", ETag(&entry));
        connection.start(response, entry.length).await?;
        while let Some(bytes) = chunk {
            let write = async { connection.write_body(&bytes).await.map(|()| bytes.len()) };
            let write = slot.watch(&self.platform, write);
            if let Either::First(written) = select(write, download.drive()).await {
                written?;
            }
            drop(bytes);
            chunk = match download.next().await {
                Ok(chunk) => chunk,
                Err(error) => {
                    // The client must not mistake the part for the whole: the connection is reset.
                    self.platform.print(format_args!("upload-queue: a download was cut: {error}"));
                    return Err(HttpError::WrongLength { missing_bytes: download.bytes_left() });
                }
            };
        }
        Ok(true)
    }

    async fn delete(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
    ) -> Result<(), HttpError> {
        let head = self.store.head();
        let sent = client.sent.get().filter(|_| self.deletes_by_connection);
        let wanted = match (request.header("If-Match"), head, sent) {
            (Some(_), Some(head), _) if names(request, &head) => head.id,
            (Some(_), head, _) => return failed_condition::<P>(connection, head).await,
            (None, _, Some(id)) => id,
            (None, head, None) => return needs_condition::<P>(connection, head).await,
        };
        let removed = self.store.remove(wanted).await;
        if removed.is_ok() {
            client.sent.set(None);
        }
        match removed {
            Ok(true) => connection.respond_text(Status::OK, "OK\n").await,
            Ok(false) => {
                let text = "The item that this connection was sent is not the oldest any more: it was removed\n";
                connection.respond_text(Status::NOT_FOUND, text).await
            }
            Err(error) => self.fail(connection, error).await,
        }
    }

    /// Streams the body into `upload` and returns its id. The outer error is the store's, the inner one the client's.
    async fn receive(
        &self,
        connection: &mut Connection<P>,
        mut upload: Upload<Watched<P::Block, P>>,
        slot: &Slot,
    ) -> Result<Result<u64, Refused>, StoreError> {
        let stream = self.stream(connection, &mut upload, slot);
        if let Err(error) = stream.instrument(info_span!("receive")).await? {
            return Ok(Err(error));
        }
        Ok(Ok(upload.finish().await?))
    }

    async fn stream(
        &self,
        connection: &mut Connection<P>,
        upload: &mut Upload<Watched<P::Block, P>>,
        slot: &Slot,
    ) -> Result<Result<(), Refused>, StoreError> {
        while upload.missing_bytes() > 0 {
            let read = async |space: &mut [u8]| slot.watch(&self.platform, connection.read_body(space)).await;
            match upload.receive(read).await? {
                Ok(0) => {
                    // Only a chunked body ends where its client chooses.
                    upload.end();
                    break;
                }
                Ok(_) => {}
                Err(error) => return Ok(Err(Refused::Client(error))),
            }
        }
        if upload.is_open() {
            match connection.read_body(&mut [0]).await {
                Ok(0) => upload.end(),
                Ok(_) => return Ok(Err(Refused::TooLarge)),
                Err(error) => return Ok(Err(Refused::Client(error))),
            }
        }
        Ok(Ok(()))
    }

    async fn too_large(&self, connection: &mut Connection<P>) -> Result<(), HttpError> {
        let text = format!("An item may have {} bytes at most\n", self.item_bytes_max);
        connection.respond_text(Status::PAYLOAD_TOO_LARGE, &text).await
    }

    async fn fail(&self, connection: &mut Connection<P>, error: StoreError) -> Result<(), HttpError> {
        let (status, text) = failure(&error);
        if status == Status::INTERNAL_SERVER_ERROR {
            self.platform.print(format_args!("upload-queue: {error}"));
        }
        refuse::<P>(connection, status, &text).await
    }

    /// Whether the disk does what the queue needs. Every answer but 200 starts a check, whose result the next one has.
    async fn ready(&self, connection: &mut Connection<P>) -> Result<(), HttpError> {
        let waited = self.disk.oldest().map_or(Duration::ZERO, |oldest| self.platform.now() - oldest);
        let health = self.store.health();
        let text = if waited >= DISK_ANSWER_TIME {
            format!("the disk has not answered for {} s\n", waited.as_secs())
        } else if health != Health::Good {
            self.store.request_check();
            format!("{health}\n")
        } else {
            return connection.respond_text(Status::OK, "ready\n").await;
        };
        refuse::<P>(connection, Status::SERVICE_UNAVAILABLE, &text).await
    }

    fn usage(&self) -> String {
        let usage = self.store.usage();
        format!(
            "A durable upload queue\n\n\
             PUT /uploader               add an item; it is durable when the answer is 200\n\
             GET /downloader[?wait=SECS] the oldest item; waits for one\n\
             DELETE /downloader          with If-Match: ETAG, remove the item\n\n\
             items: {} of {}\nbytes free: {} of {}\n",
            usage.items, usage.items_max, usage.free_bytes, usage.data_bytes
        )
    }
}

/// Why an upload did not become an item, if the store is not the reason.
enum Refused {
    Client(HttpError),
    /// Its length was not known, and it has more bytes than an item may have.
    TooLarge,
}

/// Bytes that the head of a request announces.
fn body_bytes(request: &Request) -> u64 {
    if let RequestBody::Length(bytes) = request.body() { bytes } else { 0 }
}

async fn not_allowed<P: Platform>(connection: &mut Connection<P>, allow: &str, text: &str) -> Result<(), HttpError> {
    let response = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", allow).header("Content-Type", TEXT);
    connection.respond(response, text.as_bytes()).await
}

async fn busy<P: Platform>(connection: &mut Connection<P>, text: &str) -> Result<(), HttpError> {
    refuse::<P>(connection, Status::SERVICE_UNAVAILABLE, text).await
}

/// A status 503 has the time of the next attempt, 415 what is accepted.
async fn refuse<P: Platform>(connection: &mut Connection<P>, status: Status, text: &str) -> Result<(), HttpError> {
    let mut response = Response::new(status).header("Content-Type", TEXT);
    match status {
        Status::SERVICE_UNAVAILABLE => response = response.header("Retry-After", RETRY_AFTER_SECS),
        // RFC 9110, section 12.5.3: the encodings that would be accepted.
        Status::UNSUPPORTED_MEDIA_TYPE => response = response.header("Accept-Encoding", "identity"),
        _ => {}
    }
    connection.respond(response, text.as_bytes()).await
}

/// The answer to a request that failed in the store.
fn failure(error: &StoreError) -> (Status, String) {
    match error {
        StoreError::DiskFull { .. } => (Status::INSUFFICIENT_STORAGE, String::from("Disk full\n")),
        StoreError::IndexFull { items_max } => {
            let text = format!(
                "The queue has {items_max} items, including open uploads, and its index has no room for more\n"
            );
            (Status::INSUFFICIENT_STORAGE, text)
        }
        StoreError::Memory(_) => (Status::SERVICE_UNAVAILABLE, String::from("Out of memory\n")),
        _ => (Status::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn failed_condition<P: Platform>(connection: &mut Connection<P>, head: Option<Entry>) -> Result<(), HttpError> {
    let mut response = Response::new(Status::PRECONDITION_FAILED).header("Content-Type", TEXT);
    if let Some(head) = &head {
        response = response.header("ETag", ETag(head));
    }
    let text = if head.is_some() { "Another item is the oldest\n" } else { "The queue is empty\n" };
    connection.respond(response, text.as_bytes()).await
}

/// The answer to a DELETE that does not identify its item.
async fn needs_condition<P: Platform>(connection: &mut Connection<P>, head: Option<Entry>) -> Result<(), HttpError> {
    let mut response = Response::new(Status::PRECONDITION_REQUIRED).header("Content-Type", TEXT);
    let mut text = String::from(
        "A DELETE names the item that it removes: GET the item, then DELETE with the header If-Match and the ETag of the answer",
    );
    match &head {
        Some(head) => {
            let tag = ETag(head);
            response = response.header("ETag", &tag);
            text += &format!(", If-Match: {tag} if the item that you received is the oldest one\n");
        }
        None => text += "; the queue is empty now\n",
    }
    connection.respond(response, text.as_bytes()).await
}

const TEXT: &str = "text/plain; charset=utf-8";

/// A strong entity tag that no other item has.
struct ETag<'a>(&'a Entry);

impl fmt::Display for ETag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "\"{:x}-{:016x}\"", self.0.id, self.0.checksum)
    }
}

/// Whether If-Match names this item, by its tag or by `*`.
fn names(request: &Request, head: &Entry) -> bool {
    let tag = format!("{}", ETag(head));
    request.list("If-Match").any(|wanted| wanted == b"*" || wanted == tag.as_bytes())
}

/// Why an upload cannot be an item, if its head shows that: what an item is sent with is not kept, so a field by which its bytes
/// mean something else must not be ignored.
fn refused_upload(request: &Request) -> Option<(Status, &'static str)> {
    let is_type = |name: &[u8]| {
        let value = request.header("Content-Type").unwrap_or_default();
        value.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().eq_ignore_ascii_case(name)
    };
    if request.header("Content-Range").is_some() || is_type(b"multipart/byteranges") {
        // RFC 9110, section 14.5.
        return Some((
            Status::BAD_REQUEST,
            "An upload is a whole item, not a part of one: send it without Content-Range\n",
        ));
    }
    if request.list("Content-Encoding").any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        let text = "The encoding of an item is not kept: send it without Content-Encoding, as the bytes that consumers receive\n";
        return Some((Status::UNSUPPORTED_MEDIA_TYPE, text));
    }
    if request.header("If-Match").is_some() {
        // RFC 9110, section 13.1.1: an upload replaces nothing, so no tag is that of what it replaces.
        return Some((
            Status::PRECONDITION_FAILED,
            "An upload is a new item and replaces none: send it without If-Match\n",
        ));
    }
    None
}

/// The value of `wait` in a query, `None` when it is not there.
fn wait_time(query: Option<&str>) -> Result<Option<Duration>, ()> {
    let mut pairs = query.unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("wait=")) {
        None => Ok(None),
        Some(text) => match number(text) {
            Some(secs) => Ok(Some(Duration::from_secs(secs.min(WAIT_SECS_MAX)))),
            None => Err(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glasshouse::OutOfMemory;

    #[test]
    fn a_lack_of_memory_is_no_error_of_the_service() {
        let answer = failure(&StoreError::Memory(OutOfMemory { bytes: 1 << 20 }));
        assert_eq!(answer, (Status::SERVICE_UNAVAILABLE, String::from("Out of memory\n")));
        let lost = failure(&StoreError::Lost);
        assert_eq!((lost.0, lost.1.ends_with("send it again\n")), (Status::INTERNAL_SERVER_ERROR, true), "{lost:?}");
    }

    #[test]
    fn a_wait_takes_seconds_and_ends_after_a_day() {
        let day = 86_400;
        for (query, secs) in [("wait=0", 0), ("a=b&wait=7&wait=9", 7), ("wait=86399", day - 1), ("wait=86401", day)] {
            assert_eq!(wait_time(Some(query)), Ok(Some(Duration::from_secs(secs))), "{query}");
        }
        assert_eq!((wait_time(None), wait_time(Some("await=1"))), (Ok(None), Ok(None)));
        assert_eq!((wait_time(Some("wait=")), wait_time(Some("wait=soon"))), (Err(()), Err(())));
    }
}
