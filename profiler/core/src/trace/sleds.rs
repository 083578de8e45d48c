//! The functions of a program that can be traced, and the user's choice of them.
//!
//! A program that `glass build --trace-functions` made has a table of sleds, the section `xray_instr_map`: an entry
//! of 32 bytes for each place where a function begins or ends, whose first two words are the addresses of the place and of
//! the function, relative to the words themselves. A function's number is how many other functions came before it in
//! the table; the guest counts in the same way.

use std::fmt;

use glass_formats::trace::FUNCTIONS_MAX;
use object::{Object, ObjectSection};

use super::filter::Filter;
use super::raw::Function;
use crate::budget::Account;
use crate::elf::ImageError;
use crate::elf::{Parts, ReadAt, parse_elf, section_bytes};
use crate::symbols::Symbols;

/// The section that has the table.
const SECTION: &str = "xray_instr_map";
/// Size of an entry.
const ENTRY_BYTES: usize = 32;

/// A function that can be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SledFunction {
    /// Its number, the `a` of its events and its bit in `Control::functions_wanted`.
    pub number: u32,
    /// Its linked address.
    pub address: u64,
    /// Places where it begins or ends.
    pub sleds: u32,
}

/// Why there are no functions to trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SledError {
    /// The file cannot be read.
    Image(ImageError),
    /// It was not built for it.
    NoSleds,
    /// Its table is no whole number of entries.
    Damaged(u64),
}

impl fmt::Display for SledError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SledError::Image(error) => write!(f, "the program {error}"),
            SledError::NoSleds => {
                write!(
                    f,
                    "the program was not built for tracing functions: build it with `glass build --trace-functions`"
                )
            }
            SledError::Damaged(bytes) => {
                write!(f, "the program's table of functions is damaged ({bytes} bytes are no whole number of entries)")
            }
        }
    }
}

impl std::error::Error for SledError {}

impl From<ImageError> for SledError {
    fn from(error: ImageError) -> SledError {
        SledError::Image(error)
    }
}

/// The functions of an ELF file that can be traced, by number; those beyond [`FUNCTIONS_MAX`] cannot.
pub fn functions(elf: &dyn ReadAt) -> Result<Vec<SledFunction>, SledError> {
    let parts = Parts::of(elf, &Account::alone());
    let file = parse_elf(&parts)?;
    let section = file.section_by_name(SECTION).ok_or(SledError::NoSleds)?;
    let missing = || parts.error(ImageError::Damaged("its table of functions is not all there".to_owned()));
    let table = section_bytes(&parts, &file, SECTION).ok_or_else(missing)?;
    if table.is_empty() {
        return Err(SledError::NoSleds);
    }
    if !table.len().is_multiple_of(ENTRY_BYTES) {
        return Err(SledError::Damaged(table.len() as u64));
    }
    Ok(functions_of(&table, section.address()))
}

fn functions_of(table: &[u8], table_address: u64) -> Vec<SledFunction> {
    let mut functions: Vec<SledFunction> = Vec::new();
    for (index, entry) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let place = table_address.wrapping_add((index * ENTRY_BYTES) as u64).wrapping_add(8);
        let relative = u64::from_le_bytes(entry[8..16].try_into().unwrap_or_default());
        let address = place.wrapping_add(relative);
        if let Some(last) = functions.last_mut()
            && last.address == address
        {
            last.sleds += 1;
        } else if functions.len() < FUNCTIONS_MAX {
            functions.push(SledFunction { number: functions.len() as u32, address, sleds: 1 });
        } else {
            break;
        }
    }
    functions
}

/// The functions with their names, as they lie in a recording.
pub fn named(functions: &[SledFunction], symbols: &Symbols) -> Vec<Function> {
    let name = |function: &SledFunction| match symbols.locate(function.address).pop() {
        Some(location) => {
            Function { number: function.number, name: location.function, file: location.file, line: location.line }
        }
        None => Function { number: function.number, name: format!("{:#x}", function.address), ..Function::default() },
    };
    functions.iter().map(name).collect()
}

/// The request to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The words of `Control::functions_wanted`, as many as are needed; those after them are zero.
    pub wanted: Vec<u64>,
    /// How many functions they choose.
    pub count: usize,
}

/// Chooses functions. Fails with the pattern that no function matches, because it is a mistake of the user.
pub fn choose<'a>(functions: &[Function], filter: &'a Filter) -> Result<Choice, &'a str> {
    let chosen = filter.choose(functions)?;
    let mut choice = Choice { wanted: Vec::new(), count: 0 };
    for function in functions.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(function, _)| function) {
        let number = function.number as usize;
        if number >= FUNCTIONS_MAX {
            continue;
        }
        if choice.wanted.len() <= number / 64 {
            choice.wanted.resize(number / 64 + 1, 0);
        }
        choice.wanted[number / 64] |= 1 << (number % 64);
        choice.count += 1;
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table at `address` of sleds of functions at these addresses.
    fn table(address: u64, functions: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for function in functions {
            let place = address + bytes.len() as u64;
            bytes.extend(function.wrapping_sub(place).to_le_bytes());
            bytes.extend(function.wrapping_sub(place + 8).to_le_bytes());
            bytes.extend([0; 16]);
        }
        bytes
    }

    #[test]
    fn functions_are_numbered_in_the_order_of_the_table() {
        let table = table(0x5000, &[0x20_0000, 0x20_0000, 0x1000, 0x1000, 0x1000, 0x3000]);
        let expected = [(0, 0x20_0000, 2), (1, 0x1000, 3), (2, 0x3000, 1)];
        let expected = expected.map(|(number, address, sleds)| SledFunction { number, address, sleds });
        assert_eq!(functions_of(&table, 0x5000), expected);
    }

    #[test]
    fn no_more_functions_than_there_are_bits() {
        let addresses: Vec<u64> = (0..FUNCTIONS_MAX as u64 + 10).map(|number| number * 16).collect();
        assert_eq!(functions_of(&table(0, &addresses), 0).len(), FUNCTIONS_MAX);
    }

    #[test]
    fn programs_without_sleds_are_told_from_nonsense() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(functions(&own), Err(SledError::NoSleds));
        assert_eq!(functions(&&b"no program"[..]), Err(SledError::Image(ImageError::NotElf)));
    }

    #[test]
    fn the_choice_is_a_bitmap() {
        let function = |number, name: &str| Function { number, name: name.into(), ..Function::default() };
        let all = [function(0, "queue::put"), function(65, "queue::get"), function(70, "net::poll")];
        let filter = Filter::new(&["queue"], &["get"]);
        assert_eq!(choose(&all, &filter), Ok(Choice { wanted: vec![1], count: 1 }));
        let everything = Filter::new::<&str>(&[], &[]);
        assert_eq!(choose(&all, &everything), Ok(Choice { wanted: vec![1, 1 << 1 | 1 << 6], count: 3 }));
        assert_eq!(choose(&all, &Filter::new(&["disk"], &[])), Err("disk"));
    }
}
