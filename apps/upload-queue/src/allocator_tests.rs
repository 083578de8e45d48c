//! Tests of the allocator.

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

impl Allocator {
    /// An item of so many blocks, completely written.
    fn take(&self, blocks: u64) -> Result<Space, Refused> {
        let mut reservation = self.reserve(blocks)?;
        let mut left = blocks;
        while left > 0 {
            left -= u64::from(reservation.next(u32::MAX, left)?.blocks);
        }
        Ok(reservation.into_space(blocks))
    }
}

fn allocator(blocks: u32) -> Allocator {
    Allocator::new([Extent { start: 3, blocks }], 4)
}

#[test]
fn first_fit_then_the_longest_pieces() {
    let allocator = allocator(10);
    let a = allocator.take(2).unwrap();
    let b = allocator.take(3).unwrap();
    let c = allocator.take(2).unwrap();
    assert_eq!(c.extents[0], Extent { start: 8, blocks: 2 });
    drop(b);
    let scattered = allocator.take(5).unwrap();
    assert_eq!(scattered.extents[..2], [Extent { start: 5, blocks: 3 }, Extent { start: 10, blocks: 2 }]);
    assert_eq!(allocator.take(2).err(), Some(Refused::Blocks));
    drop((a, c, scattered));
    assert_eq!(allocator.take(10).unwrap().extents[0], Extent { start: 3, blocks: 10 });
    let empty: Vec<Space> = (0..4).map(|_| allocator.take(0).unwrap()).collect();
    assert_eq!(allocator.take(0).err(), Some(Refused::Entries));
    drop(empty);
    assert_eq!(allocator.take(u64::MAX).err(), Some(Refused::Blocks));
}

#[test]
fn the_last_block_of_the_largest_device_is_usable() {
    let allocator = Allocator::new([Extent { start: u32::MAX - 4, blocks: 4 }], 4);
    let all = allocator.take(4).unwrap();
    drop(all);
    assert_eq!(allocator.free_bytes(), 4 * 4096);
    assert!(allocator.take(4).is_ok());
}

#[test]
fn more_pieces_than_an_entry_names_are_refused() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 12 }], 20);
    let mut all: Vec<Option<Space>> = (0..12).map(|_| allocator.take(1).ok()).collect();
    all.iter_mut().step_by(2).for_each(|space| *space = None);
    assert_eq!(allocator.take(6).err(), Some(Refused::Blocks));
    assert!(allocator.take(5).is_ok());
}

#[test]
fn the_longest_of_many_pieces_are_taken() {
    let runs = [3, 9, 1, 7, 8, 2, 6, 5, 4];
    let allocator = Allocator::new([Extent { start: 0, blocks: runs.iter().sum::<u32>() + 9 }], 20);
    let taken = runs.map(|blocks| (allocator.take(blocks.into()).unwrap(), allocator.take(1).unwrap()));
    // What was taken between them stays.
    let _between = taken.map(|(_, between)| between);
    let scattered = allocator.take(9 + 8 + 7 + 2).unwrap();
    let lengths = scattered.extents.map(|extent| extent.blocks);
    assert_eq!(lengths[..5], [9, 8, 7, 2, 0]);
    assert_eq!(scattered.extents[4], Extent::default());
}

#[test]
fn pieces_cover_an_item_and_never_cross_an_extent() {
    let mut extents = [Extent::default(); EXTENTS_MAX];
    extents[0] = Extent { start: 10, blocks: 3 };
    extents[1] = Extent { start: 1, blocks: 2 };
    let mut cursor = Cursor::new(extents, 4 * 4096 + 5);
    let pieces: Vec<Piece> = core::iter::from_fn(|| cursor.next(8192)).collect();
    assert_eq!(
        pieces,
        [
            Piece { offset: 10 * 4096, bytes: 8192 },
            Piece { offset: 12 * 4096, bytes: 4096 },
            Piece { offset: 4096, bytes: 4101 },
        ]
    );
    assert_eq!(pieces[2].padded_bytes(), 8192);
}

