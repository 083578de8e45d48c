//! A profile that is looked at while it is taken: counts that fade, instead of a recording that grows.
//!
//! [`Unwinder`] takes events as the recorder does and turns them into [`Update`]s of [`Live`], which counts distinct
//! stacks in bounded memory. [`Live::snapshot`] copies what it holds; [`view::View`] makes tables of a snapshot, with names
//! from [`names::NameCache`]. Files are read by the first and for the last, so that whatever is slow needs no access to the
//! counts.

pub mod activity;
pub mod names;
mod stacks;
pub mod threads;
pub mod view;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::durations::Durations;
use crate::event::Event;
use crate::files::FileSource;
use crate::guest::{GuestId, GuestKind, Mode, Process, Thread, ThreadId};
use crate::images::{Images, NamedImage};
use crate::model::{StackEnd, State};
use crate::recorder::Progress;
use crate::unwind::CallAddress;
use activity::{Activity, Kind};
use stacks::{Of, Stacks};
use threads::{Owner, Threads};

/// Tracks that are kept apart; what comes beyond while all are busy is counted as dropped.
pub const TRACKS_MAX: usize = 4096;
/// Warnings that are kept, the newest.
const WARNINGS_MAX: usize = 8;

/// How a live profile counts.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A sample counts half after this time; `None`: all count the same.
    pub half_life_ns: Option<u64>,
    /// What the absence of samples means.
    pub kind: Kind,
}

/// A stack, and how much of the samples had it.
#[derive(Debug, Clone)]
pub struct CountedStack {
    /// Indices into [`Snapshot::frames`], innermost call first.
    pub frames: Arc<[u32]>,
    /// The track.
    pub track: u32,
    /// What the track was doing.
    pub state: State,
    /// The thread of a guest that ran, if it is known.
    pub thread: Option<ThreadId>,
    /// It ended in a process's own code, not in a kernel.
    pub is_user: bool,
    /// In samples of now: one that is a half-life old adds a half.
    pub weight: f64,
}

/// What a track did lately.
#[derive(Debug, Clone)]
pub struct LiveTrack {
    /// As in [`CountedStack::track`].
    pub track: u32,
    /// The vCPU's index or the thread id.
    pub id: u64,
    /// "vcpu 0", or a thread's name.
    pub name: String,
    /// Of a thread of this machine.
    pub owner: Option<Owner>,
    /// Its activity.
    pub activity: Activity,
}

/// A copy of everything that a view needs.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Distinct call addresses.
    pub frames: Vec<CallAddress>,
    /// Distinct stacks.
    pub stacks: Vec<CountedStack>,
    /// Weight of stacks that were rare and had to make room.
    pub forgotten: f64,
    /// The tracks, in order of their index.
    pub tracks: Vec<LiveTrack>,
    /// Processes and threads of guests that have samples.
    pub threads: Threads,
    /// Path of each image, by the index in [`CallAddress::image`].
    pub paths: Vec<String>,
    /// The images, to read their names.
    pub images: Arc<[NamedImage]>,
    /// What was counted since the start or the last reset.
    pub progress: Progress,
    /// From the first counted sample to now.
    pub covered_ns: u64,
    /// What the user should know, newest last.
    pub warnings: Vec<String>,
}

/// A sample that was unwound.
#[derive(Debug, Clone)]
pub struct UnwoundSample {
    /// As in [`RawSample`](crate::event::RawSample).
    pub time_ns: u64,
    /// The track.
    pub track: u32,
    /// What it was doing.
    pub state: State,
    /// The thread of a guest that ran, if it is known.
    pub thread: Option<ThreadId>,
    /// It ended in a process's own code, not in a kernel.
    pub is_user: bool,
    /// Its calls, innermost first.
    pub calls: Vec<CallAddress>,
    /// The calls do not reach the start of the stack.
    pub is_broken: bool,
    /// The pause of the track for it.
    pub frozen_ns: u64,
}

