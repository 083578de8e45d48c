//! The RAM of a VM, read while its VMM has it mapped: through our own mapping of the same file, by
//! reading that file, or from the VMM's memory.
//!
//! One sample's reads (5 page table entries of some 8 bytes, 2 KiB of stack) took 0.1, 1.6 and 4.7 us
//! in these ways (2026-11-21, AMD EPYC, medians). Since 2026-11-27 the entries of 8 pages are one read, and the pages of a stack are one in the last way.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::memory::read_in_turn;

use super::blocks::{self, Block};
use super::content::next_of_file;
use super::evidence::{self, InUse};
use super::layout::{self, FIRST_BLOCKS_MAX, Range, Shape};
use super::live::ProcessSpace;
use super::slots::{self, Slot};
use super::{AddressSpace, Physical};
use crate::proc::MapsLine;
use crate::sys::{Map, cannot_shrink, read_process_each};

/// So many bytes at once are read from a file also where it is mapped: a search through all RAM would map all of it, with page tables of 2 MiB for each GiB.
const READ_AS_FILE_BYTES: usize = 64 << 10;
/// The most bytes of a VMM's heap that are searched: QEMU's has some 15 MiB.
const HEAP_BYTES_MAX: u64 = 256 << 20;

/// From what it is known where a VM has its RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySource {
    /// The memory slots of KVM, if the kernel shows them; else the VMM's mappings.
    Slots,
    /// The VMM's mappings, and what they hold.
    Mappings,
}

/// The method of reading.
#[derive(Debug)]
enum Backing {
    /// Mapped here. Only a file that is sealed against shrinking: reading beyond the end of one that
    /// has shrunk would raise SIGBUS.
    Mapped(Arc<Map>, File),
    /// Read from a file at this offset.
    File(File, u64),
    /// Read from the VMM's memory.
    Process { space: ProcessSpace, host: u64 },
}

/// Where a piece is.
pub(super) enum Place<'a> {
    /// In a file, from this offset on.
    File(&'a File, u64),
    /// In the memory of a process, from this address on.
    Process(u32, u64),
}

/// A range of physical addresses and its offset in a backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    address: u64,
    bytes: u64,
    backing: usize,
    offset: u64,
}

impl From<&Range> for Piece {
    fn from(range: &Range) -> Piece {
        Piece { address: range.address, bytes: range.bytes, backing: range.block, offset: range.offset }
    }
}

/// The RAM of a VM; by default none.
#[derive(Debug, Default)]
pub struct Ram {
    backings: Vec<Arc<Backing>>,
    /// By address, none on another.
    pieces: Vec<Piece>,
    is_file: bool,
    is_whole: bool,
    /// What is known without the guest's help, and what may be: [`Ram::settle`] chooses.
    certain: (Vec<Piece>, bool),
    proposals: Vec<Vec<Piece>>,
}

impl Ram {
    /// The RAM of an x86-64 VM in a process, if it is a file that the VMM shares. `Ok(None)` if it has no such file.
    pub fn open(pid: u32) -> io::Result<Option<Ram>> {
        Ok(Ram::candidates(pid, Architecture::X86_64)?.into_iter().find(|ram| ram.is_file))
    }

    /// The candidates for the RAM of the VM in a process, which has a processor of this kind, the most probable first. Their contents decide.
    pub fn candidates(pid: u32, architecture: Architecture) -> io::Result<Vec<Ram>> {
        Ram::candidates_of(pid, architecture, MemorySource::Slots)
    }

    /// The same from one of the sources alone.
    pub fn candidates_of(pid: u32, architecture: Architecture, source: MemorySource) -> io::Result<Vec<Ram>> {
        let (lines, mut blocks) = blocks::of(pid)?;
        let vms = if source == MemorySource::Slots { slots::of(pid) } else { Vec::new() };
        if !vms.is_empty() {
            return vms.iter().map(|slots| Ram::of_slots(pid, slots, &blocks)).collect();
        }
        blocks.truncate(FIRST_BLOCKS_MAX);
        match architecture {
            Architecture::X86_64 => {
                let splits = layout::find_splits(&heap(pid, &lines));
                Ram::of_blocks(pid, &blocks, |shapes| layout::layouts(shapes, &splits))
            }
            Architecture::Aarch64 => Ram::of_blocks(pid, &blocks, layout::layouts_of_aarch64),
        }
    }

