//! What no correct other side does.

use core::fmt;

/// A violation of a protocol of Xen by the other side. What shared the memory with it must not be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendViolation {
    /// More responses than there are requests without one.
    TooManyResponses {
        /// New responses by its index.
        count: u32,
        /// Requests without a response.
        in_flight: u32,
    },
    /// A ring of bytes holds more than its size.
    RingOverfull {
        /// Bytes by its index.
        bytes: u32,
        /// Size of the ring in bytes.
        size: u32,
    },
    /// A message of xenstore is longer than the protocol allows.
    MessageTooLong {
        /// Its length in bytes.
        bytes: u32,
    },
    /// An answer of xenstore to a request that was not made.
    UnknownAnswer {
        /// The request's number in it.
        id: u32,
    },
    /// Data that lies beyond the end of its page.
    BeyondPage {
        /// Where it ends, in bytes.
        end: u32,
    },
    /// A message of xenstore without the parts that its kind must have.
    Malformed,
}

impl BackendViolation {
    /// The violation in words, without its numbers.
    pub fn as_str(self) -> &'static str {
        match self {
            BackendViolation::TooManyResponses { .. } => "it answered more requests than were in flight",
            BackendViolation::RingOverfull { .. } => "its ring holds more than its size",
            BackendViolation::MessageTooLong { .. } => "it sent a message that is too long",
            BackendViolation::UnknownAnswer { .. } => "it answered a request that was not made",
            BackendViolation::BeyondPage { .. } => "it reports data beyond the end of a page",
            BackendViolation::Malformed => "it sent a message without its parts",
        }
    }
}

impl fmt::Display for BackendViolation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.as_str())?;
        match self {
            BackendViolation::TooManyResponses { count, in_flight } => write!(f, " ({count} of {in_flight})"),
            BackendViolation::RingOverfull { bytes, size } => write!(f, " ({bytes} of {size} bytes)"),
            BackendViolation::MessageTooLong { bytes } => write!(f, " ({bytes} bytes)"),
            BackendViolation::UnknownAnswer { id } => write!(f, " (request {id})"),
            BackendViolation::BeyondPage { end } => write!(f, " (at {end} bytes)"),
            BackendViolation::Malformed => Ok(()),
        }
    }
}

impl core::error::Error for BackendViolation {}
