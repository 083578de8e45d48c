//! Requests and responses of network cards (`xen/include/public/io/netif.h`).

/// Length of an entry of the ring for frames that are sent, and of its responses.
pub const SEND_BYTES: usize = 12;
pub const SENT_BYTES: usize = 4;
/// Length of an entry of the ring for received frames.
pub const RECEIVE_BYTES: usize = 8;
/// Requests of a frame that every back end takes.
pub const SLOTS_MAX: usize = 18;

/// Flags of a part of a frame that is sent.
pub const SEND_PARTIAL: u16 = 1;
pub const SEND_VALIDATED: u16 = 1 << 1;
/// Flags of a received part.
pub const RECEIVE_VALIDATED: u16 = 1;
pub const RECEIVE_PARTIAL: u16 = 1 << 1;
/// Flags of both: another part follows; an entry with further information follows.
pub const MORE: u16 = 1 << 2;
pub const EXTRA: u16 = 1 << 3;

/// The kind of information that cuts a frame into segments, and its kinds of frames.
const EXTRA_SEGMENTS: u8 = 1;
/// In an entry of further information: another one follows.
const EXTRA_MORE: u8 = 1;
pub const SEGMENTS_V4: u8 = 1;
pub const SEGMENTS_V6: u8 = 2;
/// The status of an answer to an entry of further information.
const STATUS_NONE: i16 = 1;

/// A part of a frame to be sent: from the start of a page. The first one has the length of the whole frame.
pub fn send(reference: u32, flags: u16, id: u16, bytes: u16) -> [u8; SEND_BYTES] {
    let ([a, b, c, d], [e, f], [g, h], [i, j]) =
        (reference.to_le_bytes(), flags.to_le_bytes(), id.to_le_bytes(), bytes.to_le_bytes());
    [a, b, c, d, 0, 0, e, f, g, h, i, j]
}

/// How a frame is to be cut.
pub fn segments(segment_bytes: u16, kind: u8) -> [u8; SEND_BYTES] {
    let [low, high] = segment_bytes.to_le_bytes();
    [EXTRA_SEGMENTS, 0, low, high, kind, 0, 0, 0, 0, 0, 0, 0]
}

/// The part of a frame that was sent; `None` for an entry of further information.
pub fn sent(response: [u8; SENT_BYTES]) -> Option<u16> {
    let [a, b, c, d] = response;
    (i16::from_le_bytes([c, d]) != STATUS_NONE).then_some(u16::from_le_bytes([a, b]))
}

/// A request for a part of a received frame: the page into which the back end writes it.
pub fn receive_request(id: u16, reference: u32) -> [u8; RECEIVE_BYTES] {
    let ([a, b], [c, d, e, f]) = (id.to_le_bytes(), reference.to_le_bytes());
    [a, b, 0, 0, c, d, e, f]
}

/// A received part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub id: u16,
    pub offset: u16,
    pub flags: u16,
    /// Its length, or an error.
    pub status: i16,
}

impl Received {
    pub fn decode([a, b, c, d, e, f, g, h]: [u8; RECEIVE_BYTES]) -> Received {
        let word = |low, high| u16::from_le_bytes([low, high]);
        Received { id: word(a, b), offset: word(c, d), flags: word(e, f), status: i16::from_le_bytes([g, h]) }
    }
}

/// Further information about a received frame: whether more of it follows, and which kind of joined segments it is, if it is.
pub fn extra([kind, flags, _, _, segments, ..]: [u8; RECEIVE_BYTES]) -> (bool, Option<u8>) {
    (flags & EXTRA_MORE != 0, (kind == EXTRA_SEGMENTS).then_some(segments))
}
