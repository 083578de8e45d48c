//! Tests of the index of version 3.

use super::*;
use alloc::vec;

fn layout() -> Layout {
    Layout::with_pages(100, 1, 2)
}

fn item(id: u64, start: u32, blocks: u32) -> Entry {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    if blocks > 0 {
        extents[0] = Extent { start, blocks };
    }
    Entry { id, length: u64::from(blocks) * 4096, checksum: id * 7, extents }
}

fn checkpoint(places: Vec<bool>) -> Checkpoint {
    Checkpoint { number: 3, sequence: 10, next_id: 50, log_block: 6, sum: 9, places }
}

#[test]
fn layouts_follow_from_the_device() {
    assert_eq!(Layout::for_device(13 * 4096), None);
    let least = Layout::for_device(14 * 4096 + 511).unwrap();
    assert_eq!((least.index(), least.entries_max()), (1..13, 63));
    assert_eq!(IndexPlace::Pages(least).data_blocks(), 1);
    let large = Layout::for_device(64 << 20).unwrap();
    assert_eq!((large.log_blocks, large.pages_max, large.entries_max(), large.index()), (128, 64, 4032, 1..259));
    let huge = Layout::for_device(u64::MAX).unwrap();
    assert_eq!((huge.total_blocks, huge.pages_max, huge.checkpoint_blocks()), (u32::MAX, 1 << 18, 9));
    assert_eq!((huge.page_place(5, false), huge.page_place(5, true)), (1 + 18 + 128 + 5, 1 + 18 + 128 + (1 << 18) + 5));
    assert_eq!((huge.checkpoint_start(4), huge.checkpoint_start(7), huge.log_place(130)), (1, 10, 21));
}

#[test]
fn superblocks_read_back_unless_their_layout_cannot_be() {
    let decoded = |layout| {
        let superblock = Superblock { place: IndexPlace::Pages(layout), state: SuperblockState::Ready };
        let mut block = vec![0xaa; BLOCK_BYTES];
        encode_superblock(&superblock, &mut block);
        (superblock, decode_superblock(&block))
    };
    for good in [layout(), Layout { index_start: 86, ..layout() }, Layout::for_device(u64::MAX).unwrap()] {
        let (superblock, decoded) = decoded(good);
        assert_eq!(decoded, Ok(Some(superblock)));
    }
    let bad = [
        Layout { index_start: 0, ..layout() },
        Layout { index_start: 87, ..layout() },
        Layout { index_start: u32::MAX, ..layout() },
        Layout { total_blocks: 15, ..layout() },
        Layout { log_blocks: 7, ..layout() },
        Layout { log_blocks: u32::MAX, ..layout() },
        Layout { pages_max: 0, ..layout() },
        Layout { pages_max: u32::MAX, ..layout() },
    ];
    for layout in bad {
        assert!(matches!(decoded(layout).1, Err(Fault::Layout { .. })), "{layout:?}");
    }
}

#[test]
fn checkpoints_read_back_and_every_flipped_bit_is_found() {
    let large = Layout::with_pages(10_000_000, 5, 40_000);
    let places: Vec<bool> = (0..39_999).map(|page| page % 3 == 0).collect();
    let mut bytes = vec![0xaa; large.checkpoint_blocks() as usize * BLOCK_BYTES];
    assert_eq!(checkpoint(places.clone()).encode(&mut bytes), 2 * BLOCK_BYTES);
    assert_eq!(Checkpoint::decode(large, 1, &bytes), CheckpointSlot::Valid(checkpoint(places)));
    let small = checkpoint(vec![true, false]);
    let mut bytes = vec![0; BLOCK_BYTES];
    assert_eq!(Checkpoint::decode(layout(), 1, &bytes), CheckpointSlot::Empty);
    small.encode(&mut bytes);
    assert_eq!(Checkpoint::decode(layout(), 0, &bytes), CheckpointSlot::Invalid(Fault::Sequence(3)));
    for bit in 0..BLOCK_BYTES * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(Checkpoint::decode(layout(), 1, &bad), CheckpointSlot::Invalid(_)), "bit {bit}");
    }
    checkpoint(vec![true; 3]).encode(&mut bytes);
    let fault = Fault::Count { count: 3, count_max: 2 };
    assert_eq!(Checkpoint::decode(layout(), 1, &bytes), CheckpointSlot::Invalid(fault));
    Checkpoint { log_block: u64::MAX, ..small.clone() }.encode(&mut bytes);
    assert_eq!(Checkpoint::decode(layout(), 1, &bytes), CheckpointSlot::Invalid(Fault::Number(u64::MAX)));
}

