//! Splits bytes into packets, and finds the place where a file is no longer a sequence of them.

use super::PACKET_BYTES_MAX;

/// Field 1 of the message `Trace`, length-delimited: the start of each packet.
pub(super) const PACKET_TAG: u8 = 0x0a;

/// A varint at the start of `bytes`, and its length.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

/// The next part of a file.
pub(super) enum Next<'a> {
    /// A packet, and the rest after it.
    Packet(&'a [u8], &'a [u8]),
    /// Nothing.
    End,
    /// A part of a packet.
    Cut,
    /// Something else.
    Garbage,
}

/// Splits the first packet off.
pub(super) fn next_packet(bytes: &[u8]) -> Next<'_> {
    let Some(first) = bytes.first() else { return Next::End };
    if *first != PACKET_TAG {
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

/// Splits the first field off a message: its number, its bytes including the tag, and the rest. `None`
/// if the message is damaged.
pub(super) fn next_field(message: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (key, key_bytes) = varint(message)?;
    let rest = &message[key_bytes..];
    let value_bytes = match key & 7 {
        0 => varint(rest)?.1,
        1 => 8,
        2 => {
            let (length, length_bytes) = varint(rest)?;
            usize::try_from(length).ok()?.checked_add(length_bytes)?
        }
        5 => 4,
        _ => return None,
    };
    let end = key_bytes.checked_add(value_bytes)?;
    (end <= message.len()).then(|| (key >> 3, &message[..end], &message[end..]))
}
