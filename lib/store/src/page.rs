//! A page of a tree: entries in the order of their keys.

use crate::format::{KEY_BYTES_MAX, PAGE_BYTES, Pointer, u16_at, u64_at};
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Level, number of entries and sequence.
const HEADER_BYTES: usize = 16;
/// What an entry takes beside key and payload: its offset and two lengths.
const ENTRY_BYTES: usize = 6;
/// Bytes of entries in a page.
pub const CAPACITY: usize = PAGE_BYTES - HEADER_BYTES;
/// The bit beside an entry's length for [`Page::is_large`].
const LARGE: u16 = 1 << 15;

/// A page whose structure was checked. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Page {
    bytes: Rc<[u8]>,
}

impl Page {
    /// `None` if the bytes are no page: entries overlap its end, keys do not ascend, or a pointer has another length.
    pub fn parse(bytes: Rc<[u8]>) -> Option<Page> {
        let page = Page { bytes };
        if page.bytes.len() != PAGE_BYTES || HEADER_BYTES + page.count() * 2 > PAGE_BYTES {
            return None;
        }
        let mut before: Option<&[u8]> = None;
        for index in 0..page.count() {
            let at = page.offset(index);
            let key_bytes = usize::from(u16_at(&page.bytes, at)?);
            let payload_bytes = usize::from(u16_at(&page.bytes, at + 2)? & !LARGE);
            let key = page.bytes.get(at + 4..at + 4 + key_bytes)?;
            page.bytes.get(at + 4 + key_bytes..at + 4 + key_bytes + payload_bytes)?;
            let is_sound = key_bytes <= KEY_BYTES_MAX && (page.level() == 0 || payload_bytes == Pointer::BYTES);
            if !is_sound || before.is_some_and(|before| before >= key) {
                return None;
            }
            before = Some(key);
        }
        Some(page)
    }

    /// The bytes of a page with these entries.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn encode(level: u8, sequence: u64, entries: &[Entry]) -> Page {
        let mut bytes = alloc::vec![0; PAGE_BYTES];
        bytes[0] = level;
        bytes[2..4].copy_from_slice(&(entries.len() as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        let mut at = HEADER_BYTES + entries.len() * 2;
        for (index, entry) in entries.iter().enumerate() {
            let (key, payload) = (entry.key(), entry.payload());
            let large = if entry.is_large() { LARGE } else { 0 };
            bytes[HEADER_BYTES + index * 2..][..2].copy_from_slice(&(at as u16).to_le_bytes());
            bytes[at..at + 2].copy_from_slice(&(key.len() as u16).to_le_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&(payload.len() as u16 | large).to_le_bytes());
            at += 4;
            bytes[at..at + key.len()].copy_from_slice(key);
            at += key.len();
            bytes[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        Page { bytes: bytes.into() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn level(&self) -> u8 {
        self.bytes[0]
    }

    pub fn count(&self) -> usize {
        usize::from(u16_at(&self.bytes, 2).unwrap_or(0))
    }

    pub fn sequence(&self) -> u64 {
        u64_at(&self.bytes, 8).unwrap_or(0)
    }

    fn offset(&self, index: usize) -> usize {
        usize::from(u16_at(&self.bytes, HEADER_BYTES + index * 2).unwrap_or(u16::MAX))
    }

    pub fn key(&self, index: usize) -> &[u8] {
        let at = self.offset(index);
        &self.bytes[at + 4..at + 4 + usize::from(u16_at(&self.bytes, at).unwrap_or(0))]
    }

    pub fn payload(&self, index: usize) -> &[u8] {
        let at = self.offset(index);
        let start = at + 4 + usize::from(u16_at(&self.bytes, at).unwrap_or(0));
        &self.bytes[start..start + usize::from(u16_at(&self.bytes, at + 2).unwrap_or(0) & !LARGE)]
    }

    /// In a leaf: the value has pages of its own, and the payload names them. Above: some value below has.
    pub fn is_large(&self, index: usize) -> bool {
        u16_at(&self.bytes, self.offset(index) + 2).unwrap_or(0) & LARGE != 0
    }

    /// The page that an entry above the leaves leads to.
    pub fn child(&self, index: usize) -> Pointer {
        Pointer::decode(self.payload(index)).unwrap_or_default()
    }

    /// The first entry whose key is not less than `key`, and whether it is equal.
    pub fn search(&self, key: &[u8]) -> (usize, bool) {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(key) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Equal => return (middle, true),
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// Above the leaves: the entry below which `key` is.
    pub fn search_child(&self, key: &[u8]) -> usize {
        match self.search(key) {
            (index, true) => index,
            (index, false) => index.saturating_sub(1),
        }
    }

    pub fn entry(&self, index: usize) -> Entry {
        Entry::Kept(self.clone(), index)
    }
}

/// An entry of a page that is being made.
#[derive(Debug, Clone)]
pub enum Entry {
    /// As another page has it.
    Kept(Page, usize),
    New {
        key: Vec<u8>,
        payload: Vec<u8>,
        is_large: bool,
    },
}

impl Entry {
    pub fn key(&self) -> &[u8] {
        match self {
            Entry::Kept(page, index) => page.key(*index),
            Entry::New { key, .. } => key,
        }
    }

    pub fn payload(&self) -> &[u8] {
        match self {
            Entry::Kept(page, index) => page.payload(*index),
            Entry::New { payload, .. } => payload,
        }
    }

    pub fn is_large(&self) -> bool {
        match self {
            Entry::Kept(page, index) => page.is_large(*index),
            Entry::New { is_large, .. } => *is_large,
        }
    }

    /// What it takes of [`CAPACITY`].
    pub fn bytes(&self) -> usize {
        ENTRY_BYTES + self.key().len() + self.payload().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str]) -> Page {
        let entry =
            |key: &&str| Entry::New { key: key.as_bytes().to_vec(), payload: b"value".to_vec(), is_large: false };
        Page::encode(0, 3, &keys.iter().map(entry).collect::<Vec<_>>())
    }

    #[test]
    fn entries_are_found_by_their_keys() {
        let page = Page::parse(page(&["b", "d", "f"]).bytes().into()).unwrap();
        assert_eq!((page.level(), page.count(), page.sequence()), (0, 3, 3));
        assert_eq!(page.search(b"d"), (1, true));
        assert_eq!(page.search(b"e"), (2, false));
        assert_eq!((page.search_child(b"a"), page.search_child(b"e"), page.search_child(b"z")), (0, 1, 2));
        assert_eq!((page.key(2), page.payload(2), page.is_large(2)), (&b"f"[..], &b"value"[..], false));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let changed = |at: usize, byte: u8| {
            let mut bytes = page(&["b", "d"]).bytes().to_vec();
            bytes[at] = byte;
            Page::parse(bytes.into())
        };
        assert!(changed(0, 0).is_some());
        // A pointer of five bytes, more entries than there are, an offset outside, keys that do not ascend.
        assert!(changed(0, 1).is_none());
        assert!(changed(3, 0xff).is_none());
        assert!(changed(17, 0xff).is_none());
        assert!(changed(24, b'z').is_none());
        assert!(Page::parse(alloc::vec![0; 100].into()).is_none());
    }
}