    fn of_blocks(
        pid: u32,
        blocks: &[Block],
        layouts: impl Fn(&[Shape]) -> Vec<layout::Layout>,
    ) -> io::Result<Vec<Ram>> {
        let backings: Vec<Arc<Backing>> =
            blocks.iter().map(|block| backing(pid, block).map(Arc::new)).collect::<io::Result<_>>()?;
        let shape = |block: &Block| {
            let file = (block.inode, block.file.as_ref().map_or(0, |(_, start)| *start));
            Shape { host: block.host, bytes: block.bytes, is_file: block.file.is_some(), file }
        };
        let shapes: Vec<Shape> = blocks.iter().map(shape).collect();
        let ram = |layout: layout::Layout| {
            let pieces = |ranges: &Vec<Range>| ranges.iter().map(Piece::from).collect::<Vec<_>>();
            let certain = pieces(&layout.certain);
            Ram {
                backings: backings.clone(),
                is_file: certain.first().is_some_and(|piece| blocks[piece.backing].file.is_some()),
                is_whole: layout.is_whole,
                proposals: layout.proposals.iter().map(pieces).collect(),
                pieces: certain.clone(),
                certain: (certain, layout.is_whole),
            }
        };
        Ok(layouts(&shapes).into_iter().map(ram).collect())
    }

    /// The RAM that KVM has mapped.
    fn of_slots(pid: u32, slots: &[Slot], blocks: &[Block]) -> io::Result<Ram> {
        let mut backings = vec![Arc::new(Backing::Process { space: ProcessSpace { pid }, host: 0 })];
        let mut files: Vec<(u64, usize)> = Vec::new();
        let mut pieces: Vec<Piece> = Vec::new();
        for slot in slots {
            let end = slot.host + slot.bytes;
            let is_around = |block: &&Block| {
                block.file.is_some() && block.host <= slot.host && end <= block.host.saturating_add(block.bytes)
            };
            let (backing, offset) = match blocks.iter().find(is_around) {
                Some(block) => {
                    let known = files.iter().find(|(host, _)| *host == block.host).map(|(_, backing)| *backing);
                    let position = known.unwrap_or(backings.len());
                    if known.is_none() {
                        backings.push(Arc::new(self::backing(pid, block)?));
                        files.push((block.host, position));
                    }
                    (position, slot.host - block.host)
                }
                None => (0, slot.host),
            };
            match pieces.last_mut() {
                // Firmware divides the first MiB into many.
                Some(last)
                    if last.backing == backing
                        && last.address + last.bytes == slot.address
                        && last.offset + last.bytes == offset =>
                {
                    last.bytes += slot.bytes;
                }
                _ => pieces.push(Piece { address: slot.address, bytes: slot.bytes, backing, offset }),
            }
        }
        let is_file = pieces.iter().max_by_key(|piece| piece.bytes).is_some_and(|piece| piece.backing != 0);
        Ok(Ram { backings, pieces, is_file, is_whole: true, ..Ram::default() })
    }

    /// Chooses what fits what the vCPUs use. What several layouts that fit as well do not agree about is left out.
    pub(crate) fn settle(&mut self, in_use: &[InUse]) {
        let certain = View { backings: &self.backings, pieces: &self.certain.0 };
        let tables = evidence::questions(&certain, in_use);
        let mut scores = Vec::new();
        for (index, pieces) in self.proposals.iter().enumerate() {
            let proposed = View { backings: &self.backings, pieces };
            scores.extend(evidence::weigh(&certain, &proposed, in_use, &tables).score().map(|score| (score, index)));
        }
        let best = scores.iter().map(|(score, _)| *score).max();
        let mut fitting = scores.iter().filter(|(score, _)| Some(*score) == best).map(|(_, at)| &self.proposals[*at]);
        (self.pieces, self.is_whole) = match fitting.next() {
            Some(first) => {
                let mut is_whole = true;
                let pieces = fitting.fold(first.clone(), |known, other| {
                    is_whole &= other == first;
                    common(&known, other)
                });
                (pieces, is_whole)
            }
            None => {
                let is_missed = in_use.iter().any(|used| evidence::is_missing(&certain, &certain, used));
                (self.certain.0.clone(), self.certain.1 && tables.is_empty() && !is_missed)
            }
        };
    }

