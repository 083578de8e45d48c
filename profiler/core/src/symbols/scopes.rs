//! Names of C++ functions with the namespaces, classes and functions that they are in. A function that no other file can call has no
//! linkage name in debug information, and its own name is the last part alone. What it is in are the parents of its declaration
//! in the tree of entries (DWARF 5, 2.3, 3.3.8.1 and 7.5.2), which is at hand from the root down only: so the scopes of a unit are found
//! once, when the first name of it is needed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use gimli::Reader as _;

use super::{Dwarf, Reader, is_mangled};
use crate::budget::Account;

/// How deep scopes may be nested, and how often an entry may refer to another that has its name.
const DEPTH_MAX: usize = 16;
/// The longest name, in bytes; longer ones stay without scopes.
const NAME_BYTES_MAX: usize = 16 << 10;
/// What stands for scopes without a name, as demanglers write it.
const ANONYMOUS_NAMESPACE: &str = "(anonymous namespace)";
const ANONYMOUS_CLASS: &str = "(anonymous class";
/// The function of a lambda, which is in a class without a name, and what such a class is called.
const CALL: &str = "operator()";
const LAMBDA: &str = "{lambda";

/// An entry that gives a scope to the entries below it.
struct Scope {
    /// Where the entry is in its unit, and where the first is that is not below it.
    start: usize,
    end: usize,
    /// The scope that it is in, by its index.
    parent: Option<usize>,
}

/// The scopes of a unit in the order of their entries.
struct ScopesOf(Vec<Scope>);

impl ScopesOf {
    /// The innermost scope of an entry, by where it is.
    fn around(&self, entry: usize) -> Option<&Scope> {
        let ScopesOf(scopes) = self;
        let after = scopes.partition_point(|scope| scope.start < entry);
        let mut scope = &scopes[after.checked_sub(1)?];
        // The last that starts before it may have ended, and then it is in a scope around that one.
        while scope.end <= entry {
            scope = &scopes[scope.parent?];
        }
        Some(scope)
    }
}

/// A unit, and its scopes once they were needed; `None` if it is not of C++, or damaged.
struct Scoped {
    unit: gimli::Unit<Reader>,
    scopes: OnceLock<Option<ScopesOf>>,
}

/// A unit that was read; `None` if it is damaged.
type Known = Option<Arc<Scoped>>;

/// An entry of debug information: the debug information by its address in memory, the start of the unit, and where it is in that.
type Place = (usize, usize, usize);

/// The scopes of the units that were needed so far, and the names of the functions. What refers to debug information is valid for the
/// one context that they are used with.
#[derive(Default)]
pub(super) struct Scopes {
    units: RefCell<HashMap<(usize, usize), Known>>,
    /// Where the units of debug information start.
    starts: RefCell<HashMap<usize, Arc<[usize]>>>,
    names: RefCell<HashMap<Place, Option<Arc<str>>>>,
}

/// What an entry has, or the entries that it refers to.
struct Entry<'a> {
    place: Place,
    /// The debug information that it is in.
    from: Names<'a>,
    unit: Arc<Scoped>,
    tag: gimli::DwTag,
    name: Option<String>,
    linkage_name: Option<String>,
    line: Option<u64>,
}

impl Scopes {
    /// The name of the function at an entry of a unit, with all that it is in. `None` if the unit is not of C++, or damaged.
    pub(super) fn name(
        &self,
        account: &Account,
        unit: gimli::UnitRef<'_, Reader>,
        function: gimli::UnitOffset,
        demangle: &dyn Fn(&str) -> String,
    ) -> Option<Arc<str>> {
        let start = unit.header.debug_info_offset()?.0;
        self.full_name(&Names { account, dwarf: unit.dwarf, demangle }, start, function.0, DEPTH_MAX)
    }

    /// The line at which the function at an entry of a unit starts, from 1 on.
    pub(super) fn start_line(
        &self,
        account: &Account,
        unit: gimli::UnitRef<'_, Reader>,
        function: gimli::UnitOffset,
    ) -> Option<u32> {
        let start = unit.header.debug_info_offset()?.0;
        let from = Names { account, dwarf: unit.dwarf, demangle: &str::to_owned };
        let line = self.entry(&from, start, function.0)?.line?;
        u32::try_from(line).ok().filter(|line| *line > 0)
    }