/// A change of the counts.
#[derive(Debug, Clone)]
pub enum Update {
    /// There is a track, or it has a new name.
    Track {
        /// Its number.
        track: u32,
        /// The vCPU's index or the thread id.
        id: u64,
        /// "vcpu 0", or a thread's name and id, with those of its process.
        name: String,
        /// Of a thread of this machine.
        owner: Option<Owner>,
    },
    /// A process of a guest, or its new name.
    Process(Process),
    /// A thread of a guest, or its new name.
    Thread(Thread),
    /// A sample.
    Sample(UnwoundSample),
    /// Pauses of tracks without a sample, each in nanoseconds.
    Frozen(Vec<(u32, u64)>),
    /// Something that the user should know.
    Warning(String),
    /// The images that there are now.
    Images(Arc<[NamedImage]>),
}

/// Turns events into updates.
#[derive(Default)]
pub struct Unwinder {
    images: Images,
    delivered: usize,
    /// By tracks: the numbers of their waits, and the samples.
    waits: HashMap<u32, (u32, UnwoundSample)>,
    /// By their guests: the process ID and the name of those that are processes.
    processes: HashMap<GuestId, Option<(u32, String)>>,
}

impl Unwinder {
    /// Takes an event and delivers what follows from it. Slow where a program is seen for the first time: `files` gives
    /// the bytes of mapped files.
    pub fn event(&mut self, event: Event, files: &mut dyn FileSource, sink: &mut dyn FnMut(Update)) {
        self.images.learn(&event, files);
        let may_change = matches!(event, Event::Space { .. } | Event::Map { .. } | Event::Place { .. });
        if may_change || self.images.count() != self.delivered {
            self.delivered = self.images.count();
            sink(Update::Images(self.images.all_named().collect()));
        }
        match event {
            Event::Guest(guest) => {
                let process = if let GuestKind::Process { pid } = guest.kind { Some((pid, guest.name)) } else { None };
                self.processes.insert(guest.id, process);
            }
            Event::Track { track, guest, id, name } => {
                let known = self.processes.get(&guest);
                let owner = known.and_then(Option::as_ref).map(|(pid, process)| Owner {
                    pid: *pid,
                    process: process.clone(),
                    thread: name.clone(),
                });
                let name = match known {
                    Some(Some((pid, _))) if u64::from(*pid) == id => format!("{name} {id}"),
                    Some(Some((pid, process))) => format!("{name} {id} in {process} {pid}"),
                    _ => name,
                };
                sink(Update::Track { track, id, name, owner });
            }
            Event::Map { .. } => self.images.take_warnings().into_iter().for_each(|text| sink(Update::Warning(text))),
            Event::Sample(sample) => {
                let stack = self.images.unwind(&sample);
                self.images.sampled(&stack, files);
                let is_user = sample.segments.first().is_some_and(|segment| segment.mode == Mode::User);
                let unwound = UnwoundSample {
                    time_ns: sample.time_ns,
                    track: sample.track,
                    state: sample.state,
                    thread: sample.thread,
                    is_user,
                    is_broken: stack.end != StackEnd::Complete,
                    calls: stack.calls,
                    frozen_ns: sample.frozen_ns,
                };
                match sample.wait {
                    Some(wait) => _ = self.waits.insert(sample.track, (wait.number, unwound.clone())),
                    None => _ = self.waits.remove(&sample.track),
                }
                sink(Update::Sample(unwound));
            }
            Event::StillWaits { time_ns, tracks } => {
                for (track, number) in tracks {
                    let kept = self.waits.get(&track).filter(|(kept, _)| *kept == number);
                    // One whose own sample was dropped is left out.
                    if let Some((_, sample)) = kept {
                        sink(Update::Sample(UnwoundSample { time_ns, ..sample.clone() }));
                    }
                }
            }
            Event::TrackEnd(track) => _ = self.waits.remove(&track),
            Event::Frozen { tracks_ns } => sink(Update::Frozen(tracks_ns)),
            Event::Warning(text) => sink(Update::Warning(text)),
            Event::Process(process) => sink(Update::Process(process)),
            Event::Thread(thread) => sink(Update::Thread(thread)),
            // What a thread has done until its end is still to be seen. A live profile is of samples; `glass top
            // --tasks` looks at traces.
            Event::Space { .. } | Event::SpaceEnd(_) | Event::Place { .. } | Event::Trace(_) => {}
        }
    }
}

/// Counts samples as they come.
pub struct Live {
    settings: Settings,
    images: Arc<[NamedImage]>,
    stacks: Stacks,
    tracks: HashMap<u32, LiveTrack>,
    threads: Threads,
    pauses: Durations,
    progress: Progress,
    first_ns: Option<u64>,
    warnings: VecDeque<String>,
}

