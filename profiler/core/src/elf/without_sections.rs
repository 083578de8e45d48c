//! ELF files without section headers, as some packers and `sstrip` leave them: the program headers describe what is
//! needed to run a program, and so its unwind table and its dynamic symbols. From these, section headers are made, so that all
//! other code finds what it looks for (System V gABI, chapters 4 and 5; Linux Standard Base 5, 10.6).

use std::ops::Range;

use super::ReadAt;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: u64 = 24;
/// The most program headers that are looked at.
const PROGRAM_HEADERS_MAX: u16 = 256;
/// The most bytes of the dynamic table and of a note that are looked at.
const TABLE_BYTES_MAX: u64 = 64 << 10;
/// What is read at once of a longer range.
const PART_BYTES: usize = 64 << 10;
/// The most entries of a hash table of symbols.
const HASHED_MAX: u32 = 16 << 20;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NOTE: u32 = 4;
const GNU_EH_FRAME: u32 = 0x6474_e550;
const EXECUTABLE: u32 = 1;

/// What has to be put around a file: its header, with the section headers behind its last byte.
pub(super) struct Sections {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) tail: Vec<u8>,
}

struct Program {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Program {
    /// Where in the file an address is, and how much follows it in this segment.
    fn file_range(&self, address: u64) -> Option<Range<u64>> {
        let inside = address.checked_sub(self.address).filter(|inside| *inside < self.bytes)?;
        Some(self.offset.checked_add(inside)?..self.offset.checked_add(self.bytes)?)
    }
}

/// A section to be made.
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    file: Range<u64>,
    link: u32,
    entry_bytes: u64,
}

fn read<const BYTES: usize>(file: &dyn ReadAt, offset: u64) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    file.read_at(offset, &mut bytes).then_some(bytes)
}

fn half(file: &dyn ReadAt, offset: u64) -> Option<u32> {
    read(file, offset).map(u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The sections of a file that has no headers for them, or in a hole; `None` of any other file.
pub(super) fn sections(file: &dyn ReadAt) -> Option<Sections> {
    let section_headers = word(&read::<HEADER_BYTES>(file, 0)?, 40)?;
    let has_headers = section_headers != 0 && section_headers < file.bytes();
    if has_headers && (!file.has_holes() || are_headers_there(file)?) {
        return None;
    }
    made(file)
}

/// Whether section headers and their names can be read, of a file with holes.
fn are_headers_there(file: &dyn ReadAt) -> Option<bool> {
    let header: [u8; HEADER_BYTES] = read(file, 0)?;
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (headers, each) = (word(&header, 40)?, SECTION_HEADER_BYTES as u64);
    let is_there = |start: u64, bytes: u64| {
        let mut part = vec![0; bytes.min(TABLE_BYTES_MAX) as usize];
        file.read_at(start, &mut part).then_some(part)
    };
    let Some(all) = is_there(headers, short(60) * each) else { return Some(false) };
    let Some(names) = all.get((short(62) * each) as usize..) else { return Some(true) };
    let (Some(start), Some(bytes)) = (word(names, 24), word(names, 32)) else { return Some(true) };
    Some(is_there(start, bytes).is_some())
}

/// The sections that the program headers describe, in place of those of the file.
pub(super) fn made(file: &dyn ReadAt) -> Option<Sections> {
    let mut header: [u8; HEADER_BYTES] = read(file, 0)?;
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let program_headers = word(&header, 32)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || usize::from(short(54)) != PROGRAM_HEADER_BYTES {
        return None;
    }
    let mut programs = Vec::new();
    for index in 0..short(56).min(PROGRAM_HEADERS_MAX) {
        let at = program_headers.checked_add(u64::from(index) * PROGRAM_HEADER_BYTES as u64)?;
        let bytes: [u8; PROGRAM_HEADER_BYTES] = read(file, at)?;
        let kind = u32::from_le_bytes(*bytes.first_chunk()?);
        let flags = u32::from_le_bytes(*bytes[4..].first_chunk()?);
        let (offset, address, bytes) = (word(&bytes, 8)?, word(&bytes, 16)?, word(&bytes, 32)?);
        programs.push(Program { kind, flags, offset, address, bytes });
    }
    let tail = headers(&all(file, &programs), file.bytes());
    let count = tail.count;
    header[40..48].copy_from_slice(&file.bytes().to_le_bytes());
    header[58..60].copy_from_slice(&(SECTION_HEADER_BYTES as u16).to_le_bytes());
    header[60..62].copy_from_slice(&count.to_le_bytes());
    header[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    Some(Sections { header, tail: tail.bytes })
}

/// The sections that the program headers describe.
fn all(file: &dyn ReadAt, programs: &[Program]) -> Vec<Section> {
    let mut sections = Vec::new();
    let loaded = |address: u64| {
        let mut loads = programs.iter().filter(|program| program.kind == LOAD);
        loads.find_map(|load| load.file_range(address))
    };
    for program in programs {
        let (address, file_range) = (program.address, program.offset..program.offset.saturating_add(program.bytes));
        let plain = |name, address, file| Section { name, kind: 1, flags: 2, address, file, link: 0, entry_bytes: 0 };
        match program.kind {
            LOAD if program.flags & EXECUTABLE != 0 => {
                sections.push(Section { flags: 6, ..plain(".text", address, file_range) });
            }
            GNU_EH_FRAME => {
                let found = eh_frame(file, program).and_then(|address| Some((address, loaded(address)?)));
                if let Some((address, range)) = found {
                    sections.push(plain(".eh_frame", address, range));
                }
                sections.push(plain(".eh_frame_hdr", address, file_range));
            }
            NOTE if has_build_id(file, program) => {
                sections.push(Section { kind: 7, ..plain(".note.gnu.build-id", address, file_range) });
            }
            DYNAMIC => {
                let symbols = dynamic_symbols(file, program, &loaded);
                if let Some((symbols, names)) = symbols {
                    // The null section is the first.
                    let link = sections.len() as u32 + 2;
                    let symbols = Section { kind: 11, entry_bytes: SYMBOL_BYTES, link, ..plain(".dynsym", 0, symbols) };
                    sections.push(symbols);
                    sections.push(Section { kind: 3, ..plain(".dynstr", 0, names) });
                }
            }
            _ => {}
        }
    }
    sections
}

/// The address of `.eh_frame`, from the header of its table, which linkers write relative to itself in 4 bytes.
fn eh_frame(file: &dyn ReadAt, program: &Program) -> Option<u64> {
    const VERSION: u8 = 1;
    const RELATIVE_SIGNED_4: u8 = 0x1b;
    let bytes: [u8; 8] = read(file, program.offset)?;
    let [VERSION, RELATIVE_SIGNED_4, _, _, offset @ ..] = bytes else { return None };
    Some(program.address.checked_add(4)?.wrapping_add_signed(i64::from(i32::from_le_bytes(offset))))
}

fn has_build_id(file: &dyn ReadAt, program: &Program) -> bool {
    /// The type of the note, and its name.
    const START: &[u8] = b"\x03\0\0\0GNU\0";
    let mut bytes = vec![0; program.bytes.min(TABLE_BYTES_MAX) as usize];
    file.read_at(program.offset, &mut bytes) && bytes.windows(START.len()).any(|window| window == START)
}

/// Where the dynamic symbols and their names are in the file.
fn dynamic_symbols(
    file: &dyn ReadAt,
    program: &Program,
    loaded: &dyn Fn(u64) -> Option<Range<u64>>,
) -> Option<(Range<u64>, Range<u64>)> {
    let mut bytes = vec![0; program.bytes.min(TABLE_BYTES_MAX) as usize];
    file.read_at(program.offset, &mut bytes).then_some(())?;
    let entries = bytes.chunks_exact(16).filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)));
    let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let value = |tag: u64| entries.iter().find(|(known, _)| *known == tag).map(|(_, value)| *value);
    let (names, names_bytes, symbols) = (loaded(value(5)?)?, value(10)?, loaded(value(6)?)?);
    let gnu = value(0x6fff_fef5).and_then(loaded).and_then(|table| count_by_gnu_hash(file, table));
    let system = || value(4).and_then(loaded).and_then(|table| half(file, table.start.checked_add(4)?));
    let count = u64::from(gnu.or_else(system)?);
    let end = symbols.start.checked_add(count.checked_mul(SYMBOL_BYTES)?)?.min(symbols.end);
    if file.has_holes() && !is_there(file, symbols.start..end) {
        return None;
    }
    Some((symbols.start..end, names.start..names.start.checked_add(names_bytes)?.min(names.end)))
}

