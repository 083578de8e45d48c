//! The recording as a plain Perfetto trace: a copy without our fields, with all names, and the guest's trace as
//! track events.

mod encoder;
mod proto;

use std::io::{self, Write};

use glass_profiler_core::recording::{PlainSettings, Recording, write_plain};
use glass_profiler_core::trace::model::Trace;
use prost::Message;

use crate::{Options, States, lanes};
use encoder::Encoder;

/// The header is the second packet of a recording; the search ends after this many.
const HEADER_PACKETS: usize = 16;

pub(crate) fn write(
    recording: &Recording,
    trace: Option<&Trace>,
    bytes: &[u8],
    options: Options<'_>,
    mut output: &mut dyn Write,
) -> io::Result<()> {
    let settings = PlainSettings { only_running: options.states == States::Running, view: options.view };
    write_plain(bytes, recording, settings, &mut output)?;
    let Some(trace) = trace else { return Ok(()) };
    let mut encoder = Encoder::start(output, start_timestamp(bytes))?;
    lanes::draw(trace, &mut encoder)?;
    encoder.finish()
}

/// The clock of the file's packets at the start of the recording.
fn start_timestamp(bytes: &[u8]) -> u64 {
    let mut rest = bytes;
    for _ in 0..HEADER_PACKETS {
        let Some(after_tag) = rest.strip_prefix(&[proto::PACKET_TAG]) else { break };
        let mut packet = after_tag;
        let Ok(length) = prost::decode_length_delimiter(&mut packet) else { break };
        if length > packet.len() {
            break;
        }
        let (packet, after) = packet.split_at(length);
        rest = after;
        let header = proto::RecordedPacket::decode(packet).ok().and_then(|packet| packet.glass?.header);
        if let Some(header) = header {
            return header.start_timestamp.unwrap_or(0);
        }
    }
    0
}
