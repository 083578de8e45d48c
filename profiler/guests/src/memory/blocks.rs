//! Finds memory of a VMM that may be its guest's RAM: large, writable, not code; preferably a shared file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::proc::{MapsLine, parse_maps};

/// The smallest RAM that is considered: an ordinary VMM has many smaller pieces of memory.
const RAM_BYTES_MIN: u64 = 4 << 20;
/// The most descriptors of a process that are inspected.
const DESCRIPTORS_MAX: usize = 65_536;

/// A piece of a VMM's memory without gaps.
#[derive(Debug)]
pub(super) struct Block {
    /// Its address in the VMM.
    pub(super) host: u64,
    pub(super) bytes: u64,
    /// The file that it is mapped from, and its offset; none if it is private to the VMM.
    pub(super) file: Option<(File, u64)>,
    /// The number of that file, else 0.
    pub(super) inode: u64,
}

/// The memory map of a VMM, and the blocks in it that may be RAM: files first, then by size.
pub(super) fn of(pid: u32) -> io::Result<(Vec<MapsLine>, Vec<Block>)> {
    let lines = parse_maps(&fs::read_to_string(format!("/proc/{pid}/maps"))?);
    let mut blocks = Vec::new();
    for piece in join(&lines) {
        let file =
            if is_shared_file(&piece) { descriptor(pid, &piece)?.map(|file| (file, piece.offset)) } else { None };
        blocks.push(Block { host: piece.start, bytes: piece.end - piece.start, file, inode: piece.inode });
    }
    blocks.sort_by_key(|block| (block.file.is_none(), std::cmp::Reverse(block.bytes)));
    Ok((lines, blocks))
}

fn is_shared_file(line: &MapsLine) -> bool {
    line.is_shared && line.inode != 0
}

/// Joins adjacent mappings of the same memory, which the kernel has split because of a difference
/// that does not matter here; returns those that are large enough.
fn join(lines: &[MapsLine]) -> Vec<MapsLine> {
    let mut joined: Vec<MapsLine> = Vec::new();
    for line in lines {
        if let Some(last) = joined.last_mut()
            && continues(last, line)
        {
            last.end = line.end;
        } else if line.is_writable && !line.executable && !line.path.starts_with(['[']) && !is_device(line) {
            joined.push(line.clone());
        }
    }
    joined.retain(|line| line.end.saturating_sub(line.start) >= RAM_BYTES_MIN);
    joined
}

/// Whether a line continues the same memory. A VMM may write-protect a part of its guest's RAM.
fn continues(last: &MapsLine, line: &MapsLine) -> bool {
    is_shared_file(line)
        && is_shared_file(last)
        && (last.inode, last.end) == (line.inode, line.start)
        && last.offset.checked_add(last.end - last.start) == Some(line.offset)
}

fn is_device(line: &MapsLine) -> bool {
    let path = line.path.as_str();
    // The kernel's name for memory that processes share without a file; the device itself is not deleted.
    let is_nameless = path == "/dev/zero" && line.is_deleted;
    path.starts_with("anon_inode:")
        || (path.starts_with("/dev/")
            && !path.starts_with("/dev/shm/")
            && !path.starts_with("/dev/hugepages")
            && !is_nameless)
}

/// Opens the file of a mapping by one of the VMM's descriptors of it. By its path it might be another
/// one since, or none, as with a memfd.
fn descriptor(pid: u32, line: &MapsLine) -> io::Result<Option<File>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.take(DESCRIPTORS_MAX) {
        let path = entry?.path();
        // Opening a device or a pipe could have side effects; check the metadata for a plain file first.
        let is_it = fs::metadata(&path)
            .is_ok_and(|data| data.is_file() && data.ino() == line.inode && names(&path, &line.path));
        if is_it && let Ok(file) = File::open(&path) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Whether a descriptor's link names this path: inodes are unique within one file system only.
fn names(link: &std::path::Path, path: &str) -> bool {
    fs::read_link(link).is_ok_and(|target| target.to_string_lossy().trim_end_matches(" (deleted)") == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55b05ee4e000-55b06f8b4000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0002000000 rw-s 00000000 00:01 2048                       /memfd:memory-backend-memfd (deleted)
7f0002000000-7f0004000000 rw-s 02000000 00:01 2048                       /memfd:memory-backend-memfd (deleted)
7f0010000000-7f0012000000 rwxp 00000000 00:00 0
7f0020000000-7f0022000000 rw-s 00000000 00:0f 99                         /dev/dri/card0
7f0030000000-7f0032000000 rw-p 00000000 00:00 0
7f0040000000-7f0040001000 rw-s 00000000 00:0f 12                         anon_inode:kvm-vcpu:0
";

    #[test]
    fn what_may_be_ram() {
        let found: Vec<_> = join(&parse_maps(MAPS)).iter().map(|line| (line.start, line.end)).collect();
        assert_eq!(found, [(0x7f00_0000_0000, 0x7f00_0400_0000), (0x7f00_3000_0000, 0x7f00_3200_0000)]);
    }

    /// MirageOS's own VMM maps RAM so, and protects the guest's code in it.
    const SOLO5_HVT: &str = "\
7f0000000000-7f0000100000 rw-s 00000000 00:01 2048                       /dev/zero (deleted)
7f0000100000-7f0000180000 r--s 00100000 00:01 2048                       /dev/zero (deleted)
7f0000180000-7f0020000000 rw-s 00180000 00:01 2048                       /dev/zero (deleted)
7f0030000000-7f0032000000 rw-s 00000000 00:05 5                          /dev/zero
7f0040000000-7f0042000000 r--s 00000000 00:01 77                         /memfd:rom (deleted)
";

    #[test]
    fn ram_that_is_shared_and_nameless_with_a_protected_part() {
        let found: Vec<_> = join(&parse_maps(SOLO5_HVT)).iter().map(|line| (line.start, line.end)).collect();
        assert_eq!(found, [(0x7f00_0000_0000, 0x7f00_2000_0000)]);
    }
}
