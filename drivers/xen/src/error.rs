//! What no correct other side does.

use core::fmt;

/// A violation of a protocol of Xen by the other side. What shared the memory with it must not be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
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

impl Lie {
    /// The lie in words, without its numbers.
    pub fn as_str(self) -> &'static str {
        match self {
            Lie::TooManyResponses { .. } => "it answered more requests than were in flight",
            Lie::RingOverfull { .. } => "its ring holds more than its size",
            Lie::MessageTooLong { .. } => "it sent a message that is too long",
            Lie::UnknownAnswer { .. } => "it answered a request that was not made",
            Lie::BeyondPage { .. } => "it reports data beyond the end of a page",
            Lie::Malformed => "it sent a message without its parts",
        }
    }
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.as_str())?;
        match self {
            Lie::TooManyResponses { count, in_flight } => write!(f, " ({count} of {in_flight})"),
            Lie::RingOverfull { bytes, size } => write!(f, " ({bytes} of {size} bytes)"),
            Lie::MessageTooLong { bytes } => write!(f, " ({bytes} bytes)"),
            Lie::UnknownAnswer { id } => write!(f, " (request {id})"),
            Lie::BeyondPage { end } => write!(f, " (at {end} bytes)"),
            Lie::Malformed => Ok(()),
        }
    }
}

impl core::error::Error for Lie {}