/// Whether all of a range can be read.
fn is_there(file: &dyn ReadAt, range: Range<u64>) -> bool {
    let mut part = vec![0; PART_BYTES];
    let mut starts = (range.start..range.end).step_by(PART_BYTES);
    starts.all(|start| file.read_at(start, &mut part[..(range.end - start).min(PART_BYTES as u64) as usize]))
}

/// The number of symbols: the last chain ends at the last of them.
fn count_by_gnu_hash(file: &dyn ReadAt, table: Range<u64>) -> Option<u32> {
    let field = |index: u64| half(file, table.start + index * 4);
    let (buckets, first, filters) = (field(0)?, field(1)?, field(2)?);
    let buckets_at = 4 + u64::from(filters) * 2;
    let chains_at = buckets_at + u64::from(buckets);
    if buckets > HASHED_MAX || table.start.checked_add(chains_at * 4)? > table.end {
        return None;
    }
    let last = (0..u64::from(buckets)).try_fold(0, |last, bucket| field(buckets_at + bucket).map(|at| last.max(at)))?;
    if last < first {
        return Some(first);
    }
    for index in last..first.saturating_add(HASHED_MAX) {
        if field(chains_at + u64::from(index - first))? & 1 != 0 {
            return Some(index + 1);
        }
    }
    None
}

struct Headers {
    bytes: Vec<u8>,
    count: u16,
}

/// Section headers, and the table of their names behind them, which begin at `offset`.
fn headers(sections: &[Section], offset: u64) -> Headers {
    const NAMES: &str = ".shstrtab";
    let mut names = vec![0];
    let mut bytes = vec![0; SECTION_HEADER_BYTES];
    let count = sections.len() + 2;
    let names_at = offset + (count * SECTION_HEADER_BYTES) as u64;
    let mut add = |name: &str, section: &Section, size: Option<u64>| {
        bytes.extend((names.len() as u32).to_le_bytes());
        names.extend(name.bytes().chain([0]));
        bytes.extend(section.kind.to_le_bytes());
        let size = size.unwrap_or(section.file.end.saturating_sub(section.file.start));
        for value in [section.flags, section.address, section.file.start, size] {
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend(section.link.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([1, section.entry_bytes].map(u64::to_le_bytes).concat());
    };
    sections.iter().for_each(|section| add(section.name, section, None));
    let of_names = sections.iter().map(|section| section.name.len() + 1).sum::<usize>() + 1 + NAMES.len() + 1;
    let table =
        Section { name: NAMES, kind: 3, flags: 0, address: 0, file: names_at..names_at, link: 0, entry_bytes: 0 };
    add(NAMES, &table, Some(of_names as u64));
    bytes.extend(names);
    Headers { bytes, count: count as u16 }
}
