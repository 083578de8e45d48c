//! Which process and which thread each sample of a profile is of, whatever machine runs them.
//!
//! Threads of this machine are tracks. Those of a guest whose operating system is known are named by samples, and its tracks are vCPUs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use crate::format::count;
use crate::guest_processes;
use crate::identity;
use crate::model::{Only, Profile, Sample, State};
use crate::names::printable;

/// Processes or threads that an error lists.
const LISTED_MAX: usize = 20;
/// Bytes of the name of a process or thread that Linux keeps.
const NAME_BYTES: usize = 15;

/// A process with a thread that may have samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampledProcess {
    /// The last of its programs. Printable.
    pub name: String,
    /// Those before it. Printable.
    pub before: Vec<String>,
    /// Its process ID.
    pub pid: u32,
    /// Its process ID in its own namespace, if that differs.
    pub namespace_pid: Option<u32>,
    /// A guest's operating system runs it, not this machine's.
    pub is_of_guest: bool,
}

/// A thread that may have samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampledThread {
    /// Index into [`SampledThreads::processes`].
    pub process: usize,
    /// Printable.
    pub name: String,
    /// Its thread ID.
    pub tid: u32,
}

/// What ran in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A thread: an index into [`SampledThreads::threads`].
    Thread(usize),
    /// Nothing: the idle task of a guest's kernel, or a vCPU that is known to be idle.
    Idle,
    /// The recording does not have it.
    Unknown,
}

/// The processes and threads of a profile.
#[derive(Debug, Clone, Default)]
pub struct SampledThreads {
    /// Each before its threads.
    pub processes: Vec<SampledProcess>,
    /// Those of a process follow each other.
    pub threads: Vec<SampledThread>,
    /// By the index of the profile's thread: what it is.
    of_guest: Vec<Subject>,
    /// By the index of the track: its thread, if it is one.
    of_track: Vec<Option<usize>>,
}

impl SampledProcess {
    /// Its name and its numbers, for display.
    #[must_use]
    pub fn label(&self) -> String {
        guest_processes::label(&self.name, self.pid, self.namespace_pid)
    }
}

impl SampledThreads {
    /// Those of a profile: of guests first.
    #[must_use]
    pub fn of(profile: &Profile) -> SampledThreads {
        let mut all = SampledThreads {
            of_guest: vec![Subject::Unknown; profile.threads.len()],
            of_track: vec![None; profile.tracks.len()],
            ..SampledThreads::default()
        };
        let mut of_process: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, thread) in profile.threads.iter().enumerate() {
            of_process.entry(thread.process).or_default().push(index);
        }
        for process in guest_processes::of_machines(profile) {
            let threads = of_process.remove(&process.id).unwrap_or_default();
            if process.pid == 0 {
                threads.into_iter().for_each(|thread| all.of_guest[thread] = Subject::Idle);
                continue;
            }
            let mut names: Vec<String> = process.programs.iter().map(|program| printable(&program.name)).collect();
            names.dedup();
            all.processes.push(SampledProcess {
                name: names.pop().unwrap_or_default(),
                before: names,
                pid: process.pid,
                namespace_pid: process.namespace_pid,
                is_of_guest: true,
            });
            for index in threads {
                let thread = &profile.threads[index];
                all.of_guest[index] = Subject::Thread(all.add(&thread.name, thread.tid));
            }
        }
        for process in identity::processes(profile) {
            let identity::ProcessTracks { name, before, pid, tracks } = process;
            all.processes.push(SampledProcess { name, before, pid, ..SampledProcess::default() });
            for index in tracks {
                let track = &profile.tracks[index];
                all.of_track[index] = Some(all.add(&track.name, u32::try_from(track.id).unwrap_or(u32::MAX)));
            }
        }
        all
    }

    /// Adds a thread of the last process.
    fn add(&mut self, name: &str, tid: u32) -> usize {
        let process = self.processes.len() - 1;
        self.threads.push(SampledThread { process, name: printable(name), tid });
        self.threads.len() - 1
    }

    /// Whether there are threads of a guest.
    #[must_use]
    pub fn has_guest(&self) -> bool {
        self.threads.iter().any(|thread| self.processes[thread.process].is_of_guest)
    }

    /// What ran in a sample of the profile.
    #[must_use]
    pub fn subject(&self, sample: &Sample) -> Subject {
        let of_track = self.of_track.get(sample.track as usize).copied().flatten();
        match (of_track, sample.thread.and_then(|thread| self.of_guest.get(thread as usize))) {
            (Some(thread), _) => Subject::Thread(thread),
            (None, Some(subject)) => *subject,
            (None, None) if sample.state == State::Idle => Subject::Idle,
            (None, None) => Subject::Unknown,
        }
    }

    /// A thread with its process, for display; its own name only where it is not the process's.
    #[must_use]
    pub fn thread_label(&self, thread: usize) -> String {
        let SampledThread { process, name, tid } = &self.threads[thread];
        let process = &self.processes[*process];
        if *tid == process.pid { process.label() } else { format!("{}, {name} {tid}", process.label()) }
    }
}

