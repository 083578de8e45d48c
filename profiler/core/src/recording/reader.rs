//! Reads a recording back into a [`Profile`]. Trusts nothing: any bytes give a profile or a sentence.

use std::collections::HashMap;
use std::fmt;

use prost::Message;

use super::proto::{self, TracePacket};
use super::{ENDS, PACKET_BYTES_MAX, STATES, VERSION, perfetto_path};
use crate::model::{Cost, Distribution, Frame, Origin, Profile, Sample, Stack, StackEnd, Track};
use crate::symbols::{INLINE_DEPTH_MAX, Location, Symbols};

/// Frames of all stacks together, after inlined functions are spelt out. Keeps a small hostile file
/// from becoming a large profile; the deepest honest recordings have a hundredth of it.
const STACK_ENTRIES_MAX: usize = 32 << 20;
/// The highest index of a track.
const TRACKS_MAX: u32 = 1 << 20;
/// Packets that could not be used are reported one by one up to this many.
const WARNINGS_MAX: usize = 100;

/// Gives the reader the files that the recording names, if it lacks symbols.
pub trait FileSource {
    /// The bytes of the file, `None` if there is no such file.
    fn load(&mut self, path: &str) -> Option<Vec<u8>>;
}

/// No files: addresses without a symbol in the recording stay addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl FileSource for NoFiles {
    fn load(&mut self, _path: &str) -> Option<Vec<u8>> {
        None
    }
}

/// Why a file is not a recording that we can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// There is nothing in it.
    Empty,
    /// It is not a Perfetto trace.
    NotATrace,
    /// It is a Perfetto trace, but none of ours.
    NotOurs,
    /// It was written by a newer version of the format.
    TooNew(u32),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Empty => write!(f, "is empty: the recorder ended before its first sample"),
            ReadError::NotATrace => write!(f, "is not a recording (no Perfetto trace packet at its start)"),
            ReadError::NotOurs => write!(f, "is a Perfetto trace, but was not recorded by glass"),
            ReadError::TooNew(version) => write!(
                f,
                "has version {version} of the recording format and this glass knows {VERSION}: use the glass that recorded it, or a newer one"
            ),
        }
    }
}

impl std::error::Error for ReadError {}

fn text(bytes: &Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
}

/// A varint at the start of `bytes`, and how long it is.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

/// What follows in a file.
enum Next<'a> {
    Packet(&'a [u8], &'a [u8]),
    End,
    Cut,
    Garbage,
}

fn next_packet(bytes: &[u8]) -> Next<'_> {
    let Some(first) = bytes.first() else { return Next::End };
    if *first != 0x0a {
        return Next::Garbage;
    }
    match varint(&bytes[1..]) {
        Some((length, _)) if length > PACKET_BYTES_MAX as u64 => Next::Garbage,
        Some((length, header)) => {
            let start = 1 + header;
            let end = start + length as usize;
            if end > bytes.len() { Next::Cut } else { Next::Packet(&bytes[start..end], &bytes[end..]) }
        }
        None if bytes.len() < 11 => Next::Cut,
        None => Next::Garbage,
    }
}

/// The interned tables and everything else that is collected before names are known.
#[derive(Default)]
struct Collected {
    profile: Profile,
    header: bool,
    start_timestamp: u64,
    paths: HashMap<u64, String>,
    build_ids: HashMap<u64, Vec<u8>>,
    /// Path as Perfetto writes it, and build id.
    images: HashMap<u64, (String, Vec<u8>)>,
    /// Image and address.
    frames: HashMap<u64, (u64, u64)>,
    callstacks: HashMap<u64, Vec<u64>>,
    symbols: HashMap<(String, Vec<u8>), HashMap<u64, Vec<Location>>>,
    /// Time, track, callstack, end, state.
    samples: Vec<(Sample, u64, StackEnd)>,
    pauses: crate::durations::Durations,
    complete: bool,
    dropped: u64,
}

