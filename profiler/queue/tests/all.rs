//! Disks of a queue of version 2, whole and damaged, read from outside. `pages.rs` has those of version 3.
#![forbid(unsafe_code)]

use glass_formats_queue::{
    BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, Geometry, IndexPlace, Superblock, SuperblockState, UploadEntry,
    UploadProgress, VERSION_1, VERSION_2, encode_slot, encode_superblock, hasher,
};
use glass_profiler_queue::{DataError, Queue, check};

const GEOMETRY: Geometry = Geometry { total_blocks: 40, slot_blocks: 1 };

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = hasher();
    hasher.update(bytes);
    hasher.digest()
}

fn extents(pieces: &[(u32, u32)]) -> [Extent; EXTENTS_MAX] {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    for (extent, (start, blocks)) in extents.iter_mut().zip(pieces) {
        *extent = Extent { start: *start, blocks: *blocks };
    }
    extents
}

struct Image {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    uploads: Vec<UploadEntry>,
}

impl Image {
    /// Items 3 (in two pieces), 4 (empty) and 7, and the first bytes of an upload.
    fn new() -> Image {
        let bytes = vec![0; GEOMETRY.total_blocks as usize * BLOCK_BYTES];
        let mut image = Image { bytes, entries: Vec::new(), uploads: Vec::new() };
        image.add(3, &three(), &[(10, 1), (5, 1)]);
        image.add(4, b"", &[]);
        image.add(7, b"seven", &[(20, 1)]);
        let part = Entry { id: 0, length: 4, checksum: checksum(b"part"), extents: extents(&[(30, 1)]) };
        image.write(30, b"partial, and what was not acknowledged");
        let progress = UploadProgress::Open { offset: 4, checksum: part.checksum, extents: part.extents };
        image.uploads.push(UploadEntry { name: [7; 16], length: None, deadline_secs: 1, progress });
        image.commit(8);
        image.commit(9);
        image
    }

    fn write(&mut self, block: u32, data: &[u8]) {
        let at = block as usize * BLOCK_BYTES;
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    fn add(&mut self, id: u64, data: &[u8], pieces: &[(u32, u32)]) {
        let mut rest = data;
        for (start, blocks) in pieces {
            let (piece, after) = rest.split_at(rest.len().min(*blocks as usize * BLOCK_BYTES));
            self.write(*start, piece);
            rest = after;
        }
        let entry = Entry { id, length: data.len() as u64, checksum: checksum(data), extents: extents(pieces) };
        self.entries.push(entry);
    }

    /// Writes the slot of this commit, and a superblock that fits.
    fn commit(&mut self, sequence: u64) {
        let mut slot = vec![0; GEOMETRY.slot_bytes()];
        encode_slot(sequence, 9, self.entries.iter().copied(), &self.uploads, &mut slot);
        self.write(GEOMETRY.slot_start(sequence), &slot);
        let version = if self.uploads.is_empty() { VERSION_1 } else { VERSION_2 };
        self.superblock(version, SuperblockState::Ready);
    }

    fn superblock(&mut self, version: u32, state: SuperblockState) {
        let place = IndexPlace::Slots { version, geometry: GEOMETRY };
        encode_superblock(&Superblock { place, state }, &mut self.bytes[..BLOCK_BYTES]);
    }

    fn faults(&self) -> Vec<String> {
        check(&self.bytes[..], &mut |done, all| assert!(done <= all, "{done} of {all}")).faults
    }

    /// The one fault.
    fn fault(&self) -> String {
        let faults = self.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].clone()
    }
}

/// More than a block.
fn three() -> Vec<u8> {
    (0..5000u32).map(|number| (number % 251) as u8 + 1).collect()
}

fn read(image: &Image, id: u64, damaged: bool) -> (Vec<u8>, Result<bool, DataError>) {
    let queue = Queue::open(&image.bytes[..]).unwrap();
    let mut data = Vec::new();
    let result = queue.read(queue.item(id).unwrap(), damaged, &mut |piece| {
        data.extend(piece);
        Ok(())
    });
    (data, result)
}

#[test]
fn a_whole_queue_has_no_fault_and_its_items_are_read() {
    let image = Image::new();
    let mut shown = Vec::new();
    let report = check(&image.bytes[..], &mut |done, all| shown.push((done, all)));
    assert_eq!(report.faults, Vec::<String>::new());
    assert_eq!(shown.last(), Some(&(5009, 5009)));
    let queue = report.queue.unwrap();
    assert_eq!(queue.index.entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [3, 4, 7]);
    assert_eq!((queue.uploads().open, queue.uploads().bytes, queue.used_blocks()), (1, 4, 4));
    assert!(queue.remarks.is_empty() && queue.item(5).is_none());
    for (id, data) in [(3, three()), (4, vec![]), (7, b"seven".to_vec())] {
        let (found, result) = read(&image, id, false);
        assert_eq!((found, result.unwrap()), (data, true), "item {id}");
    }
}

#[test]
fn damaged_data_is_found_and_its_end_is_given_on_request_only() {
    let mut image = Image::new();
    image.bytes[20 * BLOCK_BYTES] ^= 1;
    assert!(image.fault().starts_with("item 7: its data is damaged: its checksum was "), "{}", image.fault());
    let (found, result) = read(&image, 7, false);
    assert!(found.is_empty() && matches!(result, Err(DataError::Checksum { .. })), "{result:?}");
    let (found, result) = read(&image, 7, true);
    assert!(found == b"reven" && matches!(result, Err(DataError::Checksum { .. })), "{result:?}");
    // The acknowledged bytes of an upload, and none after them.
    let mut image = Image::new();
    image.bytes[30 * BLOCK_BYTES + 3] ^= 1;
    let fault = image.fault();
    assert!(fault.starts_with("upload 0: its data is damaged"), "{fault}");
    let mut image = Image::new();
    image.bytes[30 * BLOCK_BYTES + 4] ^= 1;
    assert_eq!(image.faults(), Vec::<String>::new());
    let mut image = Image::new();
    image.bytes[20 * BLOCK_BYTES + 5] = 1;
    assert!(image.fault().contains("item 7: the bytes after its data"), "{}", image.fault());
}

