//! Debug information that a compiler wrote beside its object files (`-gsplit-dwarf`): `.dwo` files, and the package into which a linker
//! of them puts all of a program (`PROGRAM.dwp`). A unit in the program is a skeleton then, with the path and the id of its other half
//! (DWARF 5, 3.1.2, 3.1.3 and 7.3; DWARF 4 with the attributes `DW_AT_GNU_dwo_name` and `DW_AT_GNU_dwo_id`).

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{Reader as _, Section as _};

use super::{Dwarf, Reader, check_abbreviations};
use crate::budget::{Account, Over};
use crate::elf::{Elf, Parts, ReadAt, parse_elf, section_bytes, sections_bytes};
use crate::metered::Metered;

/// The sections with names, and the index of a package. Locations of variables are not needed.
const SECTIONS: [gimli::SectionId; 7] = [
    gimli::SectionId::DebugAbbrev,
    gimli::SectionId::DebugCuIndex,
    gimli::SectionId::DebugInfo,
    gimli::SectionId::DebugLine,
    gimli::SectionId::DebugRngLists,
    gimli::SectionId::DebugStr,
    gimli::SectionId::DebugStrOffsets,
];
/// The longest path of a file, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Opens the file at a path: as the process sees it that runs the program, or as we do.
pub(crate) type Opener = dyn Fn(&str) -> Option<Box<dyn ReadAt>> + Send;

/// Where the other halves of the units of a program are.
pub(super) struct Split {
    open: Box<Opener>,
    /// The file with the skeletons, and others whose folder and package count.
    programs: Vec<String>,
    account: Account,
    packages: OnceCell<Vec<Package>>,
    left_out: RefCell<LeftOut>,
}

/// The halves that were needed and are not there.
#[derive(Default)]
struct LeftOut {
    /// The path of the first, and what is wrong with it.
    first: Option<(String, String)>,
    count: usize,
}

impl Split {
    pub(super) fn new(programs: Vec<String>, open: Box<Opener>, account: Account) -> Split {
        Split { open, programs, account, packages: OnceCell::new(), left_out: RefCell::default() }
    }

    /// The other half of a unit; `None` if it is nowhere.
    pub(super) fn load(&self, wanted: &SplitDwarfLoad<Reader>) -> Option<Arc<Dwarf>> {
        let packages =
            self.packages.get_or_init(|| self.programs.iter().filter_map(|path| self.package(path)).collect());
        if let Some(packed) = packages.iter().find_map(|package| package.unit(wanted)) {
            return Some(Arc::new(packed));
        }
        let candidates = self.candidates(wanted);
        let mut wrong = None;
        for path in &candidates {
            let Some(file) = (self.open)(path) else { continue };
            let why = match self.unit(&*file, wanted) {
                Ok(Some(dwarf)) => return Some(Arc::new(dwarf)),
                Ok(None) => "is of another build".to_owned(),
                Err(over) => format!("is left out ({over})"),
            };
            wrong.get_or_insert_with(|| (path.clone(), why));
        }
        let mut left_out = self.left_out.borrow_mut();
        left_out.count += 1;
        left_out.first.get_or_insert_with(|| {
            let first = candidates.into_iter().next().unwrap_or_else(|| "a file without a name".to_owned());
            wrong.unwrap_or((first, "is missing".to_owned()))
        });
        None
    }

    /// What is left out of the file at a path because other halves of its units are, in one sentence.
    pub(super) fn left_out_of(&self, path: &str) -> Option<String> {
        let left_out = self.left_out.borrow();
        let (file, why) = left_out.first.as_ref()?;
        let others = match left_out.count - 1 {
            0 => String::new(),
            1 => ", as another of its files".to_owned(),
            more => format!(", as {more} others of its files"),
        };
        Some(format!(
            "inlined functions of {path} are left out, and names that are not in its symbol table: {file}, which has them, {why}{others}"
        ))
    }

    /// Where the other half of a unit may be: in the folder in which the compiler ran, or beside the program.
    fn candidates(&self, wanted: &SplitDwarfLoad<Reader>) -> Vec<String> {
        let text = |reader: &Option<Reader>| {
            let text = reader.as_ref()?.to_string().ok()?.into_owned();
            Some(text).filter(|text| !text.is_empty() && text.len() <= PATH_BYTES_MAX)
        };
        let Some(name) = text(&wanted.path) else { return Vec::new() };
        let mut found = Vec::new();
        match text(&wanted.comp_dir) {
            _ if name.starts_with('/') => found.push(name.clone()),
            Some(folder) if folder.starts_with('/') => found.push(format!("{}/{name}", folder.trim_end_matches('/'))),
            _ => {}
        }
        let last = name.rsplit('/').next().unwrap_or_default();
        for folder in self.programs.iter().filter_map(|path| path.rsplit_once('/')).map(|(folder, _)| folder) {
            found.extend(
                [name.as_str(), last]
                    .iter()
                    .filter(|name| !name.starts_with('/'))
                    .map(|name| format!("{folder}/{name}")),
            );
        }
        let mut seen = std::collections::HashSet::new();
        found.retain(|path| seen.insert(path.clone()));
        found
    }

