//! Ways to find, stop and read a guest, behind [`Source`]. Four floors, each of which opens with what it may use:
//!
//! | floor | |
//! |---|---|
//! | [`find`] | which processes are VMMs, which domains there are |
//! | [`memory`] | guest-physical memory, address spaces |
//! | [`systems`] | what runs inside |
//! | [`backends`] | how a guest is stopped and read |
//!
//! Below them are [`files`] of this machine, texts of [`proc`], registers by architecture (`arch`) and system calls (`sys`).
//!
//! A source delivers [`Event`]s in order of time. One that has to stop its guest for a sample
//! implements [`Guest`] and is driven by [`backends::paced::Paced`]; one whose samples come from the kernel
//! implements [`Source`] itself.
#![deny(unsafe_code)]

use std::process::ExitStatus;
use std::time::Duration;

use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::model::Losses;

mod arch;
pub mod backends;
mod bytes;
mod error;
pub mod files;
pub mod find;
pub mod memory;
pub mod proc;
mod stream;
// The system calls that the standard library has no safe form of: perf_event_open, mmap, clocks, fork, ptrace.
#[allow(unsafe_code)]
mod sys;
pub mod systems;

pub use backends::access::KnownVm;
pub use error::GuestError;
pub use stream::SocketAddress;
pub use sys::{cpu_time_ns, read_clocks, return_memory};
pub use systems::boot_image::is_boot_image;
pub use systems::image::VmSettings;
pub use systems::linux::GuestProcesses;
pub use systems::symbols::{SymbolFile, of_c_program, parse_address};

/// What is counted while sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Samples that were delivered as events.
    pub delivered: u64,
    /// Expected samples that were not delivered, and other losses.
    pub losses: Losses,
    /// Of those delivered, the ones more than half a period after their time.
    pub late: u64,
    /// CPU time of other processes of ours, which sample for this one.
    pub helpers_cpu_ns: u64,
}

impl Counts {
    /// Samples that were expected: each of them is delivered or lost.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.delivered.saturating_add(self.losses.samples())
    }
}

/// Whether there will be more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The guest continues.
    More,
    /// The guest has ended.
    Ended,
}

/// Where events come from.
pub trait Source {
    /// Since when the guest is sampled, on the clock of samples, if it already was before it was announced: a command is started before this process
    /// gives up its rights, and to connect to a gdbstub stops its VM.
    fn started_ns(&self) -> Option<u64> {
        None
    }

    /// Hands over the tracks and mappings that are there already. Called once, first.
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError>;

    /// Hands over the events of about the next `wait`, in order of time. Returns after that time even
    /// if there are none.
    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError>;

    /// What was counted so far.
    fn counts(&self) -> Counts;

    /// Stops sampling, delivers the remaining events and detaches from the guest.
    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError>;

    /// How a command that was started for it has ended, if it has.
    fn exit_status(&mut self) -> Option<ExitStatus> {
        None
    }
}

/// The samples of one part of a guest, at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// A sample of each core of the part; a core of which there is none this time is left out.
    pub samples: Vec<RawSample>,
    /// Until when the part is known to have stood where it was, on the clock of samples, if it stood longer than its pause: the host
    /// ran something else. What is due until then is this sample, too.
    pub stood_until_ns: Option<u64>,
    /// For how long it ran until then all the same, in nanoseconds: as many samples of that time are missing.
    pub ran_ns: u64,
}

/// The result of an attempt to sample a part of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// It was sampled, and runs again.
    Taken(Taken),
    /// It does not stop at once. [`Guest::rest`] returns the samples when it does; until then it is not to be sampled again.
    Pending,
    /// The guest has ended.
    Ended,
}

impl Attempt {
    /// Samples that were taken at once, of a part that ran until then.
    pub fn of(samples: Vec<RawSample>) -> Attempt {
        Attempt::Taken(Taken { samples, ..Taken::default() })
    }
}

/// A guest that is held for each sample, whole or in parts that are held one by one.
pub trait Guest {
    /// See [`Source::started_ns`].
    fn started_ns(&self) -> Option<u64> {
        None
    }

    /// The tracks and mappings, before the first sample; and samples that there are already, which are no part of those at the rate.
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError>;

    /// How many parts are held one by one, each at times of its own; 1 if all of it is held for a sample.
    fn parts(&self) -> usize {
        1
    }

    /// Holds a part, copies one sample of each of its cores, lets it run. Only copies while it is held.
    fn sample(&mut self, part: usize) -> Result<Attempt, GuestError>;

    /// Waits until `until_ns` on the clock of samples. A guest that needs us between samples too looks
    /// after it meanwhile. Returns earlier with the number and the samples of a part that was pending, once they are there; at 0, which is the end,
    /// with those that are known now.
    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(sys::monotonic_ns())));
        Ok(None)
    }

    /// Samples each part once, one after the other, without regard to deadlines. `None` if the guest has ended.
    fn sample_all(&mut self) -> Result<Option<Vec<RawSample>>, GuestError> {
        let mut samples = Vec::new();
        for part in 0..self.parts() {
            let taken = match self.sample(part)? {
                Attempt::Taken(taken) => taken,
                Attempt::Ended => return Ok(None),
                Attempt::Pending => loop {
                    if let Some((_, taken)) = self.rest(u64::MAX)? {
                        break taken;
                    }
                },
            };
            samples.extend(taken.samples);
        }
        Ok(Some(samples))
    }

    /// A warning about all samples at their end, if there is one.
    fn remark(&self) -> Option<String> {
        None
    }

    /// A warning about what could not be put back when the guest was detached from, if there is one.
    fn left_behind(&self) -> Option<String> {
        None
    }

    /// How many tracks there are, the same number in each part.
    fn tracks(&self) -> u64;

    /// Detaches from the guest.
    fn detach(&mut self) -> Result<(), GuestError>;
}
