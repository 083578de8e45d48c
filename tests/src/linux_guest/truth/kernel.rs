//! Files of `/proc` about the kernel: its symbols, modules, memory.

use super::hex;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// A symbol of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its address.
    pub address: u64,
    /// Its kind as `nm` prints it: `T` and `t` are code.
    pub kind: char,
    /// Its name.
    pub name: String,
    /// Its module, if it is in one.
    pub module: Option<String>,
}

/// A module that is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Where its memory is.
    pub address: u64,
}

/// Parses lines such as `ffffffffc0204000 t name`, with a tab and `[module]` behind those of a module.
pub fn kallsyms(text: &str) -> Result<Vec<Symbol>> {
    let symbol = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let (kind, rest) = rest.split_once(' ')?;
        let (name, module) = match rest.split_once('\t') {
            Some((name, module)) => (name, Some(module.strip_prefix('[')?.strip_suffix(']')?.to_owned())),
            None => (rest, None),
        };
        Some(Symbol { address: hex(address)?, kind: kind.chars().next()?, name: name.to_owned(), module })
    };
    text.lines().map(|line| symbol(line).with_context(|| format!("no symbol: {line}"))).collect()
}

/// Parses lines such as `virtio_blk 36864 2 - Live 0xffffffffc0200000 (E)`.
pub fn modules(text: &str) -> Result<Vec<Module>> {
    let module = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let address = words.iter().find_map(|word| hex(word.strip_prefix("0x")?))?;
        Some(Module { name: (*words.first()?).to_owned(), bytes: words.get(1)?.parse().ok()?, address })
    };
    text.lines().map(|line| module(line).with_context(|| format!("no module: {line}"))).collect()
}

/// Parses lines such as `MemTotal:        1012345 kB`.
pub fn memory(text: &str) -> BTreeMap<String, u64> {
    let number = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.split_whitespace().next()?.parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}

/// Parses lines such as `  01000000-01ffffff : Kernel code`.
pub fn physical(text: &str) -> Vec<(u64, u64, String)> {
    let range = |line: &str| {
        let (addresses, name) = line.trim_start().split_once(" : ")?;
        let (first, last) = addresses.split_once('-')?;
        Some((hex(first)?, hex(last)?, name.to_owned()))
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_may_be_in_modules() {
        let found =
            kallsyms("0000000000000000 A fixed_percpu_data\nffffffffc0204000 t virtblk_done\t[virtio_blk]\n").unwrap();
        assert_eq!((found[0].address, found[0].kind, &found[0].module), (0, 'A', &None));
        assert_eq!((found[1].address, found[1].name.as_str()), (0xffff_ffff_c020_4000, "virtblk_done"));
        assert_eq!(found[1].module.as_deref(), Some("virtio_blk"));
        assert!(kallsyms("nonsense\n").is_err());
    }

    #[test]
    fn modules_ranges_and_numbers() {
        let found = modules("virtio_blk 36864 2 a,b, Live 0xffffffffc0200000 (E)\n").unwrap();
        assert_eq!(found, [Module { name: "virtio_blk".to_owned(), bytes: 36864, address: 0xffff_ffff_c020_0000 }]);
        let ranges = physical("00100000-3ffdefff : System RAM\n  01000000-01ffffff : Kernel code\n");
        assert_eq!(ranges[1], (0x0100_0000, 0x01ff_ffff, "Kernel code".to_owned()));
        assert_eq!(memory("MemTotal:    1000 kB\nHugePages_Total:   2\n")["HugePages_Total"], 2);
    }
}