#[test]
fn what_was_announced_and_not_filled_goes_to_others() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1000 }], 10);
    let mut greedy = allocator.reserve_some(1000).unwrap();
    assert_eq!(greedy.next(32, 1000), Ok(Extent { start: 0, blocks: 32 }));
    // 32 blocks are filled, and as many ahead of them stay.
    assert_eq!(allocator.reserve(937).err(), Some(Refused::Blocks));
    let honest = allocator.take(900).unwrap();
    assert_eq!(greedy.next(1000, 968).map(|extent| extent.blocks), Ok(68));
    assert_eq!(greedy.next(1000, 900), Err(Refused::Blocks));
    drop(honest);
    assert_eq!(greedy.next(100, 900), Ok(Extent { start: 100, blocks: 100 }));
    let space = greedy.into_space(150);
    assert_eq!(space.extents[0], Extent { start: 0, blocks: 150 });
    assert_eq!(allocator.free_bytes(), 850 * 4096);
    drop(space);
    assert_eq!((allocator.free_bytes(), allocator.free_entries()), (1000 * 4096, 10));
}

#[test]
fn who_goes_on_keeps_what_it_has_announced() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1000 }], 10);
    let at = |secs: u64| Instant(secs * 1_000_000_000);
    let mut first = allocator.reserve(900).unwrap();
    assert_eq!(first.next(64, 900).map(|extent| extent.blocks), Ok(64));
    assert!(allocator.reserve(100).is_ok());
    assert_eq!(allocator.reserve(101).err(), Some(Refused::Blocks));
    // 64 KiB in a second are 160 blocks in ten; what was filled before it was seen does not count.
    [0, 10].into_iter().for_each(|secs| allocator.pace(at(secs)));
    assert_eq!(first.next(160, 836).map(|extent| extent.blocks), Ok(160));
    [19, 20].into_iter().for_each(|secs| allocator.pace(at(secs)));
    assert_eq!(allocator.reserve(101).err(), Some(Refused::Blocks));
    first.next(159, 676).unwrap();
    allocator.pace(at(30));
    assert!(allocator.reserve(101).is_ok());
    first.next(160, 517).unwrap();
    allocator.pace(at(40));
    assert_eq!(allocator.reserve(101 + 100).err(), Some(Refused::Blocks));
}

#[test]
fn who_cannot_have_all_that_it_announced_ends_at_once() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1000 }], 10);
    let mut first = allocator.reserve(1000).unwrap();
    let [long, short] = [600, 300].map(|blocks| allocator.take(blocks).unwrap());
    // 100 blocks are left, and 300 more soon.
    assert_eq!(first.next(1, 1000), Err(Refused::Blocks));
    drop(short);
    assert_eq!(first.next(1, 1000), Err(Refused::Blocks));
    drop(long);
    assert_eq!(first.next(64, 1000), Ok(Extent { start: 0, blocks: 64 }));
    assert_eq!(allocator.reserve(1).err(), Some(Refused::Blocks));
}

#[test]
fn of_two_that_take_from_each_other_one_gets_all() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1300 }], 10);
    let [mut first, mut second] = [1000, 900].map(|blocks| allocator.reserve(blocks).unwrap());
    // The second one has taken 600 blocks of the first, which takes them back.
    assert_eq!(first.next(64, 1000).map(|extent| extent.blocks), Ok(64));
    assert_eq!(second.next(64, 900), Err(Refused::Blocks));
    drop(second);
    let (mut filled, mut third) = (64, allocator.reserve(300).unwrap());
    while filled < 1000 {
        filled += u64::from(first.next(64, 1000 - filled).unwrap().blocks);
    }
    assert_eq!(third.next(300, 300).map(|extent| extent.blocks), Ok(300));
}

#[test]
fn an_upload_grows_in_as_many_pieces_as_an_entry_names() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1000 }], 10);
    let mut upload = allocator.reserve_some(10).unwrap();
    let mut others = Vec::new();
    for piece in 0..EXTENTS_MAX as u32 {
        assert_eq!(upload.next(10, 10), Ok(Extent { start: piece * 11, blocks: 10 }));
        // The part after it goes to another one.
        others.push(allocator.take(1).unwrap());
    }
    assert_eq!(upload.next(10, 10), Err(Refused::Blocks));
    drop(others.pop());
    assert_eq!(upload.next(10, 10), Ok(Extent { start: 54, blocks: 10 }));
}

