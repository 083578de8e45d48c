//! What unwinding needs of an ELF file: where it is loaded, its unwind tables, its build id.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gimli::UnwindSection;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind};

use crate::arch::x86_64::orc::OrcTable;
use crate::arch::x86_64::tables::Tables;
use crate::budget::Account;
use crate::elf::{Elf, ImageError, Parts, ReadAt, build_id, parse_elf, section_bytes};
use crate::map::SymbolMap;
use crate::metered::Metered;
use crate::relocatable::{self, Layout};

/// Functions that no function called: where a thread, a process or a core starts. Their callers
/// are not looked for, whatever lies on the stack above them.
const ROOTS: [&str; 11] = [
    "glass_start",
    "_start",
    "_dl_start_user",
    "_dl_start",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__clone_internal",
    "start64",
    // What musl starts `main` from; there are no unwind tables for its callers.
    "libc_start_main_stage2",
];

/// The most segments of a program, and the most functions without a caller: each is compared with many addresses.
const SEGMENTS_MAX: usize = 1024;
const ROOTS_MAX: usize = 1024;
/// What is kept of a function with an entry in an unwind table, here and by framehop, and of a range of them, in bytes.
const FUNCTION_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
/// The longest entry of an unwind table, in bytes: it is read for each frame of a sample.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// A part of the file that is loaded.
#[derive(Debug, Clone)]
struct Segment {
    file: Range<u64>,
    address: u64,
    memory_bytes: u64,
    /// It is executable: prologues are recognised by their instructions.
    code: Option<Code>,
}

/// Where the bytes of an executable segment are.
#[derive(Debug, Clone)]
enum Code {
    InMemory(Arc<[u8]>),
    /// In the image's file, if that is still open.
    InFile,
}

/// The unwind tables of a file, as it has them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames {
    /// `.eh_frame`, and for which addresses it was linked.
    pub(crate) eh_frame: Option<(Range<u64>, Arc<[u8]>)>,
    pub(crate) debug_frame: Option<Arc<[u8]>>,
    /// Starts of the functions with an entry in `eh_frame` or `debug_frame`, sorted.
    starts: Arc<[u64]>,
    /// Addresses in `eh_frame`, sorted, not overlapping.
    covered: Vec<Range<u64>>,
    /// The same of `debug_frame`: a linker mixes objects that have the one with such that have the other.
    covered_by_debug: Vec<Range<u64>>,
}

/// What unwinding and identification need of an ELF file.
#[derive(Debug, Clone)]
pub struct Image {
    /// The GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// Where the loaded image keeps its build id: address and bytes. `None` if the note is not loaded.
    pub build_id_address: Option<u64>,
    segments: Vec<Segment>,
    pub(crate) frames: Frames,
    /// Why its unwind tables are not used, although it has some.
    pub without_tables: Option<ImageError>,
    tables: OnceLock<Arc<Tables>>,
    roots: Vec<Range<u64>>,
    symbols: Vec<(String, u64)>,
    /// The addresses of a program of which only a map is known.
    mapped: Option<Range<u64>>,
    pub(crate) orc: Option<Arc<OrcTable>>,
    /// Where code is read that is not in memory.
    file: Option<OpenFile>,
    /// Holds what the tables take.
    _account: Option<Account>,
}

/// A file that stays open.
#[derive(Clone)]
struct OpenFile(Arc<dyn ReadAt>);

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a file of {} bytes", self.0.bytes())
    }
}

impl Image {
    /// Reads an ELF file that is in memory, as [`read`](Image::read) does.
    pub fn parse(bytes: &[u8], keep_symbols: &[&str]) -> Result<Image, ImageError> {
        Image::read(&bytes, keep_symbols)
    }

    /// Reads of an ELF file its code, its unwind tables and its symbols, and none of its debug information. `keep_symbols`
    /// names data or code symbols whose addresses are needed later.
    pub fn read(file: &dyn ReadAt, keep_symbols: &[&str]) -> Result<Image, ImageError> {
        Image::read_parts(file, keep_symbols, true, Account::alone())
    }

    /// The same without its code, which can be most of a program and of which little is ever needed: it is read from the
    /// file where it is, which stays open if `stays_open`.
    ///
    /// Its tables are charged to an account, as long as the image is there.
    pub fn of_file(file: Box<dyn ReadAt>, stays_open: bool, account: Account) -> Result<Image, ImageError> {
        let image = Image::read_parts(&*file, &[], false, account)?;
        Ok(Image { file: stays_open.then(|| OpenFile(Arc::from(file))), ..image })
    }

