//! All of a VM's RAM, to be copied: without what the guest has never written, and without making the VMM's host allocate that.
//!
//! A page that was never written is a hole of the file that backs RAM, or is missing from the VMM's page tables. Reading a hole through a
//! mapping, or memory that a process shares without a file, would allocate a page of zeros; reading a file does not.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::ram::{Place, Ram};
use crate::proc::{MapsLine, parse_maps};
use crate::sys::read_process;

/// The granularity of what is left out.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// How many entries of a page map are read at a time: those of 4 MiB.
const ENTRIES: u64 = 1024;
/// Bits of an entry (`Documentation/admin-guide/mm/pagemap.rst`): the page is in memory, or was swapped out.
const IN_USE: u64 = 1 << 63 | 1 << 62;

/// A range of physical addresses, and the way to its bytes.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its addresses.
    pub(crate) range: Range<u64>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// A file, from this offset on.
    File(File, u64),
    Process {
        pid: u32,
        /// The address of the first byte.
        host: u64,
        /// Which pages there are.
        map: Option<File>,
        /// Addresses where a page that is missing from the map is one of zeros.
        zeroed: Vec<Range<u64>>,
    },
}

/// All pieces of RAM. Opens what reading takes; the guest may run meanwhile.
pub(crate) fn of(ram: &Ram) -> io::Result<Vec<Piece>> {
    let piece = |(range, place): (Range<u64>, Place<'_>)| {
        let bytes = match place {
            Place::File(file, start) => Bytes::File(file.try_clone()?, start),
            Place::Process(pid, host) => {
                let map = File::open(format!("/proc/{pid}/pagemap")).ok();
                let is_inside =
                    |zeroed: &Range<u64>| zeroed.start < host + (range.end - range.start) && host < zeroed.end;
                let mappings = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
                Bytes::Process { pid, host, map, zeroed: zeroed(&mappings).into_iter().filter(is_inside).collect() }
            }
        };
        Ok(Piece { range, bytes })
    };
    ram.places().map(piece).collect()
}

/// Where a page that was never used is one of zeros, by `/proc/PID/smaps`: memory that is private, of no file, and that no userfaultfd
/// fills.
fn zeroed(mappings: &str) -> Vec<Range<u64>> {
    const FILLED_BY_ANOTHER: &str = "um";
    let mut current: Option<MapsLine> = None;
    let mut found = Vec::new();
    for line in mappings.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_filled = flags.split_ascii_whitespace().any(|flag| flag == FILLED_BY_ANOTHER);
            let plain = current.take().filter(|line| !line.is_shared && line.inode == 0 && !is_filled);
            found.extend(plain.map(|line| line.start..line.end));
        } else if let [line] = &parse_maps(line)[..] {
            current = Some(line.clone());
        }
    }
    found
}

/// The first run of pages in use by entries of a page map, as positions among them.
fn first_run(entries: &[u8], is_in_use: impl Fn(usize, u64) -> bool) -> Option<Range<usize>> {
    let count = entries.len() / 8;
    let entry = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| entries[at * 8 + index]));
    let start = (0..count).find(|at| is_in_use(*at, entry(*at)))?;
    let end = (start..count).find(|at| !is_in_use(*at, entry(*at))).unwrap_or(count);
    Some(start..end)
}

impl Piece {
    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The first of its bytes from `from` up to `until` that may be other than zeros, in offsets.
    pub(crate) fn next(&self, from: u64, until: u64) -> Option<Range<u64>> {
        match &self.bytes {
            Bytes::File(file, start) => {
                next_of_file(file, start + from..start + until).map(|found| found.start - start..found.end - start)
            }
            Bytes::Process { host, map: Some(map), zeroed, .. } if host.is_multiple_of(PAGE_BYTES) => {
                next_of_process(map, zeroed, host + from..host + until)
                    .map(|found| found.start - host..found.end - host)
            }
            Bytes::Process { .. } => Some(from..until).filter(|range| !range.is_empty()),
        }
    }

    /// Copies from an offset; returns false if not all of it can be read.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        match &self.bytes {
            Bytes::File(file, start) => file.read_exact_at(into, start + offset).is_ok(),
            Bytes::Process { pid, host, .. } => read_process(*pid, host + offset, into) == into.len(),
        }
    }
}

pub(super) fn next_of_file(file: &File, range: Range<u64>) -> Option<Range<u64>> {
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start.max(range.start),
        Err(Errno::NXIO) => return None,
        // A file without holes, such as one of huge pages.
        Err(_) => return Some(range).filter(|range| !range.is_empty()),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end).min(range.end);
    Some(start..end).filter(|found| found.start < found.end)
}

