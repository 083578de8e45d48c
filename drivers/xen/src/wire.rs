//! Messages of xenstore (`xen/include/public/io/xs_wire.h`): a header of four words, then at most 4 KiB.

use crate::error::BackendViolation;
use alloc::string::String;
use alloc::vec::Vec;

/// Length of a header.
pub const HEADER_BYTES: usize = 16;
/// Longest payload (`XENSTORE_PAYLOAD_MAX`).
pub const PAYLOAD_BYTES_MAX: usize = 4096;

/// The kinds of messages that are used here (`enum xsd_sockmsg_type`).
pub mod kind {
    pub const DIRECTORY: u32 = 1;
    pub const READ: u32 = 2;
    pub const WATCH: u32 = 4;
    pub const UNWATCH: u32 = 5;
    pub const TRANSACTION_START: u32 = 6;
    pub const TRANSACTION_END: u32 = 7;
    pub const WRITE: u32 = 11;
    pub const RM: u32 = 13;
    pub const WATCH_EVENT: u32 = 15;
    pub const ERROR: u32 = 16;
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: u32,
    pub id: u32,
    pub transaction: u32,
    pub bytes: u32,
}

impl Header {
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut encoded = [0; HEADER_BYTES];
        let words = [self.kind, self.id, self.transaction, self.bytes];
        encoded.chunks_exact_mut(4).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        encoded
    }

    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Header, BackendViolation> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header { kind: word(0), id: word(4), transaction: word(8), bytes: word(12) };
        match header.bytes as usize <= PAYLOAD_BYTES_MAX {
            true => Ok(header),
            false => Err(BackendViolation::MessageTooLong { bytes: header.bytes }),
        }
    }
}

/// The payload of a request: each part with a NUL after it.
pub fn strings(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().chain([0])).collect()
}

/// The parts of a payload, each of which ends with a NUL.
pub fn split(payload: &[u8]) -> Result<Vec<String>, BackendViolation> {
    let Some((last, rest)) = payload.split_last() else { return Ok(Vec::new()) };
    if *last != 0 {
        return Err(BackendViolation::Malformed);
    }
    rest.split(|&byte| byte == 0).map(text).collect()
}

/// The payload as text.
pub fn text(payload: &[u8]) -> Result<String, BackendViolation> {
    core::str::from_utf8(payload).map(String::from).map_err(|_| BackendViolation::Malformed)
}