    fn read_parts(
        file: &dyn ReadAt,
        keep_symbols: &[&str],
        with_code: bool,
        account: Account,
    ) -> Result<Image, ImageError> {
        let parts = Parts::of(file, &account);
        let file = parse_elf(&parts)?;
        if let Some(layout) = Layout::of(&file) {
            return Image::of_module(&file, &layout, keep_symbols);
        }
        let mut segments = Vec::new();
        for segment in file.segments().take(SEGMENTS_MAX) {
            let (offset, file_bytes) = segment.file_range();
            let object::SegmentFlags::Elf { p_flags, .. } = segment.flags() else { continue };
            let damaged = || parts.error(ImageError::Damaged("a segment is not all there".to_owned()));
            let whole = || parts.read(offset, file_bytes).ok_or_else(damaged);
            let code = match p_flags.contains(object::elf::PF_X) {
                true if with_code => Some(Code::InMemory(whole()?)),
                true => Some(Code::InFile),
                false => None,
            };
            segments.push(Segment {
                file: offset..offset.saturating_add(file_bytes),
                address: segment.address(),
                memory_bytes: segment.size(),
                code,
            });
        }
        segments.sort_by_key(|segment| segment.address);
        let build_id = build_id(&file)?;
        let build_id_address = file.section_by_name(".note.gnu.build-id").and_then(|section| {
            let loaded = matches!(section.flags(), object::SectionFlags::Elf { sh_flags, .. }
                if sh_flags.contains(object::elf::SHF_ALLOC));
            let data = section.data().ok()?;
            let offset = build_id.as_ref().and_then(|id| data.windows(id.len()).position(|window| window == id))?;
            loaded.then(|| section.address().wrapping_add(offset as u64))
        });
        let mut roots = Vec::new();
        let mut symbols = Vec::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            if ROOTS.contains(&name) && roots.len() < ROOTS_MAX {
                roots.push(symbol.address()..symbol.address().saturating_add(symbol.size().max(1)));
            }
            if keep_symbols.contains(&name) {
                symbols.push((name.to_owned(), symbol.address()));
            }
        }
        let (frames, without_tables) = match Frames::read(&parts, &file, &account) {
            Ok(frames) => (frames, None),
            Err(error) => (Frames::default(), Some(error)),
        };
        Ok(Image {
            build_id,
            build_id_address,
            segments,
            frames,
            without_tables,
            tables: OnceLock::new(),
            roots,
            symbols,
            mapped: None,
            orc: None,
            file: None,
            _account: Some(account),
        })
    }

    /// A module of a kernel. Its code is not what is in memory, where references are resolved: what remains is where its functions are, and
    /// the kernel's own unwind tables.
    fn of_module(file: &Elf<'_>, layout: &Layout, keep_symbols: &[&str]) -> Result<Image, ImageError> {
        let kept = file.symbols().filter(|symbol| symbol.name().is_ok_and(|name| keep_symbols.contains(&name)));
        let address =
            |symbol: object::Symbol<'_, '_, _>| Some((symbol.name().ok()?.to_owned(), layout.address(&symbol)?));
        let symbols = kept.filter_map(address).collect();
        let build_id = build_id(file)?;
        let map = SymbolMap::default();
        let orc = relocatable::orc(file, layout).map(Arc::new);
        Ok(Image { build_id, symbols, ..Image::of_map(&map, 0..layout.bytes(), orc) })
    }

    /// The image of a program at `range`, from a map: it contains the root functions. `orc` unwinds it, if there are such tables.
    pub fn of_map(map: &SymbolMap, range: Range<u64>, orc: Option<Arc<OrcTable>>) -> Image {
        Image {
            build_id: None,
            build_id_address: None,
            segments: Vec::new(),
            frames: Frames::default(),
            without_tables: None,
            tables: OnceLock::new(),
            roots: map.functions(&ROOTS),
            symbols: Vec::new(),
            mapped: Some(range),
            orc,
            file: None,
            _account: None,
        }
    }

    /// The image with the roots of a map beside its own.
    #[must_use]
    pub fn with_map(mut self, map: &SymbolMap) -> Image {
        self.roots.extend(map.functions(&ROOTS));
        self
    }

    /// The image with unwind tables that a kernel has in its memory.
    #[must_use]
    pub fn with_orc(mut self, orc: Arc<OrcTable>) -> Image {
        self.orc = Some(orc);
        self
    }

    /// The address of one of the symbols that were to be kept.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(known, _)| known == name).map(|(_, address)| *address)
    }

    /// The addresses for which the image was linked, from the first loaded byte to the last.
    pub fn linked_range(&self) -> Range<u64> {
        if let Some(range) = &self.mapped {
            return range.clone();
        }
        let start = self.segments.first().map_or(0, |segment| segment.address);
        let end = self.segments.iter().map(|s| s.address.saturating_add(s.memory_bytes)).max().unwrap_or(0);
        start..end.max(start)
    }

    /// What has to be added to linked addresses if `file_offset` of the file is mapped at `start`.
    /// `None` if nothing of the file is loaded from there.
    pub fn bias_of_mapping(&self, start: u64, file_offset: u64) -> Option<u64> {
        let page = 4095;
        let segment = self
            .segments
            .iter()
            .filter(|segment| segment.file.start & !page <= file_offset && file_offset < segment.file.end)
            .max_by_key(|segment| (segment.code.is_some(), segment.file.start))?;
        let linked = segment.address.wrapping_sub(segment.file.start).wrapping_add(file_offset);
        Some(start.wrapping_sub(linked))
    }

    /// What unwinds by `.eh_frame` and `.debug_frame`.
    pub(crate) fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| {
            Arc::new(Tables::of(&self.linked_range(), self.frames.eh_frame.as_ref(), self.frames.debug_frame.as_ref()))
        })
    }

    /// Whether `.eh_frame` has an entry for a linked address.
    pub fn is_covered(&self, address: u64) -> bool {
        find(&self.frames.covered, address)
    }

    /// Whether `.debug_frame` has an entry for a linked address.
    pub fn is_covered_by_debug(&self, address: u64) -> bool {
        find(&self.frames.covered_by_debug, address)
    }

    /// Where the function begins that a linked address is in, by the unwind tables.
    pub fn function_start(&self, address: u64) -> Option<u64> {
        let is_known = self.is_covered(address) || self.is_covered_by_debug(address);
        let starts = &self.frames.starts;
        let after = starts.partition_point(|start| *start <= address);
        starts[..after].last().copied().filter(|_| is_known)
    }

    /// Whether a linked address is in a function without a caller.
    pub fn is_root(&self, address: u64) -> bool {
        self.roots.iter().any(|range| range.contains(&address))
    }

    /// Whether there is machine code at a linked address.
    pub fn has_code(&self, address: u64) -> bool {
        self.code_at(address).is_some()
    }

    /// The linked addresses at which there is machine code.
    pub fn code_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let code = self.segments.iter().filter(|segment| segment.code.is_some());
        code.map(|segment| {
            let bytes = segment.file.end.saturating_sub(segment.file.start);
            segment.address..segment.address.saturating_add(bytes)
        })
    }

    /// The executable segment of a linked address, how far that is in it, and how much of the file follows.
    fn code_at(&self, address: u64) -> Option<(&Segment, u64, u64)> {
        self.segments.iter().filter(|segment| segment.code.is_some()).find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            let rest = (segment.file.end - segment.file.start).checked_sub(inside).filter(|rest| *rest > 0)?;
            Some((segment, inside, rest))
        })
    }

    /// Copies the machine code at a linked address; returns how much of it there is.
    pub fn code(&self, address: u64, into: &mut [u8]) -> usize {
        let Some((segment, inside, rest)) = self.code_at(address) else { return 0 };
        let count = usize::try_from(rest).map_or(into.len(), |rest| rest.min(into.len()));
        let into = &mut into[..count];
        let is_read = match (&segment.code, &self.file) {
            (Some(Code::InMemory(code)), _) => ReadAt::read_at(&&code[..], inside, into),
            (Some(Code::InFile), Some(file)) => file.0.read_at(segment.file.start + inside, into),
            _ => false,
        };
        if is_read { count } else { 0 }
    }

    /// Executable segments that are in memory: linked address and bytes.
    pub fn code_segments(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.segments.iter().filter_map(|segment| match &segment.code {
            Some(Code::InMemory(code)) => Some((segment.address, &code[..])),
            _ => None,
        })
    }
}

