//! Requests and their answers: which function answers which request, and those that are short.

use crate::access::{self, Access, Holder};
use crate::consume;
use crate::cors::Origins;
use crate::error::StoreError;
use crate::format::Entry;
use crate::items::{Items, LeaseError};
use crate::limits::SLOT_WAIT;
use crate::log::AccessLog;
use crate::metrics::Traffic;
use crate::problem::Problem;
use crate::resume;
use crate::status::{Shown, Transfers};
use crate::tls::Line;
use crate::tokens::Role;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::Cell;
use core::fmt;
use glasshouse::Platform;
use glasshouse::http::{Connected, HttpError, Method, Request, RequestBody, Slot, Slots, Status};
use glasshouse::sync::Latch;
use glasshouse::tracing::field::Empty;
use glasshouse::tracing::{Instrument, info_span};

/// The state of one connection between requests.
pub(crate) struct Client {
    pub(crate) connected: Rc<Connected>,
    /// The item that it received whole last: with [`Queue::deletes_by_connection`] the one that its DELETE without If-Match removes.
    pub(crate) sent: Cell<Option<u64>>,
}

impl Client {
    pub(crate) fn new(connected: Rc<Connected>) -> Client {
        Client { connected, sent: Cell::new(None) }
    }
}

pub(crate) type Connection<P> = glasshouse::http::Connection<Line<P>, P>;

/// The shared state of all connections.
pub(crate) struct Queue<P: Platform> {
    pub(crate) platform: P,
    pub(crate) items: Items<P>,
    pub(crate) item_bytes_max: u64,
    /// Whether a DELETE without If-Match is about the item that its connection received.
    pub(crate) deletes_by_connection: Cell<bool>,
    pub(crate) uploads: Slots,
    /// Those of few bytes.
    pub(crate) small_uploads: Slots,
    pub(crate) downloads: Slots,
    /// Slots to wait for an item.
    pub(crate) waiting: Slots,
    pub(crate) traffic: Traffic,
    pub(crate) transfers: Transfers,
    pub(crate) shown: Cell<Shown>,
    /// Who may do what; `None` without tokens.
    pub(crate) access: Option<Rc<Access>>,
    /// Whose pages may send requests.
    pub(crate) origins: Origins,
    /// Where each request gets a line.
    pub(crate) log: Option<Rc<AccessLog>>,
    /// Opened when the service is to end: requests in flight are finished, no other one is begun.
    pub(crate) stop: Latch,
}

impl<P: Platform> Queue<P> {
    /// Answers a request. An error of the client is answered here, too, and ends the connection.
    pub(crate) async fn handle(
        &self,
        connection: &mut Connection<P>,
        request: Request,
        client: &Client,
    ) -> Result<(), HttpError> {
        let (path, holder) = access::holder(self.access.as_deref(), &request);
        let mut line = self.log.as_ref().map(|log| log.begin(&self.platform, connection.peer(), &holder, &request));
        let handled = self.route(connection, &request, client, path, &holder).await;
        if let Err(error) = &handled
            && let Some(status) = error.status()
            && !connection.is_answered()
            && !connection.is_broken()
        {
            connection.close_after_response();
            // When this fails too, the client is gone.
            let _ = Problem::new(status, format!("{error}")).send(connection).await;
        }
        if let Some(line) = &mut line {
            line.exchange = connection.exchange();
        }
        handled
    }

    /// Large futures are boxed: the frame of their poller would contain another copy for each span around it, and
    /// a profiler copies only a part of a stack.
    async fn route(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        path: &str,
        holder: &Holder,
    ) -> Result<(), HttpError> {
        if let Some(response) = self.cross_origin(connection, request, path) {
            return connection.respond(response, &[]).await;
        }
        if let Some(target) = resume::target(path, request) {
            return match holder.check(Role::Uploader) {
                Ok(()) => Box::pin(self.resume(connection, request, client, holder, target)).await,
                Err(problem) => problem.send(connection).await,
            };
        }
        if let Some(wanted) = consume::wanted(path) {
            return match holder.check(Role::Consumer) {
                Ok(()) => Box::pin(self.consume(connection, request, client, wanted)).await,
                Err(problem) => problem.send(connection).await,
            };
        }
        if path == "/status" {
            return match holder.check(Role::Admin) {
                Ok(()) => Box::pin(self.status(connection, request.method())).await,
                Err(problem) => problem.send(connection).await,
            };
        }
        match self.short_answer(path, request.method(), holder) {
            Some(Ok(text)) => return connection.respond_text(Status::OK, &text).await,
            Some(Err(problem)) => return problem.send(connection).await,
            None => {}
        }
        match request.method() {
            Method::Put => {
                let span = info_span!("upload", bytes = body_bytes(request), id = Empty, uploader = Empty);
                Box::pin(self.put(connection, request, client, holder, &span)).instrument(span.clone()).await
            }
            Method::Get => {
                let span = info_span!("download", bytes = Empty, id = Empty);
                Box::pin(self.get(connection, request, client, &span)).instrument(span.clone()).await
            }
            _ => self.delete(connection, request, client).instrument(info_span!("delete")).await,
        }
    }