/// The processes and threads that a view is restricted to: names or numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A process: its name, or its process ID.
    pub process: Option<String>,
    /// A thread: its name, or its thread ID.
    pub thread: Option<String>,
}

/// No sample is of what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoSamples {
    /// The recording has neither processes nor threads.
    NoProcesses,
    /// It has others.
    Others {
        /// What was wanted.
        wanted: String,
        /// What there is, those with most samples first.
        there_are: Vec<String>,
        /// How many more there are.
        more: usize,
    },
}

impl fmt::Display for NoSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSamples::NoProcesses => f.write_str(
                "has no processes: those of Linux guests and of this machine are recorded, a Glasshouse service is one program",
            ),
            NoSamples::Others { wanted, there_are, more } => {
                write!(f, "has no samples of {wanted}: there are {}", there_are.join(", "))?;
                if *more > 0 { write!(f, " and {} more", count(*more as u64)) } else { Ok(()) }
            }
        }
    }
}

impl std::error::Error for NoSamples {}

/// Whether a name or a number is what is wanted. A name may be longer than what Linux keeps of it.
fn is_wanted(wanted: &str, names: &[&str], number: u32) -> bool {
    let is_name = |name: &&str| {
        *name == wanted || (wanted.len() > NAME_BYTES && name.len() == NAME_BYTES && wanted.starts_with(*name))
    };
    wanted.parse() == Ok(number) || names.iter().any(is_name)
}

