//! Uploads over HTTP.

use crate::access::Holder;
use crate::account::Charge;
use crate::digest::Digests;
use crate::error::StoreError;
use crate::items::ItemUpload;
use crate::limits::SMALL_BYTES;
use crate::problem::Problem;
use crate::routes::{Client, Connection, Queue};
use crate::status::Running;
use crate::telemetry::UPLOADS_DONE;
use alloc::format;
use alloc::rc::Rc;
use core::time::Duration;
use glasshouse::Platform;
use glasshouse::http::{HttpError, Request, RequestBody, Slot, Status};
use glasshouse::tracing::{Instrument, Span, info_span};

/// Why an upload did not become an item, if the store is not the reason.
enum Refused {
    Client(HttpError),
    /// Its length was not known, and it has more bytes than an item may have.
    TooLarge,
    /// Its length was not known, and its uploader may not have so much.
    Quota,
    /// Its digest after the body.
    Digest(&'static str),
}

impl<P: Platform> Queue<P> {
    pub(crate) async fn put(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        holder: &Holder,
        span: &Span,
    ) -> Result<(), HttpError> {
        if let Holder::Of(grant) = holder {
            span.record("uploader", &*grant.name);
        }
        // Whatever the head shows is answered before the body is read: a client that expects `100 Continue` does not send it.
        let (length, digests, charge) = match self.announced(request, holder) {
            Ok(announced) => announced,
            Err(problem) => return problem.send(connection).await,
        };
        let is_small = length.is_some_and(|length| length <= SMALL_BYTES);
        let slots = if is_small { &self.small_uploads } else { &self.uploads };
        let Some(slot) = self.take_slot(slots, client).await else {
            return busy("Too many uploads").send(connection).await;
        };
        let mut upload = match self.items.upload(length, self.item_bytes_max, self.platform.now()) {
            Ok(upload) => upload,
            Err(error) => return self.fail(connection, error).await,
        };
        upload.verify(digests);
        upload.set_charge(charge);
        // Its writes hold memory until the disk has completed them, also when the client is gone.
        let slot = Rc::new(slot);
        upload.hold(slot.clone());
        let running = self.transfers.begin(holder.name(), length, 0);
        match self.receive(connection, upload, slot, &running).await {
            Ok(Ok(id)) => {
                span.record("id", id);
                let answer = connection.respond_text(Status::OK, "Accepted\n");
                let answered = answer.instrument(info_span!("answer")).await;
                UPLOADS_DONE.add(answered.is_ok().into());
                answered
            }
            Ok(Err(Refused::TooLarge)) => self.too_large().send(connection).await,
            Ok(Err(Refused::Quota)) => over_quota().send(connection).await,
            Ok(Err(Refused::Digest(reason))) => Problem::new(Status::BAD_REQUEST, reason).send(connection).await,
            Ok(Err(Refused::Client(HttpError::BodyCut { missing_bytes }))) => {
                let length = length.unwrap_or_default();
                let text =
                    format!("Upload has wrong size: Content-Length is {length} but got {}", length - missing_bytes);
                Problem::new(Status::BAD_REQUEST, text).send(connection).await
            }
            Ok(Err(Refused::Client(error))) => Err(error),
            Err(error) => self.fail(connection, error).await,
        }
    }

    /// The length of an upload, if its head has it, the digests that it must have, and what it counts for its uploader; or why it cannot
    /// be an item.
    fn announced(&self, request: &Request, holder: &Holder) -> Result<(Option<u64>, Digests, Option<Charge>), Problem> {
        if let Some(problem) = refused_upload(request) {
            return Err(problem);
        }
        let length = match request.body() {
            RequestBody::Length(length) => Some(length),
            RequestBody::Chunked => None,
            _ => return Err(Problem::new(Status::LENGTH_REQUIRED, "Missing Content-Length")),
        };
        if length.is_some_and(|length| length > self.item_bytes_max) {
            return Err(self.too_large());
        }
        let digests = Digests::of_head(request).map_err(|reason| Problem::new(Status::BAD_REQUEST, reason))?;
        Ok((length, digests, self.charge(holder, length.unwrap_or(0))?))
    }

