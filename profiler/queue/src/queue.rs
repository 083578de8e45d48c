//! A queue on a disk: its index, and the data of its items.

use crate::disk::ReadAt;
use crate::pages;
use glass_formats_queue::{
    self as format, BLOCK_BYTES, Entry, Fault, Geometry, Index, IndexPlace, Layout, Newest, Slot, Superblock,
    SuperblockState, UploadEntry, UploadProgress, VERSION_1,
};
use std::fmt;
use std::io;

/// Bytes of one read of data: whole blocks.
const PIECE_BYTES: usize = 1 << 20;

/// Why a disk has no queue that can be read.
#[derive(Debug)]
pub enum OpenError {
    /// A read failed.
    Read {
        /// Where.
        offset: u64,
        /// How.
        error: io::Error,
    },
    /// It is something else; the phrase names it.
    Foreign(&'static str),
    /// It was a queue, and its superblock is damaged.
    Superblock(Fault),
    /// Neither slot has an index, or a checkpoint of one; why, where one was written.
    NoIndex([Option<Fault>; 2]),
    /// The index cannot be used.
    Index(Fault),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OpenError::Read { offset, error } => write!(f, "its bytes from {offset} on cannot be read: {error}"),
            OpenError::Foreign(what) => write!(f, "it is no disk of an upload queue: {what}"),
            OpenError::Superblock(fault) => write!(f, "its superblock cannot be used: {fault}"),
            OpenError::Index(fault) => write!(f, "it has no index that can be used: {fault}"),
            OpenError::NoIndex(faults) => {
                write!(f, "it has no index that can be used")?;
                for (slot, fault) in faults.iter().enumerate() {
                    match fault {
                        Some(fault) => write!(f, "; slot {slot}: {fault}")?,
                        None => write!(f, "; slot {slot} was never written")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// Why the data of an item is not whole.
#[derive(Debug)]
pub enum DataError {
    /// A read failed.
    Read {
        /// Where on the disk.
        offset: u64,
        /// How.
        error: io::Error,
    },
    /// It has changed since it was uploaded.
    Checksum {
        /// In the index.
        stored: u64,
        /// Of the bytes.
        computed: u64,
    },
    /// The receiver of the data failed.
    Write(io::Error),
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DataError::Read { offset, error } => {
                write!(f, "the bytes of the disk from {offset} on cannot be read: {error}")
            }
            DataError::Checksum { stored, computed } => write!(
                f,
                "its data is damaged: its checksum was {stored:016x} when it was uploaded and is {computed:016x} now"
            ),
            DataError::Write(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DataError {}

/// Uploads that can be resumed, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uploads {
    /// Those in progress.
    pub open: usize,
    /// Bytes that they have.
    pub bytes: u64,
    /// Those that became items lately.
    pub complete: usize,
}

/// A queue on a disk.
#[derive(Debug)]
pub struct Queue<D> {
    disk: D,
    /// The start of the disk.
    pub superblock: Superblock,
    /// What the queue has, by its newest index.
    pub index: Index,
    /// What is wrong with its start and its index, in sentences; the queue can be read nevertheless.
    pub faults: Vec<String>,
    /// What is unusual and no fault, in sentences.
    pub remarks: Vec<String>,
}

impl<D: ReadAt> Queue<D> {
    /// Reads the superblock and the index.
    pub fn open(disk: D) -> Result<Queue<D>, OpenError> {
        let superblock = superblock(&disk)?;
        let place = superblock.place;
        let mut queue = Queue { disk, superblock, index: empty(), faults: Vec::new(), remarks: Vec::new() };
        if superblock.state == SuperblockState::Formatting {
            let remark =
                "its first start was cut short, before it accepted an item: the next start makes the queue again";
            queue.remarks.push(remark.to_owned());
            return Ok(queue);
        }
        let (queue_bytes, bytes) = (u64::from(place.total_blocks()) * BLOCK_BYTES as u64, queue.disk.bytes());
        if bytes < queue_bytes {
            queue.faults.push(format!("the queue uses {queue_bytes} bytes of its disk, and this one has {bytes}"));
        } else if bytes > queue_bytes {
            let can_grow = bytes >= queue_bytes + BLOCK_BYTES as u64 && place.total_blocks() < u32::MAX;
            let advice = if can_grow { ": a queue that is started with --grow takes them" } else { "" };
            queue.remarks.push(format!("the disk has {} bytes more than the queue uses{advice}", bytes - queue_bytes));
        }
        match place {
            IndexPlace::Slots { version, geometry } => queue.read_slots(version, geometry)?,
            IndexPlace::Pages(layout) => queue.read_pages(layout)?,
        }
        Ok(queue)
    }

    /// Reads an index of version 3. What cannot be read of it is a fault, and the rest is the index.
    fn read_pages(&mut self, layout: Layout) -> Result<(), OpenError> {
        let found = pages::read(&self.disk, layout)?;
        self.faults.extend(found.faults);
        self.index = found.index;
        Ok(())
    }

    /// Reads an index of version 1 or 2.
    fn read_slots(&mut self, version: u32, geometry: Geometry) -> Result<(), OpenError> {
        let slots = match [self.slot(geometry, 0), self.slot(geometry, 1)] {
            [Ok(first), Ok(second)] => [first, second],
            // One slot cannot be read at all: the other one may be the newest.
            [first, second] => [first, second].map(|slot| {
                slot.unwrap_or_else(|error| {
                    self.faults.push(error.to_string());
                    Slot::Empty
                })
            }),
        };
        if let [Slot::Valid(first), Slot::Valid(second)] = &slots
            && first.sequence.abs_diff(second.sequence) != 1
        {
            self.faults.push(format!(
                "the slots of the index have the sequences {} and {}, which do not follow each other: a write of the disk was lost",
                first.sequence, second.sequence
            ));
        }
        let Newest { index, broken_slot } = format::newest(slots).map_err(OpenError::NoIndex)?;
        if let Some((slot, fault)) = broken_slot {
            self.faults.push(format!(
                "index slot {slot} cannot be used: {fault}; a power cut during a commit leaves this, and nothing is lost then, or the \
                 disk is damaged, and the commit after {} may be lost",
                index.sequence
            ));
        }
        if !index.uploads.is_empty() && version == VERSION_1 {
            self.faults
                .push("its index has version 2, and its superblock 1: older queues would use another index".into());
        }
        self.index = index;
        Ok(())
    }

    fn slot(&self, geometry: Geometry, number: u64) -> Result<Slot, OpenError> {
        let bytes = read(&self.disk, geometry.slot_start(number), geometry.slot_bytes())?;
        Ok(format::decode_slot(geometry, number, &bytes))
    }

    /// The item with this id.
    pub fn item(&self, id: u64) -> Option<&Entry> {
        self.index.entries.iter().find(|entry| entry.id == id)
    }

    /// Uploads that can be resumed.
    pub fn uploads(&self) -> Uploads {
        let mut uploads = Uploads::default();
        for upload in &self.index.uploads {
            match upload.progress {
                UploadProgress::Open { offset, .. } => {
                    uploads.open += 1;
                    uploads.bytes += offset;
                }
                UploadProgress::Complete { .. } => uploads.complete += 1,
            }
        }
        uploads
    }

    /// Blocks of data that items and uploads have.
    pub fn used_blocks(&self) -> u64 {
        let uploads = self.index.uploads.iter().filter_map(data_of);
        let all = self.index.entries.iter().copied().chain(uploads);
        all.flat_map(|entry| entry.extents).map(|extent| u64::from(extent.blocks)).sum()
    }

    /// Gives the data of an item to `sink`, in pieces. The last one is given only after the checksum of all was right, unless `damaged` is
    /// set: then all of it is given, and the error follows. Returns whether the bytes after it in its last block are zero, as they have to be
    /// of an item.
    pub fn read(
        &self,
        entry: &Entry,
        damaged: bool,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<bool, DataError> {
        let mut hasher = format::hasher();
        let mut left = entry.length;
        let mut is_padded = true;
        let mut piece = vec![0; PIECE_BYTES.min((entry.length as usize).next_multiple_of(BLOCK_BYTES))];
        for extent in entry.extents {
            let mut offset = u64::from(extent.start) * BLOCK_BYTES as u64;
            let mut extent_left = u64::from(extent.blocks) * BLOCK_BYTES as u64;
            while extent_left > 0 {
                let count = extent_left.min(piece.len() as u64) as usize;
                let bytes = &mut piece[..count];
                self.disk.read_at(offset, bytes).map_err(|error| DataError::Read { offset, error })?;
                offset += count as u64;
                extent_left -= count as u64;
                let (data, padding) = bytes.split_at(left.min(count as u64) as usize);
                left -= data.len() as u64;
                hasher.update(data);
                is_padded &= padding.iter().all(|&byte| byte == 0);
                if left == 0 && !damaged {
                    verify(entry, hasher.digest())?;
                }
                sink(data).map_err(DataError::Write)?;
            }
        }
        verify(entry, hasher.digest())?;
        Ok(is_padded)
    }
}

/// So many bytes from the start of a block on.
pub(crate) fn read(disk: &impl ReadAt, block: u32, bytes: usize) -> Result<Vec<u8>, OpenError> {
    let offset = u64::from(block) * BLOCK_BYTES as u64;
    let mut into = vec![0; bytes];
    disk.read_at(offset, &mut into).map_err(|error| OpenError::Read { offset, error })?;
    Ok(into)
}

/// What an upload in progress has, in the form of an item.
pub(crate) fn data_of(upload: &UploadEntry) -> Option<Entry> {
    match upload.progress {
        UploadProgress::Open { offset, checksum, extents } => Some(Entry { id: 0, length: offset, checksum, extents }),
        UploadProgress::Complete { .. } => None,
    }
}

fn empty() -> Index {
    Index { sequence: 0, next_id: 1, entries: Vec::new(), uploads: Vec::new() }
}

fn verify(entry: &Entry, computed: u64) -> Result<(), DataError> {
    let stored = entry.checksum;
    if stored == computed { Ok(()) } else { Err(DataError::Checksum { stored, computed }) }
}

fn superblock(disk: &impl ReadAt) -> Result<Superblock, OpenError> {
    if disk.bytes() < BLOCK_BYTES as u64 {
        return Err(OpenError::Foreign("it is shorter than one block of 4096 bytes"));
    }
    let mut block = [0; BLOCK_BYTES];
    disk.read_at(0, &mut block).map_err(|error| OpenError::Read { offset: 0, error })?;
    if let Some(superblock) = format::decode_superblock(&block).map_err(OpenError::Superblock)? {
        return Ok(superblock);
    }
    Err(OpenError::Foreign(match block {
        _ if block.starts_with(b"QFI\xfb") => {
            "it is an image of QEMU's format qcow2; make a raw one by `qemu-img convert -O raw`"
        }
        _ if block.iter().all(|&byte| byte == 0) => "it starts with zeros, as a disk that no queue has used",
        _ => "it does not start with the magic bytes of one",
    }))
}
