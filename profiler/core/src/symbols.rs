//! From an address to functions, files and lines, with the calls that the compiler inlined.

mod go;
mod scopes;
mod split;

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

use addr2line::{LookupContinuation as _, LookupResult};
use gimli::{Reader as _, Section as _};
use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable};

use crate::budget::{Account, Over};
use crate::elf::ImageError;
use crate::elf::{Elf, Parts, ReadAt, build_id, is_elf, parse_elf, read_whole, section_bytes, sections_bytes};
use crate::map::SymbolMap;
use crate::metered::Metered;
use crate::relocatable::Layout;

use go::GoTable;
use scopes::Scopes;
use split::Split;

pub(crate) use split::Opener;

type Reader = Metered<gimli::EndianArcSlice<gimli::LittleEndian>>;
type Dwarf = gimli::Dwarf<Reader>;

/// The longest mangled name that is demangled, in bytes.
const NAME_BYTES_MAX: usize = 16 << 10;
/// The longest demangled name, in bytes; a report shows 2,000 characters of it.
const DEMANGLED_BYTES_MAX: usize = 16 << 10;
/// How deep the parts of a C++ name may be nested, as cpp_demangle counts. It parses some parts in two ways, one in the other: conversion
/// operators, `new` and `delete` in expressions. With its default of 96 a name of 107 bytes with many of these takes 10 s; with 48 the worst that was found takes
/// 20 ms, but of 7,600 names of the C++ library and of Boost 15 % are deeper. So the number of such parts decides: up to twelve take 2 ms (2026-11-26).
const NESTING_MAX: u32 = 96;
const NESTING_MAX_DOUBTFUL: u32 = 48;
/// What is parsed in two ways, and how many of these a name may have.
const PARSED_TWICE: [&str; 3] = ["cv", "nw", "dl"];
const PARSED_TWICE_MAX: usize = 12;
/// What may stand behind the parameters of a method.
const QUALIFIERS: [&str; 4] = [" &&", " &", " volatile", " const"];
/// The sections with names and lines. Locations of variables are not needed, and can be half of a file.
const SECTIONS: [gimli::SectionId; 11] = [
    gimli::SectionId::DebugAbbrev,
    gimli::SectionId::DebugAddr,
    gimli::SectionId::DebugAranges,
    gimli::SectionId::DebugInfo,
    gimli::SectionId::DebugLine,
    gimli::SectionId::DebugLineStr,
    gimli::SectionId::DebugStr,
    gimli::SectionId::DebugStrOffsets,
    gimli::SectionId::DebugTypes,
    gimli::SectionId::DebugRanges,
    gimli::SectionId::DebugRngLists,
];
/// The most attributes of an abbreviation that have no bytes in an entry. Compilers need up to twelve.
const EMPTY_ATTRIBUTES_MAX: u32 = 32;
/// The most symbols within one function: only a damaged file has more.
const ENCLOSED_MAX: usize = 4096;
/// The most frames that one address stands for; deeper inlining is cut at the outer end.
pub const INLINE_DEPTH_MAX: usize = 32;

/// A function at an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Location {
    /// The function's name, demangled.
    pub function: String,
    /// Source file as the compiler wrote it.
    pub file: Option<String>,
    /// Line in `file`, from 1 on.
    pub line: Option<u32>,
    /// The line at which the function starts, from 1 on.
    pub start_line: Option<u32>,
}

impl Location {
    /// A function of which no more than the name is known.
    pub fn of_name(function: impl Into<String>) -> Location {
        Location { function: function.into(), ..Location::default() }
    }
}

#[derive(Debug)]
struct Symbol {
    start: u64,
    end: u64,
    /// `end` is from the table, and not where the next symbol starts.
    has_size: bool,
    name: String,
    /// Which of several names of one function a program's author means: the smallest.
    rank: (Binding, usize),
}

/// Where debug information describes a function.
struct Described {
    /// Index of its location.
    location: usize,
    at: gimli::UnitOffset,
    lacks_scopes: bool,
}

/// How a name binds: a library's public name is global, what it stands for may be weak or local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Global,
    Weak,
    Local,
    /// Not in a table of symbols: a program whose only names are those of stubs is a stripped one.
    Stub,
}

