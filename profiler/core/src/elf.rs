//! ELF files, of which only the parts are read that are needed: a program with its debug information can be larger than
//! what it is good for.

pub(crate) mod loaded;
mod without_sections;

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use object::elf::{FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::read::{CompressionFormat, ReadRef};
use object::{Endianness, Object, ObjectSection};

use crate::arch::Architecture;
use crate::budget::{Account, Over};

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageError {
    /// It does not start as an ELF file does.
    NotElf,
    /// It is for another kind of processor; x86-64 and AArch64 are known.
    WrongMachine,
    /// It contradicts itself.
    Damaged(String),
    /// Neither a symbol table nor debug information is in it.
    Stripped,
    /// It is neither an ELF file nor a map of symbols.
    NotSymbols,
    /// It is a Linux kernel as boot loaders have it: compressed, and without names.
    BootImage,
    /// A map whose addresses are all zero.
    HiddenMap,
    /// A map that names data at most.
    MapWithoutFunctions,
    /// There is no such file.
    Absent,
    /// Reading it would take too much.
    TooMuch(Over),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::NotElf => write!(f, "is not an ELF file"),
            ImageError::WrongMachine => write!(f, "is an ELF file, but neither for x86-64 nor for AArch64"),
            ImageError::Damaged(why) => write!(f, "is a damaged ELF file ({why})"),
            ImageError::Absent => write!(f, "is not there"),
            ImageError::TooMuch(over) => write!(f, "is left out: {over}"),
            ImageError::Stripped => write!(f, "has no symbols (it was stripped)"),
            ImageError::NotSymbols => {
                write!(f, "is neither an ELF file nor a map of symbols (nm -n, System.map, /proc/kallsyms)")
            }
            ImageError::BootImage => write!(
                f,
                "is a compressed kernel, which has no names: give its System.map, its vmlinux, or a copy of the guest's /proc/kallsyms"
            ),
            ImageError::HiddenMap => write!(
                f,
                "holds only zeros for addresses, as a kernel shows them to users without privilege: read /proc/kallsyms as root with sysctl kernel.kptr_restrict at 0 or 1"
            ),
            ImageError::MapWithoutFunctions => write!(
                f,
                "names no function (Debian keeps a placeholder in /boot): copy the guest's /proc/kallsyms, or take the map from the package linux-image-VERSION-dbg"
            ),
        }
    }
}

impl std::error::Error for ImageError {}

impl From<object::Error> for ImageError {
    fn from(error: object::Error) -> ImageError {
        ImageError::Damaged(error.to_string())
    }
}

/// The least that is read of a file at once.
const PART_BYTES_MIN: u64 = 64 << 10;
/// What is there or missing at once, of a file with holes.
const PAGE_BYTES: u64 = 4096;
/// The longest text in a table of strings, in bytes.
const TEXT_BYTES_MAX: u64 = 128 << 10;
/// The largest window of a decoder of Zstandard, in bytes; RFC 8878 3.1.1.1.2 recommends that files need no more than 8 MiB.
const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// Parts that are passed, or bytes of a text, as one unit of work.
const STEPS_PER_UNIT: usize = 8;
/// Parts that are kept of a file. A valid one has a dozen: its headers, tables of symbols, their names, notes.
const PARTS_MAX: usize = 1024;

/// A file that can be read at any place.
pub trait ReadAt: Send + Sync {
    /// Its length in bytes, at the time that it was opened.
    fn bytes(&self) -> u64;

    /// Fills `into` with what is at `offset`; false if that is not all there, or cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool;

    /// All of it, where that is in memory anyway.
    fn in_memory(&self) -> Option<&[u8]> {
        None
    }

    /// Whether pages of it are missing although the file has them, so that what is there is to be used.
    fn has_holes(&self) -> bool {
        false
    }
}

impl ReadAt for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let found = rest.and_then(|rest| rest.get(..into.len()));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl ReadAt for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        ReadAt::read_at(&self.as_slice(), offset, into)
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(self)
    }
}

