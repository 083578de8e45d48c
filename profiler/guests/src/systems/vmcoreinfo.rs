//! `VMCOREINFO` of a Linux: the text by which crash and drgn read a dump of it (`Documentation/admin-guide/kdump/vmcoreinfo.rst`). The
//! kernel keeps it in its memory as an ELF note, `vmcoreinfo_note`, so it is found without symbols.
//!
//! Everything here is written by the guest: a text counts if it has the form of the kernel's, and its content is nothing that we act on.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The longest text: the kernel's room for it is a page.
pub const TEXT_BYTES_MAX: usize = 4096;
/// The name of the note, with the zeros that follow it.
pub(crate) const NAME: [u8; 12] = *b"VMCOREINFO\0\0";
/// Its length without the second zero.
pub(crate) const NAME_BYTES: u32 = 11;
/// The note's header: the lengths of the name and of the text, a type of 0, and the name.
const HEADER_BYTES: usize = 12 + NAME.len();
/// What the text starts with.
const START: &[u8] = b"OSRELEASE=";
/// A line of each kernel of x86-64.
const PAGE_SIZE: &[u8] = b"PAGESIZE=4096";
/// How many texts of another form are inspected: a guest may have its memory full of them.
const OTHERS_MAX: u32 = 10_000;
/// How much of a file is read at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Where a file has the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its place.
    pub range: Range<u64>,
    /// The version of the kernel, as the guest writes it: printable, of one line.
    pub release: String,
}

/// Searches memory, which starts at a multiple of 4; `others` counts what has only the header of the note.
fn find(memory: &[u8], others: &mut u32) -> Option<Range<usize>> {
    // The name is at a multiple of 4, so its first or its second half starts a word.
    let (first, second) = (u64::from_le_bytes(*b"VMCOREIN"), u64::from_le_bytes(*b"REINFO\0\0"));
    for (index, word) in memory.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(std::array::from_fn(|at| word[at]));
        let name = match word {
            _ if word == first => index * 8,
            _ if word == second && index > 0 => index * 8 - 4,
            _ => continue,
        };
        if *others >= OTHERS_MAX {
            return None;
        }
        let range = name.checked_sub(12).and_then(|start| text_of(memory, start));
        if range.is_some() {
            return range;
        }
        *others += 1;
    }
    None
}

/// The text of the note that starts there, if it is one.
fn text_of(memory: &[u8], start: usize) -> Option<Range<usize>> {
    let header = memory.get(start..start + HEADER_BYTES)?;
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    if number(0) != NAME_BYTES || number(8) != 0 || header[12..] != NAME {
        return None;
    }
    let bytes = Some(number(4) as usize).filter(|bytes| *bytes <= TEXT_BYTES_MAX)?;
    let range = start + HEADER_BYTES..start + HEADER_BYTES + bytes;
    is_text(memory.get(range.clone())?).then_some(range)
}

/// Whether it has the form of the kernel's text: lines `KEY=VALUE`, and those that all kernels have.
fn is_text(bytes: &[u8]) -> bool {
    let is_printable = |byte: &u8| *byte == b'\n' || (b' '..=b'~').contains(byte);
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let has_key = |line: &[u8]| line.iter().position(|byte| *byte == b'=').is_some_and(|at| at > 0);
    bytes.starts_with(START)
        && bytes.iter().all(is_printable)
        && text.split(|byte| *byte == b'\n').all(has_key)
        && text.split(|byte| *byte == b'\n').any(|line| line == PAGE_SIZE)
}

/// The version of the kernel in a text.
fn release(text: &[u8]) -> String {
    let line = text.strip_prefix(START).and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    String::from_utf8_lossy(line.unwrap_or_default()).chars().take(128).collect()
}

/// Searches a buffer: for tests of any input.
#[doc(hidden)]
pub fn find_in_memory(memory: &[u8]) -> Option<Range<usize>> {
    find(memory, &mut 0)
}

/// Searches a dump from an offset on, a multiple of 4. Its holes are not read.
pub fn find_in(file: &File, from: u64) -> io::Result<Option<Found>> {
    let file_bytes = file.metadata()?.len();
    let mut others = 0;
    let mut window = vec![0; WINDOW_BYTES + HEADER_BYTES + TEXT_BYTES_MAX];
    let mut at = from;
    while at < file_bytes && others < OTHERS_MAX {
        let (start, end) = match seek(file, SeekFrom::Data(at)) {
            // The text has no zeros, so it ends in front of a hole.
            Ok(data) => (at.max(data & !3), seek(file, SeekFrom::Hole(data)).unwrap_or(file_bytes)),
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(_) => (at, file_bytes),
        };
        let end = end.min(file_bytes);
        let wanted = window.len().min(usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX));
        file.read_exact_at(&mut window[..wanted], start)?;
        if let Some(range) = find(&window[..wanted], &mut others) {
            let release = release(&window[range.clone()]);
            return Ok(Some(Found { range: start + range.start as u64..start + range.end as u64, release }));
        }
        at = start.saturating_add(WINDOW_BYTES as u64).min(end.max(start + 4));
    }
    Ok(None)
}

