//! The RAM of a VM, read while its VMM has it mapped: through our own mapping of the same file, by
//! reading that file, or from the VMM's memory.
//!
//! One sample's reads (5 page table entries of some 8 bytes, 2 KiB of stack) take 0.1, 1.6 and 4.7 us
//! in these ways (2026-11-21, AMD EPYC, medians).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::blocks::{self, Block};
use super::layout::{self, SAME_EVERYWHERE_BYTES, Split};
use super::live::ProcessSpace;
use super::{AddressSpace, Physical};
use crate::proc::MapsLine;
use crate::sys::{Map, cannot_shrink};

/// The most blocks of a VMM's memory that are considered.
const CANDIDATES_MAX: usize = 8;
/// The most bytes of a VMM's heap that are searched: QEMU's has some 15 MiB.
const HEAP_BYTES_MAX: u64 = 256 << 20;

/// The method of reading.
#[derive(Debug)]
enum Backing {
    /// Mapped here. Only a file that is sealed against shrinking: reading beyond the end of one that
    /// has shrunk would raise SIGBUS.
    Mapped(Map, File),
    /// Read from a file at this offset.
    File(File, u64),
    /// Read from the VMM's memory.
    Process { space: ProcessSpace, host: u64 },
}

/// A range of physical addresses and its offset in a backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    address: u64,
    bytes: u64,
    backing: usize,
    offset: u64,
}

/// The RAM of a VM; by default none.
#[derive(Debug, Default)]
pub struct Ram {
    backings: Vec<Backing>,
    pieces: Vec<Piece>,
    is_file: bool,
    is_whole: bool,
}

impl Ram {
    /// The RAM of a process, if it is a file that the VMM shares. `Ok(None)` if it has no such file.
    pub fn open(pid: u32) -> io::Result<Option<Ram>> {
        Ok(Ram::candidates(pid)?.into_iter().find(|ram| ram.is_file))
    }

    /// The candidates for the RAM of a process, the most probable first. Their contents decide.
    pub fn candidates(pid: u32) -> io::Result<Vec<Ram>> {
        let (lines, mut blocks) = blocks::of(pid)?;
        blocks.truncate(CANDIDATES_MAX);
        let splits = layout::find_splits(&heap(pid, &lines));
        (0..blocks.len()).map(|first| Ram::of(pid, &blocks, first, &splits)).collect()
    }

    /// RAM that starts with the block `first`.
    fn of(pid: u32, blocks: &[Block], first: usize, splits: &[Split]) -> io::Result<Ram> {
        let block = &blocks[first];
        // Other bytes of the heap may look like the table: if two disagree, neither is used.
        let split_of = |bytes: u64| {
            let mut fitting = splits.iter().filter(|split| split.low + split.high == bytes);
            let first = *fitting.next()?;
            fitting.all(|other| *other == first).then_some(first)
        };
        // Two nodes: the contents decide which is the first, so the rest belongs to the other.
        let is_other = |index: &usize| *index != first && block.file.is_some() && blocks[*index].file.is_some();
        let pairs = (0..blocks.len()).filter(is_other).find_map(|other| {
            let split = split_of(block.bytes.saturating_add(blocks[other].bytes))?;
            Some((vec![first, other], Some(split)))
        });
        let (used, split) = pairs.unwrap_or_else(|| (vec![first], split_of(block.bytes)));
        let bytes: Vec<u64> = used.iter().map(|index| blocks[*index].bytes).collect();
        let pieces = pieces(&bytes, split);
        let backings = used.iter().map(|index| backing(pid, &blocks[*index])).collect::<io::Result<_>>()?;
        let is_whole = split.is_some() || block.bytes <= SAME_EVERYWHERE_BYTES;
        Ok(Ram { backings, pieces, is_file: block.file.is_some(), is_whole })
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

impl fmt::Display for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.backings.first() {
            Some(Backing::Mapped(..)) => "RAM mapped",
            Some(Backing::File(..)) => "RAM read as a file",
            Some(Backing::Process { .. }) => "RAM read out of the VMM",
            None => "no RAM",
        })
    }
}

impl Ram {
    /// The place of these bytes: the backing and the offset.
    fn place(&self, address: u64, bytes: usize) -> Option<(&Backing, u64)> {
        self.pieces.iter().find_map(|piece| {
            let inside = address.checked_sub(piece.address)?;
            let end = inside.checked_add(bytes as u64)?;
            (end <= piece.bytes).then(|| (&self.backings[piece.backing], piece.offset + inside))
        })
    }

