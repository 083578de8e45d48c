//! A recording is a Perfetto trace file: packets appended one by one, so that a file that was cut is
//! readable up to its last whole packet. `docs/formats/recording.md` describes it byte by byte.

mod changes;
mod error;
mod names;
mod packets;
mod pieces;
mod plain;
mod proto;
mod reader;
mod recorded;
mod writer;

pub use error::{OtherKind, ReadError};
pub use plain::{PlainSettings, write_plain};
pub use reader::{FileSource, NoFiles, open, read};
pub use recorded::{NameSource, Place, RecordedImage, Recording};
pub use writer::{Clocks, ImageId, SampleRecord, Writer};

use crate::model::{StackEnd, State};

/// Version of our part of the format. A reader refuses a file with a larger one.
pub const VERSION: u32 = 1;

/// The largest packet, in bytes. The writer splits what would be larger, the reader refuses it.
pub const PACKET_BYTES_MAX: usize = 16 << 20;

/// Stands for time in the operating system's kernel, as a function and as the file of a mapping.
const KERNEL: &str = "[kernel]";
const KERNEL_PATH: &str = "/[kernel]";

/// Numbers of states in a file.
const STATES: [State; 3] = [State::Running, State::Spinning, State::Idle];

/// Numbers of stack ends in a file, and Perfetto's number for the same (`StackUnwindError`).
const ENDS: [(StackEnd, u32); 5] = [
    (StackEnd::Complete, 1),
    (StackEnd::CopyEnded, 2),
    (StackEnd::TooDeep, 6),
    (StackEnd::NoUnwindInfo, 3),
    (StackEnd::BadAddress, 2),
];

/// The path as Perfetto builds it from its parts: it puts a slash before each.
fn perfetto_path(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}
