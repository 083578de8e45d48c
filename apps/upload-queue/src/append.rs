//! Requests with bytes of uploads that can be resumed.

use crate::access::Holder;
use crate::digest::Digests;
use crate::error::StoreError;
use crate::limits::TAKE_OVER_WAIT;
use crate::problem::Problem;
use crate::put::{busy, over_quota, refused_upload};
use crate::resumable::Resumable;
use crate::resume::{Answer, Protocol, boolean, bytes, complete, location, locked, metadata};
use crate::routes::{Client, Connection, Queue};
use crate::status::Running;
use crate::telemetry::UPLOADS_DONE;
use crate::upload::Upload;
use crate::watched::Watched;
use alloc::format;
use alloc::rc::Rc;
use glasshouse::Platform;
use glasshouse::future::{Either3, select3};
use glasshouse::http::{HttpError, Request, RequestBody, Response, Slot, Status};
use glasshouse::sync::Latch;
use glasshouse::tracing::{Instrument, Span, field::Empty, info_span};

type Session<P> = Upload<Watched<<P as Platform>::Block, P>>;

const INCONSISTENT: &str = "https://iana.org/assignments/http-problem-types#inconsistent-upload-length";
const MISMATCHING: &str = "https://iana.org/assignments/http-problem-types#mismatching-upload-offset";
const COMPLETED: &str = "https://iana.org/assignments/http-problem-types#completed-upload";

/// What the head of a request with bytes announces.
struct Announced {
    /// Of the whole upload.
    length: Option<u64>,
    /// The upload is to become an item after this request. `None` in tus: as soon as it has its length.
    completes: Option<bool>,
    /// Of the bytes of this request.
    content: Digests,
    /// Of the whole upload.
    whole: Digests,
    /// The name of the token of the request.
    uploader: Option<Rc<str>>,
}

/// What was stored of an upload after a request.
struct Received {
    /// All bytes of the upload so far.
    bytes: u64,
    /// It is an item now.
    ends: bool,
}

/// How a session ended before its request did.
enum Interrupted {
    Client(HttpError),
    /// Another request has continued the upload.
    TakenOver,
    /// There were more bytes than announced, or than an item may have.
    TooMany,
    Quota,
    Digest(&'static str),
    Store(StoreError),
}

impl From<StoreError> for Interrupted {
    fn from(error: StoreError) -> Interrupted {
        Interrupted::Store(error)
    }
}

impl<P: Platform> Queue<P> {
    /// Begins an upload, with the first bytes if the request has some.
    pub(crate) async fn create(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        holder: &Holder,
        protocol: Protocol,
    ) -> Result<Result<Answer, Problem>, HttpError> {
        let span = info_span!("upload", bytes = Empty, id = Empty, uploader = Empty);
        let begun = async {
            let mut announced = self.announced_by(request, protocol, 0, None)?;
            announced.uploader = holder.name();
            let metadata = if protocol == Protocol::Tus { metadata(request)? } else { None };
            let charge = self.charge(holder, announced.length.unwrap_or(0))?;
            let slot = self.take_slot(&self.uploads, client).await.ok_or_else(|| busy("Too many uploads"))?;
            let (expires, deadline_secs) = self.deadline();
            let store = self.items.store()?;
            store.pace(self.platform.now());
            let begun = store.begin(self.new_name(), announced.length, self.item_bytes_max, deadline_secs);
            let mut upload = begun.await.map_err(|error| self.failed(&error))?;
            upload.set_charge(charge);
            let known = upload.resumable().expect("it was begun as one").clone();
            known.expires.set(expires);
            *known.metadata.borrow_mut() = metadata;
            Ok((announced, slot, upload, known))
        };
        let (announced, slot, upload, known) = match begun.instrument(span.clone()).await {
            Ok(begun) => begun,
            Err(problem) => return Ok(Err(problem)),
        };
        let place = location(request, self.access.is_some(), &known.name());
        if let Protocol::Draft { .. } = protocol {
            let supported = self.describe(Response::new(Status::UPLOAD_RESUMPTION_SUPPORTED), &known);
            connection.inform(protocol.mark(supported.header("Location", &place))).await?;
        }
        let received = self.receive_part(connection, announced, upload, slot, protocol, &span);
        Ok(received.instrument(span.clone()).await?.map(|received| {
            let Answer { response, text } = self.answer(&known, received, true, protocol);
            Answer { response: response.header("Location", place), text }
        }))
    }

