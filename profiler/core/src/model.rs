//! A profile in memory: samples, their stacks with names, and what taking them cost.
//!
//! Tables are flat and refer to each other by index, so a million samples stay cheap: reports
//! aggregate over [`Profile::samples`] and look names up last.

use crate::arch::Width;
use crate::guest::{Guest, Mode};

/// Everything known about one recording.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Where and how it was taken.
    pub origin: Origin,
    /// What taking it cost, and what was missed.
    pub cost: Cost,
    /// What was sampled; the first is what was asked for.
    pub guests: Vec<Guest>,
    /// One for each vCPU or thread; [`Sample::track`] is an index.
    pub tracks: Vec<Track>,
    /// Distinct frames; [`Stack::frames`] holds indices.
    pub frames: Vec<Frame>,
    /// Distinct stacks; [`Sample::stack`] is an index.
    pub stacks: Vec<Stack>,
    /// In order of time.
    pub samples: Vec<Sample>,
    /// What a reader should know before trusting the profile, one sentence each: a cut file, a
    /// symbol file of another build, many broken stacks.
    pub warnings: Vec<String>,
}

/// Where and how a recording was taken.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// What was looked at, for a title: "upload-queue (VM, KVM)".
    pub guest: String,
    /// The mechanism: "gdbstub", "perf_event_open".
    pub backend: String,
    /// Path of the symbol file, empty if there was none.
    pub symbols: String,
    /// Host name of the machine.
    pub host: String,
    /// Start in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// From the first to the last moment of sampling.
    pub duration_ns: u64,
    /// Samples asked for per second and track.
    pub rate_hz: u32,
    /// Version of the program that recorded.
    pub recorder: String,
}

/// The profiler's own cost and losses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cost {
    /// Samples that the rate and duration call for.
    pub samples_wanted: u64,
    /// Samples that were taken.
    pub samples_taken: u64,
    /// Samples that were wanted and not taken, or taken and dropped.
    pub samples_lost: u64,
    /// Samples taken more than half a period after their time.
    pub samples_late: u64,
    /// Stacks that do not reach their thread's start.
    pub stacks_broken: u64,
    /// How long the guest stood still for a sample; zeros if the mechanism does not stop it.
    pub pause: Distribution,
    /// CPU time of the recording process, user and system.
    pub profiler_cpu_ns: u64,
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
    /// All together.
    pub sum_ns: u64,
}

impl Distribution {
    /// The summary of these durations, exactly; sorts them. A quantile is the smallest of them that at least that share
    /// does not exceed.
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

/// A line of execution that is sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Track {
    /// "vcpu 0", or a thread's name.
    pub name: String,
    /// The vCPU's index or the thread id.
    pub id: u64,
    /// Index into [`Profile::guests`].
    pub guest: u32,
    /// How often it was stopped, and how long it stood still in all.
    pub frozen: Frozen,
}

/// How long a track stood still to be looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frozen {
    /// How often.
    pub count: u64,
    /// In all, in nanoseconds.
    pub sum_ns: u64,
}

/// What a guest loses to being looked at, for each nanosecond that it stands still: the way out of the guest's code and
/// back into it, and caches that others have used meanwhile, take as long again. Measured by the progress of a guest
/// that computes (2026-11-22): at 1000 stops a second it lost 6.6 % with pauses of 3.1 % on a quiet host and 17 to 20 %
/// with pauses of 7 to 9 % on a busy one by KVM, and 1.4 to 2.6 times the pauses through QEMU's gdbstub.
pub const LOST_PER_FROZEN: u64 = 2;

impl Frozen {
    /// About what the guest has lost of this track, in nanoseconds.
    #[must_use]
    pub fn estimated_loss_ns(&self) -> u64 {
        self.sum_ns.saturating_mul(LOST_PER_FROZEN)
    }

    /// Counts one time more.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
}

/// One function in a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled, or `0x...` if nothing is known.
    pub function: String,
    /// Source file as the compiler wrote it.
    pub file: Option<String>,
    /// Line in `file`, from 1 on.
    pub line: Option<u32>,
    /// File name of the program or library, for example "upload-queue" or "libc.so.6".
    pub image: String,
    /// The compiler inlined this function into its caller.
    pub inlined: bool,
}

/// A call chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Indices into [`Profile::frames`], outermost caller first.
    pub frames: Vec<u32>,
    /// Why there are no more callers.
    pub end: StackEnd,
}

/// Why unwinding stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the start of the thread: the stack is whole.
    #[default]
    Complete,
    /// The copied part of the stack was used up.
    CopyEnded,
    /// At the limit of depth.
    TooDeep,
    /// No unwind information and no plausible frame pointer at this address.
    NoUnwindInfo,
    /// An address could not be read, or lies outside of every known image.
    BadAddress,
    /// The code is not of 64 bits, and is not unwound.
    NotLongMode,
}

/// One look at one track.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the start of the recording.
    pub time_ns: u64,
    /// Index into [`Profile::tracks`].
    pub track: u32,
    /// Index into [`Profile::stacks`].
    pub stack: u32,
    /// What the track was doing.
    pub state: State,
    /// Whose code ran.
    pub mode: Mode,
    /// How wide the addresses of that code are.
    pub width: Width,
}

/// What a track was doing when it was sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// Running code.
    #[default]
    Running,
    /// Awake, but only looking for work before it goes to sleep.
    Spinning,
    /// Asleep: halted or descheduled.
    Idle,
    /// A core that nothing has started yet.
    NeverStarted,
    /// Its owner has stopped the whole guest.
    Paused,
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