/// Finds the file with the part of debug information that several programs share, by the path (absolute, or relative to the
/// file that names it) and the build id in `.gnu_debugaltlink`. It returns no file with another build id.
pub type SharedPart<'a> = dyn FnMut(&str, &[u8]) -> Option<Box<dyn ReadAt>> + 'a;

/// The names in one ELF file or map. Addresses are those for which the file was linked.
pub struct Symbols {
    /// The GNU build id.
    pub build_id: Option<Vec<u8>>,
    /// The file has line tables.
    pub has_lines: bool,
    context: Option<addr2line::Context<Reader>>,
    /// Of the units in `context`.
    scopes: Scopes,
    table: Vec<Symbol>,
    /// The largest end of the symbols up to each.
    ends: Vec<u64>,
    /// What a stripped program of Go has instead of symbols.
    go: Option<GoTable>,
    map: Option<Arc<SymbolMap>>,
    bytes: usize,
    /// Where the parts of debug information are that have files of their own.
    split: Option<Split>,
    /// `None` of what is held elsewhere.
    account: Option<Account>,
    /// Why there is no debug information, although the file has some.
    without_debug: Option<Over>,
}

impl Symbols {
    /// Reads an ELF file or a map that is in memory, as [`read`](Symbols::read) does.
    pub fn parse(bytes: &[u8]) -> Result<Symbols, ImageError> {
        Symbols::read(&bytes)
    }

    /// Reads the names and lines of an ELF file or a map. Fails with [`ImageError::Stripped`] if there is not one name in
    /// it.
    pub fn read(file: &dyn ReadAt) -> Result<Symbols, ImageError> {
        Symbols::read_with(file, Account::alone(), &mut |_, _| None)
    }

    /// The same, charged to an account, for a file whose debug information may have a part in another file. Without that part it
    /// gives lines, and the names of functions are those of the symbol table.
    ///
    /// Debug information that is too much for the account is [left out](Symbols::left_out); the symbol table is not.
    pub fn read_with(file: &dyn ReadAt, account: Account, shared: &mut SharedPart<'_>) -> Result<Symbols, ImageError> {
        account.clone().timed(|| Symbols::read_charged(file, account, shared))
    }

    fn read_charged(file: &dyn ReadAt, account: Account, shared: &mut SharedPart<'_>) -> Result<Symbols, ImageError> {
        let parts = Parts::of(file, &account);
        if !is_elf(file) {
            let bytes = read_whole(file, &account).ok_or_else(|| parts.error(ImageError::NotSymbols))?;
            let symbols = Symbols::of_map(Arc::new(SymbolMap::parse(&bytes, &[])?));
            return Ok(Symbols { bytes: bytes.len(), account: Some(account), ..symbols });
        }
        let file = parse_elf(&parts)?;
        let has_lines = file.section_by_name(".debug_line").is_some_and(|section| section.size() > 0);
        // Before they are resolved, references in debug information lead nowhere.
        let has_debug = file.kind() != object::ObjectKind::Relocatable
            && file.section_by_name(".debug_info").is_some_and(|section| section.size() > 0);
        // First, since it is small and remains if the rest is too much.
        let table = symbol_table(&file, &account).map_err(ImageError::TooMuch)?;
        let build_id = build_id(&file)?;
        let mut bytes = table.iter().map(|symbol| size_of::<Symbol>() + symbol.name.len()).sum::<usize>();
        let fits = account.fits(sections_bytes(&file, SECTIONS.iter().map(|section| section.name())));
        let (context, without_debug) = match (has_debug, fits) {
            (false, _) => (None, None),
            (true, Err(over)) => (None, Some(over)),
            (true, Ok(())) => match debug_information(&parts, &file, &account, &mut bytes, shared) {
                Ok(context) => (context, None),
                Err(over) => (None, Some(over)),
            },
        };
        let (go, without_go) = match go_table(&parts, &file, &account) {
            Ok(go) => (go, None),
            Err(over) => (None, Some(over)),
        };
        bytes += go.as_ref().map_or(0, GoTable::bytes);
        let without_debug = without_debug.or(without_go);
        let is_stripped = go.is_none() && table.iter().all(|symbol| symbol.rank.0 == Binding::Stub);
        match without_debug {
            Some(over) if is_stripped && context.is_none() => return Err(ImageError::TooMuch(over)),
            None if is_stripped && context.is_none() => return Err(parts.error(ImageError::Stripped)),
            _ => {}
        }
        let ends = table.iter().scan(0, |end, symbol| {
            *end = symbol.end.max(*end);
            Some(*end)
        });
        let ends = ends.collect();
        Ok(Symbols {
            build_id,
            has_lines,
            context,
            scopes: Scopes::default(),
            table,
            ends,
            go,
            map: None,
            bytes,
            split: None,
            account: Some(account),
            without_debug,
        })
    }

