//! The modules of a Linux kernel: where they are, their symbols and their unwind tables.

use std::ops::Range;

use super::kernel::Kernel;
use super::space::{Space, number, word};
use super::structures::{Layout, pointer};
use crate::arch::x86_64::orc::{ADDRESS_BYTES, ENTRY_BYTES};
use crate::memory::Physical;

/// The most modules that are read; a machine with much hardware has some 200.
const MODULES_MAX: usize = 4096;
/// What all modules may take of memory here. Those of a kernel of Debian with 150 modules take some 10 MiB.
const MODULES_BYTES_MAX: usize = 256 << 20;
/// The most symbols of a module.
const SYMBOLS_MAX: u64 = 1 << 18;
/// The most entries of the unwind table of a module.
const UNWIND_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 64;
/// The most bytes of the names of a module's symbols that are read at once.
const NAMES_BYTES_MAX: u64 = 16 << 20;
/// The longest name of a symbol (`KSYM_NAME_LEN`).
const SYMBOL_BYTES_MAX: usize = 512;
/// Bytes of an `Elf64_Sym`.
const SYMBOL_BYTES: usize = 24;
/// The most bytes of a module's code.
const CODE_BYTES_MAX: u64 = 256 << 20;

/// Where the structures of modules have what is read of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    list: u32,
    name: u32,
    base: u32,
    bytes: u32,
    kallsyms: u32,
    symbols: u32,
    symbols_count: u32,
    strings: u32,
    /// The number of unwind entries, and the two arrays.
    unwind: Option<[u32; 3]>,
}

impl Offsets {
    /// From a kernel's types. The error is the first member that they do not have.
    pub fn of(types: &dyn Layout) -> Result<Offsets, String> {
        let at = |structure: &str, path: &str| {
            types.field(structure, path).map(|field| field.at).ok_or_else(|| format!("{structure}.{path}"))
        };
        // The first of several pieces of memory is the code, since 6.4.
        let (base, bytes) = match at("module", "mem") {
            Ok(memory) => (memory + at("module_memory", "base")?, memory + at("module_memory", "size")?),
            Err(_) => (at("module", "core_layout.base")?, at("module", "core_layout.text_size")?),
        };
        let unwind = ["arch.num_orcs", "arch.orc_unwind_ip", "arch.orc_unwind"].map(|path| at("module", path));
        let unwind = match unwind {
            [Ok(count), Ok(addresses), Ok(entries)] => Some([count, addresses, entries]),
            _ => None,
        };
        Ok(Offsets {
            list: at("module", "list")?,
            name: at("module", "name")?,
            base,
            bytes,
            kallsyms: at("module", "kallsyms")?,
            symbols: at("mod_kallsyms", "symtab")?,
            symbols_count: at("mod_kallsyms", "num_symtab")?,
            strings: at("mod_kallsyms", "strtab")?,
            unwind,
        })
    }
}

/// A module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Where its code is.
    pub code: Range<u64>,
    /// The symbols in its code: addresses, and where their names end in `names`.
    symbols: Vec<(u64, u32)>,
    names: String,
    /// Its unwind table, if it has one: where the array of addresses is, that array, and that of entries.
    pub unwind: Option<(u64, Vec<u8>, Vec<u8>)>,
}

/// The modules that are loaded. `None` if the kernel has no list of them, or if it changes too often.
pub fn list(kernel: &Kernel, memory: &dyn Physical, offsets: &Offsets) -> Option<Vec<Module>> {
    let head = kernel.address("modules")?;
    let space = kernel.space(memory);
    let (mut found, mut node, mut bytes) = (Vec::new(), head, 0);
    for _ in 0..MODULES_MAX {
        let next = pointer(space.word(node)?, 8)?;
        if next == head {
            return Some(found);
        }
        // One that is just loaded or removed is left out.
        let module = read(&space, next.wrapping_sub(u64::from(offsets.list)), offsets);
        bytes += module.as_ref().map_or(0, Module::bytes);
        found.extend(module);
        if bytes > MODULES_BYTES_MAX {
            return None;
        }
        node = next;
    }
    None
}

