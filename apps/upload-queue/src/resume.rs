//! Uploads that can be resumed, over HTTP: what requests want of them, and the answers. `append.rs` has those with bytes.
//!
//! Two protocols do the same with one object: tus 1.0, and draft-ietf-httpbis-resumable-upload (revision 11, without the number of
//! interoperability; clients of revision 3 and later, which send a number from 5 to 8, get it back).

use crate::access::{self, Holder};
use crate::config::number;
use crate::digest::{Algorithm, Digests};
use crate::error::StoreError;
use crate::format::UploadName;
use crate::limits::{METADATA_BYTES_MAX, RESUME_TIME, TAKE_OVER_WAIT};
use crate::problem::Problem;
use crate::resumable::Resumable;
use crate::routes::{Client, Connection, Queue, failure, not_allowed};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;
use glasshouse::http::{HttpError, Method, Request, Response, Status};
use glasshouse::{HttpDate, Platform};

/// The folder of uploads that can be resumed.
const FOLDER: &str = "/uploads/";
/// The version of tus.
const TUS: &str = "1.0.0";
const PARTIAL: &str = "application/partial-upload";
const OFFSET: &str = "application/offset+octet-stream";
/// The revisions of the draft in which clients send a number, and in which `Upload-Complete` has today's meaning.
const INTEROP: [&str; 4] = ["5", "6", "7", "8"];

/// What a request is about.
pub(crate) enum Target {
    /// A new upload.
    New,
    /// The one with this name, with this method.
    Known(UploadName, Method),
    /// What the service can do.
    Abilities,
}

/// What a request about uploads that can be resumed is about; `None` for all others.
#[inline(never)]
pub(crate) fn target(path: &str, request: &Request) -> Option<Target> {
    let method = match (request.method(), request.only("X-HTTP-Method-Override")) {
        (Method::Post, Some("PATCH")) => Method::Patch,
        (Method::Post, Some("DELETE")) => Method::Delete,
        (method, _) => method,
    };
    let known = path.strip_prefix(FOLDER).and_then(name_of);
    match (known, method) {
        (_, Method::Options) if path == "/uploader" || known.is_some() => Some(Target::Abilities),
        (Some(name), method) => Some(Target::Known(name, method)),
        (None, Method::Put | Method::Post) if path == "/uploader" && Protocol::of_new(request).is_some() => {
            Some(Target::New)
        }
        _ => None,
    }
}

/// How a client speaks about uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tus,
    Draft {
        /// The number that a client sends.
        interop: Option<&'static str>,
    },
}

impl Protocol {
    /// Of a request that may begin an upload; `None` if it is an ordinary one.
    fn of_new(request: &Request) -> Option<Protocol> {
        if request.header("Tus-Resumable").is_some() {
            return Some(Protocol::Tus);
        }
        boolean(request, "Upload-Complete").map(|_| Protocol::of(request))
    }

    fn of(request: &Request) -> Protocol {
        if request.header("Tus-Resumable").is_some() {
            return Protocol::Tus;
        }
        let sent = request.only("Upload-Draft-Interop-Version");
        Protocol::Draft { interop: INTEROP.into_iter().find(|number| sent == Some(number)) }
    }

    /// Adds what each of its answers has.
    pub(crate) fn mark(self, response: Response) -> Response {
        match self {
            Protocol::Tus => response.header("Tus-Resumable", TUS),
            Protocol::Draft { interop: Some(number) } => response.header("Upload-Draft-Interop-Version", number),
            Protocol::Draft { interop: None } => response,
        }
    }

    /// Fails unless the type of a body is that of a part of an upload.
    pub(crate) fn check_type(self, request: &Request) -> Result<(), Problem> {
        let expected = if self == Protocol::Tus { OFFSET } else { PARTIAL };
        match request.header("Content-Type") {
            Some(found) if is_type(found, expected) => Ok(()),
            // Revision 3 had no type.
            None if self == (Protocol::Draft { interop: Some("5") }) => Ok(()),
            _ => {
                let text = format!("A part of an upload is sent with Content-Type: {expected}");
                Err(Problem::new(Status::UNSUPPORTED_MEDIA_TYPE, text).field("Accept-Patch", expected))
            }
        }
    }

    /// The digests that the bytes of a request must have.
    pub(crate) fn digests(self, request: &Request) -> Result<Digests, Problem> {
        let bad = |reason| Problem::new(Status::BAD_REQUEST, reason);
        let mut digests = Digests::of_content(request).map_err(bad)?;
        if self == Protocol::Tus
            && let Some(field) = request.header("Upload-Checksum")
        {
            let (algorithm, digest) = Algorithm::of_tus(field).map_err(bad)?;
            digests.expect(algorithm, digest);
        }
        Ok(digests)
    }
}

