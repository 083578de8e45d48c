//! The pages by which guest and host agree on a trace, and the table of names.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// The symbol of the [`Control`] page.
pub const TRACE_SYMBOL: &str = "GLASS_TRACE";
/// First word of the page, once the guest can trace: "GLASSTRC" as little-endian bytes.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"GLASSTRC");
/// Version of everything in this module together.
pub const TRACE_VERSION: u32 = 1;
/// Size of the first page, which contains the words below.
const HEAD_BYTES: usize = 4096;
/// Size of a [`Control`].
pub const CONTROL_BYTES: usize = FUNCTIONS_OFFSET + FUNCTIONS_MAX / 8;
/// The maximum of rings: one for each core of a VM or thread of a process.
pub const RINGS_MAX: usize = 32;
/// Offset of [`Control::rings`].
pub const RINGS_OFFSET: usize = 256;
/// Size of a [`RingEntry`].
pub const RING_BYTES: usize = 64;
/// Offset of [`Control::groups_wanted`], the first word that the host writes.
pub const HOST_LINE_OFFSET: usize = 64;
/// Entries of the table of names; number 0 means no name.
pub const NAMES_MAX: usize = 1024;
/// Size of an entry: length in bytes (u16), then the text in UTF-8.
pub const NAME_BYTES: usize = 64;
/// Bytes of a name that are kept.
pub const NAME_TEXT_BYTES: usize = NAME_BYTES - 2;
/// A ring without a name in the table.
pub const RING_NAME_NONE: u32 = 0;
/// Offset of [`Control::names`].
pub const NAMES_OFFSET: usize = HEAD_BYTES;
/// Functions that can be chosen.
pub const FUNCTIONS_MAX: usize = 65_536;
/// Offset of [`Control::functions_wanted`].
pub const FUNCTIONS_OFFSET: usize = NAMES_OFFSET + NAMES_MAX * NAME_BYTES;

/// The control pages. In a VM they are a static of the image, at the address of [`TRACE_SYMBOL`]; in a process they are the
/// start of a memory file named `glass-trace`, in which an address is at offset
/// `CONTROL_BYTES + address - area_address`.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Control {
    /// [`CONTROL_MAGIC`]; written last.
    pub magic: AtomicU64,
    /// [`TRACE_VERSION`].
    pub version: AtomicU32,
    /// 0 a VM, 1 a process.
    pub is_process: AtomicU32,
    /// Ticks per second of the clock of events, 0 until it is known.
    pub ticks_per_second: AtomicU64,
    /// Ticks at zero of the guest's own clock.
    pub origin_ticks: AtomicU64,
    /// Address of the memory that holds the rings.
    pub area_address: AtomicU64,
    /// Its size in bytes.
    pub area_bytes: AtomicU64,
    /// Functions that can be traced, 0 if the image was not built for it.
    pub functions: AtomicU32,
    reserved: [AtomicU32; 3],

    // At 64: what the host writes, on a line of its own.
    /// Groups that the host requests.
    pub groups_wanted: AtomicU32,
    /// Counts up with each request of the host, after it has written the words above.
    pub request: AtomicU32,
    /// Process id of the recorder that controls the groups, 0 if there is none. Only recorders read it: by it they
    /// detect that a killed recorder has left groups on.
    pub recorder: AtomicU32,
    /// The groups that were on before that recorder attached.
    pub groups_before: AtomicU32,
    host_reserved: [AtomicU32; 12],

    // At 128: words that the guest writes occasionally.
    /// Groups that are on; each event checks them.
    pub groups: AtomicU32,
    /// The last [`Control::request`] that the guest has handled.
    pub answered: AtomicU32,
    /// Ticks when the guest saw it.
    pub answer_ticks: AtomicU64,
    /// Entries used in the table of names, including number 0.
    pub names_used: AtomicU32,
    /// Names that found no room.
    pub names_lost: AtomicU32,
    /// Functions that are being traced.
    pub functions_on: AtomicU32,
    /// Threads that found no ring.
    pub rings_lost: AtomicU32,
    /// Of a VMM's record: ticks of its host, the guest's ticks, and those of its host again, read in this order at the start; 0 if they are
    /// not known. Written before [`Control::magic`].
    pub guest_clock: [AtomicU64; 3],
    guest_reserved: [AtomicU64; 9],

    // At 256.
    /// One for each core or thread.
    pub rings: [RingEntry; RINGS_MAX],
    rest: [AtomicU64; REST_WORDS],

    // On separate pages.
    /// The table of names; entries below [`Control::names_used`] never change.
    pub names: [NameEntry; NAMES_MAX],
    /// A bit for each function that the host requests.
    pub functions_wanted: [AtomicU64; FUNCTIONS_MAX / 64],
}

const REST_WORDS: usize = (HEAD_BYTES - RINGS_OFFSET - RINGS_MAX * RING_BYTES) / 8;

/// An entry of the table of names, as [`words_of_name`] makes it.
pub type NameEntry = [AtomicU64; NAME_BYTES / 8];

