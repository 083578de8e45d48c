//! A plain trace in a view of host and guest: call stacks without the segments that the view does not show.

use std::collections::{HashMap, HashSet};

use super::proto::{self, TracePacket};
use super::writer::{self, SEQUENCE};
use super::{MODES, perfetto_path};
use crate::kind::Kind;
use crate::model::{Profile, STACK_ENTRIES_MAX};
use crate::view::{Hosts, View};

/// Numbers of what is interned for a view; those of recordings are small.
const FIRST_IID: u64 = 1 << 60;
/// Packets that use interned data have this flag.
const NEEDS_INTERNED: u32 = 2;

/// How a stack is divided: the number of its innermost frames that are in a segment, and whether that is the host's.
type Division = Vec<(u32, bool)>;

/// What has been read of a recording, to find whose the frames of its stacks are.
#[derive(Debug)]
pub(super) struct Trimmer {
    view: View,
    /// Numbers of guests.
    hosts: HashSet<u32>,
    /// The guest of each space and of each track, by their numbers.
    spaces: HashMap<u32, u32>,
    tracks: HashMap<u32, u32>,
    callstacks: HashMap<u64, Vec<u64>>,
    /// Stacks that were made for the view.
    made: HashMap<Vec<u64>, u64>,
    /// What is left of a stack that is divided so; `None` if nothing is.
    known: HashMap<(u64, Division), Option<u64>>,
    /// How many more frames may be looked at, for stacks that are made; samples beyond have no stack.
    frames_left: usize,
    last_iid: u64,
    /// The stack `[guest]`.
    guest_box: Option<u64>,
}

/// What becomes of a packet.
pub(super) enum Trimmed {
    /// It stays as it is.
    Same,
    /// It is left out.
    Gone,
    /// Others are in its place.
    Changed(Vec<TracePacket>),
}

impl Trimmer {
    /// For a profile as it was recorded; `None` without a side of the host, where every view is the same.
    pub(super) fn new(profile: &Profile, view: View) -> Option<Trimmer> {
        let hosts = Hosts::of(profile);
        let numbers =
            profile.guests.iter().zip(0..).filter(|(_, index)| hosts.has(*index)).map(|(guest, _)| guest.id.0);
        let hosts: HashSet<u32> = numbers.collect();
        (!hosts.is_empty()).then(|| Trimmer {
            view,
            hosts,
            spaces: HashMap::new(),
            tracks: HashMap::new(),
            callstacks: HashMap::new(),
            made: HashMap::new(),
            known: HashMap::new(),
            frames_left: STACK_ENTRIES_MAX,
            last_iid: FIRST_IID,
            guest_box: None,
        })
    }

    /// Takes note of a packet, and brings it into the view.
    pub(super) fn packet(&mut self, packet: &TracePacket) -> Trimmed {
        if let Some(data) = &packet.interned_data {
            let stacks = data.callstacks.iter().map(|stack| (stack.iid.unwrap_or(0), stack.frame_ids.clone()));
            for (iid, frame_ids) in stacks {
                if self.callstacks.insert(iid, frame_ids).is_some() {
                    // A number that is used again.
                    self.known.clear();
                }
            }
        }
        let Some(glass) = &packet.glass else { return Trimmed::Same };
        if let Some(space) = &glass.space {
            self.spaces.insert(space.id.unwrap_or(0), space.guest.unwrap_or(0));
        }
        if let Some(track) = &glass.track {
            self.tracks.insert(track.index.unwrap_or(0), track.guest.unwrap_or(0));
        }
        match (&packet.perf_sample, &glass.sample) {
            (Some(sample), Some(extra)) => self.sample(packet, sample, extra),
            _ => Trimmed::Same,
        }
    }

