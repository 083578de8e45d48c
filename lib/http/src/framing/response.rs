//! A response's head.

use crate::framing::text::Text;
use alloc::vec::Vec;
use core::fmt;

/// A status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal,)*) => {
        impl Status {
            $(#[doc = $reason] pub const $name: Status = Status($code);)*

            /// The phrase that belongs to the code; empty for a code without a constant here.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    EARLY_HINTS 103 "Early Hints",
    UPLOAD_RESUMPTION_SUPPORTED 104 "Upload Resumption Supported",
    OK 200 "OK",
    CREATED 201 "Created",
    ACCEPTED 202 "Accepted",
    NO_CONTENT 204 "No Content",
    PARTIAL_CONTENT 206 "Partial Content",
    MOVED_PERMANENTLY 301 "Moved Permanently",
    FOUND 302 "Found",
    SEE_OTHER 303 "See Other",
    NOT_MODIFIED 304 "Not Modified",
    TEMPORARY_REDIRECT 307 "Temporary Redirect",
    PERMANENT_REDIRECT 308 "Permanent Redirect",
    BAD_REQUEST 400 "Bad Request",
    UNAUTHORIZED 401 "Unauthorized",
    FORBIDDEN 403 "Forbidden",
    NOT_FOUND 404 "Not Found",
    METHOD_NOT_ALLOWED 405 "Method Not Allowed",
    REQUEST_TIMEOUT 408 "Request Timeout",
    CONFLICT 409 "Conflict",
    GONE 410 "Gone",
    LENGTH_REQUIRED 411 "Length Required",
    PRECONDITION_FAILED 412 "Precondition Failed",
    PAYLOAD_TOO_LARGE 413 "Content Too Large",
    URI_TOO_LONG 414 "URI Too Long",
    UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type",
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable",
    EXPECTATION_FAILED 417 "Expectation Failed",
    LOCKED 423 "Locked",
    PRECONDITION_REQUIRED 428 "Precondition Required",
    TOO_MANY_REQUESTS 429 "Too Many Requests",
    HEADER_FIELDS_TOO_LARGE 431 "Request Header Fields Too Large",
    CHECKSUM_MISMATCH 460 "Checksum Mismatch",
    INTERNAL_SERVER_ERROR 500 "Internal Server Error",
    NOT_IMPLEMENTED 501 "Not Implemented",
    BAD_GATEWAY 502 "Bad Gateway",
    SERVICE_UNAVAILABLE 503 "Service Unavailable",
    GATEWAY_TIMEOUT 504 "Gateway Timeout",
    HTTP_VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported",
    INSUFFICIENT_STORAGE 507 "Insufficient Storage",
}

impl Status {
    /// Section 6.4.1 of RFC 9110: some responses have no body, regardless of their fields.
    pub(crate) fn forbids_body(self) -> bool {
        self.0 < 200 || self == Status::NO_CONTENT || self == Status::NOT_MODIFIED
    }
}

/// The status and the fields of a response. Content-Length, Transfer-Encoding, Date and Connection are added by
/// [`Connection`](crate::Connection); do not add them.
pub struct Response {
    status: Status,
    head: Text,
}

impl Response {
    /// A response without fields.
    pub fn new(status: Status) -> Response {
        Response { status, head: Text::new(format_args!("HTTP/1.1 {} {}", status.0, status.reason())) }
    }

    /// Adds a field. A character that may not be in one makes the response unusable:
    /// [`Connection::start`](crate::Connection::start) fails.
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Response {
        self.head.checked_field(name, value);
        self
    }

    pub(crate) fn field(&mut self, name: &str, value: impl fmt::Display) {
        self.head.field(name, value);
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.head.is_bad()
    }

    /// The head's bytes with its empty line.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.head.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_lines_and_an_empty_line() {
        let response = Response::new(Status::NOT_FOUND).header("Content-Type", "text/plain").header("X-Count", 3);
        assert!(!response.is_bad());
        let expected = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nX-Count: 3\r\n\r\n";
        assert_eq!(response.into_bytes(), expected);
    }

    #[test]
    fn a_value_cannot_smuggle_a_line_end() {
        for value in ["a\r\nSet-Cookie: b", "a\nb", "a\0b", "\x7f"] {
            assert!(Response::new(Status::OK).header("X-Name", value).is_bad(), "{value:?}");
        }
        for name in ["", "A B", "A:", "A\r\n"] {
            assert!(Response::new(Status::OK).header(name, "value").is_bad(), "{name:?}");
        }
        assert!(!Response::new(Status::OK).header("X-Name", "tab\tand ümlaut").is_bad());
    }

    #[test]
    fn a_second_mistake_does_not_make_up_for_the_first() {
        for (first, second) in
            [(("A B", "c"), ("D E", "f")), (("A B", "c\nd"), ("E", "f")), (("A", "b\nc"), ("D", "e\nf"))]
        {
            let response = Response::new(Status::OK).header(first.0, first.1).header(second.0, second.1);
            assert!(response.is_bad(), "{first:?} {second:?}");
        }
    }
}