/// All of a file, which its account holds from now on; `None` if that is too much, or it cannot be read.
pub(crate) fn read_whole(file: &dyn ReadAt, account: &Account) -> Option<Vec<u8>> {
    account.hold(file.bytes()).ok()?;
    let mut whole = vec![0; usize::try_from(file.bytes()).ok()?];
    file.read_at(0, &mut whole).then_some(whole)
}

/// Whether a file begins as ELF files do.
pub(crate) fn is_elf(file: &dyn ReadAt) -> bool {
    let mut magic = [0; 4];
    file.read_at(0, &mut magic) && magic == *b"\x7fELF"
}

/// The parts of a file that were needed so far. They stay until all of it goes, so that what was parsed can refer to them.
pub(crate) struct Parts<'f> {
    file: &'f dyn ReadAt,
    /// The section headers that it lacks, and its header with them, from the time on that it is parsed.
    sections: OnceCell<without_sections::Sections>,
    first: OnceCell<Box<Part>>,
    account: Account,
    /// What the account holds for the parts.
    held: Cell<u64>,
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        self.account.release(self.held.get());
    }
}

/// A range of a file with holes.
pub(crate) struct Incomplete {
    /// With zeros in place of what is missing.
    pub(crate) bytes: Arc<[u8]>,
    /// What is there of `bytes`, sorted.
    pub(crate) there: Vec<Range<usize>>,
}

struct Part {
    start: u64,
    bytes: Vec<u8>,
    next: OnceCell<Box<Part>>,
}

impl Part {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }
}

