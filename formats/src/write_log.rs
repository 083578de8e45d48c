//! The log of a disk's writes and flushes, between the process that serves the disk and `glass powercut`; `docs/formats/write-log.md` specifies it.

/// First bytes of a log.
pub const MAGIC: [u8; 8] = *b"GLASSWLG";
/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes in front of the first record.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record, without the data of a write.
pub const RECORD_BYTES: usize = 32;
/// The unit of offsets and lengths.
pub const SECTOR_BYTES: u64 = 512;
/// The longest write or range of zeroes.
pub const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// What is in front of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the disk, a multiple of [`SECTOR_BYTES`].
    pub disk_bytes: u64,
    /// When the disk was opened: nanoseconds since 1970 by the host's clock.
    pub start_ns: u64,
    /// [`Fingerprint`] of the disk when it was opened.
    pub fingerprint: u64,
}

/// Why bytes are no log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// They start in another way.
    Magic,
    /// The log has this version.
    Version(u32),
    /// The disk has this impossible number of bytes.
    DiskBytes(u64),
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        match self {
            HeaderError::Magic => write!(f, "it is no log of a disk's writes"),
            HeaderError::Version(version) => {
                write!(f, "it is a log of version {version}, and this glass reads {VERSION}")
            }
            HeaderError::DiskBytes(bytes) => write!(f, "its disk has {bytes} bytes, which is no number of sectors"),
        }
    }
}

impl core::error::Error for HeaderError {}

impl Header {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (at, number) in [(16, self.disk_bytes), (24, self.start_ns), (32, self.fingerprint)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no header of this version.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        if bytes[..8] != MAGIC {
            return Err(HeaderError::Magic);
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let header =
            Header { disk_bytes: u64_at(bytes, 16), start_ns: u64_at(bytes, 24), fingerprint: u64_at(bytes, 32) };
        match header.disk_bytes {
            0 => Err(HeaderError::DiskBytes(0)),
            bytes if bytes.is_multiple_of(SECTOR_BYTES) => Ok(header),
            bytes => Err(HeaderError::DiskBytes(bytes)),
        }
    }
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A write has arrived; its data follow the record.
    Write {
        /// It is on stable storage when it completes, without a flush.
        is_durable: bool,
    },
    /// A range of zeroes has arrived.
    Zero {
        /// As of a write.
        is_durable: bool,
    },
    /// The guest needs a range no more. What is there afterwards is undefined.
    Discard,
    /// A flush has arrived.
    Flush,
    /// A request completes: the guest learns it after this.
    Complete {
        /// The disk reports an error.
        is_failed: bool,
    },
    /// The log ends here.
    End {
        /// The disk was served beyond it: the log had its greatest length, or could not be written.
        is_cut: bool,
    },
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What it is about.
    pub kind: Kind,
    /// The number of the request, from 0 on in order of arrival. Of an end, how many there were.
    pub request: u32,
    /// Nanoseconds since 1970 by the host's clock, never less than in the record before.
    pub time_ns: u64,
    /// Where on the disk: a multiple of [`SECTOR_BYTES`]. 0 of a flush, a completion and an end.
    pub offset: u64,
    /// How long: a multiple of [`SECTOR_BYTES`], at most [`REQUEST_BYTES_MAX`]. 0 of a flush, a completion and an end.
    pub bytes: u64,
}

const FLAG: u8 = 1;

impl Record {
    /// As bytes, without the data of a write.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let (kind, is_flagged) = match self.kind {
            Kind::Write { is_durable } => (1, is_durable),
            Kind::Zero { is_durable } => (2, is_durable),
            Kind::Discard => (3, false),
            Kind::Flush => (4, false),
            Kind::Complete { is_failed } => (5, is_failed),
            Kind::End { is_cut } => (6, is_cut),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = kind;
        bytes[1] = if is_flagged { FLAG } else { 0 };
        bytes[4..8].copy_from_slice(&self.request.to_le_bytes());
        for (at, number) in [(8, self.time_ns), (16, self.offset), (24, self.bytes)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From bytes; `None` if they are no record of a disk of `disk_bytes`.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES], disk_bytes: u64) -> Option<Record> {
        let is_flagged = match bytes[1] {
            0 => false,
            FLAG => true,
            _ => return None,
        };
        let kind = match (bytes[0], is_flagged) {
            (1, is_durable) => Kind::Write { is_durable },
            (2, is_durable) => Kind::Zero { is_durable },
            (3, false) => Kind::Discard,
            (4, false) => Kind::Flush,
            (5, is_failed) => Kind::Complete { is_failed },
            (6, is_cut) => Kind::End { is_cut },
            _ => return None,
        };
        let record = Record {
            kind,
            request: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            time_ns: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            bytes: u64_at(bytes, 24),
        };
        let is_whole = record.offset.is_multiple_of(SECTOR_BYTES) && record.bytes.is_multiple_of(SECTOR_BYTES);
        let is_inside = record.offset.checked_add(record.bytes).is_some_and(|end| end <= disk_bytes);
        let has_range = matches!(kind, Kind::Write { .. } | Kind::Zero { .. } | Kind::Discard);
        let is_sized = if has_range { (1..=REQUEST_BYTES_MAX).contains(&record.bytes) } else { record.bytes == 0 };
        (is_whole && is_inside && is_sized).then_some(record)
    }
}

