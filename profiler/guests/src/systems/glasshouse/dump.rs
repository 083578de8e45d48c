//! The trace in a file: a dump of a VM, the core of a process, or a copy of memory.
//!
//! The kind of a file follows from its content. The image's symbol gives the address of the control pages; without it, their
//! first word is searched for at the start of every page.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glass_formats::trace::{CONTROL_BYTES, CONTROL_MAGIC};
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::{ClockPoint, Piece};
use object::elf::{ET_CORE, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

use super::find::{control_address, open_program};
use super::memory::TraceMemory;
use super::pages::{NoPage, Page};
use super::reader::{ReadCounts, Start, TraceReader};
use crate::error::GuestError;
use crate::sys::monotonic_ns;
use crate::{Counts, Flow, Source};

/// The most segments of a core.
const SEGMENTS_MAX: usize = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// The most pages that are searched for control pages: 64 GiB of them.
const PAGES_MAX: u64 = 16 << 20;
/// Rounds of reading; each takes a bounded number of events of each ring.
const ROUNDS_MAX: u32 = 4096;

/// A piece of memory in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    address: u64,
    bytes: u64,
    offset: u64,
}

/// Memory in a file.
struct FileOfMemory {
    file: File,
    /// By address.
    pieces: Vec<Segment>,
    /// Address of the control pages.
    control: u64,
    /// The file is that of a process's trace: the area follows the control pages.
    area_follows: bool,
}

impl FileOfMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        read_pieces(&self.file, &self.pieces, address, into)
    }
}

/// Reads across adjacent pieces.
fn read_pieces(file: &File, pieces: &[Segment], mut address: u64, mut into: &mut [u8]) -> bool {
    while !into.is_empty() {
        let before = pieces.partition_point(|piece| piece.address <= address);
        let Some(piece) = before.checked_sub(1).map(|index| pieces[index]) else { return false };
        let inside = address - piece.address;
        let count = piece.bytes.saturating_sub(inside).min(into.len() as u64) as usize;
        if count == 0 {
            return false;
        }
        let (now, rest) = into.split_at_mut(count);
        let Some(offset) = piece.offset.checked_add(inside) else { return false };
        if file.read_exact_at(now, offset).is_err() {
            return false;
        }
        let Some(next) = address.checked_add(count as u64) else { return rest.is_empty() };
        address = next;
        into = rest;
    }
    true
}

impl TraceMemory for FileOfMemory {
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
        self.control.checked_add(offset as u64).is_some_and(|address| self.read(address, into))
    }

    fn write_control(&self, _offset: usize, _value: u64) -> io::Result<()> {
        Err(io::Error::other("a file is not written to"))
    }

    fn read_area(&self, area_address: u64, address: u64, into: &mut [u8]) -> bool {
        if !self.area_follows {
            return self.read(address, into);
        }
        let inside = address.checked_sub(area_address).and_then(|inside| inside.checked_add(CONTROL_BYTES as u64));
        inside.and_then(|inside| self.control.checked_add(inside)).is_some_and(|address| self.read(address, into))
    }
}

/// The pieces of an ELF core by virtual and by physical address; `None` if it is not one.
fn segments(file: &File, file_bytes: u64) -> io::Result<Option<[Vec<Segment>; 2]>> {
    let cache = ReadCache::new(file.try_clone()?);
    let Ok(header) = FileHeader64::<Endianness>::parse(&cache) else { return Ok(None) };
    let Ok(endian) = header.endian() else { return Ok(None) };
    if header.e_type(endian) != ET_CORE {
        return Ok(None);
    }
    let Ok(headers) = header.program_headers(endian, &cache) else { return Ok(None) };
    let mut spaces = [Vec::new(), Vec::new()];
    for segment in headers.iter().take(SEGMENTS_MAX).filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let (offset, bytes) = segment.file_range(endian);
        let bytes = bytes.min(file_bytes.saturating_sub(offset));
        let addresses = [segment.p_vaddr(endian), segment.p_paddr(endian)];
        for (space, address) in spaces.iter_mut().zip(addresses) {
            if bytes > 0 {
                space.push(Segment { address, bytes, offset });
            }
        }
    }
    for space in &mut spaces {
        space.sort_unstable_by_key(|piece| (piece.address, std::cmp::Reverse(piece.bytes)));
        space.dedup_by_key(|piece| piece.address);
    }
    Ok(Some(spaces))
}

/// A trace in a file.
pub struct DumpedTrace {
    path: PathBuf,
    reader: TraceReader<FileOfMemory>,
    is_delivered: bool,
}