#[test]
fn the_newest_checkpoint_counts_and_the_other_one_is_reported_if_it_is_broken() {
    use CheckpointSlot::{Empty, Invalid, Valid};
    let numbered = |number| Valid(Checkpoint { number, ..checkpoint(vec![]) });
    let newest = |first, second| newest_checkpoint([first, second]).map(|(found, broken)| (found.number, broken));
    let fault = Fault::Magic;
    assert_eq!(newest(numbered(4), numbered(3)), Ok((4, None)));
    assert_eq!(newest(numbered(4), numbered(5)), Ok((5, None)));
    assert_eq!(newest(Empty, numbered(1)), Ok((1, None)));
    assert_eq!(newest(Empty, numbered(3)), Ok((3, Some((0, fault)))));
    assert_eq!(newest(Invalid(fault), numbered(3)), Ok((3, Some((0, fault)))));
    assert_eq!(newest(numbered(2), Invalid(fault)), Ok((2, Some((1, fault)))));
    assert_eq!(newest(Empty, Invalid(fault)), Err([None, Some(fault)]));
}

/// A ring in which the commits after sequence 10 begin with block 6; each of them changes so many places.
fn ring(commits: &[usize]) -> Vec<u8> {
    let mut ring = vec![0; layout().log_blocks as usize * BLOCK_BYTES];
    let mut number = 6;
    for (sequence, count) in (11..).zip(commits) {
        let changes: Vec<_> =
            (0..*count as u32).map(|place| (place, item(sequence * 100 + u64::from(place), 0, 0).encoded())).collect();
        let parts = log_blocks(*count);
        for part in 0..parts {
            let block = LogBlock { number, sequence, next_id: sequence * 200, part, parts };
            let at = (number % u64::from(layout().log_blocks)) as usize * BLOCK_BYTES;
            block.encode(
                changes.chunks(LOG_ENTRIES).nth(part as usize).unwrap_or_default(),
                &mut ring[at..][..BLOCK_BYTES],
            );
            number += 1;
        }
    }
    ring
}

fn replayed(ring: &[u8]) -> Result<(LogEnd, Vec<u64>), Fault> {
    let mut ids = vec![];
    let end = replay(layout(), ring, &checkpoint(vec![]), |_, entry| {
        ids.push(u64::from_le_bytes(entry[..8].try_into().unwrap()));
        Ok(())
    })?;
    Ok((end, ids))
}

#[test]
fn a_log_is_replayed_over_its_end_and_up_to_the_last_whole_commit() {
    // Blocks 6, 7 and 0 (of eight); 1; 2.
    let good = ring(&[120, 0, 2]);
    let (end, ids) = replayed(&good).unwrap();
    assert_eq!((end.sequence, end.next_id, end.log_block, &end.broken[..]), (13, 2600, 11, &[][..]));
    assert_eq!((ids.len(), ids[119], ids[120]), (122, 1219, 1300));
    // The last one is cut short.
    for bit in 0..BLOCK_BYTES * 8 {
        let mut bad = good.clone();
        bad[2 * BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
        let (end, ids) = replayed(&bad).unwrap();
        assert_eq!((end.sequence, end.log_block, &end.broken[..], ids.len()), (12, 10, &[2][..], 120), "bit {bit}");
    }
    // One before is damaged.
    for (block, sequence) in [(6, 10), (7, 10), (0, 10), (1, 11)] {
        let mut bad = good.clone();
        bad[block * BLOCK_BYTES + 100] ^= 1;
        assert_eq!(replayed(&bad), Err(Fault::Log { sequence }), "block {block}");
    }
    // A commit of three blocks of which one was never written counts for none, and its parts are named.
    let mut cut = ring(&[120]);
    cut[7 * BLOCK_BYTES..].fill(0);
    let (end, ids) = replayed(&cut).unwrap();
    assert_eq!((end.sequence, end.log_block, &end.broken[..], ids.len()), (10, 6, &[0, 6][..], 0));
    // What was cleared is none.
    let mut cleared = ring(&[1, 1]);
    cleared[7 * BLOCK_BYTES..].fill(CLEARED);
    assert_eq!(replayed(&cleared).unwrap().0.broken, []);
}

#[test]
fn a_log_with_places_that_there_are_not_is_refused() {
    let mut ring = ring(&[]);
    let header = LogBlock { number: 6, sequence: 11, next_id: 50, part: 0, parts: 1 };
    for place in [126, u32::MAX] {
        header.encode(&[(place, item(1, 0, 0).encoded())], &mut ring[6 * BLOCK_BYTES..7 * BLOCK_BYTES]);
        assert_eq!(replayed(&ring), Err(Fault::Count { count: place, count_max: 126 }));
    }
}

fn table(entries: &[(u32, EntryBytes)]) -> Table {
    let mut table = Table::new();
    (0..2).for_each(|_| table.grow().unwrap());
    entries.iter().for_each(|(place, entry)| table.set(*place, entry));
    table
}

fn upload(number: u8, progress: UploadProgress) -> UploadEntry {
    UploadEntry { name: [number; 16], length: Some(1 << 40), deadline_secs: 1, progress }
}

fn open(start: u32) -> UploadProgress {
    UploadProgress::Open { offset: 4096, checksum: 3, extents: item(1, start, 1).extents }
}

#[test]
fn a_table_gives_out_the_lowest_free_place_and_knows_what_it_has() {
    let mut table = Table::new();
    assert_eq!((table.free().next(), table.used_pages()), (None, 0));
    (0..2).for_each(|_| table.grow().unwrap());
    for place in 0..64 {
        assert_eq!(table.free().next(), Some(place));
        table.set(place, &item(u64::from(place) + 1, 0, 0).encoded());
    }
    assert_eq!(table.used_pages(), 2);
    for place in [62, 7, 63] {
        table.set(place, &[0; ENTRY_BYTES]);
    }
    assert_eq!(table.free().take(3).collect::<Vec<_>>(), [7, 62, 63]);
    assert_eq!((table.used_pages(), table.item(8).id), (1, 9));
    // A page is read as it was written, and no other one is in its place.
    let mut block = vec![0; BLOCK_BYTES];
    let sum = table.encode_page(0, 77, &mut block);
    assert_eq!(decode_page(0, &block), Ok((sum, 77)));
    assert!(matches!(decode_page(1, &block), Err(Fault::Page { page: 1, .. })));
    let mut again = Table::new();
    again.add_page(&block).unwrap();
    assert_eq!((again.free().collect::<Vec<_>>(), again.get(5)), (vec![7, 62], table.get(5)));
    for bit in 0..BLOCK_BYTES * 8 {
        let mut bad = block.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_page(0, &bad), Err(Fault::Page { page: 0, .. })), "bit {bit}");
    }
}

