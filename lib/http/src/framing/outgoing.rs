//! What is sent: how long a body is, and bytes that wait.

use crate::HttpError;
use crate::framing::text::Text;
use alloc::vec::Vec;

/// How long a body is that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// So many bytes are to come; 0 is the end.
    Length(u64),
    /// Chunks, until the last one.
    Chunked,
    /// It ends with the connection, as in HTTP/1.0.
    UntilClose,
}

impl Outgoing {
    /// The body without the next bytes; an error if they are more than its length.
    pub(crate) fn without(self, bytes: usize) -> Result<Outgoing, HttpError> {
        match self {
            Outgoing::Length(left) => left.checked_sub(bytes as u64).map(Outgoing::Length),
            _ => Some(self),
        }
        .ok_or(HttpError::WrongLength { missing_bytes: 0 })
    }

    pub(crate) fn is_over(self) -> bool {
        self == Outgoing::Length(0)
    }

    /// The error of a body that ends here.
    pub(crate) fn cut(self) -> HttpError {
        match self {
            Outgoing::Length(missing_bytes) => HttpError::WrongLength { missing_bytes },
            Outgoing::Chunked | Outgoing::UntilClose => HttpError::NotEnded,
        }
    }
}

/// Fields that may not follow a body (RFC 9110, section 6.5.1): they say how to read the message.
const NO_TRAILERS: [&str; 9] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
];

/// The last chunk, with the fields after it.
pub(crate) fn last_chunk(trailers: &[(&str, &str)]) -> Result<Vec<u8>, HttpError> {
    let mut text = Text::new("0");
    for (name, value) in trailers {
        if NO_TRAILERS.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden)) {
            return Err(HttpError::BadResponseHeader);
        }
        text.checked_field(name, value);
    }
    if text.is_bad() { Err(HttpError::BadResponseHeader) } else { Ok(text.into_bytes()) }
}

/// Bytes that wait to be sent.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is to be sent next.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// So many bytes of [`Output::unsent`] were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds a whole head, without a copy if nothing waits.
    pub(crate) fn push_head(&mut self, head: Vec<u8>) {
        if self.bytes.is_empty() { self.bytes = head } else { self.push(&head) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_its_length() {
        assert_eq!(Outgoing::Length(5).without(3), Ok(Outgoing::Length(2)));
        assert_eq!(Outgoing::Length(5).without(6), Err(HttpError::WrongLength { missing_bytes: 0 }));
        assert_eq!(Outgoing::Chunked.without(usize::MAX), Ok(Outgoing::Chunked));
        assert!(Outgoing::Length(0).is_over() && !Outgoing::Chunked.is_over() && !Outgoing::UntilClose.is_over());
    }

    #[test]
    fn fields_after_a_body_say_nothing_about_how_to_read_it() {
        assert_eq!(last_chunk(&[]).unwrap(), b"0\r\n\r\n");
        assert_eq!(last_chunk(&[("Digest", "abc"), ("X", "")]).unwrap(), b"0\r\nDigest: abc\r\nX: \r\n\r\n");
        for field in [("Content-Length", "5"), ("transfer-encoding", "chunked"), ("A B", "c"), ("A", "b\r\nC: d")] {
            assert_eq!(last_chunk(&[field]), Err(HttpError::BadResponseHeader), "{field:?}");
        }
    }
}
