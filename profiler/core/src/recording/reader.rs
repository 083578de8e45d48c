//! Reads a recording back. Trusts nothing: any bytes give a profile or a sentence.

use std::collections::{BTreeSet, HashMap};

use prost::Message;

use super::changes::Changes;
use super::error::{OtherKind, ReadError};
use super::names::{self, Builder, Recorded};
use super::packets::{Next, next_packet};
use super::processes::Processes;
use super::proto::{self, TracePacket};
use super::recorded::{Place, RecordedImage, Recording};
use super::{ENDS, MODES, VERSION, WIDTHS, perfetto_path, pieces, version_1};
use crate::arch::{Architecture, Width};
use crate::files::FileSource;
use crate::guest::{Guest, GuestId, GuestKind, Mode};
use crate::guest_processes;
use crate::model::{Cost, Distribution, Frozen, Origin, Profile, STACK_ENTRIES_MAX, Sample, StackEnd, State, Track};
use crate::symbols::{INLINE_DEPTH_MAX, Location};

/// The most tracks, and the most guests.
const TRACKS_MAX: usize = 1 << 20;
/// The version from which on guests are recorded.
const WITH_GUESTS: u32 = 2;
/// The version from which on losses are counted by kind, and the account adds up.
const WITH_LOSSES: u32 = 3;
/// Packets that could not be used are reported one by one up to this many.
const NAME_SOURCES_MAX: usize = 16;
const WARNINGS_MAX: usize = 100;

fn text(bytes: &Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
}

fn locations(lines: &[proto::Line]) -> Vec<Location> {
    let location = |line: &proto::Line| Location {
        function: text(&line.function_name),
        file: line.source_file_name.as_ref().map(|_| text(&line.source_file_name)),
        line: line.line_number,
        start_line: line.start_line,
    };
    lines.iter().take(INLINE_DEPTH_MAX).map(location).collect()
}

/// The interned tables and everything else that is collected before names are known.
#[derive(Default)]
struct Collected {
    recording: Recording,
    header: bool,
    start_timestamp: u64,
    paths: HashMap<u64, String>,
    build_ids: HashMap<u64, Vec<u8>>,
    /// Index of an image by path as Perfetto writes it, and build id.
    image_of: HashMap<(String, Vec<u8>), u32>,
    /// Index of an image by the number of a mapping in the file.
    mappings: HashMap<u64, u32>,
    frames: HashMap<u64, Place>,
    callstacks: HashMap<u64, Vec<u64>>,
    /// Index of a track by its number in the file: until 2026-11-22 the recorder left gaps between these.
    tracks: HashMap<u32, u32>,
    /// Index of a guest by its number in the file.
    guests: HashMap<u32, u32>,
    version_1: version_1::Seen,
    processes: Processes,
    symbols: Recorded,
    changes: Changes,
    /// Time, track, callstack, end, state.
    samples: Vec<(Sample, u64, StackEnd)>,
    pauses: crate::durations::Durations,
    dropped: u64,
}

/// [`open`] for callers that need only the profile.
pub fn read(bytes: &[u8], files: &mut dyn FileSource) -> Result<Profile, ReadError> {
    open(bytes, files).map(|recording| recording.profile)
}

/// Reads a recording. Names that the file lacks are looked up in the files that it mentions, through
/// `files`; a file with another build id than the recorded one is not used.
pub fn open(bytes: &[u8], files: &mut dyn FileSource) -> Result<Recording, ReadError> {
    let mut collected = Collected::default();
    let mut rest = bytes;
    if bytes.is_empty() {
        return Err(ReadError::Empty);
    }
    let foreign = || OtherKind::of(bytes).map_or(ReadError::NotATrace, ReadError::OtherKind);
    let mut cut = None;
    let mut packets = 0u64;
    loop {
        match next_packet(rest) {
            Next::Packet(packet, after) => {
                match TracePacket::decode(packet) {
                    Ok(packet) => collected.packet(packet)?,
                    Err(_) if packets == 0 => return Err(foreign()),
                    Err(_) => collected.dropped += 1,
                }
                packets += 1;
                rest = after;
            }
            Next::End => break,
            Next::Cut => {
                cut = Some("the recording is cut off within its last packet");
                break;
            }
            Next::Garbage if packets == 0 => return Err(foreign()),
            Next::Garbage => {
                cut = Some("the recording is damaged");
                break;
            }
        }
    }
    if !collected.header {
        return Err(if packets == 0 { foreign() } else { ReadError::NotOurs });
    }
    if let Some(why) = cut {
        let offset = bytes.len() - rest.len();
        collected.warn(format!("{why}: {} of {} bytes were used", offset, bytes.len()));
    } else if !collected.recording.is_complete {
        collected.warn("the recorder was ended before it could finish: the last seconds may be missing".to_owned());
    }
    Ok(collected.finish(files))
}