    /// The same with debug information that the compiler wrote to files of their own: for a program at these paths, by what opens files.
    pub(crate) fn with_split(self, programs: Vec<String>, open: Box<Opener>) -> Symbols {
        let account = self.account.clone().filter(|_| self.context.is_some());
        let split = account.map(|account| Split::new(programs, open, account));
        Symbols { split, ..self }
    }

    /// What is left out of the file at a path because files beside it are missing, in one sentence. More of them may be found missing
    /// with each address that is looked up.
    pub(crate) fn missing_of(&self, path: &str) -> Option<String> {
        self.split.as_ref()?.left_out_of(path)
    }

    /// Why names are missing that the file may have: reading them was too much, when the file was read or when an address was
    /// looked up.
    pub fn left_out(&self) -> Option<Over> {
        self.without_debug.or_else(|| self.account.as_ref()?.over())
    }

    /// The same as a sentence about the file at a path.
    pub(crate) fn left_out_of(&self, path: &str) -> Option<String> {
        let over = self.left_out()?;
        Some(format!(
            "lines and inlined functions of {path} are left out, and names that are not in its symbol table: {over}"
        ))
    }

    /// The memory that they take, in bytes: about, and without what is worked out of debug information when it is needed.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether functions, their inlined parts and lines come from debug information, and not from a symbol table alone.
    pub(crate) fn has_debug_information(&self) -> bool {
        self.context.is_some()
    }

    /// The names of a map.
    pub fn of_map(map: Arc<SymbolMap>) -> Symbols {
        Symbols {
            build_id: None,
            has_lines: false,
            context: None,
            scopes: Scopes::default(),
            table: Vec::new(),
            ends: Vec::new(),
            go: None,
            map: Some(map),
            bytes: 0,
            split: None,
            account: None,
            without_debug: None,
        }
    }

    /// The functions at a linked address, innermost first: all but the last were inlined into the
    /// one after them. Empty if nothing is known.
    pub fn locate(&self, address: u64) -> Vec<Location> {
        match &self.account {
            Some(account) => account.timed(|| self.locate_charged(address)),
            None => self.locate_charged(address),
        }
    }

    /// The linked addresses of the function at one of them, by the table of symbols: where [`locate`](Symbols::locate) has its name from.
    pub fn span(&self, address: u64) -> Option<Range<u64>> {
        match &self.map {
            Some(map) => map.span(address),
            None => self.symbol(address).map(|symbol| symbol.start..symbol.end),
        }
    }

    fn locate_charged(&self, address: u64) -> Vec<Location> {
        // No code is there, and addr2line 0.27 looks for the address after it: it overflows.
        if address == u64::MAX {
            return Vec::new();
        }
        if let Some(map) = &self.map {
            let name = map.name(address).map(|name| self.demangle(name));
            return name.map(Location::of_name).into_iter().collect();
        }
        let symbol = self.symbol(address).filter(|symbol| !self.is_before_go(symbol, address));
        let (mut locations, is_whole) = self.debug_frames(address, symbol);
        match (locations.last_mut(), symbol) {
            // The symbol table has the linker's name of the function. Debug information of assembly may have none, and that of a local
            // C++ function, of a lambda for example, may have the last part of it alone.
            (Some(outermost), Some(symbol))
                if outermost.function.is_empty() || (!is_whole && self.is_readable(&symbol.name)) =>
            {
                outermost.function = self.demangle(&symbol.name);
            }
            (None, Some(symbol)) => {
                let function = self.demangle(&symbol.name);
                let location = self.context.as_ref().and_then(|context| context.find_location(address).ok().flatten());
                let file = location.as_ref().and_then(|location| location.file.map(str::to_owned));
                let line = location.and_then(|location| location.line).filter(|line| *line > 0);
                locations.push(Location { function, file, line, start_line: None });
            }
            (None, None) => locations = self.go.as_ref().map_or_else(Vec::new, |go| go.locate(address)),
            _ => {}
        }
        for location in &mut locations {
            if location.function.is_empty() {
                location.function = format!("{address:#x}");
            }
        }
        locations
    }

