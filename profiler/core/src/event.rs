//! The events from a source to the recorder: tracks, mappings, samples that are not unwound yet.

use std::ops::Range;

use crate::arch::{Registers, Width};
use crate::guest::{Guest, GuestId, Mode, Process, ProcessId, SpaceId, Thread, ThreadId};
use crate::linux::waits::Wait;
use crate::model::State;
use crate::program::Program;
use crate::trace::raw::Piece;

/// Code that runs in one address space, with the memory that its stack is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// Whose mappings the addresses belong to.
    pub space: SpaceId,
    /// Whose code it is.
    pub mode: Mode,
    /// How wide its addresses are.
    pub width: Width,
    /// The registers at that moment.
    pub registers: Registers,
    /// Pieces of memory that hold its stack, by their addresses; that at the stack pointer first. A kernel handles
    /// interrupts on a stack of their own, and the one that was left is a second piece. None: only the function at the
    /// instruction pointer is known.
    pub stack: Vec<(u64, Vec<u8>)>,
    /// Where the source has unwound it: the instruction pointer, then the return addresses, innermost first. Registers and
    /// stack are not looked at then.
    pub chain: Vec<u64>,
    /// How far from the sample's time it was sampled: 0 in the same stop, else it was merged by time.
    pub apart_ns: u64,
}

/// One sample of one track, copied while the guest was stopped, not unwound yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawSample {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Which track, as announced by [`Event::Track`].
    pub track: u32,
    /// What the track was doing.
    pub state: State,
    /// The thread of the guest that ran, if the source has it.
    pub thread: Option<ThreadId>,
    /// How far the registers of the first segment are from where the time went.
    pub skid: Skid,
    /// The code that ran, and the code that had called it, innermost first. None: only the state is known.
    pub segments: Vec<Segment>,
    /// The pause of the track for this sample, zero without one.
    pub frozen_ns: u64,
    /// What the kernel of the sampled machine had as the task of that core, not decoded yet. A source that delivers it has set `thread` by it.
    pub task: Option<RawTask>,
    /// What its thread waited for, of a source of threads that wait.
    pub wait: Option<NumberedWait>,
}

/// A wait of a track, by which [`Event::StillWaits`] refers to its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberedWait {
    /// What is waited for.
    pub wait: Wait,
    /// Its number among those of the track.
    pub number: u32,
}

/// A copy of a part of a task of a Linux, made while its core stood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawTask {
    /// Where the whole of it is.
    pub address: u64,
    /// The part.
    pub bytes: Vec<u8>,
}

/// How far the registers of a sample are from where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Skid {
    /// They say where the track was.
    #[default]
    None,
    /// They are at the start of a block of instructions, and the track was in the one before.
    NextBlock {
        /// That one was the end of a function which was called from in front of the instruction pointer.
        has_returned: bool,
        /// An instruction of that block, if the emulator has shown it.
        block: Option<u64>,
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
/// events around them: sources deliver in order of time, and each guest and space before what uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A guest, or its new name. The first of a source is the one that the user selected.
    Guest(Guest),
    /// A process, or more of its programs (`exec`). Their times are `CLOCK_MONOTONIC` here, as those of samples.
    Process(Process),
    /// A thread of such a process, or its new name.
    Thread(Thread),
    /// There is an address space.
    Space {
        /// Its number.
        space: SpaceId,
        /// Whose it is.
        guest: GuestId,
        /// The process of the guest that has it, if there is one: a kernel has none, and a guest that is a process is its own.
        process: Option<ProcessId>,
        /// The one that it is a copy of: a process has forked.
        copy_of: Option<SpaceId>,
    },
    /// An address space is gone: its process has ended, or runs another program.
    SpaceEnd(SpaceId),
    /// There is a track, or it has a new name.
    Track {
        /// Its number; any that the source likes.
        track: u32,
        /// The guest it belongs to.
        guest: GuestId,
        /// The vCPU's index or the thread id.
        id: u64,
        /// "vcpu 0", or a thread's name.
        name: String,
    },
    /// There will be no more samples of a track.
    TrackEnd(u32),
    /// A file is mapped.
    Map {
        /// Where to.
        space: SpaceId,
        /// The file and how.
        mapping: Mapping,
    },
    /// A guest runs a program that the source has looked at.
    Place {
        /// Where to.
        space: SpaceId,
        /// The addresses there.
        range: Range<u64>,
        /// How far above the addresses that it was linked for (modulo 2^64).
        bias: u64,
        /// The program.
        program: Program,
    },
    /// A sample.
    Sample(RawSample),
    /// Samples of tracks that wait where they waited in a sample before: their state, stack and thread are the same.
    StillWaits {
        /// `CLOCK_MONOTONIC` in nanoseconds.
        time_ns: u64,
        /// Each track, and the number of the wait.
        tracks: Vec<(u32, u32)>,
    },
    /// Pauses of tracks without a sample, for example to attach.
    Frozen {
        /// Of each of them, how long, in nanoseconds.
        tracks_ns: Vec<(u32, u64)>,
    },
    /// Something that a reader of the profile should know.
    Warning(String),
    /// A piece of what the guest traces itself.
    Trace(Piece),
}