/// Reads a recording. Names that the file lacks are looked up in the files that it mentions, through
/// `files`; a file with another build id than the recorded one is not used.
pub fn read(bytes: &[u8], files: &mut dyn FileSource) -> Result<Profile, ReadError> {
    let mut collected = Collected::default();
    let mut rest = bytes;
    if bytes.is_empty() {
        return Err(ReadError::Empty);
    }
    let mut cut = None;
    let mut packets = 0u64;
    loop {
        match next_packet(rest) {
            Next::Packet(packet, after) => {
                match TracePacket::decode(packet) {
                    Ok(packet) => collected.packet(packet)?,
                    Err(_) if packets == 0 => return Err(ReadError::NotATrace),
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
            Next::Garbage if packets == 0 => return Err(ReadError::NotATrace),
            Next::Garbage => {
                cut = Some("the recording is damaged");
                break;
            }
        }
    }
    if !collected.header {
        return Err(if packets == 0 { ReadError::NotATrace } else { ReadError::NotOurs });
    }
    if let Some(why) = cut {
        let offset = bytes.len() - rest.len();
        collected.warn(format!("{why}: {} of {} bytes were used", offset, bytes.len()));
    } else if !collected.complete {
        collected.warn("the recorder was ended before it could finish: the last seconds may be missing".to_owned());
    }
    Ok(collected.finish(files))
}

impl Collected {
    fn warn(&mut self, text: String) {
        if self.profile.warnings.len() < WARNINGS_MAX {
            self.profile.warnings.push(text);
        }
    }

    fn packet(&mut self, packet: TracePacket) -> Result<(), ReadError> {
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
            self.start_timestamp = header.start_timestamp.unwrap_or(0);
            self.profile.origin = Origin {
                guest: text(&header.guest),
                backend: text(&header.backend),
                symbols: text(&header.symbols),
                host: text(&header.host),
                start_unix_ns: header.start_unix_ns.unwrap_or(0),
                duration_ns: self.profile.origin.duration_ns,
                rate_hz: header.rate_hz.unwrap_or(0),
                recorder: text(&header.recorder),
            };
        }
        if let Some(track) = &glass.track {
            self.track(track.index.unwrap_or(0), track.id.unwrap_or(0), text(&track.name));
        }
        if let Some(cost) = &glass.cost {
            let pause = cost.pause.clone().unwrap_or_default();
            self.profile.cost = Cost {
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
                profiler_cpu_ns: cost.profiler_cpu_ns.unwrap_or(0),
            };
            self.profile.origin.duration_ns = cost.duration_ns.unwrap_or(0);
            self.complete = cost.complete.unwrap_or(false);
        }
        if glass.warning.is_some() {
            self.warn(text(&glass.warning));
        }
        Ok(())
    }

    fn track(&mut self, index: u32, id: u64, name: String) {
        // A track is announced before its first sample and in order, so a gap is damage.
        if index > TRACKS_MAX || index as usize > self.profile.tracks.len() {
            self.dropped += 1;
            return;
        }
        let track = Track { name, id };
        match self.profile.tracks.get_mut(index as usize) {
            Some(known) => *known = track,
            None => self.profile.tracks.push(track),
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
            self.images.insert(mapping.iid.unwrap_or(0), (path.unwrap_or_default(), build_id.unwrap_or_default()));
        }
        for frame in data.frames {
            self.frames.insert(frame.iid.unwrap_or(0), (frame.mapping_id.unwrap_or(0), frame.rel_pc.unwrap_or(0)));
        }
        for callstack in data.callstacks {
            self.callstacks.insert(callstack.iid.unwrap_or(0), callstack.frame_ids);
        }
    }

    fn module(&mut self, module: proto::ModuleSymbols) {
        let key = (text(&module.path), module.build_id.unwrap_or_default());
        let known = self.symbols.entry(key).or_default();
        for symbols in module.address_symbols {
            let lines = symbols.lines.iter().take(INLINE_DEPTH_MAX).map(|line| Location {
                function: text(&line.function_name),
                file: line.source_file_name.as_ref().map(|_| text(&line.source_file_name)),
                line: line.line_number,
            });
            known.insert(symbols.address.unwrap_or(0), lines.collect());
        }
    }

    fn sample(&mut self, timestamp: u64, sample: &proto::PerfSample, extra: &proto::SampleExtra) {
        let track = extra.track.unwrap_or(0);
        let callstack = sample.callstack_iid.unwrap_or(0);
        let end = ENDS.get(extra.end.unwrap_or(0) as usize);
        let state = STATES.get(extra.state.unwrap_or(0) as usize);
        let known = (track as usize) < self.profile.tracks.len() && self.callstacks.contains_key(&callstack);
        let (Some((end, _)), Some(state), true) = (end, state, known) else {
            self.dropped += 1;
            return;
        };
        if let Some(pause) = extra.pause_ns {
            self.pauses.add(pause);
        }
        let time_ns = timestamp.saturating_sub(self.start_timestamp);
        self.samples.push((Sample { time_ns, track, stack: 0, state: *state }, callstack, *end));
    }

    fn finish(mut self, files: &mut dyn FileSource) -> Profile {
        if self.dropped > 0 {
            let text = format!("{} packets of the recording are damaged and were left out", self.dropped);
            self.warn(text);
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.sort_by_key(|(sample, ..)| sample.time_ns);
        let mut stacks =
            Stacks { collected: &mut self, files, loaded: HashMap::new(), frames: HashMap::new(), entries: 0, cut: 0 };
        let mut known: HashMap<(u64, StackEnd), u32> = HashMap::new();
        let mut finished = Vec::with_capacity(samples.len());
        for (mut sample, callstack, end) in samples {
            sample.stack = *known.entry((callstack, end)).or_insert_with(|| stacks.stack(callstack, end));
            finished.push(sample);
        }
        let cut = stacks.cut;
        let missing: Vec<String> = stacks.loaded.into_values().filter_map(Result::err).collect();
        missing.into_iter().for_each(|text| self.warn(text));
        if cut > 0 {
            self.warn(format!("{cut} stacks are shortened: all together hold more than {STACK_ENTRIES_MAX} frames"));
        }
        self.profile.samples = finished;
        if !self.complete {
            self.count_again();
        }
        self.profile
    }

    /// The cost of a recording whose end is missing: what the samples themselves tell.
    fn count_again(&mut self) {
        let profile = &mut self.profile;
        let taken = profile.samples.len() as u64;
        let end_ns = profile.samples.last().map_or(0, |sample| sample.time_ns);
        let broken = profile.samples.iter().filter(|sample| {
            profile.stacks.get(sample.stack as usize).is_some_and(|stack| stack.end != StackEnd::Complete)
        });
        let cost = &mut profile.cost;
        cost.stacks_broken = broken.count() as u64;
        cost.samples_taken = taken;
        cost.samples_wanted = cost.samples_wanted.max(taken.saturating_add(cost.samples_lost));
        cost.pause = self.pauses.distribution();
        profile.origin.duration_ns = profile.origin.duration_ns.max(end_ns);
    }
}

type LoadedFile = Result<Box<Symbols>, String>;

/// Builds the tables of frames and stacks with names.
struct Stacks<'a> {
    collected: &'a mut Collected,
    files: &'a mut dyn FileSource,
    loaded: HashMap<u64, LoadedFile>,
    /// Indices into the profile's frames for a frame of the file, outermost first.
    frames: HashMap<u64, Vec<u32>>,
    entries: usize,
    cut: u64,
}

impl Stacks<'_> {
    fn stack(&mut self, callstack: u64, end: StackEnd) -> u32 {
        let ids = self.collected.callstacks.get(&callstack).cloned().unwrap_or_default();
        let mut frames = Vec::new();
        for id in ids {
            if !self.frames.contains_key(&id) {
                let indices = self.resolve(id);
                self.frames.insert(id, indices);
            }
            let indices = &self.frames[&id];
            if self.entries + indices.len() > STACK_ENTRIES_MAX {
                self.cut += 1;
                break;
            }
            self.entries += indices.len();
            frames.extend_from_slice(indices);
        }
        let stacks = &mut self.collected.profile.stacks;
        stacks.push(Stack { frames, end });
        stacks.len() as u32 - 1
    }

    /// Adds the functions at a frame's address to the profile, outermost first.
    fn resolve(&mut self, id: u64) -> Vec<u32> {
        let Some((image_id, address)) = self.collected.frames.get(&id).copied() else { return Vec::new() };
        let image = self.collected.images.get(&image_id).cloned();
        let (path, build_id) = image.clone().unwrap_or_default();
        let recorded = self.collected.symbols.get(&(path.clone(), build_id.clone()));
        let mut locations = recorded.and_then(|symbols| symbols.get(&address)).cloned().unwrap_or_default();
        // Names are written when a recording ends: only one that did not end needs the file.
        if locations.is_empty() && image.is_some() && !self.collected.complete {
            locations = self.locate_in_file(image_id, &path, &build_id, address);
        }
        if locations.is_empty() {
            locations.push(Location { function: format!("{address:#x}"), file: None, line: None });
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let outermost = locations.len() - 1;
        let mut indices = Vec::with_capacity(locations.len());
        for (index, location) in locations.into_iter().enumerate().rev() {
            let frames = &mut self.collected.profile.frames;
            indices.push(frames.len() as u32);
            frames.push(Frame {
                function: location.function,
                file: location.file,
                line: location.line,
                image: name.clone(),
                inlined: index != outermost,
            });
        }
        indices
    }

    fn locate_in_file(&mut self, image: u64, path: &str, build_id: &[u8], address: u64) -> Vec<Location> {
        let files = &mut self.files;
        let load = || -> LoadedFile {
            let lacking = "the recording has no names, its recorder was ended before it could write them";
            let bytes =
                files.load(path).ok_or_else(|| format!("{lacking}, and {path} is not there to get them from"))?;
            let symbols = Symbols::parse(&bytes).map_err(|error| format!("{lacking}, and {path} {error}"))?;
            if symbols.build_id.as_deref().unwrap_or_default() != build_id {
                return Err(format!("{lacking}, and {path} is another build by now"));
            }
            Ok(Box::new(symbols))
        };
        match self.loaded.entry(image).or_insert_with(load) {
            Ok(symbols) => symbols.locate(address),
            Err(_) => Vec::new(),
        }
    }
}
