//! The symbol table that a Linux kernel has in its memory for itself (`kernel/kallsyms.c`, written by `scripts/kallsyms.c`): names made of
//! tokens, and addresses as offsets.
//!
//! It is found by its table of tokens, in which each digit stands for itself at its own place; all else is beside it. Three orders of the
//! tables are known, and the search recognizes them by what they hold, not by versions:
//!
//! | kernel | order |
//! |---|---|
//! | up to 6.4 | offsets, relative base, count, names, markers, (sequence numbers,) tokens, index of tokens |
//! | 6.5 on | count, names, markers, tokens, index of tokens, offsets, relative base, sequence numbers |
//! | 7.x | the same without a base: an offset is from its own place |
//!
//! All positions are physical addresses: a kernel's image has one piece of physical memory. The guest may have written anything there, so
//! every loop has a bound.

use std::ops::Range;

use crate::memory::Physical;

/// How the tokens of the ten digits are in the table.
const DIGITS: [u8; 20] = *b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
/// The token of the digit 0 is the one of its own code.
const FIRST_DIGIT: usize = b'0' as usize;
const TOKENS: usize = 256;
/// The longest token; real ones have less than 20 bytes.
const TOKEN_BYTES_MAX: usize = 64;
/// So many names share a marker.
const NAMES_OF_MARKER: u64 = 256;
/// The most symbols; Debian's kernel 7.3 has some 198,000.
const SYMBOLS_MAX: u64 = 4 << 20;
/// The most bytes of all names; those kernels have some 2.5 MB.
const NAMES_BYTES_MAX: u64 = 64 << 20;
/// The least markers: a kernel of a configuration for small machines has some 90.
const MARKERS_MIN: u64 = 16;
/// How far behind the markers the tokens may be: sequence numbers may be in between.
const MARKERS_DISTANCE_MAX: u64 = 16 << 20;
/// Markers whose names are counted to prove that names and markers are a pair.
const MARKERS_PROVED: u64 = 5;
/// What is read at once in the search.
const CHUNK_BYTES: u64 = 1 << 20;
/// The most places with the digits that are compared with a table: an ordinary guest has one or two.
const PLACES_MAX: usize = 4096;
/// The most tables around which others are searched, which takes some milliseconds each.
const TABLES_MAX: usize = 64;

/// A symbol of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its address: what that is, [`Kallsyms::addresses`] returns.
    pub address: u64,
    /// Its kind, as in the output of `nm`.
    pub kind: u8,
    /// Its name; other bytes than ASCII are replaced.
    pub name: &'a str,
}

/// What the addresses of symbols are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// Those at which the kernel runs.
    Virtual,
    /// Physical ones: offsets are relative to where they are.
    Physical,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    name_at: u32,
    name_bytes: u16,
    kind: u8,
}

/// The symbols of a kernel, in the order of its table: by address, and of several at one address first the one that the kernel itself
/// shows.
#[derive(Debug, Default)]
pub struct Kallsyms {
    names: String,
    entries: Vec<Entry>,
    is_physical: bool,
    /// Where the table of tokens is.
    tokens_at: u64,
}

impl Kallsyms {
    /// The symbols, in the order of the table.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        let start = entry.name_at as usize;
        let name = &self.names[start..start + usize::from(entry.name_bytes)];
        Symbol { address: entry.address, kind: entry.kind, name }
    }

    /// The address of the first symbol of a name.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        let of_length = self.entries.iter().filter(|entry| usize::from(entry.name_bytes) == name.len());
        of_length.map(|entry| self.symbol(entry)).find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// The addresses of the first symbol of a name, to the next symbol.
    #[must_use]
    pub fn range(&self, name: &str) -> Option<Range<u64>> {
        let start = self.address(name)?;
        let end = self.entries.iter().map(|entry| entry.address).filter(|address| *address > start).min()?;
        Some(start..end)
    }

    /// Those with these names alone.
    pub(super) fn named(&self, names: &[&str]) -> Kallsyms {
        let mut named = Kallsyms { names: String::new(), entries: Vec::new(), ..*self };
        for (entry, symbol) in self.entries.iter().map(|entry| (entry, self.symbol(entry))) {
            if names.contains(&symbol.name) {
                named.entries.push(Entry { name_at: named.names.len() as u32, ..*entry });
                named.names.push_str(symbol.name);
            }
        }
        named
    }

    /// Those of code alone.
    pub(super) fn functions(mut self) -> Kallsyms {
        self.entries.retain(|entry| matches!(entry.kind, b't' | b'T' | b'w' | b'W'));
        self
    }

    /// What the addresses are.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        if self.is_physical { Addresses::Physical } else { Addresses::Virtual }
    }

    /// Where the table of tokens is in physical memory: within the kernel's image.
    #[must_use]
    pub fn tokens_at(&self) -> u64 {
        self.tokens_at
    }

    /// Adds a distance to all addresses, which are virtual then.
    pub(super) fn shift(&mut self, distance: u64) {
        self.entries.iter_mut().for_each(|entry| entry.address = entry.address.wrapping_add(distance));
        self.is_physical = false;
    }
}