impl<'f> Parts<'f> {
    /// Nothing read yet. What will be is charged to an account.
    pub(crate) fn of(file: &'f dyn ReadAt, account: &Account) -> Parts<'f> {
        Parts { file, sections: OnceCell::new(), first: OnceCell::new(), account: account.clone(), held: Cell::new(0) }
    }

    /// Reads a range for itself alone, which the account holds from now on; `None` if it is not all in the file, or too much.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Option<Arc<[u8]>> {
        if bytes == 0 {
            return Some(Arc::from([]));
        }
        offset.checked_add(bytes).filter(|end| *end <= self.file.bytes())?;
        self.account.hold(bytes).ok()?;
        let mut data: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(bytes).ok()?).collect();
        let read = self.file.read_at(offset, Arc::get_mut(&mut data)?);
        read.then_some(data)
    }

    /// Of a file with holes, reads what is there of a range, for itself alone. The account holds it from now on.
    pub(crate) fn read_around_holes(&self, range: Range<u64>) -> Option<Incomplete> {
        let bytes =
            range.end.checked_sub(range.start).filter(|_| self.has_holes() && range.end <= self.file.bytes())?;
        self.account.hold(bytes).ok()?;
        let mut data: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(bytes).ok()?).collect();
        let into = Arc::get_mut(&mut data)?;
        let (mut there, mut done): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
        while done < into.len() {
            let at = range.start + done as u64;
            let end = into.len().min(done + (PAGE_BYTES - at % PAGE_BYTES) as usize);
            if self.file.read_at(at, &mut into[done..end]) {
                match there.last_mut().filter(|last| last.end == done) {
                    Some(last) => last.end = end,
                    None => there.push(done..end),
                }
            }
            done = end;
        }
        Some(Incomplete { bytes: data, there })
    }

    /// Whether pages of the file are missing.
    pub(crate) fn has_holes(&self) -> bool {
        self.file.has_holes()
    }

    /// Of a file with holes, a part with all of a range in it, which ends at the next hole. The account holds it from now on.
    fn up_to_hole(&self, range: &Range<u64>) -> Option<Part> {
        let start = range.start & !(PAGE_BYTES - 1);
        let (mut bytes, mut page) = (Vec::new(), [0; PAGE_BYTES as usize]);
        while (bytes.len() as u64) < PART_BYTES_MIN.max(range.end - start) {
            let at = start + bytes.len() as u64;
            let page = &mut page[..PAGE_BYTES.min(self.file.bytes().saturating_sub(at)) as usize];
            if page.is_empty() || !self.file.read_at(at, page) {
                break;
            }
            bytes.extend_from_slice(page);
        }
        Some(Part { start, bytes, next: OnceCell::new() }).filter(|part| part.range().end >= range.end)
    }

    /// Whether the file has no section headers, and those that it seems to have come from its program headers.
    pub(crate) fn lacks_sections(&self) -> bool {
        self.sections.get().is_some()
    }

    /// What is wrong with the file: what is too much is not there, which looks like damage.
    pub(crate) fn error(&self, error: ImageError) -> ImageError {
        self.account.over().map_or(error, ImageError::TooMuch)
    }

    /// A part with all of a range in it.
    fn part(&self, range: Range<u64>) -> Option<&Part> {
        let (mut place, mut count, mut held) = (&self.first, 0, 0);
        while let Some(part) = place.get() {
            if part.start <= range.start && range.end <= part.range().end {
                self.account.work(1 + (count / STEPS_PER_UNIT) as u64).ok()?;
                return Some(part);
            }
            (place, count, held) = (&part.next, count + 1, held + part.bytes.len() as u64);
        }
        self.account.work((count / STEPS_PER_UNIT) as u64).ok()?;
        let length = self.file.bytes();
        let end = range.end.max(range.start.saturating_add(PART_BYTES_MIN)).min(length);
        let size = end.checked_sub(range.start).filter(|_| range.end <= end)?;
        // Parts of a valid file do not overlap that often.
        if count >= PARTS_MAX || held + size > length.saturating_mul(2) + PART_BYTES_MIN * PARTS_MAX as u64 {
            return None;
        }
        self.account.hold(size).ok()?;
        self.held.set(self.held.get() + size);
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        let part = match self.file.read_at(range.start, &mut bytes) {
            true => Part { start: range.start, bytes, next: OnceCell::new() },
            false if self.has_holes() => self.up_to_hole(&range)?,
            false => return None,
        };
        Some(place.get_or_init(|| Box::new(part)))
    }

    /// The length of the file with the section headers that it lacks.
    fn length(&self) -> u64 {
        self.file.bytes() + self.sections.get().map_or(0, |sections| sections.tail.len() as u64)
    }

    /// Of a file without section headers, what stands for its header, and what is behind its end.
    fn made(&self, range: &Range<u64>) -> Option<&[u8]> {
        let (sections, length) = (self.sections.get()?, self.file.bytes());
        let (bytes, start) =
            if range.start >= length { (&sections.tail[..], length) } else { (&sections.header[..], 0) };
        let end = range.end.checked_sub(start)?;
        bytes.get(usize::try_from(range.start - start).ok()?..usize::try_from(end).ok()?)
    }

    /// The bytes of a range that is all in the file.
    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        if let Some(made) = self.made(&range) {
            return Some(made);
        }
        if range.end > self.file.bytes() {
            return None;
        }
        if let Some(all) = self.file.in_memory() {
            return all.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
        }
        let part = self.part(range.clone())?;
        let inside = (range.start - part.start) as usize;
        part.bytes.get(inside..)?.get(..(range.end - range.start) as usize)
    }
}

impl<'a> ReadRef<'a> for &'a Parts<'_> {
    fn len(self) -> Result<u64, ()> {
        Ok(self.length())
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size == 0 {
            return Ok(&[]);
        }
        self.slice(offset..offset.checked_add(size).ok_or(())?).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        if let Some(made) = self.made(&range) {
            let length = made.iter().position(|byte| *byte == delimiter).ok_or(())?;
            return Ok(&made[..length]);
        }
        if range.end > self.file.bytes() {
            return Err(());
        }
        // Most names are in a part that is there.
        for bytes in [1, TEXT_BYTES_MAX] {
            let end = range.start.saturating_add(bytes).min(range.end);
            if end <= range.start {
                return Err(());
            }
            let found = self.text(range.start..end, range.end, delimiter).ok_or(())?;
            if let Some(text) = found {
                return Ok(text);
            }
        }
        Err(())
    }
}

