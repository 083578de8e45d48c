//! The pages of RAM that copies use: a file beside a snapshot (`docs/formats/snapshot.md`). A copy makes these pages its own all at once before it
//! runs, which costs less than a fault for each. What the file has changes no byte of a copy's memory.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use vm_memory::{GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, GuestMemoryRegion as _};

use super::bytes::{Reader, Writer};
use super::{PAGE_BYTES, RAM_OFFSET, open_own};
use crate::x86_64::sys;

const MAGIC: [u8; 8] = *b"GLASSPGS";
const VERSION: u32 = 1;
/// Pages that a list has, at most: 16 MiB. A copy has them as its own memory.
pub const PAGES_MAX: usize = 4096;
/// The longest file: as many ranges as pages.
const FILE_BYTES_MAX: u64 = 16 + 12 * PAGES_MAX as u64;
/// In an entry of `/proc/PID/pagemap`: the page is there (Linux, Documentation/admin-guide/mm/pagemap.rst).
pub const IS_THERE: u64 = 1 << 63;
/// The bytes of such an entry, of which a process has one for each page of its addresses.
pub const ENTRY_BYTES: u64 = 8;
/// Entries that are read at once.
const ENTRIES: u64 = 8192;

/// Where the list of a snapshot is.
#[must_use]
pub fn path_of(snapshot: &Path) -> PathBuf {
    let mut path = snapshot.as_os_str().to_owned();
    path.push(".pages");
    path.into()
}

/// Ranges of pages of a snapshot's RAM: the number of the first one and how many there are, in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Pages(Vec<(u64, u32)>);

impl Pages {
    /// That of a snapshot; empty if there is none.
    ///
    /// # Errors
    /// It cannot be read, belongs to another user or can be changed by one, or is no such list.
    pub fn open(snapshot: &Path) -> Result<Pages> {
        let path = path_of(snapshot);
        let read = || {
            let mut bytes = Vec::new();
            open_own(&path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Pages::decode(&bytes)
        };
        match read() {
            Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound) => {
                Ok(Pages::default())
            }
            read => read.with_context(|| format!("cannot use {}", path.display())),
        }
    }

    /// The pages that a running copy of `snapshot` has used so far. It must have been started so that it uses no others ([`sys::without_neighbours`]).
    ///
    /// # Errors
    /// The process `pid` is no such copy, has ended or belongs to another user, or has used more than [`PAGES_MAX`].
    pub fn of_copy(pid: u32, snapshot: &Path) -> Result<Pages> {
        let file = fs::metadata(snapshot)?;
        let of_process = |name: &str| File::open(format!("/proc/{pid}/{name}")).context("the copy has ended");
        let table = of_process("pagemap")?;
        let mut pages = Pages::default();
        for line in BufReader::new(of_process("maps")?).lines() {
            let Some((start, end, offset)) = mapping(&line?, file.ino()) else { continue };
            let Some(first) = offset.checked_sub(RAM_OFFSET) else { continue };
            pages.add_used(&table, (start, end), first / PAGE_BYTES)?;
        }
        pages.0.sort_unstable();
        let count = pages.count();
        ensure!(count > 0, "process {pid} has not used a page of {}", snapshot.display());
        ensure!(
            count <= PAGES_MAX,
            "the copy has used {count} pages, and a list has at most {PAGES_MAX}: end it earlier"
        );
        Ok(pages)
    }

    /// One with two ranges, of which the second has pages that a small memory does not have.
    #[cfg(feature = "script")]
    #[must_use]
    pub fn example() -> Pages {
        Pages(vec![(1, 2), (9, 300)])
    }

    /// Adds the pages of a mapping from address `start` to `end` that are there; its first one is page number `first`.
    fn add_used(&mut self, table: &File, (start, end): (u64, u64), first: u64) -> Result<()> {
        let mut buffer = vec![0; (ENTRIES * ENTRY_BYTES) as usize];
        let (base, count) = (start / PAGE_BYTES, (end - start) / PAGE_BYTES);
        let mut at = 0;
        while at < count {
            let bytes = ((count - at).min(ENTRIES) * ENTRY_BYTES) as usize;
            table.read_exact_at(&mut buffer[..bytes], (base + at) * ENTRY_BYTES).context("the copy has ended")?;
            for entry in buffer[..bytes].as_chunks().0 {
                if u64::from_le_bytes(*entry) & IS_THERE != 0 {
                    self.push(first + at);
                }
                at += 1;
            }
        }
        Ok(())
    }

    fn push(&mut self, page: u64) {
        match self.0.last_mut() {
            Some((start, count)) if *start + u64::from(*count) == page => *count += 1,
            _ => self.0.push((page, 1)),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, count)| *count as usize).sum()
    }

    /// As a file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.bytes(&MAGIC);
        writer.u32(VERSION);
        writer.u32(self.0.len() as u32);
        for (first, count) in &self.0 {
            writer.u64(*first);
            writer.u32(*count);
        }
        writer.into_bytes()
    }

    /// The list in a file.
    ///
    /// # Errors
    /// It is none, or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Pages> {
        let mut reader = Reader(bytes);
        ensure!(reader.array()? == MAGIC, "it is no list of pages");
        let version = reader.u32()?;
        ensure!(version == VERSION, "it has version {version}, and this glass reads version {VERSION}");
        let mut pages = Vec::new();
        for _ in 0..reader.count(PAGES_MAX)? {
            pages.push((reader.u64()?, reader.u32()?));
        }
        let pages = Pages(pages);
        ensure!(reader.0.is_empty() && pages.count() <= PAGES_MAX, "it is damaged: record the pages again");
        Ok(pages)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the pages of a copy's RAM its own, with what they have. Those that it does not have, and those for which there is no memory, are left out.
    pub fn make_ready(&self, memory: &GuestMemoryMmap) {
        for (first, count) in &self.0 {
            // Ranges of the file lie one behind the other in it, and not in the guest's memory.
            let mut start = first.saturating_mul(PAGE_BYTES);
            let mut bytes = u64::from(*count) * PAGE_BYTES;
            for region in memory.iter() {
                if start < region.len() {
                    let here = bytes.min(region.len() - start);
                    sys::populate(memory, GuestAddress(region.start_addr().0 + start), here);
                    (start, bytes) = (region.len(), bytes - here);
                }
                if bytes == 0 {
                    break;
                }
                start -= region.len();
            }
        }
    }
}

