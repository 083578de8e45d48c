//! Writes events to a recording: unwinds, interns, appends; names come at the end.
//!
//! Runs in a separate thread while the guest runs, so it does not prolong a pause.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

use crate::durations::Durations;
use crate::event::{Event, NumberedWait, RawSample};
use crate::files::FileSource;
use crate::guest::{GuestId, SpaceId, ThreadId};
use crate::images::{Images, JoinedStack, MappedFile, Part};
use crate::model::{Cost, Distribution, Losses, Origin, StackEnd, State};
use crate::program::NameSource;
use crate::recording::{Clocks, ImageId, SampleRecord, TrackRecord, Writer, is_plain};
use crate::unwind::CallAddress;

/// Maximum of distinct frames, and of distinct stacks, in memory. Beyond it, all are dropped and written again when they
/// occur again: the file grows then, and not the memory.
const INTERNED_MAX: usize = 1 << 20;
/// From so many samples with a stack on, a file without any of them is reported.
const STACKS_ENOUGH: u64 = 20;

/// Counters of the recorder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Samples written.
    pub samples_taken: u64,
    /// Samples that could not be kept.
    pub samples_dropped: u64,
    /// Of those written, stacks that do not reach their start.
    pub stacks_broken: u64,
    /// Pauses of the guest.
    pub pause: Distribution,
}

/// The state of an image in the recording.
#[derive(Default)]
struct WrittenImage {
    /// Its number in the recording, once a frame needed it.
    iid: Option<u64>,
    /// Linked addresses that stacks contain.
    addresses: BTreeSet<u64>,
    /// How many frames of samples they were, if it is a program in a guest.
    frames: BTreeMap<u64, u64>,
    is_of_guest: bool,
}

/// The wait of a track, as its sample was written.
struct KeptWait {
    number: u32,
    callstack: Option<u64>,
    end: StackEnd,
    state: State,
    thread: Option<ThreadId>,
    parts: Vec<Part>,
}

/// Writes events to a recording.
pub struct Recorder<W> {
    writer: Writer<W>,
    images: Images,
    /// By the image's index.
    written: BTreeMap<u32, WrittenImage>,
    /// Their numbers in the recording, by those of the source.
    tracks: HashMap<u32, u32>,
    /// How many tracks there were, and how many of them of machines.
    numbered: u32,
    vcpus: u32,
    /// The guests that are machines.
    machines: HashSet<GuestId>,
    /// The guests of the address spaces that belong to no process; a sample that names one writes it.
    spaces: HashMap<SpaceId, GuestId>,
    interned_max: usize,
    frames: HashMap<CallAddress, u64>,
    /// By a fingerprint of 128 bits with secret keys: the frames themselves would be ten times as much.
    callstacks: HashMap<u128, u64>,
    fingerprints: [RandomState; 2],
    /// By the track's number of the source.
    waits: HashMap<u32, KeptWait>,
    pauses: Durations,
    progress: Progress,
    /// Samples with a stack.
    stacks: u64,
    first_ns: u64,
    last_ns: u64,
    /// The CPU time until the first [`checkpoint`](Recorder::checkpoint).
    attached_cpu_ns: Option<u64>,
}

impl<W: Write> Recorder<W> {
    /// Starts a recording.
    pub fn start(output: W, clocks: Clocks, origin: &Origin) -> io::Result<Recorder<W>> {
        Ok(Recorder {
            writer: Writer::start(output, clocks, origin)?,
            images: Images::default(),
            written: BTreeMap::new(),
            tracks: HashMap::new(),
            numbered: 0,
            vcpus: 0,
            machines: HashSet::new(),
            spaces: HashMap::new(),
            interned_max: INTERNED_MAX,
            frames: HashMap::new(),
            callstacks: HashMap::new(),
            fingerprints: [RandomState::new(), RandomState::new()],
            waits: HashMap::new(),
            pauses: Durations::default(),
            progress: Progress::default(),
            stacks: 0,
            first_ns: clocks.monotonic_ns,
            last_ns: clocks.monotonic_ns,
            attached_cpu_ns: None,
        })
    }

    /// Keeps only so many distinct frames and stacks in memory.
    #[doc(hidden)]
    #[must_use]
    pub fn with_interned_max(mut self, interned_max: usize) -> Recorder<W> {
        self.interned_max = interned_max;
        self
    }

    /// How many tracks there were; with a machine among the guests those of machines, which alone are stopped.
    pub fn tracks(&self) -> u32 {
        if self.machines.is_empty() { self.numbered } else { self.vcpus }
    }

    /// How many tracks and address spaces there are now.
    pub fn living(&self) -> (usize, usize) {
        (self.tracks.len(), self.images.spaces())
    }