    /// Whether no work is left.
    fn is_over(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.over() == Some(Over::Work))
    }

    /// The name as it is once no work is left.
    fn demangle(&self, name: &str) -> String {
        if self.is_over() { name.to_owned() } else { demangle(name) }
    }

    /// Whether a name is a linker's with all its scopes, and can be read. Once no work is left it counts as one.
    fn is_readable(&self, name: &str) -> bool {
        is_mangled(name) && (self.is_over() || demangle(name) != name)
    }

    /// What debug information has of an address, and whether the outermost function's name has its scopes. A function with a symbol
    /// that can be read gets them from that.
    fn debug_frames(&self, address: u64, symbol: Option<&Symbol>) -> (Vec<Location>, bool) {
        let (mut locations, mut is_whole) = (Vec::new(), false);
        let Some(context) = &self.context else { return (locations, is_whole) };
        let mut lookup = context.find_frames(address);
        let frames = loop {
            lookup = match lookup {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    continuation.resume(self.split.as_ref().and_then(|split| split.load(&load)))
                }
            };
        };
        let Ok(mut frames) = frames else { return (locations, is_whole) };
        let mut entries = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let Some(function) = &frame.function else { continue };
            let raw: std::borrow::Cow<'_, str> = function.raw_name().unwrap_or_default();
            let function = self.demangle(&raw);
            is_whole = is_mangled(&raw) && (function != *raw || self.is_over());
            let lacks_scopes = !is_whole && !raw.is_empty();
            entries.extend(frame.dw_die_offset.map(|at| Described { location: locations.len(), at, lacks_scopes }));
            let file = frame.location.as_ref().and_then(|location| location.file.map(str::to_owned));
            let line = frame.location.and_then(|location| location.line).filter(|line| *line > 0);
            locations.push(Location { function, file, line, start_line: None });
            if locations.len() == INLINE_DEPTH_MAX {
                break;
            }
        }
        let outermost = locations.len().saturating_sub(1);
        let is_named = |symbol: &Symbol| !is_mangled(&symbol.name) || self.is_readable(&symbol.name);
        let nameless = entries.iter_mut().filter(|entry| entry.lacks_scopes && entry.location == outermost);
        nameless.for_each(|entry| entry.lacks_scopes = !symbol.is_some_and(is_named));
        self.describe(&mut locations, &entries, address);
        (locations, is_whole)
    }

    /// Gives these functions at an address the lines at which they start, and their names with scopes, where these are known.
    fn describe(&self, locations: &mut [Location], entries: &[Described], address: u64) {
        let (Some(context), Some(account), false) = (&self.context, &self.account, entries.is_empty()) else { return };
        let Some(unit) = context.find_dwarf_and_unit(address).skip_all_loads() else { return };
        for Described { location, at, lacks_scopes } in entries {
            let location = &mut locations[*location];
            location.start_line = self.scopes.start_line(account, unit, *at);
            if *lacks_scopes && let Some(name) = self.scopes.name(account, unit, *at, &|name| self.demangle(name)) {
                location.function = name.to_string();
            }
        }
    }

    /// Whether a function of Go starts between a symbol and an address. A symbol without a size would reach over all functions of Go,
    /// which have no symbols.
    fn is_before_go(&self, symbol: &Symbol, address: u64) -> bool {
        let start = self.go.as_ref().filter(|_| !symbol.has_size).and_then(|go| go.start_of(address));
        start.is_some_and(|start| symbol.start < start)
    }

    fn symbol(&self, address: u64) -> Option<&Symbol> {
        let after = self.table.partition_point(|symbol| symbol.start <= address);
        // A function may have an entry with a name and a size of its own: behind the end of that the code is the function's again.
        let enclosing = (0..after).rev().take(ENCLOSED_MAX).take_while(|index| self.ends[*index] > address);
        enclosing.map(|index| &self.table[index]).find(|symbol| address < symbol.end)
    }
}