/// Start, end and offset of a private mapping of the file with this number that can be written, in a line of `/proc/PID/maps` (proc_pid_maps(5)).
fn mapping(line: &str, file: u64) -> Option<(u64, u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_ram = words.next()? == "rw-p";
    let offset = words.next()?;
    let number: u64 = words.nth(1)?.parse().ok()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?, hex(offset)?)).filter(|_| is_ram && number == file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes as _;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let pages = Pages(vec![(0, 1), (7, 3), (1 << 20, 2)]);
        let bytes = pages.encode();
        assert_eq!(Pages::decode(&bytes).unwrap(), pages);
        for length in 0..bytes.len() {
            assert!(Pages::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Pages::decode(&[&bytes[..], &[0]].concat()).is_err());
        let many = Pages(vec![(0, PAGES_MAX as u32), (9999, 1)]).encode();
        assert!(Pages::decode(&many).is_err());
        let mut other = bytes;
        other[8] = 9;
        assert!(Pages::decode(&other).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn pages_that_follow_each_other_are_a_range() {
        let mut pages = Pages::default();
        [3, 4, 5, 9].into_iter().for_each(|page| pages.push(page));
        assert_eq!((pages.clone(), pages.count()), (Pages(vec![(3, 3), (9, 1)]), 4));
    }

    #[test]
    fn mappings_of_the_snapshot_are_found() {
        let line = "7f00-9f00 rw-p 00010000 fe:00 326 /tmp/a b";
        assert_eq!(mapping(line, 326), Some((0x7f00, 0x9f00, 0x1_0000)));
        assert_eq!(mapping(line, 327), None);
        assert_eq!(mapping(&line.replace("rw-p", "r--p"), 326), None);
        assert_eq!(mapping("7f00-9f00 rw-p 0 0:0 0", 326), None);
        assert_eq!(mapping("", 0), None);
    }

    /// Whatever a list has, the memory stays as it is, and nothing else is touched.
    #[test]
    fn pages_that_are_made_ready_keep_what_they_have() {
        let ranges = [(GuestAddress(0), 1 << 20), (GuestAddress(1 << 32), 1 << 20)];
        let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        for page in 0..256 {
            memory.write_obj(page, GuestAddress(page * PAGE_BYTES)).unwrap();
            memory.write_obj(page + 256, GuestAddress((1 << 32) + page * PAGE_BYTES)).unwrap();
        }
        Pages(vec![(3, 1), (250, 20), (511, 9), (512, 1), (u64::MAX, u32::MAX)]).make_ready(&memory);
        for page in 0..256 {
            assert_eq!(memory.read_obj::<u64>(GuestAddress(page * PAGE_BYTES)).unwrap(), page);
            assert_eq!(memory.read_obj::<u64>(GuestAddress((1 << 32) + page * PAGE_BYTES)).unwrap(), page + 256);
        }
    }

    /// A process finds in its own mapping of a file the pages that it has used, and no neighbours of them.
    #[test]
    fn a_copy_has_used_what_it_has_used() {
        use vm_memory::{FileOffset, GuestRegionMmap, MmapRegion};
        let path = std::env::temp_dir().join(format!("glass-pages-{}", std::process::id()));
        fs::write(&path, vec![1; RAM_OFFSET as usize + (1 << 20)]).unwrap();
        let map = || {
            let file = FileOffset::new(File::open(&path).unwrap(), RAM_OFFSET);
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
            let region = MmapRegion::build(Some(file), 1 << 20, protection, flags).unwrap();
            GuestMemoryMmap::from_regions(vec![GuestRegionMmap::new(region, GuestAddress(0)).unwrap()]).unwrap()
        };
        let used = || Pages::of_copy(std::process::id(), &path).map_err(|error| error.to_string());
        let memory = map();
        let Ok(watch) = sys::without_neighbours(&memory) else {
            fs::remove_file(&path).unwrap();
            return eprintln!("skipped: this kernel has no userfaultfd of Linux 6.7");
        };
        let none = used();
        memory.read_obj::<u8>(GuestAddress(5 * PAGE_BYTES)).unwrap();
        memory.write_obj(7_u8, GuestAddress(40 * PAGE_BYTES)).unwrap();
        let two = used();
        drop((memory, watch));
        // The list makes those of another one ready.
        let other = map();
        two.as_ref().unwrap().make_ready(&other);
        let ready = used();
        assert_eq!(other.read_obj::<u8>(GuestAddress(40 * PAGE_BYTES)).unwrap(), 1);
        fs::remove_file(&path).unwrap();
        assert!(none.is_err_and(|error| error.contains("has not used a page")));
        assert_eq!(two, Ok(Pages(vec![(5, 1), (40, 1)])));
        assert_eq!(ready, two);
    }
}
