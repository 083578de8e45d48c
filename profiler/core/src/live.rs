//! A profile that is looked at while it is taken: counts that fade, instead of a recording that grows.
//!
//! [`Live`] takes events as the recorder does and counts distinct stacks in bounded memory.
//! [`Live::snapshot`] copies what it holds; [`view::View`] makes tables of a snapshot, with names from
//! [`names::NameCache`], so that the slow part needs no access to the counts.

pub mod activity;
pub mod names;
mod stacks;
pub mod view;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::durations::Durations;
use crate::event::{Event, RawSample};
use crate::images::{Images, Names};
use crate::model::{StackEnd, State};
use crate::recorder::Progress;
use crate::recording::FileSource;
use crate::unwind::CallAddress;
use activity::{Activity, Kind};
use stacks::Stacks;

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
    /// Path of each image, by the index in [`CallAddress::image`].
    pub paths: Vec<String>,
    /// What was counted since the start or the last reset.
    pub progress: Progress,
    /// From the first counted sample to now.
    pub covered_ns: u64,
    /// What the user should know, newest last.
    pub warnings: Vec<String>,
}

/// Counts samples as they come.
pub struct Live {
    settings: Settings,
    images: Images,
    stacks: Stacks,
    tracks: HashMap<u32, LiveTrack>,
    pauses: Durations,
    progress: Progress,
    first_ns: Option<u64>,
    warnings: VecDeque<String>,
    chain: Vec<CallAddress>,
}

impl Live {
    /// Nothing counted yet.
    pub fn new(settings: Settings) -> Live {
        Live {
            settings,
            images: Images::default(),
            stacks: Stacks::new(settings.half_life_ns),
            tracks: HashMap::new(),
            pauses: Durations::default(),
            progress: Progress::default(),
            first_ns: None,
            warnings: VecDeque::new(),
            chain: Vec::new(),
        }
    }

    /// Takes an event. `files` gives the bytes of mapped files.
    pub fn event(&mut self, event: Event, files: &mut dyn FileSource) {
        self.images.learn(&event, files);
        match event {
            Event::Track { track, id, name, .. } => self.track(track, id, name),
            Event::Map { .. } => self.images.take_warnings().into_iter().for_each(|text| self.warn(text)),
            Event::Sample(sample) => self.sample(&sample, files),
            Event::Frozen { tracks_ns } => tracks_ns.into_iter().for_each(|(_, ns)| self.pauses.add(ns)),
            Event::Warning(text) => self.warn(text),
            // What a thread has done until its end is still to be seen. A live profile is of samples; `glass top
            // --tasks` looks at traces.
            Event::Guest(_)
            | Event::Space { .. }
            | Event::SpaceEnd(_)
            | Event::TrackEnd(_)
            | Event::Place { .. }
            | Event::Trace(_) => {}
        }
    }

    fn track(&mut self, track: u32, id: u64, name: String) {
        if let Some(known) = self.tracks.get_mut(&track) {
            known.id = id;
            known.name = name;
            return;
        }
        if self.tracks.len() >= TRACKS_MAX {
            // Those that were quiet for as long as we remember go.
            self.tracks.retain(|_, track| !track.activity.is_quiet());
        }
        if self.tracks.len() < TRACKS_MAX {
            let activity = Activity::new(self.settings.kind);
            self.tracks.insert(track, LiveTrack { track, id, name, activity });
        }
    }

    fn sample(&mut self, sample: &RawSample, files: &mut dyn FileSource) {
        let stack = self.images.unwind(sample);
        self.images.sampled(&stack, files);
        let broken = stack.end != StackEnd::Complete;
        self.chain = stack.calls;
        self.count(sample.time_ns, sample.track, sample.state, broken, sample.frozen_ns);
    }

    /// Counts the stack in `self.chain`.
    fn count(&mut self, time_ns: u64, track: u32, state: State, broken: bool, frozen_ns: u64) {
        let Some(known) = self.tracks.get_mut(&track) else {
            self.progress.samples_dropped += 1;
            return;
        };
        known.activity.add(time_ns, state);
        self.stacks.add(time_ns, track, state, &self.chain);
        self.first_ns.get_or_insert(time_ns);
        self.progress.samples_taken += 1;
        self.progress.stacks_broken += u64::from(broken);
        if frozen_ns > 0 {
            self.pauses.add(frozen_ns);
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
        let mut paths = Vec::new();
        while let Some(file) = self.images.file(paths.len() as u32) {
            paths.push(file.path.clone());
        }
        let progress = Progress { pause: self.pauses.distribution(), ..self.progress };
        let covered_ns = self.first_ns.map_or(0, |first| now_ns.saturating_sub(first));
        Snapshot {
            covered_ns,
            frames,
            stacks,
            forgotten,
            tracks,
            paths,
            progress,
            warnings: self.warnings.iter().cloned().collect(),
        }
    }

    /// The names in an image, or one sentence why there are none. Slow: reads the file.
    pub fn names(&self, image: u32, files: &mut dyn FileSource) -> Result<Names, String> {
        self.images.names(image, files)
    }
}

#[cfg(test)]
mod tests;
