//! Fields of a message that was received.

use crate::{HEADERS_MAX, HttpError};
use alloc::string::String;
use alloc::vec::Vec;

/// Names and values, in the order in which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    /// The value of the first field with this name (case-insensitive), trimmed.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All of them, with names as they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        self.0.push((name.into(), value.to_vec()));
    }

    /// Adds the field of a line with its line end.
    pub(crate) fn push_line(&mut self, line: &[u8]) -> Result<(), HttpError> {
        let mut parsed = [httparse::EMPTY_HEADER; 1];
        // A line that starts with white space would continue the one before (RFC 9112, section 5.2).
        match httparse::parse_headers(&[line, b"\r\n"].concat(), &mut parsed) {
            Ok(httparse::Status::Complete((_, [field]))) if self.0.len() < HEADERS_MAX => {
                self.push(field.name, field.value);
                Ok(())
            }
            Ok(_) if self.0.len() >= HEADERS_MAX => Err(HttpError::TooManyHeaders(HEADERS_MAX)),
            _ => Err(HttpError::Bad("what follows a chunked body is no header field")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_field_or_refused() {
        let mut fields = Fields::default();
        fields.push_line(b"Digest: a b \r\n").unwrap();
        fields.push_line(b"x:\r\n").unwrap();
        assert_eq!((fields.get("digest"), fields.get("X"), fields.get("y")), (Some(&b"a b"[..]), Some(&b""[..]), None));
        for line in ["no colon\r\n", ": no name\r\n", " a: b\r\n", "a b: c\r\n", "a: \0\r\n", "\r\n", "a : b\r\n"] {
            assert!(fields.push_line(line.as_bytes()).is_err(), "{line:?}");
        }
        for _ in 2..HEADERS_MAX {
            fields.push_line(b"A: b\r\n").unwrap();
        }
        assert_eq!(fields.push_line(b"A: b\r\n"), Err(HttpError::TooManyHeaders(HEADERS_MAX)));
    }
}
