//! What a guest tells the recorder: tracks, mappings, samples that are not unwound yet.

use std::ops::Range;

use crate::model::State;
use crate::program::Program;
use crate::trace::raw::Piece;

/// The registers that unwinding needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer, if the code keeps one.
    pub rbp: u64,
}

impl Registers {
    /// The same as addresses in memory, where they count from the bases of the code's and the stack's segment.
    #[must_use]
    pub fn in_segments(self, code: u64, stack: u64) -> Registers {
        let Registers { rip, rsp, rbp } = self;
        Registers { rip: rip.wrapping_add(code), rsp: rsp.wrapping_add(stack), rbp: rbp.wrapping_add(stack) }
    }
}

/// One look at one track, copied while the guest stood still, not unwound yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawSample {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Which track, as announced by [`Event::Track`].
    pub track: u32,
    /// Whose mappings the addresses belong to.
    pub process: u32,
    /// The registers at that moment.
    pub registers: Registers,
    /// Memory from `registers.rsp` upwards.
    pub stack: Vec<u8>,
    /// Memory of the stack that was left for this one, and its address: a kernel handles interrupts on
    /// a stack of their own.
    pub left_stack: Option<(u64, Vec<u8>)>,
    /// Where the track really was, if that was code with a stack of its own (a service in ring 0)
    /// which the code at `registers` had called.
    pub inner: Option<u64>,
    /// How far the registers are from where the time went.
    pub skid: Skid,
    /// What the track was doing.
    pub state: State,
    /// The operating system's kernel was running on behalf of the track.
    pub in_kernel: bool,
    /// How long the guest stood still for this sample, zero if it did not.
    pub pause_ns: u64,
}

/// How far the registers of a sample are from where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Skid {
    /// They say where the track was.
    #[default]
    None,
    /// They stand at the begin of a block of instructions, and the track was in the one before.
    NextBlock {
        /// That one was the end of a function which was called from in front of the instruction pointer.
        has_returned: bool,
    },
}

/// A file in an address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Path of the file.
    pub path: String,
    /// How file and memory relate.
    pub placement: Placement,
    /// Which file it is, whatever has its path by now.
    pub file: Option<FileIdentity>,
}

/// A file of a machine, as long as it exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Its number there.
    pub inode: u64,
}

/// How the addresses of an image relate to the addresses at which it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// `start` is where this offset of the file is mapped.
    FileOffset(u64),
    /// The image runs at the addresses that it was linked for.
    AsLinked,
    /// The image runs this far above the addresses that it was linked for (modulo 2^64).
    Biased(u64),
}

/// Something that happened in or to a guest. Times of events that carry none are those of the
/// events around them: sources deliver in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// There is a track, or it has a new name.
    Track {
        /// Its index; the first use defines it.
        track: u32,
        /// The vCPU's index or the thread id.
        id: u64,
        /// The process it belongs to.
        process: u32,
        /// "vcpu 0", or a thread's name.
        name: String,
    },
    /// A process has mapped a file.
    Map {
        /// The process.
        process: u32,
        /// The file and where.
        mapping: Mapping,
    },
    /// A process or guest runs a program that the source has looked at.
    Place {
        /// The process.
        process: u32,
        /// Where it runs.
        range: Range<u64>,
        /// How far above the addresses that it was linked for (modulo 2^64).
        bias: u64,
        /// The program.
        program: Program,
    },
    /// A process is a copy of another.
    Fork {
        /// The copy.
        process: u32,
        /// The original.
        parent: u32,
    },
    /// A process runs another program: its mappings are gone.
    Exec {
        /// The process.
        process: u32,
    },
    /// A sample.
    Sample(RawSample),
    /// Something that a reader of the profile should know.
    Warning(String),
    /// A piece of what the guest traces itself.
    Trace(Piece),
}