/// Whose code ran, and how wide it was; `None` if the numbers are of no version that is known.
fn code_of(sample: &proto::PerfSample, extra: &proto::SampleExtra) -> Option<(Mode, Width)> {
    if let Some(segment) = extra.segments.first() {
        let mode = MODES.get(segment.mode.unwrap_or(0) as usize)?;
        return Some((*mode, *WIDTHS.get(segment.width.unwrap_or(0) as usize)?));
    }
    let mode = match sample.cpu_mode.unwrap_or(proto::MODE_USER) {
        proto::MODE_USER | proto::MODE_GUEST_USER => Mode::User,
        proto::MODE_HYPERVISOR => Mode::Hypervisor,
        _ => Mode::Kernel,
    };
    Some((mode, Width::Bits64))
}

impl Collected {
    fn warn(&mut self, text: String) {
        if self.recording.profile.warnings.len() < WARNINGS_MAX {
            self.recording.profile.warnings.push(text);
        }
    }

    fn packet(&mut self, mut packet: TracePacket) -> Result<(), ReadError> {
        if let Some(message) = packet.glass.as_mut().and_then(|glass| glass.trace.take()) {
            self.trace(message);
        }
        self.version_1.look(&packet);
        if let Some(glass) = &packet.glass {
            self.glass(glass)?;
        }
        if let Some(data) = packet.interned_data {
            self.interned(data);
        }
        if let Some(module) = packet.module_symbols {
            self.module(module);
        }
        if let (Some(sample), Some(extra)) = (&packet.perf_sample, packet.glass.and_then(|glass| glass.sample)) {
            self.sample(packet.timestamp.unwrap_or(0), sample, &extra);
        }
        Ok(())
    }

    fn glass(&mut self, glass: &proto::Glass) -> Result<(), ReadError> {
        if let Some(header) = &glass.header {
            let version = header.version.unwrap_or(0);
            if version > VERSION {
                return Err(ReadError::TooNew(version));
            }
            self.header = true;
            self.recording.version = version;
            self.start_timestamp = header.start_timestamp.unwrap_or(0);
            self.recording.profile.origin = Origin {
                guest: text(&header.guest),
                backend: text(&header.backend),
                symbols: text(&header.symbols),
                host: text(&header.host),
                start_unix_ns: header.start_unix_ns.unwrap_or(0),
                duration_ns: self.recording.profile.origin.duration_ns,
                rate_hz: header.rate_hz.unwrap_or(0),
                recorder: text(&header.recorder),
            };
        }
        if let Some(guest) = &glass.guest {
            self.guest(guest);
        }
        let guest_of = |number: Option<u32>| self.guests.get(&number.unwrap_or(0)).copied();
        let is_known = match (&glass.process, &glass.thread, &glass.space) {
            (Some(process), ..) => self.processes.process(process, guest_of(process.guest), self.start_timestamp),
            (_, Some(thread), _) => self.processes.thread(thread),
            (.., Some(space)) => self.processes.space(space, guest_of(space.guest)),
            _ => true,
        };
        self.dropped += u64::from(!is_known);
        if let Some(track) = &glass.track {
            self.track(track);
        }
        if let Some(frozen) = &glass.frozen {
            self.frozen(frozen.track.unwrap_or(0), frozen.ns.unwrap_or(0));
        }
        if let Some(cost) = &glass.cost {
            let pause = cost.pause.clone().unwrap_or_default();
            self.recording.profile.cost = Cost {
                samples_wanted: cost.samples_wanted.unwrap_or(0),
                samples_taken: cost.samples_taken.unwrap_or(0),
                samples_lost: cost.samples_lost.unwrap_or(0),
                samples_late: cost.samples_late.unwrap_or(0),
                stacks_broken: cost.stacks_broken.unwrap_or(0),
                pause: Distribution {
                    count: pause.count.unwrap_or(0),
                    median_ns: pause.median_ns.unwrap_or(0),
                    p99_ns: pause.p99_ns.unwrap_or(0),
                    max_ns: pause.max_ns.unwrap_or(0),
                    sum_ns: pause.sum_ns.unwrap_or(0),
                },
                losses: super::processes::losses(cost.losses.as_ref()),
                profiler_cpu_ns: cost.profiler_cpu_ns.unwrap_or(0),
                sampling_cpu_ns: cost.sampling_cpu_ns.unwrap_or(0),
            };
            self.recording.profile.origin.duration_ns = cost.duration_ns.unwrap_or(0);
            self.recording.is_complete = cost.complete.unwrap_or(false);
        }
        if glass.warning.is_some() {
            self.warn(text(&glass.warning));
        }
        if let Some(changed) = &glass.changed {
            self.changed(changed);
        }
        if let Some(named) = &glass.named {
            let sources = named.sources.iter().take(NAME_SOURCES_MAX);
            let sources = sources.map(|source| (text(&source.text), source.frames.unwrap_or(0)));
            self.recording.profile.named = sources.collect();
        }
        Ok(())
    }