    fn sample(&mut self, packet: &TracePacket, sample: &proto::PerfSample, extra: &proto::SampleExtra) -> Trimmed {
        let of_host = |guest: Option<&u32>| guest.is_some_and(|guest| self.hosts.contains(guest));
        let is_host_track = of_host(self.tracks.get(&extra.track.unwrap_or(0)));
        if is_host_track && self.view == View::Guest {
            return Trimmed::Gone;
        }
        let view = self.view;
        let shows = |is_host: bool| view.shows(is_host);
        let is_of_host = |segment: &proto::Segment| of_host(self.spaces.get(&segment.space.unwrap_or(0)));
        let division: Division = match &extra.segments[..] {
            [] => vec![(u32::MAX, is_host_track)],
            segments => segments.iter().map(|segment| (segment.frames.unwrap_or(0), is_of_host(segment))).collect(),
        };
        let is_whole = division.iter().all(|(_, is_host)| *is_host == is_host_track);
        let Some(iid) = sample.callstack_iid.filter(|_| !is_whole || !shows(is_host_track)) else {
            return Trimmed::Same;
        };
        // Of the innermost segment that is shown.
        let shown = extra.segments.iter().find(|segment| shows(is_of_host(segment)) && segment.frames.unwrap_or(0) > 0);
        let cpu_mode = shown.map(|segment| cpu_mode(segment, is_of_host(segment))).or(sample.cpu_mode);
        let mut packets = Vec::new();
        let key = (iid, division);
        let kept = match self.known.get(&key) {
            Some(kept) => *kept,
            None => {
                let kept = self.kept(iid, &key.1, &mut packets);
                self.known.insert(key, kept);
                kept
            }
        };
        let callstack_iid = match kept {
            // Nothing of the host: the sample is one of the guest.
            None if view == View::Host && !is_host_track => Some(self.guest_box(&mut packets)),
            kept => kept,
        };
        let sample = proto::PerfSample { callstack_iid, cpu_mode, ..sample.clone() };
        packets.push(TracePacket { perf_sample: Some(sample), glass: None, ..packet.clone() });
        Trimmed::Changed(packets)
    }

    /// The number of a stack without what is not shown; `None` if nothing is left, or there may be no more frames.
    fn kept(&mut self, iid: u64, division: &Division, packets: &mut Vec<TracePacket>) -> Option<u64> {
        let frames = self.callstacks.get(&iid)?;
        self.frames_left = self.frames_left.checked_sub(frames.len())?;
        // Innermost first, as segments are.
        let (mut kept, mut end) = (Vec::new(), frames.len());
        for (index, (count, is_host)) in division.iter().enumerate() {
            let is_last = index + 1 == division.len();
            let start = if is_last { 0 } else { end.saturating_sub(*count as usize) };
            if self.view.shows(*is_host) {
                kept.extend(frames[start..end].iter().rev());
            }
            end = start;
        }
        kept.reverse();
        match kept.len() {
            0 => None,
            all if all == frames.len() => Some(iid),
            _ => Some(self.intern(kept, packets)),
        }
    }

    fn next_iid(&mut self) -> u64 {
        self.last_iid += 1;
        self.last_iid
    }

    fn intern(&mut self, frame_ids: Vec<u64>, packets: &mut Vec<TracePacket>) -> u64 {
        if let Some(iid) = self.made.get(&frame_ids) {
            return *iid;
        }
        let iid = self.next_iid();
        let callstack = proto::Callstack { iid: Some(iid), frame_ids: frame_ids.clone() };
        packets.push(interned(proto::InternedData { callstacks: vec![callstack], ..Default::default() }));
        self.made.insert(frame_ids, iid);
        iid
    }

    /// The stack of samples that have nothing of the host.
    fn guest_box(&mut self, packets: &mut Vec<TracePacket>) -> u64 {
        if let Some(iid) = self.guest_box {
            return iid;
        }
        let name = Kind::Guest.label().into_bytes();
        let [path, mapping, frame] = [(); 3].map(|()| self.next_iid());
        let string = proto::InternedString { iid: Some(path), str: Some(name.clone()) };
        packets.push(interned(proto::InternedData {
            mapping_paths: vec![string],
            mappings: vec![proto::Mapping { iid: Some(mapping), path_string_ids: vec![path], ..Default::default() }],
            frames: vec![proto::Frame { iid: Some(frame), mapping_id: Some(mapping), rel_pc: Some(0) }],
            ..Default::default()
        }));
        let line = proto::Line { function_name: Some(name), ..Default::default() };
        let module = proto::ModuleSymbols {
            path: Some(perfetto_path(&Kind::Guest.label()).into_bytes()),
            build_id: Some(Vec::new()),
            address_symbols: vec![proto::AddressSymbols { address: Some(0), lines: vec![line] }],
        };
        packets.push(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            module_symbols: Some(module),
            ..Default::default()
        });
        let iid = self.intern(vec![frame], packets);
        self.guest_box = Some(iid);
        iid
    }
}

fn interned(data: proto::InternedData) -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        sequence_flags: Some(NEEDS_INTERNED),
        interned_data: Some(data),
        ..Default::default()
    }
}

/// Perfetto's number for the mode of a segment.
fn cpu_mode(segment: &proto::Segment, is_host: bool) -> u32 {
    let mode = MODES.get(segment.mode.unwrap_or(0) as usize).copied().unwrap_or_default();
    writer::cpu_mode(mode, !is_host)
}