/// An answer with fields of an upload.
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) text: &'static str,
}

impl From<Response> for Answer {
    fn from(response: Response) -> Answer {
        Answer { response, text: "" }
    }
}

impl<P: Platform> Queue<P> {
    /// Answers a request about an upload that can be resumed.
    pub(crate) async fn resume(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        holder: &Holder,
        target: Target,
    ) -> Result<(), HttpError> {
        let protocol = Protocol::of(request);
        let store = match self.items.store() {
            Ok(store) => store,
            Err(problem) => return problem.send(connection).await,
        };
        let answered = match target {
            Target::Abilities => Ok(self.abilities().into()),
            _ if protocol == Protocol::Tus && request.header("Tus-Resumable") != Some(TUS.as_bytes()) => {
                let text = format!("The version of tus here is {TUS}");
                Err(Problem::new(Status::PRECONDITION_FAILED, text).field("Tus-Version", TUS))
            }
            Target::New => self.create(connection, request, client, holder, protocol).await?,
            Target::Known(name, method) => match store.find(&name) {
                None => {
                    Err(Problem::new(Status::NOT_FOUND, "There is no such upload: it never was, or it has expired"))
                }
                Some(known) => match method {
                    Method::Head => self.offset(&known, protocol).await,
                    Method::Patch => self.append(connection, request, client, holder, &known, protocol).await?,
                    Method::Delete => self.give_up(&known).await,
                    _ => Err(not_allowed("HEAD, PATCH, DELETE, OPTIONS", "Method not supported")),
                },
            },
        };
        match answered {
            Ok(Answer { response, text }) => connection.respond(protocol.mark(response), text.as_bytes()).await,
            Err(problem) if protocol == Protocol::Tus => problem.field("Tus-Resumable", TUS).send(connection).await,
            Err(problem) => problem.send(connection).await,
        }
    }

    /// The answer to OPTIONS.
    pub(crate) fn abilities(&self) -> Response {
        Response::new(Status::NO_CONTENT)
            .header("Tus-Version", TUS)
            .header("Tus-Resumable", TUS)
            .header(
                "Tus-Extension",
                "creation,creation-with-upload,creation-defer-length,checksum,termination,expiration",
            )
            .header("Tus-Checksum-Algorithm", "sha1,sha256,sha512")
            .header("Tus-Max-Size", self.item_bytes_max)
            .header("Accept-Patch", PARTIAL)
            .header("Upload-Limit", format!("max-size={}", self.item_bytes_max))
    }

    /// The answer to HEAD. The session of before is ended: its client has lost it.
    async fn offset(&self, known: &Rc<Resumable>, protocol: Protocol) -> Result<Answer, Problem> {
        self.take_over(known);
        let store = self.items.store()?;
        let idle = async {
            loop {
                let changed = store.changed();
                if !known.is_busy() {
                    return;
                }
                changed.await;
            }
        };
        self.platform.timeout(TAKE_OVER_WAIT, idle).await.map_err(|_| locked())?;
        let is_complete = known.item().is_some();
        let status = if protocol == Protocol::Tus { Status::OK } else { Status::NO_CONTENT };
        let mut response = self.describe(Response::new(status), known).header("Cache-Control", "no-store");
        match known.length() {
            Some(length) => response = response.header("Upload-Length", length),
            None if protocol == Protocol::Tus => response = response.header("Upload-Defer-Length", 1),
            None => {}
        }
        if let Some(metadata) = &*known.metadata.borrow() {
            response = response.header("Upload-Metadata", metadata);
        }
        if let Protocol::Draft { .. } = protocol {
            response = complete(response, is_complete);
        }
        Ok(response.header("Upload-Offset", known.offset()).into())
    }

    /// The answer to DELETE.
    async fn give_up(&self, known: &Rc<Resumable>) -> Result<Answer, Problem> {
        if known.item().is_some() {
            let text = "The upload is complete, and its item in the queue or taken from it: nothing is removed";
            return Err(Problem::new(Status::CONFLICT, text));
        }
        self.take_over(known);
        let forgotten = self.platform.timeout(TAKE_OVER_WAIT, self.items.store()?.forget(known)).await;
        forgotten.map_err(|_| locked())?.map_err(|error| self.failed(&error))?;
        Ok(Response::new(Status::NO_CONTENT).into())
    }