    fn trace(&mut self, message: proto::TracePiece) {
        if message == proto::TracePiece::default() {
            // Of a kind that a later version has added.
            return;
        }
        let piece = pieces::piece(message, self.start_timestamp);
        if !piece.is_some_and(|piece| self.recording.trace.add(piece)) {
            self.dropped += 1;
        }
    }

    fn guest(&mut self, message: &proto::Guest) {
        let (number, id) = (message.number.unwrap_or(0), message.id.unwrap_or(0));
        let kind = match message.kind.unwrap_or(0) {
            0 => Some(GuestKind::Process { pid: number }),
            1 => Some(GuestKind::Vm { vmm: number }),
            2 => Some(GuestKind::XenDomain { id: number }),
            3 => Some(GuestKind::File),
            _ => None,
        };
        let architecture = Architecture::of_number(message.architecture.unwrap_or(0));
        let (Some(kind), Some(architecture)) = (kind, architecture) else {
            self.dropped += 1;
            return;
        };
        let guest = Guest { id: GuestId(id), kind, name: text(&message.name), architecture };
        let guests = &mut self.recording.profile.guests;
        match self.guests.get(&id) {
            Some(index) => guests[*index as usize] = guest,
            None if guests.len() < TRACKS_MAX => {
                self.guests.insert(id, guests.len() as u32);
                guests.push(guest);
            }
            None => self.dropped += 1,
        }
    }

    fn track(&mut self, message: &proto::Track) {
        let number = message.index.unwrap_or(0);
        let guest = self.guests.get(&message.guest.unwrap_or(0)).copied();
        let (name, id) = (text(&message.name), message.id.unwrap_or(0));
        let tracks = &mut self.recording.profile.tracks;
        match self.tracks.get(&number) {
            Some(index) => {
                let track = &mut tracks[*index as usize];
                (track.name, track.id) = (name, id);
            }
            None if tracks.len() < TRACKS_MAX => {
                self.tracks.insert(number, tracks.len() as u32);
                tracks.push(Track { name, id, guest: guest.unwrap_or(0), frozen: Frozen::default() });
            }
            None => self.dropped += 1,
        }
    }

    /// A pause of a track.
    fn frozen(&mut self, number: u32, ns: u64) {
        let index = self.tracks.get(&number).copied();
        match index.and_then(|index| self.recording.profile.tracks.get_mut(index as usize)) {
            Some(track) => {
                track.frozen.add(ns);
                self.pauses.add(ns);
            }
            None => self.dropped += 1,
        }
    }

