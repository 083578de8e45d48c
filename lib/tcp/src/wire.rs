//! Headers of segments (RFC 9293, section 3.1) and their options, parsed once and written once.

use core::ops::BitOr;

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = 60;
/// Bytes that timestamps take in each segment.
pub const TIMESTAMP_BYTES: usize = 12;
/// Blocks that a header has room for.
const SACKS_MAX: usize = 4;
/// The largest shift of a window (RFC 7323, section 2.3).
pub const SHIFT_MAX: u8 = 14;

/// The control bits of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender has sent all.
    pub const FIN: Flags = Flags(1);
    /// It opens a connection.
    pub const SYN: Flags = Flags(2);
    /// It resets one.
    pub const RST: Flags = Flags(4);
    /// The receiver is to be given it at once.
    pub const PSH: Flags = Flags(8);
    /// The acknowledgement number is valid.
    pub const ACK: Flags = Flags(16);

    /// Whether all of `others` are set.
    pub fn has(self, others: Flags) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The blocks of a SACK option (RFC 2018): ranges of sequence numbers, the end not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sacks {
    blocks: [(u32, u32); SACKS_MAX],
    count: u8,
}

impl Sacks {
    /// Adds a block, if there is room.
    pub fn push(&mut self, start: u32, end: u32) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (start, end);
            self.count += 1;
        }
    }

    /// All blocks in their order.
    pub fn blocks(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }
}

/// Timestamps (RFC 7323, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the receiver's clock, as the sender has received it last.
    pub echo: u32,
}

/// The options that this crate has a use for. All others are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The longest payload that the sender receives. Only in a SYN.
    pub segment_bytes: Option<u16>,
    /// The shift of the sender's windows. Only in a SYN.
    pub shift: Option<u8>,
    /// The sender understands SACK. Only in a SYN.
    pub sack_permitted: bool,
    /// What arrived out of order.
    pub sacks: Sacks,
    /// Clocks.
    pub timestamps: Option<Timestamps>,
}

impl Options {
    /// Parses them up to the first that is malformed.
    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let [kind, rest @ ..] = bytes {
            match kind {
                0 => break,
                1 => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(length) = rest.first().map(|length| usize::from(*length)) else { break };
            let Some(value) = bytes.get(2..length) else { break };
            options.add(*kind, value);
            bytes = &bytes[length..];
        }
        options
    }

    fn add(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (2, &[high, low]) => self.segment_bytes = Some(u16::from_be_bytes([high, low])),
            (3, &[shift]) => self.shift = Some(shift.min(SHIFT_MAX)),
            (4, []) => self.sack_permitted = true,
            (5, blocks) => {
                for block in blocks.chunks_exact(8) {
                    self.sacks.push(number_at(block, 0), number_at(block, 4));
                }
            }
            (8, value) if value.len() == 8 => {
                self.timestamps = Some(Timestamps { value: number_at(value, 0), echo: number_at(value, 4) });
            }
            _ => {}
        }
    }

    /// Bytes that they take in a header, a multiple of four.
    pub fn bytes(&self) -> usize {
        let sacks = self.sacks.blocks().len();
        4 * usize::from(self.segment_bytes.is_some())
            + 4 * usize::from(self.shift.is_some())
            // Beside timestamps it takes the place of their padding.
            + 4 * usize::from(self.sack_permitted && self.timestamps.is_none())
            + TIMESTAMP_BYTES * usize::from(self.timestamps.is_some())
            + if sacks > 0 { 4 + 8 * sacks } else { 0 }
    }

    /// Writes them into `bytes`, which is as long as [`Options::bytes`].
    fn write(&self, bytes: &mut [u8]) {
        let mut at = 0;
        let mut put = |piece: &[u8]| {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        };
        if let Some(segment_bytes) = self.segment_bytes {
            put(&[2, 4]);
            put(&segment_bytes.to_be_bytes());
        }
        match (self.sack_permitted, self.timestamps) {
            (true, _) => put(&[4, 2]),
            (false, Some(_)) => put(&[1, 1]),
            (false, None) => {}
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            put(&[8, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        } else if self.sack_permitted {
            put(&[1, 1]);
        }
        if let Some(shift) = self.shift {
            put(&[1, 3, 3, shift]);
        }
        let blocks = self.sacks.blocks();
        if !blocks.is_empty() {
            put(&[1, 1, 5, (2 + 8 * blocks.len()) as u8]);
            for (start, end) in blocks {
                put(&start.to_be_bytes());
                put(&end.to_be_bytes());
            }
        }
    }
}

/// A header, ports and checksum aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, 0 without [`Flags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// The field of the window, as it is on the wire.
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Its length.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Writes it to the start of `segment`, which is at least as long as [`Header::bytes`], with a checksum of 0.
    pub fn write(&self, source_port: u16, destination_port: u16, segment: &mut [u8]) {
        let bytes = self.bytes();
        let (fixed, options) = segment[..bytes].split_at_mut(HEADER_BYTES);
        fixed[..2].copy_from_slice(&source_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&destination_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.to_be_bytes());
        fixed[12] = ((bytes / 4) << 4) as u8;
        fixed[13] = self.flags.0;
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..].fill(0);
        self.options.write(options);
    }
}

/// A received segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'p> {
    /// Its sender's port.
    pub source_port: u16,
    /// Its receiver's port.
    pub destination_port: u16,
    /// Its header.
    pub header: Header,
    /// Its data.
    pub payload: &'p [u8],
}

impl<'p> Segment<'p> {
    /// Parses a segment; `None` if its header is not whole. The checksum is not verified. Urgent data is data (RFC 6093).
    pub fn parse(bytes: &'p [u8]) -> Option<Segment<'p>> {
        let (fixed, _) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let header_bytes = usize::from(fixed[12] >> 4) * 4;
        let options = bytes.get(HEADER_BYTES..header_bytes)?;
        let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let flags = Flags(fixed[13] & 31);
        let header = Header {
            seq: number_at(fixed, 4),
            ack: if flags.has(Flags::ACK) { number_at(fixed, 8) } else { 0 },
            flags,
            window: short(14),
            options: Options::parse(options),
        };
        Some(Segment { source_port: short(0), destination_port: short(2), header, payload: &bytes[header_bytes..] })
    }

    /// Sequence numbers that it takes: its payload, and one each for SYN and FIN.
    pub fn sequence_length(&self) -> u64 {
        let is = |flag| u64::from(self.header.flags.has(flag));
        self.payload.len() as u64 + is(Flags::SYN) + is(Flags::FIN)
    }

    /// The reset that answers it if it belongs to no connection (RFC 9293, section 3.10.7.1).
    pub fn refusal(&self) -> Option<Header> {
        let Header { seq, ack, flags, .. } = self.header;
        if flags.has(Flags::RST) {
            return None;
        }
        Some(if flags.has(Flags::ACK) {
            Header { seq: ack, flags: Flags::RST, ..Header::default() }
        } else {
            let ack = seq.wrapping_add(self.sequence_length() as u32);
            Header { ack, flags: Flags::RST | Flags::ACK, ..Header::default() }
        })
    }
}

/// The number in the four bytes from `at` on.
fn number_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
