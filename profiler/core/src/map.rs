//! Maps of symbols in text: output of `nm -n` and `nm -nS`, System.map, `/proc/kallsyms`.

use std::ops::Range;

use crate::elf::ImageError;

/// The most symbols of a map.
const SYMBOLS_MAX: usize = 16 << 20;
/// The longest name of a symbol, in bytes; longer ones are cut.
const NAME_BYTES_MAX: usize = 4096;
/// The most modules of a map.
const MODULES_MAX: usize = 4096;
/// Of so many lines one may be invalid.
const FOREIGN_LINES: usize = 10;
const PAGE_BYTES: u64 = 4096;
/// Symbols of the start and end of sections: not names of code.
const MARKS: [&str; 6] = ["_text", "_stext", "_etext", "_sinittext", "_einittext", "__init_begin"];

#[derive(Debug, Clone, Copy)]
struct Function {
    start: u64,
    end: u64,
    name_at: u32,
    name_bytes: u16,
    module: u16,
}

/// The functions of a map, sorted by address, one name an address.
#[derive(Debug, Default)]
pub struct SymbolMap {
    functions: Vec<Function>,
    /// All names, one after the other.
    names: String,
    /// Names of modules; the first stands for the program itself and is empty.
    modules: Vec<String>,
    kept: Vec<(String, u64)>,
}

struct Line<'a> {
    address: u64,
    bytes: u64,
    kind: char,
    name: &'a str,
    module: &'a str,
}

fn parse_hexadecimal(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let plausible = (4..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plausible.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// `ADDRESS TYPE NAME`, `ADDRESS SIZE TYPE NAME`, and either with `[MODULE]` after a tab.
fn parse_line(line: &str) -> Option<Line<'_>> {
    let (address, rest) = line.trim_ascii_end().split_once(' ')?;
    let address = parse_hexadecimal(address)?;
    let (word, after) = rest.trim_ascii_start().split_once(' ')?;
    let (bytes, kind, name) = match parse_hexadecimal(word) {
        Some(bytes) => {
            let (kind, name) = after.trim_ascii_start().split_once(' ')?;
            (bytes, kind, name)
        }
        None => (0, word, after),
    };
    let mut letters = kind.chars();
    let (Some(kind), None) = (letters.next(), letters.next()) else { return None };
    if !kind.is_ascii_alphabetic() && kind != '-' && kind != '?' {
        return None;
    }
    let (name, module) = match name.split_once('\t') {
        Some((name, module)) => (name, module.trim_ascii().strip_prefix('[')?.strip_suffix(']')?),
        None => (name, ""),
    };
    let name = name.trim_ascii();
    (!name.is_empty()).then_some(Line { address, bytes, kind, name, module })
}

/// Undefined symbols have no address: `                 U name`.
fn is_undefined(line: &str) -> bool {
    let line = line.trim_ascii();
    line.is_empty() || line.starts_with("U ") || line.starts_with("w ") || line.starts_with("v ")
}

fn is_function(kind: char) -> bool {
    matches!(kind, 't' | 'T' | 'w' | 'W' | 'i')
}

/// A symbol that may be the name of its address: the least of those at one address is.
struct Candidate<'a> {
    address: u64,
    /// The names of sections come after those of functions.
    is_second_choice: bool,
    rank: usize,
    bytes: u64,
    name: &'a str,
    module: u16,
}

/// Symbols of a map that is being read. Their names stay where they are read: of many, others of the same address are chosen.
#[derive(Default)]
struct Candidates<'a> {
    found: Vec<Candidate<'a>>,
    /// See [`SymbolMap::modules`].
    modules: Vec<&'a str>,
    kept: Vec<(String, u64)>,
}

impl<'a> Candidates<'a> {
    /// Adds a function, unless there are too many of them or of modules.
    fn add(&mut self, line: &Line<'a>, rank: usize) {
        let module = match self.modules.iter().rposition(|module| *module == line.module) {
            Some(module) => module,
            None if self.modules.len() < MODULES_MAX => {
                self.modules.push(line.module);
                self.modules.len() - 1
            }
            None => return,
        };
        if self.found.len() < SYMBOLS_MAX {
            let name = &line.name[..line.name.floor_char_boundary(NAME_BYTES_MAX)];
            let (address, bytes, module) = (line.address, line.bytes, module as u16);
            let is_second_choice = MARKS.contains(&name);
            self.found.push(Candidate { address, is_second_choice, rank, bytes, name, module });
        }
    }