    /// Whether what the vCPUs use may show more than is known.
    pub(crate) fn is_doubtful(&self) -> bool {
        !self.proposals.is_empty()
    }

    /// All RAM by each layout that is possible: of them [`KvmVm`](crate::backends::kvm::KvmVm) chooses one that fits what the vCPUs use.
    pub fn proposals(&self) -> impl Iterator<Item = Ram> {
        self.proposals.iter().map(|pieces| Ram {
            backings: self.backings.clone(),
            pieces: pieces.clone(),
            is_file: self.is_file,
            is_whole: true,
            ..Ram::default()
        })
    }

    /// The physical addresses of what is known to be written to, by address, none twice. Of a file its holes are left out: to read one through a mapping
    /// would allocate it.
    pub fn ranges(&self) -> Vec<std::ops::Range<u64>> {
        let of_piece = |piece: &Piece| {
            let (file, start) = match &*self.backings[piece.backing] {
                Backing::Mapped(_, file) => (file, piece.offset),
                Backing::File(file, start) if file.metadata().is_ok_and(|file| file.len() > 0) => {
                    (file, start + piece.offset)
                }
                // The memory of a process.
                Backing::File(..) | Backing::Process { .. } => {
                    return std::iter::once(piece.address..piece.address + piece.bytes).collect::<Vec<_>>();
                }
            };
            let data = data_of(file, start..start + piece.bytes);
            data.into_iter()
                .map(|data| piece.address + (data.start - start)..piece.address + (data.end - start))
                .collect()
        };
        self.pieces.iter().flat_map(of_piece).collect()
    }

    /// Unmaps the pages that were read through mappings here: they are the VM's, but count as memory of this process, too. The next read of each maps it
    /// again, which takes a microsecond.
    pub(crate) fn release(&self) {
        for backing in &self.backings {
            if let Backing::Mapped(map, _) = &**backing {
                map.release();
            }
        }
    }

    /// All ranges of physical addresses that it has, by address.
    pub fn addresses(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.pieces.iter().map(|piece| piece.address..piece.address + piece.bytes)
    }

    /// The same with where each is, to be copied whole.
    pub(super) fn places(&self) -> impl Iterator<Item = (std::ops::Range<u64>, Place<'_>)> {
        self.pieces.iter().map(|piece| {
            let place = match &*self.backings[piece.backing] {
                Backing::Mapped(_, file) => Place::File(file, piece.offset),
                Backing::File(file, start) => Place::File(file, start + piece.offset),
                Backing::Process { space, host } => Place::Process(space.pid, host + piece.offset),
            };
            (piece.address..piece.address + piece.bytes, place)
        })
    }

    /// Whether it is a file that the VMM shares; otherwise it is read from the VMM's memory, which takes longer.
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    /// Whether all of it is known: without the VMM's layout, addresses above 2 GiB are not read.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// The parts of a range of a file that are no holes, as far as its file system shows them.
fn data_of(file: &File, range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    /// A file may have any number of holes.
    const PARTS_MAX: usize = 1 << 16;
    let (mut parts, mut at) = (Vec::new(), range.start);
    while let Some(part) = next_of_file(file, at..range.end) {
        at = part.end;
        parts.push(part);
        if parts.len() == PARTS_MAX {
            parts.push(at..range.end);
            break;
        }
    }
    parts
}

/// What two layouts agree about.
fn common(one: &[Piece], other: &[Piece]) -> Vec<Piece> {
    let both = |one: &Piece, other: &Piece| {
        let is_same = one.backing == other.backing
            && one.offset.wrapping_sub(one.address) == other.offset.wrapping_sub(other.address);
        let start = one.address.max(other.address);
        let end = (one.address + one.bytes).min(other.address + other.bytes);
        let offset = one.offset.wrapping_add(start.wrapping_sub(one.address));
        (is_same && start < end).then(|| Piece { address: start, bytes: end - start, offset, ..*one })
    };
    one.iter().flat_map(|one| other.iter().filter_map(move |other| both(one, other))).collect()
}

/// Memory by a layout.
struct View<'a> {
    backings: &'a [Arc<Backing>],
    pieces: &'a [Piece],
}