    /// Appends the bytes of a request to an upload.
    pub(crate) async fn append(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        holder: &Holder,
        known: &Rc<Resumable>,
        protocol: Protocol,
    ) -> Result<Result<Answer, Problem>, HttpError> {
        let span = info_span!("upload", bytes = Empty, id = Empty, uploader = Empty);
        let begun = async {
            protocol.check_type(request)?;
            let offset = bytes(request, "Upload-Offset")?.ok_or_else(|| {
                Problem::new(Status::BAD_REQUEST, "A part of an upload is sent with its Upload-Offset")
            })?;
            if known.item().is_some() {
                return Ok(None);
            }
            self.take_over(known);
            let slot = self.take_slot(&self.uploads, client).await.ok_or_else(|| busy("Too many uploads"))?;
            let (expires, deadline_secs) = self.deadline();
            let store = self.items.store()?;
            let resumed = store.resume(known, self.item_bytes_max, deadline_secs);
            let mut upload = match self.platform.timeout(TAKE_OVER_WAIT, resumed).await.map_err(|_| locked())? {
                Ok(upload) => upload,
                Err(StoreError::UploadEnded) if known.item().is_some() => return Ok(None),
                Err(StoreError::UploadEnded) => {
                    return Err(Problem::new(Status::NOT_FOUND, "The upload was given up"));
                }
                Err(error) => {
                    if error == StoreError::DamagedUpload {
                        drop(store.end(known));
                    }
                    return Err(self.failed(&error));
                }
            };
            if upload.received_bytes() != offset {
                return Err(mismatch(upload.received_bytes(), offset));
            }
            let mut announced = self.announced_by(request, protocol, offset, known.length())?;
            announced.uploader = holder.name();
            self.charge_again(holder, &mut upload, announced.length)?;
            if let Some(length) = announced.length {
                upload.set_length(length);
            }
            known.expires.set(expires);
            Ok(Some((announced, slot, upload)))
        };
        let (announced, slot, upload) = match begun.instrument(span.clone()).await {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(answer_of_complete(request, known, protocol)),
            Err(problem) => return Ok(Err(problem)),
        };
        let received = self.receive_part(connection, announced, upload, slot, protocol, &span);
        Ok(received.instrument(span.clone()).await?.map(|received| self.answer(known, received, false, protocol)))
    }

    /// What the head of a request announces, for an upload that has `offset` bytes, of `known` if its length is known; or why it cannot be.
    fn announced_by(
        &self,
        request: &Request,
        protocol: Protocol,
        offset: u64,
        known: Option<u64>,
    ) -> Result<Announced, Problem> {
        if let Some(problem) = refused_upload(request) {
            return Err(problem);
        }
        let body = match request.body() {
            RequestBody::None => Some(0),
            RequestBody::Length(length) => Some(length),
            RequestBody::Chunked => None,
            _ => return Err(Problem::new(Status::LENGTH_REQUIRED, "Missing Content-Length")),
        };
        let completes = match protocol {
            Protocol::Tus => None,
            Protocol::Draft { .. } => Some(boolean(request, "Upload-Complete").ok_or_else(|| {
                Problem::new(
                    Status::BAD_REQUEST,
                    "A part of an upload is sent with Upload-Complete: ?0, the last one with ?1",
                )
            })?),
        };
        let is_new = offset == 0 && known.is_none();
        let announced = bytes(request, "Upload-Length")?;
        if protocol == Protocol::Tus && is_new {
            let is_deferred = request.header("Upload-Defer-Length") == Some(b"1");
            if announced.is_some() == is_deferred && request.method() != glasshouse::http::Method::Patch {
                let text = "A new upload is sent with its Upload-Length, or with Upload-Defer-Length: 1";
                return Err(Problem::new(Status::BAD_REQUEST, text));
            }
            if body != Some(0) {
                protocol.check_type(request)?;
            }
        }
        let by_end = body.filter(|_| completes == Some(true)).map(|bytes| offset.saturating_add(bytes));
        let mut lengths = [known, announced, by_end].into_iter().flatten();
        let length = lengths.next();
        let is_beyond = |length| body.is_some_and(|bytes| offset.saturating_add(bytes) > length) || offset > length;
        if lengths.any(|other| Some(other) != length) || length.is_some_and(is_beyond) {
            return Err(inconsistent());
        }
        if length.or(body).is_some_and(|bytes| bytes > self.item_bytes_max) {
            return Err(self.too_large());
        }
        let bad = |reason| Problem::new(Status::BAD_REQUEST, reason);
        let whole = Digests::of_representation(request).map_err(bad)?;
        if !whole.is_empty() && completes == Some(false) {
            return Err(bad("Repr-Digest is verified when the upload is complete: send it with its last part"));
        }
        Ok(Announced { length, completes, content: protocol.digests(request)?, whole, uploader: None })
    }

