//! Tests of the superblock, and of the encoders and decoders of versions 1 and 2.

use super::*;
use alloc::vec;

fn geometry() -> Geometry {
    Geometry { total_blocks: 40, slot_blocks: 2 }
}

fn superblock(geometry: Geometry) -> Superblock {
    Superblock { place: IndexPlace::Slots { version: VERSION_1, geometry }, state: SuperblockState::Ready }
}

fn entry(id: u64, start: u32, blocks: u32) -> Entry {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    extents[0] = Extent { start, blocks };
    Entry { id, length: u64::from(blocks) * 4096 - 1, checksum: id * 7, extents }
}

fn encoded(index: &Index) -> Vec<u8> {
    let mut slot = vec![0xaa; geometry().slot_bytes()];
    encode_slot(index.sequence, index.next_id, index.entries.iter().copied(), &index.uploads, &mut slot);
    slot
}

#[test]
fn a_slot_reads_back() {
    let empty = |id| Entry { id, length: 0, checksum: id, extents: [Extent::default(); EXTENTS_MAX] };
    let mut index = Index { sequence: 7, next_id: 105, entries: (5..105).map(empty).collect(), uploads: vec![] };
    index.entries[3] = entry(8, 10, 4);
    assert_eq!(decode_slot(geometry(), 1, &encoded(&index)), Slot::Valid(index.clone()));
    assert_eq!(decode_slot(geometry(), 0, &encoded(&index)), Slot::Invalid(Fault::Sequence(7)));
    // One more commit or item would overflow.
    let last = Index { sequence: u64::MAX, ..index.clone() };
    assert_eq!(decode_slot(geometry(), 1, &encoded(&last)), Slot::Invalid(Fault::Number(u64::MAX)));
    let last = Index { next_id: u64::MAX, ..index.clone() };
    assert_eq!(decode_slot(geometry(), 1, &encoded(&last)), Slot::Invalid(Fault::Number(u64::MAX)));
    assert_eq!(decode_slot(geometry(), 0, &vec![0; 8192]), Slot::Empty);
}

#[test]
fn a_slot_may_use_all_there_is() {
    let geometry = geometry();
    // Entries up to the bound, blocks from the first to the last, and numbers as large as they get.
    let empty = |id| Entry { id, length: 0, checksum: id, extents: [Extent::default(); EXTENTS_MAX] };
    let mut entries: Vec<Entry> = (1..=geometry.items_max() as u64).map(empty).collect();
    entries[6] = entry(7, geometry.data_start(), 20);
    entries[8] = entry(9, geometry.data_start() + 20, geometry.total_blocks - geometry.data_start() - 20);
    let index = Index { sequence: NUMBER_MAX, next_id: NUMBER_MAX, entries, uploads: vec![] };
    assert_eq!(decode_slot(geometry, NUMBER_MAX % 2, &encoded(&index)), Slot::Valid(index.clone()));
    let beyond = Index { next_id: NUMBER_MAX + 1, ..index };
    let fault = Fault::Number(NUMBER_MAX + 1);
    assert_eq!(decode_slot(geometry, NUMBER_MAX % 2, &encoded(&beyond)), Slot::Invalid(fault));
}

#[test]
fn another_version_is_refused_by_its_number() {
    let mut slot = encoded(&Index { sequence: 2, next_id: 9, entries: vec![entry(3, 5, 2)], uploads: vec![] });
    slot[8..12].copy_from_slice(&3_u32.to_le_bytes());
    let used = slot_used_bytes(1);
    let checksum = checksum_without(&slot[..used], CHECKSUM);
    slot[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode_slot(geometry(), 0, &slot), Slot::Invalid(Fault::Version(3)));
    let mut block = vec![0; BLOCK_BYTES];
    encode_superblock(&superblock(geometry()), &mut block);
    block[8..12].copy_from_slice(&4_u32.to_le_bytes());
    let checksum = checksum_without(&block[..SUPERBLOCK_BYTES], SUPERBLOCK_CHECKSUM);
    block[SUPERBLOCK_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode_superblock(&block), Err(Fault::Version(4)));
}