impl View<'_> {
    /// The place of these bytes: the backing and the offset.
    fn place(&self, address: u64, bytes: usize) -> Option<(&Backing, u64)> {
        let next = self.pieces.partition_point(|piece| piece.address <= address);
        let piece = self.pieces.get(next.checked_sub(1)?)?;
        let inside = address - piece.address;
        let is_inside = inside.checked_add(bytes as u64)? <= piece.bytes;
        is_inside.then(|| (&*self.backings[piece.backing], piece.offset + inside))
    }
}

impl Physical for View<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some((backing, offset)) = self.place(address, into.len()) else { return false };
        match backing {
            Backing::Mapped(_, file) if into.len() >= READ_AS_FILE_BYTES => file.read_exact_at(into, offset).is_ok(),
            Backing::Mapped(map, _) => map.read(offset, into),
            Backing::File(file, start) => file.read_exact_at(into, start + offset).is_ok(),
            Backing::Process { space, host } => {
                let mut space = *space;
                space.read(host + offset, into).is_ok_and(|read| read == into.len())
            }
        }
    }

    fn read_each(&self, pieces: &mut [(u64, &mut [u8])]) -> usize {
        let mut pid = None;
        let mut place = |(address, into): &mut (u64, &mut [u8])| match self.place(*address, into.len())? {
            (Backing::Process { space, host }, offset) if pid.is_none_or(|pid| pid == space.pid) => {
                pid = Some(space.pid);
                host.checked_add(offset)
            }
            _ => None,
        };
        let Some(hosts) = pieces.iter_mut().map(&mut place).collect::<Option<Vec<u64>>>() else {
            return read_in_turn(self, pieces);
        };
        let Some(pid) = pid else { return 0 };
        let mut places: Vec<(u64, &mut [u8])> =
            pieces.iter_mut().zip(hosts).map(|((_, into), host)| (host, &mut **into)).collect();
        let mut left = read_process_each(pid, &mut places);
        let is_missing = |(_, into): &(u64, &mut [u8])| match left.checked_sub(into.len()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        };
        places.iter().position(is_missing).unwrap_or(places.len())
    }
}

impl fmt::Display for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.pieces.iter().max_by_key(|piece| piece.bytes);
        f.write_str(match largest.map(|piece| &*self.backings[piece.backing]) {
            Some(Backing::Mapped(..)) => "RAM mapped",
            Some(Backing::File(..)) => "RAM read as a file",
            Some(Backing::Process { .. }) => "RAM read out of the VMM",
            None => "no RAM",
        })
    }
}