fn find(sorted: &[Range<u64>], address: u64) -> bool {
    let after = sorted.partition_point(|range| range.start <= address);
    after > 0 && sorted[after - 1].contains(&address)
}

type Reader<'a> = Metered<gimli::EndianSlice<'a, gimli::LittleEndian>>;

impl Frames {
    /// Reads them. Fails if they are too much, or if nothing may be unwound by them.
    fn read(parts: &Parts<'_>, file: &Elf<'_>, account: &Account) -> Result<Frames, ImageError> {
        let eh_frame = file.section_by_name(".eh_frame").and_then(|section| {
            let data = section_bytes(parts, file, ".eh_frame").filter(|data| !data.is_empty())?;
            Some((section.address()..section.address().checked_add(data.len() as u64)?, data))
        });
        let debug_frame = section_bytes(parts, file, ".debug_frame").filter(|data| !data.is_empty());
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let text = file.sections().find(|section| section.kind() == SectionKind::Text).map_or(0, |s| s.address());
        let bases = gimli::BaseAddresses::default()
            .set_eh_frame(address(".eh_frame"))
            .set_text(text)
            .set_got(address(".got"))
            .set_eh_frame_hdr(address(".eh_frame_hdr"));
        let reader = |data| Metered::new(gimli::EndianSlice::new(data, gimli::LittleEndian), account.clone());
        let (mut of_eh, mut of_debug) = (Vec::new(), Vec::new());
        if let Some((_, data)) = &eh_frame {
            of_eh = ranges_of(&gimli::EhFrame::from(reader(data)), &bases)?;
        }
        if let Some(data) = &debug_frame {
            let mut section = gimli::DebugFrame::from(reader(data));
            section.set_address_size(8);
            of_debug = ranges_of(&section, &bases)?;
        }
        let mut starts: Vec<u64> = of_eh.iter().chain(&of_debug).map(|range| range.start).collect();
        starts.sort_unstable();
        starts.dedup();
        let (covered, covered_by_debug) = (merge(of_eh), merge(of_debug));
        let bytes = starts.len() * FUNCTION_BYTES + (covered.len() + covered_by_debug.len()) * RANGE_BYTES;
        // A table that was not read to its end might take framehop forever.
        account.hold(bytes as u64).and_then(|()| account.over().map_or(Ok(()), Err)).map_err(ImageError::TooMuch)?;
        Ok(Frames { eh_frame, debug_frame, starts: starts.into(), covered, covered_by_debug })
    }
}

fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let overlaps = next.start <= last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    ranges.shrink_to_fit();
    ranges
}

/// The ranges of a table's entries, up to the first entry that cannot be read.
fn ranges_of<'a, S>(section: &S, bases: &gimli::BaseAddresses) -> Result<Vec<Range<u64>>, ImageError>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let mut ranges = Vec::new();
    let mut entries = section.entries(bases);
    // Most entries share the one before them.
    let mut common: Option<gimli::CommonInformationEntry<Reader<'a>>> = None;
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let parsed = partial.parse(|section, bases, offset| match &common {
            Some(common) if common.offset() == gimli::UnwindOffset::into(offset) => Ok(common.clone()),
            _ => {
                let read = section.cie_from_offset(bases, offset)?;
                check_instructions(section, read.instructions(section, bases), read.entry_len(), read.encoding())?;
                Ok(common.insert(read).clone())
            }
        });
        let entry = match parsed {
            Ok(entry) => entry,
            Err(gimli::Error::TooManyIterations) => return Err(endless()),
            Err(_) => continue,
        };
        let instructions = entry.instructions(section, bases);
        // After another error it is read as far as the address that is looked up.
        let checked = check_instructions(section, instructions, entry.entry_len(), entry.cie().encoding());
        if checked == Err(gimli::Error::TooManyIterations) {
            return Err(endless());
        }
        let start = entry.initial_address();
        if entry.len() > 0 {
            ranges.push(start..start.saturating_add(entry.len()));
        }
    }
    Ok(ranges)
}

fn endless() -> ImageError {
    ImageError::Damaged("its unwind tables have an entry that takes long or forever to evaluate".to_owned())
}

/// Fails with [`gimli::Error::TooManyIterations`] if the instructions of an entry take long: they are evaluated for each
/// frame, and their expressions may contain jumps, which no compiler writes. framehop 0.16 evaluates such an expression as long as
/// it jumps.
fn check_instructions<'a, S>(
    section: &S,
    mut instructions: gimli::CallFrameInstructionIter<'_, Reader<'a>>,
    entry_bytes: usize,
    encoding: gimli::Encoding,
) -> Result<(), gimli::Error>
where
    S: UnwindSection<Reader<'a>>,
{
    use gimli::CallFrameInstruction::{DefCfaExpression, Expression, ValExpression};
    if entry_bytes > ENTRY_BYTES_MAX {
        return Err(gimli::Error::TooManyIterations);
    }
    while let Some(instruction) = instructions.next()? {
        let (DefCfaExpression { expression } | Expression { expression, .. } | ValExpression { expression, .. }) =
            instruction
        else {
            continue;
        };
        let mut operations = expression.get(section)?.operations(encoding);
        while let Some(operation) = operations.next()? {
            if matches!(operation, gimli::Operation::Bra { .. } | gimli::Operation::Skip { .. }) {
                return Err(gimli::Error::TooManyIterations);
            }
        }
    }
    Ok(())
}
