//! An image: an ELF file with a PVH entry, of which only what is needed is read; most of one is symbols.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The longest notes that are read: ours have 20 bytes.
const NOTES_BYTES_MAX: u64 = 64 << 10;
pub(crate) const CUT_OFF: &str = "the image is cut off: build it again";

/// An ELF file of 64 bits, opened.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // there nothing loads it
pub struct Image {
    pub(crate) file: File,
    /// The physical address at which a VMM enters it (Xen's `public/elfnote.h`, `XEN_ELFNOTE_PHYS32_ENTRY`); `None` if it is no image that boots.
    pub entry: Option<u64>,
    pub(crate) segments: Vec<Segment>,
}

/// Bytes of the file that belong into memory.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Image {
    /// Opens the image at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no ELF file of 64 bits, or is cut off.
    pub fn open(path: &Path) -> Result<Image> {
        let unreadable = || format!("cannot read {}", path.display());
        Image::read(File::open(path).with_context(unreadable)?)
    }

    /// Reads the headers.
    pub(crate) fn read(file: File) -> Result<Image> {
        const SEGMENT: u64 = 1;
        const NOTES: u64 = 4;
        let bytes_at = |at, count: u64| {
            let mut bytes = vec![0; usize::try_from(count).context(CUT_OFF)?];
            file.read_exact_at(&mut bytes, at).context(CUT_OFF)?;
            anyhow::Ok(bytes)
        };
        let header = bytes_at(0, 64)?;
        ensure!(header.starts_with(b"\x7fELF\x02"), "the image is no ELF file of 64 bits");
        let number = |bytes: &[u8], at, count| number(bytes, at, count).context(CUT_OFF);
        let (first, bytes, count) = (number(&header, 32, 8)?, number(&header, 54, 2)?, number(&header, 56, 2)?);
        let headers = bytes_at(first, bytes * count)?;
        let (mut entry, mut segments) = (None, Vec::new());
        for header in headers.chunks_exact((bytes as usize).max(1)) {
            let field = |at| number(header, at, 8);
            let (offset, bytes) = (field(8)?, field(32)?);
            match number(header, 0, 4)? {
                SEGMENT => segments.push(Segment { offset, address: field(24)?, bytes }),
                NOTES if bytes <= NOTES_BYTES_MAX => entry = entry_in(&bytes_at(offset, bytes)?).or(entry),
                _ => {}
            }
        }
        Ok(Image { file, entry, segments })
    }
}

/// A number of `count` bytes; `None` behind the end.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// The PVH entry in notes of an ELF file.
fn entry_in(notes: &[u8]) -> Option<u64> {
    const PHYS32_ENTRY: u64 = 18;
    const NAME: &[u8] = b"Xen\0";
    let mut at = 0_usize;
    loop {
        let (name, value) = (number(notes, at, 4)? as usize, number(notes, at + 4, 4)? as usize);
        let start = at + 12 + name.next_multiple_of(4);
        if number(notes, at + 8, 4)? == PHYS32_ENTRY && notes.get(at + 12..at + 12 + name) == Some(NAME) {
            return number(notes, start, 4);
        }
        at = start + value.next_multiple_of(4);
    }
}