impl Parts<'_> {
    /// The bytes up to a delimiter, of what is at hand or has to be read to have `range`; looks no further than `until`.
    fn text(&self, range: Range<u64>, until: u64, delimiter: u8) -> Option<Option<&[u8]>> {
        let bytes = match self.file.in_memory() {
            Some(all) => all.get(usize::try_from(range.start).ok()?..usize::try_from(until).ok()?)?,
            None => {
                let part = self.part(range.clone())?;
                let bytes = part.bytes.get((range.start - part.start) as usize..)?;
                &bytes[..bytes.len().min(usize::try_from(until - range.start).ok()?)]
            }
        };
        let bytes = &bytes[..bytes.len().min(TEXT_BYTES_MAX as usize)];
        let length = bytes.iter().position(|byte| *byte == delimiter);
        self.account.work((length.unwrap_or(bytes.len()) / STEPS_PER_UNIT) as u64).ok()?;
        Some(length.map(|length| &bytes[..length]))
    }
}

/// A parsed ELF file.
pub(crate) type Elf<'a> = object::File<'a, &'a Parts<'a>>;

/// Parses the headers, by which everything else is found.
pub(crate) fn parse_elf<'a>(parts: &'a Parts<'a>) -> Result<Elf<'a>, ImageError> {
    if !is_elf(parts.file) {
        return Err(ImageError::NotElf);
    }
    if let Some(sections) = without_sections::sections(parts.file) {
        let _ = parts.sections.set(sections);
    }
    let file = match object::File::parse(parts) {
        // Its section headers are there, but not all of the symbols that they describe.
        Err(_) if parts.has_holes() && !parts.lacks_sections() => {
            let sections = without_sections::made(parts.file).ok_or(ImageError::NotElf)?;
            let _ = parts.sections.set(sections);
            object::File::parse(parts)
        }
        parsed => parsed,
    };
    let file = file.map_err(|error| parts.error(error.into()))?;
    if !matches!(file.architecture(), object::Architecture::X86_64 | object::Architecture::Aarch64) {
        return Err(ImageError::WrongMachine);
    }
    // Read at once: one name after the other would take a system call each.
    for name in [".strtab", ".dynstr"] {
        if let Some((offset, bytes)) = file.section_by_name(name).and_then(|section| section.file_range()) {
            let _ = parts.read_bytes_at(offset, bytes);
        }
    }
    Ok(file)
}

/// The processor that a file is for, if it begins as an ELF file for one that is known.
pub fn architecture_of(file: &dyn ReadAt) -> Option<Architecture> {
    let mut bytes = [0; size_of::<FileHeader64<Endianness>>()];
    let header = file.read_at(0, &mut bytes).then(|| FileHeader64::<Endianness>::parse(&bytes[..]).ok())??;
    match header.e_machine(header.endian().ok()?) {
        object::elf::EM_X86_64 => Some(Architecture::X86_64),
        object::elf::EM_AARCH64 => Some(Architecture::Aarch64),
        _ => None,
    }
}

/// The processor that a file is for, of those that [`parse_elf`] accepts.
pub(crate) fn architecture(file: &Elf<'_>) -> Architecture {
    match file.architecture() {
        object::Architecture::Aarch64 => Architecture::Aarch64,
        _ => Architecture::X86_64,
    }
}

/// The GNU build id of an ELF file, if it has one and its headers can be read.
pub fn build_id_of(file: &dyn ReadAt) -> Option<Vec<u8>> {
    build_id_by_segments(file).or_else(|| {
        let account = Account::alone();
        let parts = Parts::of(file, &account);
        build_id(&parse_elf(&parts).ok()?).ok()?
    })
}

