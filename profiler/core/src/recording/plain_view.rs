//! A plain trace in a view of host and guest: call stacks without the segments that the view does not show.

use std::collections::{HashMap, HashSet};

use super::proto::{self, TracePacket};
use super::writer::SEQUENCE;
use super::{MODES, perfetto_path};
use crate::guest::Mode;
use crate::model::Profile;
use crate::tree::Kind;
use crate::view::{Hosts, View};

/// Numbers of what is interned for a view; those of recordings are small.
const FIRST_IID: u64 = 1 << 60;
/// Packets that use interned data have this flag.
const NEEDS_INTERNED: u32 = 2;

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
            last_iid: FIRST_IID,
            guest_box: None,
        })
    }

    /// Takes note of a packet, and brings it into the view.
    pub(super) fn packet(&mut self, packet: &TracePacket) -> Trimmed {
        if let Some(data) = &packet.interned_data {
            let stacks = data.callstacks.iter().map(|stack| (stack.iid.unwrap_or(0), stack.frame_ids.clone()));
            self.callstacks.extend(stacks);
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
        let shows = |is_host: bool| match self.view {
            View::Guest => !is_host,
            View::Host => is_host,
            View::Merged => true,
        };
        let is_of_host = |segment: &proto::Segment| of_host(self.spaces.get(&segment.space.unwrap_or(0)));
        let frames = sample.callstack_iid.and_then(|iid| self.callstacks.get(&iid)).map_or(&[][..], Vec::as_slice);
        if extra.segments.is_empty() {
            return match shows(is_host_track) || frames.is_empty() {
                true => Trimmed::Same,
                false => self.changed(packet, sample, Vec::new(), None),
            };
        }
        // Innermost first, as segments are.
        let (mut kept, mut end, mut mode) = (Vec::new(), frames.len(), None);
        for (index, segment) in extra.segments.iter().enumerate() {
            let is_last = index + 1 == extra.segments.len();
            let start = if is_last { 0 } else { end.saturating_sub(segment.frames.unwrap_or(0) as usize) };
            if shows(is_of_host(segment)) && start < end {
                kept.splice(0..0, frames[start..end].iter().copied());
                mode = mode.or_else(|| Some(cpu_mode(segment, is_of_host(segment))));
            }
            end = start;
        }
        let has_host = extra.segments.iter().any(is_of_host);
        match kept.len() == frames.len() && !has_host {
            true => Trimmed::Same,
            false => self.changed(packet, sample, kept, mode),
        }
    }

    /// The packet with another stack. Without any frame the sample is one of the guest, or of nothing.
    fn changed(
        &mut self,
        packet: &TracePacket,
        sample: &proto::PerfSample,
        kept: Vec<u64>,
        mode: Option<u32>,
    ) -> Trimmed {
        let mut packets = Vec::new();
        let callstack_iid = match kept.is_empty() {
            true if self.view == View::Host => Some(self.guest_box(&mut packets)),
            true => None,
            false => Some(self.intern(kept, &mut packets)),
        };
        let sample = proto::PerfSample { callstack_iid, cpu_mode: mode.or(sample.cpu_mode), ..sample.clone() };
        packets.push(TracePacket { perf_sample: Some(sample), glass: None, ..packet.clone() });
        Trimmed::Changed(packets)
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
    match (mode, is_host) {
        (Mode::Hypervisor, _) => proto::MODE_HYPERVISOR,
        (Mode::User, true) => proto::MODE_USER,
        (_, true) => proto::MODE_KERNEL,
        (Mode::User, false) => proto::MODE_GUEST_USER,
        (_, false) => proto::MODE_GUEST_KERNEL,
    }
}
