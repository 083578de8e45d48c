//! The stream of a ring: packets of events, each with the number of events lost before it.

use std::io::{self, Write};

use glass_formats::trace::{Event, Kind};
use glass_profiler_core::trace::raw::RawRing;

use super::Written;
use super::fields::{UNKNOWN, encode, fields};

const MAGIC: u32 = 0xc1fc_1fc1;
/// Bytes of a packet in front of its events: header and context, as `metadata` describes them.
const HEAD_BYTES: usize = 24 + 44;
/// Events of a packet, which is also the number in memory.
const PACKET_EVENTS_MAX: usize = 4096;

pub(super) fn write(index: u32, ring: &RawRing, uuid: [u8; 16], output: &mut dyn Write) -> io::Result<Written> {
    let mut written = Written::default();
    // Numbers of events up to here are in packets, or lost.
    // Events before the first chunk were not requested.
    let mut next = ring.chunks.first().map_or(0, |chunk| chunk.first);
    let (mut lost, mut packets, mut last_ticks) = (0u64, 0u64, 0u64);
    let mut body = Vec::new();
    for chunk in &ring.chunks {
        lost = lost.wrapping_add(chunk.first.saturating_sub(next));
        next = chunk.first.saturating_add(chunk.events.len() as u64);
        for part in chunk.events.chunks(PACKET_EVENTS_MAX) {
            body.clear();
            let mut first_ticks = None;
            for words in part {
                let mut event = Event::from_words(*words);
                written.moved += u64::from(event.ticks < last_ticks);
                event.ticks = event.ticks.max(last_ticks);
                last_ticks = event.ticks;
                first_ticks.get_or_insert(event.ticks);
                encode_event(&event, &mut body);
            }
            written.events += part.len() as u64;
            let bits = (HEAD_BYTES + body.len()) as u64 * 8;
            let mut head = Vec::with_capacity(HEAD_BYTES);
            head.extend_from_slice(&MAGIC.to_le_bytes());
            head.extend_from_slice(&uuid);
            head.extend_from_slice(&0u32.to_le_bytes());
            for word in [first_ticks.unwrap_or(last_ticks), last_ticks, bits, lost, packets] {
                head.extend_from_slice(&word.to_le_bytes());
            }
            head.extend_from_slice(&index.to_le_bytes());
            debug_assert_eq!(head.len(), HEAD_BYTES);
            output.write_all(&head)?;
            output.write_all(&body)?;
            packets += 1;
        }
    }
    Ok(written)
}

fn encode_event(event: &Event, output: &mut Vec<u8>) {
    let kind = Kind::from_number(event.kind);
    let class = kind.map_or(UNKNOWN.0, |kind| kind as u16);
    output.extend_from_slice(&event.ticks.to_le_bytes());
    output.extend_from_slice(&class.to_le_bytes());
    if kind.is_none() {
        output.extend_from_slice(&event.kind.to_le_bytes());
    }
    for field in kind.map_or(UNKNOWN.2, fields) {
        encode(field, event, output);
    }
}
