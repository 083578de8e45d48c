//! What a program has at its addresses when it is loaded, by its program headers: the bytes of its file, and the addresses that the
//! dynamic linker writes over them (System V gABI, chapter 5; AMD64 supplement, 4.4).

use std::ops::Range;
use std::sync::Arc;

use object::elf::{PF_W, PF_X, PT_DYNAMIC, PT_LOAD};
use object::read::elf::ProgramHeader;

use super::{Elf, Parts};
use crate::budget::Over;

/// The most program headers that are used. A linker writes about a dozen.
const SEGMENTS_MAX: usize = 256;
/// The most bytes of the dynamic table that are used.
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
/// How much of a segment is searched at once, in bytes.
const PIECE_BYTES: u64 = 64 << 10;
/// The most bytes of all segments that are searched: several times the largest programs.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
/// The most places at which a word is found.
const FOUND_MAX: usize = 16;
/// Bytes that are searched, or copied, as one unit of work.
const BYTES_PER_UNIT: u64 = 32;
/// An entry of a table of relocations with addends.
const RELOCATION_BYTES: usize = 24;
/// `R_X86_64_RELATIVE`: the word is the bias and the addend.
const RELATIVE: u64 = 8;
/// Tags of the dynamic table: where the relocations with addends are, and how many bytes they have.
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;

/// Bytes of a file that are in memory when its program runs.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The first address for which it is linked.
    address: u64,
    /// Where it begins in the file.
    offset: u64,
    /// How much of it is in the file.
    bytes: u64,
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
}

impl Segment {
    fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.bytes)
    }
}

