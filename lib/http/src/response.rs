//! A response's head.

use alloc::vec::Vec;
use core::fmt::{self, Write};

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
    OK 200 "OK",
    CREATED 201 "Created",
    ACCEPTED 202 "Accepted",
    NO_CONTENT 204 "No Content",
    PARTIAL_CONTENT 206 "Partial Content",
    MOVED_PERMANENTLY 301 "Moved Permanently",
    FOUND 302 "Found",
    NOT_MODIFIED 304 "Not Modified",
    BAD_REQUEST 400 "Bad Request",
    FORBIDDEN 403 "Forbidden",
    NOT_FOUND 404 "Not Found",
    METHOD_NOT_ALLOWED 405 "Method Not Allowed",
    REQUEST_TIMEOUT 408 "Request Timeout",
    CONFLICT 409 "Conflict",
    LENGTH_REQUIRED 411 "Length Required",
    PRECONDITION_FAILED 412 "Precondition Failed",
    PAYLOAD_TOO_LARGE 413 "Content Too Large",
    URI_TOO_LONG 414 "URI Too Long",
    UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type",
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable",
    EXPECTATION_FAILED 417 "Expectation Failed",
    PRECONDITION_REQUIRED 428 "Precondition Required",
    TOO_MANY_REQUESTS 429 "Too Many Requests",
    HEADER_FIELDS_TOO_LARGE 431 "Request Header Fields Too Large",
    INTERNAL_SERVER_ERROR 500 "Internal Server Error",
    NOT_IMPLEMENTED 501 "Not Implemented",
    SERVICE_UNAVAILABLE 503 "Service Unavailable",
    HTTP_VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported",
    INSUFFICIENT_STORAGE 507 "Insufficient Storage",
}

impl Status {
    /// Section 6.4.1 of RFC 9110: some responses have no body, regardless of their fields.
    pub(crate) fn forbids_body(self) -> bool {
        self.0 < 200 || self == Status::NO_CONTENT || self == Status::NOT_MODIFIED
    }
}

/// The status and the fields of a response. Content-Length, Date and Connection are added by
/// [`Connection`](crate::Connection); do not add them.
pub struct Response {
    status: Status,
    head: Text,
}

impl Response {
    /// A response without fields.
    pub fn new(status: Status) -> Response {
        let mut head = Text { bytes: Vec::with_capacity(192), in_value: false, bad: false };
        // A `Text` never fails to be written to.
        let _ = write!(head, "HTTP/1.1 {} {}\r\n", status.0, status.reason());
        Response { status, head }
    }

    /// Adds a field. A character that may not be in one makes the response unusable:
    /// [`Connection::start`](crate::Connection::start) fails.
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Response {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        self.head.bad |= name.is_empty() || !name.bytes().all(token);
        self.field(name, value);
        self
    }

    pub(crate) fn field(&mut self, name: &str, value: impl fmt::Display) {
        let _ = self.head.write_str(name);
        let _ = self.head.write_str(": ");
        self.head.in_value = true;
        let _ = write!(self.head, "{value}");
        self.head.in_value = false;
        let _ = self.head.write_str("\r\n");
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.head.bad
    }

    /// The head's bytes with its empty line.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.head.bytes.extend_from_slice(b"\r\n");
        self.head.bytes
    }
}

/// Bytes to format into, which detect control characters in a value.
struct Text {
    bytes: Vec<u8>,
    in_value: bool,
    bad: bool,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.in_value {
            self.bad |= text.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f);
        }
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
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
