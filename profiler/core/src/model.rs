//! A profile in memory: samples, their stacks with names, and the profiler overhead.
//!
//! Tables are flat and refer to each other by index, so a million samples stay cheap: reports
//! aggregate over [`Profile::samples`] and look names up last.

use std::collections::BTreeSet;

use crate::arch::Width;
use crate::guest::{Guest, Mode, Process, Thread, ThreadId};
use crate::kind::Kind;
use crate::layer::{Layer, View};
pub use crate::stack_end::StackEnd;
pub use crate::state::{State, StateCounts};

/// Frames of all stacks of a profile together, after inlined functions are spelt out. Keeps a small hostile file
/// from becoming a large profile; the deepest real recordings have a hundredth of it.
pub(crate) const STACK_ENTRIES_MAX: usize = 32 << 20;

/// The contents of one recording.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// How it was recorded.
    pub origin: Origin,
    /// The profiler overhead, and losses.
    pub cost: Cost,
    /// The guests; the first is the one that the user selected.
    pub guests: Vec<Guest>,
    /// Processes of the guests, in the order of their first packet; [`SegmentOf::process`] is an index.
    pub processes: Vec<Process>,
    /// Their threads; [`Sample::thread`] is an index.
    pub threads: Vec<Thread>,
    /// One for each vCPU or thread; [`Sample::track`] is an index.
    pub tracks: Vec<Track>,
    /// Distinct frames; [`Stack::frames`] holds indices.
    pub frames: Vec<Frame>,
    /// Distinct stacks; [`Sample::stack`] is an index.
    pub stacks: Vec<Stack>,
    /// Distinct lists of segments, innermost first; [`Sample::segments`] is an index.
    pub segments: Vec<Vec<SegmentOf>>,
    /// In order of time.
    pub samples: Vec<Sample>,
    /// Warnings, one sentence each: a cut file, a
    /// symbol file of another build, many broken stacks.
    pub warnings: Vec<String>,
    /// How many frames of a guest's processes have their names from where: a phrase for display, and their number.
    pub named: Vec<(String, u64)>,
    /// Of a recording with a side of the host that is in a [view](crate::view): that side. `None` as it was recorded, and of others.
    pub host: Option<HostSide>,
    /// The processes or threads that it was restricted to, and what was left out. `None` as it was recorded.
    pub only: Option<Only>,
}

/// What a profile was [restricted](crate::threads::Wanted::keep) to, in samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Only {
    /// What was wanted, for display.
    pub wanted: String,
    /// The processes whose threads are left, for display.
    pub processes: Vec<String>,
    /// Numbers of the guests' threads that are left.
    pub threads: BTreeSet<ThreadId>,
    /// Indices into [`Profile::tracks`] of the threads of this machine that are left.
    pub tracks: BTreeSet<u32>,
    /// Samples that are left.
    pub kept: u64,
    /// Left out: of other processes or threads.
    pub others: u64,
    /// Left out: of the idle task.
    pub idle: u64,
    /// Left out: without a known process.
    pub unknown: u64,
}

/// The backend of a recording whose samples are page faults of a copy of a VM.
pub const PAGE_FAULTS: &str =
    "page faults: a sample is the first read of a page of 4 KiB, or the first write to it; the copy stood for each";
/// Bytes of such a page.
pub const FAULT_BYTES: u64 = 4096;

/// The origin of a recording.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The guest, for a title: "upload-queue (VM, KVM)".
    pub guest: String,
    /// The backend: "gdbstub", "perf_event_open".
    pub backend: String,
    /// Path of the symbol file, empty if there was none.
    pub symbols: String,
    /// Host name of the machine.
    pub host: String,
    /// Start in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// From the first to the last moment of sampling.
    pub duration_ns: u64,
    /// Requested samples per second and track.
    pub rate_hz: u32,
    /// Version of the program that recorded.
    pub recorder: String,
}

impl Origin {
    /// Whether a sample is a page fault, and no moment in time.
    #[must_use]
    pub fn has_page_faults(&self) -> bool {
        self.backend == PAGE_FAULTS
    }
}