/// The note with a text, for an ELF file; `None` if that is too long.
pub(crate) fn note(text: &[u8]) -> Option<Vec<u8>> {
    let bytes = Some(text.len()).filter(|bytes| *bytes <= TEXT_BYTES_MAX)? as u32;
    let header = [NAME_BYTES, bytes, 0].map(u32::to_le_bytes).concat();
    let mut note = [&header[..], &NAME, text].concat();
    note.resize(note.len().next_multiple_of(4), 0);
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"OSRELEASE=6.1.0-28-cloud-amd64\nBUILD-ID=0123\nPAGESIZE=4096\nSYMBOL(init_uts_ns)=ffffffff82414a80\nKERNELOFFSET=1a000000\n";

    fn memory_with(note: &[u8], at: usize) -> Vec<u8> {
        let mut memory = vec![0; 64 << 10];
        memory[at..at + note.len()].copy_from_slice(note);
        memory
    }

    #[test]
    fn a_note_is_found_at_each_multiple_of_four() {
        let note = note(TEXT).unwrap();
        for at in [0, 4, 8, 12, 4096, 4100, (64 << 10) - note.len()] {
            let memory = memory_with(&note, at);
            let found = find_in_memory(&memory).unwrap_or_else(|| panic!("at {at}"));
            assert_eq!(&memory[found], TEXT, "at {at}");
        }
        assert_eq!(find_in_memory(&memory_with(&note, 4098)), None);
        assert_eq!(release(TEXT), "6.1.0-28-cloud-amd64");
    }

    #[test]
    fn what_only_resembles_one_is_passed_over() {
        let right = note(TEXT).unwrap();
        let changed = |from: &str, to: &str| {
            let text = String::from_utf8(TEXT.to_vec()).unwrap().replace(from, to);
            note(text.as_bytes()).unwrap()
        };
        let with = |at: usize, value: u32| {
            let mut note = right.clone();
            note[at..at + 4].copy_from_slice(&value.to_le_bytes());
            note
        };
        let wrong = [
            changed("PAGESIZE=4096", "PAGESIZE=16384"),
            changed("OSRELEASE", "RELEASE"),
            changed("6.1.0", "\x1b[2J"),
            changed("BUILD-ID=0123", "no line of a key"),
            changed("BUILD-ID=0123", "=0123"),
            changed("BUILD-ID=0123", ""),
            with(0, 12),
            with(8, 1),
            with(4, 5000),
            with(4, u32::MAX),
            with(4, 5),
            // Behind the text.
            with(4, TEXT.len() as u32 + 100),
        ];
        for (index, note) in wrong.iter().enumerate() {
            let mut memory = memory_with(note, 8192);
            assert_eq!(find_in_memory(&memory), None, "{index}");
            memory[16384..][..right.len()].copy_from_slice(&right);
            assert_eq!(find_in_memory(&memory).map(|found| found.start), Some(16384 + HEADER_BYTES), "{index}");
        }
        for cut in 0..right.len() - 3 {
            assert_eq!(find_in_memory(&right[..cut]), None);
        }
    }

    /// The search of memory that is full of what is almost one has an end.
    #[test]
    fn memory_full_of_others_is_given_up() {
        let almost = note(&TEXT[..TEXT.len() - 2]).unwrap();
        let mut memory = Vec::new();
        let mut bad = almost.clone();
        bad[24..].fill(0);
        while memory.len() < bad.len() * (OTHERS_MAX as usize + 1) {
            memory.extend(&bad);
        }
        memory.extend(note(TEXT).unwrap());
        assert_eq!(find_in_memory(&memory), None);
        assert!(find_in_memory(&memory[bad.len() * 2..]).is_some());
    }

    #[test]
    fn a_file_is_searched_across_windows_and_holes() {
        let path = std::env::temp_dir().join(format!("glass-vmcoreinfo-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let note = note(TEXT).unwrap();
        let at = 3 * WINDOW_BYTES as u64 - 40;
        file.write_all_at(&note, at).unwrap();
        file.set_len(64 << 20).unwrap();
        let found = find_in(&file, 4096).unwrap().unwrap();
        assert_eq!(found.range, at + HEADER_BYTES as u64..at + (HEADER_BYTES + TEXT.len()) as u64);
        assert_eq!(find_in(&file, at + 4).unwrap(), None);
        assert_eq!(find_in(&file, 1 << 40).unwrap(), None);
    }
}