    /// The answer to a request that is not about an item, or that is refused; `None` for an upload, a download and a removal. Not in the
    /// frame of these, as above.
    #[inline(never)]
    fn short_answer(&self, path: &str, method: Method, holder: &Holder) -> Option<Result<String, Problem>> {
        if let Some(role) = needed_role(path)
            && let Err(problem) = holder.check(role)
        {
            return Some(Err(problem));
        }
        Some(match (path, method) {
            ("/uploader", Method::Put) | ("/downloader", Method::Get | Method::Delete) => return None,
            ("/healthz", Method::Get | Method::Head) => Ok("ok\n".into()),
            ("/readyz", Method::Get | Method::Head) => self.ready().map(|()| "ready\n".into()),
            ("/", Method::Get | Method::Head) => Ok(self.usage()),
            ("/metrics", Method::Get | Method::Head) => Ok(self.metrics()),
            ("/uploader", Method::Post) => Err(not_allowed("PUT", "Use PUT, not POST")),
            ("/uploader", _) => Err(not_allowed("PUT", "Method not supported")),
            ("/downloader", _) => Err(not_allowed("GET, DELETE", "Method not supported")),
            ("/healthz" | "/readyz" | "/" | "/metrics", _) => Err(not_allowed("GET, HEAD", "Method not supported")),
            (path, _) => Err(Problem::new(Status::NOT_FOUND, format!("Bad path '{path}'"))),
        })
    }

    /// A slot for a transfer, for which the connection is kept; `None` if none was free in time.
    pub(crate) async fn take_slot(&self, slots: &Slots, client: &Client) -> Option<Slot> {
        let slot = slots.wait_for(&self.platform, client.connected.peer(), SLOT_WAIT).await?;
        client.connected.keep(true);
        Some(slot)
    }

    async fn delete(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
    ) -> Result<(), HttpError> {
        if let Err(error) = self.items.refresh().await {
            return self.fail(connection, error).await;
        }
        let head = self.oldest();
        let sent = client.sent.get().filter(|_| self.deletes_by_connection.get());
        let wanted = match (request.header("If-Match"), head, sent) {
            (Some(_), Some(head), _) if names(request, &head) => head.id,
            (Some(_), head, _) => return failed_condition(head).send(connection).await,
            (None, _, Some(id)) => id,
            (None, head, None) => return needs_condition(head).send(connection).await,
        };
        let removed = self.items.remove_free(wanted).await;
        if matches!(removed, Ok(()) | Err(LeaseError::Gone)) {
            client.sent.set(None);
        }
        match removed {
            Ok(()) => connection.respond_text(Status::OK, "OK\n").await,
            Err(LeaseError::Gone) => {
                let text = "The item that this connection was sent is not the oldest any more: it was removed";
                Problem::new(Status::NOT_FOUND, text).send(connection).await
            }
            // Another consumer was faster.
            Err(LeaseError::Refused(_)) => failed_condition(self.oldest()).send(connection).await,
            Err(LeaseError::Store(error)) => self.fail(connection, error).await,
        }
    }

    /// Answers a request that failed in the store.
    pub(crate) async fn fail(&self, connection: &mut Connection<P>, error: StoreError) -> Result<(), HttpError> {
        let problem = failure(&error);
        if problem.status == Status::INTERNAL_SERVER_ERROR {
            self.platform.print(format_args!("upload-queue: {error}"));
        }
        problem.send(connection).await
    }

    /// Whether the disk, or the engine, does what the queue needs.
    pub(crate) fn ready(&self) -> Result<(), Problem> {
        self.items.ready(self.platform.now())
    }

