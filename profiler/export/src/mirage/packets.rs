//! The packets of a file, and the order in which they were written.

use super::events::FileEvent;

/// The start of each packet: the format's magic number and the UUID of its description.
const START: [u8; 20] = [
    0xc1, 0x1f, 0xfc, 0xc1, 0x05, 0x88, 0x3b, 0x8d, 0x52, 0x1a, 0x48, 0x7b, 0xb3, 0x97, 0x45, 0x6a, 0xb1, 0x50, 0x68,
    0x0c,
];
/// Bytes of the header: after [`START`] the packet's size in bits (u32), its number (u16), the bits that are used (u32).
pub(super) const HEADER_BYTES: usize = 30;
/// Maximum of packets of one file.
const PACKETS_MAX: usize = 1 << 20;

/// A packet, by the offsets of its start and of the end of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub start: usize,
    pub end: usize,
    /// Number of the packet, which wraps.
    pub count: u16,
}

/// All packets that can be found, in the order of the file, and warnings about the file.
pub(super) fn find(bytes: &[u8]) -> (Vec<Packet>, Vec<String>) {
    let mut packets = Vec::new();
    let mut warnings = Vec::new();
    let (mut position, mut skipped) = (0, 0);
    while position + HEADER_BYTES <= bytes.len() && packets.len() < PACKETS_MAX {
        if bytes[position..position + START.len()] != START {
            let next = bytes[position + 1..].windows(START.len()).position(|window| window == START);
            let to = next.map_or(bytes.len(), |offset| position + 1 + offset);
            skipped += to - position;
            position = to;
            continue;
        }
        let bits = |offset: usize| {
            let word = &bytes[position + offset..position + offset + 4];
            u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize / 8
        };
        let (size, used) = (bits(20), bits(26));
        let count = u16::from_le_bytes([bytes[position + 24], bytes[position + 25]]);
        let end = (position + used.min(size.max(HEADER_BYTES))).min(bytes.len());
        // Even if no event of this packet is missing, those of the packets after it are.
        let missing = (position + size.max(HEADER_BYTES)).saturating_sub(bytes.len());
        if missing > 0 {
            warnings.push(format!("the file is cut off within packet {count}: {missing} bytes of it are missing"));
        }
        packets.push(Packet { start: position, end, count });
        position = position.saturating_add(size.max(HEADER_BYTES));
    }
    // A rest that is too short for a packet.
    skipped += bytes.len().saturating_sub(position).min(HEADER_BYTES);
    if skipped > 0 {
        warnings.push(format!("{skipped} bytes of the file are in no packet and were left out"));
    }
    (packets, warnings)
}

/// The packets that have events, in the order in which they were written, with the number of packets that are missing before
/// each. The file is a ring of packets: the newest are before the oldest.
pub(super) fn order(packets: Vec<(u16, Vec<FileEvent>)>, warnings: &mut Vec<String>) -> Vec<(Vec<FileEvent>, u64)> {
    let mut packets: Vec<(u16, Vec<FileEvent>)> =
        packets.into_iter().filter(|(_, events)| !events.is_empty()).collect();
    packets.sort_by_key(|(_, events)| events.first().map_or(0, |event| event.time_ns));
    let mut ordered = Vec::with_capacity(packets.len());
    let mut last: Option<u16> = None;
    let mut lost = 0;
    for (count, events) in packets {
        let missing = match last.map(|last| count.wrapping_sub(last)) {
            None | Some(1) => 0,
            // Equal or decreasing numbers do not indicate a loss.
            Some(0 | 0x8000..) => 0,
            Some(step) => u64::from(step) - 1,
        };
        lost += missing;
        last = Some(count);
        ordered.push((events, missing));
    }
    if lost > 0 {
        warnings.push(format!(
            "{lost} packets are missing between others: they were overwritten or damaged; each counts as one lost event"
        ));
    }
    ordered
}
