//! The first of the control pages as numbers, and its validation.

use glass_formats::trace::{
    CONTROL_MAGIC, EVENT_BYTES, HOST_LINE_OFFSET, NAME_BYTES, NAME_TEXT_BYTES, NAMES_MAX, NAMES_OFFSET, RING_BYTES,
    RINGS_MAX, RINGS_OFFSET, TRACE_VERSION,
};

use super::memory::TraceMemory;
use crate::error::GuestError;

/// Bytes of the page that are read: all up to the last ring.
pub(super) const PAGE_BYTES: usize = RINGS_OFFSET + RINGS_MAX * RING_BYTES;
/// `groups_wanted` and `request`, written as one word.
pub(super) const REQUEST_OFFSET: usize = HOST_LINE_OFFSET;
/// `recorder` and `groups_before`, written as one word.
pub(super) const RECORDER_OFFSET: usize = HOST_LINE_OFFSET + 8;
/// The most events of a ring: 2 GiB of them.
const CAPACITY_MAX: u64 = 1 << 26;
/// No guest writes as many events; a larger head is invalid, and sums with a smaller one never overflow.
pub(super) const HEAD_MAX: u64 = 1 << 62;

/// The values of the page; only magic and version are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) ticks_per_second: u64,
    pub(super) area_address: u64,
    pub(super) area_bytes: u64,
    pub(super) functions: u32,
    pub(super) request: u32,
    pub(super) recorder: u32,
    pub(super) groups_before: u32,
    pub(super) groups: u32,
    pub(super) answered: u32,
    pub(super) answer_ticks: u64,
    /// Within the table.
    pub(super) names_used: u32,
    pub(super) names_lost: u32,
    /// How many functions are traced.
    pub(super) functions_on: u32,
    pub(super) rings_lost: u32,
    /// What a VMM states of its guest's clock: ticks of the host, of the guest and of the host, read in this order.
    pub(super) guest_clock: Option<[u64; 3]>,
    /// By slot.
    pub(super) rings: Vec<RingWords>,
}

/// An entry for a ring, unchecked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RingWords {
    pub(super) head: u64,
    pub(super) address: u64,
    pub(super) capacity: u64,
    pub(super) name: u32,
}

/// Why the page cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPage {
    /// The memory is missing.
    Unreadable,
    /// There is no magic: the guest has not started tracing, or is not ours.
    NoMagic,
    /// Written by a newer guest.
    TooNew(u32),
}

impl NoPage {
    /// As an error about `guest`.
    pub(super) fn about(self, guest: &str) -> GuestError {
        GuestError::Trace(match self {
            NoPage::Unreadable => format!("the control pages of {guest} cannot be read: its memory is not there"),
            NoPage::NoMagic => {
                format!("{guest} has no trace yet: it does not run the given program, or is only just starting")
            }
            NoPage::TooNew(version) => format!(
                "{guest} has a trace of version {version} and this glass supports {TRACE_VERSION}: use a newer glass"
            ),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl Page {
    pub(super) fn read(memory: &impl TraceMemory) -> Result<Page, NoPage> {
        let mut bytes = [0; PAGE_BYTES];
        if !memory.read_control(0, &mut bytes) {
            return Err(NoPage::Unreadable);
        }
        if word(&bytes, 0) != CONTROL_MAGIC {
            return Err(NoPage::NoMagic);
        }
        let version = half(&bytes, 8);
        if version > TRACE_VERSION {
            return Err(NoPage::TooNew(version));
        }
        let ring = |slot: usize| {
            let at = RINGS_OFFSET + slot * RING_BYTES;
            RingWords {
                head: word(&bytes, at),
                address: word(&bytes, at + 8),
                capacity: word(&bytes, at + 16),
                name: half(&bytes, at + 24),
            }
        };
        Ok(Page {
            ticks_per_second: word(&bytes, 16),
            area_address: word(&bytes, 32),
            area_bytes: word(&bytes, 40),
            functions: half(&bytes, 48),
            request: half(&bytes, REQUEST_OFFSET + 4),
            recorder: half(&bytes, RECORDER_OFFSET),
            groups_before: half(&bytes, RECORDER_OFFSET + 4),
            groups: half(&bytes, 128),
            answered: half(&bytes, 132),
            answer_ticks: word(&bytes, 136),
            names_used: half(&bytes, 144).min(NAMES_MAX as u32),
            names_lost: half(&bytes, 148),
            functions_on: half(&bytes, 152),
            rings_lost: half(&bytes, 156),
            guest_clock: Some([160, 168, 176].map(|at| word(&bytes, at)))
                .filter(|[before, _, after]| 0 < *before && before <= after),
            rings: (0..RINGS_MAX).map(ring).collect(),
        })
    }

    /// The problem of a ring's entry; `None` if it is valid.
    pub(super) fn problem(&self, ring: &RingWords) -> Option<String> {
        let RingWords { address, capacity, head, .. } = *ring;
        if !capacity.is_power_of_two() || !(2..=CAPACITY_MAX).contains(&capacity) {
            return Some(format!("it claims to hold {capacity} events"));
        }
        let inside = address.checked_sub(self.area_address);
        let end = inside.and_then(|inside| inside.checked_add(capacity * EVENT_BYTES as u64));
        if end.is_none_or(|end| end > self.area_bytes) || !address.is_multiple_of(8) {
            return Some(format!("it claims to be at {address:#x}, where no ring can be"));
        }
        (head > HEAD_MAX).then(|| format!("it claims to have seen {head} events"))
    }
}

/// The head of a ring, read alone.
pub(super) fn read_head(memory: &impl TraceMemory, slot: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read_control(RINGS_OFFSET + slot * RING_BYTES, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// The names with numbers from `first` to below `end`, which is within the table.
pub(super) fn read_names(memory: &impl TraceMemory, first: u32, end: u32) -> Option<Vec<String>> {
    let mut bytes = vec![0; (end.saturating_sub(first)) as usize * NAME_BYTES];
    if !memory.read_control(NAMES_OFFSET + first as usize * NAME_BYTES, &mut bytes) {
        return None;
    }
    let name = |entry: &[u8]| {
        let length = usize::from(entry[0]) | usize::from(entry[1]) << 8;
        String::from_utf8_lossy(&entry[2..2 + length.min(NAME_TEXT_BYTES)]).into_owned()
    };
    Some(bytes.chunks_exact(NAME_BYTES).map(name).collect())
}
