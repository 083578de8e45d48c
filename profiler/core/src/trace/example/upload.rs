//! One client's upload, as its task goes through it.

use std::collections::VecDeque;

/// Maximum of writes in flight of an upload.
pub(super) const WRITES_MAX: usize = 4;

/// The state of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Before its first bytes.
    Head,
    /// It receives.
    Body,
    /// It waits for its writes.
    Drain,
    /// It waits until no other upload changes the index.
    Index,
    /// The index is being written.
    IndexWrite,
    /// It waits for the disk to have it all.
    Flush,
}

/// The resource that an upload waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// More bytes.
    Bytes,
    /// This request.
    Request(u64),
    /// The index.
    Index,
}

/// An upload and its connection.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) number: u32,
    pub(super) task: u32,
    pub(super) span: u64,
    pub(super) step: Step,
    pub(super) blocks_left: u64,
    /// Batches of segments until a block is full.
    pub(super) batches_left: u64,
    pub(super) has_bytes: bool,
    pub(super) need: Need,
    pub(super) sequence: u32,
    /// Requests in flight, oldest first.
    pub(super) writes: VecDeque<u64>,
}

impl Upload {
    pub(super) fn new(number: u32, task: u32, blocks: u64) -> Upload {
        Upload {
            number,
            task,
            span: u64::from(number) + 1_000,
            step: Step::Head,
            blocks_left: blocks,
            batches_left: 3,
            has_bytes: true,
            need: Need::Bytes,
            sequence: number.wrapping_mul(7_919),
            writes: VecDeque::new(),
        }
    }
}
