//! The processes and threads of a live profile, and how much of the samples each has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::names::Function;
use super::{CountedStack, LiveTrack};
use crate::guest::{Process, ProcessId, Thread, ThreadId};
use crate::guest_processes::label;
use crate::model::State;
use crate::names::printable;

/// Threads of guests that are kept; beyond, those go that have no samples.
pub(super) const THREADS_MAX: usize = 64 << 10;
/// A row with less than this part of a sample is left out: it ended a while ago.
const WEIGHT_MIN: f64 = 1.0 / 32.0;

/// What the rows of a table are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum By {
    /// Functions or lines.
    #[default]
    Function,
    /// Processes: of a guest whose operating system is known, or of this machine.
    Process,
    /// Threads.
    Thread,
}

/// What ran in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A process of a guest.
    Process(ProcessId),
    /// A thread of a guest.
    Thread(ThreadId),
    /// A process of this machine, by its process ID.
    Here(u32),
    /// A thread of this machine, by its track.
    Track(u32),
    /// The idle task of a guest's kernel, or an idle vCPU.
    Idle,
    /// It is not known.
    Unknown,
}

/// Of a track that is a thread of this machine: what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// Process ID.
    pub pid: u32,
    /// The name of the process.
    pub process: String,
    /// The name of the thread.
    pub thread: String,
}

#[derive(Debug, Clone)]
struct KnownProcess {
    name: String,
    pid: u32,
    namespace_pid: Option<u32>,
}

#[derive(Debug, Clone)]
struct KnownThread {
    process: ProcessId,
    name: String,
    tid: u32,
}

/// The processes and threads of guests by their numbers.
#[derive(Debug, Clone, Default)]
pub struct Threads {
    processes: HashMap<ProcessId, Arc<KnownProcess>>,
    threads: HashMap<ThreadId, Arc<KnownThread>>,
}

impl Threads {
    /// A process, or its new name.
    pub(super) fn process(&mut self, process: &Process) {
        let known = KnownProcess {
            name: process.programs.last().map(|program| printable(&program.name)).unwrap_or_default(),
            pid: process.pid,
            namespace_pid: process.namespace_pid,
        };
        self.processes.insert(process.id, Arc::new(known));
    }

    /// A thread, or its new name. `used` has those with samples: others make room where there are too many.
    pub(super) fn thread(&mut self, thread: &Thread, used: impl FnOnce() -> HashSet<ThreadId>) {
        if self.threads.len() >= THREADS_MAX {
            // Its process was announced just before.
            let process = self.processes.remove_entry(&thread.process);
            *self = self.only(&used());
            self.processes.extend(process);
        }
        if self.threads.len() < THREADS_MAX {
            let Thread { process, tid, .. } = *thread;
            self.threads.insert(thread.id, Arc::new(KnownThread { process, name: printable(&thread.name), tid }));
        }
    }

    /// These threads and all their processes.
    pub(super) fn only(&self, used: &HashSet<ThreadId>) -> Threads {
        let threads: HashMap<_, _> =
            self.threads.iter().filter(|(id, _)| used.contains(id)).map(|(id, known)| (*id, known.clone())).collect();
        let processes =
            threads.values().map(|thread| thread.process).filter_map(|id| self.processes.get_key_value(&id));
        let processes = processes.map(|(id, process)| (*id, process.clone())).collect();
        Threads { processes, threads }
    }

    /// What ran in a stack's samples: a process, or a thread.
    fn subject(&self, stack: &CountedStack, tracks: &HashMap<u32, &LiveTrack>, by: By) -> Subject {
        let Some(id) = stack.thread else {
            let owner = tracks.get(&stack.track).and_then(|track| track.owner.as_ref());
            return match (owner, by) {
                (Some(_), By::Thread) => Subject::Track(stack.track),
                (Some(owner), _) => Subject::Here(owner.pid),
                (None, _) if stack.state == State::Idle => Subject::Idle,
                (None, _) => Subject::Unknown,
            };
        };
        let Some(thread) = self.threads.get(&id) else { return Subject::Unknown };
        match (self.processes.get(&thread.process), by) {
            (Some(process), _) if process.pid == 0 => Subject::Idle,
            (Some(_), By::Thread) => Subject::Thread(id),
            (Some(_), _) => Subject::Process(thread.process),
            (None, _) => Subject::Unknown,
        }
    }

    /// Whether a stack's samples are of a process or a thread.
    pub(super) fn is_of(&self, stack: &CountedStack, tracks: &HashMap<u32, &LiveTrack>, subject: Subject) -> bool {
        [By::Process, By::Thread].into_iter().any(|by| self.subject(stack, tracks, by) == subject)
    }
}

