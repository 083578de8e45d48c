//! The samples of a guest's processes and threads.

use std::cmp::Reverse;

use glass_profiler_core::guest::Mode;
use glass_profiler_core::model::{Profile, Sample, State};
use glass_profiler_core::threads::{SampledThreads, Subject};
use glass_profiler_core::view::Layer;

/// Samples in which code ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    /// All.
    pub samples: u64,
    /// Those in the process's own code. The rest is the kernel's.
    pub user: u64,
}

/// The samples of a process or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index into [`SampledThreads::processes`] or [`SampledThreads::threads`].
    pub index: usize,
    /// Its samples; there are some.
    pub ran: Ran,
    /// Threads with samples.
    pub threads: usize,
}

/// What ran in the guest, and when nothing did.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestProcesses {
    /// What indices refer to.
    pub all: SampledThreads,
    /// Those with most samples first.
    pub processes: Vec<Share>,
    /// Those with most samples first.
    pub threads: Vec<Share>,
    /// Of the kernel's idle task, mostly in interrupts.
    pub idle_task: Ran,
    /// Without a known process.
    pub unknown: Ran,
    /// Samples of idle vCPUs; they are none of the above.
    pub idle: u64,
}

impl GuestProcesses {
    /// Those of a profile; `None` if it has no guest with processes.
    pub fn of(profile: &Profile) -> Option<GuestProcesses> {
        let all = SampledThreads::of(profile);
        if !all.has_guest() {
            return None;
        }
        let mut of_thread = vec![Ran::default(); all.threads.len()];
        let (mut idle_task, mut unknown) = (Ran::default(), Ran::default());
        for sample in profile.counted() {
            let ran = match all.subject(sample) {
                Subject::Thread(thread) => &mut of_thread[thread],
                Subject::Idle => &mut idle_task,
                Subject::Unknown => &mut unknown,
            };
            ran.samples += 1;
            ran.user += u64::from(is_user(profile, sample));
        }
        let idle = profile.samples.iter().filter(|sample| sample.state == State::Idle).count() as u64;
        let mut processes: Vec<Share> =
            (0..all.processes.len()).map(|index| Share { index, ran: Ran::default(), threads: 0 }).collect();
        for (thread, ran) in all.threads.iter().zip(&of_thread) {
            let sum = &mut processes[thread.process];
            sum.ran.samples += ran.samples;
            sum.ran.user += ran.user;
            sum.threads += usize::from(ran.samples > 0);
        }
        let threads: Vec<Share> =
            of_thread.into_iter().enumerate().map(|(index, ran)| Share { index, ran, threads: 1 }).collect();
        let is_guest = |process: usize| all.processes[process].is_of_guest;
        let processes = sorted(processes, |share| is_guest(share.index));
        let threads = sorted(threads, |share| is_guest(all.threads[share.index].process));
        Some(GuestProcesses { all, processes, threads, idle_task, unknown, idle })
    }

    /// All samples in which code ran.
    pub fn running(&self) -> u64 {
        self.processes.iter().map(|share| share.ran.samples).sum::<u64>()
            + self.idle_task.samples
            + self.unknown.samples
    }
}

/// Those that have samples, the largest first.
fn sorted(mut shares: Vec<Share>, is_shown: impl Fn(&Share) -> bool) -> Vec<Share> {
    shares.retain(|share| share.ran.samples > 0 && is_shown(share));
    shares.sort_by_key(|share| (Reverse(share.ran.samples), share.index));
    shares
}

/// Whether a sample is in a process's own code. In a view with the host, whatever the host did for it.
pub(crate) fn is_user(profile: &Profile, sample: &Sample) -> bool {
    if profile.view().is_none() {
        return sample.mode == Mode::User;
    }
    let stack = profile.stacks.get(sample.stack as usize);
    let mut layers = stack.into_iter().flat_map(|stack| stack.frames.iter().rev());
    let of_guest = layers.find_map(|frame| profile.frames.get(*frame as usize)?.layer.filter(|layer| !layer.is_host()));
    of_guest == Some(Layer::GuestUser)
}