/// The profiler overhead, and losses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cost {
    /// Expected samples: those that were collected, and those that were lost.
    pub samples_wanted: u64,
    /// Collected samples: those in the recording.
    pub samples_taken: u64,
    /// Samples that were expected and are not in the recording.
    pub samples_lost: u64,
    /// The losses by kind, where the recorder counts them by kind.
    pub losses: Losses,
    /// Of the collected samples, those that were collected more than half a period after their time.
    pub samples_late: u64,
    /// Stacks that do not reach their thread's start.
    pub stacks_broken: u64,
    /// Pauses of the guest for a sample; zeros if the backend does not stop it.
    pub pause: Distribution,
    /// CPU time of the recording process, user and system.
    pub profiler_cpu_ns: u64,
    /// The part of it while samples were taken; the rest is for attaching, and for names at the end. 0 if it is not known.
    pub sampling_cpu_ns: u64,
}

/// Losses by kind. The first five are expected samples, and their sum is [`Cost::samples_lost`] in recordings from version 3 on; the
/// others are changes of address spaces, which samples need for their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// The kernel's ring buffer was full.
    pub ring_full: u64,
    /// The kernel throttled the sampler.
    pub throttled: u64,
    /// Their time had passed before the sample in front of them was done.
    pub overdue: u64,
    /// The track could not be stopped or read in time.
    pub not_stopped: u64,
    /// The recorder's own queue was full.
    pub queue_full: u64,
    /// Mappings.
    pub maps: u64,
    /// Starts of processes and threads, and `exec`s.
    pub forks: u64,
    /// Records of the kernel that were no samples, and whose kind is unknown.
    pub unknown: u64,
}

impl Losses {
    /// The samples among them.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let kinds = [self.ring_full, self.throttled, self.overdue, self.not_stopped, self.queue_full];
        kinds.into_iter().fold(0, u64::saturating_add)
    }

    /// The changes of address spaces among them.
    #[must_use]
    pub fn changes(&self) -> u64 {
        [self.maps, self.forks, self.unknown].into_iter().fold(0, u64::saturating_add)
    }
}

impl std::ops::Add for Losses {
    type Output = Losses;

    /// Those of two sources.
    fn add(self, other: Losses) -> Losses {
        let add = |one: u64, two: u64| one.saturating_add(two);
        Losses {
            ring_full: add(self.ring_full, other.ring_full),
            throttled: add(self.throttled, other.throttled),
            overdue: add(self.overdue, other.overdue),
            not_stopped: add(self.not_stopped, other.not_stopped),
            queue_full: add(self.queue_full, other.queue_full),
            maps: add(self.maps, other.maps),
            forks: add(self.forks, other.forks),
            unknown: add(self.unknown, other.unknown),
        }
    }
}

/// A summary of many durations in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many there were.
    pub count: u64,
    /// Half are at most this.
    pub median_ns: u64,
    /// 99 % are at most this.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The total.
    pub sum_ns: u64,
}

impl Distribution {
    /// The exact summary of these durations; sorts them. A quantile is the smallest duration that at least that share
    /// of them does not exceed.
    pub fn of(durations: &mut [u64]) -> Distribution {
        durations.sort_unstable();
        let count = durations.len();
        let at =
            |percent: usize| durations.get((count * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
        Distribution {
            count: count as u64,
            median_ns: at(50),
            p99_ns: at(99),
            max_ns: at(100),
            sum_ns: durations.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns)),
        }
    }
}

/// The side of the host of a profile that is in a view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostSide {
    /// The view.
    pub view: View,
    /// Of samples with segments that were merged by time: how far apart they were sampled.
    pub apart: Distribution,
    /// Samples by why their stacks end, as they were recorded: the numbers of [`StackEnd::ALL`].
    pub ends: [u64; StackEnd::ALL.len()],
}

/// A vCPU or thread that is sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Track {
    /// "vcpu 0", or a thread's name.
    pub name: String,
    /// The vCPU's index or the thread id.
    pub id: u64,
    /// Index into [`Profile::guests`].
    pub guest: u32,
    /// The number and total duration of its pauses.
    pub frozen: Frozen,
}