#[test]
fn who_has_space_ahead_shares_it_only_where_less_is_free() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 1000 }], 10);
    let _first = allocator.reserve_some(600).unwrap();
    let mut second = allocator.reserve_some(1000).unwrap();
    assert_eq!(second.next(u32::MAX, 1000), Ok(Extent { start: 600, blocks: 400 }));
    // No block is free, so the first one gives half of what it has not filled.
    let mut third = allocator.reserve_some(1000).unwrap();
    let shared = third.next(u32::MAX, 1000).unwrap();
    assert!((250..=300).contains(&shared.blocks) && shared.start >= 300, "{shared:?}");
}

#[test]
fn as_much_as_half_of_the_room_ahead_of_another_is_enough() {
    for (free, first_block) in [(283, 316), (284, 600)] {
        let allocator = Allocator::new([Extent { start: 0, blocks: 600 + free }], 10);
        // It keeps 32 blocks, and half of the others are 284.
        let _first = allocator.reserve_some(600).unwrap();
        let mut second = allocator.reserve_some(1000).unwrap();
        let blocks = 600 + free - first_block;
        assert_eq!(second.next(u32::MAX, 1000), Ok(Extent { start: first_block, blocks }), "{free} blocks are free");
    }
}

#[test]
fn an_upload_that_has_filled_a_gap_goes_on_elsewhere() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 30 }], 10);
    let (_before, gap, _behind) =
        (allocator.take(10).unwrap(), allocator.take(10).unwrap(), allocator.take(1).unwrap());
    drop(gap);
    let mut upload = allocator.reserve_some(10).unwrap();
    assert_eq!(upload.next(20, 20), Ok(Extent { start: 10, blocks: 10 }));
    assert_eq!(upload.next(20, 10), Ok(Extent { start: 21, blocks: 9 }));
    assert_eq!(upload.next(20, 1), Err(Refused::Blocks));
}

#[test]
fn blocks_around_those_that_an_index_names_stay_free() {
    let allocator = allocator(10);
    let exactly = |pieces: [(u32, u32); 2]| {
        let mut extents = [Extent::default(); EXTENTS_MAX];
        extents.iter_mut().zip(pieces).for_each(|(extent, (start, blocks))| *extent = Extent { start, blocks });
        allocator.reserve_exactly(extents)
    };
    let named = exactly([(5, 2), (9, 1)]).unwrap();
    // One of these blocks is taken.
    assert!(exactly([(3, 2), (6, 2)]).is_none());
    assert_eq!((allocator.free_bytes(), allocator.free_entries()), (7 * 4096, 3));
    let rest = [2, 2, 3].map(|blocks| allocator.take(blocks).unwrap());
    let starts = rest.each_ref().map(|space| space.extents[0].start);
    assert_eq!((starts, allocator.free_bytes(), allocator.free_entries()), ([3, 7, 10], 0, 0));
    drop((named, rest));
    assert_eq!(allocator.take(10).unwrap().extents[0], Extent { start: 3, blocks: 10 });
}

#[test]
fn an_upload_that_ends_early_gives_all_other_pieces_back() {
    let allocator = allocator(10);
    let (_a, b, _c) = (allocator.take(2).unwrap(), allocator.take(3).unwrap(), allocator.take(2).unwrap());
    drop(b);
    let mut upload = allocator.reserve(5).unwrap();
    assert_eq!(upload.next(2, 5), Ok(Extent { start: 5, blocks: 2 }));
    let space = upload.into_space(2);
    assert_eq!(space.extents[..2], [Extent { start: 5, blocks: 2 }, Extent::default()]);
    assert_eq!(allocator.free_bytes(), 4 * 4096);
}

