//! The tracks of a page of a guest with processes: each vCPU is divided by thread and by user and kernel, so that its reader can choose
//! processes and threads as tracks.

use std::cmp::Reverse;
use std::collections::HashMap;

use glass_profiler_core::model::{Profile, Sample};
use glass_profiler_core::threads::{SampledThreads, Subject};
use serde::Serialize;

use crate::samples::processes::is_user;

/// Threads that a page has by name, those with most samples.
pub const THREADS_MAX: usize = 500;

/// What the page's tracks are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GuestTracks {
    /// By track: that of its vCPU, or of itself.
    core: Vec<usize>,
    /// By track: an index into `threads`, or null.
    thread: Vec<Option<usize>>,
    /// By track, a letter: `u` a process's own code, `k` the kernel for it, `i` the idle task, `o` one of the threads that are not named,
    /// `h` a thread of the host, `-` none of these.
    kind: String,
    threads: Vec<Thread>,
    processes: Vec<Process>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Thread {
    name: String,
    tid: u32,
    process: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Process {
    /// With the process ID in its own namespace if that differs.
    name: String,
    pid: u32,
}

/// The profile with its tracks divided; `None` if it has no guest with processes.
pub(crate) fn divide(profile: &Profile) -> Option<(Profile, GuestTracks)> {
    let all = SampledThreads::of(profile);
    if !all.has_guest() {
        return None;
    }
    let mut divided = profile.clone();
    let named = named(profile, &all);
    let tracks = profile.tracks.len();
    let mut guest = GuestTracks {
        core: (0..tracks).collect(),
        thread: vec![None; tracks],
        kind: (0..tracks as u32).map(|track| if is_thread(&all, track) { 'h' } else { '-' }).collect(),
        ..GuestTracks::default()
    };
    let processes = all.processes.iter().map(|process| Process {
        name: match process.namespace_pid {
            Some(inside) => format!("{} ({inside} in its namespace)", process.name),
            None => process.name.clone(),
        },
        pid: process.pid,
    });
    guest.processes = processes.collect();
    let mut threads: Vec<(usize, usize)> =
        named.iter().zip(0..).filter_map(|(place, index)| Some(((*place)?, index))).collect();
    threads.sort_unstable();
    let thread = |(_, index): (usize, usize)| {
        let thread = &all.threads[index];
        Thread { name: thread.name.clone(), tid: thread.tid, process: thread.process }
    };
    guest.threads = threads.into_iter().map(thread).collect();
    let mut has_unknown = false;
    let mut known: HashMap<(u32, Option<usize>, char), u32> = HashMap::new();
    for sample in &mut divided.samples {
        let Some(track) = profile.tracks.get(sample.track as usize) else {
            // The tree has one more track for these.
            (sample.track, has_unknown) = (u32::MAX, true);
            continue;
        };
        let (thread, kind) = match all.subject(sample) {
            // It is a track of its own.
            Subject::Thread(_) if is_thread(&all, sample.track) => continue,
            Subject::Thread(thread) => match named[thread] {
                Some(place) => (Some(place), if is_user(profile, sample) { 'u' } else { 'k' }),
                None => (None, 'o'),
            },
            Subject::Idle => (None, 'i'),
            Subject::Unknown => continue,
        };
        let next = divided.tracks.len() as u32;
        let number = *known.entry((sample.track, thread, kind)).or_insert(next);
        if number == next {
            divided.tracks.push(track.clone());
            guest.core.push(sample.track as usize);
            guest.thread.push(thread);
            guest.kind.push(kind);
        }
        sample.track = number;
    }
    if has_unknown {
        guest.core.push(divided.tracks.len());
        guest.thread.push(None);
        guest.kind.push('-');
    }
    Some((divided, guest))
}

/// Whether a track is a thread of this machine.
fn is_thread(all: &SampledThreads, track: u32) -> bool {
    matches!(all.subject(&Sample { track, ..Sample::default() }), Subject::Thread(_))
}

/// By thread of the guest: its place among those that the page has by name.
fn named(profile: &Profile, all: &SampledThreads) -> Vec<Option<usize>> {
    let mut samples = vec![0u64; all.threads.len()];
    for sample in &profile.samples {
        if let Subject::Thread(thread) = all.subject(sample)
            && !is_thread(all, sample.track)
        {
            samples[thread] += 1;
        }
    }
    let mut order: Vec<usize> = (0..samples.len()).filter(|thread| samples[*thread] > 0).collect();
    order.sort_by_key(|thread| (Reverse(samples[*thread]), *thread));
    let mut named = vec![None; samples.len()];
    order.into_iter().take(THREADS_MAX).enumerate().for_each(|(place, thread)| named[thread] = Some(place));
    named
}
