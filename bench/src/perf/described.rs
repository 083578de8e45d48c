//! Functions as debug information describes them: what they are called, and the namespaces and types that they are in.

use std::collections::HashMap;

use anyhow::{Context, Result};
use gimli::Reader as _;
use glass_profiler_core::names;
use object::{Object, ObjectSection};

/// How often an entry may refer to another for what it does not have itself, and how deep types and scopes may be nested.
const CHAIN_MAX: usize = 8;
const DEPTH_MAX: usize = 64;

type Reader = gimli::EndianArcSlice<gimli::LittleEndian>;

/// A function with code.
pub(super) struct Described {
    /// The first address.
    pub address: u64,
    /// The linker's name, if it is another one.
    pub linkage: Option<String>,
    /// Scopes and name.
    pub path: String,
    /// The type of its first parameter.
    pub parameter: Option<String>,
}

/// What debug information has of an entry. Entries are known by where they are.
struct Entry {
    tag: gimli::DwTag,
    parent: Option<usize>,
    origin: Option<usize>,
    name: Option<String>,
    linkage: Option<String>,
    /// The type of a variable, of a function's result, or that a type refers to.
    kind: Option<usize>,
    /// The first parameter of a function.
    parameter: Option<usize>,
    address: Option<u64>,
    /// A class that can be called: without a name it is a lambda.
    is_callable: bool,
}

/// All of a program.
struct Tree {
    entries: HashMap<usize, Entry>,
}

/// The functions with code of a program.
pub(super) fn functions(bytes: &[u8]) -> Result<Vec<Described>> {
    let file = object::File::parse(bytes)?;
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|section| section.uncompressed_data().ok());
        Ok(Reader::new(data.unwrap_or_default().into_owned().into(), gimli::LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load)?;
    let mut tree = Tree { entries: HashMap::new() };
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        tree.add(gimli::UnitRef::new(&dwarf, &dwarf.unit(header)?))?;
    }
    let mut found = Vec::new();
    for entry in tree.entries.values().filter(|entry| entry.tag == gimli::DW_TAG_subprogram) {
        let Some(address) = entry.address else { continue };
        let linkage = tree.chain(entry).find_map(|entry| entry.linkage.clone());
        let parameter = tree.chain(entry).find_map(|entry| entry.parameter).and_then(|at| tree.entries.get(&at));
        let parameter = parameter.and_then(|parameter| tree.chain(parameter).find_map(|entry| entry.kind));
        // Code without any name is the compiler's.
        if linkage.is_none() && tree.name(entry).is_none() {
            continue;
        }
        found.push(Described {
            address,
            linkage,
            path: tree.path(entry, DEPTH_MAX).context("scopes without an end")?,
            parameter: parameter.and_then(|kind| tree.type_name(Some(kind), DEPTH_MAX)),
        });
    }
    found.sort_by(|a, b| (a.address, &a.linkage).cmp(&(b.address, &b.linkage)));
    Ok(found)
}

impl Tree {
    /// Adds the entries of a unit.
    fn add(&mut self, unit: gimli::UnitRef<'_, Reader>) -> Result<()> {
        let start = unit.header.debug_info_offset().context("a unit of types")?.0;
        let mut open: Vec<(isize, usize)> = Vec::new();
        let mut cursor = unit.entries();
        while let Some(entry) = cursor.next_dfs()? {
            let (at, depth) = (start + entry.offset().0, entry.depth());
            while open.last().is_some_and(|(of, _)| *of >= depth) {
                open.pop();
            }
            let text = |attribute| -> Option<String> {
                let value = entry.attr_value(attribute)?;
                Some(unit.attr_string(value).ok()?.to_string_lossy().ok()?.into_owned())
            };
            let reference = |attribute| match entry.attr_value(attribute)? {
                gimli::AttributeValue::UnitRef(offset) => Some(start + offset.0),
                gimli::AttributeValue::DebugInfoRef(offset) => Some(offset.0),
                _ => None,
            };
            let parent = open.last().map(|(_, at)| *at);
            let address = entry.attr_value(gimli::DW_AT_low_pc).and_then(|value| unit.attr_address(value).ok()?);
            let added = Entry {
                tag: entry.tag(),
                parent,
                origin: reference(gimli::DW_AT_specification).or_else(|| reference(gimli::DW_AT_abstract_origin)),
                name: text(gimli::DW_AT_name),
                linkage: text(gimli::DW_AT_linkage_name),
                kind: reference(gimli::DW_AT_type),
                parameter: None,
                address,
                is_callable: false,
            };
            if let Some(parent) = parent.and_then(|parent| self.entries.get_mut(&parent)) {
                parent.is_callable |= added.name.as_deref().is_some_and(|name| name.starts_with("operator()"));
                if added.tag == gimli::DW_TAG_formal_parameter {
                    parent.parameter.get_or_insert(at);
                }
            }
            self.entries.insert(at, added);
            open.push((depth, at));
        }
        Ok(())
    }

