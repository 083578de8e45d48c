//! A recording is a Perfetto trace file: packets appended one by one, so that a file that was cut is
//! readable up to its last whole packet. `docs/formats/recording.md` describes it byte by byte.

mod changes;
mod error;
mod names;
mod packets;
mod pieces;
mod plain;
mod plain_view;
mod processes;
mod proto;
mod reader;
mod recorded;
mod version_1;
mod writer;

pub use error::{OtherKind, ReadError};
pub use plain::{PlainSettings, write_plain};
pub use reader::{open, read};
pub use recorded::{NameSource, Place, RecordedImage, Recording};
pub(crate) use writer::is_plain;
pub use writer::{Clocks, ImageId, SampleRecord, TrackRecord, Writer};

use crate::arch::Width;
use crate::guest::Mode;
use crate::model::StackEnd;

/// Version of our part of the format. A reader refuses a file with a larger one.
pub const VERSION: u32 = 3;

/// The largest packet, in bytes. The writer splits what would be larger, the reader refuses it.
pub const PACKET_BYTES_MAX: usize = 16 << 20;

/// Numbers of modes and widths in a file.
const MODES: [Mode; 4] = [Mode::User, Mode::Kernel, Mode::Hypervisor, Mode::Firmware];
const WIDTHS: [Width; 3] = [Width::Bits64, Width::Bits32, Width::Bits16];

/// Numbers of stack ends in a file, and Perfetto's number for the same (`StackUnwindError`).
const ENDS: [(StackEnd, u32); 8] = [
    (StackEnd::Complete, 1),
    (StackEnd::CopyEnded, 2),
    (StackEnd::TooDeep, 6),
    (StackEnd::NoUnwindInfo, 3),
    (StackEnd::BadAddress, 2),
    (StackEnd::NotLongMode, 4),
    (StackEnd::RuleFailed, 3),
    (StackEnd::OtherStack, 2),
];

/// The number of an item of one of these lists.
fn number<T: PartialEq>(list: &[T], item: &T) -> u32 {
    list.iter().position(|known| known == item).unwrap_or(0) as u32
}

/// The path as Perfetto builds it from its parts: it puts a slash before each.
fn perfetto_path(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}
