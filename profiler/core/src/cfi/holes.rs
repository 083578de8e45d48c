//! The unwind table of a file with holes: the entries that are there are found by the table of its functions (`.eh_frame_hdr`, Linux Standard
//! Base 5, 10.6.2).

use std::ops::Range;

use gimli::UnwindSection;
use object::{Object, ObjectSection};

use super::{Entry, Reader, parsed, sorted};
use crate::elf::{Elf, ImageError, Incomplete, Parts};

/// Version 1; the addresses of the table and of its entries as linkers write them: 4 bytes, relative to themselves or to the header.
const START: [u8; 4] = [1, 0x1b, 3, 0x3b];
/// The header: its start, the address of `.eh_frame`, the number of functions.
const HEADER_BYTES: usize = 12;
/// The addresses of a function and of its entry.
const FUNCTION_BYTES: usize = 8;

/// A table of which parts are missing.
pub(super) struct Around {
    pub(super) table: Incomplete,
    /// Where entries are in it, by the functions' addresses; some may be missing.
    places: Vec<usize>,
}

/// The table of a file; `None` if nothing of it is there.
pub(super) fn read(parts: &Parts<'_>, file: &Elf<'_>) -> Option<Around> {
    let section = |name| {
        let section = file.section_by_name(name)?;
        let (start, bytes) = section.file_range()?;
        Some((section.address(), parts.read_around_holes(start..start.checked_add(bytes)?)?))
    };
    let (table_at, table) = section(".eh_frame").filter(|(_, table)| !table.there.is_empty())?;
    let mut found = Around { table, places: Vec::new() };
    let by_header = section(".eh_frame_hdr").and_then(|(header_at, header)| {
        let addresses = functions(&header)?;
        let place = |relative: i32| header_at.wrapping_add_signed(relative.into()).wrapping_sub(table_at);
        let mut places: Vec<usize> = addresses.filter_map(|relative| usize::try_from(place(relative)).ok()).collect();
        places.sort_unstable();
        places.dedup();
        Some(places)
    });
    // A static program has no such table.
    found.places = by_header.unwrap_or_else(|| found.up_to_hole());
    Some(found)
}

/// The addresses of entries in the table of functions, relative to its header; `None` if that is not there, or another kind.
fn functions(header: &Incomplete) -> Option<impl Iterator<Item = i32>> {
    let Incomplete { bytes, there } = header;
    if !bytes.starts_with(&START) || there.first()?.start != 0 {
        return None;
    }
    let parts = there.iter().filter_map(|range| {
        let first = range.start.saturating_sub(HEADER_BYTES).next_multiple_of(FUNCTION_BYTES) + HEADER_BYTES;
        bytes.get(first..range.end)
    });
    let functions = parts.flat_map(|part| part.chunks_exact(FUNCTION_BYTES));
    Some(functions.filter_map(|function| Some(i32::from_le_bytes(*function[4..].first_chunk()?))))
}

impl Around {
    fn is_there(&self, range: Range<usize>) -> bool {
        let after = self.table.there.partition_point(|there| there.start <= range.start);
        self.table.there[..after].last().is_some_and(|there| range.end <= there.end)
    }

    /// A word of 4 bytes that is there.
    fn word(&self, at: usize) -> Option<usize> {
        let end = at.checked_add(4).filter(|end| self.is_there(at..*end))?;
        Some(u32::from_le_bytes(*self.table.bytes.get(at..end)?.first_chunk()?) as usize)
    }

    /// Whether all of an entry is there.
    fn is_entry_there(&self, at: usize) -> bool {
        let end = self.word(at).and_then(|bytes| at.checked_add(4)?.checked_add(bytes));
        end.is_some_and(|end| self.is_there(at..end))
    }

    /// The places of all entries up to the first that is missing.
    fn up_to_hole(&self) -> Vec<usize> {
        let (mut places, mut at) = (Vec::new(), 0);
        while let Some(bytes) = self.word(at).filter(|bytes| *bytes != 0) {
            places.push(at);
            at = at.saturating_add(4 + bytes);
        }
        places
    }

    /// The entries that are there, each with the one that it shares with others.
    pub(super) fn entries<'a>(
        &self,
        section: &gimli::EhFrame<Reader<'a>>,
        bases: &gimli::BaseAddresses,
    ) -> Result<Vec<Entry>, ImageError> {
        let (mut found, mut common) = (Vec::new(), None);
        for place in self.places.iter().copied().filter(|place| self.is_entry_there(*place)) {
            let shared = self.word(place + 4).and_then(|back| (place + 4).checked_sub(back));
            if !shared.is_some_and(|shared| self.is_entry_there(shared)) {
                continue;
            }
            let Ok(partial) = section.partial_fde_from_offset(bases, gimli::EhFrameOffset(place)) else { continue };
            found.extend(parsed(section, bases, partial, &mut common)?);
        }
        Ok(sorted(found))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budget::Account;
    use crate::metered::Metered;

    /// An entry that ends in a hole would have the rules of its first half everywhere.
    #[test]
    fn an_entry_of_which_a_part_is_missing_is_none() {
        // One that others share: version 1, "", factors, the return address; then a function's, of 8 bytes of code at 0x1000.
        let common = [12u32, 0, 0x7801_0001, 0x10];
        let function = [24u32, 20, 0x1000, 0, 8, 0, 0];
        let bytes: Arc<[u8]> =
            common.iter().chain(&function).flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().into();
        let starts = |there: Vec<Range<usize>>| {
            let around = Around { table: Incomplete { bytes: bytes.clone(), there }, places: vec![16] };
            let slice = gimli::EndianSlice::new(&bytes, gimli::LittleEndian);
            let mut section = gimli::EhFrame::from(Metered::new(slice, Account::alone()));
            section.set_address_size(8);
            let found = around.entries(&section, &gimli::BaseAddresses::default().set_eh_frame(0)).unwrap();
            found.iter().map(|entry| entry.start).collect::<Vec<_>>()
        };
        let whole = starts(std::iter::once(0..bytes.len()).collect());
        assert_eq!(whole.len(), 1);
        assert!(starts(std::iter::once(0..40).collect()).is_empty(), "the end is missing");
        assert!(starts(vec![0..8, 16..44]).is_empty(), "what it shares is not all there");
        assert_eq!(starts(vec![0..16, 16..44]), whole);
    }
}
