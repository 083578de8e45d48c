//! The text of a head: a first line, and fields in which no line end can be smuggled.

use alloc::vec::Vec;
use core::fmt::{self, Write};

/// A head that grows.
pub(crate) struct Text {
    bytes: Vec<u8>,
    in_value: bool,
    bad: bool,
}

/// Whether a text is a token, as names of fields and methods are (RFC 9110, section 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

impl Text {
    /// One with a first line, to which the line end is added.
    pub(crate) fn new(line: impl fmt::Display) -> Text {
        let mut text = Text { bytes: Vec::with_capacity(192), in_value: false, bad: false };
        // A `Text` never fails to be written to.
        let _ = write!(text, "{line}\r\n");
        text
    }

    /// Adds a field whose name is ours.
    pub(crate) fn field(&mut self, name: &str, value: impl fmt::Display) {
        let _ = self.write_str(name);
        let _ = self.write_str(": ");
        self.in_value = true;
        let _ = write!(self, "{value}");
        self.in_value = false;
        let _ = self.write_str("\r\n");
    }

    /// Adds a field of a service, which may not be one.
    pub(crate) fn checked_field(&mut self, name: &str, value: impl fmt::Display) {
        self.bad |= !is_token(name);
        self.field(name, value);
    }

    /// Whether a name or a value has a character that may not be in one.
    pub(crate) fn is_bad(&self) -> bool {
        self.bad
    }

    /// The bytes with the empty line at the end.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes
    }
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