    /// Processes an event. `files` returns the bytes of mapped files. Fails if the recording cannot be written.
    pub fn event(&mut self, event: Event, files: &mut dyn FileSource) -> io::Result<()> {
        self.images.learn(&event, files);
        match event {
            Event::Guest(guest) => {
                if guest.kind.is_machine() {
                    self.machines.insert(guest.id);
                }
                self.writer.guest(&guest)
            }
            Event::Track { track, guest, id, name } => {
                let next = self.numbered;
                let number = self.tracks.get(&track).copied().unwrap_or(next);
                self.numbered += u32::from(number == next);
                self.vcpus += u32::from(number == next && self.machines.contains(&guest));
                self.tracks.insert(track, number);
                self.writer.track(&TrackRecord { number, guest, id, name })
            }
            Event::TrackEnd(track) => {
                self.waits.remove(&track);
                if let Some(number) = self.tracks.remove(&track) {
                    self.writer.forget_track(number);
                }
                Ok(())
            }
            Event::Map { .. } => {
                self.images.take_warnings().iter().try_for_each(|warning| self.writer.warning(warning))
            }
            Event::SpaceEnd(space) => {
                self.spaces.remove(&space);
                self.writer.forget_space(space);
                Ok(())
            }
            Event::Process(mut process) => {
                process
                    .programs
                    .iter_mut()
                    .for_each(|since| since.time_ns = since.time_ns.saturating_sub(self.first_ns));
                self.writer.process(&process)
            }
            Event::Thread(thread) => self.writer.thread(&thread),
            Event::Space { space, guest, process: Some(process), .. } => self.writer.space_of(space, guest, process),
            Event::Space { space, guest, process: None, .. } => {
                self.spaces.insert(space, guest);
                Ok(())
            }
            Event::Place { .. } => Ok(()),
            Event::Sample(sample) => self.sample(&sample, files),
            Event::StillWaits { time_ns, tracks } => {
                tracks.into_iter().try_for_each(|(track, number)| self.still_waits(track, number, time_ns))
            }
            Event::Frozen { tracks_ns } => {
                for (track, ns) in tracks_ns {
                    self.pauses.add(ns);
                    if let Some(number) = self.tracks.get(&track) {
                        self.writer.frozen(*number, ns)?;
                    }
                }
                Ok(())
            }
            Event::Warning(text) => self.writer.warning(&text),
            Event::Trace(piece) => self.writer.trace(&piece),
        }
    }

    fn sample(&mut self, sample: &RawSample, files: &mut dyn FileSource) -> io::Result<()> {
        let Some(track) = self.tracks.get(&sample.track).copied() else {
            self.progress.samples_dropped += 1;
            return Ok(());
        };
        let stack = self.images.unwind(sample);
        self.images.sampled(&stack, files);
        let JoinedStack { calls, end, parts, .. } = stack;
        if !is_plain(&parts) {
            for part in &parts {
                if let Some(guest) = self.spaces.get(&part.space) {
                    self.writer.space(part.space, *guest)?;
                }
            }
        }
        let callstack = if calls.is_empty() { None } else { Some(self.callstack(&calls)?) };
        self.stacks += u64::from(callstack.is_some());
        self.writer.sample(&SampleRecord {
            time_ns: sample.time_ns,
            track,
            callstack,
            end,
            state: sample.state,
            thread: sample.thread,
            frozen_ns: sample.frozen_ns,
            parts: &parts,
        })?;
        match sample.wait {
            Some(NumberedWait { number, .. }) => {
                let (state, thread) = (sample.state, sample.thread);
                self.waits.insert(sample.track, KeptWait { number, callstack, end, state, thread, parts });
            }
            None => _ = self.waits.remove(&sample.track),
        }
        if sample.frozen_ns > 0 {
            self.pauses.add(sample.frozen_ns);
        }
        self.count(end, sample.time_ns);
        Ok(())
    }

    /// Writes the sample of a wait once more. One whose own sample was dropped is dropped, too.
    fn still_waits(&mut self, track: u32, wait: u32, time_ns: u64) -> io::Result<()> {
        let kept = self.waits.get(&track).filter(|kept| kept.number == wait);
        let Some((KeptWait { callstack, end, state, thread, parts, .. }, number)) = kept.zip(self.tracks.get(&track))
        else {
            self.progress.samples_dropped += 1;
            return Ok(());
        };
        let (callstack, end, state, thread) = (*callstack, *end, *state, *thread);
        let record = SampleRecord { time_ns, track: *number, callstack, end, state, thread, frozen_ns: 0, parts };
        self.writer.sample(&record)?;
        self.count(end, time_ns);
        Ok(())
    }

    /// Counts a sample that was written.
    fn count(&mut self, end: StackEnd, time_ns: u64) {
        self.progress.samples_taken += 1;
        self.progress.stacks_broken += u64::from(end != StackEnd::Complete);
        self.last_ns = self.last_ns.max(time_ns);
    }

    /// The number of a stack in the recording; `calls` are innermost first.
    fn callstack(&mut self, calls: &[CallAddress]) -> io::Result<u64> {
        let mut frames = Vec::with_capacity(calls.len());
        for call in calls.iter().rev() {
            frames.push(self.frame(*call)?);
        }
        for call in calls {
            let image = call.image.and_then(|index| self.written.get_mut(&index)).filter(|image| image.is_of_guest);
            if let Some(image) = image {
                *image.frames.entry(call.address).or_default() += 1;
            }
        }
        let [high, low] = self.fingerprints.each_ref().map(|state| u128::from(state.hash_one(&frames)));
        let fingerprint = high << 64 | low;
        if let Some(iid) = self.callstacks.get(&fingerprint) {
            return Ok(*iid);
        }
        let iid = self.writer.callstack(&frames)?;
        if self.callstacks.len() >= self.interned_max {
            self.callstacks.clear();
        }
        self.callstacks.insert(fingerprint, iid);
        Ok(iid)
    }