    fn interned(&mut self, data: proto::InternedData) {
        for string in data.mapping_paths {
            self.paths.insert(string.iid.unwrap_or(0), perfetto_path(&text(&string.str)));
        }
        for string in data.build_ids {
            self.build_ids.insert(string.iid.unwrap_or(0), string.str.unwrap_or_default());
        }
        for mapping in data.mappings {
            let path = mapping.path_string_ids.first().and_then(|iid| self.paths.get(iid)).cloned();
            let build_id = mapping.build_id.and_then(|iid| self.build_ids.get(&iid)).cloned();
            let range = (mapping.start.unwrap_or(0), mapping.end.unwrap_or(0));
            let index = self.image(path.unwrap_or_default(), build_id.unwrap_or_default(), range);
            self.mappings.insert(mapping.iid.unwrap_or(0), index);
        }
        for frame in data.frames {
            let image = frame.mapping_id.and_then(|mapping| self.mappings.get(&mapping)).copied();
            self.frames.insert(frame.iid.unwrap_or(0), Place { image, address: frame.rel_pc.unwrap_or(0) });
        }
        for callstack in data.callstacks {
            self.callstacks.insert(callstack.iid.unwrap_or(0), callstack.frame_ids);
        }
    }

    /// The index of an image, which is new if its path and build id are.
    fn image(&mut self, path: String, build_id: Vec<u8>, range: (u64, u64)) -> u32 {
        *self.image_of.entry((path, build_id)).or_insert_with_key(|(path, build_id)| {
            let (path, build_id) = (path.clone(), build_id.clone());
            self.recording.images.push(RecordedImage { path, build_id, range, ..Default::default() });
            self.recording.images.len() as u32 - 1
        })
    }

    fn module(&mut self, module: proto::ModuleSymbols) {
        let key = (text(&module.path), module.build_id.unwrap_or_default());
        let known = self.symbols.entry(key).or_default();
        for symbols in module.address_symbols {
            known.insert(symbols.address.unwrap_or(0), locations(&symbols.lines));
        }
    }

    fn changed(&mut self, changed: &proto::ChangedNames) {
        let image = changed.mapping_id.and_then(|mapping| self.mappings.get(&mapping)).copied();
        let place = Place { image, address: changed.address.unwrap_or(0) };
        let since = |change: &proto::NamesSince| {
            let from_ns = change.timestamp.unwrap_or(0).saturating_sub(self.start_timestamp);
            (from_ns, locations(&change.lines))
        };
        let changes: Vec<_> = changed.changes.iter().map(since).collect();
        if changes.is_empty() || !self.changes.add(place, changes) {
            self.dropped += 1;
        }
    }

    fn sample(&mut self, timestamp: u64, sample: &proto::PerfSample, extra: &proto::SampleExtra) {
        let number = extra.track.unwrap_or(0);
        let track = self.tracks.get(&number).copied();
        // Without one, only the state is known.
        let callstack = sample.callstack_iid.unwrap_or(0);
        let end = ENDS.get(extra.end.unwrap_or(0) as usize);
        let state = State::ALL.get(extra.state.unwrap_or(0) as usize);
        let code = code_of(sample, extra);
        let known = callstack == 0 || self.callstacks.contains_key(&callstack);
        let (Some(track), Some((end, _)), Some(state), Some((mode, width)), true) = (track, end, state, code, known)
        else {
            self.dropped += 1;
            return;
        };
        if let Some(ns) = extra.frozen_ns {
            self.frozen(number, ns);
        }
        let time_ns = timestamp.saturating_sub(self.start_timestamp);
        let thread = extra.thread.and_then(|number| self.processes.thread_index(number));
        let segments = self.processes.segments(&extra.segments);
        let sample = Sample { time_ns, track, stack: 0, state: *state, mode, width, thread, segments };
        self.samples.push((sample, callstack, *end));
    }