    /// The package beside a program; `None` if there is none, or it is damaged.
    fn package(&self, program: &str) -> Option<Package> {
        let path = format!("{program}.dwp");
        let file = (self.open)(&path)?;
        let account = self.account.sibling();
        let found = account.timed(|| {
            let parts = Parts::of(&*file, &account);
            let file = parse_elf(&parts).ok()?;
            account.fits(bytes(&file)).ok()?;
            let section = |id| section(&parts, &file, id, &account);
            let index = gimli::DebugCuIndex::from(section(gimli::SectionId::DebugCuIndex)).index().ok()?;
            Some(Package { index, sections: SECTIONS.map(|id| (id, section(id))) })
        });
        found.filter(|_| account.over().is_none())
    }

    /// The unit in a `.dwo` file; `None` if the file is that of another.
    fn unit(&self, file: &dyn ReadAt, wanted: &SplitDwarfLoad<Reader>) -> Result<Option<Dwarf>, Over> {
        let account = self.account.sibling();
        let found = account.timed(|| {
            let parts = Parts::of(file, &account);
            let Ok(file) = parse_elf(&parts) else { return Ok(None) };
            account.fits(bytes(&file))?;
            Ok(of_id(|id| Some(section(&parts, &file, id, &account)), wanted))
        });
        account.over().map_or(found, Err)
    }
}

/// The units of a program, in one file.
struct Package {
    /// Which part of each section is that of a unit.
    index: gimli::UnitIndex<Reader>,
    sections: [(gimli::SectionId, Reader); SECTIONS.len()],
}

impl Package {
    fn unit(&self, wanted: &SplitDwarfLoad<Reader>) -> Option<Dwarf> {
        let parts: Vec<_> = self.index.sections(self.index.find(wanted.dwo_id.0)?).ok()?.collect();
        let section = |id: gimli::SectionId| {
            let mut section = self.sections.iter().find(|(known, _)| *known == id)?.1.clone();
            // Texts are those of all units.
            if id != gimli::SectionId::DebugStr {
                let part = parts.iter().find(|part| part.section.section_id() == id)?;
                section.skip(part.offset as usize).ok()?;
                section.truncate(part.size as usize).ok()?;
            }
            Some(section)
        };
        of_id(section, wanted)
    }
}

/// How many bytes the sections have that are read.
fn bytes(file: &Elf<'_>) -> u64 {
    sections_bytes(file, SECTIONS.iter().filter_map(|id| id.dwo_name()))
}

/// A section of one of these files. It is empty if there is none, or if it is not needed.
fn section(parts: &Parts<'_>, file: &Elf<'_>, id: gimli::SectionId, account: &Account) -> Reader {
    let name = id.dwo_name().filter(|_| SECTIONS.contains(&id));
    let data = name.and_then(|name| section_bytes(parts, file, name));
    Metered::new(
        gimli::EndianArcSlice::new(data.unwrap_or_else(|| Arc::from([])), gimli::LittleEndian),
        account.clone(),
    )
}

/// Debug information from the unit on that has the id of a skeleton; `None` if there is none. Units of types, which have no id, may be
/// in front of it.
fn of_id(section: impl Fn(gimli::SectionId) -> Option<Reader>, wanted: &SplitDwarfLoad<Reader>) -> Option<Dwarf> {
    let mut empty = wanted.parent.debug_info.reader().clone();
    empty.empty();
    let load = |id| Ok::<_, gimli::Error>(section(id).unwrap_or_else(|| empty.clone()));
    let mut dwarf: Dwarf = gimli::Dwarf::load(load).ok()?;
    dwarf.make_dwo(&wanted.parent);
    check_abbreviations(&dwarf).ok()?;
    let mut units = dwarf.units();
    let start = loop {
        let header = units.next().ok()??;
        let offset = header.debug_info_offset();
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(wanted.dwo_id)) {
            break offset?.0;
        }
    };
    let mut info = dwarf.debug_info.reader().clone();
    info.skip(start).ok()?;
    dwarf.debug_info = gimli::DebugInfo::from(info);
    Some(dwarf)
}
