//! The file of a C program: a static executable that runs at any address, as `glass build --c` links it.
//!
//! Its constants and code are used where the image has them, by all ranks. What it writes comes behind them, so that one piece of memory a rank
//! has its data, its heap and its stack.

use crate::paging::PAGE_BYTES;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Fields of the file's header and of a segment's (System V ABI, chapters 4 and 5).
mod field {
    pub const CLASS: usize = 4;
    pub const TYPE: usize = 16;
    pub const MACHINE: usize = 18;
    pub const ENTRY: usize = 24;
    pub const SEGMENTS_OFFSET: usize = 32;
    pub const SEGMENT_BYTES: usize = 54;
    pub const SEGMENTS: usize = 56;
}
const CLASS_64: u8 = 2;
const TYPE_POSITION_INDEPENDENT: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_HEADER_BYTES: u64 = 56;
const LOADED: u32 = 1;
const INTERPRETER: u32 = 3;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
/// No program needs more segments that are loaded, or more memory for its data.
const SEGMENTS_MAX: u16 = 64;
const DATA_BYTES_MAX: u64 = 1 << 36;

/// A part of the file that is used where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// Address of its first page, from the program's start.
    pub address: u64,
    /// Where its pages are in the file.
    pub file: Range<u64>,
    pub is_executable: bool,
}

/// A part of the file that each rank has a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// Its address, from the program's start.
    pub address: u64,
    /// The bytes in the file; zeros follow.
    pub file: Range<u64>,
}

/// What a file contains. Addresses count from the program's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub entry: u64,
    pub constants: Vec<Constant>,
    pub data: Vec<Data>,
    /// The pages of the data, with its zeros.
    pub writable: Range<u64>,
    /// Where the segments' headers are, for the C library, and how many.
    pub headers: u64,
    pub headers_count: u64,
}

/// Why a file cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElfError {
    /// The header is no x86-64 executable's that runs at any address.
    Kind,
    /// A header refers to bytes that are not in the file, or to too many.
    Broken,
    /// It wants another program to load it.
    Dynamic,
    /// Parts that are written and parts that are not are mixed.
    Order,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            ElfError::Kind => "is no x86-64 program that runs at any address",
            ElfError::Broken => "has a broken header",
            ElfError::Dynamic => "needs shared libraries",
            ElfError::Order => "has constants behind its data",
        })
    }
}

fn number<const BYTES: usize>(file: &[u8], offset: u64) -> Result<[u8; BYTES], ElfError> {
    let start = usize::try_from(offset).map_err(|_| ElfError::Broken)?;
    let bytes = file.get(start..start.saturating_add(BYTES)).ok_or(ElfError::Broken)?;
    bytes.try_into().map_err(|_| ElfError::Broken)
}

fn long(file: &[u8], offset: u64) -> Result<u64, ElfError> {
    number(file, offset).map(u64::from_le_bytes)
}

fn short(file: &[u8], offset: usize) -> Result<u16, ElfError> {
    number(file, offset as u64).map(u16::from_le_bytes)
}