impl Ram {
    fn view(&self) -> View<'_> {
        View { backings: &self.backings, pieces: &self.pieces }
    }

    /// Writes a word at an address that is a multiple of 8, so that the guest sees all of it or nothing.
    pub(crate) fn write_word(&self, address: u64, value: u64) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        let outside = || io::Error::other(format!("no RAM is known at {address:#x}"));
        // The kernel copies 8 aligned bytes by one move (`copy_user_generic`).
        match self.view().place(address, bytes.len()).filter(|_| address.is_multiple_of(8)).ok_or_else(outside)? {
            (Backing::Mapped(_, file), offset) => file.write_all_at(&bytes, offset),
            (Backing::File(file, start), offset) => file.write_all_at(&bytes, start + offset),
            (Backing::Process { .. }, _) => Err(io::Error::other("it was not opened for writing")),
        }
    }

    /// Opens it for reading, which needs the rights over the VMM; from then on reading does not.
    pub(crate) fn open_for_reading(&mut self) -> io::Result<()> {
        for backing in &mut self.backings {
            if let Backing::Process { space, host } = &**backing {
                *backing = Arc::new(Backing::File(File::open(format!("/proc/{}/mem", space.pid))?, *host));
            }
        }
        Ok(())
    }

    /// Opens it for reading and writing, which needs the rights over the VMM; from then on neither does. For sampling it is opened to be
    /// read only.
    pub(crate) fn open_for_writing(&mut self) -> io::Result<()> {
        let open = |path: String| File::options().read(true).write(true).open(path);
        for (index, backing) in self.backings.iter_mut().enumerate() {
            if self.pieces.iter().all(|piece| piece.backing != index) {
                continue;
            }
            let again = |file: &File| open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
            *backing = Arc::new(match &**backing {
                Backing::Mapped(map, file) => Backing::Mapped(Arc::clone(map), again(file)?),
                Backing::File(file, start) => Backing::File(again(file)?, *start),
                Backing::Process { space, host } => Backing::File(open(format!("/proc/{}/mem", space.pid))?, *host),
            });
        }
        Ok(())
    }
}

impl Physical for Ram {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.view().read(address, into)
    }

    fn read_each(&self, pieces: &mut [(u64, &mut [u8])]) -> usize {
        self.view().read_each(pieces)
    }
}

fn backing(pid: u32, block: &Block) -> io::Result<Backing> {
    let Some((file, start)) = &block.file else {
        return Ok(Backing::Process { space: ProcessSpace { pid }, host: block.host });
    };
    let metadata = file.metadata()?;
    // Untouched huge pages may not exist, which raises SIGBUS too: these files are read.
    let is_plain = metadata.blksize() == 4096 && *start == 0 && metadata.len() >= block.bytes;
    if is_plain
        && cannot_shrink(file.as_fd())
        && let Ok(bytes) = usize::try_from(block.bytes)
        && let Ok(map) = Map::new(file.as_fd(), bytes, false)
    {
        return Ok(Backing::Mapped(Arc::new(map), file.try_clone()?));
    }
    Ok(Backing::File(file.try_clone()?, *start))
}