/// What a stripped program of Go has instead of symbols.
fn go_table(parts: &Parts<'_>, file: &Elf<'_>, account: &Account) -> Result<Option<GoTable>, Over> {
    let is_function =
        |symbol: object::Symbol<'_, '_, _>| symbol.is_definition() && symbol.kind() == object::SymbolKind::Text;
    if file.symbols().any(is_function) { Ok(None) } else { GoTable::read(parts, file, account) }
}

/// The debug information of a file, with the part that it shares with others; `None` if it is damaged. Adds to `bytes` what it
/// takes.
fn debug_information(
    parts: &Parts<'_>,
    file: &Elf<'_>,
    account: &Account,
    bytes: &mut usize,
    shared: &mut SharedPart<'_>,
) -> Result<Option<addr2line::Context<Reader>>, Over> {
    let Some(mut dwarf) = dwarf(parts, file, account, bytes)? else { return Ok(None) };
    if let Ok(Some((path, build_id))) = file.gnu_debugaltlink() {
        let part = std::str::from_utf8(path).ok().and_then(|path| shared(path, build_id));
        let part = part.map(|part| shared_dwarf(&*part, account, bytes)).transpose()?.flatten();
        part.into_iter().for_each(|part| dwarf.set_sup(part));
    }
    let context = addr2line::Context::from_dwarf(dwarf).ok();
    account.over().map_or(Ok(context), Err)
}

/// The debug information in a file; `None` if it is damaged. Adds to `bytes` what it takes.
fn dwarf(parts: &Parts<'_>, file: &Elf<'_>, account: &Account, bytes: &mut usize) -> Result<Option<Dwarf>, Over> {
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = SECTIONS.contains(&id).then(|| section_bytes(parts, file, id.name())).flatten();
        let data = data.unwrap_or_else(|| Arc::from(&[][..]));
        *bytes += data.len();
        Ok(Metered::new(gimli::EndianArcSlice::new(data, gimli::LittleEndian), account.clone()))
    };
    let Ok(dwarf) = gimli::Dwarf::load(load) else { return Ok(None) };
    match (account.over(), check_abbreviations(&dwarf)) {
        (Some(over), _) => Err(over),
        (None, Err(gimli::Error::TooManyIterations)) => Err(Over::Work),
        // What is not damaged is used.
        (None, _) => Ok(Some(dwarf)),
    }
}

/// The debug information in the file that several programs share.
fn shared_dwarf(file: &dyn ReadAt, account: &Account, bytes: &mut usize) -> Result<Option<Dwarf>, Over> {
    let parts = Parts::of(file, account);
    let Ok(file) = parse_elf(&parts) else { return Ok(None) };
    dwarf(&parts, &file, account, bytes)
}

/// Fails if an abbreviation has more attributes without any bytes in an entry than a compiler needs: one byte of an entry
/// could stand for a million of them.
fn check_abbreviations(dwarf: &Dwarf) -> Result<(), gimli::Error> {
    let mut seen = HashSet::new();
    let mut units = dwarf.units();
    while let Some(unit) = units.next()? {
        let offset = unit.debug_abbrev_offset();
        if seen.insert(offset) {
            let mut table = dwarf.debug_abbrev.reader().clone();
            if let Err(gimli::Error::TooManyIterations) = table.skip(offset.0).and_then(|()| check_table(table)) {
                return Err(gimli::Error::TooManyIterations);
            }
        }
    }
    Ok(())
}

/// The same for one table (DWARF 5, 7.5.3).
fn check_table(mut table: Reader) -> Result<(), gimli::Error> {
    while table.read_uleb128()? != 0 {
        let (_tag, _has_children) = (table.read_uleb128()?, table.read_u8()?);
        let mut empty = 0;
        loop {
            let (name, form) = (table.read_uleb128()?, table.read_uleb128_u16()?);
            match gimli::DwForm(form) {
                gimli::DW_FORM_null if name == 0 => break,
                gimli::DW_FORM_implicit_const => {
                    table.read_sleb128()?;
                    empty += 1;
                }
                gimli::DW_FORM_flag_present => empty += 1,
                _ => {}
            }
            if empty > EMPTY_ATTRIBUTES_MAX {
                return Err(gimli::Error::TooManyIterations);
            }
        }
    }
    Ok(())
}