#[test]
fn an_item_without_bytes_takes_no_blocks() {
    let allocator = allocator(10);
    let all = allocator.take(10).unwrap();
    let empty = allocator.take(0).unwrap();
    assert_eq!((empty.extents, allocator.free_entries()), ([Extent::default(); EXTENTS_MAX], 2));
    drop((all, empty));
    assert_eq!((allocator.free_bytes(), allocator.free_entries()), (10 * 4096, 4));
}

#[test]
fn uploads_of_unknown_length_share_the_disk() {
    let allocator = Allocator::new([Extent { start: 0, blocks: 10_000 }], 10);
    let mut uploads: Vec<(Reservation, u64)> = (0..4).map(|_| (allocator.reserve_some(10_000).unwrap(), 0)).collect();
    for round in 0..2400 / 32 {
        for (upload, filled) in &mut uploads {
            let mut left = 32;
            while left > 0 {
                let piece = upload.next(left, 10_000 - *filled);
                let piece = piece.unwrap_or_else(|_| panic!("no room in round {round} at {filled}"));
                left -= piece.blocks;
                *filled += u64::from(piece.blocks);
            }
        }
    }
    let spaces: Vec<Space> = uploads.into_iter().map(|(upload, filled)| upload.into_space(filled)).collect();
    assert_eq!(allocator.free_bytes(), (10_000 - 4 * 2400) * 4096);
    drop(spaces);
    assert_eq!(allocator.take(10_000).unwrap().extents[0], Extent { start: 0, blocks: 10_000 });
}

#[test]
fn an_upload_that_is_continued_has_its_blocks_and_may_fill_some_again() {
    let allocator = allocator(10);
    let mut upload = allocator.reserve(6).unwrap();
    assert_eq!(upload.next(4, 6).unwrap().blocks, 4);
    let mut saved = [Extent::default(); EXTENTS_MAX];
    saved[0] = Extent { start: 3, blocks: 3 };
    assert_eq!(upload.first(3), saved);
    upload.rewind(2);
    assert_eq!(upload.next(9, 4), Ok(Extent { start: 5, blocks: 4 }));
    drop(upload);
    let mut upload = allocator.reserve_exactly(saved).unwrap();
    assert!(allocator.reserve_exactly(saved).is_none());
    assert_eq!((allocator.free_bytes(), allocator.free_entries()), (7 * 4096, 3));
    assert_eq!((upload.first(3), upload.next(1, 1)), (saved, Ok(Extent { start: 6, blocks: 1 })));
    let entries: Vec<IndexEntry> = core::iter::from_fn(|| allocator.take_entry()).collect();
    assert_eq!((entries.len(), allocator.free_entries()), (3, 0));
    drop((upload, entries));
    assert_eq!((allocator.free_bytes(), allocator.free_entries()), (10 * 4096, 4));
}

proptest! {
    #[test]
    fn held_blocks_are_disjoint_and_come_back(sizes in prop::collection::vec((0u64..40, 0usize..8), 1..80)) {
        let allocator = Allocator::new([Extent { start: 7, blocks: 100 }], 16);
        let mut held: Vec<Space> = Vec::new();
        for (blocks, victim) in sizes {
            match allocator.take(blocks) {
                Ok(space) => {
                    prop_assert_eq!(space.extents.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>(), blocks);
                    held.push(space);
                }
                Err(_) if held.is_empty() => prop_assert!(blocks > 100),
                Err(_) => drop(held.swap_remove(victim % held.len())),
            }
            let mut taken = [false; 107];
            for extent in held.iter().flat_map(|space| space.extents) {
                for block in &mut taken[extent.start as usize..extent.end() as usize] {
                    prop_assert!(!core::mem::replace(block, true));
                }
            }
            let used = taken.iter().filter(|taken| **taken).count() as u64;
            prop_assert_eq!(allocator.free_bytes(), (100 - used) * 4096);
        }
        drop(held);
        prop_assert_eq!(allocator.take(100).unwrap().extents[0], Extent { start: 7, blocks: 100 });
        prop_assert_eq!(allocator.free_entries(), 16);
    }
}