/// The location of a ring. Its own cache line, which only the ring's writer changes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingEntry {
    /// Events written so far: [`super::Ring`].
    pub head: AtomicU64,
    /// Address of the events.
    pub address: AtomicU64,
    /// Events that it holds, a power of two; 0 while the entry is unused. Written last.
    pub capacity: AtomicU64,
    /// Its name in the table: "core 0", "disk thread".
    pub name: AtomicU32,
    /// 1 if it is in use.
    pub taken: AtomicU32,
    reserved: [AtomicU64; 4],
}

impl RingEntry {
    /// An unused entry.
    pub const fn new() -> RingEntry {
        RingEntry {
            head: AtomicU64::new(0),
            address: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            name: AtomicU32::new(RING_NAME_NONE),
            taken: AtomicU32::new(0),
            reserved: [const { AtomicU64::new(0) }; 4],
        }
    }
}

impl Default for RingEntry {
    fn default() -> RingEntry {
        RingEntry::new()
    }
}

impl Control {
    /// A page of a guest that does not trace yet: all bits zero, so that an image need not contain it.
    pub const fn new() -> Control {
        Control {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            is_process: AtomicU32::new(0),
            ticks_per_second: AtomicU64::new(0),
            origin_ticks: AtomicU64::new(0),
            area_address: AtomicU64::new(0),
            area_bytes: AtomicU64::new(0),
            functions: AtomicU32::new(0),
            reserved: [const { AtomicU32::new(0) }; 3],
            groups_wanted: AtomicU32::new(0),
            request: AtomicU32::new(0),
            recorder: AtomicU32::new(0),
            groups_before: AtomicU32::new(0),
            host_reserved: [const { AtomicU32::new(0) }; 12],
            groups: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            answer_ticks: AtomicU64::new(0),
            names_used: AtomicU32::new(0),
            names_lost: AtomicU32::new(0),
            functions_on: AtomicU32::new(0),
            rings_lost: AtomicU32::new(0),
            guest_clock: [const { AtomicU64::new(0) }; 3],
            guest_reserved: [const { AtomicU64::new(0) }; 9],
            rings: [const { RingEntry::new() }; RINGS_MAX],
            rest: [const { AtomicU64::new(0) }; REST_WORDS],
            names: [const { [const { AtomicU64::new(0) }; NAME_BYTES / 8] }; NAMES_MAX],
            functions_wanted: [const { AtomicU64::new(0) }; FUNCTIONS_MAX / 64],
        }
    }
}

impl Default for Control {
    fn default() -> Control {
        Control::new()
    }
}

/// A name as an entry of the table: cut at [`NAME_TEXT_BYTES`], between characters.
pub fn words_of_name(text: &str) -> [u64; NAME_BYTES / 8] {
    let mut end = text.len().min(NAME_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = [0u8; NAME_BYTES];
    bytes[..2].copy_from_slice(&(end as u16).to_le_bytes());
    bytes[2..2 + end].copy_from_slice(&text.as_bytes()[..end]);
    let mut words = [0; NAME_BYTES / 8];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    }
    words
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(size_of::<Control>(), CONTROL_BYTES);
        assert_eq!(size_of::<RingEntry>(), RING_BYTES);
        assert_eq!(offset_of!(Control, ticks_per_second), 16);
        assert_eq!(offset_of!(Control, functions), 48);
        assert_eq!(offset_of!(Control, groups_wanted), HOST_LINE_OFFSET);
        assert_eq!(offset_of!(Control, recorder), 72);
        assert_eq!(offset_of!(Control, groups), 128);
        assert_eq!(offset_of!(Control, answer_ticks), 136);
        assert_eq!(offset_of!(Control, names_used), 144);
        assert_eq!(offset_of!(Control, guest_clock), 160);
        assert_eq!(offset_of!(Control, functions_on), 152);
        assert_eq!(offset_of!(Control, names), NAMES_OFFSET);
        assert_eq!(offset_of!(Control, functions_wanted), FUNCTIONS_OFFSET);
        assert_eq!(offset_of!(Control, rings), RINGS_OFFSET);
        assert_eq!(offset_of!(RingEntry, name), 24);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = "ä".repeat(40);
        let words = words_of_name(&name);
        assert_eq!(words[0] & 0xffff, 62);
        assert_eq!(words[7], u64::from_le_bytes(*"ä".repeat(4).as_bytes().first_chunk().unwrap()));
        // Half of a character would have room.
        let words = words_of_name(&["a", &name].concat());
        assert_eq!(words[0], 61 | u64::from(b'a') << 16 | 0xa4c3 << 24 | 0xa4c3 << 40 | 0xc3 << 56);
        assert_eq!(words[7].to_le_bytes(), *b"\xa4\xc3\xa4\xc3\xa4\xc3\xa4\0");
        assert_eq!(words_of_name("a")[0], 1 | u64::from(b'a') << 16);
    }
}