/// Whether there are names in an ELF file: fails with [`ImageError::Stripped`] if not. Reads none of
/// the debug information, so it costs little.
pub fn check_names(file: &dyn ReadAt) -> Result<(), ImageError> {
    let account = Account::alone();
    let parts = Parts::of(file, &account);
    let file = parse_elf(&parts)?;
    let has_debug = file.section_by_name(".debug_info").is_some_and(|section| section.size() > 0);
    let too_much = ImageError::TooMuch;
    let has_names = has_debug
        || !symbol_table(&file, &account).map_err(too_much)?.is_empty()
        || go_table(&parts, &file, &account).map_err(too_much)?.is_some();
    if has_names { Ok(()) } else { Err(parts.error(ImageError::Stripped)) }
}

/// Whether a section is code. In a file to which only debug information was moved it has addresses and no bytes.
fn is_code<'a>(section: &impl ObjectSection<'a>) -> bool {
    match section.flags() {
        object::SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(object::elf::SHF_EXECINSTR),
        _ => section.kind() == object::SectionKind::Text,
    }
}

/// Functions sorted by address, one name an address. A symbol without a size (assembly) reaches to
/// the next symbol or to the end of its section.
fn symbol_table(file: &Elf<'_>, account: &Account) -> Result<Vec<Symbol>, Over> {
    let layout = Layout::of(file);
    let mut sections: Vec<_> = match &layout {
        Some(layout) => layout.ranges().collect(),
        None => {
            let of_code = file.sections().filter(is_code);
            of_code.map(|section| section.address()..section.address().saturating_add(section.size())).collect()
        }
    };
    sections.sort_by_key(|section| section.start);
    let section_of = |address| {
        let after = sections.partition_point(|section| section.start <= address);
        sections[..after].last().filter(|section| section.contains(&address))
    };
    let mut table = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
        let is_function = matches!(symbol.kind(), object::SymbolKind::Text | object::SymbolKind::Unknown);
        let start = layout.as_ref().map_or(Some(symbol.address()), |layout| layout.address(&symbol));
        let Some(start) = start.filter(|start| is_function && section_of(*start).is_some()) else { continue };
        // A name need not be UTF-8.
        let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default());
        if !name.is_empty() {
            account.hold((size_of::<Symbol>() + name.len().next_multiple_of(16)) as u64)?;
            let binding = match (symbol.is_weak(), symbol.is_local()) {
                (true, _) => Binding::Weak,
                (false, true) => Binding::Local,
                (false, false) => Binding::Global,
            };
            let underscores = name.len() - name.trim_start_matches('_').len();
            let end = start.saturating_add(symbol.size());
            let has_size = symbol.size() > 0;
            table.push(Symbol { start, end, has_size, name: name.into_owned(), rank: (binding, underscores) });
        }
    }
    table.extend(stubs(file, layout.is_none(), account)?);
    // Of several names for an address the one with a size is kept, then by rank, then the first by name.
    table.sort_by(|a, b| (a.start, b.end, a.rank, &a.name).cmp(&(b.start, a.end, b.rank, &b.name)));
    table.dedup_by_key(|symbol| symbol.start);
    for index in 0..table.len() {
        if table[index].end == table[index].start {
            let start = table[index].start;
            let section_end = section_of(start).map_or(start, |section| section.end);
            let next = table.get(index + 1).map_or(section_end, |next| next.start);
            table[index].end = next.min(section_end);
        }
    }
    Ok(table)
}