impl Module {
    /// The symbols in its code: addresses and names, in the order of its table.
    pub fn symbols(&self) -> impl Iterator<Item = (u64, &str)> {
        let mut start = 0;
        self.symbols.iter().map(move |(address, end)| {
            let name = std::mem::replace(&mut start, *end as usize)..*end as usize;
            (*address, &self.names[name])
        })
    }

    /// About how much memory it takes here.
    fn bytes(&self) -> usize {
        let unwind = self.unwind.as_ref().map_or(0, |(_, addresses, entries)| addresses.len() + entries.len());
        size_of_val(&self.symbols[..]) + self.names.len() + unwind
    }
}

fn read(space: &Space<'_>, module: u64, offsets: &Offsets) -> Option<Module> {
    let field = |at: u32| space.word(module.checked_add(u64::from(at))?);
    let name = space.text(module.checked_add(u64::from(offsets.name))?, NAME_BYTES_MAX)?;
    let start = pointer(field(offsets.base)?, 8)?;
    let bytes = field(offsets.bytes)? & 0xffff_ffff;
    let code = start..Some(start.checked_add(bytes)?).filter(|_| bytes <= CODE_BYTES_MAX)?;
    let (symbols, names) = symbols(space, field(offsets.kallsyms)?, &code, offsets).unwrap_or_default();
    let unwind = offsets.unwind.and_then(|[count, addresses, entries]| {
        let count = (field(count)? & 0xffff_ffff) as usize;
        let (addresses_at, entries_at) = (field(addresses)?, field(entries)?);
        if count == 0 || count as u64 > UNWIND_MAX {
            return None;
        }
        let (addresses, entries) =
            (space.bytes(addresses_at, count * ADDRESS_BYTES)?, space.bytes(entries_at, count * ENTRY_BYTES)?);
        Some((addresses_at, addresses, entries))
    });
    Some(Module { name, code, symbols, names, unwind })
}

/// The symbols in a module's code: addresses and the ends of their names, and all names.
fn symbols(
    space: &Space<'_>,
    kallsyms: u64,
    code: &Range<u64>,
    offsets: &Offsets,
) -> Option<(Vec<(u64, u32)>, String)> {
    let field = |at: u32| space.word(pointer(kallsyms, 8)?.checked_add(u64::from(at))?);
    let (table, strings) = (field(offsets.symbols)?, field(offsets.strings)?);
    let count = Some(field(offsets.symbols_count)? & 0xffff_ffff).filter(|count| *count <= SYMBOLS_MAX)?;
    let bytes = space.bytes(table, count as usize * SYMBOL_BYTES)?;
    let (symbols, _) = bytes.as_chunks::<SYMBOL_BYTES>();
    let in_code = symbols.iter().filter_map(|symbol| {
        let (name_at, section, address) = (number(symbol, 0, 4)?, number(symbol, 6, 2)?, word(symbol, 8)?);
        (section != 0 && name_at != 0 && code.contains(&address)).then_some((address, name_at))
    });
    let in_code: Vec<(u64, u64)> = in_code.collect();
    // All names at once: they are one after the other.
    let last = in_code.iter().map(|(_, name_at)| *name_at).max().filter(|last| *last <= NAMES_BYTES_MAX)?;
    let mut names = vec![0; last as usize + SYMBOL_BYTES_MAX];
    let there = space.read_some(strings, &mut names);
    let name = |at: u64| {
        let rest = names[..there].get(at as usize..)?;
        let end = rest.iter().take(SYMBOL_BYTES_MAX).position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end])).filter(|name| !name.is_empty())
    };
    let (mut symbols, mut all) = (Vec::with_capacity(in_code.len()), String::new());
    for (address, name_at) in in_code {
        let Some(name) = name(name_at) else { continue };
        all.push_str(&name);
        symbols.push((address, u32::try_from(all.len()).ok()?));
    }
    Some((symbols, all))
}