#[test]
fn every_flipped_bit_of_a_slot_or_superblock_is_found() {
    let index = Index { sequence: 2, next_id: 9, entries: vec![entry(3, 5, 2), entry(8, 9, 1)], uploads: vec![] };
    let good = encoded(&index);
    for bit in 0..slot_used_bytes(2) * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_slot(geometry(), 0, &bad), Slot::Invalid(_)), "bit {bit}");
    }
    let mut good = vec![0xaa; BLOCK_BYTES];
    encode_superblock(&superblock(geometry()), &mut good);
    assert_eq!(decode_superblock(&good), Ok(Some(superblock(geometry()))));
    for bit in 0..SUPERBLOCK_BYTES * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_superblock(&bad), Ok(None) | Err(_)), "bit {bit}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let decoded = |total_blocks: u64, slot_blocks| {
        let mut block = vec![0; BLOCK_BYTES];
        encode_superblock(&superblock(Geometry { total_blocks: 0, slot_blocks }), &mut block);
        block[16..24].copy_from_slice(&total_blocks.to_le_bytes());
        let checksum = checksum_without(&block[..SUPERBLOCK_BYTES], SUPERBLOCK_CHECKSUM);
        block[SUPERBLOCK_CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        decode_superblock(&block)
    };
    let max = SLOT_BLOCKS_MAX;
    for (total_blocks, slot_blocks) in [(4, 1), (1000, max), (u64::from(u32::MAX), 1)] {
        let geometry = Geometry { total_blocks: total_blocks as u32, slot_blocks };
        assert_eq!(decoded(total_blocks, slot_blocks), Ok(Some(superblock(geometry))));
    }
    for (total_blocks, slot_blocks) in [(4, 0), (1000, max + 1), (1 << 32, 1), (3, 1), (0, 1), (129, max)] {
        assert_eq!(decoded(total_blocks, slot_blocks), Err(Fault::Geometry { total_blocks, slot_blocks }));
    }
}

#[test]
fn entries_that_contradict_are_refused_with_their_number() {
    let wrong = |entries: Vec<Entry>, want: &str| {
        let index = Index { sequence: 2, next_id: 9, entries, uploads: vec![] };
        match decode_slot(geometry(), 0, &encoded(&index)) {
            Slot::Invalid(fault) => assert_eq!(alloc::string::ToString::to_string(&fault), want),
            other => panic!("{other:?}"),
        }
    };
    wrong(vec![entry(3, 5, 2), entry(3, 9, 1)], "entry 1 (item 3): its id is out of order");
    wrong(vec![entry(9, 5, 2)], "entry 0 (item 9): its id is out of order");
    wrong(vec![entry(3, 5, 2), entry(4, 6, 1)], "entry 1 (item 4): it overlaps another item");
    wrong(vec![entry(3, 4, 1)], "entry 0 (item 3): an extent is outside of the data area");
    wrong(vec![entry(3, 39, 2)], "entry 0 (item 3): an extent is outside of the data area");
    wrong(vec![Entry { length: 4097, ..entry(3, 9, 1) }], "entry 0 (item 3): its extents do not match its length");
    let mut gap = entry(3, 9, 1);
    gap.extents[2].start = 1;
    wrong(vec![gap], "entry 0 (item 3): it has a gap among its extents");
}

fn upload(number: u8, length: Option<u64>, progress: UploadProgress) -> UploadEntry {
    UploadEntry { name: [number; 16], length, deadline_secs: u64::MAX, progress }
}

fn open(start: u32, blocks: u32) -> UploadProgress {
    let Entry { length, checksum, extents, .. } = entry(1, start, blocks);
    UploadProgress::Open { offset: length, checksum, extents }
}