    fn full_name(&self, from: &Names<'_>, start: usize, entry: usize, depth: usize) -> Option<Arc<str>> {
        let place = (from.address(), start, entry);
        if let Some(known) = self.names.borrow().get(&place) {
            return known.clone();
        }
        let name = self.made_name(from, start, entry, depth);
        // What is too deep from one entry need not be from another.
        if name.is_some() || depth == DEPTH_MAX {
            let bytes = size_of::<(Place, Option<Arc<str>>)>() + name.as_ref().map_or(0, |name| name.len());
            from.account.hold(bytes as u64).ok()?;
            self.names.borrow_mut().insert(place, name.clone());
        }
        name
    }

    fn made_name(&self, from: &Names<'_>, start: usize, entry: usize, depth: usize) -> Option<Arc<str>> {
        let depth = depth.checked_sub(1)?;
        let entry = self.entry(from, start, entry)?;
        let from = &entry.from;
        let scopes = entry.unit.scopes.get_or_init(|| from.scopes(&entry.unit.unit)).as_ref()?;
        if let Some(linkage_name) = entry.linkage_name.filter(|name| is_mangled(name)) {
            let plain = (from.demangle)(&linkage_name);
            // One that cannot be read is made of scopes, too.
            if plain != linkage_name {
                return Some(Arc::from(plain));
            }
        }
        let own = match (entry.name, entry.tag) {
            (Some(name), _) => name,
            (None, gimli::DW_TAG_namespace) => ANONYMOUS_NAMESPACE.to_owned(),
            (None, gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine) => return None,
            // Its line distinguishes it from others in the same scope.
            (None, _) => entry
                .line
                .map_or_else(|| format!("{ANONYMOUS_CLASS})"), |line| format!("{ANONYMOUS_CLASS} at line {line})")),
        };
        let (_, start, at) = entry.place;
        let Some(scope) = scopes.around(at) else { return Some(Arc::from(own)) };
        let scope = self.full_name(from, start, scope.start, depth)?;
        let lambda = scope.rsplit_once(ANONYMOUS_CLASS).filter(|_| own == CALL);
        let lambda = lambda.and_then(|(around, line)| Some((around, line.strip_suffix(')')?)));
        let name = match lambda {
            Some((around, line)) => format!("{around}{LAMBDA}{line}}}::{own}"),
            None => format!("{scope}::{own}"),
        };
        Some(Arc::from(name)).filter(|name: &Arc<str>| name.len() <= NAME_BYTES_MAX)
    }

    /// The entry whose parents are the scopes of an entry, with the names on the way to it.
    fn entry<'a>(&self, from: &Names<'a>, mut start: usize, mut at: usize) -> Option<Entry<'a>> {
        let mut from = *from;
        let (mut name, mut linkage_name, mut line) = (None, None, None);
        for _ in 0..DEPTH_MAX {
            let unit = self.unit(&from, start)?;
            let unit_ref = gimli::UnitRef::new(from.dwarf, &unit.unit);
            let mut entries = unit_ref.entries_raw(Some(gimli::UnitOffset(at))).ok()?;
            let abbreviation = entries.read_abbreviation().ok()??;
            let tag = abbreviation.tag();
            let mut next = None;
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification).ok()?;
                let text = || Some(unit_ref.attr_string(attribute.value()).ok()?.to_string_lossy().ok()?.into_owned());
                match attribute.name() {
                    gimli::DW_AT_name if name.is_none() => name = text(),
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name if linkage_name.is_none() => {
                        linkage_name = text();
                    }
                    gimli::DW_AT_decl_line if line.is_none() => line = attribute.udata_value(),
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification | gimli::DW_AT_extension => {
                        next = Some(attribute.value());
                    }
                    _ => {}
                }
            }
            (start, at) = match next {
                None => {
                    let place = (from.address(), start, at);
                    return Some(Entry { place, from, tag, name, linkage_name, line, unit });
                }
                Some(gimli::AttributeValue::UnitRef(offset)) => (start, offset.0),
                Some(gimli::AttributeValue::DebugInfoRef(offset)) => self.in_unit(&from, offset.0)?,
                // In the part that several programs share.
                Some(gimli::AttributeValue::DebugInfoRefSup(offset)) => {
                    from = Names { dwarf: from.dwarf.sup()?, ..from };
                    self.in_unit(&from, offset.0)?
                }
                // In a unit of types.
                Some(_) => return None,
            };
        }
        None
    }

    /// The start of the unit with a place in debug information, and where in it that place is.
    fn in_unit(&self, from: &Names<'_>, at: usize) -> Option<(usize, usize)> {
        let known = self.starts.borrow().get(&from.address()).cloned();
        let starts = match known {
            Some(starts) => starts,
            None => {
                let (mut starts, mut units) = (Vec::new(), from.dwarf.units());
                while let Ok(Some(header)) = units.next() {
                    starts.push(header.debug_info_offset()?.0);
                }
                from.account.hold(size_of_val(&starts[..]) as u64).ok()?;
                let starts: Arc<[usize]> = Arc::from(starts);
                self.starts.borrow_mut().insert(from.address(), starts.clone());
                starts
            }
        };
        let start = *starts[..starts.partition_point(|start| *start <= at)].last()?;
        Some((start, at - start))
    }

    /// The unit that starts at a place; `None` if it is damaged.
    fn unit(&self, from: &Names<'_>, start: usize) -> Option<Arc<Scoped>> {
        let key = (from.address(), start);
        if let Some(known) = self.units.borrow().get(&key) {
            return known.clone();
        }
        let unit = from.read(start).map(Arc::new);
        self.units.borrow_mut().insert(key, unit.clone());
        unit
    }
}