#[test]
fn contents_are_in_the_order_of_ids_and_of_the_disk() {
    let (first, second) = (upload(1, open(40)), upload(2, UploadProgress::Complete { id: 4 }));
    let entries = [
        (0, item(9, 30, 2).encoded()),
        (5, item(3, 50, 1).encoded()),
        (6, first.named(Some(70))),
        (70, first.data().unwrap()),
        (71, second.named(None)),
        (72, item(5, 0, 0).encoded()),
    ];
    let contents = table(&entries).contents(layout(), 10).unwrap();
    assert_eq!(contents.items, [(3, 5), (5, 72), (9, 0)]);
    let places = [Places { name: 6, data: Some(70) }, Places { name: 71, data: None }];
    assert_eq!(contents.uploads, [(first, places[0]), (second, places[1])]);
    assert_eq!(contents.taken, [Extent { start: 30, blocks: 2 }, Extent { start: 50, blocks: 1 }]);
}

#[test]
fn entries_that_contradict_are_refused_with_their_place() {
    let wrong = |entries: &[(u32, EntryBytes)], want: &str| {
        let fault = table(entries).contents(layout(), 10).unwrap_err();
        assert_eq!(alloc::string::ToString::to_string(&fault), want);
    };
    let good = (0, item(3, 30, 2).encoded());
    wrong(&[good, (4, item(10, 40, 1).encoded())], "entry 4 (item 10): its id is out of order");
    wrong(&[good, (4, item(3, 40, 1).encoded())], "entry 4 (item 3): another item has its id");
    wrong(&[good, (4, item(4, 31, 1).encoded())], "entry 4 (item 4): it overlaps another item");
    // The superblock, the index (blocks 1 to 14), the end.
    for start in [0, 1, 14, 99] {
        let what = "an extent is outside of the data area";
        wrong(&[(4, item(4, start, 2).encoded())], &alloc::format!("entry 4 (item 4): {what}"));
    }
    let first = upload(1, open(40));
    let (name, data) = ((8, first.named(Some(9))), (9, first.data().unwrap()));
    wrong(&[name], "entry 8 (an upload): its data is not there");
    wrong(&[data], "entry 9 (an upload): no name has its data");
    wrong(&[good, (8, first.named(Some(0)))], "entry 8 (an upload): its data is not there");
    wrong(&[(8, first.named(Some(126)))], "entry 8 (an upload): its data has no place");
    wrong(&[name, data, (10, upload(2, open(1)).named(Some(9)))], "entry 9 (an upload): two uploads have its data");
    wrong(
        &[name, data, (10, upload(1, UploadProgress::Complete { id: 1 }).named(None))],
        "entry 10 (an upload): another upload has its name",
    );
    wrong(&[(8, first.named(None))], "entry 8 (an upload): it is neither in progress nor complete");
    wrong(
        &[(8, upload(1, UploadProgress::Complete { id: 10 }).named(None))],
        "entry 8 (an upload): no item had its id",
    );
    wrong(&[name, (9, upload(1, open(31)).data().unwrap()), good], "entry 9 (an upload): it overlaps another item");
    let mut unknown = [0; ENTRY_BYTES];
    unknown[20] = 1;
    wrong(&[(1, unknown)], "entry 1 (an upload): it is neither an item nor of an upload");
}