    /// What an upload counts for its holder, of which so many bytes are announced; `None` without tokens.
    pub(crate) fn charge(&self, holder: &Holder, bytes: u64) -> Result<Option<Charge>, Problem> {
        let (Some(access), Holder::Of(grant)) = (&self.access, holder) else { return Ok(None) };
        let mut charge = access.accounts.admit(grant, self.platform.now()).map_err(too_fast)?;
        if charge.add(bytes) { Ok(Some(charge)) } else { Err(over_quota()) }
    }

    /// Streams the body into `upload` and returns its id. The outer error is the store's, the inner one the client's.
    async fn receive(
        &self,
        connection: &mut Connection<P>,
        mut upload: ItemUpload<P>,
        slot: Rc<Slot>,
        running: &Running,
    ) -> Result<Result<u64, Refused>, StoreError> {
        let stream = self.stream(connection, &mut upload, &slot, running);
        if let Err(error) = stream.instrument(info_span!("receive")).await? {
            return Ok(Err(error));
        }
        // From now on its writes alone hold it: more uploads share a commit than there are slots.
        drop(slot);
        if let Err(reason) = upload.digests().add_trailers(connection.trailers().iter()) {
            return Ok(Err(Refused::Digest(reason)));
        }
        Ok(Ok(upload.finish().await?))
    }

    async fn stream(
        &self,
        connection: &mut Connection<P>,
        upload: &mut ItemUpload<P>,
        slot: &Slot,
        running: &Running,
    ) -> Result<Result<(), Refused>, StoreError> {
        while upload.missing_bytes() > 0 {
            let read = async |space: &mut [u8]| slot.watch(&self.platform, connection.read_body(space)).await;
            match upload.receive(read).await? {
                Ok(0) => {
                    // Only a chunked body ends where its client chooses.
                    upload.end();
                    break;
                }
                Ok(count) if upload.arrived(count as u64) => {
                    self.traffic.received(count as u64);
                    running.add(count as u64);
                }
                Ok(_) => return Ok(Err(Refused::Quota)),
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

    pub(crate) fn too_large(&self) -> Problem {
        Problem::new(Status::PAYLOAD_TOO_LARGE, format!("An item may have {} bytes at most", self.item_bytes_max))
    }
}

pub(crate) fn over_quota() -> Problem {
    Problem::new(Status::INSUFFICIENT_STORAGE, "Your items and uploads would have more bytes than your quota allows")
}

/// More was sent than the rate of the uploader allows.
fn too_fast(pause: Duration) -> Problem {
    let secs = pause.as_secs();
    let text = format!("You have sent more than your rate allows: the next upload may start in {secs} s");
    Problem::new(Status::TOO_MANY_REQUESTS, text).field("Retry-After", format!("{secs}"))
}

/// No slot was free in time.
pub(crate) fn busy(detail: &str) -> Problem {
    Problem::new(Status::SERVICE_UNAVAILABLE, detail)
}

/// Why an upload cannot be an item, if its head shows that: what an item is sent with is not kept, so a field by which its bytes
/// mean something else must not be ignored.
pub(crate) fn refused_upload(request: &Request) -> Option<Problem> {
    let is_type = |name: &[u8]| {
        let value = request.header("Content-Type").unwrap_or_default();
        value.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().eq_ignore_ascii_case(name)
    };
    if request.header("Content-Range").is_some() || is_type(b"multipart/byteranges") {
        // RFC 9110, section 14.5.
        let text = "An upload is a whole item, not a part of one: send it without Content-Range";
        return Some(Problem::new(Status::BAD_REQUEST, text));
    }
    if request.list("Content-Encoding").any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        let text = "The encoding of an item is not kept: send it without Content-Encoding, as the bytes that consumers receive";
        // RFC 9110, section 12.5.3: the encodings that would be accepted.
        let problem = Problem::new(Status::UNSUPPORTED_MEDIA_TYPE, text);
        return Some(problem.field("Accept-Encoding", "identity"));
    }
    if request.header("If-Match").is_some() {
        // RFC 9110, section 13.1.1: an upload replaces nothing, so no tag is that of what it replaces.
        let text = "An upload is a new item and replaces none: send it without If-Match";
        return Some(Problem::new(Status::PRECONDITION_FAILED, text));
    }
    None
}