/// The segments of a program, linked for the address 0 on if it can be anywhere.
pub(crate) struct Loaded<'p, 'f> {
    parts: &'p Parts<'f>,
    segments: Vec<Segment>,
    /// Words that the dynamic linker writes, by their addresses.
    relocated: Vec<(u64, u64)>,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'p, 'f> Loaded<'p, 'f> {
    /// The segments of a parsed file; none of one that cannot be loaded.
    pub(crate) fn of(parts: &'p Parts<'f>, file: &Elf<'_>) -> Result<Loaded<'p, 'f>, Over> {
        let (mut segments, mut dynamic) = (Vec::new(), None);
        if let object::File::Elf64(file) = file {
            let endian = file.endian();
            for header in file.elf_program_headers().iter().take(SEGMENTS_MAX) {
                let segment = Segment {
                    address: header.p_vaddr(endian),
                    offset: header.p_offset(endian),
                    bytes: header.p_filesz(endian),
                    is_writable: header.p_flags(endian).contains(PF_W),
                    is_executable: header.p_flags(endian).contains(PF_X),
                };
                match header.p_type(endian) {
                    PT_LOAD => segments.push(segment),
                    PT_DYNAMIC => dynamic = Some(segment),
                    _ => {}
                }
            }
        }
        let mut loaded = Loaded { parts, segments, relocated: Vec::new() };
        if let Some(table) = dynamic.and_then(|dynamic| loaded.relocations(&dynamic)) {
            loaded.relocate(table)?;
        }
        Ok(loaded)
    }

    /// The addresses of the relocations that the dynamic table names.
    fn relocations(&self, dynamic: &Segment) -> Option<Range<u64>> {
        let mut bytes = vec![0; dynamic.bytes.min(DYNAMIC_BYTES_MAX) as usize];
        self.parts.copy(dynamic.offset, &mut bytes)?;
        let entries = bytes.chunks_exact(16).filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)));
        let value = |tag| entries.clone().find(|(known, _)| *known == tag).map(|(_, value)| value);
        let start = value(DT_RELA)?;
        Some(start..start.checked_add(value(DT_RELASZ)?)?)
    }

    /// Takes note of the words of a table of relocations that are the bias and an addend.
    fn relocate(&mut self, table: Range<u64>) -> Result<(), Over> {
        let account = &self.parts.account;
        let mut bytes = [0; RELOCATION_BYTES * 1024];
        let mut at = table.start;
        while at < table.end {
            let count = (table.end - at).min(bytes.len() as u64) as usize;
            if self.copy(at, &mut bytes[..count]).is_none() {
                break;
            }
            for entry in bytes[..count].chunks_exact(RELOCATION_BYTES) {
                if let (Some(address), Some(RELATIVE), Some(addend)) = (word(entry, 0), word(entry, 8), word(entry, 16))
                {
                    account.hold(size_of::<(u64, u64)>() as u64)?;
                    self.relocated.push((address, addend));
                }
            }
            at += count as u64;
        }
        self.relocated.sort_unstable();
        account.over().map_or(Ok(()), Err)
    }

    /// Fills `into` with what is in the file for an address on.
    fn copy(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let end = address.checked_add(into.len() as u64)?;
        let segment = self.segment(address).filter(|segment| end <= segment.range().end)?;
        self.parts.copy(segment.offset.checked_add(address - segment.address)?, into)
    }

    /// The segment with an address.
    fn segment(&self, address: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.range().contains(&address))
    }

    /// Whether a range of addresses is all code.
    pub(crate) fn is_code(&self, range: &Range<u64>) -> bool {
        let segment = self.segment(range.start).filter(|segment| segment.is_executable);
        segment.is_some_and(|segment| range.start < range.end && range.end <= segment.range().end)
    }

    /// How many bytes of the file follow an address in its segment.
    pub(crate) fn bytes_from(&self, address: u64) -> u64 {
        self.segment(address).map_or(0, |segment| segment.range().end - address)
    }

    /// What is at a range of addresses in memory, but for the bias; `None` if it is not all in the file, or too much. The account holds
    /// it from now on.
    pub(crate) fn read(&self, address: u64, bytes: u64) -> Option<Arc<[u8]>> {
        let end = address.checked_add(bytes)?;
        let segment = self.segment(address).filter(|segment| end <= segment.range().end)?;
        let mut data = self.parts.read(segment.offset.checked_add(address - segment.address)?, bytes)?;
        let into = Arc::get_mut(&mut data)?;
        let first = self.relocated.partition_point(|(at, _)| *at < address);
        for (at, addend) in self.relocated[first..].iter().take_while(|(at, _)| *at < end) {
            self.parts.account.work(1).ok()?;
            let at = (at - address) as usize;
            if let Some(word) = into.get_mut(at..at + size_of::<u64>()) {
                word.copy_from_slice(&addend.to_le_bytes());
            }
        }
        Some(data)
    }

    /// Where in segments of one kind one of these words is, at a multiple of its size; or where the dynamic linker writes it.
    pub(crate) fn find(&self, is_of_kind: impl Fn(&Segment) -> bool, words: &[u64]) -> Vec<u64> {
        let mut found: Vec<u64> = Vec::new();
        let relocations = self.relocated.len() as u64 * size_of::<u64>() as u64;
        if self.parts.account.work(relocations / BYTES_PER_UNIT).is_err() {
            return found;
        }
        let of_kind = || self.segments.iter().filter(|segment| is_of_kind(segment));
        let relocated = self.relocated.iter().filter(|(_, addend)| words.contains(addend)).map(|(at, _)| *at);
        found.extend(relocated.filter(|at| of_kind().any(|segment| segment.range().contains(at))).take(FOUND_MAX));
        let (mut left, mut piece) = (SEARCHED_BYTES_MAX, vec![0; PIECE_BYTES as usize]);
        for segment in of_kind() {
            let Some(mut at) = segment.address.checked_next_multiple_of(size_of::<u64>() as u64) else { continue };
            while at < segment.range().end && left > 0 && found.len() < FOUND_MAX {
                let count = (segment.range().end - at).min(PIECE_BYTES);
                let bytes = &mut piece[..count as usize];
                let Some(offset) = segment.offset.checked_add(at - segment.address) else { break };
                if self.parts.copy(offset, bytes).is_none() {
                    break;
                }
                let (chunks, _) = bytes.as_chunks();
                let here = (0u64..).zip(chunks).filter(|(_, word)| words.contains(&u64::from_le_bytes(**word)));
                found.extend(here.map(|(index, _)| at + index * size_of::<u64>() as u64));
                (at, left) = (at + count, left.saturating_sub(count));
            }
        }
        found.truncate(FOUND_MAX);
        found
    }
}

impl Parts<'_> {
    /// Fills `into` with what is at an offset, which is not kept.
    fn copy(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.account.work(1 + into.len() as u64 / BYTES_PER_UNIT).ok()?;
        self.file.read_at(offset, into).then_some(())
    }
}