    /// Writes a word at an address that is a multiple of 8, so that the guest sees all of it or nothing.
    pub(crate) fn write_word(&self, address: u64, value: u64) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        let outside = || io::Error::other(format!("no RAM is known at {address:#x}"));
        // The kernel copies 8 aligned bytes by one move (`copy_user_generic`).
        match self.place(address, bytes.len()).filter(|_| address.is_multiple_of(8)).ok_or_else(outside)? {
            (Backing::Mapped(_, file), offset) => file.write_all_at(&bytes, offset),
            (Backing::File(file, start), offset) => file.write_all_at(&bytes, start + offset),
            (Backing::Process { .. }, _) => Err(io::Error::other("it was not opened for writing")),
        }
    }

    /// Opens it for reading and writing, which needs the rights over the VMM; from then on neither does. For sampling it is opened to be
    /// read only.
    pub(crate) fn open_for_writing(&mut self) -> io::Result<()> {
        let open = |path: String| File::options().read(true).write(true).open(path);
        for backing in &mut self.backings {
            match backing {
                Backing::Mapped(_, file) | Backing::File(file, _) => {
                    *file = open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
                }
                Backing::Process { space, host } => {
                    *backing = Backing::File(open(format!("/proc/{}/mem", space.pid))?, *host);
                }
            }
        }
        Ok(())
    }
}

impl Physical for Ram {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some((backing, offset)) = self.place(address, into.len()) else { return false };
        match backing {
            Backing::Mapped(map, _) => map.read(offset, into),
            Backing::File(file, start) => file.read_exact_at(into, start + offset).is_ok(),
            Backing::Process { space, host } => {
                let mut space = *space;
                space.read(host + offset, into).is_ok_and(|read| read == into.len())
            }
        }
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
        return Ok(Backing::Mapped(map, file.try_clone()?));
    }
    Ok(Backing::File(file.try_clone()?, *start))
}

/// The pieces of RAM in blocks of these sizes, one after the other.
fn pieces(blocks: &[u64], split: Option<Split>) -> Vec<Piece> {
    let known = split.unwrap_or(Split { low: blocks[0].min(SAME_EVERYWHERE_BYTES), high: 0 });
    let mut pieces = Vec::new();
    for range in layout::ranges(known) {
        let mut block_start = 0;
        for (backing, bytes) in blocks.iter().enumerate() {
            let start = range.offset.max(block_start);
            let end = (range.offset + range.bytes).min(block_start + bytes);
            if start < end {
                let address = range.address + (start - range.offset);
                pieces.push(Piece { address, bytes: end - start, backing, offset: start - block_start });
            }
            block_start += bytes;
        }
    }
    pieces
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

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn as_tuples(blocks: &[u64], split: Option<Split>) -> Vec<(u64, u64, usize, u64)> {
        pieces(blocks, split).iter().map(|piece| (piece.address, piece.bytes, piece.backing, piece.offset)).collect()
    }

    #[test]
    fn only_what_is_known_is_read() {
        let low = (0, 0xa_0000, 0, 0);
        assert_eq!(as_tuples(&[32 * MIB], None), [low, (MIB, 31 * MIB, 0, MIB)]);
        assert_eq!(as_tuples(&[8 * GIB], None), [low, (MIB, 2 * GIB - MIB, 0, MIB)]);
        let split = Some(Split { low: 3 * GIB, high: 5 * GIB });
        let expected = [low, (MIB, 3 * GIB - MIB, 0, MIB), (4 * GIB, 5 * GIB, 0, 3 * GIB)];
        assert_eq!(as_tuples(&[8 * GIB], split), expected);
    }

    #[test]
    fn two_nodes_follow_each_other() {
        let split = Some(Split { low: 3 * GIB, high: GIB });
        let expected =
            [(0, 0xa_0000, 0, 0), (MIB, GIB - MIB, 0, MIB), (GIB, 2 * GIB, 1, 0), (4 * GIB, GIB, 1, 2 * GIB)];
        assert_eq!(as_tuples(&[GIB, 3 * GIB], split), expected);
    }

    /// A VMM may free its memory, or report a wrong size: that must not end us by SIGBUS.
    #[test]
    fn a_file_that_shrinks_is_read_up_to_its_end() {
        let path = std::env::temp_dir().join(format!("glass-ram-test-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(64 * MIB).unwrap();
        file.write_all_at(&[7; 16], 2 * MIB).unwrap();
        let block = Block { host: 0, bytes: 64 * MIB, file: Some((file.try_clone().unwrap(), 0)) };
        let ram = Ram::of(0, &[block], 0, &[]).unwrap();
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
        let block = Block { host: memory.as_ptr() as u64, bytes: memory.len() as u64, file: None };
        let ram = Ram::of(std::process::id(), &[block], 0, &[]).unwrap();
        let mut bytes = [0; 4];
        assert!(ram.read(3 << 20, &mut bytes) && bytes[0] == 9);
        assert!(!ram.read(8 << 20, &mut bytes));
        assert!(!ram.is_file() && ram.is_whole());
    }
}