fn page_of(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

impl Program {
    /// Reads the headers of `file`.
    pub fn read(file: &[u8]) -> Result<Program, ElfError> {
        let is_elf = file.starts_with(b"\x7fELF") && file.get(field::CLASS) == Some(&CLASS_64);
        let kind = (short(file, field::TYPE)?, short(file, field::MACHINE)?);
        if !is_elf || kind != (TYPE_POSITION_INDEPENDENT, MACHINE_X86_64) {
            return Err(ElfError::Kind);
        }
        let headers = long(file, field::SEGMENTS_OFFSET as u64)?;
        let count = short(file, field::SEGMENTS)?;
        if u64::from(short(file, field::SEGMENT_BYTES)?) != SEGMENT_HEADER_BYTES || count > SEGMENTS_MAX {
            return Err(ElfError::Broken);
        }
        let mut program = Program {
            entry: long(file, field::ENTRY as u64)?,
            constants: Vec::new(),
            data: Vec::new(),
            // Nothing yet: each segment extends it.
            writable: Range { start: u64::MAX, end: 0 },
            headers,
            headers_count: count.into(),
        };
        for index in 0..u64::from(count) {
            let header = headers.checked_add(index * SEGMENT_HEADER_BYTES).ok_or(ElfError::Broken)?;
            program.add(file, header)?;
        }
        program.check()
    }

    /// Adds the segment whose header is at `header`.
    fn add(&mut self, file: &[u8], header: u64) -> Result<(), ElfError> {
        let kind = number(file, header).map(u32::from_le_bytes)?;
        let flags = number(file, header + 4).map(u32::from_le_bytes)?;
        let [offset, address] = [long(file, header + 8)?, long(file, header + 16)?];
        let [file_bytes, bytes] = [long(file, header + 32)?, long(file, header + 40)?];
        match kind {
            INTERPRETER => return Err(ElfError::Dynamic),
            LOADED if bytes > 0 => {}
            _ => return Ok(()),
        }
        let end = offset.checked_add(file_bytes).filter(|end| *end <= file.len() as u64).ok_or(ElfError::Broken)?;
        let address_end = address.checked_add(bytes).filter(|end| *end <= DATA_BYTES_MAX).ok_or(ElfError::Broken)?;
        if file_bytes > bytes || offset % PAGE_BYTES != address % PAGE_BYTES {
            return Err(ElfError::Broken);
        }
        if flags & WRITABLE != 0 {
            if flags & EXECUTABLE != 0 {
                return Err(ElfError::Kind);
            }
            self.data.push(Data { address, file: offset..end });
            let pages = page_of(address)..address_end.next_multiple_of(PAGE_BYTES);
            self.writable = self.writable.start.min(pages.start)..self.writable.end.max(pages.end);
        } else {
            // Zeros behind the bytes of a constant would have to be in the file.
            if file_bytes != bytes {
                return Err(ElfError::Broken);
            }
            let is_executable = flags & EXECUTABLE != 0;
            self.constants.push(Constant { address: page_of(address), file: page_of(offset)..end, is_executable });
        }
        Ok(())
    }

    fn check(mut self) -> Result<Program, ElfError> {
        let constants_end = self.constants.iter().map(|part| part.address + (part.file.end - part.file.start)).max();
        let constants_end = constants_end.unwrap_or(0).next_multiple_of(PAGE_BYTES);
        if self.data.is_empty() {
            self.writable = constants_end..constants_end;
        }
        if self.writable.start < constants_end {
            return Err(ElfError::Order);
        }
        let is_code = |part: &Constant| {
            part.is_executable && (part.address..part.address + (part.file.end - part.file.start)).contains(&self.entry)
        };
        if !self.constants.iter().any(is_code) {
            return Err(ElfError::Broken);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A file with these segments: kind, flags, offset, address, bytes in the file and in memory.
    fn file(segments: &[(u32, u32, u64, u64, u64, u64)]) -> Vec<u8> {
        let mut file = vec![0; 0x7000];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[16..20].copy_from_slice(&[3, 0, 62, 0]);
        file[24..32].copy_from_slice(&0x1080u64.to_le_bytes());
        file[32] = 64;
        file[54] = 56;
        file[56] = segments.len() as u8;
        for (index, (kind, flags, offset, address, file_bytes, bytes)) in segments.iter().enumerate() {
            let at = 64 + 56 * index;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
            for (place, number) in [(8, offset), (16, address), (32, file_bytes), (40, bytes)] {
                file[at + place..at + place + 8].copy_from_slice(&number.to_le_bytes());
            }
        }
        file
    }

    const HEADERS: (u32, u32, u64, u64, u64, u64) = (1, 4, 0, 0, 0x358, 0x358);
    const CODE: (u32, u32, u64, u64, u64, u64) = (1, 5, 0x1000, 0x1000, 0x3db7, 0x3db7);
    const DATA: (u32, u32, u64, u64, u64, u64) = (1, 6, 0x5e34, 0x6e34, 0x2dc, 0x984);

    #[test]
    fn constants_stay_in_the_file_and_data_is_copied() {
        let program = Program::read(&file(&[HEADERS, CODE, DATA, (7, 4, 0x5e34, 0x6e34, 4, 4)])).unwrap();
        assert_eq!((program.entry, program.headers, program.headers_count), (0x1080, 64, 4));
        let constants = [
            Constant { address: 0, file: 0..0x358, is_executable: false },
            Constant { address: 0x1000, file: 0x1000..0x4db7, is_executable: true },
        ];
        assert_eq!(program.constants, constants);
        assert_eq!(program.data, [Data { address: 0x6e34, file: 0x5e34..0x6110 }]);
        assert_eq!(program.writable, 0x6000..0x8000);
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let read = |segments: &[(u32, u32, u64, u64, u64, u64)]| Program::read(&file(segments)).unwrap_err();
        assert_eq!(read(&[HEADERS]), ElfError::Broken);
        assert_eq!(read(&[CODE, (3, 4, 0, 0, 8, 8)]), ElfError::Dynamic);
        assert_eq!(read(&[CODE, (1, 7, 0x5000, 0x5000, 8, 8)]), ElfError::Kind);
        assert_eq!(read(&[CODE, DATA, (1, 4, 0x6000, 0x8000, 8, 8)]), ElfError::Order);
        // Bytes behind the end, a distance that overflows, zeros behind constants, a page at two distances, too much.
        for broken in [
            (1, 6, 0x6000, 0x6000, 0x1001, 0x1001),
            (1, 6, u64::MAX - 4, 0x6000, 8, 8),
            (1, 6, 0x6000, u64::MAX - 0xfff, 8, 0x1000),
            (1, 4, 0x6000, 0x6000, 8, 9),
            (1, 6, 0x6000, 0x6001, 8, 8),
            (1, 6, 0x6000, 0x6000, 8, 1 << 40),
        ] {
            assert_eq!(read(&[CODE, broken]), ElfError::Broken, "{broken:x?}");
        }
        assert_eq!(Program::read(b"\x7fELF").unwrap_err(), ElfError::Broken);
        let mut fixed = file(&[CODE]);
        fixed[16] = 2;
        assert_eq!(Program::read(&fixed).unwrap_err(), ElfError::Kind);
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let whole = file(&[HEADERS, CODE, DATA]);
        for position in 0..64 + 3 * 56 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut broken = whole.clone();
                broken[position] = value;
                let _ = Program::read(&broken);
                let _ = Program::read(&broken[..position]);
            }
        }
    }
}