    /// An entry, and those that it refers to for what it does not have itself.
    fn chain<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = &'a Entry> {
        std::iter::successors(Some(entry), |entry| self.entries.get(&entry.origin?)).take(CHAIN_MAX)
    }

    fn name<'a>(&'a self, entry: &'a Entry) -> Option<&'a str> {
        self.chain(entry).find_map(|entry| entry.name.as_deref())
    }

    /// The scopes and the name of an entry, without arguments of templates. A method of Rust is in `{impl}`, since debug information does
    /// not have the type of that block.
    fn path(&self, entry: &Entry, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let own = self.own_name(entry, depth);
        let declared = self.chain(entry).last()?;
        let around = std::iter::successors(Some(declared), |entry| self.entries.get(&entry.parent?))
            .skip(1)
            .take(DEPTH_MAX)
            .find(|entry| is_scope(entry.tag));
        let Some(around) = around else { return Some(own) };
        Some(format!("{}::{own}", self.path(around, depth)?))
    }

    fn own_name(&self, entry: &Entry, depth: usize) -> String {
        match self.name(entry) {
            Some(name) if is_conversion(name) => {
                // It may be written as a typedef there, but the linker's name has the type.
                let result = self.chain(entry).find_map(|entry| entry.kind);
                let kind = self.type_name(result, depth);
                kind.map_or_else(|| names::without_generics(name), |kind| format!("operator {kind}"))
            }
            Some(name) if name.starts_with("operator") => names::without_generics(name),
            Some(name) if name.starts_with(['<', '{']) => {
                super::corpus::part(name.split_inclusive('}').next().unwrap_or_default())
            }
            Some(name) => name.split('<').next().unwrap_or_default().to_owned(),
            None if entry.tag == gimli::DW_TAG_namespace => "(anonymous namespace)".to_owned(),
            None if entry.is_callable => "{lambda}".to_owned(),
            None => "{unnamed}".to_owned(),
        }
    }

    /// A type as demanglers write it, without arguments of templates; `None` of functions and arrays.
    fn type_name(&self, kind: Option<usize>, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let Some(kind) = kind else { return Some("void".to_owned()) };
        let entry = self.entries.get(&kind)?;
        let inner = || self.type_name(entry.kind, depth);
        match entry.tag {
            gimli::DW_TAG_typedef => inner(),
            gimli::DW_TAG_pointer_type => Some(inner()? + "*"),
            gimli::DW_TAG_reference_type => Some(inner()? + "&"),
            gimli::DW_TAG_rvalue_reference_type => Some(inner()? + "&&"),
            gimli::DW_TAG_const_type => Some(inner()? + " const"),
            gimli::DW_TAG_volatile_type => Some(inner()? + " volatile"),
            gimli::DW_TAG_base_type => Some(number(entry.name.as_deref()?)),
            gimli::DW_TAG_unspecified_type => entry.name.clone(),
            tag if is_scope(tag) => self.path(entry, depth),
            _ => None,
        }
    }
}

/// Whether a name in debug information is that of a C++ conversion operator.
fn is_conversion(name: &str) -> bool {
    let kind = name.strip_prefix("operator ");
    kind.is_some_and(|kind| !["new", "delete", "\"", "<"].iter().any(|word| kind.starts_with(word)))
}

/// `unsigned long` for GCC's `long unsigned int`.
fn number(name: &str) -> String {
    let is_short = ["long", "short", "char"].iter().any(|word| name.contains(word));
    let word = |word: &&str| *word != "unsigned" && (*word != "int" || !is_short);
    let words: Vec<&str> = name.split(' ').filter(word).collect();
    if name.contains("unsigned") { format!("unsigned {}", words.join(" ")) } else { words.join(" ") }
}

fn is_scope(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_subprogram
            | gimli::DW_TAG_namespace
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_demanglers_write_them() {
        for (name, expected) in [
            ("long unsigned int", "unsigned long"),
            ("long long int", "long long"),
            ("short int", "short"),
            ("unsigned int", "unsigned int"),
            ("unsigned char", "unsigned char"),
            ("bool", "bool"),
        ] {
            assert_eq!(number(name), expected);
        }
        assert!(is_conversion("operator bool") && !is_conversion("operator new []") && !is_conversion("operator=="));
    }
}
