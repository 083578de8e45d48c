//! Names of functions beside those that compilers write into debug information: for each function, its scopes there are its
//! namespaces and classes, which our parse of its demangled name must find, too.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use gimli::Reader as _;
use glass_profiler_core::names;
use glass_profiler_core::symbols::demangle;
use glass_tests::folder::Folder;
use object::{Object, ObjectSection};

use super::cases::{RUST, tool};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;

const CPP: &str = include_str!("programs/names.cpp");
const BOOST: &str = include_str!("programs/names_boost.cpp");
/// Names that may differ, in percent of each language's.
const DIFFERENT_PERCENT: f64 = 0.5;
/// Differences that are printed of each language.
const SHOWN: usize = 5;

type Reader = gimli::EndianArcSlice<gimli::LittleEndian>;

/// Compares the names of programs in several languages.
pub(super) fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("perf-names")?;
    let (program, source) = (folder.file("program"), folder.file("source"));
    let cpp: [&str; 4] = ["-std=c++20", "-g", "-O0", "-xc++"];
    // The older form of names takes a nightly compiler. Go has no other names in debug information than in its symbols.
    let v0 = ["--edition", "2024", "-g", "-C", "symbol-mangling-version=v0"];
    let cases: [(&str, &str, &[&str], &str); 3] =
        [("libstdcxx", "g++", &cpp, CPP), ("boost", "g++", &cpp, BOOST), ("rust_v0", "rustc", &v0, RUST)];
    for (name, compiler, flags, text) in run.size(&cases[..], &cases[..1]) {
        fs::write(&source, text)?;
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            flags.iter().map(|flag| flag as &dyn AsRef<std::ffi::OsStr>).collect();
        arguments.extend([&"-o" as &dyn AsRef<std::ffi::OsStr>, &program, &source]);
        match tool(compiler, &arguments, folder.path()) {
            Ok(Some(())) => compare(outcome, name, &program)?,
            Ok(None) => outcome.note(format!("names.{name}: skipped, there is no {compiler}")),
            // Boost's headers are not everywhere.
            Err(error) if *name == "boost" => {
                outcome
                    .note(format!("names.{name}: skipped, {}", error.to_string().lines().next().unwrap_or_default()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn compare(outcome: &mut Outcome, name: &str, program: &Path) -> Result<()> {
    let names = functions(&fs::read(program)?)?;
    let mut different = Vec::new();
    for (linkage, expected) in &names {
        let plain = demangle(linkage);
        let ours = path_of(&plain);
        let [crate_name, short] = [names::crate_of(&plain).unwrap_or_default().to_owned(), names::short(&plain)];
        // Of a method of a trait only its own name is comparable.
        let last = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
        let is_own = !ours.contains("::") || !expected.contains("::");
        let is_same = ours == *expected || is_own && last(expected) == last(&ours);
        if !is_same {
            different
                .push(format!("{plain}: {ours}, by debug information {expected} (short {short}, of {crate_name})"));
        }
    }
    let percent = 100.0 * different.len() as f64 / names.len().max(1) as f64;
    outcome.add(Figure::of(&format!("perf.names.{name}.functions"), "functions", &[names.len() as f64]));
    outcome.add(Figure::of(&format!("perf.names.{name}.different_percent"), "%", &[percent]));
    let holds = if percent <= DIFFERENT_PERCENT { "holds" } else { "DOES NOT HOLD" };
    outcome.note(format!("names.{name}: {holds}; {} of {} differ", different.len(), names.len()));
    different
        .iter()
        .take(SHOWN)
        .for_each(|line| outcome.note(format!("  {}", line.chars().take(300).collect::<String>())));
    Ok(())
}

/// A demangled name without parameters and arguments of templates: scopes and name. Of a method of a trait for a type only
/// the method's name can be compared: debug information has it in a block without the type's name.
fn path_of(plain: &str) -> String {
    let bare = names::without_parameters(&names::without_generics(&names::without_trait(plain)));
    let is_of_trait = plain.starts_with('<') && plain.contains(" as ") || bare.contains("{impl");
    // `f::<u64>` has an empty part for its argument.
    let parts: Vec<&str> = bare.split("::").filter(|part| !part.is_empty()).collect();
    let bare = lambdas(&parts.join("::"));
    if is_of_trait { bare.rsplit("::").next().unwrap_or_default().to_owned() } else { bare }
}

/// Compilers number lambdas and closures each in their own way.
fn lambdas(path: &str) -> String {
    let part = |part: &str| match part {
        part if part.starts_with("{lambda") || part.starts_with("<lambda") => "{lambda}".to_owned(),
        part if part.starts_with("{closure") || part.starts_with("{{closure") => "{closure}".to_owned(),
        part => part.to_owned(),
    };
    // GCC marks what returns a text of the new kind.
    path.replace("[abi:cxx11]", "").split("::").map(part).collect::<Vec<_>>().join("::")
}

/// What debug information has of an entry.
#[derive(Default)]
struct Entry {
    parent: Option<usize>,
    origin: Option<usize>,
    name: Option<String>,
    linkage: Option<String>,
    has_code: bool,
    is_scope: bool,
    is_function: bool,
}

/// The functions with code of a program: linker's name, and scopes and name by debug information.
fn functions(bytes: &[u8]) -> Result<BTreeMap<String, String>> {
    let file = object::File::parse(bytes)?;
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|section| section.uncompressed_data().ok());
        Ok(Reader::new(data.unwrap_or_default().into_owned().into(), gimli::LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load)?;
    let mut found = BTreeMap::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries: HashMap<usize, Entry> = HashMap::new();
        let mut open: Vec<(isize, usize)> = Vec::new();
        let mut cursor = unit.entries();
        while let Some(entry) = cursor.next_dfs()? {
            let (offset, depth) = (entry.offset().0, entry.depth());
            while open.last().is_some_and(|(of, _)| *of >= depth) {
                open.pop();
            }
            let text = |attribute| -> Option<String> {
                let value = entry.attr_value(attribute)?;
                Some(dwarf.attr_string(&unit, value).ok()?.to_string_lossy().ok()?.into_owned())
            };
            let reference = |attribute| match entry.attr_value(attribute)? {
                gimli::AttributeValue::UnitRef(offset) => Some(offset.0),
                _ => None,
            };
            let tag = entry.tag();
            let is_function = tag == gimli::DW_TAG_subprogram;
            entries.insert(
                offset,
                Entry {
                    parent: open.last().map(|(_, offset)| *offset),
                    origin: reference(gimli::DW_AT_specification).or_else(|| reference(gimli::DW_AT_abstract_origin)),
                    name: text(gimli::DW_AT_name),
                    linkage: text(gimli::DW_AT_linkage_name),
                    has_code: entry.attr_value(gimli::DW_AT_low_pc).is_some(),
                    is_scope: is_function
                        || [
                            gimli::DW_TAG_namespace,
                            gimli::DW_TAG_class_type,
                            gimli::DW_TAG_structure_type,
                            gimli::DW_TAG_union_type,
                            gimli::DW_TAG_enumeration_type,
                        ]
                        .contains(&tag),
                    is_function,
                },
            );
            open.push((depth, offset));
        }
        for entry in entries.values().filter(|entry| entry.is_function && entry.has_code) {
            let linkage = chain(&entries, entry).find_map(|entry| entry.linkage.clone());
            if let Some(linkage) = linkage {
                found.insert(linkage, scopes(&entries, entry).context("a function without a name")?);
            }
        }
    }
    Ok(found)
}

/// An entry, and those that it refers to for what it does not have itself.
fn chain<'a>(entries: &'a HashMap<usize, Entry>, entry: &'a Entry) -> impl Iterator<Item = &'a Entry> {
    std::iter::successors(Some(entry), |entry| entries.get(&entry.origin?)).take(8)
}

fn scopes(entries: &HashMap<usize, Entry>, entry: &Entry) -> Option<String> {
    let mut parts = Vec::new();
    let mut next = Some(entry);
    while let Some(entry) = next.filter(|_| parts.len() < 64) {
        let declared = chain(entries, entry).last()?;
        if entry.is_scope {
            let name = chain(entries, entry).find_map(|entry| entry.name.clone());
            parts.push(match name {
                Some(name) if name.starts_with("operator") => names::without_generics(&name),
                Some(name) if name.starts_with("<lambda") => name,
                Some(name) if name.starts_with('{') => name.split_inclusive('}').next().unwrap_or_default().to_owned(),
                Some(name) => name.split('<').next().unwrap_or_default().to_owned(),
                None => "(anonymous namespace)".to_owned(),
            });
        }
        next = declared.parent.and_then(|parent| entries.get(&parent));
    }
    parts.reverse();
    let path = lambdas(&parts.join("::"));
    Some(if path.contains("{impl") { lambdas(parts.last()?) } else { path })
}
