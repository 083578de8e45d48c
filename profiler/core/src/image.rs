//! What unwinding needs of an ELF file: where it is loaded, its unwind tables, its build id.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};

use crate::arch::Architecture;
use crate::arch::x86_64::orc::OrcTable;
use crate::budget::Account;
use crate::cfi::Frames;
use crate::elf::{Elf, ImageError, Parts, ReadAt, architecture, build_id, parse_elf};
use crate::map::SymbolMap;
use crate::relocatable::{self, Layout};

/// Functions that no function called: where a thread, a process or a core starts. Their callers
/// are not looked for, whatever lies on the stack above them.
const ROOTS: [&str; 16] = [
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
    // Go (runtime/asm_amd64.s): where goroutines start; where threads of the runtime start, behind functions of C without unwind tables if the
    // program has some; the scheduler, which never returns to the goroutine that called it. In tables of symbols assembly has a suffix.
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.mstart",
    "runtime.mstart.abi0",
    "runtime.mcall",
];

/// Those of a kernel of which there is a map alone: what a process enters of a Linux of AArch64, before that has a frame record.
const ROOTS_OF_KERNEL: [&str; 4] = ["vectors", "el0t_64_sync", "el0t_64_irq", "el0t_32_sync"];

/// Functions of Go that call another one on another stack than that on which they were called: the thread's instead of the goroutine's, or
/// the other way round. The tables describe neither.
const SWITCHES: [&str; 12] = [
    "runtime.systemstack",
    "runtime.systemstack.abi0",
    "runtime.asmcgocall",
    "runtime.asmcgocall.abi0",
    "runtime.cgocallback",
    "runtime.cgocallback.abi0",
    "runtime.morestack",
    "runtime.morestack.abi0",
    // They call the vDSO.
    "runtime.nanotime1",
    "runtime.nanotime1.abi0",
    "runtime.walltime",
    "runtime.walltime.abi0",
];

/// The most segments of a program, and the most functions without a caller: each is compared with many addresses.
const SEGMENTS_MAX: usize = 1024;
const ROOTS_MAX: usize = 1024;

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

/// What unwinding and identification need of an ELF file.
#[derive(Debug, Clone)]
pub struct Image {
    /// The processor that its code is for.
    pub architecture: Architecture,
    /// The GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// Where the loaded image keeps its build id: address and bytes. `None` if the note is not loaded.
    pub build_id_address: Option<u64>,
    segments: Vec<Segment>,
    pub(crate) frames: Frames,
    /// Why its unwind tables are not used, although it has some.
    pub without_tables: Option<ImageError>,
    roots: Vec<Range<u64>>,
    /// Linked addresses of functions that call others on another stack.
    switches: Vec<Range<u64>>,
    symbols: Vec<(String, u64)>,
    /// The addresses of a program of which only a map is known.
    mapped: Option<Range<u64>>,
    pub(crate) orc: Option<Arc<OrcTable>>,
    /// A frame pointer with its lowest bit set is where registers were saved by an interrupt or a system call, as Linux encodes it.
    pub(crate) encodes_registers: bool,
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
                true if with_code && parts.has_holes() => Some(whole().map_or(Code::InFile, Code::InMemory)),
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
        let (mut roots, mut switches) = (Vec::new(), Vec::new());
        let mut symbols = Vec::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            for (names, found) in [(&ROOTS[..], &mut roots), (&SWITCHES[..], &mut switches)] {
                if names.contains(&name) && found.len() < ROOTS_MAX {
                    found.push(symbol.address()..symbol.address().saturating_add(symbol.size().max(1)));
                }
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
            architecture: architecture(&file),
            build_id,
            build_id_address,
            segments,
            frames,
            without_tables,
            roots,
            switches,
            symbols,
            mapped: None,
            orc: None,
            encodes_registers: false,
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
            architecture: Architecture::X86_64,
            build_id: None,
            build_id_address: None,
            segments: Vec::new(),
            frames: Frames::default(),
            without_tables: None,
            roots: [map.functions(&ROOTS), map.functions(&ROOTS_OF_KERNEL)].concat(),
            switches: map.functions(&SWITCHES),
            symbols: Vec::new(),
            mapped: Some(range),
            orc,
            encodes_registers: false,
            file: None,
            _account: None,
        }
    }

    /// The image with the roots of a map beside its own.
    #[must_use]
    pub fn with_map(mut self, map: &SymbolMap) -> Image {
        self.roots.extend(map.functions(&ROOTS));
        self.switches.extend(map.functions(&SWITCHES));
        self
    }

    /// The image with unwind tables that a kernel has in its memory.
    #[must_use]
    pub fn with_orc(mut self, orc: Arc<OrcTable>) -> Image {
        self.orc = Some(orc);
        self
    }

    /// The image of a kernel whose functions keep the frame pointer, with its code: where that starts, and its bytes.
    #[must_use]
    pub fn with_frame_pointers(mut self, (address, code): (u64, Arc<[u8]>)) -> Image {
        let bytes = code.len() as u64;
        self.segments =
            vec![Segment { file: 0..bytes, address, memory_bytes: bytes, code: Some(Code::InMemory(code)) }];
        self.encodes_registers = true;
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

    /// Whether `.eh_frame` has an entry for a linked address.
    pub fn is_covered(&self, address: u64) -> bool {
        self.frames.has_eh(address)
    }

    /// Whether `.debug_frame` has an entry for a linked address.
    pub fn is_covered_by_debug(&self, address: u64) -> bool {
        self.frames.has_debug(address)
    }

    /// Where the function begins that a linked address is in, by the unwind tables.
    pub fn function_start(&self, address: u64) -> Option<u64> {
        self.frames.function(address).map(|(start, _)| start)
    }

    /// How many bytes long the function is that begins at a linked address, by the unwind tables.
    pub fn function_bytes(&self, start: u64) -> Option<u32> {
        self.frames.function(start).filter(|(begin, _)| *begin == start).map(|(_, bytes)| bytes)
    }

    /// Whether a linked address is in a function without a caller.
    pub fn is_root(&self, address: u64) -> bool {
        self.roots.iter().any(|range| range.contains(&address))
    }

    /// Whether a linked address is in a function that calls others on another stack than its own.
    pub fn switches_stack(&self, address: u64) -> bool {
        self.switches.iter().any(|range| range.contains(&address))
    }

    /// Whether any function has unwind tables.
    pub(crate) fn has_tables(&self) -> bool {
        !self.frames.is_empty()
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
