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
    /// A message of xenstore without the parts that its kind must have.
    Malformed,
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Lie::TooManyResponses { count, in_flight } => {
                write!(f, "it answered more requests than were in flight ({count} of {in_flight})")
            }
            Lie::RingOverfull { bytes, size } => write!(f, "its ring holds {bytes} bytes of at most {size}"),
            Lie::MessageTooLong { bytes } => write!(f, "it sent a message of {bytes} bytes"),
            Lie::UnknownAnswer { id } => write!(f, "it answered request {id}, which was not made"),
            Lie::Malformed => write!(f, "it sent a message without its parts"),
        }
    }
}

impl core::error::Error for Lie {}
