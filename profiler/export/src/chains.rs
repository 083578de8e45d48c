//! The stacks of a profile as every export shows them: with printable names, and with roots for states without code.
//!
//! Broken stacks, spinning and idling get the same roots as in our reports.

use std::collections::{BTreeMap, HashMap};

use glass_profiler_core::identity::{ProcessTracks, by_track, processes};
use glass_profiler_core::model::{Only, Profile, Sample, State};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::{Place, Recording};
use glass_profiler_core::threads::{SampledThread, SampledThreads, Subject};
use glass_profiler_core::tree::{Broken, Kind};
use glass_profiler_core::view::{Layer, View};

use crate::{Labels, States};

/// A function in a stack, or a root of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Printable.
    pub name: String,
    /// Printable.
    pub file: Option<String>,
    /// From 1 on.
    pub line: Option<u32>,
    /// The line at which the function starts, from 1 on.
    pub start_line: Option<u32>,
    /// The program or library, printable; empty if there is none.
    pub image: String,
    /// Inlined into the step before it.
    pub inlined: bool,
    /// The place of its code; `None` for a root of ours.
    pub place: Option<Place>,
    /// In a view of host and guest: whose code it is.
    pub layer: Option<Layer>,
}

/// Samples that differ only in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Group {
    /// Index of the stack.
    pub stack: u32,
    /// Its number ([`State::number`]).
    pub state: u8,
    /// Index of the track.
    pub track: u32,
    /// The thread of a guest that ran: an index into [`Chains::threads`].
    pub thread: Option<usize>,
}

/// Samples that a format shows in a row of their own: those of a guest's thread, or of a track without such.
pub(crate) struct Series {
    /// Index of the track; of a thread, of its first sample.
    pub track: u32,
    /// The thread of a guest: an index into [`Chains::threads`].
    pub thread: Option<usize>,
    /// Indices into the profile's samples, in order of time.
    pub samples: Vec<u32>,
}

/// The value of a label of samples.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    Text(String),
    Number(u64),
}

/// All steps of a profile: first its frames, then our roots.
pub(crate) struct Chains<'a> {
    pub profile: &'a Profile,
    pub steps: Vec<Step>,
    /// The processes whose threads are tracks.
    pub processes: Vec<ProcessTracks>,
    /// All threads, also those of guests.
    pub threads: SampledThreads,
    /// By track: its process.
    process_of: Vec<Option<usize>>,
    /// By track: its samples do not count.
    left_out: Vec<bool>,
    frames: usize,
    /// Threads of guests have no series of their own.
    by_vcpu: bool,
}

impl<'a> Chains<'a> {
    pub fn new(recording: &'a Recording) -> Chains<'a> {
        let profile = &recording.profile;
        let frames = profile.frames.iter().enumerate().map(|(index, frame)| Step {
            name: printable(&frame.function),
            file: frame.file.as_deref().map(printable),
            line: frame.line.filter(|line| *line > 0),
            start_line: frame.start_line,
            image: if frame.image.is_empty() { String::new() } else { printable(&frame.image) },
            inlined: frame.inlined,
            place: frame.entry.is_none().then(|| recording.places.get(index).copied().unwrap_or_default()),
            layer: frame.layer,
        });
        let roots = Kind::parents().map(|kind| Step {
            name: kind.label(),
            file: None,
            line: None,
            start_line: None,
            image: String::new(),
            inlined: false,
            place: None,
            layer: None,
        });
        let processes = processes(profile);
        let process_of = by_track(&processes, profile.tracks.len());
        let left_out = profile.left_out();
        let steps = frames.chain(roots).collect();
        let threads = SampledThreads::of(profile);
        let frames = profile.frames.len();
        Chains { profile, steps, processes, threads, process_of, left_out, frames, by_vcpu: false }
    }

    /// The same; if `by_vcpu`, threads of guests have no series of their own.
    pub fn by_vcpu(self, by_vcpu: bool) -> Chains<'a> {
        Chains { by_vcpu, ..self }
    }

    /// The process of a track, if it is a thread.
    pub fn process(&self, track: u32) -> Option<&ProcessTracks> {
        self.processes.get((*self.process_of.get(track as usize)?)?)
    }

    /// The process of a track that is the root of its stacks: where there are several, or beside a guest.
    pub fn root_process(&self, track: u32) -> Option<&ProcessTracks> {
        self.process(track).filter(|_| self.processes.len() > 1 || self.view().is_some())
    }

