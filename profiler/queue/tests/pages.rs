//! Disks of a queue of version 3, whole and damaged, read from outside.
#![forbid(unsafe_code)]

use glass_formats_queue::{
    BLOCK_BYTES, Checkpoint, EXTENTS_MAX, Entry, EntryBytes, Extent, IndexPlace, Layout, LogBlock, Superblock,
    SuperblockState, Table, UploadEntry, UploadProgress, encode_superblock, hasher,
};
use glass_profiler_queue::{OpenError, Queue, check};

/// 126 places, data from block 15 on.
fn layout() -> Layout {
    Layout::with_pages(60, 1, 2)
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = hasher();
    hasher.update(bytes);
    hasher.digest()
}

struct Image {
    bytes: Vec<u8>,
    table: Table,
    log_block: u64,
    sequence: u64,
}

impl Image {
    /// Items 3 and 70 in two pages, an upload; and by the log, item 4, and 3 is removed.
    fn new() -> Image {
        let bytes = vec![0; layout().total_blocks as usize * BLOCK_BYTES];
        let mut image = Image { bytes, table: Table::new(), log_block: 5, sequence: 20 };
        (0..2).for_each(|_| image.table.grow().unwrap());
        let (first, second) = (image.item(3, 20, b"three"), image.item(70, 21, b"seventy"));
        image.table.set(0, &first);
        image.table.set(70, &second);
        image.write(22, b"partial, and what was not acknowledged");
        let mut extents = [Extent::default(); EXTENTS_MAX];
        extents[0] = Extent { start: 22, blocks: 1 };
        let progress = UploadProgress::Open { offset: 4, checksum: checksum(b"part"), extents };
        let upload = UploadEntry { name: [7; 16], length: None, deadline_secs: 1, progress };
        image.table.set(1, &upload.named(Some(64)));
        image.table.set(64, &upload.data().unwrap());
        image.checkpoint(2);
        let fourth = image.item(4, 23, b"four");
        image.commit(&[(2, fourth), (0, [0; 64])]);
        image.superblock();
        image
    }

    fn write(&mut self, block: u32, data: &[u8]) {
        self.bytes[block as usize * BLOCK_BYTES..][..data.len()].copy_from_slice(data);
    }

    fn item(&mut self, id: u64, block: u32, data: &[u8]) -> EntryBytes {
        self.write(block, data);
        let mut extents = [Extent::default(); EXTENTS_MAX];
        extents[0] = Extent { start: block, blocks: 1 };
        Entry { id, length: data.len() as u64, checksum: checksum(data), extents }.encoded()
    }

    /// Writes the pages to the area of the number, and the checkpoint.
    fn checkpoint(&mut self, number: u64) {
        let (is_second, mut sum) = (number % 2 == 1, 0u64);
        for page in 0..2 {
            let mut block = vec![0; BLOCK_BYTES];
            sum = sum.wrapping_add(self.table.encode_page(page, self.sequence, &mut block));
            self.write(layout().page_place(page, is_second), &block);
        }
        let (sequence, log_block) = (self.sequence, self.log_block);
        let checkpoint = Checkpoint { number, sequence, next_id: 100, log_block, sum, places: vec![is_second; 2] };
        let mut block = vec![0; BLOCK_BYTES];
        checkpoint.encode(&mut block);
        // Both, so that neither is missing.
        self.write(layout().checkpoint_start(number), &block);
        Checkpoint { number: number - 1, ..checkpoint }.encode(&mut block);
        self.write(layout().checkpoint_start(number - 1), &block);
    }

    fn commit(&mut self, changes: &[(u32, EntryBytes)]) {
        self.sequence += 1;
        let (number, sequence) = (self.log_block, self.sequence);
        let mut block = vec![0; BLOCK_BYTES];
        LogBlock { number, sequence, next_id: 100, part: 0, parts: 1 }.encode(changes, &mut block);
        self.write(layout().log_place(number), &block);
        self.log_block += 1;
    }

    fn superblock(&mut self) {
        let superblock = Superblock { place: IndexPlace::Pages(layout()), state: SuperblockState::Ready };
        encode_superblock(&superblock, &mut self.bytes[..BLOCK_BYTES]);
    }