    /// The charge of an upload that is continued: its own, or after a restart a new one for the holder of now.
    fn charge_again(&self, holder: &Holder, upload: &mut Session<P>, length: Option<u64>) -> Result<(), Problem> {
        // This also checks the rate.
        let new = self.charge(holder, 0)?;
        let mut charge = upload.take_charge().or(new);
        let bytes = length.unwrap_or(upload.received_bytes());
        let is_allowed = charge.as_mut().is_none_or(|charge| charge.set(bytes));
        upload.set_charge(charge);
        if is_allowed { Ok(()) } else { Err(over_quota()) }
    }

    /// Receives the bytes of a request, and saves or completes the upload. The outer error ends the connection.
    async fn receive_part(
        &self,
        connection: &mut Connection<P>,
        announced: Announced,
        mut upload: Session<P>,
        slot: Slot,
        protocol: Protocol,
        span: &Span,
    ) -> Result<Result<Received, Problem>, HttpError> {
        let Announced { length, completes, content, whole, uploader } = announced;
        let running = self.transfers.begin(uploader, length, upload.received_bytes());
        let known = upload.resumable().expect("the caller has a session").clone();
        let is_atomic = !content.is_empty();
        if is_atomic {
            upload.save_at_the_end_only();
        }
        upload.verify(content);
        if let Err(error) = upload.verify_whole(whole).await {
            return Ok(Err(self.failed(&error)));
        }
        let slot = Rc::new(slot);
        upload.hold(slot.clone());
        let stop = Latch::new();
        *known.stop.borrow_mut() = Some(stop.clone());
        let streamed = self.stream_part(connection, &mut upload, &slot, (&stop, &running), protocol);
        let streamed = streamed.instrument(info_span!("receive")).await;
        // From now on its writes alone hold it, as in `Queue::put`.
        drop(slot);
        match streamed {
            Ok(()) => {}
            Err(Interrupted::TooMany) => {
                let store = upload.store.clone();
                drop(upload);
                // The draft wants no further interaction with it.
                let _ = store.forget(&known).await;
                return Ok(Err(if length.is_some() { inconsistent() } else { self.too_large() }));
            }
            Err(interrupted) => {
                // What arrived is kept, unless a digest decides about it.
                if !is_atomic && !matches!(interrupted, Interrupted::Store(_)) {
                    let _ = upload.save().await;
                }
                return self.answer_interrupted(interrupted, known.offset(), protocol);
            }
        }
        let bytes = upload.received_bytes();
        let ends = completes.unwrap_or(length == Some(bytes));
        if ends && length.is_some_and(|length| bytes < length) {
            let _ = upload.save().await;
            return Ok(Err(inconsistent()));
        }
        if ends && upload.is_open() {
            upload.end();
        }
        span.record("bytes", bytes);
        let done = if ends { upload.finish().await.map(Some) } else { upload.save().await.map(|_| None) };
        Ok(match done {
            Ok(id) => {
                UPLOADS_DONE.add(ends.into());
                if let Some(id) = id {
                    span.record("id", id);
                }
                Ok(Received { bytes, ends })
            }
            Err(error) => Err(self.failed_part(&error, protocol)),
        })
    }

