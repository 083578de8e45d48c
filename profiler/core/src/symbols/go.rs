//! The functions, files, lines and inlined calls that a Go program has for its own runtime: a stripped one still has them.
//!
//! The format is that of Go 1.16 to 1.26 (`runtime/symtab.go`, `runtime/symtabinl.go`, `cmd/link/internal/ld/pcln.go`; "Go 1.2 Runtime
//! Symbol Information"). A header (`pcHeader`) begins with a magic number and gives the places of five tables: names of functions,
//! files of compilation units, names of files, numbers by address, and functions by address. The module's data (`moduledata`) repeat
//! them as pointers, and have the first address of code. Both have to agree before a name is used.

use std::ops::Range;
use std::sync::Arc;

use object::{Object, ObjectSection};

use super::{INLINE_DEPTH_MAX, Location};
use crate::budget::{Account, Over};
use crate::elf::loaded::Loaded;
use crate::elf::{Elf, Parts};

/// The sections in which the table is. Where a linker joined it with other data, it has no section of its own.
const TABLES: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Other sections that only programs of Go have.
const SECTIONS: [&str; 4] = [".go.buildinfo", ".note.go.buildid", ".gosymtab", ".go.module"];
/// What follows the magic number, as bytes: two zeros, the size of the smallest instruction of x86-64, and of a pointer.
const REST_OF_MAGIC: u64 = 0x0801_0000 << 32;
/// Bytes of the header, in all versions.
const HEADER_BYTES: u64 = 72;
/// Words of a module's data up to the last that is used.
const MODULE_WORDS: u64 = 41;
/// `PCDATA_InlTreeIndex` and `FUNCDATA_InlTree`: the tables of a function with the inlined call at each address, and with all of them.
const INLINED_NUMBERS: usize = 2;
const INLINED_CALLS: usize = 3;
/// The most bytes of the inlined calls of one function. Only the place where they begin is known.
const INLINED_BYTES_MAX: u64 = 256 << 10;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 16 << 10;
/// The most steps through the numbers of one function. The largest functions have some ten thousand.
const STEPS_MAX: usize = 1 << 20;

/// How the tables are laid out: by the version that changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Addresses are whole.
    Go16,
    /// Addresses are relative to the start of the code.
    Go18,
    /// A function has the line at which it starts, and an inlined call is shorter.
    Go20,
}

impl Version {
    const ALL: [Version; 3] = [Version::Go16, Version::Go18, Version::Go20];

    fn magic(self) -> u64 {
        let magic = match self {
            Version::Go16 => 0xffff_fffa,
            Version::Go18 => 0xffff_fff0,
            Version::Go20 => 0xffff_fff1,
        };
        magic | REST_OF_MAGIC
    }

    /// The word of the header with the place of the first table.
    fn first_table(self) -> usize {
        if self == Version::Go16 { 3 } else { 4 }
    }

    /// The bytes of an address in the tables.
    fn address_bytes(self) -> usize {
        if self == Version::Go16 { 8 } else { 4 }
    }

    /// The bytes of a function, without the numbers of its tables.
    fn function_bytes(self) -> usize {
        if self == Version::Go18 { 40 } else { 44 }
    }

    /// The line at which a function starts, by the field that has it in the last version.
    fn start_line(self, field: Option<u32>) -> Option<u32> {
        field.filter(|line| self == Version::Go20 && *line > 0)
    }

    /// Of an inlined call: its bytes, where its name is, and where its caller's address is.
    fn inlined(self) -> (usize, usize, usize) {
        if self == Version::Go20 { (16, 4, 8) } else { (20, 12, 16) }
    }

    /// The word of the module's data that the places of inlined calls are relative to.
    fn inlined_base(self) -> Option<usize> {
        match self {
            Version::Go16 => None,
            Version::Go18 => Some(38),
            Version::Go20 => Some(40),
        }
    }
}

/// The table of a program.
pub(super) struct GoTable {
    account: Account,
    version: Version,
    /// From the header on.
    bytes: Arc<[u8]>,
    /// The address of the header.
    address: u64,
    /// Where in `bytes` the five tables begin.
    names: usize,
    units: usize,
    files: usize,
    numbers: usize,
    functions: usize,
    /// The number of functions.
    count: usize,
    /// What addresses in the table are relative to.
    text: u64,
    /// All of the code.
    range: Range<u64>,
    inlined: Option<InlinedCalls>,
}

