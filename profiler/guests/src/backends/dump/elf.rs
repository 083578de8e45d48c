//! The headers of a dump: an ELF core as QEMU's `dump-guest-memory` writes it without paging.
//!
//! The first segment is a `NOTE`: `NT_PRSTATUS` of each vCPU, then QEMU's note of each, then room for `VMCOREINFO`, which is searched when
//! the guest runs again. A `LOAD` segment for each piece of RAM follows, with its physical address, and 0 as its virtual one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::elf::{ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_CORE, EV_CURRENT, NT_PRSTATUS, PT_LOAD, PT_NOTE};

use crate::arch::x86_64::all::AllRegisters;
use crate::memory::content::PAGE_BYTES;
use crate::systems::vmcoreinfo;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// The most pieces of RAM; KVM has at most 4,096 that our code reads.
const PIECES_MAX: usize = 65_000;
/// Where the size of the notes is: `p_filesz` of the first segment.
const NOTES_SIZE_AT: u64 = (HEADER_BYTES + 32) as u64;
/// Room for one more note.
const ROOM_BYTES: u64 = 24 + vmcoreinfo::TEXT_BYTES_MAX as u64;

/// The notes of a dump, to which one can be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notes(pub(super) Range<u64>);

/// What precedes RAM in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
    pub(super) notes: Notes,
    /// Where each piece goes.
    pub(super) offsets: Vec<u64>,
    /// The size of the whole file.
    pub(super) file_bytes: u64,
}

fn note(into: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) {
    for number in [name.len() as u32, content.len() as u32, kind] {
        into.extend(number.to_le_bytes());
    }
    for part in [name, content] {
        into.extend(part);
        into.resize(into.len().next_multiple_of(4), 0);
    }
}

fn segment(kind: u32, offset: u64, address: u64, bytes: u64) -> Vec<u8> {
    let words = [offset, 0, address, bytes, bytes, 0];
    let kind = [kind, 0].into_iter().flat_map(u32::to_le_bytes);
    kind.chain(words.into_iter().flat_map(u64::to_le_bytes)).collect()
}

/// The head for vCPUs, by their numbers, and pieces of RAM. Fails if there are too many pieces.
pub(super) fn head(vcpus: &[(u32, AllRegisters)], pieces: &[Range<u64>]) -> io::Result<Head> {
    let too_many = || io::Error::other(format!("the VM has its RAM in more than {PIECES_MAX} pieces"));
    let segments = u16::try_from(pieces.len() + 1).ok().filter(|_| pieces.len() <= PIECES_MAX).ok_or_else(too_many)?;
    let mut notes = Vec::new();
    vcpus.iter().for_each(|(vcpu, all)| note(&mut notes, b"CORE\0", NT_PRSTATUS.0, &all.status(*vcpu)));
    vcpus.iter().for_each(|(_, all)| note(&mut notes, b"QEMU\0", 0, &all.state()));
    let start = (HEADER_BYTES + SEGMENT_BYTES * usize::from(segments)) as u64;
    let notes_range = start..start + notes.len() as u64;

    let mut bytes = ELFMAG.to_vec();
    bytes.extend([ELFCLASS64.0, ELFDATA2LSB.0, EV_CURRENT.0]);
    bytes.resize(16, 0);
    bytes.extend([ET_CORE.0, EM_X86_64.0].map(u16::to_le_bytes).concat());
    bytes.extend(1u32.to_le_bytes());
    // No entry; the segments follow; no sections.
    bytes.extend([0, HEADER_BYTES as u64, 0].map(u64::to_le_bytes).concat());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend([HEADER_BYTES as u16, SEGMENT_BYTES as u16, segments, 0, 0, 0].map(u16::to_le_bytes).concat());
    bytes.extend(segment(PT_NOTE.0, start, 0, notes.len() as u64));
    let (mut offsets, mut end) = (Vec::with_capacity(pieces.len()), notes_range.end + ROOM_BYTES);
    for piece in pieces {
        // A block of the file system holds a page, so that one of zeros can be a hole.
        let offset = end.next_multiple_of(PAGE_BYTES);
        bytes.extend(segment(PT_LOAD.0, offset, piece.start, piece.end - piece.start));
        offsets.push(offset);
        end = offset.saturating_add(piece.end - piece.start);
    }
    bytes.extend(notes);
    Ok(Head { bytes, notes: Notes(notes_range), offsets, file_bytes: end })
}