    async fn stream_part(
        &self,
        connection: &mut Connection<P>,
        upload: &mut Session<P>,
        slot: &Slot,
        (stop, running): (&Latch, &Running),
        protocol: Protocol,
    ) -> Result<(), Interrupted> {
        let known = upload.resumable().expect("the caller has a session").clone();
        let (mut reported, store) = (known.offset(), upload.store.clone());
        while upload.missing_bytes() > 0 {
            let read = async |space: &mut [u8]| slot.watch(&self.platform, connection.read_body(space)).await;
            match select3(upload.receive(read), stop.wait(), store.changed()).await {
                Either3::First(received) => match received?.map_err(Interrupted::Client)? {
                    0 => break,
                    count if upload.arrived(count as u64) => {
                        self.traffic.received(count as u64);
                        running.add(count as u64);
                    }
                    _ => return Err(Interrupted::Quota),
                },
                Either3::Second(()) => return Err(Interrupted::TakenOver),
                // What was saved is reported also while the client pauses.
                Either3::Third(()) => {}
            }
            let saved = known.offset();
            if saved > reported && protocol != Protocol::Tus {
                let progress = Response::new(Status::UPLOAD_RESUMPTION_SUPPORTED).header("Upload-Offset", saved);
                connection.inform(protocol.mark(progress)).await.map_err(Interrupted::Client)?;
                reported = saved;
            }
        }
        if upload.missing_bytes() == 0 && connection.read_body(&mut [0]).await.map_err(Interrupted::Client)? > 0 {
            return Err(Interrupted::TooMany);
        }
        upload.digests().add_trailers(connection.trailers().iter()).map_err(Interrupted::Digest)
    }

    fn answer_interrupted<T>(
        &self,
        interrupted: Interrupted,
        offset: u64,
        protocol: Protocol,
    ) -> Result<Result<T, Problem>, HttpError> {
        Ok(Err(match interrupted {
            Interrupted::Client(HttpError::BodyCut { .. }) => {
                let text =
                    format!("The request ended early: {offset} bytes are stored, and the upload continues after them");
                Problem::new(Status::BAD_REQUEST, text).field("Upload-Offset", format!("{offset}"))
            }
            Interrupted::Client(error) => return Err(error),
            Interrupted::TakenOver => {
                let text = "Another request has continued this upload, or given it up";
                Problem::new(Status::CONFLICT, text).field("Upload-Offset", format!("{offset}"))
            }
            Interrupted::TooMany => inconsistent(),
            Interrupted::Quota => over_quota(),
            Interrupted::Digest(reason) => Problem::new(Status::BAD_REQUEST, reason),
            Interrupted::Store(error) => self.failed_part(&error, protocol),
        }))
    }

    fn failed_part(&self, error: &StoreError, protocol: Protocol) -> Problem {
        match (protocol, error) {
            (Protocol::Tus, StoreError::Digest { .. }) => Problem::new(Status::CHECKSUM_MISMATCH, format!("{error}")),
            _ => self.failed(error),
        }
    }

    /// The answer to a request whose bytes were stored.
    fn answer(&self, known: &Resumable, received: Received, is_new: bool, protocol: Protocol) -> Answer {
        let Received { bytes, ends } = received;
        let status = match protocol {
            Protocol::Draft { .. } if ends => Status::OK,
            _ if is_new => Status::CREATED,
            _ => Status::NO_CONTENT,
        };
        let response = self.describe(Response::new(status), known).header("Upload-Offset", bytes);
        match protocol {
            Protocol::Tus => response.into(),
            Protocol::Draft { .. } => {
                Answer { response: complete(response, ends), text: if ends { "Accepted\n" } else { "" } }
            }
        }
    }
}

/// What is to be answered to bytes for an upload that is an item already. tus clients repeat a last request that got no answer.
fn answer_of_complete(request: &Request, known: &Resumable, protocol: Protocol) -> Result<Answer, Problem> {
    let (offset, sent) = (known.offset(), bytes(request, "Upload-Offset")?.unwrap_or_default());
    let is_empty = matches!(request.body(), RequestBody::None | RequestBody::Length(0));
    match protocol {
        Protocol::Tus if is_empty && sent == offset => {
            Ok(Response::new(Status::NO_CONTENT).header("Upload-Offset", offset).into())
        }
        Protocol::Tus => Err(mismatch(offset, sent)),
        Protocol::Draft { .. } => {
            let problem = Problem::new(Status::BAD_REQUEST, "The upload is complete already").kind(COMPLETED);
            Err(problem.field("Upload-Complete", "?1").field("Upload-Offset", format!("{offset}")))
        }
    }
}

fn mismatch(offset: u64, sent: u64) -> Problem {
    let text = format!("The upload has {offset} bytes, and the request begins at {sent}");
    let problem = Problem::new(Status::CONFLICT, text).kind(MISMATCHING).field("Upload-Offset", format!("{offset}"));
    problem.member("expected-offset", offset).member("provided-offset", sent)
}

fn inconsistent() -> Problem {
    Problem::new(Status::BAD_REQUEST, "The request does not agree with the length of the upload").kind(INCONSISTENT)
}