/// The same by the program headers alone: of a file with holes they are there if anything is, and sections may not be.
fn build_id_by_segments(file: &dyn ReadAt) -> Option<Vec<u8>> {
    /// Programs have some ten segments.
    const SEGMENTS_MAX: u64 = 256;
    const NOTES_BYTES_MAX: u64 = 64 << 10;
    let read = |at: u64, bytes: u64| {
        let mut found = vec![0; usize::try_from(bytes).ok()?];
        file.read_at(at, &mut found).then_some(found)
    };
    let header_bytes = read(0, size_of::<FileHeader64<Endianness>>() as u64)?;
    let header = FileHeader64::<Endianness>::parse(&*header_bytes).ok()?;
    let endian = header.endian().ok()?;
    let count = u64::from(header.e_phnum(endian)).min(SEGMENTS_MAX);
    let segment_bytes = size_of::<ProgramHeader64<Endianness>>() as u64;
    (0..count).find_map(|index| {
        let bytes = read(header.e_phoff(endian).checked_add(index * segment_bytes)?, segment_bytes)?;
        let (segment, _) = object::pod::from_bytes::<ProgramHeader64<Endianness>>(&bytes).ok()?;
        let (at, bytes) = segment.file_range(endian);
        if segment.p_type(endian) != object::elf::PT_NOTE || bytes > NOTES_BYTES_MAX {
            return None;
        }
        let notes = read(at, bytes)?;
        let mut notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, segment.p_align(endian), &notes).ok()?;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == object::elf::ELF_NOTE_GNU && note.n_type(endian) == object::elf::NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec()).filter(|id| id.iter().any(|byte| *byte != 0));
            }
        }
        None
    })
}

/// The GNU build id; `None` if there is none that identifies a file: some linkers write zeros.
pub(crate) fn build_id(file: &Elf<'_>) -> Result<Option<Vec<u8>>, ImageError> {
    Ok(file.build_id()?.filter(|id| id.iter().any(|byte| *byte != 0)).map(<[u8]>::to_vec))
}

/// The bytes of a section, decompressed if it is compressed. The account holds them from now on. `None` if there is none, if
/// it is not all in the file, or if it is too much.
pub(crate) fn section_bytes(parts: &Parts<'_>, file: &Elf<'_>, name: &str) -> Option<Arc<[u8]>> {
    let range = file.section_by_name(name)?.compressed_file_range().ok()?;
    if range.format == CompressionFormat::None {
        return parts.read(range.offset, range.compressed_size);
    }
    let (compressed_bytes, bytes) = (range.compressed_size, range.uncompressed_size);
    parts.account.decompress(bytes).ok()?;
    let compressed = parts.read(range.offset, compressed_bytes)?;
    let data = decompress(range.format, &compressed, usize::try_from(bytes).ok()?);
    drop(compressed);
    parts.account.release(compressed_bytes);
    data
}

/// Decompresses exactly so many bytes; `None` if it turns out to be more or less.
fn decompress(format: CompressionFormat, compressed: &[u8], bytes: usize) -> Option<Arc<[u8]>> {
    let mut data: Arc<[u8]> = std::iter::repeat_n(0, bytes).collect();
    let into = Arc::get_mut(&mut data)?;
    let written = match format {
        CompressionFormat::Zlib => {
            let mut decoder = flate2::Decompress::new(true);
            let status = decoder.decompress(compressed, into, flate2::FlushDecompress::Finish).ok()?;
            (status == flate2::Status::StreamEnd).then_some(usize::try_from(decoder.total_out()).ok()?)?
        }
        CompressionFormat::Zstandard => {
            let mut decoder = ruzstd::decoding::FrameDecoder::new();
            decoder.set_max_window_size(WINDOW_BYTES_MAX);
            decoder.decode_all(compressed, into).ok()?
        }
        _ => return None,
    };
    (written == bytes).then_some(data)
}

/// How many bytes these sections have once they are decompressed, by what the file claims.
pub(crate) fn sections_bytes<'n>(file: &Elf<'_>, names: impl Iterator<Item = &'n str>) -> u64 {
    let bytes = |name| Some(file.section_by_name(name)?.compressed_file_range().ok()?.uncompressed_size);
    names.filter_map(bytes).fold(0, u64::saturating_add)
}

