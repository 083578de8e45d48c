//! Call frame information: the unwind tables of an ELF file (`.eh_frame`, `.debug_frame`; DWARF 5, section 6.4),
//! indexed, and the rules in them.

mod holes;
pub(crate) mod registers;
pub(crate) mod rule;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gimli::UnwindSection;
use object::{Object, ObjectSection, SectionKind};

use crate::arch::Architecture;
use crate::budget::Account;
use crate::elf::{Elf, ImageError, Parts, architecture, section_bytes};
use crate::metered::Metered;

/// What is kept of a function with an entry in an unwind table, in bytes.
const FUNCTION_BYTES: usize = size_of::<Entry>();
/// The longest entry of an unwind table, in bytes: it is evaluated for frames of samples.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// The entry of a function: where its code is, and where the entry is in its section.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u64,
    bytes: u32,
    offset: u32,
}

impl Entry {
    fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|offset| offset < u64::from(self.bytes))
    }
}

/// The unwind tables of a file, as it has them, at the addresses that it was linked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames {
    /// Distinguishes them from those of other files, for as long as the program runs.
    id: u32,
    eh_frame: Option<Arc<[u8]>>,
    debug_frame: Option<Arc<[u8]>>,
    bases: gimli::BaseAddresses,
    architecture: Architecture,
    /// The entries of `eh_frame`, sorted by their starts.
    of_eh: Arc<[Entry]>,
    /// The same of `debug_frame`: a linker mixes objects that have the one with such that have the other.
    of_debug: Arc<[Entry]>,
}

type Plain<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;
type Reader<'a> = Metered<Plain<'a>>;

/// A section of a table, and the place of an entry in it.
enum Found<'a> {
    Eh(gimli::EhFrame<Plain<'a>>, gimli::EhFrameOffset),
    Debug(gimli::DebugFrame<Plain<'a>>, gimli::DebugFrameOffset),
}

impl Frames {
    /// Reads them. Fails if they are too much, or if nothing may be unwound by them.
    pub(crate) fn read(parts: &Parts<'_>, file: &Elf<'_>, account: &Account) -> Result<Frames, ImageError> {
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let eh_frame = section_bytes(parts, file, ".eh_frame").filter(|data| !data.is_empty());
        let debug_frame = section_bytes(parts, file, ".debug_frame").filter(|data| !data.is_empty());
        let text = file.sections().find(|section| section.kind() == SectionKind::Text).map_or(0, |s| s.address());
        let bases = gimli::BaseAddresses::default()
            .set_eh_frame(address(".eh_frame"))
            .set_text(text)
            .set_got(address(".got"))
            .set_eh_frame_hdr(address(".eh_frame_hdr"));
        let reader = |data| Metered::new(gimli::EndianSlice::new(data, gimli::LittleEndian), account.clone());
        let (mut of_eh, mut of_debug) = (Vec::new(), Vec::new());
        let mut around_holes = None;
        match &eh_frame {
            Some(data) => of_eh = entries_of(&gimli::EhFrame::from(reader(data)), &bases)?,
            None => around_holes = holes::read(parts, file),
        }
        if let Some(found) = &around_holes {
            of_eh = found.entries(&gimli::EhFrame::from(reader(&found.table.bytes)), &bases)?;
        }
        if let Some(data) = &debug_frame {
            let mut section = gimli::DebugFrame::from(reader(data));
            section.set_address_size(8);
            of_debug = entries_of(&section, &bases)?;
        }
        let bytes = (of_eh.len() + of_debug.len()) * FUNCTION_BYTES;
        account.hold(bytes as u64).and_then(|()| account.over().map_or(Ok(()), Err)).map_err(ImageError::TooMuch)?;
        let eh_frame = eh_frame.or(around_holes.map(|found| found.table.bytes));
        static IDS: AtomicU32 = AtomicU32::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let architecture = architecture(file);
        Ok(Frames { id, eh_frame, debug_frame, bases, architecture, of_eh: of_eh.into(), of_debug: of_debug.into() })
    }

    /// The function that a linked address is in: its start and its length in bytes.
    pub(crate) fn function(&self, address: u64) -> Option<(u64, u32)> {
        find(&self.of_eh, address).or_else(|| find(&self.of_debug, address)).map(|entry| (entry.start, entry.bytes))
    }

    /// Whether there is no entry at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.of_eh.is_empty() && self.of_debug.is_empty()
    }

    /// Whether `.eh_frame` has an entry for a linked address.
    pub(crate) fn has_eh(&self, address: u64) -> bool {
        find(&self.of_eh, address).is_some()
    }

    /// Whether `.debug_frame` has an entry for a linked address.
    pub(crate) fn has_debug(&self, address: u64) -> bool {
        find(&self.of_debug, address).is_some()
    }

    fn found(&self, address: u64) -> Option<Found<'_>> {
        if let (Some(entry), Some(section)) = (find(&self.of_eh, address), self.eh_section()) {
            return Some(Found::Eh(section, gimli::EhFrameOffset(entry.offset as usize)));
        }
        let (entry, section) = (find(&self.of_debug, address)?, self.debug_section()?);
        Some(Found::Debug(section, gimli::DebugFrameOffset(entry.offset as usize)))
    }

    /// Whose instructions the entries may have.
    fn vendor(&self) -> gimli::Vendor {
        match self.architecture {
            Architecture::X86_64 => gimli::Vendor::Default,
            Architecture::Aarch64 => gimli::Vendor::AArch64,
        }
    }

    fn eh_section(&self) -> Option<gimli::EhFrame<Plain<'_>>> {
        let data = gimli::EndianSlice::new(self.eh_frame.as_deref()?, gimli::LittleEndian);
        let mut section = gimli::EhFrame::from(data);
        section.set_vendor(self.vendor());
        Some(section)
    }

    fn debug_section(&self) -> Option<gimli::DebugFrame<Plain<'_>>> {
        let data = gimli::EndianSlice::new(self.debug_frame.as_deref()?, gimli::LittleEndian);
        let mut section = gimli::DebugFrame::from(data);
        section.set_address_size(8);
        section.set_vendor(self.vendor());
        Some(section)
    }
}