    /// The view of host and guest; `None` where there is no host.
    pub fn view(&self) -> Option<View> {
        self.profile.view()
    }

    /// Whether names are marked with modes: where code of the host is beside the guest's.
    pub fn is_by_layer(&self) -> bool {
        self.view().is_some_and(View::is_by_layer)
    }

    /// The name of a track with those of its process and their numbers: `cc1 4711, worker 4715`.
    pub fn track_label(&self, track: u32) -> String {
        let name = self.track_name(track);
        let id = self.profile.tracks.get(track as usize).map_or(0, |track| track.id);
        match self.process(track) {
            None => name,
            Some(process) if process.tracks.len() == 1 => format!("{} {}", process.name, process.pid),
            Some(process) => format!("{} {}, {name} {id}", process.name, process.pid),
        }
    }

    fn root(&self, kind: Kind) -> u32 {
        let index = Kind::parents().position(|root| root == kind).unwrap_or(0);
        (self.frames + index) as u32
    }

    /// The steps of a stack, outermost first.
    pub fn chain(&self, stack: u32, state: State) -> impl Iterator<Item = u32> + '_ {
        let first = (!state.is_active()).then(|| self.root(Kind::In(state)));
        let stack = self.profile.stacks.get(stack as usize);
        let sound = stack.filter(|stack| stack.frames.iter().all(|frame| (*frame as usize) < self.frames));
        let broken = match sound {
            None => Some(Broken::Missing),
            // A track that sleeps or spins may have no stack.
            Some(stack) if stack.frames.is_empty() && !state.is_active() => None,
            Some(stack) if stack.frames.is_empty() => Some(Broken::of(stack.end).unwrap_or(Broken::NoFrames)),
            Some(stack) => Broken::of(stack.end),
        };
        let second = broken.map(|broken| self.root(Kind::Broken(broken)));
        let frames = sound.map_or(&[][..], |stack| &stack.frames);
        first.into_iter().chain(second).chain(frames.iter().copied())
    }

    /// Every group and how many samples it has, in order.
    pub fn groups(&self, states: States) -> Vec<(Group, u64)> {
        let mut counts: HashMap<Group, u64> = HashMap::new();
        for sample in self.profile.samples.iter().filter(|sample| self.is_exported(sample, states)) {
            let state = sample.state.number() as u8;
            let thread = self.guest_thread(sample);
            *counts.entry(Group { stack: sample.stack, state, track: sample.track, thread }).or_default() += 1;
        }
        let mut groups: Vec<_> = counts.into_iter().collect();
        groups.sort_unstable();
        groups
    }

    /// Whether a sample is exported.
    pub fn is_exported(&self, sample: &Sample, states: States) -> bool {
        let is_left_out = self.left_out.get(sample.track as usize).copied().unwrap_or(false);
        !is_left_out && (states == States::All || sample.state.is_active())
    }

    /// The thread of a guest that ran in a sample; `None` of its idle task, and of tracks that are threads themselves.
    fn guest_thread(&self, sample: &Sample) -> Option<usize> {
        match self.threads.subject(sample) {
            Subject::Thread(thread) if !self.by_vcpu && self.is_of_guest(thread) => Some(thread),
            _ => None,
        }
    }

    fn is_of_guest(&self, thread: usize) -> bool {
        self.threads.processes[self.threads.threads[thread].process].is_of_guest
    }

    /// All samples: first each track with what is of no thread of a guest, then each of these threads.
    pub fn series(&self) -> Vec<Series> {
        let tracks = 0..self.profile.tracks.len() as u32;
        let mut series: Vec<Series> = tracks.map(|track| Series { track, thread: None, samples: Vec::new() }).collect();
        let mut of_threads: BTreeMap<usize, Series> = BTreeMap::new();
        for (index, sample) in (0..).zip(&self.profile.samples) {
            // Our reader produces no sample of an unknown track; there is no place to show it.
            let Some(of_track) = series.get_mut(sample.track as usize) else { continue };
            let new = |thread| Series { track: sample.track, thread: Some(thread), samples: Vec::new() };
            let place = match self.guest_thread(sample) {
                None => of_track,
                Some(thread) => of_threads.entry(thread).or_insert_with(|| new(thread)),
            };
            place.samples.push(index);
        }
        series.extend(of_threads.into_values());
        series
    }

    /// Which thread of which process, or which vCPU, as readers of profiles of Linux name it. Of a thread of a guest also its vCPU.
    pub fn labels(&self, track: u32, thread: Option<usize>, wanted: Labels) -> Vec<(&'static str, Label)> {
        let of_thread = thread.map(|thread| {
            let SampledThread { process, name, tid } = &self.threads.threads[thread];
            (&self.threads.processes[*process], name, *tid)
        });
        match wanted {
            Labels::None => return Vec::new(),
            Labels::Process => {
                let process = of_thread.map(|(process, _, _)| ("guest_process", Label::Text(process.name.clone())));
                return process.into_iter().collect();
            }
            Labels::All => {}
        }
        let (text, number) = (|text: &str| Label::Text(text.to_owned()), |number: u32| Label::Number(number.into()));
        let (name, id) = (self.track_name(track), self.profile.tracks.get(track as usize).map_or(0, |track| track.id));
        match (of_thread, self.process(track)) {
            (Some((process, thread, tid)), _) => vec![
                ("thread", text(thread)),
                ("process", text(&process.name)),
                ("pid", number(process.pid)),
                ("tid", number(tid)),
                ("vcpu", Label::Text(name)),
            ],
            (None, None) => vec![("thread", Label::Text(name)), ("thread_id", Label::Number(id))],
            (None, Some(process)) => vec![
                ("thread", Label::Text(name)),
                ("process", text(&process.name)),
                ("pid", number(process.pid)),
                ("tid", Label::Number(id)),
            ],
        }
    }

    /// The labels of a group that are not of its thread: its state, if it is not running, and whose code it is.
    pub fn labels_of_code(&self, group: Group) -> Vec<(&'static str, Label)> {
        let text = |text: &str| Label::Text(text.to_owned());
        let state = (group.state() != State::Running).then(|| ("state", text(group.state().word())));
        let innermost = self.chain(group.stack, group.state()).last();
        let layer = innermost.and_then(|step| self.steps[step as usize].layer);
        state.into_iter().chain(layer.map(|layer| ("mode", text(layer.word())))).collect()
    }

    /// The places of a stack, innermost first: each is a function and those that were inlined into it, outermost first.
    pub fn places(&self, stack: u32, state: State) -> Vec<Vec<u32>> {
        let steps: Vec<u32> = self.chain(stack, state).collect();
        let is_first = |step: &u32| !self.steps[*step as usize].inlined;
        let mut places: Vec<Vec<u32>> = steps.chunk_by(|_, next| !is_first(next)).map(<[u32]>::to_vec).collect();
        places.reverse();
        places
    }

    /// The name of a series, with those of its process.
    pub fn label(&self, series: &Series) -> String {
        series.thread.map_or_else(|| self.track_label(series.track), |thread| self.threads.thread_label(thread))
    }

    /// Printable name of a track.
    pub fn track_name(&self, track: u32) -> String {
        self.profile.tracks.get(track as usize).map_or_else(|| "unknown".to_owned(), |track| printable(&track.name))
    }

    /// Time between two samples of a track.
    pub fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.profile.origin.rate_hz.max(1))
    }
}