/// Opens the trace in a file. `program` is the guest's program, whose symbol gives the address in a VM's memory. `before_parsing` is
/// called when both files are open, by a process that enters a jail then.
pub fn open_dump(
    path: &Path,
    program: Option<&Path>,
    before_parsing: impl FnOnce(),
) -> Result<DumpedTrace, GuestError> {
    let failed = |error| GuestError::File { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let program = program.map(|path| Ok((path, open_program(path)?))).transpose()?;
    before_parsing();
    let known = program.map(|(path, file)| control_address(path, &file)).transpose()?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a file")));
    }
    let whole = Segment { address: 0, bytes: metadata.len(), offset: 0 };
    let spaces = segments(&file, metadata.len()).map_err(failed)?;
    let is_core = spaces.is_some();
    let spaces = spaces.unwrap_or([vec![whole], Vec::new()]);
    let mut too_new = None;
    // In the core of a process physical addresses are all 0, so that its virtual ones come first.
    for pieces in spaces {
        let found = known.into_iter().chain(candidates(&file, &pieces)).take(64).find_map(|control| {
            let memory =
                FileOfMemory { file: file.try_clone().ok()?, pieces: pieces.clone(), control, area_follows: false };
            let page = match Page::read(&memory) {
                Ok(page) => page,
                Err(no) => {
                    too_new = if matches!(no, NoPage::TooNew(_)) { Some(no) } else { too_new };
                    return None;
                }
            };
            let rings = || page.rings.iter().filter(|ring| ring.capacity > 0 && page.problem(ring).is_none());
            let has_rings = |memory: &FileOfMemory| {
                rings().any(|ring| memory.read_area(page.area_address, ring.address, &mut [0; 32]))
            };
            if has_rings(&memory) || rings().next().is_none() {
                return Some(memory);
            }
            // A copy of the memory file of a process.
            let memory = FileOfMemory { area_follows: true, ..memory };
            (!is_core && has_rings(&memory)).then_some(memory)
        });
        if let Some(memory) = found {
            let reader = TraceReader::new(memory, Start::Oldest).map_err(|no| no.about(&path.display().to_string()))?;
            return Ok(DumpedTrace { path: path.to_owned(), reader, is_delivered: false });
        }
    }
    match too_new {
        Some(no) => Err(no.about(&path.display().to_string())),
        None => Err(GuestError::Dump {
            path: path.to_owned(),
            what: "holds no trace of a service of Glasshouse: give a dump of its VM (`dump-guest-memory` in QEMU's monitor), the core of its process, or a copy of its memory, and check that it is whole".to_owned(),
        }),
    }
}

/// Pages that start like control pages.
fn candidates<'a>(file: &'a File, pieces: &'a [Segment]) -> impl Iterator<Item = u64> + 'a {
    let pages = pieces.iter().flat_map(|piece| {
        // An object that starts in the last page of the address space is not whole.
        let first = piece.address.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let end = piece.address.saturating_add(piece.bytes);
        (first..end).step_by(PAGE_BYTES as usize)
    });
    pages.take(PAGES_MAX as usize).filter(|address| {
        let mut magic = [0; 8];
        read_pieces(file, pieces, *address, &mut magic) && u64::from_le_bytes(magic) == CONTROL_MAGIC
    })
}

impl DumpedTrace {
    /// The result.
    pub fn read_counts(&self) -> ReadCounts {
        self.reader.counts()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Source for DumpedTrace {
    fn announce(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        Ok(())
    }

    fn collect(&mut self, _wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        if std::mem::replace(&mut self.is_delivered, true) {
            return Ok(Flow::Ended);
        }
        let mut newest = None;
        for _ in 0..ROUNDS_MAX {
            let drained = self.reader.drain(sink);
            newest = newest.max(drained.newest_ticks);
            if !drained.is_more {
                break;
            }
        }
        let lost = self.reader.counts().lost;
        if lost > 0 {
            sink(Event::Warning(format!("{lost} events of the service's rings are not in the file: it is cut off")));
        }
        // The time of the dump is unknown; the newest event is placed at the present.
        let ticks_per_second = self.reader.page().map_or(0, |page| page.ticks_per_second);
        if let Some(ticks) = newest {
            let point = ClockPoint { ticks, time_ns: monotonic_ns(), ticks_per_second, error_ns: u64::MAX };
            sink(Event::Trace(Piece::Clock(point)));
        }
        Ok(Flow::Ended)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn detach(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        Ok(())
    }
}