fn find(sorted: &[Entry], address: u64) -> Option<&Entry> {
    let after = sorted.partition_point(|entry| entry.start <= address);
    sorted[..after].last().filter(|entry| entry.contains(address))
}

/// The entry that most others share, the last that was needed.
type Common<'a> = Option<gimli::CommonInformationEntry<Reader<'a>>>;

/// An entry; `None` if it cannot be read, or is for no code. Fails if it takes long to evaluate.
fn parsed<'a, S>(
    section: &S,
    bases: &gimli::BaseAddresses,
    partial: gimli::PartialFrameDescriptionEntry<'_, S, Reader<'a>>,
    common: &mut Common<'a>,
) -> Result<Option<Entry>, ImageError>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let parsed = partial.parse(|_, _, offset| match &*common {
        Some(common) if common.offset() == gimli::UnwindOffset::into(offset) => Ok(common.clone()),
        _ => {
            let read = section.cie_from_offset(bases, offset)?;
            if read.entry_len() > ENTRY_BYTES_MAX {
                return Err(gimli::Error::TooManyIterations);
            }
            Ok(common.insert(read).clone())
        }
    });
    let entry = match parsed {
        Ok(entry) if entry.entry_len() <= ENTRY_BYTES_MAX => entry,
        Ok(_) | Err(gimli::Error::TooManyIterations) => {
            return Err(ImageError::Damaged("its unwind tables have an entry that takes long to evaluate".to_owned()));
        }
        Err(_) => return Ok(None),
    };
    let (Ok(offset), true) = (u32::try_from(entry.offset()), entry.len() > 0) else { return Ok(None) };
    let bytes = u32::try_from(entry.len()).unwrap_or(u32::MAX);
    Ok(Some(Entry { start: entry.initial_address(), bytes, offset }))
}

/// A table's entries, sorted, up to the first that cannot be read.
fn entries_of<'a, S>(section: &S, bases: &gimli::BaseAddresses) -> Result<Vec<Entry>, ImageError>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let (mut found, mut common) = (Vec::new(), None);
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        found.extend(parsed(section, bases, partial, &mut common)?);
    }
    Ok(sorted(found))
}

/// Of entries that start at the same address, the longest.
fn sorted(mut found: Vec<Entry>) -> Vec<Entry> {
    found.sort_by_key(|entry| (entry.start, std::cmp::Reverse(entry.bytes)));
    found.dedup_by_key(|entry| entry.start);
    found
}