/// Blocks that a fingerprint has of a disk: of its start, and in equal distances.
const FIRST_BLOCKS: u64 = 16;
const SPREAD_BLOCKS: u64 = 240;
/// Bytes of each.
pub const BLOCK_BYTES: usize = 4096;

/// A hash (FNV-1a) of a few blocks of a disk, by which the wrong one is noticed.
#[derive(Debug, Clone, Copy)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of a disk of so many bytes, without blocks.
    pub fn new(disk_bytes: u64) -> Fingerprint {
        let mut fingerprint = Fingerprint(0xcbf2_9ce4_8422_2325);
        fingerprint.add(&disk_bytes.to_le_bytes());
        fingerprint
    }

    /// Where the blocks are that belong to it, in their order.
    pub fn offsets(disk_bytes: u64) -> impl Iterator<Item = u64> {
        let blocks = disk_bytes / BLOCK_BYTES as u64;
        let step = (blocks / SPREAD_BLOCKS).max(1);
        let first = 0..blocks.min(FIRST_BLOCKS);
        let spread = (first.end.next_multiple_of(step)..blocks).step_by(step as usize);
        first.chain(spread).map(|block| block * BLOCK_BYTES as u64)
    }

    /// Adds a block.
    pub fn add(&mut self, block: &[u8]) {
        for byte in block {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The hash.
    pub fn value(&self) -> u64 {
        self.0
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_documented() {
        let write = Record { kind: Kind::Write { is_durable: true }, request: 3, time_ns: 7, offset: 1024, bytes: 512 };
        let bytes = write.to_bytes();
        assert_eq!(bytes[..9], [1, 1, 0, 0, 3, 0, 0, 0, 7]);
        assert_eq!((bytes[17], bytes[25]), (4, 2));
        let kinds = [
            write.kind,
            Kind::Zero { is_durable: false },
            Kind::Discard,
            Kind::Flush,
            Kind::Complete { is_failed: true },
            Kind::End { is_cut: true },
        ];
        for (number, kind) in (1..).zip(kinds) {
            let has_range = number <= 3;
            let (offset, bytes) = if has_range { (512, 512) } else { (0, 0) };
            let record = Record { kind, offset, bytes, ..write };
            assert_eq!(record.to_bytes()[0], number);
            assert_eq!(Record::from_bytes(&record.to_bytes(), 4096), Some(record));
        }
    }

    #[test]
    fn ranges_outside_of_the_disk_are_refused() {
        let write = Record { kind: Kind::Write { is_durable: false }, request: 0, time_ns: 0, offset: 512, bytes: 512 };
        let is_good = |record: Record, disk_bytes| Record::from_bytes(&record.to_bytes(), disk_bytes).is_some();
        assert!(is_good(write, 1024));
        assert!(!is_good(write, 512));
        assert!(!is_good(Record { offset: u64::MAX - 511, ..write }, u64::MAX));
        assert!(!is_good(Record { bytes: 0, ..write }, 1024));
        assert!(!is_good(Record { bytes: 100, ..write }, 1024));
        assert!(!is_good(Record { bytes: REQUEST_BYTES_MAX + 512, ..write }, 1 << 40));
        assert!(!is_good(Record { kind: Kind::Flush, ..write }, 1024));
    }

    #[test]
    fn headers_have_a_version() {
        let header = Header { disk_bytes: 4096, start_ns: 5, fingerprint: 6 };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
        let mut newer = header.to_bytes();
        newer[8] = 2;
        assert_eq!(Header::from_bytes(&newer), Err(HeaderError::Version(2)));
        assert_eq!(Header::from_bytes(&[0; HEADER_BYTES]), Err(HeaderError::Magic));
        assert_eq!(
            Header::from_bytes(&Header { disk_bytes: 100, ..header }.to_bytes()),
            Err(HeaderError::DiskBytes(100))
        );
    }

    #[test]
    fn a_fingerprint_has_each_block_once() {
        for blocks in [0, 1, 15, 16, 17, 255, 256, 257, 10_000] {
            let mut before = None;
            let mut count = 0;
            for offset in Fingerprint::offsets(blocks * BLOCK_BYTES as u64) {
                assert!(before < Some(offset) && offset / (BLOCK_BYTES as u64) < blocks);
                before = Some(offset);
                count += 1;
            }
            assert!(count >= blocks.min(200) && count <= 500, "{count} of {blocks}");
        }
    }
}