/// The VMM's heap, or nothing if it may not be read.
fn heap(pid: u32, lines: &[MapsLine]) -> Vec<u8> {
    let Some(line) = lines.iter().find(|line| line.path == "[heap]") else { return Vec::new() };
    let mut bytes = vec![0; (line.end - line.start).min(HEAP_BYTES_MAX) as usize];
    let read = ProcessSpace { pid }.read(line.start, &mut bytes).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::x86_64::paging::Paging;

    const MIB: u64 = 1 << 20;
    /// A VMM may free its memory, or report a wrong size: that must not end us by SIGBUS.
    #[test]
    fn a_file_that_shrinks_is_read_up_to_its_end() {
        let path = std::env::temp_dir().join(format!("glass-ram-test-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(64 * MIB).unwrap();
        file.write_all_at(&[7; 16], 2 * MIB).unwrap();
        let block = Block { host: 0, bytes: 64 * MIB, file: Some((file.try_clone().unwrap(), 0)), inode: 1 };
        let ram = Ram::of_blocks(0, &[block], |shapes| layout::layouts(shapes, &[])).unwrap().remove(0);
        let mut bytes = [0; 16];
        assert!(ram.read(2 * MIB, &mut bytes) && bytes == [7; 16]);
        ram.write_word(2 * MIB + 8, u64::from_le_bytes([9; 8])).unwrap();
        assert!(ram.read(2 * MIB, &mut bytes) && bytes[..8] == [7; 8] && bytes[8..] == [9; 8]);
        assert!(ram.write_word(2 * MIB + 4, 1).is_err() && ram.write_word(u64::MAX - 7, 1).is_err());
        bytes = [7; 16];
        file.write_all_at(&bytes, 2 * MIB).unwrap();
        file.set_len(MIB).unwrap();
        assert!(!ram.read(2 * MIB, &mut bytes));
        assert!(!ram.read(u64::MAX - 3, &mut bytes) && !ram.read(64 * MIB - 8, &mut bytes));
    }

    #[test]
    fn our_own_memory_as_that_of_a_vmm() {
        let mut memory = vec![0u8; 8 << 20];
        memory[3 << 20] = 9;
        let block = Block { host: memory.as_ptr() as u64, bytes: memory.len() as u64, file: None, inode: 0 };
        let ram =
            Ram::of_blocks(std::process::id(), &[block], |shapes| layout::layouts(shapes, &[])).unwrap().remove(0);
        let mut bytes = [0; 4];
        assert!(ram.read(3 << 20, &mut bytes) && bytes[0] == 9);
        assert!(!ram.read(8 << 20, &mut bytes));
        assert!(!ram.is_file() && ram.is_whole());
    }

    /// The first range ends where the page tables begin; two ranges may follow it, of which they show one.
    #[test]
    fn what_the_page_tables_show_is_read() {
        const BYTES: usize = 16 << 20;
        const GAP: usize = 1 << 20;
        let mut memory = vec![0u8; 3 * BYTES + 2 * GAP];
        let start = memory.as_ptr() as u64;
        let (second, third) = (BYTES + GAP, 2 * (BYTES + GAP));
        // A table that has itself, and a word in each of the others.
        memory[second + 0x3000..][..8].copy_from_slice(&(BYTES as u64 + 0x3003).to_le_bytes());
        memory[second..][..2].copy_from_slice(b"is");
        memory[third..][..3].copy_from_slice(b"not");
        let block = |at: usize| Block { host: start + at as u64, bytes: BYTES as u64, file: None, inode: 0 };
        let blocks = [block(0), block(second), block(third)];
        let mut ram =
            Ram::of_blocks(std::process::id(), &blocks, |shapes| layout::layouts(shapes, &[])).unwrap().remove(0);
        let used = |cr3: u64| InUse {
            paging: Paging { cr0: 1 << 31 | 1, cr3, cr4: 1 << 5, efer: Some(1 << 10) },
            // Not mapped.
            stack_pointer: 1 << 40,
        };
        let read = |ram: &Ram, address: usize| {
            let mut bytes = [0; 2];
            ram.read(address as u64, &mut bytes).then_some(bytes)
        };
        ram.settle(&[]);
        assert!(ram.is_whole() && read(&ram, BYTES).is_none(), "what the vCPUs use is all there");
        ram.settle(&[used(BYTES as u64 + 0x3000)]);
        assert_eq!((read(&ram, BYTES), read(&ram, 2 * BYTES)), (Some(*b"is"), None));
        assert!(!ram.is_whole(), "there may be more behind it");
        // Where nothing has a table nothing is believed.
        ram.settle(&[used(BYTES as u64 + 0x5000)]);
        assert!(!ram.is_whole() && read(&ram, BYTES).is_none());
    }

    #[test]
    fn slots_are_read_where_the_vmm_has_them() {
        let mut memory = vec![0u8; 4 << 20];
        memory[(1 << 20) + 5] = 7;
        let host = memory.as_ptr() as u64 & !4095;
        let slot = |address, at, bytes| Slot { address, bytes, host: host + at, is_writable: true };
        let slots = [slot(0, 0, 1 << 20), slot(1 << 20, 1 << 20, 4096), slot(4 << 30, 2 << 20, 4096)];
        let ram = Ram::of_slots(std::process::id(), &slots, &[]).unwrap();
        assert_eq!(ram.pieces.len(), 2, "two that follow each other are one");
        let read = |address: u64| {
            let mut bytes = [0; 16];
            ram.read(address, &mut bytes).then_some(bytes)
        };
        let offset = memory.as_ptr() as u64 - host;
        assert_eq!(read((1 << 20) + offset).unwrap()[5], 7);
        assert!(read((1 << 20) - 8).is_some() && read(4 << 30).is_some());
        assert!(read((1 << 20) + 4096 - 8).is_none() && read(2 << 20).is_none() && read((4 << 30) - 8).is_none());
        assert!(ram.is_whole() && !ram.is_file());
    }
}