/// The inlined calls of all functions.
struct InlinedCalls {
    bytes: Arc<[u8]>,
    /// The address of the first byte.
    start: u64,
    /// What places are relative to.
    base: u64,
}

/// A function at an address.
struct Function {
    range: Range<u64>,
    /// Where in the bytes of the table it is described.
    at: usize,
}

fn short(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A word of the module's data.
fn module_word(bytes: &[u8], index: usize) -> Option<u64> {
    word(bytes, index * size_of::<u64>())
}

impl GoTable {
    /// The table in a program; `None` if it is not one of Go, or of an unknown version, or damaged.
    pub(super) fn read(parts: &Parts<'_>, file: &Elf<'_>, account: &Account) -> Result<Option<GoTable>, Over> {
        let has = |name: &&str| file.section_by_name(name).is_some();
        if !parts.lacks_sections() && !TABLES.iter().chain(&SECTIONS).any(has) {
            return Ok(None);
        }
        let loaded = Loaded::of(parts, file)?;
        let mut headers: Vec<u64> =
            TABLES.iter().filter_map(|name| file.section_by_name(name)).map(|section| section.address()).collect();
        if headers.is_empty() {
            // In code the same bytes may be part of a comparison with them.
            headers = loaded.find(|segment| !segment.is_executable, &Version::ALL.map(Version::magic));
        }
        for header in headers {
            let modules = loaded.find(|segment| segment.is_writable, &[header]);
            let found = modules.iter().find_map(|module| GoTable::of_module(&loaded, header, *module, account));
            if found.is_some() {
                return account.over().map_or(Ok(found), Err);
            }
        }
        account.over().map_or(Ok(None), Err)
    }

    /// The table whose header is at an address, if the data of its module are where they are believed to be.
    fn of_module(loaded: &Loaded<'_, '_>, address: u64, module: u64, account: &Account) -> Option<GoTable> {
        let head = loaded.read(address, HEADER_BYTES)?;
        let module = loaded.read(module, MODULE_WORDS * size_of::<u64>() as u64)?;
        let magic = word(&head, 0)?;
        let version = Version::ALL.into_iter().find(|version| version.magic() == magic)?;
        let (count, first) = (usize::try_from(word(&head, 8)?).ok()?, version.first_table());
        let mut tables = [0; 5];
        for (index, table) in tables.iter_mut().enumerate() {
            let at = word(&head, (first + index) * size_of::<u64>())?;
            // As a pointer and two lengths, behind the address of the header.
            if module_word(&module, 1 + 3 * index)? != address.checked_add(at)? {
                return None;
            }
            *table = usize::try_from(at).ok()?;
        }
        let [names, units, files, numbers, functions] = tables;
        let bytes = (functions as u64).checked_add(module_word(&module, 14)?)?;
        let bytes = loaded.read(address, bytes)?;
        let text = if version == Version::Go16 { 0 } else { module_word(&module, 22)? };
        let range = module_word(&module, 20)?..module_word(&module, 21)?;
        let account = account.clone();
        let mut table = GoTable {
            account,
            version,
            bytes,
            address,
            names,
            units,
            files,
            numbers,
            functions,
            count,
            text,
            range,
            inlined: None,
        };
        let is_whole = table.start(0)? == table.range.start && table.start(count)? == table.range.end;
        if !is_whole || count == 0 || !loaded.is_code(&table.range) {
            return None;
        }
        let base = version.inlined_base().map_or(Some(0), |index| module_word(&module, index));
        table.inlined = base.and_then(|base| table.read_inlined(loaded, base));
        Some(table)
    }

    /// The inlined calls of all functions.
    fn read_inlined(&self, loaded: &Loaded<'_, '_>, base: u64) -> Option<InlinedCalls> {
        let mut places: Option<Range<u64>> = None;
        for index in 0..self.count {
            self.account.work(4).ok()?;
            let function = self.described(index).and_then(|at| self.inlined_at(at, base));
            let Some(at) = function else { continue };
            let places = places.get_or_insert(at..at);
            *places = at.min(places.start)..at.max(places.end);
        }
        let Range { start, end } = places?;
        let bytes = (end - start).checked_add(loaded.bytes_from(end).min(INLINED_BYTES_MAX))?;
        Some(InlinedCalls { bytes: loaded.read(start, bytes)?, start, base })
    }

    /// The memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + self.inlined.as_ref().map_or(0, |inlined| inlined.bytes.len())
    }

    /// Where the entry of a function in the table of addresses is.
    fn entry(&self, index: usize) -> Option<usize> {
        index.checked_mul(2 * self.version.address_bytes())?.checked_add(self.functions)
    }

    /// An address, as the tables have it.
    fn address(&self, at: usize) -> Option<u64> {
        match self.version {
            Version::Go16 => word(&self.bytes, at),
            _ => self.text.checked_add(short(&self.bytes, at)?.into()),
        }
    }

    /// The first address of a function; for the number of functions, the end of the last.
    fn start(&self, index: usize) -> Option<u64> {
        self.address(self.entry(index)?)
    }

    /// Where a function is described.
    fn described(&self, index: usize) -> Option<usize> {
        let at = self.entry(index)?.checked_add(self.version.address_bytes())?;
        let place = match self.version {
            Version::Go16 => usize::try_from(word(&self.bytes, at)?).ok()?,
            _ => short(&self.bytes, at)? as usize,
        };
        self.functions.checked_add(place)
    }

    /// The function at an address.
    fn function(&self, address: u64) -> Option<Function> {
        if !self.range.contains(&address) {
            return None;
        }
        let (mut first, mut end) = (0, self.count);
        // The function at `first` starts before the address, or with it; that at `end` after it.
        while end - first > 1 {
            self.account.work(1).ok()?;
            let middle = first + (end - first) / 2;
            if self.start(middle)? <= address { first = middle } else { end = middle }
        }
        let (range, at) = (self.start(first)?..self.start(first + 1)?, self.described(first)?);
        // It repeats its address.
        let is_it = range.contains(&address) && self.address(at)? == range.start;
        is_it.then_some(Function { range, at })
    }

    /// The first address of the function at an address.
    pub(super) fn start_of(&self, address: u64) -> Option<u64> {
        self.function(address).map(|function| function.range.start)
    }

    /// A field of a function, by how many fields are between its address and that.
    fn field(&self, function: usize, index: usize) -> Option<u32> {
        short(&self.bytes, function.checked_add(self.version.address_bytes() + index * size_of::<u32>())?)
    }

    /// The number that a table of a function has for an address. Each of its steps is a difference of numbers and of addresses, which
    /// are written as LEB128.
    fn number(&self, table: u32, function: &Function, address: u64) -> Option<i32> {
        // No table.
        if table == 0 {
            return None;
        }
        let mut at = self.numbers.checked_add(table as usize)?;
        let (mut number, mut end) = (-1i32, function.range.start);
        for step in 0..STEPS_MAX {
            self.account.work(1).ok()?;
            let difference = self.varint(&mut at)?;
            if difference == 0 && step > 0 {
                return None;
            }
            // The lowest bit is the sign.
            let sign = (difference & 1).wrapping_neg();
            number = number.wrapping_add(((difference >> 1) ^ sign) as i32);
            end = end.checked_add(self.varint(&mut at)?.into())?;
            if address < end {
                return Some(number);
            }
        }
        None
    }

    fn varint(&self, at: &mut usize) -> Option<u32> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let byte = *self.bytes.get(*at)?;
            *at += 1;
            number |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The text at a place in the table of names, or of files.
    fn text(&self, table: usize, place: u32) -> Option<String> {
        let bytes = self.bytes.get(table.checked_add(place as usize)?..)?;
        let bytes = &bytes[..bytes.len().min(NAME_BYTES_MAX)];
        let length = bytes.iter().position(|byte| *byte == 0).filter(|length| *length > 0)?;
        self.account.work(length as u64 / 8).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// The file and line of an address in a function.
    fn line(&self, function: &Function, address: u64) -> (Option<String>, Option<u32>) {
        let number = |index| self.number(self.field(function.at, index)?, function, address);
        let file = || {
            // `pcfile`, `cuOffset`
            let index = u32::try_from(number(4)?).ok()?.checked_add(self.field(function.at, 7)?)?;
            let at = self.units.checked_add((index as usize).checked_mul(size_of::<u32>())?)?;
            self.text(self.files, short(&self.bytes, at)?)
        };
        // `pcln`
        let line = number(5).and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0);
        (file(), line)
    }

    /// The address of the inlined calls of a function.
    fn inlined_at(&self, function: usize, base: u64) -> Option<u64> {
        let start = function.checked_add(self.version.function_bytes())?;
        if usize::from(*self.bytes.get(start - 1)?) <= INLINED_CALLS {
            return None;
        }
        // `npcdata`
        let tables = self.field(function, 6)? as usize;
        let mut at = start.checked_add(tables.checked_mul(size_of::<u32>())?)?;
        if self.version == Version::Go16 {
            let padding = if self.address.wrapping_add(at as u64) & 4 == 0 { 0 } else { 4 };
            at = at.checked_add(padding + INLINED_CALLS * size_of::<u64>())?;
            return word(&self.bytes, at).filter(|at| *at != 0);
        }
        let place = short(&self.bytes, at.checked_add(INLINED_CALLS * size_of::<u32>())?)?;
        if place == u32::MAX { None } else { base.checked_add(place.into()) }
    }

    /// The inlined call at an address of a function, by its number.
    fn inlined_number(&self, function: &Function, address: u64) -> Option<u32> {
        if self.field(function.at, 6)? as usize <= INLINED_NUMBERS {
            return None;
        }
        let at = function.at.checked_add(self.version.function_bytes() + INLINED_NUMBERS * size_of::<u32>())?;
        u32::try_from(self.number(short(&self.bytes, at)?, function, address)?).ok()
    }

    /// The name and the first line of an inlined function, and the address whose line is that of its call.
    fn inlined_call(&self, function: &Function, number: u32) -> Option<(String, Option<u32>, u64)> {
        let inlined = self.inlined.as_ref()?;
        let (bytes, name, caller) = self.version.inlined();
        let start = usize::try_from(self.inlined_at(function.at, inlined.base)?.checked_sub(inlined.start)?).ok()?;
        let at = start.checked_add((number as usize).checked_mul(bytes)?)?;
        let call = inlined.bytes.get(at..at.checked_add(bytes)?)?;
        // The three bytes behind its kind are always zero in calls of this size.
        if self.version == Version::Go20 && call[1..4] != [0; 3] {
            return None;
        }
        let caller = function.range.start.checked_add(short(call, caller)?.into())?;
        if !function.range.contains(&caller) {
            return None;
        }
        let start_line = self.version.start_line(short(call, 12));
        Some((self.text(self.names, short(call, name)?)?, start_line, caller))
    }

    /// The inlined functions at an address, innermost first, and the address whose line is that of the outermost call of them;
    /// `None` if the table is damaged there.
    fn inlined_functions(&self, function: &Function, address: u64) -> Option<(Vec<Location>, u64)> {
        let (mut locations, mut address) = (Vec::new(), address);
        while let Some(number) = self.inlined_number(function, address) {
            let (name, start_line, caller) = self.inlined_call(function, number)?;
            let (file, line) = self.line(function, address);
            locations.push(Location { function: name, file, line, start_line });
            address = caller;
            if locations.len() == INLINE_DEPTH_MAX {
                break;
            }
        }
        Some((locations, address))
    }

    /// The functions at an address, innermost first. Empty if it is not in a function of Go.
    pub(super) fn locate(&self, address: u64) -> Vec<Location> {
        let found = || {
            let function = self.function(address)?;
            // `nameOff`
            let name = self.text(self.names, self.field(function.at, 0)?)?;
            let (mut locations, address) =
                self.inlined_functions(&function, address).unwrap_or_else(|| (Vec::new(), address));
            let (file, line) = self.line(&function, address);
            locations.truncate(INLINE_DEPTH_MAX - 1);
            // `startLine`
            let start_line = self.version.start_line(self.field(function.at, 8));
            locations.push(Location { function: name, file, line, start_line });
            Some(locations)
        };
        found().unwrap_or_default()
    }
}