    fn usage(&self) -> String {
        let mut text = String::from(
            "A durable upload queue\n\n\
             PUT /uploader               add an item; it is durable when the answer is 200\n\
             GET /downloader[?wait=SECS] the oldest item; waits for one\n\
             DELETE /downloader          with If-Match: ETAG, remove the item\n",
        );
        text += &match &self.items {
            Items::Disk(disk) => {
                let usage = disk.store.usage();
                format!(
                    "POST /uploader              begin an upload that can be resumed: tus 1.0, or Upload-Complete of the IETF's draft\n\n\
                     items: {} of {}\nbytes free: {} of {}\n",
                    usage.items, usage.items_max, usage.free_bytes, usage.data_bytes
                )
            }
            Items::Engine(engine) => {
                let (items, bytes) = engine.usage();
                format!("\nitems: {items}\nbytes: {bytes}\nengine: {}\n", engine.address())
            }
        };
        text
    }
}

/// The role that requests for a path need; `None` if all may send them, or there is no such path.
fn needed_role(path: &str) -> Option<Role> {
    match path {
        "/uploader" => Some(Role::Uploader),
        "/downloader" => Some(Role::Consumer),
        "/" | "/metrics" => Some(Role::Admin),
        _ => None,
    }
}

/// Bytes that the head of a request announces.
fn body_bytes(request: &Request) -> u64 {
    if let RequestBody::Length(bytes) = request.body() { bytes } else { 0 }
}

pub(crate) fn not_allowed(allow: &str, detail: &str) -> Problem {
    Problem::new(Status::METHOD_NOT_ALLOWED, detail).field("Allow", allow)
}

/// The answer to a request that failed in the store.
pub(crate) fn failure(error: &StoreError) -> Problem {
    match error {
        StoreError::DiskFull { .. } => Problem::new(Status::INSUFFICIENT_STORAGE, "Disk full"),
        StoreError::IndexFull { items_max } => {
            let text =
                format!("The queue has {items_max} items, including open uploads, and its index has no room for more");
            Problem::new(Status::INSUFFICIENT_STORAGE, text)
        }
        StoreError::TooManyUploads { .. } => Problem::new(Status::SERVICE_UNAVAILABLE, format!("{error}")),
        StoreError::Away(text) => Problem::new(Status::SERVICE_UNAVAILABLE, *text),
        StoreError::EngineFull => Problem::new(Status::INSUFFICIENT_STORAGE, format!("{error}")),
        StoreError::Memory(_) => Problem::new(Status::SERVICE_UNAVAILABLE, "Out of memory"),
        StoreError::Digest { .. } => Problem::new(Status::BAD_REQUEST, format!("{error}")),
        _ => Problem::new(Status::INTERNAL_SERVER_ERROR, format!("{error}")),
    }
}

/// The answer to a request about another item than the oldest one, `head`.
pub(crate) fn failed_condition(head: Option<Entry>) -> Problem {
    let text = if head.is_some() { "Another item is the oldest" } else { "The queue is empty" };
    let problem = Problem::new(Status::PRECONDITION_FAILED, text);
    match &head {
        Some(head) => problem.field("ETag", format!("{}", ETag(head))),
        None => problem,
    }
}

/// The answer to a DELETE that does not identify its item.
fn needs_condition(head: Option<Entry>) -> Problem {
    let mut text = String::from(
        "A DELETE names the item that it removes: GET the item, then DELETE with the header If-Match and the ETag of the answer",
    );
    match &head {
        Some(head) => {
            let tag = format!("{}", ETag(head));
            text += &format!(", If-Match: {tag} if the item that you received is the oldest one");
            Problem::new(Status::PRECONDITION_REQUIRED, text).field("ETag", tag)
        }
        None => Problem::new(Status::PRECONDITION_REQUIRED, text + "; the queue is empty now"),
    }
}

/// A strong entity tag that no other item has.
pub(crate) struct ETag<'a>(pub(crate) &'a Entry);

impl fmt::Display for ETag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "\"{:x}-{:016x}\"", self.0.id, self.0.checksum)
    }
}

/// Whether If-Match names this item, by its tag or by `*`.
pub(crate) fn names(request: &Request, head: &Entry) -> bool {
    let tag = format!("{}", ETag(head));
    request.list("If-Match").any(|wanted| wanted == b"*" || wanted == tag.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glasshouse::OutOfMemory;

    #[test]
    fn a_lack_of_memory_is_no_error_of_the_service() {
        let answer = failure(&StoreError::Memory(OutOfMemory { bytes: 1 << 20 }));
        assert_eq!((answer.status, &*answer.detail), (Status::SERVICE_UNAVAILABLE, "Out of memory"));
        let lost = failure(&StoreError::Lost);
        assert_eq!((lost.status, lost.detail.ends_with("send it again")), (Status::INTERNAL_SERVER_ERROR, true));
    }
}
