//! A recording as a plain Perfetto trace: without our extension, with all available names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use prost::Message;

use super::ImageId;
use super::packets::{Next, PACKET_TAG, next_field, next_packet};
use super::plain_view::{Trimmed, Trimmer};
use super::proto::TracePacket;
use super::recorded::{NameSource, Recording};
use super::writer::{SEQUENCE, module_packets};
use crate::guest::ThreadId;
use crate::model::{Only, State};
use crate::symbols::Location;
use crate::view::View;

/// Number of our field in `TracePacket`.
const EXTENSION: u64 = 60001;

/// Options of [`write_plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlainSettings {
    /// Leave out samples in states in which no code ran: Perfetto has no field that distinguishes them.
    pub only_running: bool,
    /// What is shown of a recording of host and guest.
    pub view: View,
}

/// Copies the packets of a recording that [`open`](super::open) has read. Damaged packets are left out, names that
/// `recording` has from files are appended.
pub fn write_plain<W: Write>(
    bytes: &[u8],
    recording: &Recording,
    settings: PlainSettings,
    output: &mut W,
) -> io::Result<()> {
    let mut kept = recording.profile.only.as_ref().map(Kept::new);
    let mut trimmer = Trimmer::new(&recording.profile, settings.view);
    let mut rest = bytes;
    while let Next::Packet(packet, after) = next_packet(rest) {
        rest = after;
        let Ok(decoded) = TracePacket::decode(packet) else { continue };
        if is_left_out(&decoded, settings) || kept.as_mut().is_some_and(|kept| !kept.has(&decoded)) {
            continue;
        }
        match trimmer.as_mut().map_or(Trimmed::Same, |trimmer| trimmer.packet(&decoded)) {
            Trimmed::Gone => {}
            Trimmed::Same => {
                if let Some(plain) = plain_packet(packet, decoded) {
                    write_packet(output, &plain)?;
                }
            }
            Trimmed::Changed(packets) => {
                for packet in packets {
                    write_packet(output, &packet.encode_to_vec())?;
                }
            }
        }
    }
    append_names(recording, output)
}

/// Which samples of a profile that was restricted to processes or threads are left.
struct Kept<'a> {
    only: &'a Only,
    /// The index of each track in the profile, by its number in the file.
    tracks: HashMap<u32, u32>,
}

impl<'a> Kept<'a> {
    fn new(only: &'a Only) -> Kept<'a> {
        Kept { only, tracks: HashMap::new() }
    }

    /// Takes note of a packet. Whether it stays: all do but samples that were left out.
    fn has(&mut self, packet: &TracePacket) -> bool {
        let Some(glass) = &packet.glass else { return true };
        if let Some(track) = &glass.track {
            let next = self.tracks.len() as u32;
            self.tracks.entry(track.index.unwrap_or(0)).or_insert(next);
        }
        let (Some(_), Some(sample)) = (&packet.perf_sample, &glass.sample) else { return true };
        let track = self.tracks.get(&sample.track.unwrap_or(0));
        track.is_some_and(|track| self.only.tracks.contains(track))
            || sample.thread.is_some_and(|thread| self.only.threads.contains(&ThreadId(thread)))
    }
}

fn write_packet<W: Write>(output: &mut W, packet: &[u8]) -> io::Result<()> {
    let mut header = vec![PACKET_TAG];
    prost::encoding::encode_varint(packet.len() as u64, &mut header);
    output.write_all(&header)?;
    output.write_all(packet)
}

/// Whether a packet is a sample in a state that is not selected.
fn is_left_out(packet: &TracePacket, settings: PlainSettings) -> bool {
    let extra = packet.glass.as_ref().and_then(|glass| glass.sample.as_ref());
    let (true, Some(_), Some(extra)) = (settings.only_running, &packet.perf_sample, extra) else { return false };
    !State::ALL.get(extra.state.unwrap_or(0) as usize).is_some_and(|state| state.is_active())
}

/// The packet without our fields, `None` if nothing of it is left.
fn plain_packet(packet: &[u8], decoded: TracePacket) -> Option<Vec<u8>> {
    let says_something = TracePacket { trusted_packet_sequence_id: None, glass: None, ..decoded };
    if says_something == TracePacket::default() {
        return None;
    }
    if let Some(mut symbols) = says_something.module_symbols {
        let lines = symbols.address_symbols.iter_mut().flat_map(|address| &mut address.lines);
        lines.for_each(|line| line.start_line = None);
        let trusted_packet_sequence_id = Some(SEQUENCE);
        let names = TracePacket { trusted_packet_sequence_id, module_symbols: Some(symbols), ..Default::default() };
        return Some(names.encode_to_vec());
    }
    let mut plain = Vec::with_capacity(packet.len());
    let mut rest = packet;
    while let Some((number, field, after)) = next_field(rest) {
        if number != EXTENSION {
            plain.extend_from_slice(field);
        }
        rest = after;
    }
    rest.is_empty().then_some(plain)
}

/// Names that are not in the file, in the same messages as the recorder's.
fn append_names<W: Write>(recording: &Recording, output: &mut W) -> io::Result<()> {
    let mut by_image: BTreeMap<u32, BTreeMap<u64, Vec<Location>>> = BTreeMap::new();
    let from_files: BTreeSet<u32> = (0u32..)
        .zip(&recording.images)
        .filter(|(_, image)| image.names == NameSource::File)
        .map(|(index, _)| index)
        .collect();
    for (frame, place) in recording.profile.frames.iter().zip(&recording.places) {
        let Some(image) = place.image.filter(|image| from_files.contains(image)) else { continue };
        let (function, file) = (frame.function.clone(), frame.file.clone());
        let location = Location { function, file, line: frame.line, start_line: None };
        // Frames are outermost first, the message requires the innermost first.
        by_image.entry(image).or_default().entry(place.address).or_default().insert(0, location);
    }
    for (image, names) in by_image {
        let image = &recording.images[image as usize];
        let id = ImageId { path: image.path.clone(), build_id: image.build_id.clone() };
        let names: Vec<_> = names.into_iter().collect();
        for module in module_packets(&id, &names) {
            let packet = TracePacket {
                trusted_packet_sequence_id: Some(SEQUENCE),
                module_symbols: Some(module),
                ..Default::default()
            };
            write_packet(output, &packet.encode_to_vec())?;
        }
    }
    Ok(())
}