/// The bytes of a section of an ELF file; `None` if it has none of this name, is damaged, or expands to more than what
/// [`NAMES`](crate::budget::NAMES) may hold.
pub fn section(file: &dyn ReadAt, name: &str) -> Option<Arc<[u8]>> {
    let parts = Parts::of(file, &Account::alone());
    section_bytes(&parts, &parse_elf(&parts).ok()?, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A file of which only the first page is there, as a guest has it of a program that it did not use.
    struct FirstPage(Vec<u8>);

    impl ReadAt for FirstPage {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
            let there = self.0[..4096].get(offset as usize..).and_then(|rest| rest.get(..into.len()));
            there.map(|there| into.copy_from_slice(there)).is_some()
        }
    }

    #[test]
    fn a_build_id_needs_no_section() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let account = Account::alone();
        let expected = build_id(&parse_elf(&Parts::of(&&*bytes, &account)).unwrap()).unwrap();
        assert!(expected.is_some() && build_id_of(&&*bytes) == expected);
        assert_eq!(build_id_of(&FirstPage(bytes)), expected);
        for text in [&b""[..], b"\x7fELF", &[0; 5000]] {
            assert_eq!(build_id_of(&text), None);
        }
    }

    /// A file that counts what is read of it.
    struct Counted(Vec<u8>, AtomicU64);

    impl ReadAt for Counted {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
            self.1.fetch_add(into.len() as u64, Relaxed);
            self.0.read_at(offset, into)
        }
    }

    #[test]
    fn a_part_is_read_once_and_only_what_is_needed() {
        let mut bytes = vec![7; 10 << 20];
        bytes[5_000_005] = 0;
        let file = Counted(bytes, AtomicU64::new(0));
        let parts = Parts::of(&file, &Account::alone());
        for offset in [0, 10, 60_000] {
            assert_eq!((&parts).read_bytes_at(offset, 100), Ok(&[7; 100][..]));
        }
        assert_eq!(file.1.load(Relaxed), PART_BYTES_MIN);
        // At its very end there is less than that.
        assert_eq!((&parts).read_bytes_at((10 << 20) - 8, 8), Ok(&[7; 8][..]));
        assert_eq!(file.1.load(Relaxed), PART_BYTES_MIN + 8);
        assert_eq!((&parts).read_bytes_at((10 << 20) - 8, 9), Err(()));
        assert_eq!((&parts).read_bytes_at(u64::MAX, 2), Err(()));
        // A text that is not in the part where it begins, one that is, one that never ends, one beyond the end.
        assert_eq!((&parts).read_bytes_at_until(4_900_000..10 << 20, 0), Ok(&[7; 100_005][..]));
        let before = file.1.load(Relaxed);
        assert_eq!((&parts).read_bytes_at_until(5_000_000..10 << 20, 0), Ok(&[7; 5][..]));
        assert_eq!(file.1.load(Relaxed), before);
        assert_eq!((&parts).read_bytes_at_until(0..10 << 20, 0), Err(()));
        assert_eq!((&parts).read_bytes_at_until(5_000_000..5_000_003, 0), Err(()));
        assert_eq!((&parts).read_bytes_at_until(5_000_000..20 << 20, 0), Err(()));
        let (start, end) = (9, 3);
        assert_eq!((&parts).read_bytes_at_until(start..end, 0), Err(()));
    }

    /// A name in front of whose start its table ends, in a file without section headers, ended the program (2026-11-26).
    #[test]
    fn behind_a_file_without_section_headers_no_range_ends_before_it_starts() {
        let file = Counted(vec![7; 100], AtomicU64::new(0));
        let parts = Parts::of(&file, &Account::alone());
        assert!(parts.sections.set(without_sections::Sections { header: [0; 64], tail: vec![5; 10] }).is_ok());
        let (start, end) = (104, 90);
        assert_eq!((&parts).read_bytes_at_until(start..end, 0), Err(()));
        assert_eq!((&parts).read_bytes_at(104, 2), Ok(&[5; 2][..]));
    }

    #[test]
    fn parts_that_overlap_for_ever_are_refused() {
        let file = Counted(vec![0; 2 << 20], AtomicU64::new(0));
        let parts = Parts::of(&file, &Account::alone());
        let read = (0..1000u64).rev().take_while(|offset| (&parts).read_bytes_at(*offset, 1_000_000).is_ok()).count();
        assert!((50..100).contains(&read), "{read}");
        assert_eq!(file.1.load(Relaxed), read as u64 * 1_000_000);
    }
}
