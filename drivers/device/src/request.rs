//! Requests to a disk.

use glass_api::{BlockError, Buf};

/// Something to do. The buffer comes back with the completion.
#[derive(Debug)]
pub enum Request {
    /// Fill the buffer from byte `offset` on.
    Read {
        /// A multiple of the sector size.
        offset: u64,
        /// Sole owner of its memory.
        buf: Buf,
    },
    /// Write the buffer at byte `offset`.
    Write {
        /// A multiple of the sector size.
        offset: u64,
        /// May be shared.
        buf: Buf,
    },
    /// Put on stable storage whatever has been completed.
    Flush,
    /// The bytes are not needed any more. Both numbers are multiples of the sector size.
    Discard {
        /// Where they start.
        offset: u64,
        /// How many there are.
        len: usize,
    },
    /// Set the bytes to zero, under the same rules.
    WriteZeroes {
        /// Where they start.
        offset: u64,
        /// How many there are.
        len: usize,
    },
}

impl Request {
    /// The buffer, if it has one.
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Request::Read { buf, .. } | Request::Write { buf, .. } => Some(buf),
            Request::Flush | Request::Discard { .. } | Request::WriteZeroes { .. } => None,
        }
    }
}

/// Names a request until its completion; small and dense, then used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u16);

impl RequestId {
    /// The number of a request.
    pub fn new(number: u16) -> RequestId {
        RequestId(number)
    }

    /// A number below [`BlockDevice::requests_max`](crate::BlockDevice::requests_max), for tables of requests.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitError {
    /// As many requests are in flight as can be: submit again after a completion.
    Full,
    /// It cannot succeed.
    Refused(BlockError),
}
