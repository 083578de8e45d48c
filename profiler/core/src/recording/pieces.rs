//! Pieces of a guest's trace as messages of a recording, and back.

use glass_formats::trace::{EVENT_BYTES, EVENT_WORDS, FUNCTIONS_MAX};

use super::proto::{
    TraceChunk, TraceClock, TraceFunction, TraceFunctions, TraceNames, TracePiece, TraceRing, TraceShortage,
};
use crate::trace::raw::{ClockPoint, Function, Piece, Words};

/// Events of a packet: 1 MiB, so that a file that was cut lacks little, and no packet is too large.
const CHUNK_EVENTS_MAX: usize = 32 << 10;
/// Functions of a packet; their names may be long.
const FUNCTIONS_PER_PACKET: usize = 256;
/// Names of a packet.
const NAMES_PER_PACKET: usize = 1024;
/// Bytes of a name that are kept: demangled generics can be endless.
pub(super) const NAME_BYTES_MAX: usize = 8 << 10;

/// The text as bytes, cut between characters.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let mut end = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes()[..end].to_vec()
}

fn text_of(bytes: Option<Vec<u8>>) -> String {
    let bytes = bytes.unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The messages of a piece: several if it is large. `timestamp` turns a time of a clock point into the file's clock.
pub(super) fn messages(piece: &Piece, timestamp: impl Fn(u64) -> u64) -> Vec<TracePiece> {
    let none = TracePiece::default;
    match piece {
        Piece::Ring { ring, name } => {
            let ring = TraceRing { index: Some(*ring), name: Some(bytes_of(name)) };
            vec![TracePiece { ring: Some(ring), ..none() }]
        }
        Piece::Names { first, names } => (0u32..)
            .zip(names.chunks(NAMES_PER_PACKET))
            .map(|(index, names)| {
                // A guest may have written any value: the reader refuses one that wraps around.
                let first = first.wrapping_add(index.wrapping_mul(NAMES_PER_PACKET as u32));
                let names = names.iter().map(|name| bytes_of(name)).collect();
                TracePiece { names: Some(TraceNames { first: Some(first), names }), ..none() }
            })
            .collect(),
        // Where reading of a ring started.
        Piece::Chunk { ring, first, events } if events.is_empty() => {
            let chunk = TraceChunk { ring: Some(*ring), first: Some(*first), events: Some(Vec::new()) };
            vec![TracePiece { chunk: Some(chunk), ..none() }]
        }
        Piece::Chunk { ring, first, events } => (0u64..)
            .zip(events.chunks(CHUNK_EVENTS_MAX))
            .map(|(index, events)| {
                let first = first.wrapping_add(index.wrapping_mul(CHUNK_EVENTS_MAX as u64));
                let events = events.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
                let chunk = TraceChunk { ring: Some(*ring), first: Some(first), events: Some(events) };
                TracePiece { chunk: Some(chunk), ..none() }
            })
            .collect(),
        Piece::Clock(point) => {
            let clock = TraceClock {
                ticks: Some(point.ticks),
                timestamp: Some(timestamp(point.time_ns)),
                ticks_per_second: Some(point.ticks_per_second),
                error_ns: Some(point.error_ns),
            };
            vec![TracePiece { clock: Some(clock), ..none() }]
        }
        Piece::Functions(functions) => functions
            .chunks(FUNCTIONS_PER_PACKET)
            .map(|functions| {
                let functions = functions.iter().map(message_of_function).collect();
                TracePiece { functions: Some(TraceFunctions { functions }), ..none() }
            })
            .collect(),
        Piece::Shortage { names_lost, rings_lost } => {
            let shortage = TraceShortage { names_lost: Some(*names_lost), rings_lost: Some(*rings_lost) };
            vec![TracePiece { shortage: Some(shortage), ..none() }]
        }
    }
}

fn message_of_function(function: &Function) -> TraceFunction {
    TraceFunction {
        number: Some(function.number),
        name: Some(bytes_of(&function.name)),
        file: function.file.as_deref().map(bytes_of),
        line: function.line,
    }
}

/// The piece in a message, with the time of a clock point since `start_timestamp`. `None` if it is damaged.
pub(super) fn piece(message: TracePiece, start_timestamp: u64) -> Option<Piece> {
    if let Some(chunk) = message.chunk {
        let events = match chunk.events.as_deref() {
            Some([]) => Vec::new(),
            bytes => events_of(bytes.unwrap_or_default())?,
        };
        let first = chunk.first.unwrap_or(0);
        first.checked_add(events.len() as u64)?;
        return Some(Piece::Chunk { ring: chunk.ring.unwrap_or(0), first, events });
    }
    if let Some(ring) = message.ring {
        return Some(Piece::Ring { ring: ring.index.unwrap_or(0), name: text_of(ring.name) });
    }
    if let Some(names) = message.names {
        let texts = names.names.into_iter().map(|name| text_of(Some(name))).collect();
        return Some(Piece::Names { first: names.first.unwrap_or(0), names: texts });
    }
    if let Some(clock) = message.clock {
        return Some(Piece::Clock(ClockPoint {
            ticks: clock.ticks.unwrap_or(0),
            time_ns: clock.timestamp.unwrap_or(0).saturating_sub(start_timestamp),
            ticks_per_second: clock.ticks_per_second.unwrap_or(0),
            error_ns: clock.error_ns.unwrap_or(0),
        }));
    }
    if let Some(functions) = message.functions {
        let is_known = |function: &TraceFunction| (function.number.unwrap_or(0) as usize) < FUNCTIONS_MAX;
        let functions = functions.functions;
        return functions
            .iter()
            .all(is_known)
            .then(|| Piece::Functions(functions.into_iter().map(function_of_message).collect()));
    }
    let shortage = message.shortage?;
    Some(Piece::Shortage { names_lost: shortage.names_lost.unwrap_or(0), rings_lost: shortage.rings_lost.unwrap_or(0) })
}

fn function_of_message(function: TraceFunction) -> Function {
    Function {
        number: function.number.unwrap_or(0),
        name: text_of(function.name),
        file: function.file.map(|file| text_of(Some(file))),
        line: function.line,
    }
}

/// `None` if these are not whole events, or none at all.
fn events_of(bytes: &[u8]) -> Option<Vec<Words>> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(EVENT_BYTES) {
        return None;
    }
    let event = |bytes: &[u8]| -> Words {
        let mut words = [0; EVENT_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        words
    };
    Some(bytes.chunks_exact(EVENT_BYTES).map(event).collect())
}