    /// The functions with the names that were chosen, which take no more memory than they need: a map of a kernel is kept as long as its VM is recorded.
    fn choose(self) -> SymbolMap {
        let Candidates { mut found, modules, kept } = self;
        found.sort_by_key(|candidate| (candidate.address, candidate.is_second_choice, candidate.rank));
        found.dedup_by_key(|candidate| candidate.address);
        let names_bytes = found.iter().map(|candidate| candidate.name.len()).sum::<usize>().min(u32::MAX as usize);
        let (mut names, mut functions) = (String::with_capacity(names_bytes), Vec::with_capacity(found.len()));
        for (index, candidate) in found.iter().enumerate() {
            let &Candidate { address, bytes, name, module, .. } = candidate;
            // It reaches to the next one of its module, or to the end of its page.
            let page_end = (address | (PAGE_BYTES - 1)).saturating_add(1);
            let end = match found.get(index + 1) {
                _ if bytes > 0 => address.saturating_add(bytes),
                Some(next) if next.module == module => next.address,
                Some(next) => next.address.min(page_end),
                None => page_end,
            };
            // Kernels have a name for what is in front of each function, too, which ends with the function's: `__pfx_schedule`.
            if !names.ends_with(name) {
                if name.len() > names_bytes - names.len() {
                    break;
                }
                names.push_str(name);
            }
            let (name_at, name_bytes) = ((names.len() - name.len()) as u32, name.len() as u16);
            functions.push(Function { start: address, end, name_at, name_bytes, module });
        }
        names.shrink_to_fit();
        SymbolMap { functions, names, modules: modules.into_iter().map(str::to_owned).collect(), kept }
    }
}

impl SymbolMap {
    /// Reads a map. `keep_symbols` names data or code symbols whose addresses are needed later.
    pub fn parse(bytes: &[u8], keep_symbols: &[&str]) -> Result<SymbolMap, ImageError> {
        let mut candidates = Candidates { modules: vec![""], ..Candidates::default() };
        let (mut lines, mut foreign, mut zeros) = (0usize, 0usize, 0usize);
        for line in bytes.split(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(line).unwrap_or("");
            if is_undefined(line) {
                continue;
            }
            lines += 1;
            let Some(line) = parse_line(line) else {
                foreign += 1;
                // A file with another start is not read to its end.
                if foreign > FOREIGN_LINES && foreign * FOREIGN_LINES > lines {
                    return Err(ImageError::NotSymbols);
                }
                continue;
            };
            zeros += usize::from(line.address == 0);
            if keep_symbols.contains(&line.name) {
                candidates.kept.push((line.name.to_owned(), line.address));
            }
            if is_function(line.kind) && line.address != 0 {
                // Of several names for an address: a function's before a section's, a global one, one without
                // underscores, the shortest.
                let cut = |length: usize| length.min(NAME_BYTES_MAX - 1);
                let underscores = cut(line.name.len() - line.name.trim_start_matches('_').len());
                let length = cut(line.name.len());
                let rank = usize::from(line.kind.is_lowercase()) << 24 | underscores << 12 | length;
                candidates.add(&line, rank);
            }
        }
        match (lines, foreign) {
            _ if foreign * FOREIGN_LINES > lines || lines == 0 => return Err(ImageError::NotSymbols),
            _ if zeros == lines - foreign => return Err(ImageError::HiddenMap),
            _ if candidates.found.is_empty() => return Err(ImageError::MapWithoutFunctions),
            _ => {}
        }
        Ok(candidates.choose())
    }