impl Wanted {
    /// Whether anything is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Wanted::default()
    }

    /// For display: `process redis, thread 12`.
    #[must_use]
    pub fn label(&self) -> String {
        let process = self.process.iter().map(|process| format!("process {}", printable(process)));
        let thread = self.thread.iter().map(|thread| format!("thread {}", printable(thread)));
        process.chain(thread).collect::<Vec<_>>().join(", ")
    }

    fn has(&self, thread: &SampledThread, process: &SampledProcess) -> bool {
        let names: Vec<&str> = std::iter::once(&process.name).chain(&process.before).map(String::as_str).collect();
        self.process.as_ref().is_none_or(|wanted| is_wanted(wanted, &names, process.pid))
            && self.thread.as_ref().is_none_or(|wanted| is_wanted(wanted, &[&thread.name], thread.tid))
    }

    /// Leaves out all samples that are of other processes or threads; [`Profile::only`] is then the account. The profile stays as it is
    /// if nothing is wanted, or if nothing would be left.
    ///
    /// # Errors
    /// No sample is of what is wanted.
    pub fn keep(&self, profile: &mut Profile) -> Result<(), NoSamples> {
        if self.is_empty() {
            return Ok(());
        }
        let all = SampledThreads::of(profile);
        let kept = all.threads.iter().map(|thread| self.has(thread, &all.processes[thread.process]));
        let kept: Vec<bool> = kept.collect();
        let mut samples_of = vec![0u64; all.threads.len()];
        let mut only = Only { wanted: self.label(), ..Only::default() };
        for sample in &profile.samples {
            match all.subject(sample) {
                Subject::Thread(thread) => {
                    samples_of[thread] += 1;
                    *(if kept[thread] { &mut only.kept } else { &mut only.others }) += 1;
                }
                Subject::Idle => only.idle += 1,
                Subject::Unknown => only.unknown += 1,
            }
        }
        if only.kept == 0 {
            return Err(self.none(&all, &samples_of));
        }
        let is_kept = |subject| matches!(subject, Subject::Thread(thread) if kept[thread]);
        let of_guest = all.of_guest.iter().zip(&profile.threads).filter(|(subject, _)| is_kept(**subject));
        only.threads = of_guest.map(|(_, thread)| thread.id).collect();
        let of_tracks = all.of_track.iter().zip(0..).filter(|(thread, _)| thread.is_some_and(|thread| kept[thread]));
        only.tracks = of_tracks.map(|(_, track)| track).collect();
        let mut processes: Vec<usize> =
            all.threads.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(thread, _)| thread.process).collect();
        processes.dedup();
        only.processes = processes.into_iter().map(|process| all.processes[process].label()).collect();
        profile.samples.retain(|sample| is_kept(all.subject(sample)));
        profile.origin.guest += &format!(", only {}", only.wanted);
        profile.only = Some(only);
        Ok(())
    }

    /// What there is instead: threads of the wanted process if only the thread is wrong, else processes.
    fn none(&self, all: &SampledThreads, samples_of: &[u64]) -> NoSamples {
        let of_process = Wanted { thread: None, ..self.clone() };
        let is_of_process = |thread: &SampledThread| of_process.has(thread, &all.processes[thread.process]);
        let has_process =
            all.threads.iter().zip(samples_of).any(|(thread, samples)| *samples > 0 && is_of_process(thread));
        let lists_threads = self.thread.is_some() && has_process;
        let mut found: HashMap<String, u64> = HashMap::new();
        for (thread, samples) in all.threads.iter().zip(samples_of).filter(|(_, samples)| **samples > 0) {
            if !lists_threads {
                *found.entry(all.processes[thread.process].label()).or_default() += samples;
            } else if is_of_process(thread) {
                *found.entry(format!("{} {}", thread.name, thread.tid)).or_default() += samples;
            }
        }
        if found.is_empty() {
            return NoSamples::NoProcesses;
        }
        let mut found: Vec<(String, u64)> = found.into_iter().collect();
        found.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        let more = found.len().saturating_sub(LISTED_MAX);
        let there_are = found.into_iter().take(LISTED_MAX).map(|(label, _)| label).collect();
        NoSamples::Others { wanted: self.label(), there_are, more }
    }
}

impl Only {
    /// What is shown, and what was left out.
    #[must_use]
    pub fn sentence(&self) -> String {
        let all = [self.kept, self.others, self.idle, self.unknown].into_iter().fold(0, u64::saturating_add);
        let parts = [
            (self.others, "of other processes or threads"),
            (self.idle, "of the idle task"),
            (self.unknown, "without a known process"),
        ];
        let parts = parts.into_iter().filter(|(samples, _)| *samples > 0);
        let parts: Vec<String> = parts.map(|(samples, what)| format!("{} {what}", count(samples))).collect();
        let left_out = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
        let names: BTreeSet<&str> = self.processes.iter().map(String::as_str).take(LISTED_MAX).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let more = match self.processes.len().saturating_sub(LISTED_MAX) {
            0 => String::new(),
            more => format!(" and {} more", count(more as u64)),
        };
        format!(
            "only {} ({}{more}): {} of {} samples; left out: {left_out}",
            self.wanted,
            names.join(", "),
            count(self.kept),
            count(all)
        )
    }
}
