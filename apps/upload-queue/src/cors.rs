//! Requests from pages of other origins (the Fetch standard, section 3.2): which ones browsers may send, and let their pages read.

use crate::routes::{Connection, Queue};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use glasshouse::Platform;
use glasshouse::http::{Method, Request, Response, Status};

const METHODS: &str = "GET, HEAD, PUT, POST, PATCH, DELETE";
/// Fields of requests: those of the queue's own, of tus, of the draft of resumable uploads, and of digests.
const REQUEST_FIELDS: &str = "Authorization, Content-Type, Content-Digest, If-Match, If-Range, Prefer, Range, Repr-Digest, Tus-Resumable, \
                              Upload-Checksum, Upload-Complete, Upload-Defer-Length, Upload-Draft-Interop-Version, Upload-Length, Upload-Metadata, \
                              Upload-Offset, Want-Content-Digest, Want-Repr-Digest, X-HTTP-Method-Override, X-Request-ID, X-Requested-With";
/// Fields of answers.
const RESPONSE_FIELDS: &str = "Content-Digest, Content-Range, Delivery-Count, ETag, Lease-Token, Location, Repr-Digest, Retry-After, \
                               Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable, Tus-Version, Upload-Complete, Upload-Defer-Length, \
                               Upload-Draft-Interop-Version, Upload-Expires, Upload-Length, Upload-Limit, Upload-Metadata, Upload-Offset";
/// How long a browser keeps this answer, in seconds: the longest that Firefox accepts.
const MAX_AGE_SECS: u32 = 86_400;

/// The origins whose pages may use the queue.
pub(crate) struct Origins(RefCell<Vec<String>>);

impl Origins {
    pub(crate) fn new(origins: Vec<String>) -> Origins {
        Origins(RefCell::new(origins))
    }

    pub(crate) fn set(&self, origins: Vec<String>) {
        *self.0.borrow_mut() = origins;
    }

    /// What an answer names as its origin; `None` if the request has none, or one that is not allowed.
    fn allowed(&self, request: &Request) -> Option<String> {
        let origins = self.0.borrow();
        let origin = request.only("Origin")?;
        origins.iter().find(|allowed| *allowed == "*" || *allowed == origin).cloned()
    }
}

impl<P: Platform> Queue<P> {
    /// Marks all answers to a request of an origin that is allowed. Returns the answer to one that a browser sends before the request of a page, which has
    /// no token.
    #[inline(never)]
    pub(crate) fn cross_origin(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        path: &str,
    ) -> Option<Response> {
        let origin = self.origins.allowed(request)?;
        if origin != "*" {
            connection.add_field("Vary", "Origin");
        }
        connection.add_field("Access-Control-Allow-Origin", origin);
        if request.method() != Method::Options || request.header("Access-Control-Request-Method").is_none() {
            connection.add_field("Access-Control-Expose-Headers", RESPONSE_FIELDS);
            return None;
        }
        let is_upload = self.items.store().is_ok() && (path == "/uploader" || path.starts_with("/uploads/"));
        let response = if is_upload { self.abilities() } else { Response::new(Status::NO_CONTENT) };
        let response = response.header("Access-Control-Allow-Methods", METHODS);
        let response = response.header("Access-Control-Allow-Headers", REQUEST_FIELDS);
        Some(response.header("Access-Control-Max-Age", MAX_AGE_SECS))
    }
}