/// The stubs by which a program calls functions of libraries (System V ABI, AMD64 supplement, 5.2): each jumps through a word that the
/// dynamic linker fills, and the relocation of that word names the function.
fn stubs(file: &Elf<'_>, is_linked: bool, account: &Account) -> Result<Vec<Symbol>, Over> {
    /// With the size of their entries, in bytes.
    const SECTIONS: [(&str, u64); 3] = [(".plt.sec", 16), (".plt", 16), (".plt.got", 8)];
    /// `jmp *offset(%rip)`, and the bytes of its offset.
    const JUMP: [u8; 2] = [0xff, 0x25];
    let Some(relocations) = file.dynamic_relocations().filter(|_| is_linked) else { return Ok(Vec::new()) };
    let of_symbol = relocations.filter_map(|(address, relocation)| match relocation.target() {
        object::RelocationTarget::Symbol(index) => Some((address, index)),
        _ => None,
    });
    let mut names: HashMap<u64, object::SymbolIndex> = HashMap::new();
    for (address, index) in of_symbol {
        account.hold(size_of::<(u64, object::SymbolIndex)>() as u64 * 2)?;
        names.insert(address, index);
    }
    let Some(dynamic) = file.dynamic_symbol_table() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (section, entry_bytes) in SECTIONS {
        let Some(section) = file.section_by_name(section) else { continue };
        let Ok(code) = section.data() else { continue };
        for at in (0..code.len()).filter(|at| code[*at..].starts_with(&JUMP)) {
            let Some(offset) = code[at + JUMP.len()..].first_chunk().map(|bytes| i32::from_le_bytes(*bytes)) else {
                break;
            };
            let next = section.address().wrapping_add((at + JUMP.len() + size_of::<i32>()) as u64);
            let Some(index) = names.get(&next.wrapping_add_signed(offset.into())) else { continue };
            let Ok(name) = dynamic.symbol_by_index(*index).and_then(|symbol| symbol.name_bytes()) else { continue };
            if name.is_empty() {
                continue;
            }
            // The jump is in the first half of its entry, at most behind a landing (`endbr64`) and a prefix.
            let start = section.address().wrapping_add(at as u64 / 8 * 8);
            let end = next.checked_next_multiple_of(entry_bytes).unwrap_or(next);
            let name = format!("{}@plt", String::from_utf8_lossy(name));
            account.hold((size_of::<Symbol>() + name.len().next_multiple_of(16)) as u64)?;
            found.push(Symbol { start, end, has_size: true, name, rank: (Binding::Stub, 0) });
        }
    }
    Ok(found)
}

/// A text that ends where it is too long.
struct Cut(String);

impl fmt::Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = DEMANGLED_BYTES_MAX.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        self.0.push('…');
        Err(fmt::Error)
    }
}

/// Whether a name is one that a linker sees of a Rust or C++ function, with all its scopes.
fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

/// A name as a person wrote it: Rust and C++ names demangled, others as they are. A hundred bytes can stand for a name of gigabytes:
/// it is cut, and ends with `…`.
pub fn demangle(name: &str) -> String {
    if name.len() > NAME_BYTES_MAX {
        return name.to_owned();
    }
    let mut plain = Cut(String::new());
    let is_plain = match rustc_demangle::try_demangle(name) {
        Ok(rust) => write!(plain, "{rust:#}").is_ok(),
        Err(_) if name.starts_with("_Z") => write_cpp(name, &mut plain),
        Err(_) => false,
    };
    if is_plain || plain.0.ends_with('…') { plain.0 } else { name.to_owned() }
}

