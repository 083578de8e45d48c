//! Traces of mirage-profile, the tracer of MirageOS and Lwt, as traces of ours: threads become tasks.
//!
//! The loader reads what it can and reports the rest: packets that are missing, in another order, cut or damaged.
//! `docs/guides/exports.md` has the mapping of events.

mod events;
mod packets;
mod translate;

use glass_profiler_core::trace::raw::{ClockPoint, Piece};

use translate::Translator;

/// Ticks per second of an import: times are nanoseconds.
const TICKS_PER_SECOND: u64 = 1_000_000_000;
/// Events of one piece.
const CHUNK_EVENTS: usize = 4096;
/// Names of one piece.
const CHUNK_NAMES: usize = 512;

/// The contents of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// The trace; its clock starts at 0 nanoseconds with the first event.
    pub pieces: Vec<Piece>,
    /// From the first event to the last.
    pub duration_ns: u64,
    /// Events of the file that were understood.
    pub events: u64,
    /// Losses, one sentence each.
    pub warnings: Vec<String>,
}

/// Reads a file. `None` if nothing in it is a packet of mirage-profile.
pub fn import(bytes: &[u8]) -> Option<Imported> {
    let (packets, mut warnings) = packets::find(bytes);
    if packets.is_empty() {
        return None;
    }
    let mut decoded = Vec::new();
    for packet in &packets {
        let (events, damage) = events::decode(bytes, packet);
        if let Some(damage) = damage {
            warnings.push(damage);
        }
        decoded.push((packet.count, events));
    }
    let ordered = packets::order(decoded, &mut warnings);
    let mut translator = Translator::new(ordered.iter().flat_map(|(events, _)| events));
    let (mut first_ns, mut last_ns, mut count) = (None, 0, 0);
    for (events, missing) in &ordered {
        translator.missing(*missing);
        for event in events {
            first_ns.get_or_insert(event.time_ns);
            last_ns = event.time_ns.max(last_ns);
            count += 1;
            translator.event(event);
        }
    }
    let first_ns = first_ns.unwrap_or(0);
    warnings.extend(translator.warnings());
    let mut pieces: Vec<Piece> = [(0, first_ns), (last_ns.saturating_sub(first_ns), last_ns)]
        .map(|(time_ns, ticks)| {
            Piece::Clock(ClockPoint { ticks, time_ns, ticks_per_second: TICKS_PER_SECOND, error_ns: 0 })
        })
        .into();
    let (names, rings) = translator.finish();
    for (index, part) in names.chunks(CHUNK_NAMES).enumerate() {
        pieces.push(Piece::Names { first: (index * CHUNK_NAMES) as u32, names: part.to_vec() });
    }
    for (ring, (name, chunks)) in (0u32..).zip(rings) {
        pieces.push(Piece::Ring { ring, name });
        for (mut first, events) in chunks {
            for part in events.chunks(CHUNK_EVENTS) {
                pieces.push(Piece::Chunk { ring, first, events: part.to_vec() });
                first += part.len() as u64;
            }
        }
    }
    Some(Imported { pieces, duration_ns: last_ns.saturating_sub(first_ns), events: count, warnings })
}