impl Group {
    pub fn state(self) -> State {
        State::ALL.get(usize::from(self.state)).copied().unwrap_or_default()
    }
}

/// The profiler overhead, in one line for formats that have room for a comment.
pub(crate) fn cost_line(profile: &Profile) -> String {
    let cost = &profile.cost;
    let pause = match cost.pause.count {
        0 => "the guest was not stopped".to_owned(),
        _ => format!(
            "pauses of {} us (median), {} us (p99), {} us (longest)",
            cost.pause.median_ns / 1_000,
            cost.pause.p99_ns / 1_000,
            cost.pause.max_ns / 1_000
        ),
    };
    format!(
        "{} samples collected of {} expected, {} lost, {} late; {} stacks broken; {pause}; the profiler used {} ms of CPU time in {} ms",
        cost.samples_taken,
        cost.samples_wanted,
        cost.samples_lost,
        cost.samples_late,
        cost.stacks_broken,
        cost.profiler_cpu_ns / 1_000_000,
        profile.origin.duration_ns / 1_000_000
    )
}

/// The process or thread that the profile was restricted to, and its warnings, a sentence each.
pub(crate) fn remarks(profile: &Profile) -> impl Iterator<Item = String> {
    profile.only.iter().map(Only::sentence).chain(profile.warnings.iter().map(|warning| printable(warning)))
}

/// The title of a profile, in one line.
pub(crate) fn title(profile: &Profile) -> String {
    match profile.origin.guest.as_str() {
        "" => "recording".to_owned(),
        guest => printable(guest),
    }
}