    fn finish(mut self, files: &mut dyn FileSource) -> Recording {
        if self.dropped > 0 {
            let text = format!("{} packets of the recording are damaged and were left out", self.dropped);
            self.warn(text);
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.sort_by_key(|(sample, ..)| sample.time_ns);
        let mut builder = Builder {
            recording: &mut self.recording,
            recorded: std::mem::take(&mut self.symbols),
            changes: std::mem::take(&mut self.changes),
            frames: std::mem::take(&mut self.frames),
            callstacks: std::mem::take(&mut self.callstacks),
            files,
            loaded: HashMap::new(),
            left_out: BTreeSet::new(),
            known: HashMap::new(),
            entries: 0,
            shortened: 0,
        };
        let mut known: HashMap<(u64, StackEnd, Vec<u32>), u32> = HashMap::new();
        let mut finished = Vec::with_capacity(samples.len());
        for (mut sample, callstack, end) in samples {
            let key = (callstack, end, builder.versions(callstack, sample.time_ns));
            sample.stack = *known.entry(key).or_insert_with(|| builder.stack(callstack, end, sample.time_ns));
            finished.push(sample);
        }
        builder.release();
        let (shortened, left_out) = (builder.shortened, std::mem::take(&mut builder.left_out));
        left_out.into_iter().for_each(|text| self.warn(text));
        names::looked_up(&self.recording).into_iter().for_each(|text| self.warn(text));
        if shortened > 0 {
            self.warn(format!(
                "{shortened} stacks are shortened: all together hold more than {STACK_ENTRIES_MAX} frames"
            ));
        }
        self.recording.profile.samples = finished;
        let profile = &mut self.recording.profile;
        (profile.processes, profile.threads, profile.segments) = std::mem::take(&mut self.processes).into_tables();
        if self.recording.version < WITH_GUESTS {
            self.recording.profile.guests = vec![std::mem::take(&mut self.version_1).guest()];
        }
        if !self.recording.is_complete {
            self.count_again();
        }
        if let Some(text) = self.settle() {
            self.warn(text);
        }
        guest_processes::add_roots(&mut self.recording.profile);
        self.recording
    }

    /// Brings the account in order: each expected sample is in the recording, or lost. Returns a warning if the recorder, which has
    /// counted them from version 3 on as here, has another one.
    fn settle(&mut self) -> Option<String> {
        let is_counted = self.recording.is_complete && self.recording.version >= WITH_LOSSES
            // Nothing was sampled.
            && self.recording.profile.cost != Cost::default();
        let profile = &mut self.recording.profile;
        let (taken, cost) = (profile.samples.len() as u64, &mut profile.cost);
        let stated = cost.clone();
        // Samples that cannot be read are lost.
        let unread = stated.samples_taken.saturating_sub(taken);
        cost.losses.queue_full = cost.losses.queue_full.saturating_add(if is_counted { unread } else { 0 });
        cost.samples_lost = cost.losses.samples().max(stated.samples_lost.saturating_add(unread));
        cost.samples_taken = taken;
        cost.samples_wanted = taken.saturating_add(cost.samples_lost);
        cost.samples_late = cost.samples_late.min(taken);
        let expected = stated.samples_taken.saturating_add(stated.samples_lost);
        let is_right = (stated.samples_wanted, stated.samples_lost) == (expected, stated.losses.samples());
        (is_counted && (!is_right || stated.samples_taken < taken)).then(|| {
            format!(
                "the recorder counted {} samples as expected, {} as collected and {} as lost, which does not add up: losses are uncertain",
                stated.samples_wanted, stated.samples_taken, stated.samples_lost
            )
        })
    }

    /// The cost of a recording whose end is missing, from the samples themselves.
    fn count_again(&mut self) {
        let profile = &mut self.recording.profile;
        let taken = profile.samples.len() as u64;
        let sampled_ns = profile.samples.last().map_or(0, |sample| sample.time_ns);
        let traced_ns = self.recording.trace.clock.last().map_or(0, |point| point.time_ns);
        let end_ns = sampled_ns.max(traced_ns);
        let broken = profile.samples.iter().filter(|sample| {
            profile.stacks.get(sample.stack as usize).is_some_and(|stack| stack.end != StackEnd::Complete)
        });
        let cost = &mut profile.cost;
        cost.stacks_broken = broken.count() as u64;
        cost.samples_taken = taken;
        cost.pause = self.pauses.distribution();
        profile.origin.duration_ns = profile.origin.duration_ns.max(end_ns);
    }
}