#[test]
fn uploads_read_back_in_version_2_and_items_alone_in_version_1() {
    let empty = UploadProgress::Open { offset: 0, checksum: 1, extents: Default::default() };
    let uploads = vec![
        upload(1, Some(1 << 62), open(9, 3)),
        upload(2, None, empty),
        upload(3, Some(5), UploadProgress::Complete { id: 4 }),
    ];
    let mut index = Index { sequence: 2, next_id: 9, entries: vec![entry(3, 5, 2)], uploads };
    let slot = encoded(&index);
    assert_eq!((slot[8], slot[12]), (2, 6));
    assert_eq!(decode_slot(geometry(), 0, &slot), Slot::Valid(index.clone()));
    for bit in 0..slot_used_bytes(6) * 8 {
        let mut bad = slot.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_slot(geometry(), 0, &bad), Slot::Invalid(_)), "bit {bit}");
    }
    index.uploads.clear();
    assert_eq!(encoded(&index)[8], 1);
    let place = IndexPlace::Slots { version: VERSION_2, geometry: geometry() };
    let block = Superblock { place, state: SuperblockState::Ready };
    let mut bytes = vec![0; BLOCK_BYTES];
    encode_superblock(&block, &mut bytes);
    assert_eq!(decode_superblock(&bytes), Ok(Some(block)));
}

#[test]
fn uploads_that_contradict_are_refused() {
    let checked = |uploads: Vec<UploadEntry>| {
        let index = Index { sequence: 2, next_id: 9, entries: vec![entry(3, 5, 2)], uploads };
        decode_slot(geometry(), 0, &encoded(&index))
    };
    let wrong = |uploads, want: (usize, &'static str)| {
        assert_eq!(checked(uploads), Slot::Invalid(Fault::Upload { position: want.0, what: want.1 }));
    };
    let first = upload(1, None, open(9, 3));
    wrong(vec![first, upload(1, None, open(20, 3))], (3, "another upload has its name"));
    wrong(vec![first, upload(2, None, open(11, 1))], (3, "it overlaps another item"));
    wrong(vec![upload(2, None, open(6, 1))], (1, "it overlaps another item"));
    wrong(vec![upload(2, Some(4094), open(9, 1))], (1, "it has more bytes than its length"));
    wrong(vec![upload(2, None, open(4, 1))], (1, "an extent is outside of the data area"));
    wrong(vec![upload(2, None, UploadProgress::Complete { id: 9 })], (1, "no item had its id"));
    assert!(matches!(checked(vec![upload(2, Some(4095), open(9, 1))]), Slot::Valid(_)));
}

/// Entries that no program writes, with a right checksum.
#[test]
fn entries_of_uploads_that_are_cut_or_mixed_are_refused() {
    let uploads = vec![upload(1, None, open(9, 3)), upload(3, Some(5), UploadProgress::Complete { id: 4 })];
    let good = encoded(&Index { sequence: 2, next_id: 9, entries: vec![entry(3, 5, 2)], uploads });
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut slot = good.clone();
        change(&mut slot);
        let used = slot_used_bytes(u32_at(&slot, 12) as usize);
        let checksum = checksum_without(&slot[..used], CHECKSUM);
        slot[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        decode_slot(geometry(), 0, &slot)
    };
    assert!(matches!(changed(&|_| {}), Slot::Valid(_)));
    let place = |number: usize| HEADER_BYTES + number * ENTRY_BYTES;
    let wrong = |change: &dyn Fn(&mut [u8]), want: (usize, &'static str)| {
        assert_eq!(changed(change), Slot::Invalid(Fault::Upload { position: want.0, what: want.1 }));
    };
    let no_name = "no name follows it";
    wrong(&|slot| slot[12] = 2, (1, no_name));
    wrong(&|slot| slot.copy_within(place(3)..place(4), place(2)), (1, no_name));
    wrong(&|slot| slot.copy_within(place(2)..place(3), place(1)), (1, "it is neither of an upload nor complete"));
    wrong(&|slot| slot.copy_within(place(0)..place(1), place(3)), (3, "it is neither of an upload nor complete"));
    wrong(&|slot| slot[place(1)] = 7, (1, "it has an id"));
    wrong(&|slot| slot[place(2) + 63] = 7, (2, "its unused bytes are not zero"));
    wrong(&|slot| slot[place(3) + 8] = 7, (3, "its unused bytes are not zero"));
    // Version 1 has items only.
    assert!(matches!(changed(&|slot| slot[8] = 1), Slot::Invalid(Fault::Entry { position: 1, .. })));
}