/// A process or a thread, and its part of the shown samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SubjectRow {
    /// Which.
    pub subject: Subject,
    /// Its name, with the ID in its own namespace if that differs.
    pub name: String,
    /// Its process ID or thread ID.
    pub number: Option<u32>,
    /// Of a thread, the name and the process ID of its process.
    pub process: String,
    /// Part of the shown samples that were its, 0 to 1.
    pub share: f64,
    /// Of these, those in the process's own code; the rest is the kernel's.
    pub user_share: f64,
    /// Threads with samples.
    pub threads: usize,
    /// The function in which it ran most.
    pub hottest: Option<Arc<Function>>,
}

impl SubjectRow {
    /// Its name and number.
    #[must_use]
    pub fn label(&self) -> String {
        self.number.map_or_else(|| self.name.clone(), |number| format!("{} {number}", self.name))
    }
}

/// Rows while stacks are added up.
#[derive(Debug, Default)]
pub(super) struct SubjectSums {
    sums: HashMap<Subject, Sum>,
}

#[derive(Debug, Default)]
struct Sum {
    weight: f64,
    user: f64,
    threads: HashSet<Subject>,
    functions: HashMap<u32, f64>,
}

impl SubjectSums {
    /// Adds a stack whose samples ended in this function.
    pub(super) fn add(
        &mut self,
        stack: &CountedStack,
        (threads, tracks): (&Threads, &HashMap<u32, &LiveTrack>),
        by: By,
        innermost: Option<u32>,
    ) {
        let sum = self.sums.entry(threads.subject(stack, tracks, by)).or_default();
        sum.weight += stack.weight;
        sum.user += if stack.is_user { stack.weight } else { 0.0 };
        sum.threads.insert(threads.subject(stack, tracks, By::Thread));
        if let Some(function) = innermost {
            *sum.functions.entry(function).or_default() += stack.weight;
        }
    }

    /// The rows, largest first; `whole` is the weight of all samples.
    pub(super) fn rows(
        self,
        (threads, tracks): (&Threads, &HashMap<u32, &LiveTrack>),
        functions: &[Arc<Function>],
        whole: f64,
    ) -> Vec<SubjectRow> {
        let seen = self.sums.into_iter().filter(|(_, sum)| sum.weight >= WEIGHT_MIN);
        let row = |(subject, sum): (Subject, Sum)| {
            let hottest = sum.functions.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
            let (name, number, process) = named(subject, threads, tracks);
            SubjectRow {
                subject,
                name,
                number,
                process,
                share: sum.weight / whole,
                user_share: sum.user / whole,
                threads: sum.threads.len(),
                hottest: hottest.and_then(|(function, _)| functions.get(function as usize)).cloned(),
            }
        };
        let mut rows: Vec<SubjectRow> = seen.map(row).collect();
        rows.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.subject.cmp(&b.subject)));
        rows
    }
}

/// The name, the number and the process of a subject.
fn named(subject: Subject, all: &Threads, tracks: &HashMap<u32, &LiveTrack>) -> (String, Option<u32>, String) {
    let of_process = |id| {
        let process: Option<&Arc<KnownProcess>> = all.processes.get(id);
        process.map(|process| (process.name.clone(), process.pid, process.namespace_pid))
    };
    let owner = |track| tracks.get(track).and_then(|track| Some((track.owner.as_ref()?, track.id)));
    let named = match &subject {
        Subject::Process(id) => of_process(id).map(|(name, pid, inside)| {
            let inside = inside.map_or(String::new(), |inside| format!(" ({inside} in its namespace)"));
            (name + &inside, Some(pid), String::new())
        }),
        Subject::Thread(id) => all.threads.get(id).map(|thread| {
            let process = of_process(&thread.process).map(|(name, pid, _)| label(&name, pid, None));
            (thread.name.clone(), Some(thread.tid), process.unwrap_or_default())
        }),
        Subject::Here(pid) => {
            let owner = tracks.values().filter_map(|track| track.owner.as_ref()).find(|owner| owner.pid == *pid);
            owner.map(|owner| (printable(&owner.process), Some(*pid), String::new()))
        }
        Subject::Track(track) => owner(track).map(|(owner, tid)| {
            let tid = u32::try_from(tid).unwrap_or(u32::MAX);
            (printable(&owner.thread), Some(tid), label(&printable(&owner.process), owner.pid, None))
        }),
        Subject::Idle => Some(("[idle task]".to_owned(), None, String::new())),
        Subject::Unknown => None,
    };
    named.unwrap_or_else(|| ("[process unknown]".to_owned(), None, String::new()))
}