impl Notes {
    /// Adds `VMCOREINFO`; `text` is at most as long as the kernel's room for it.
    pub(super) fn add_vmcoreinfo(&mut self, file: &File, text: &[u8]) -> io::Result<()> {
        let note = vmcoreinfo::note(text).ok_or_else(|| io::Error::other("VMCOREINFO is too long"))?;
        file.write_all_at(&note, self.0.end)?;
        self.0.end += note.len() as u64;
        let bytes = (self.0.end - self.0.start).to_le_bytes();
        // In the file, and in memory.
        file.write_all_at(&[bytes, bytes].concat(), NOTES_SIZE_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;
    use object::Endianness;
    use object::read::elf::{FileHeader, ProgramHeader};

    type Header = object::elf::FileHeader64<Endianness>;

    /// Owner, kind and length of each note.
    fn notes_of(bytes: &[u8]) -> Vec<(String, u32, usize)> {
        let header = Header::parse(bytes).unwrap();
        let endian = header.endian().unwrap();
        let segments = header.program_headers(endian, bytes).unwrap();
        let mut notes = segments[0].notes(endian, bytes).unwrap().unwrap();
        let mut found = Vec::new();
        while let Some(note) = notes.next().unwrap() {
            let owner = String::from_utf8(note.name().to_vec()).unwrap();
            found.push((owner, note.n_type(endian).0, note.desc().len()));
        }
        found
    }

    #[test]
    fn the_head_is_one_that_a_parser_reads() {
        let pieces = [0..0xa0000, 0x10_0000..0xc000_0000, 1 << 32..5 << 30];
        let vcpu = |rip| AllRegisters { rip, ..AllRegisters::default() };
        let mut head = head(&[(0, vcpu(7)), (1, vcpu(8))], &pieces).unwrap();
        let header = Header::parse(&head.bytes[..]).unwrap();
        let endian = header.endian().unwrap();
        assert_eq!((header.e_type(endian), header.e_machine(endian)), (ET_CORE, EM_X86_64));
        assert_eq!(header.e_version.get(endian), 1);
        let segments = header.program_headers(endian, &head.bytes[..]).unwrap();
        assert_eq!(segments.len(), 4);
        let mut before = head.notes.0.end + ROOM_BYTES;
        for ((segment, piece), offset) in segments[1..].iter().zip(&pieces).zip(&head.offsets) {
            assert_eq!(segment.p_type(endian), PT_LOAD);
            assert_eq!((segment.p_paddr(endian), segment.p_vaddr(endian)), (piece.start, 0));
            assert_eq!(segment.p_memsz(endian), piece.end - piece.start);
            assert_eq!(segment.file_range(endian), (*offset, piece.end - piece.start));
            assert!(offset.is_multiple_of(PAGE_BYTES) && *offset >= before, "pieces overlap");
            before = offset + (piece.end - piece.start);
        }
        assert_eq!(head.file_bytes, before);
        let of = |owner: &str, kind, bytes| (owner.to_owned(), kind, bytes);
        let mut expected = vec![of("CORE", 1, 336), of("CORE", 1, 336), of("QEMU", 0, 440), of("QEMU", 0, 440)];
        assert_eq!(notes_of(&head.bytes), expected);

        let folder = Folder::new("dump-head").unwrap();
        let path = folder.file("core");
        let file = File::options().write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&head.bytes, 0).unwrap();
        let text = [b'x'; vmcoreinfo::TEXT_BYTES_MAX];
        head.notes.add_vmcoreinfo(&file, &text).unwrap();
        assert!(head.notes.0.end <= head.offsets[0], "the longest text has room");
        expected.push(of("VMCOREINFO", 0, vmcoreinfo::TEXT_BYTES_MAX));
        assert_eq!(notes_of(&std::fs::read(&path).unwrap()), expected);
        assert!(head.notes.add_vmcoreinfo(&file, &[b'x'; vmcoreinfo::TEXT_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn our_reader_of_dumps_reads_it() {
        use object::ReadCache;
        let folder = Folder::new("dump-reader").unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(folder.file("core")).unwrap();
        let pieces = [0..0xa0000, 1 << 32..(1 << 32) + (1 << 20)];
        let mut head = head(&[(0, AllRegisters { rip: 7, ..AllRegisters::default() })], &pieces).unwrap();
        file.set_len(head.file_bytes).unwrap();
        file.write_all_at(&head.bytes, 0).unwrap();
        head.notes.add_vmcoreinfo(&file, b"OSRELEASE=6.1\n").unwrap();
        let parts = crate::backends::file::parse(&ReadCache::new(file), head.file_bytes, &head.bytes[..16]).unwrap();
        let found: Vec<_> = parts.pieces.iter().map(|piece| piece.address..piece.address + piece.bytes).collect();
        assert_eq!((&found[..], parts.cores.len(), parts.warning), (&pieces[..], 1, None));
        assert_eq!(parts.cores[0].registers.ip(), 7);
    }

    #[test]
    fn pieces_have_a_bound() {
        let pieces: Vec<_> = (0..PIECES_MAX as u64 + 1).map(|at| at << 13..(at << 13) + 4096).collect();
        assert!(head(&[], &pieces).is_err());
        assert_eq!(head(&[], &pieces[..PIECES_MAX]).unwrap().offsets.len(), PIECES_MAX);
    }
}
