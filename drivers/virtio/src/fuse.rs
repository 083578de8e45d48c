//! Messages of FUSE as virtio-fs carries them (virtio 1.2, section 5.11.6; `include/uapi/linux/fuse.h` of Linux, protocol 7.31): bytes of
//! requests and answers, and nothing that moves them.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::{DirectoryEntry, FileError, FileKind, Metadata};

/// The version that we speak: the first without an extended INIT, which every daemon for virtio-fs has.
const MAJOR: u32 = 7;
const MINOR: u32 = 31;
/// The first number of a node: the root.
pub const ROOT: u64 = 1;
/// Bytes of a request's header.
const REQUEST_BYTES: usize = 40;
/// Bytes of an answer's header.
pub const ANSWER_BYTES: usize = 16;
/// The longest answer besides data: a created file.
pub const FIXED_BYTES_MAX: usize = ENTRY_BYTES + OPEN_BYTES;
const ATTRIBUTE_BYTES: usize = 88;
pub const ENTRY_BYTES: usize = 40 + ATTRIBUTE_BYTES;
pub const ATTRIBUTES_BYTES: usize = 16 + ATTRIBUTE_BYTES;
pub const OPEN_BYTES: usize = 16;
pub const INIT_BYTES: usize = 64;
pub const WRITE_BYTES: usize = 8;
/// Bytes of an entry of a directory before its name.
const DIRECTORY_ENTRY_BYTES: usize = 24;

/// INIT: requests of more than 128 KiB, whose pages INIT's answer counts.
const FLAG_MAX_PAGES: u32 = 1 << 22;
/// INIT: writes of more than a page.
const FLAG_BIG_WRITES: u32 = 1 << 5;
/// Pages of a request without [`FLAG_MAX_PAGES`].
const PAGES_DEFAULT: u16 = 32;
const PAGE_BYTES: usize = 4096;

const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;
const O_EXCL: u32 = 0o200;
const O_DIRECTORY: u32 = 0o200_000;
const O_NOFOLLOW: u32 = 0o400_000;

const ATTRIBUTE_SIZE: u32 = 1 << 3;
const ATTRIBUTE_HANDLE: u32 = 1 << 6;
/// GETATTR of an open file.
const GETATTR_HANDLE: u32 = 1;
/// New files and directories may be used by their owner, and read by others.
const FILE_MODE: u32 = 0o100_644;
const DIRECTORY_MODE: u32 = 0o755;
const UMASK: u32 = 0o022;

/// The end of the year 9999, the last that dates of HTTP can name.
const SECS_MAX: u64 = 253_402_300_799;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Opcode {
    Lookup = 1,
    Forget = 2,
    GetAttributes = 3,
    SetAttributes = 4,
    MakeDirectory = 9,
    Unlink = 10,
    RemoveDirectory = 11,
    Rename = 12,
    Open = 14,
    Read = 15,
    Write = 16,
    Release = 18,
    Sync = 20,
    Init = 26,
    OpenDirectory = 27,
    ReadDirectory = 28,
    ReleaseDirectory = 29,
    Create = 35,
}

/// A request without its data, and the length of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub opcode: Opcode,
    pub bytes: Vec<u8>,
    /// Bytes of the answer behind its header and before its data.
    pub answer_bytes: usize,
}

impl Message {
    fn new(opcode: Opcode, node: u64, answer_bytes: usize) -> Message {
        let mut message = Message { opcode, bytes: Vec::with_capacity(REQUEST_BYTES + 88), answer_bytes };
        // The length and the number come last. User and group are root's, as the daemon acts for the service alone.
        message.u32(0).u32(opcode as u32).u64(0).u64(node).u64(0).u64(0);
        message
    }