/// The pauses of a track.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Their number.
    pub count: u64,
    /// Their total duration in nanoseconds.
    pub sum_ns: u64,
}

/// The time that a guest loses for each nanosecond of a pause: leaving and re-entering the guest's code, and
/// cold caches, take as long again. Measured by the progress of a guest
/// that computes (2026-11-22): at 1000 stops a second it lost 6.6 % with pauses of 3.1 % on a quiet host and 17 to 20 %
/// with pauses of 7 to 9 % on a busy one by KVM, and 1.4 to 2.6 times the pauses through QEMU's gdbstub.
pub const LOST_PER_FROZEN: u64 = 2;

impl Frozen {
    /// An estimate of the time that the guest has lost on this track, in nanoseconds.
    #[must_use]
    pub fn estimated_loss_ns(&self) -> u64 {
        self.sum_ns.saturating_mul(LOST_PER_FROZEN)
    }

    /// Counts one more pause.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
}

/// One function in a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled, or `0x...` without a symbol.
    pub function: String,
    /// Source file from the debug information.
    pub file: Option<String>,
    /// Line in `file`, from 1 on.
    pub line: Option<u32>,
    /// The line at which the function starts, from 1 on.
    pub start_line: Option<u32>,
    /// File name of the program or library, for example "upload-queue" or "libc.so.6".
    pub image: String,
    /// The compiler inlined this function into its caller.
    pub inlined: bool,
    /// In a [view](crate::view) of host and guest: whose code it is.
    pub layer: Option<Layer>,
    /// In such a view: an entry of the report's own, not code.
    pub entry: Option<Kind>,
    /// In such a view, of a segment that was merged by time: how far from the rest it was sampled at most, in nanoseconds.
    pub apart_ns: u64,
}

/// A call chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Indices into [`Profile::frames`], outermost caller first.
    pub frames: Vec<u32>,
    /// Why there are no more callers.
    pub end: StackEnd,
}

/// One sample of one track.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Index into [`Profile::tracks`].
    pub track: u32,
    /// Index into [`Profile::stacks`].
    pub stack: u32,
    /// State of the track.
    pub state: State,
    /// The mode of the code.
    pub mode: Mode,
    /// Width of the addresses of that code.
    pub width: Width,
    /// The thread of the guest that ran, if it is known: an index into [`Profile::threads`].
    pub thread: Option<u32>,
    /// The segments of the stack, where `mode` and `width` do not describe all of it: an index into
    /// [`Profile::segments`].
    pub segments: Option<u32>,
}

/// A part of a sample's stack in one address space and one mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SegmentOf {
    /// Index into [`Profile::guests`]. Of a VM's sample this may be its VMM, a process of this machine: [`Mode::User`] and
    /// [`Mode::Kernel`] are then the host's.
    pub guest: u32,
    /// Index into [`Profile::processes`], if the space is a process's.
    pub process: Option<u32>,
    /// The mode of the code.
    pub mode: Mode,
    /// Width of the addresses of that code.
    pub width: Width,
    /// Its number of addresses in the stack, after those of the segments before; inlined functions are not counted.
    pub addresses: u32,
    /// Why it ends.
    pub end: StackEnd,
    /// How far from the sample's time it was sampled: 0 in the same stop, else it was merged by time.
    pub apart_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred durations the 99th is the p99, and not the longest (page and text disagreed, 2026-11-22).
    #[test]
    fn quantiles_are_ranks() {
        let of = |count: u64| {
            let mut durations: Vec<u64> = (1..=count).rev().collect();
            let it = Distribution::of(&mut durations);
            (it.count, it.median_ns, it.p99_ns, it.max_ns, it.sum_ns)
        };
        assert_eq!(of(100), (100, 50, 99, 100, 5050));
        assert_eq!(of(101), (101, 51, 100, 101, 5151));
        assert_eq!(of(1), (1, 1, 1, 1, 1));
        assert_eq!(of(2), (2, 1, 2, 2, 3));
        assert_eq!(of(0), (0, 0, 0, 0, 0));
    }
}