impl Live {
    /// Nothing counted yet.
    pub fn new(settings: Settings) -> Live {
        Live {
            settings,
            images: Arc::from([]),
            stacks: Stacks::new(settings.half_life_ns),
            tracks: HashMap::new(),
            threads: Threads::default(),
            pauses: Durations::default(),
            progress: Progress::default(),
            first_ns: None,
            warnings: VecDeque::new(),
        }
    }

    /// Takes a change. Never slow.
    pub fn update(&mut self, update: Update) {
        match update {
            Update::Track { track, id, name, owner } => self.track(track, id, name, owner),
            Update::Process(process) => self.threads.process(&process),
            Update::Thread(thread) => self.threads.thread(&thread, || self.stacks.threads()),
            Update::Sample(sample) => self.sample(&sample),
            Update::Frozen(tracks_ns) => tracks_ns.into_iter().for_each(|(_, ns)| self.pauses.add(ns)),
            Update::Warning(text) => self.warn(text),
            Update::Images(images) => self.images = images,
        }
    }

    fn track(&mut self, track: u32, id: u64, name: String, owner: Option<Owner>) {
        if let Some(known) = self.tracks.get_mut(&track) {
            known.id = id;
            known.name = name;
            known.owner = owner;
            return;
        }
        if self.tracks.len() >= TRACKS_MAX {
            // Those that were quiet for as long as we remember go.
            self.tracks.retain(|_, track| !track.activity.is_quiet());
        }
        if self.tracks.len() < TRACKS_MAX {
            let activity = Activity::new(self.settings.kind);
            self.tracks.insert(track, LiveTrack { track, id, name, owner, activity });
        }
    }

    fn sample(&mut self, sample: &UnwoundSample) {
        let Some(known) = self.tracks.get_mut(&sample.track) else {
            self.progress.samples_dropped += 1;
            return;
        };
        known.activity.add(sample.time_ns, sample.state);
        let UnwoundSample { track, state, thread, is_user, .. } = *sample;
        self.stacks.add(sample.time_ns, Of { track, state, thread, is_user }, &sample.calls);
        self.first_ns.get_or_insert(sample.time_ns);
        self.progress.samples_taken += 1;
        self.progress.stacks_broken += u64::from(sample.is_broken);
        if sample.frozen_ns > 0 {
            self.pauses.add(sample.frozen_ns);
        }
    }

    /// Keeps a sentence for the user.
    pub fn warn(&mut self, text: String) {
        if self.warnings.contains(&text) {
            return;
        }
        if self.warnings.len() == WARNINGS_MAX {
            self.warnings.pop_front();
        }
        self.warnings.push_back(text);
    }

    /// Forgets the samples; tracks and images stay.
    pub fn reset(&mut self) {
        self.stacks = Stacks::new(self.settings.half_life_ns);
        self.pauses = Durations::default();
        self.progress = Progress::default();
        self.first_ns = None;
        for track in self.tracks.values_mut() {
            track.activity = Activity::new(self.settings.kind);
        }
    }

    /// What is counted at `now_ns` on the clock of the samples. Costs a copy of some hundred KiB.
    pub fn snapshot(&mut self, now_ns: u64) -> Snapshot {
        let (frames, stacks, forgotten) = self.stacks.copy(now_ns);
        let mut tracks: Vec<LiveTrack> = self.tracks.values().cloned().collect();
        tracks.sort_by_key(|track| track.track);
        tracks.iter_mut().for_each(|track| track.activity.advance(now_ns));
        let used: HashSet<ThreadId> = stacks.iter().filter_map(|stack| stack.thread).collect();
        let paths = self.images.iter().map(|image| image.path().to_owned()).collect();
        let progress = self.progress();
        let covered_ns = self.first_ns.map_or(0, |first| now_ns.saturating_sub(first));
        Snapshot {
            covered_ns,
            frames,
            stacks,
            forgotten,
            tracks,
            threads: self.threads.only(&used),
            paths,
            images: self.images.clone(),
            progress,
            warnings: self.warnings.iter().cloned().collect(),
        }
    }

    /// What was counted since the start or the last reset.
    pub fn progress(&self) -> Progress {
        Progress { pause: self.pauses.distribution(), ..self.progress }
    }
}

#[cfg(test)]
mod tests;