/// Where names come from.
#[derive(Clone, Copy)]
struct Names<'a> {
    account: &'a Account,
    dwarf: &'a Dwarf,
    demangle: &'a dyn Fn(&str) -> String,
}

impl Names<'_> {
    /// What distinguishes this debug information from that in other files.
    fn address(&self) -> usize {
        std::ptr::from_ref(self.dwarf).addr()
    }

    /// The unit that starts at a place.
    fn read(&self, start: usize) -> Option<Scoped> {
        let header = self.dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(start)).ok()?;
        Some(Scoped { unit: self.dwarf.unit(header).ok()?, scopes: OnceLock::new() })
    }

    /// The scopes of a unit; `None` if it is not of C++, or damaged.
    fn scopes(&self, unit: &gimli::Unit<Reader>) -> Option<ScopesOf> {
        let unit_ref = gimli::UnitRef::new(self.dwarf, unit);
        let mut entries = unit_ref.entries_raw(None).ok()?;
        let mut scopes: Vec<Scope> = Vec::new();
        // The scopes that have not ended, each with the depth of its entry.
        let mut open: Vec<(isize, usize)> = Vec::new();
        let mut is_root = true;
        while !entries.is_empty() {
            let (at, depth) = (entries.next_offset().0, entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation().ok()? else { continue };
            while let Some((_, scope)) = open.pop_if(|(of_scope, _)| *of_scope >= depth) {
                scopes[scope].end = at;
            }
            if is_root {
                let mut language = None;
                for specification in abbreviation.attributes() {
                    let attribute = entries.read_attribute(*specification).ok()?;
                    if let (gimli::DW_AT_language, gimli::AttributeValue::Language(found)) =
                        (attribute.name(), attribute.value())
                    {
                        language = Some(found);
                    }
                }
                // Units that several share may have none.
                if language.is_some_and(|language| !is_cpp(language)) {
                    return None;
                }
                is_root = false;
                continue;
            }
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            if abbreviation.has_children() && is_scope(abbreviation.tag()) {
                self.account.hold(size_of::<Scope>() as u64).ok()?;
                let parent = open.last().map(|(_, scope)| *scope);
                open.push((depth, scopes.len()));
                scopes.push(Scope { start: at, end: usize::MAX, parent });
            }
        }
        Some(ScopesOf(scopes))
    }
}

fn is_cpp(language: gimli::DwLang) -> bool {
    matches!(
        language,
        gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
            | gimli::DW_LANG_ObjC_plus_plus
    )
}

/// Whether the names of entries below one of this kind are parts of it. Blocks within functions are not.
fn is_scope(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_subprogram
    )
}