/// Memory by physical address, of which what was read last is kept.
struct Window<'a> {
    memory: &'a dyn Physical,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    const BYTES: u64 = 64 << 10;

    fn new(memory: &'a dyn Physical) -> Window<'a> {
        Window { memory, start: 0, bytes: Vec::new() }
    }

    fn get(&mut self, at: u64, count: usize) -> Option<&[u8]> {
        let is_there = |window: &Window<'_>| {
            let inside = at.checked_sub(window.start)?;
            (inside.checked_add(count as u64)? <= window.bytes.len() as u64).then_some(inside as usize)
        };
        if is_there(self).is_none() {
            // Around the place: the tables are read in both directions. Near the end of RAM there is less.
            let whole = at.saturating_sub(Window::BYTES / 2) & !4095;
            for (start, bytes) in [(whole, Window::BYTES), (at & !4095, 4096), (at, count as u64)] {
                self.bytes.resize(bytes as usize, 0);
                self.start = start;
                if self.memory.read(start, &mut self.bytes) && is_there(self).is_some() {
                    break;
                }
                self.bytes.clear();
            }
        }
        let inside = is_there(self)?;
        Some(&self.bytes[inside..inside + count])
    }

    fn byte(&mut self, at: u64) -> Option<u8> {
        self.get(at, 1).map(|bytes| bytes[0])
    }

    fn word(&mut self, at: u64) -> Option<u32> {
        self.get(at, 4).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn long(&mut self, at: u64) -> Option<u64> {
        self.get(at, 8).and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The number of bytes of a name, and of that number itself: one of 128 or more has two.
    fn length(&mut self, at: u64) -> Option<(u64, u64)> {
        let first = self.byte(at)?;
        if first & 0x80 == 0 {
            return Some((u64::from(first), 1));
        }
        Some((u64::from(first & 0x7f) | u64::from(self.byte(at + 1)?) << 7, 2))
    }
}

/// A table of tokens: where it is, where its index ends, and the tokens.
struct Tokens {
    at: u64,
    index_end: u64,
    texts: Vec<Vec<u8>>,
}

/// The table of tokens around the digits at an address.
fn tokens_at(memory: &dyn Physical, digits: u64) -> Option<Tokens> {
    let before = (FIRST_DIGIT * TOKEN_BYTES_MAX) as u64;
    let start = digits.checked_sub(before)?;
    let mut bytes = vec![0; before as usize + (TOKENS - FIRST_DIGIT) * TOKEN_BYTES_MAX];
    if !memory.read(start, &mut bytes) {
        return None;
    }
    let mut first = before as usize;
    for _ in 0..FIRST_DIGIT {
        // The end of the token before ends this one's start.
        let end = first.checked_sub(1)?;
        let text = bytes.get(end.checked_sub(TOKEN_BYTES_MAX)?..end)?.iter().rev().position(|byte| *byte == 0)?;
        first = end - text;
    }
    let (mut texts, mut offsets, mut at) = (Vec::with_capacity(TOKENS), Vec::with_capacity(TOKENS), first);
    for _ in 0..TOKENS {
        let text = bytes.get(at..)?.iter().take(TOKEN_BYTES_MAX).position(|byte| *byte == 0)?;
        offsets.push((at - first) as u16);
        texts.push(bytes[at..at + text].to_vec());
        at += text + 1;
    }
    let (table, end) = (start + first as u64, start + at as u64);
    for alignment in [2u64, 4, 8, 16] {
        let index = end.next_multiple_of(alignment);
        let mut found = [0; 2 * TOKENS];
        if memory.read(index, &mut found)
            && found.as_chunks::<2>().0.iter().map(|offset| u16::from_le_bytes(*offset)).eq(offsets.iter().copied())
        {
            return Some(Tokens { at: table, index_end: index + 2 * TOKENS as u64, texts });
        }
    }
    None
}

/// The markers: where the names of each 256th symbol start, relative to the first.
#[derive(Debug, Clone, Copy)]
struct Markers {
    at: u64,
    count: u64,
    last: u64,
}

/// The markers in front of the tokens: words that increase by what 256 names may have, from 0 on.
fn markers_before(window: &mut Window<'_>, tokens: u64) -> Option<Markers> {
    let (mut at, mut end) = (tokens & !3, None);
    let lowest = at.saturating_sub(MARKERS_DISTANCE_MAX).max(4);
    while at > lowest {
        let (before, here) = (window.word(at - 4)?, window.word(at)?);
        let is_step = (256..=256 * 128).contains(&here.wrapping_sub(before));
        match (is_step, end) {
            (true, None) => end = Some((at + 4, here)),
            (false, _) => end = None,
            _ => {}
        }
        if let Some((end, last)) = end.filter(|_| before == 0) {
            let count = (end - (at - 4)) / 4;
            if count >= MARKERS_MIN {
                return Some(Markers { at: at - 4, count, last: u64::from(last) });
            }
        }
        at -= 4;
    }
    None
}

/// Where the count of the symbols is, the count, and where the names are.
#[derive(Debug, Clone, Copy)]
struct Names {
    count_at: u64,
    count: u64,
    at: u64,
}

fn names_before(window: &mut Window<'_>, markers: Markers) -> Option<Names> {
    // The names of the last marker, up to 256 of them, are between it and the markers.
    let highest = markers.at.checked_sub(markers.last)? & !3;
    let lowest = highest.saturating_sub(NAMES_OF_MARKER * 130);
    for count_at in (lowest..=highest).rev().step_by(4) {
        let count = u64::from(window.word(count_at)?);
        if count.div_ceil(NAMES_OF_MARKER) != markers.count || count > SYMBOLS_MAX {
            continue;
        }
        for at in [count_at + 4, count_at + 8] {
            if are_names(window, at, markers) == Some(true) {
                return Some(Names { count_at, count, at });
            }
        }
    }
    None
}

/// Whether the names of the first markers are where these say.
fn are_names(window: &mut Window<'_>, names: u64, markers: Markers) -> Option<bool> {
    let mut at = names;
    for marker in 1..markers.count.min(MARKERS_PROVED + 1) {
        for _ in 0..NAMES_OF_MARKER {
            let (length, own) = window.length(at)?;
            at += length + own;
        }
        if at - names != u64::from(window.word(markers.at + 4 * marker)?) {
            return Some(false);
        }
    }
    Some(true)
}

/// The addresses of the symbols by one order of the tables; how many of them are not sorted.
struct Offsets {
    addresses: Vec<u64>,
    is_physical: bool,
    unsorted: u64,
}

fn read_offsets(memory: &dyn Physical, at: u64, count: u64) -> Option<Vec<i32>> {
    let mut bytes = vec![0; usize::try_from(count).ok()?.checked_mul(4)?];
    memory.read(at, &mut bytes).then(|| bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect())
}

/// How many values are lower than the one before.
fn unsorted(values: impl Iterator<Item = i64>) -> u64 {
    let mut last = i64::MIN;
    values.filter(|value| std::mem::replace(&mut last, *value) > *value).count() as u64
}

/// Offsets from a base: those of per-CPU data are addresses themselves, others are negative and go up from the base.
fn from_base(memory: &dyn Physical, at: u64, base_at: u64, count: u64) -> Option<Offsets> {
    let offsets = read_offsets(memory, at, count)?;
    let base = Window::new(memory).long(base_at)?;
    let negative = offsets.iter().filter(|offset| **offset < 0).count();
    // A kernel for one CPU has no per-CPU data apart: all its offsets are without a sign.
    if negative > offsets.len() / 10 {
        let unsorted = unsorted(offsets.iter().filter(|offset| **offset >= 0).map(|offset| i64::from(*offset)))
            + unsorted(offsets.iter().filter(|offset| **offset < 0).map(|offset| i64::from(!*offset)));
        let address = |offset: i32| match u64::try_from(offset) {
            Ok(absolute) => absolute,
            Err(_) => base.wrapping_add(u64::from(!(offset as u32))),
        };
        let addresses = offsets.iter().map(|offset| address(*offset)).collect();
        return Some(Offsets { addresses, is_physical: false, unsorted });
    }
    let unsorted = unsorted(offsets.iter().map(|offset| i64::from(*offset as u32)));
    let addresses = offsets.iter().map(|offset| base.wrapping_add(u64::from(*offset as u32))).collect();
    Some(Offsets { addresses, is_physical: false, unsorted })
}

/// Offsets from their own places.
fn from_themselves(memory: &dyn Physical, at: u64, count: u64) -> Option<Offsets> {
    let places = (0..count).map(|index| at + 4 * index);
    let offsets = read_offsets(memory, at, count)?;
    let addresses: Vec<u64> =
        places.zip(&offsets).map(|(place, offset)| place.wrapping_add_signed(i64::from(*offset))).collect();
    let unsorted = unsorted(addresses.iter().map(|address| *address as i64));
    Some(Offsets { addresses, is_physical: true, unsorted })
}

fn offsets_of(memory: &dyn Physical, tokens: &Tokens, names: Names) -> Option<Offsets> {
    let count = names.count;
    let behind = tokens.index_end.next_multiple_of(8);
    // In front, the array starts at a multiple of 8, so an odd count has four bytes behind it.
    let in_front = [8, 16].into_iter().filter_map(|back| {
        let base_at = names.count_at.checked_sub(back)? & !7;
        Some((base_at.checked_sub(4 * count)? & !7, base_at))
    });
    let from_bases = in_front.chain([(behind, (behind + 4 * count).next_multiple_of(8))]);
    let candidates = from_bases.filter_map(|(at, base_at)| from_base(memory, at, base_at, count));
    // Zeros are sorted, too.
    let differ = |found: &Offsets| found.addresses.first() != found.addresses.last();
    let best = candidates
        .chain(from_themselves(memory, tokens.index_end, count))
        .filter(differ)
        .min_by_key(|found| found.unsorted)?;
    // The tables of 5.10 have some that are not sorted.
    (best.unsorted * 20 < count).then_some(best)
}

fn decode(
    memory: &dyn Physical,
    tokens: &Tokens,
    markers: Markers,
    names: Names,
    offsets: &Offsets,
) -> Option<Kallsyms> {
    let bytes = Some(markers.at.checked_sub(names.at)?).filter(|bytes| *bytes <= NAMES_BYTES_MAX)?;
    let mut encoded = vec![0; bytes as usize];
    if !memory.read(names.at, &mut encoded) {
        return None;
    }
    let mut found = Kallsyms {
        names: String::with_capacity(encoded.len() * 2),
        entries: Vec::with_capacity(offsets.addresses.len()),
        is_physical: offsets.is_physical,
        tokens_at: tokens.at,
    };
    let (mut at, mut text) = (0, Vec::new());
    for address in &offsets.addresses {
        let first = usize::from(*encoded.get(at)?);
        let (length, own) = match first & 0x80 {
            0 => (first, 1),
            _ => (first & 0x7f | usize::from(*encoded.get(at + 1)?) << 7, 2),
        };
        at += own;
        text.clear();
        for token in encoded.get(at..at + length)? {
            text.extend_from_slice(&tokens.texts[usize::from(*token)]);
        }
        at += length;
        let (kind, name) = text.split_first()?;
        let name_at = u32::try_from(found.names.len()).ok()?;
        // Names are ASCII; Rust's mangled names too.
        found.names.extend(name.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' }));
        let name_bytes = u16::try_from(name.len()).ok()?;
        found.entries.push(Entry { address: *address, name_at, name_bytes, kind: *kind });
    }
    Some(found)
}

/// The symbols of the kernel with a table of tokens.
fn kallsyms_of(memory: &dyn Physical, tokens: &Tokens) -> Option<Kallsyms> {
    let mut window = Window::new(memory);
    let markers = markers_before(&mut window, tokens.at)?;
    let names = names_before(&mut window, markers)?;
    let offsets = offsets_of(memory, tokens, names)?;
    decode(memory, tokens, markers, names, &offsets)
}

/// Searches ranges of physical memory for kernels, and passes the symbols of each to `found` until that returns something.
pub fn search<T>(
    memory: &dyn Physical,
    ranges: &[Range<u64>],
    mut found: impl FnMut(Kallsyms) -> Option<T>,
) -> Option<T> {
    let finder = memchr::memmem::Finder::new(&DIGITS);
    let overlap = DIGITS.len() as u64 - 1;
    let (mut chunk, mut places, mut tables) = (vec![0; CHUNK_BYTES as usize], 0, 0);
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + CHUNK_BYTES);
            let bytes = &mut chunk[..(end - start) as usize];
            if memory.read(start, bytes) {
                for place in finder.find_iter(bytes) {
                    places += 1;
                    if places > PLACES_MAX {
                        return None;
                    }
                    let Some(tokens) = tokens_at(memory, start + place as u64) else { continue };
                    tables += 1;
                    if tables > TABLES_MAX {
                        return None;
                    }
                    if let Some(result) = kallsyms_of(memory, &tokens).and_then(&mut found) {
                        return Some(result);
                    }
                }
            }
            start = if end < range.end { end - overlap } else { end };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_at_the_next_address() {
        let entry = |address, name_at| Entry { address, name_at, name_bytes: 1, kind: b't' };
        let entries = vec![entry(0x10, 0), entry(0x10, 1), entry(0x40, 2), entry(0x50, 3)];
        let symbols = Kallsyms { names: "abcd".to_owned(), entries, ..Kallsyms::default() };
        let ranges = ["a", "b", "c", "d", "e"].map(|name| symbols.range(name));
        assert_eq!(ranges, [Some(0x10..0x40), Some(0x10..0x40), Some(0x40..0x50), None, None]);
        let some = symbols.named(&["d", "b", "e"]);
        let found: Vec<_> = some.symbols().map(|symbol| (symbol.name, symbol.address)).collect();
        assert_eq!((found, some.names.as_str()), (vec![("b", 0x10), ("d", 0x50)], "bd"));
    }
}
