//! Requests: operations that are in progress.

use crate::datatype::Datatype;
use crate::error::Error;
use crate::group::Group;
use crate::operation::Fold;
use crate::plan::Plan;
use crate::sys::{Base, Memory, Staging};
use alloc::boxed::Box;
use alloc::rc::Rc;

/// What became of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The sender's rank in the communicator; `None` if there was none.
    pub source: Option<usize>,
    /// The message's tag; `None` if there was none.
    pub tag: Option<i32>,
    /// Bytes received.
    pub bytes: u64,
    /// Whether it was cancelled before it began.
    pub is_cancelled: bool,
    /// Why it failed.
    pub error: Option<Error>,
}

impl Status {
    /// The status of an operation that received nothing.
    pub const EMPTY: Status = Status { source: None, tag: None, bytes: 0, is_cancelled: false, error: None };
}

/// The buffer that a packed message is unpacked into.
#[derive(Debug)]
pub(crate) struct Unpack {
    pub base: Base,
    pub count: usize,
    pub datatype: Rc<Datatype>,
}

/// What kind of operation it is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// To another rank, or to this one.
    Send { context: u32, tag: i32, is_rendezvous: bool, peer_request: u32 },
    /// From any sender that matches.
    Receive,
    /// Several, in an order.
    Plan(Option<Box<Plan>>),
}

/// An operation in progress.
#[derive(Debug)]
pub(crate) struct Request {
    pub kind: Kind,
    pub memory: Memory,
    pub group: Rc<Group>,
    pub status: Status,
    pub is_done: bool,
    /// No call waits for it: it goes when it is done.
    pub is_released: bool,
    /// Bytes sent, or received.
    pub offset: usize,
    /// Received bytes are combined into `memory` by this instead of written.
    pub fold: Option<Fold>,
    pub unpack: Option<Unpack>,
    /// The message that was matched to it, of another rank: that rank, and the slot.
    pub message: Option<(u32, u32)>,
    /// Memory of ours that it works in.
    pub staging: Option<Staging>,
}

impl Request {
    pub fn new(kind: Kind, memory: Memory, group: Rc<Group>) -> Request {
        let status = Status::EMPTY;
        let (is_done, is_released, offset) = (false, false, 0);
        let (fold, unpack, message, staging) = (None, None, None, None);
        Request { kind, memory, group, status, is_done, is_released, offset, fold, unpack, message, staging }
    }

    /// A message of another rank, in this slot, was matched to it.
    pub fn begin_from(&mut self, source: usize, position: u32, tag: i32, total: u64) {
        self.message = Some((source as u32, position));
        self.begin(source, tag, total);
    }

    /// A message was matched to it.
    pub fn begin(&mut self, source: usize, tag: i32, total: u64) {
        self.status.source = self.group.rank_of(source);
        self.status.tag = Some(tag);
        self.status.bytes = total.min(self.memory.bytes() as u64);
        if total > self.memory.bytes() as u64 {
            self.status.error = Some(Error::Truncate);
        }
    }

    /// A piece of the message arrived. What does not fit is dropped.
    pub fn accept(&mut self, offset: usize, bytes: &[u8]) {
        match self.fold {
            Some(fold) if offset + bytes.len() <= self.memory.bytes() => {
                fold(bytes, self.memory.part(offset, bytes.len()).as_mut_slice());
            }
            _ => {
                self.memory.write(offset, bytes);
            }
        }
        self.offset += bytes.len();
    }

    /// The last piece arrived, or left.
    pub fn finish(&mut self) {
        self.is_done = true;
        if let Some(unpack) = self.unpack.take() {
            let received = self.memory.part(0, self.status.bytes as usize);
            unpack.datatype.unpack(received.as_slice(), unpack.base, unpack.count);
        }
        self.staging = None;
        self.memory = Memory::EMPTY;
    }
}