    /// The functions of a kernel, from its own tables: address, kind as in the output of `nm`, name, and the module or "". Of several names for an
    /// address the first counts, as for the kernel itself.
    pub fn of_kernel<'a>(
        symbols: impl Iterator<Item = (u64, u8, &'a str, &'a str)>,
        keep_symbols: &[&str],
    ) -> SymbolMap {
        let mut candidates = Candidates { modules: vec![""], ..Candidates::default() };
        for (index, (address, kind, name, module)) in symbols.enumerate() {
            if module.is_empty() && keep_symbols.contains(&name) {
                candidates.kept.push((name.to_owned(), address));
            }
            let line = Line { address, bytes: 0, kind: char::from(kind), name, module };
            if is_function(line.kind) && address != 0 && !name.is_empty() {
                candidates.add(&line, index);
            }
        }
        candidates.choose()
    }

    /// The address of one of `keep_symbols`.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.kept.iter().find(|(known, _)| known == name).map(|(_, address)| *address)
    }

    /// The function at an address, as named in the map.
    pub fn name(&self, address: u64) -> Option<&str> {
        self.at(address).map(|function| self.name_of(function))
    }

    /// The addresses of the function at an address.
    pub fn span(&self, address: u64) -> Option<Range<u64>> {
        self.at(address).map(|function| function.start..function.end)
    }

    fn at(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.start <= address);
        self.functions[..after].last().filter(|function| address < function.end)
    }

    fn name_of(&self, function: &Function) -> &str {
        let start = function.name_at as usize;
        &self.names[start..start + usize::from(function.name_bytes)]
    }

    /// The addresses of all functions that have one of these names.
    pub fn functions(&self, names: &[&str]) -> Vec<Range<u64>> {
        let wanted = self.functions_by(|name| names.contains(&name).then_some(()));
        wanted.into_iter().map(|(range, ())| range).collect()
    }

    /// The addresses of all functions with a name for which `of` has a value, and that value.
    pub fn functions_by<T>(&self, of: impl Fn(&str) -> Option<T>) -> Vec<(Range<u64>, T)> {
        let known = self.functions.iter().filter_map(|function| Some((function, of(self.name_of(function))?)));
        known.map(|(function, value)| (function.start..function.end, value)).collect()
    }

    /// The modules and their ranges, in whole pages; the program itself has no name.
    pub fn modules(&self) -> Vec<(&str, Range<u64>)> {
        let mut ranges: Vec<Option<Range<u64>>> = vec![None; self.modules.len()];
        for function in &self.functions {
            let range = ranges[usize::from(function.module)].get_or_insert(function.start..function.end);
            range.end = range.end.max(function.end);
        }
        let round = |range: Range<u64>| {
            range.start & !(PAGE_BYTES - 1)..range.end.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
        };
        let names = self.modules.iter().map(String::as_str);
        let mut modules: Vec<_> = names.zip(ranges).filter_map(|(name, range)| Some((name, round(range?)))).collect();
        modules.sort_by_key(|(_, range)| range.start);
        modules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<SymbolMap, ImageError> {
        SymbolMap::parse(text.as_bytes(), &["linux_banner"])
    }

    #[test]
    fn a_kernels_map_with_modules() {
        let map = parse(
            "0000000000000000 A fixed_percpu_data\n\
             ffffffff81000000 T _stext\n\
             ffffffff81000000 T startup_64\n\
             ffffffff81000040 t __do_nothing\n\
             ffffffff81000040 T do_nothing\n\
             ffffffff81000050 t nothing\n\
             ffffffff81200000 D linux_banner\n\
             ffffffffc0001020 t dummy_xmit\t[dummy]\n\
             ffffffffc0001000 t dummy_setup\t[dummy]\n\
             ffffffffc0009010 t other\t[__builtin__ftrace]\n",
        )
        .unwrap();
        assert_eq!(map.name(0xffff_ffff_8100_003f), Some("startup_64"));
        assert_eq!(map.span(0xffff_ffff_8100_003f), Some(0xffff_ffff_8100_0000..0xffff_ffff_8100_0040));
        assert_eq!(map.name(0xffff_ffff_8100_0040), Some("do_nothing"));
        assert_eq!(map.name(0xffff_ffff_8100_0050), Some("nothing"));
        assert_eq!(map.span(0xffff_ffff_8100_004f), Some(0xffff_ffff_8100_0040..0xffff_ffff_8100_0050));
        assert_eq!(map.name(0xffff_ffff_c000_101f), Some("dummy_setup"));
        assert_eq!(map.name(0xffff_ffff_c000_1fff), Some("dummy_xmit"));
        assert_eq!(map.name(0xffff_ffff_c000_2000), None);
        assert_eq!(map.name(0xffff_ffff_80ff_ffff), None);
        assert_eq!(map.symbol("linux_banner"), Some(0xffff_ffff_8120_0000));
        let modules = map.modules();
        assert_eq!(modules[0], ("", 0xffff_ffff_8100_0000..0xffff_ffff_8100_1000));
        assert_eq!(modules[1], ("dummy", 0xffff_ffff_c000_1000..0xffff_ffff_c000_2000));
        assert_eq!(modules.len(), 3);
        assert_eq!(
            map.names, "startup_64do_nothingdummy_setupdummy_xmitother",
            "what ends a name before, and what was not chosen, takes nothing"
        );
    }

    #[test]
    fn nm_with_sizes_spaces_and_undefined_symbols() {
        let map = parse(
            "                 U malloc\n                 w __gmon_start__\n\
             0000000000401000 0000000000000010 T main\n0000000000401020 0000000000000008 t std::fmt(int, char)\n",
        )
        .unwrap();
        assert_eq!(map.name(0x40_100f), Some("main"));
        assert_eq!(map.name(0x40_1010), None, "nm gave it a size");
        assert_eq!(map.name(0x40_1020), Some("std::fmt(int, char)"));
        assert_eq!(map.functions(&["main", "other"]).first(), Some(&(0x40_1000..0x40_1010)));
    }

    #[test]
    fn what_is_no_map_says_so() {
        assert_eq!(parse("").err(), Some(ImageError::NotSymbols));
        assert_eq!(parse("#!/bin/sh\necho hello\n").err(), Some(ImageError::NotSymbols));
        let hidden = "0000000000000000 T _stext\n0000000000000000 t bar\t[foo]\n";
        assert_eq!(parse(hidden).err(), Some(ImageError::HiddenMap));
        let placeholder = "ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n";
        assert_eq!(parse(placeholder).err(), Some(ImageError::MapWithoutFunctions));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9a-f]{0,17}[ \t]{1,2}[0-9a-fTtWU\\[\\]é ]{0,12}\n){0,20}", at in any::<u64>()) {
            if let Ok(map) = SymbolMap::parse(text.as_bytes(), &["f"]) {
                map.name(at);
                for (_, range) in map.modules() {
                    map.name(range.start);
                    map.name(range.end);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SymbolMap::parse(&bytes, &[]);
        }
    }
}
