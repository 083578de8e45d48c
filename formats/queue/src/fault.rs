//! Why a superblock or an index slot cannot be used.

use crate::{VERSION_1, VERSION_3};
use core::fmt;

/// Why a superblock or an index slot cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It does not start with the magic bytes.
    Magic,
    /// Another version of the format.
    Version(u32),
    /// The checksum does not match the bytes.
    Checksum {
        /// In the header.
        stored: u64,
        /// Of the bytes.
        computed: u64,
    },
    /// The superblock names a state that does not exist.
    State(u32),
    /// The superblock of version 1 or 2 describes an invalid layout.
    Geometry {
        /// Blocks in use.
        total_blocks: u64,
        /// Blocks of a slot.
        slot_blocks: u32,
    },
    /// The superblock of version 3 describes an invalid layout.
    Layout {
        /// Blocks in use.
        total_blocks: u64,
        /// First block of the index.
        index_start: u32,
        /// Blocks of its log.
        log_blocks: u32,
        /// Pages that it has room for.
        pages_max: u32,
    },
    /// A page of the index cannot be used.
    Page {
        /// Its number.
        page: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The pages of the index are not those that its checkpoint was written with: the disk has lost a write.
    Pages,
    /// The log ends after this commit, and there are later ones.
    Log {
        /// The last commit that can be read.
        sequence: u64,
    },
    /// More entries than a slot has room for.
    Count {
        /// In the header.
        count: u32,
        /// The limit.
        count_max: u32,
    },
    /// The sequence number or the next id is larger than a queue can have counted.
    Number(u64),
    /// The sequence number belongs into the other slot.
    Sequence(u64),
    /// An entry contradicts the layout, another entry or itself.
    Entry {
        /// Place in the index, from 0.
        position: usize,
        /// Its id.
        id: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry of an upload contradicts the layout, another entry or itself.
    Upload {
        /// Place in the index, from 0.
        position: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Fault::Magic => write!(f, "it does not start with the magic bytes"),
            Fault::Version(version) => {
                write!(f, "it has version {version}, and this program reads {VERSION_1} to {VERSION_3}")
            }
            Fault::Checksum { stored, computed } => {
                write!(f, "its checksum is {stored:016x}, but its bytes have {computed:016x}")
            }
            Fault::State(state) => write!(f, "its state is {state}, which does not exist"),
            Fault::Geometry { total_blocks, slot_blocks } => {
                write!(f, "it describes {total_blocks} blocks with slots of {slot_blocks}, which is not a valid layout")
            }
            Fault::Layout { total_blocks, index_start, log_blocks, pages_max } => write!(
                f,
                "it describes {total_blocks} blocks with an index from block {index_start} on, of {pages_max} pages and a log of {log_blocks} \
                 blocks, which is not a valid layout"
            ),
            Fault::Page { page, what } => write!(f, "page {page} of the index: {what}"),
            Fault::Pages => {
                write!(f, "the pages of the index are not those of its checkpoint: a write of the disk was lost")
            }
            Fault::Log { sequence } => {
                write!(f, "its log ends after commit {sequence}, and the index has later ones: the disk is damaged")
            }
            Fault::Count { count, count_max } => {
                write!(f, "it has {count} items, and there is room for {count_max}")
            }
            Fault::Number(number) => write!(f, "it counts up to {number}, further than any queue"),
            Fault::Sequence(sequence) => write!(f, "its sequence {sequence} belongs into the other slot"),
            Fault::Entry { position, id, what } => write!(f, "entry {position} (item {id}): {what}"),
            Fault::Upload { position, what } => write!(f, "entry {position} (an upload): {what}"),
        }
    }
}

impl core::error::Error for Fault {}