    /// Ends the session of now, if there is one: its client has lost the connection, and this one continues.
    pub(crate) fn take_over(&self, known: &Resumable) {
        if let Some(stop) = known.stop.take() {
            stop.open();
        }
    }

    /// The answer to a failure of the store, which the console has too if it is one of the service.
    pub(crate) fn failed(&self, error: &StoreError) -> Problem {
        let problem = failure(error);
        if problem.status == Status::INTERNAL_SERVER_ERROR {
            self.platform.print(format_args!("upload-queue: {error}"));
        }
        problem
    }

    /// Adds the fields that say how much and how long.
    pub(crate) fn describe(&self, response: Response, known: &Resumable) -> Response {
        let left = known.expires.get() - self.platform.now();
        let limit = format!("max-size={}, max-age={}", self.item_bytes_max, left.as_secs());
        let response = response.header("Upload-Limit", limit);
        match self.platform.wall() {
            Some(now) if known.item().is_none() => response.header("Upload-Expires", HttpDate(now.since_epoch + left)),
            _ => response,
        }
    }

    /// When an upload that is used now is forgotten: by the clock of this service, and by that of the disk.
    pub(crate) fn deadline(&self) -> (glasshouse::Instant, u64) {
        let since_epoch = self.platform.wall().map_or(Duration::ZERO, |now| now.since_epoch + RESUME_TIME);
        (self.platform.now() + RESUME_TIME, since_epoch.as_secs())
    }

    /// A random name.
    pub(crate) fn new_name(&self) -> UploadName {
        let mut name = UploadName::default();
        self.platform.fill_random(&mut name);
        name
    }
}

/// Where an upload is, for a client that has a token in its path too.
pub(crate) fn location(request: &Request, has_tokens: bool, name: &UploadName) -> String {
    let mut location = String::from(FOLDER);
    for byte in name {
        // A `String` never fails to be written to.
        let _ = write!(location, "{byte:02x}");
    }
    if has_tokens {
        location += access::token_in_path(request);
    }
    location
}

fn name_of(text: &str) -> Option<UploadName> {
    let mut name = UploadName::default();
    let is_name = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    for (byte, pair) in name.iter_mut().zip(text.as_bytes().chunks(2)).filter(|_| is_name) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    is_name.then_some(name)
}

/// The field `Upload-Complete`, in an answer of the draft.
pub(crate) fn complete(response: Response, is_complete: bool) -> Response {
    response.header("Upload-Complete", if is_complete { "?1" } else { "?0" })
}

/// A structured field that is a boolean (RFC 9651, section 3.3.6). Any other value is as if the field were not there, as the draft has it.
pub(crate) fn boolean(request: &Request, name: &str) -> Option<bool> {
    match request.only(name)? {
        "?1" => Some(true),
        "?0" => Some(false),
        _ => None,
    }
}

/// A field that is a number of bytes; an error if it is there and is none.
pub(crate) fn bytes(request: &Request, name: &str) -> Result<Option<u64>, Problem> {
    if request.header(name).is_none() {
        return Ok(None);
    }
    let value = request.only(name).and_then(|text| number(text).filter(|_| !text.is_empty()));
    let text = format!("{name} takes a number of bytes");
    value.map(Some).ok_or(Problem::new(Status::BAD_REQUEST, text))
}

/// The field `Upload-Metadata` of tus, which comes back with HEAD.
pub(crate) fn metadata(request: &Request) -> Result<Option<String>, Problem> {
    match request.only("Upload-Metadata") {
        Some(text) if text.len() > METADATA_BYTES_MAX => {
            let text = format!("Upload-Metadata may have {METADATA_BYTES_MAX} bytes at most");
            Err(Problem::new(Status::HEADER_FIELDS_TOO_LARGE, text))
        }
        text => Ok(text.map(String::from)),
    }
}

fn is_type(field: &[u8], expected: &str) -> bool {
    field.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().eq_ignore_ascii_case(expected.as_bytes())
}

/// Another request has the upload and does not end.
pub(crate) fn locked() -> Problem {
    Problem::new(Status::LOCKED, "Another request still writes to this upload: try again later")
        .field("Retry-After", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_32_digits() {
        let name = core::array::from_fn(|number| number as u8 * 17);
        let text = "00112233445566778899aabbccddeeff";
        assert_eq!(name_of(text), Some(name));
        for bad in ["", "00", &text.to_uppercase(), &text[1..], "+0112233445566778899aabbccddeeff"] {
            assert_eq!(name_of(bad), None, "{bad}");
        }
    }
}