    fn flip(&mut self, block: u32, byte: usize) {
        self.bytes[block as usize * BLOCK_BYTES + byte] ^= 1;
    }

    fn faults(&self) -> Vec<String> {
        check(&self.bytes[..], &mut |done, all| assert!(done <= all, "{done} of {all}")).faults
    }

    fn ids(&self) -> Vec<u64> {
        Queue::open(&self.bytes[..]).unwrap().index.entries.iter().map(|entry| entry.id).collect()
    }
}

#[test]
fn pages_and_log_are_read_together() {
    let image = Image::new();
    assert_eq!((image.faults(), image.ids()), (vec![], vec![4, 70]));
    let queue = Queue::open(&image.bytes[..]).unwrap();
    assert_eq!((queue.index.sequence, queue.uploads().open, queue.used_blocks()), (21, 1, 3));
    assert_eq!((queue.superblock.place.version(), queue.superblock.place.items_max()), (3, 126));
    let mut data = Vec::new();
    let read = queue.read(queue.item(4).unwrap(), false, &mut |piece| {
        data.extend(piece);
        Ok(())
    });
    assert_eq!((read.unwrap(), &data[..]), (true, &b"four"[..]));
}

#[test]
fn what_is_damaged_is_named_and_the_rest_is_read() {
    let fault = |image: &Image, want: &str| {
        let faults = image.faults();
        assert!(faults.iter().any(|fault| fault.contains(want)), "{faults:?}");
    };
    // One page, with the upload's data: item 4 is in the other one.
    let mut image = Image::new();
    image.flip(layout().page_place(1, false), 500);
    fault(&image, "page 1 of the index: its checksum is not that of its bytes; its items cannot be found");
    // Neither page has the upload then, and item 4 is found.
    let mut image = Image::new();
    image.table.set(1, &[0; 64]);
    image.table.set(64, &[0; 64]);
    image.log_block = 5;
    image.sequence = 20;
    image.checkpoint(2);
    image.flip(layout().page_place(1, false), 500);
    fault(&image, "page 1 of the index");
    assert_eq!(image.ids(), [4]);
    // The newest commit; one before it.
    let mut image = Image::new();
    image.flip(layout().log_place(5), 100);
    fault(&image, "the log of the index ends in parts of a commit");
    assert_eq!(image.ids(), [3, 70]);
    let mut image = Image::new();
    image.commit(&[]);
    image.flip(layout().log_place(5), 100);
    fault(&image, "its log ends after commit 20, and the index has later ones");
    let mut image = Image::new();
    image.flip(layout().checkpoint_start(1), 9);
    fault(&image, "checkpoint 1 of the index cannot be used");
    assert_eq!(image.ids(), [4, 70]);
    image.flip(layout().checkpoint_start(2), 9);
    assert!(matches!(Queue::open(&image.bytes[..]), Err(OpenError::NoIndex([Some(_), Some(_)]))));
    // A page whose write was lost.
    let mut image = Image::new();
    let old = image.bytes[layout().page_place(0, false) as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
    image.table.set(3, &Entry { id: 50, length: 0, checksum: checksum(b""), extents: Default::default() }.encoded());
    image.sequence = 20;
    image.checkpoint(2);
    image.write(layout().page_place(0, false), &old);
    fault(&image, "a write of the disk was lost");
}

#[test]
fn entries_that_contradict_and_disks_that_are_cut_are_sentences() {
    let mut image = Image::new();
    let overlapping = image.item(9, 21, b"seventy");
    image.commit(&[(9, overlapping)]);
    assert!(image.faults()[0].contains("it overlaps another item"), "{:?}", image.faults());
    let mut image = Image::new();
    image.bytes.truncate(21 * BLOCK_BYTES);
    let faults = image.faults();
    assert!(faults[0].contains("uses 245760 bytes of its disk, and this one has 86016"), "{faults:?}");
    assert!(faults[1].starts_with("item 4: the bytes of the disk from 94208 on cannot be read"), "{faults:?}");
    image.bytes.truncate(14 * BLOCK_BYTES);
    assert!(image.faults()[0].contains("its index is behind its end"), "{:?}", image.faults());
}