#[test]
fn a_damaged_start_or_index_is_a_sentence() {
    let mut image = Image::new();
    image.bytes[16] ^= 1;
    assert!(image.fault().contains("its superblock cannot be used: its checksum is"), "{}", image.fault());
    // The older slot; the newer one.
    for (slot, commit) in [(1, 9), (2, 8)] {
        let mut image = Image::new();
        image.bytes[slot * BLOCK_BYTES + 64] ^= 1;
        let other = if slot == 1 { 0 } else { 1 };
        let fault = image.fault();
        assert!(fault.starts_with(&format!("index slot {other} cannot be used")) || slot == 2, "{fault}");
        assert_eq!(Queue::open(&image.bytes[..]).unwrap().index.sequence, commit);
    }
    let mut image = Image::new();
    image.bytes[BLOCK_BYTES] ^= 1;
    image.bytes[2 * BLOCK_BYTES + 70] ^= 1;
    let faults = image.faults();
    assert!(faults[0].contains("no index that can be used"), "{faults:?}");
    assert!(
        faults[1].starts_with("index slot 0: it does not start") && faults[2].starts_with("index slot 1: its checksum")
    );
    let error = Queue::open(&image.bytes[..]).unwrap_err().to_string();
    assert!(error.contains("; slot 0: ") && error.contains("; slot 1: "), "{error}");
}

#[test]
fn overlaps_and_what_contradicts_itself_are_found_although_checksums_are_right() {
    let mut image = Image::new();
    image.entries[2].extents[0].start = 5;
    image.commit(10);
    assert!(image.faults()[0].contains("entry 2 (item 7): it overlaps another item"), "{:?}", image.faults());
    let mut image = Image::new();
    image.entries[2].extents[0].start = 39;
    image.entries[2].extents[0].blocks = 2;
    image.commit(10);
    assert!(image.faults()[0].contains("an extent is outside of the data area"), "{:?}", image.faults());
    // A slot that was never written again.
    let mut image = Image::new();
    image.commit(12);
    assert!(image.fault().contains("sequences 12 and 9, which do not follow"), "{}", image.fault());
    let mut image = Image::new();
    image.superblock(VERSION_1, SuperblockState::Ready);
    assert!(image.fault().contains("has version 2, and its superblock 1"), "{}", image.fault());
}

#[test]
fn a_queue_on_a_larger_disk_and_one_that_has_grown_are_read() {
    let mut image = Image::new();
    image.bytes.resize(600 * BLOCK_BYTES + 100, 7);
    let queue = Queue::open(&image.bytes[..]).unwrap();
    assert_eq!(
        queue.remarks,
        ["the disk has 2293860 bytes more than the queue uses: a queue that is started with --grow takes them"]
    );
    let geometry = Geometry { total_blocks: 600, ..GEOMETRY };
    let place = IndexPlace::Slots { version: VERSION_2, geometry };
    let superblock = Superblock { place, state: SuperblockState::Ready };
    encode_superblock(&superblock, &mut image.bytes[..BLOCK_BYTES]);
    // An item behind the old end, with the slots of before: a new queue of this size would have larger ones.
    image.entries[2].extents = extents(&[(599, 1)]);
    image.write(599, &[b"seven".to_vec(), vec![0; BLOCK_BYTES - 5]].concat());
    let mut slot = vec![0; geometry.slot_bytes()];
    encode_slot(10, 9, image.entries.iter().copied(), &image.uploads, &mut slot);
    image.write(geometry.slot_start(10), &slot);
    assert_eq!(image.faults(), Vec::<String>::new());
    let queue = Queue::open(&image.bytes[..]).unwrap();
    assert_eq!(
        (queue.remarks, queue.superblock.place.items_max()),
        (vec!["the disk has 100 bytes more than the queue uses".to_owned()], 63)
    );
    assert_eq!(read(&image, 7, false).0, b"seven");
}

#[test]
fn cut_disks_and_others_are_refused_or_read_as_far_as_they_go() {
    let mut image = Image::new();
    image.bytes.truncate(15 * BLOCK_BYTES);
    let faults = image.faults();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(faults[0].contains("uses 163840 bytes of its disk, and this one has 61440"), "{faults:?}");
    assert!(faults[1].starts_with("item 7: the bytes of the disk from 81920 on cannot be read"), "{faults:?}");
    assert!(faults[2].starts_with("upload 0: "), "{faults:?}");
    assert_eq!(read(&image, 3, false).0, three());
    // In the second slot, which was the newest.
    image.bytes.truncate(2 * BLOCK_BYTES + 100);
    let faults = image.faults();
    assert!(faults.iter().any(|fault| fault.contains("from 8192 on cannot be read")), "{faults:?}");
    for (bytes, what) in [
        (vec![], "shorter than one block"),
        (vec![0; 4096], "starts with zeros"),
        (vec![7; 4096], "does not start with the magic bytes"),
        ([b"QFI\xfb".to_vec(), vec![0; 9000]].concat(), "qemu-img convert"),
    ] {
        let error = Queue::open(&bytes[..]).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let mut image = Image::new();
    image.superblock(VERSION_1, SuperblockState::Formatting);
    assert_eq!(image.faults(), Vec::<String>::new());
    assert!(Queue::open(&image.bytes[..]).unwrap().remarks[0].contains("first start was cut short"));
}