    fn frame(&mut self, call: CallAddress) -> io::Result<u64> {
        if let Some(iid) = self.frames.get(&call) {
            return Ok(*iid);
        }
        let mut image_iid = None;
        if let Some(index) = call.image
            && let Some(file) = self.images.file(index)
        {
            let is_of_guest = self.images.is_of_guest(index);
            let written = self.written.entry(index).or_default();
            written.is_of_guest = is_of_guest;
            written.addresses.insert(call.address);
            image_iid = Some(match written.iid {
                Some(iid) => iid,
                None => {
                    let iid = self.writer.image(&image_id(file), file.range.0, file.range.1)?;
                    written.iid = Some(iid);
                    iid
                }
            });
        }
        let iid = self.writer.frame(image_iid, call.address)?;
        if self.frames.len() >= self.interned_max {
            self.frames.clear();
        }
        self.frames.insert(call, iid);
        Ok(iid)
    }

    /// The counters so far.
    pub fn progress(&self) -> Progress {
        Progress { pause: self.pauses.distribution(), ..self.progress }
    }

    fn complete_cost(&self, cost: &Cost) -> Cost {
        let progress = self.progress();
        let queue_full = cost.losses.queue_full.saturating_add(progress.samples_dropped);
        let losses = Losses { queue_full, ..cost.losses };
        Cost {
            samples_taken: progress.samples_taken,
            samples_lost: losses.samples(),
            samples_wanted: progress.samples_taken.saturating_add(losses.samples()),
            samples_late: cost.samples_late.min(progress.samples_taken),
            losses,
            stacks_broken: progress.stacks_broken,
            pause: progress.pause,
            sampling_cpu_ns: cost.profiler_cpu_ns.saturating_sub(self.attached_cpu_ns.unwrap_or(cost.profiler_cpu_ns)),
            ..cost.clone()
        }
    }

    /// Writes the cost so far, for a recording that may be cut, and flushes to the system.
    /// Of `cost` the recorder uses the losses, the late samples and the CPU time: the rest it counts itself.
    /// The CPU time of the first one is what attaching took.
    pub fn checkpoint(&mut self, cost: &Cost) -> io::Result<()> {
        self.attached_cpu_ns.get_or_insert(cost.profiler_cpu_ns);
        let cost = self.complete_cost(cost);
        self.writer.cost(&cost, self.last_ns - self.first_ns, false)
    }

    /// Writes names and the final cost. `cost` is as in [`checkpoint`](Recorder::checkpoint), but its
    /// CPU time is read last. `end_ns` is the end of sampling on the clock of the samples.
    pub fn finish(
        mut self,
        cost: &Cost,
        end_ns: u64,
        files: &mut dyn FileSource,
        profiler_cpu_ns: impl FnOnce() -> u64,
    ) -> io::Result<(Cost, W)> {
        if self.stacks >= STACKS_ENOUGH {
            let elsewhere = self.frames.keys().filter(|call| call.image.is_none()).map(|call| call.address).min();
            let unseen = self.images.unseen(|index| self.written.contains_key(&index), elsewhere);
            unseen.iter().try_for_each(|warning| self.writer.warning(warning))?;
        }
        let mut named: BTreeMap<NameSource, u64> = BTreeMap::new();
        for (index, written) in std::mem::take(&mut self.written) {
            let Some(file) = self.images.file(index) else { continue };
            let names = match self.images.names(index, files) {
                Ok(names) => names,
                Err(warning) => {
                    self.writer.warning(&warning)?;
                    self.images.nameless(index)
                }
            };
            for (address, frames) in &written.frames {
                *named.entry(names.source(*address)).or_default() += frames;
            }
            let functions: Vec<_> =
                written.addresses.iter().map(|address| (*address, names.locate(*address))).collect();
            self.writer.symbols(&image_id(file), end_ns, &functions)?;
            for address in &written.addresses {
                self.writer.changes(written.iid, *address, &names.changes(*address))?;
            }
            names.warnings(&written.addresses).iter().try_for_each(|warning| self.writer.warning(warning))?;
        }
        if !named.is_empty() {
            self.writer.named(named.into_iter().map(|(source, frames)| (source.text(), frames)))?;
        }
        let mut cost = self.complete_cost(cost);
        cost.profiler_cpu_ns = profiler_cpu_ns();
        self.writer.cost(&cost, end_ns.max(self.last_ns) - self.first_ns, true)?;
        Ok((cost, self.writer.into_inner()))
    }
}

fn image_id(file: &MappedFile) -> ImageId {
    ImageId { path: file.path.clone(), build_id: file.build_id.clone() }
}