    fn u32(&mut self, value: u32) -> &mut Message {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Message {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn name(&mut self, name: &str) -> &mut Message {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self
    }

    /// The whole message, once its number and the length of the data behind it are known.
    pub fn finish(&mut self, number: u64, data_bytes: usize) -> &[u8] {
        let total = (self.bytes.len() + data_bytes) as u32;
        self.bytes[0..4].copy_from_slice(&total.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        &self.bytes
    }

    pub fn init() -> Message {
        let mut message = Message::new(Opcode::Init, 0, INIT_BYTES);
        message.u32(MAJOR).u32(MINOR).u32(0).u32(FLAG_MAX_PAGES | FLAG_BIG_WRITES);
        message
    }

    pub fn lookup(parent: u64, name: &str) -> Message {
        let mut message = Message::new(Opcode::Lookup, parent, ENTRY_BYTES);
        message.name(name);
        message
    }

    /// Has no answer.
    pub fn forget(node: u64, lookups: u64) -> Message {
        let mut message = Message::new(Opcode::Forget, node, 0);
        message.u64(lookups);
        message
    }

    pub fn attributes(node: u64, handle: Option<u64>) -> Message {
        let mut message = Message::new(Opcode::GetAttributes, node, ATTRIBUTES_BYTES);
        message.u32(if handle.is_some() { GETATTR_HANDLE } else { 0 }).u32(0).u64(handle.unwrap_or(0));
        message
    }

    pub fn truncate(node: u64, handle: u64, bytes: u64) -> Message {
        let mut message = Message::new(Opcode::SetAttributes, node, ATTRIBUTES_BYTES);
        message.u32(ATTRIBUTE_SIZE | ATTRIBUTE_HANDLE).u32(0).u64(handle).u64(bytes);
        // Owner of locks, three times and their nanoseconds, mode, user, group: none of them is set.
        (0..8).for_each(|_| _ = message.u64(0));
        message
    }

    pub fn open(node: u64, is_write: bool) -> Message {
        let mut message = Message::new(Opcode::Open, node, OPEN_BYTES);
        message.u32(if is_write { O_RDWR } else { O_RDONLY } | O_NOFOLLOW).u32(0);
        message
    }

    pub fn create(parent: u64, name: &str) -> Message {
        let mut message = Message::new(Opcode::Create, parent, ENTRY_BYTES + OPEN_BYTES);
        message.u32(O_RDWR | O_EXCL | O_NOFOLLOW).u32(FILE_MODE).u32(UMASK).u32(0).name(name);
        message
    }

    pub fn read(node: u64, handle: u64, offset: u64, bytes: u32) -> Message {
        Message::transfer(Opcode::Read, node, handle, offset, bytes, 0)
    }

    pub fn write(node: u64, handle: u64, offset: u64, bytes: u32) -> Message {
        Message::transfer(Opcode::Write, node, handle, offset, bytes, WRITE_BYTES)
    }

    pub fn read_directory(node: u64, handle: u64, offset: u64, bytes: u32) -> Message {
        Message::transfer(Opcode::ReadDirectory, node, handle, offset, bytes, 0)
    }

    fn transfer(opcode: Opcode, node: u64, handle: u64, offset: u64, bytes: u32, answer_bytes: usize) -> Message {
        let mut message = Message::new(opcode, node, answer_bytes);
        // Flags, owner of locks, flags of the file.
        message.u64(handle).u64(offset).u32(bytes).u32(0).u64(0).u32(0).u32(0);
        message
    }

    pub fn release(node: u64, handle: u64) -> Message {
        let mut message = Message::new(Opcode::Release, node, 0);
        message.u64(handle).u32(0).u32(0).u64(0);
        message
    }

    pub fn open_directory(node: u64) -> Message {
        let mut message = Message::new(Opcode::OpenDirectory, node, OPEN_BYTES);
        message.u32(O_DIRECTORY).u32(0);
        message
    }

    pub fn release_directory(node: u64, handle: u64) -> Message {
        let mut message = Message::new(Opcode::ReleaseDirectory, node, 0);
        message.u64(handle).u32(0).u32(0).u64(0);
        message
    }

    pub fn sync(node: u64, handle: u64) -> Message {
        let mut message = Message::new(Opcode::Sync, node, 0);
        message.u64(handle).u32(0).u32(0);
        message
    }

    pub fn make_directory(parent: u64, name: &str) -> Message {
        let mut message = Message::new(Opcode::MakeDirectory, parent, ENTRY_BYTES);
        message.u32(DIRECTORY_MODE).u32(UMASK).name(name);
        message
    }

    /// Removes a file, or a directory.
    pub fn remove(parent: u64, name: &str, is_directory: bool) -> Message {
        let opcode = if is_directory { Opcode::RemoveDirectory } else { Opcode::Unlink };
        let mut message = Message::new(opcode, parent, 0);
        message.name(name);
        message
    }

    pub fn rename(parent: u64, name: &str, new_parent: u64, new_name: &str) -> Message {
        let mut message = Message::new(Opcode::Rename, parent, 0);
        message.u64(new_parent).name(name).name(new_name);
        message
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// An answer's header, checked against the request's number and the bytes that the device has written.
///
/// An error is the device's: `Err` for one that no correct device makes.
pub fn check_answer(header: &[u8], number: u64, written_bytes: usize) -> Result<Result<(), FileError>, &'static str> {
    let (length, error) = (u32_at(header, 0) as usize, u32_at(header, 4) as i32);
    if written_bytes < ANSWER_BYTES || length != written_bytes {
        return Err("the length of an answer is wrong");
    }
    if u64_at(header, 8) != number {
        return Err("an answer has another number than its request");
    }
    match error {
        0 => Ok(Ok(())),
        // As Linux, which has no higher numbers.
        -4095..=-1 => Ok(Err(FileError::from_errno(-error))),
        _ => Err("the error of an answer is none"),
    }
}

/// What INIT has agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a read at most.
    pub read_bytes_max: usize,
    /// Bytes of a write at most.
    pub write_bytes_max: usize,
}

/// The answer to INIT.
pub fn limits(answer: &[u8]) -> Result<Limits, &'static str> {
    if u32_at(answer, 0) != MAJOR || u32_at(answer, 4) < MINOR {
        return Err("its host speaks an older FUSE than 7.31");
    }
    let pages = if u32_at(answer, 12) & FLAG_MAX_PAGES != 0 { u16_at(answer, 28) } else { PAGES_DEFAULT };
    let bytes_max = usize::from(pages.max(1)) * PAGE_BYTES;
    let write_bytes_max = (u32_at(answer, 20) as usize).clamp(PAGE_BYTES, bytes_max.max(PAGE_BYTES));
    Ok(Limits { read_bytes_max: bytes_max, write_bytes_max })
}

/// What LOOKUP, CREATE and MKDIR answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node's number; 0 if there is no such name, which may be cached too.
    pub node: u64,
    /// How long the name leads to this node.
    pub name_valid: Duration,
    /// How long the metadata is right.
    pub metadata_valid: Duration,
    pub metadata: Metadata,
}

pub fn entry(answer: &[u8]) -> Entry {
    let time = |secs: usize, nanos: usize| duration(u64_at(answer, secs), u32_at(answer, nanos));
    Entry {
        node: u64_at(answer, 0),
        name_valid: time(16, 32),
        metadata_valid: time(24, 36),
        metadata: metadata(answer.get(40..).unwrap_or(&[])),
    }
}

/// The answer to GETATTR and SETATTR: the metadata, and how long it is right.
pub fn attributes(answer: &[u8]) -> (Metadata, Duration) {
    (metadata(answer.get(16..).unwrap_or(&[])), duration(u64_at(answer, 0), u32_at(answer, 8)))
}

/// The handle in the answer to OPEN, OPENDIR and, behind the entry, CREATE.
pub fn handle(answer: &[u8]) -> u64 {
    u64_at(answer, 0)
}

/// The bytes that the answer to WRITE reports.
pub fn written(answer: &[u8]) -> usize {
    u32_at(answer, 0) as usize
}

fn duration(secs: u64, nanos: u32) -> Duration {
    Duration::from_secs(secs).saturating_add(Duration::from_nanos(nanos.into()))
}

/// A size or a time that no file of a host has is replaced by the largest one, so that a service can compute with it.
fn metadata(attributes: &[u8]) -> Metadata {
    let mode = u32_at(attributes, 60);
    let time = |secs: usize, nanos: usize| duration(u64_at(attributes, secs).min(SECS_MAX), u32_at(attributes, nanos));
    Metadata {
        kind: kind(mode >> 12),
        bytes: u64_at(attributes, 8).min(i64::MAX as u64),
        modified: time(32, 52),
        changed: time(40, 56),
        number: u64_at(attributes, 0),
        links: u32_at(attributes, 64),
    }
}

/// The upper bits of a mode, which are also the type of an entry.
fn kind(number: u32) -> FileKind {
    match number {
        0o10 => FileKind::File,
        0o04 => FileKind::Directory,
        0o12 => FileKind::SymbolicLink,
        _ => FileKind::Other,
    }
}

/// Entries in the answer to READDIR: those that have a name of [`glass_api::Files`] go to `into`. Returns the offset of the next request;
/// `None` at the end of the directory.
pub fn directory_entries(mut data: &[u8], into: &mut Vec<DirectoryEntry>) -> Result<Option<u64>, &'static str> {
    let mut next = None;
    while !data.is_empty() {
        let name_bytes = u32_at(data, 16) as usize;
        let end = DIRECTORY_ENTRY_BYTES.checked_add(name_bytes).filter(|end| *end <= data.len());
        let Some(end) = end.filter(|_| name_bytes > 0) else {
            return Err("an entry of a directory is cut");
        };
        next = Some(u64_at(data, 8));
        let name = core::str::from_utf8(&data[DIRECTORY_ENTRY_BYTES..end]).ok();
        let is_valid = |name: &&str| glass_api::check_path(name).is_ok() && !name.contains('/');
        if let Some(name) = name.filter(is_valid) {
            into.push(DirectoryEntry { name: String::from(name), kind: kind(u32_at(data, 20)) });
        }
        data = data.get(end.next_multiple_of(8)..).unwrap_or(&[]);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_message_has_its_length_number_and_node() {
        let mut message = Message::lookup(7, "name");
        let bytes = message.finish(9, 0);
        assert_eq!(bytes.len(), REQUEST_BYTES + 5);
        assert_eq!((u32_at(bytes, 0), u32_at(bytes, 4), u64_at(bytes, 8), u64_at(bytes, 16)), (45, 1, 9, 7));
        assert_eq!(&bytes[REQUEST_BYTES..], b"name\0");
        // The whole structures, by their sizes in fuse.h.
        let sizes = |message: &Message| message.bytes.len() - REQUEST_BYTES;
        assert_eq!(sizes(&Message::init()), 16);
        assert_eq!(sizes(&Message::attributes(1, Some(2))), 16);
        assert_eq!(sizes(&Message::truncate(1, 2, 3)), 88);
        assert_eq!(sizes(&Message::read(1, 2, 3, 4)), 40);
        assert_eq!(sizes(&Message::release(1, 2)), 24);
        assert_eq!(sizes(&Message::create(1, "")), 17);
        let mut write = Message::write(1, 2, 3, 100);
        assert_eq!(u32_at(write.finish(1, 100), 0), 180);
    }

    /// The numbers are those of `fcntl.h` and `fuse.h`.
    #[test]
    fn files_are_opened_and_made_as_the_service_wants() {
        let words = |message: Message, count: usize| {
            (0..count).map(|word| u32_at(&message.bytes, REQUEST_BYTES + 4 * word)).collect::<Vec<_>>()
        };
        // No link at the end of the path leads elsewhere; what is made is there only once.
        assert_eq!(words(Message::open(1, false), 2), [0o400_000, 0]);
        assert_eq!(words(Message::open(1, true), 2), [0o400_002, 0]);
        assert_eq!(words(Message::create(1, "x"), 4), [0o400_202, 0o100_644, 0o022, 0]);
        assert_eq!(words(Message::open_directory(1), 2), [0o200_000, 0]);
        assert_eq!(words(Message::make_directory(1, "x"), 2), [0o755, 0o022]);
        assert_eq!(words(Message::attributes(1, None), 4), [0, 0, 0, 0]);
        assert_eq!(words(Message::attributes(1, Some(1 << 32 | 7)), 4), [1, 0, 7, 1]);
    }

    #[test]
    fn answers_that_no_correct_device_gives_are_refused() {
        let header = |length: u32, error: i32, number: u64| {
            [&length.to_le_bytes()[..], &error.to_le_bytes(), &number.to_le_bytes()].concat()
        };
        assert_eq!(check_answer(&header(16, 0, 5), 5, 16), Ok(Ok(())));
        assert_eq!(check_answer(&header(16, -2, 5), 5, 16), Ok(Err(FileError::NotFound)));
        for (bytes, written) in [
            (header(16, 0, 4), 16),
            (header(17, 0, 5), 16),
            (header(16, 1, 5), 16),
            (header(16, -5000, 5), 16),
            (header(15, 0, 5), 15),
        ] {
            assert!(check_answer(&bytes, 5, written).is_err(), "{bytes:?}");
        }
        assert!(check_answer(&header(16, i32::MIN, 5), 5, 16).is_err());
    }

    fn directory_entry(offset: u64, kind: u32, name: &[u8]) -> Vec<u8> {
        let mut bytes = [&1u64.to_le_bytes()[..], &offset.to_le_bytes(), &(name.len() as u32).to_le_bytes()].concat();
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn entries_without_a_usable_name_are_left_out() {
        let data = [
            directory_entry(1, 4, b"."),
            directory_entry(2, 4, b".."),
            directory_entry(3, 8, b"file"),
            directory_entry(4, 8, b"\xff"),
            directory_entry(5, 8, b"a/b"),
            directory_entry(9, 10, b"link"),
        ];
        let mut entries = Vec::new();
        assert_eq!(directory_entries(&data.concat(), &mut entries), Ok(Some(9)));
        let names: Vec<_> = entries.iter().map(|entry| (&entry.name[..], entry.kind)).collect();
        assert_eq!(names, [("file", FileKind::File), ("link", FileKind::SymbolicLink)]);
        assert_eq!(directory_entries(&[], &mut entries), Ok(None));
        let whole = directory_entry(1, 8, b"name-of-nine");
        for cut in 1..DIRECTORY_ENTRY_BYTES + 12 {
            assert!(directory_entries(&whole[..cut], &mut Vec::new()).is_err(), "{cut}");
        }
        assert!(directory_entries(&directory_entry(1, 8, b""), &mut Vec::new()).is_err(), "it has no name");
        let mut long = directory_entry(1, 8, b"x");
        long[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(directory_entries(&long, &mut Vec::new()).is_err());
    }

    #[test]
    fn sizes_and_times_are_those_of_files() {
        let mut answer = [0xff; ATTRIBUTES_BYTES];
        let (metadata, valid) = attributes(&answer);
        assert_eq!((metadata.bytes, metadata.modified.as_secs()), (i64::MAX as u64, SECS_MAX + 4));
        // Each is added to a moment or to another size.
        assert!(metadata.changed.checked_add(Duration::from_secs(1 << 40)).is_some() && valid > Duration::from_secs(1));
        answer[16 + 8..16 + 16].copy_from_slice(&7u64.to_le_bytes());
        answer[16 + 32..16 + 40].copy_from_slice(&9u64.to_le_bytes());
        answer[16 + 52..16 + 56].copy_from_slice(&5u32.to_le_bytes());
        let (metadata, _) = attributes(&answer);
        assert_eq!((metadata.bytes, metadata.modified), (7, Duration::new(9, 5)));
    }

    #[test]
    fn limits_are_those_of_the_host() {
        let mut answer = vec![0; INIT_BYTES];
        answer[0] = 7;
        answer[4] = 31;
        answer[20..24].copy_from_slice(&(1u32 << 20).to_le_bytes());
        assert_eq!(limits(&answer), Ok(Limits { read_bytes_max: 128 << 10, write_bytes_max: 128 << 10 }));
        answer[12..16].copy_from_slice(&FLAG_MAX_PAGES.to_le_bytes());
        answer[28..30].copy_from_slice(&256u16.to_le_bytes());
        assert_eq!(limits(&answer), Ok(Limits { read_bytes_max: 1 << 20, write_bytes_max: 1 << 20 }));
        // A write is no longer than the host permits, and takes a page at least.
        answer[20..24].copy_from_slice(&5000u32.to_le_bytes());
        assert_eq!(limits(&answer), Ok(Limits { read_bytes_max: 1 << 20, write_bytes_max: 5000 }));
        answer[20..24].fill(0);
        answer[28..30].fill(0);
        assert_eq!(limits(&answer), Ok(Limits { read_bytes_max: 4096, write_bytes_max: 4096 }));
        answer[4] = 30;
        assert!(limits(&answer).is_err());
        (answer[0], answer[4]) = (8, 31);
        assert!(limits(&answer).is_err());
    }
}