fn next_of_process(map: &File, zeroed: &[Range<u64>], range: Range<u64>) -> Option<Range<u64>> {
    let mut at = range.start / PAGE_BYTES;
    let end = range.end.div_ceil(PAGE_BYTES);
    let mut entries = [0; (ENTRIES * 8) as usize];
    while at < end {
        let count = ENTRIES.min(end - at);
        let entries = &mut entries[..(count * 8) as usize];
        if map.read_exact_at(entries, at * 8).is_err() {
            // What is not known is read.
            return Some((at * PAGE_BYTES).max(range.start)..range.end);
        }
        let is_zeroed = |page: u64| zeroed.iter().any(|range| range.contains(&(page * PAGE_BYTES)));
        let is_in_use = |index: usize, entry: u64| entry & IN_USE != 0 || !is_zeroed(at + index as u64);
        if let Some(run) = first_run(entries, is_in_use) {
            let address = |index: usize| (at + index as u64) * PAGE_BYTES;
            return Some(address(run.start).max(range.start)..address(run.end).min(range.end));
        }
        at += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    const SMAPS: &str = "\
7f0000000000-7f0002000000 rw-p 00000000 00:00 0
Size:              32768 kB
VmFlags: rd wr mr mw me ac sd
7f0010000000-7f0012000000 rw-s 00000000 00:01 2048                       /memfd:ram (deleted)
VmFlags: rd wr sh mr mw me ms sd
7f0020000000-7f0022000000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me ac um sd
7f0030000000-7f0032000000 rw-p 00000000 08:01 77                         /snapshot
VmFlags: rd wr mr mw me ac sd
7f0040000000-7f0042000000 rw-p 00000000 00:00 0                          [heap]
VmFlags: rd wr mr mw me ac sd
";

    #[test]
    fn only_private_memory_of_no_file_is_zeros_until_it_is_used() {
        assert_eq!(zeroed(SMAPS), [0x7f00_0000_0000..0x7f00_0200_0000, 0x7f00_4000_0000..0x7f00_4200_0000]);
        assert_eq!(zeroed("VmFlags: rd\nnonsense"), []);
    }

    #[test]
    fn a_run_of_pages() {
        let entries: Vec<u8> = [0, 1 << 62, 1 << 63, 0, 1 << 63].into_iter().flat_map(u64::to_le_bytes).collect();
        let used = |_: usize, entry: u64| entry & IN_USE != 0;
        assert_eq!(first_run(&entries, used), Some(1..3));
        assert_eq!(first_run(&entries[24..], used), Some(1..2));
        assert_eq!(first_run(&entries[..8], used), None);
        assert_eq!(first_run(&entries, |index, _| index == 0), Some(0..1));
    }

    fn pieces_of(piece: &Piece) -> Vec<Range<u64>> {
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some(range) = piece.next(from, piece.bytes()) {
            assert!(range.start >= from && range.start < range.end);
            from = range.end;
            found.push(range);
        }
        found
    }

    #[test]
    fn holes_of_a_file_are_left_out_and_stay_holes() {
        use std::os::unix::fs::MetadataExt;
        let folder = Folder::new("content").unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(folder.file("ram")).unwrap();
        file.set_len(16 << 20).unwrap();
        file.write_all_at(&[7; 4096], 3 << 20).unwrap();
        file.write_all_at(&[8; 16], (8 << 20) + 4096).unwrap();
        let before = file.metadata().unwrap().blocks();
        // A piece that starts within the file.
        let piece = Piece { range: 1 << 32..(1 << 32) + (15 << 20), bytes: Bytes::File(file, 1 << 20) };
        let found = pieces_of(&piece);
        let has = |offset: u64| found.iter().any(|range| range.contains(&offset));
        assert!(has(2 << 20) && has((7 << 20) + 4096), "{found:?}");
        let total: u64 = found.iter().map(|range| range.end - range.start).sum();
        assert!(total < 1 << 20, "{found:?}");
        let mut bytes = [0; 2];
        assert!(piece.read(2 << 20, &mut bytes) && bytes == [7; 2]);
        assert!(piece.read(12 << 20, &mut bytes) && bytes == [0; 2]);
        assert!(!piece.read(15 << 20, &mut bytes));
        let Bytes::File(file, _) = &piece.bytes else { unreachable!() };
        assert_eq!(file.metadata().unwrap().blocks(), before);
    }

    #[test]
    fn memory_of_ours_that_was_never_used_is_left_out() {
        const BYTES: usize = 8 << 20;
        let mut memory = vec![0u8; BYTES + (2 << 20)];
        // A large page would be used as a whole.
        let start = (memory.as_ptr() as u64).next_multiple_of(2 << 20);
        let inside = (start - memory.as_ptr() as u64) as usize;
        memory[inside + (4 << 20)] = 9;
        let pid = std::process::id();
        let zeroed = zeroed(&fs::read_to_string("/proc/self/smaps").unwrap());
        let map = File::open("/proc/self/pagemap").ok();
        let piece = Piece { range: 0..BYTES as u64, bytes: Bytes::Process { pid, host: start, map, zeroed } };
        let found = pieces_of(&piece);
        assert!(found.iter().any(|range| range.contains(&(4 << 20))), "{found:?}");
        let total: u64 = found.iter().map(|range| range.end - range.start).sum();
        assert!(total <= 2 << 20, "{found:?}");
        // Without a map all of it is read.
        let piece =
            Piece { range: 0..BYTES as u64, bytes: Bytes::Process { pid, host: start, map: None, zeroed: vec![] } };
        assert_eq!(piece.next(0, piece.bytes()), Some(0..BYTES as u64));
        let mut byte = [0];
        assert!(piece.read(4 << 20, &mut byte) && byte == [9]);
    }
}