/// Writes what a C++ name stands for; `false` if it cannot be read.
///
/// What a template returns and takes may depend on an expression that `cpp_demangle` cannot read: GCC writes `sr` and any type in it, as
/// in `_ZSt4swapIiENSt9enable_ifIXsrSt6__not_I...EE5valueEvE4typeERS1_S1_`. Of 5,561 names of the C++ library and of Boost these were
/// 41 (2026-11-27). The name and its arguments are in front of that, and are written alone.
fn write_cpp(name: &str, plain: &mut Cut) -> bool {
    let doubtful = PARSED_TWICE.iter().map(|part| name.matches(part).count()).sum::<usize>() > PARSED_TWICE_MAX;
    let nesting = if doubtful { NESTING_MAX_DOUBTFUL } else { NESTING_MAX };
    let options = cpp_demangle::ParseOptions::default().recursion_limit(nesting);
    if let Ok(symbol) = cpp_demangle::Symbol::new_with_options(name, &options) {
        return symbol.structured_demangle(plain, &Default::default()).is_ok();
    }
    if !name.contains('X') {
        return false;
    }
    // Only a template has an expression (`X`, Itanium C++ ABI, 5.1.6) in its signature; of any other name the rest may be what
    // distinguishes it.
    match cpp_demangle::BorrowedSymbol::with_tail_and_options(name.as_bytes(), &options) {
        Ok((symbol, rest)) if rest.contains(&b'X') => {
            let alone = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
            let is_plain = symbol.structured_demangle(plain, &alone).is_ok();
            let end = QUALIFIERS.iter().fold(&*plain.0, |plain, qualifier| plain.trim_end_matches(qualifier)).len();
            plain.0.truncate(end);
            is_plain && plain.0.ends_with('>')
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_three_languages() {
        assert_eq!(demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"), "core::fmt::Formatter::pad");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(
            demangle("_ZNSt6vectorIiSaIiEE9push_backEOi"),
            "std::vector<int, std::allocator<int> >::push_back(int&&)"
        );
        assert_eq!(demangle("memcpy"), "memcpy");
        assert_eq!(demangle(&"_Z".repeat(NAME_BYTES_MAX)), "_Z".repeat(NAME_BYTES_MAX));
    }

    /// A name of each kind that expands without an end, and one that took 10 s to parse (2026-11-25).
    #[test]
    fn names_that_expand_are_cut() {
        let mut doubled = "_Z1f1aIiE".to_owned();
        // Each has two numbers: `b`, and what it is with its arguments.
        ('0'..='9').chain('A'..='Z').step_by(2).take(14).for_each(|seen| doubled += &format!("1bIS{seen}_S{seen}_E"));
        // A tuple of two of the tuples in it, and so on: `T T T ... E B2_ E B1_ E`, where `Bn_` refers to what is at byte `n + 3`.
        let mut tuples = "_RMC0".to_owned() + &"T".repeat(40) + "TE";
        (3..43).rev().for_each(|place| tuples += &format!("B{}_E", base_62(place)));
        for name in [doubled, tuples] {
            let plain = demangle(&name);
            let is_cut = plain.len() <= DEMANGLED_BYTES_MAX + '…'.len_utf8() && plain.ends_with('…');
            assert!(is_cut && plain.len() > DEMANGLED_BYTES_MAX - 100, "{name}: {} bytes, {plain:.100}", plain.len());
        }
        let nested = "_Z".to_owned() + &"cvT_I".repeat(60);
        (1..60).for_each(|count| assert_eq!(demangle(&nested[..2 + 5 * count]), nested[..2 + 5 * count]));
    }

    /// 15 % of the names of Boost stayed as the linker has them (2026-11-26).
    #[test]
    fn names_of_many_templates_are_demangled() {
        let deep = "_ZN9__gnu_cxx14__alloc_traitsISaINSt7__cxx119sub_matchINS_17__normal_iteratorIPKcNS1_12basic_stringIcSt11char_traitsIcESaIcEEEEEEEESC_E15_S_always_equalEv";
        assert!(demangle(deep).starts_with("__gnu_cxx::__alloc_traits<std::allocator<std::__cxx11::sub_match<"));
    }

    /// GCC's way to write expressions of a signature, which `cpp_demangle` cannot read (2026-11-27).
    #[test]
    fn templates_whose_signature_cannot_be_read_have_their_name() {
        for (name, expected) in [
            ("_ZSt4swapIiENSt9enable_ifIXsrSt6__not_ISt15__is_tuple_likeIT_EE5valueEvE4typeERS4_SE_", "std::swap<int>"),
            (
                "_ZN5boost6detail1vIKNS_3oneELb0EE5visitIRKNS_3twoEEENS_12disable_if_cIXaaLb0EsrNS_7is_sameIT_SE_EE5valueEbE4typeEOSE_i",
                "boost::detail::v<boost::one const, false>::visit<boost::two const&>",
            ),
        ] {
            assert_eq!(demangle(name), expected);
        }
        // A method, of which the first parameter can be read.
        let method =
            "_ZNK1a1bIiE4copyIcEEvPT_PNSt9enable_ifIXsrSt7is_sameINSt12remove_constIS4_E4typeEcE5valueEvE4typeE";
        assert_eq!(demangle(method), "a::b<int>::copy<char>");
        // Not templates, or nothing that only their signature has.
        for same in ["_Z4swapXsr3one", "_Z4swapIiE?", "_ZN1a4swapE?X", "_ZN1a4swapIiE?X"] {
            assert_eq!(demangle(same), same);
        }
    }

    fn base_62(number: usize) -> String {
        let digits: Vec<char> = ('0'..='9').chain('a'..='z').chain('A'..='Z').collect();
        digits[number - 1..number].iter().collect()
    }
}
