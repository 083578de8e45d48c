//! Tests of groups of changes: what succeeds, fails and waits.

use super::*;
use crate::allocator::Allocator;
use crate::format::{Contents, Extent, Layout, Table};
use alloc::vec;
use glasshouse::BlockError;

fn changes() -> (Changes, Allocator) {
    changes_with(100)
}

fn changes_with(places_max: usize) -> (Changes, Allocator) {
    let data = Extent { start: 700, blocks: 100 };
    let mut index = Index::new(Table::new(), &Contents::default());
    index.make_space(100).expect("there is memory");
    (Changes::new(index, BTreeMap::new(), places_max, 1, 1), Allocator::new([data], 100))
}

fn add(changes: &mut Changes, allocator: &Allocator) -> Outcome {
    let mut reserved = allocator.reserve(1).expect("there is space");
    reserved.next(1, 1).expect("it was reserved");
    let space = reserved.into_space(1);
    let entry = Entry { id: changes.take_id(), length: 1, checksum: 0, extents: space.extents };
    changes.add(NewItem { entry, space, charge: None })
}

fn flush(changes: &mut Changes) {
    changes.begin_flush();
    changes.end_flush();
}

fn commit(changes: &mut Changes, allocator: &Allocator) {
    flush(changes);
    let batch = changes.begin().expect("there are changes");
    succeed(changes, batch, allocator);
}

fn succeed(changes: &mut Changes, batch: Batch, allocator: &Allocator) {
    let (plan, sequence) = (changes.plan(&batch), changes.sequence() + 1);
    drop(changes.succeed(batch, plan, sequence, allocator));
}

/// The ids of the items once `batch` is committed.
fn planned(changes: &Changes, batch: &Batch) -> Vec<u64> {
    let mut table = Table::new();
    (0..2).for_each(|_| table.grow().expect("there is memory"));
    for entry in changes.index().items_after(None).chain(changes.index().removing()) {
        table.set(changes.index().place(entry.id), &entry.encoded());
    }
    changes.plan(batch).changes.iter().for_each(|(place, entry)| table.set(*place, entry));
    let layout = Layout::with_pages(1000, 1, 2);
    table.contents(layout, 1000).expect("it is consistent").items.iter().map(|(id, _)| *id).collect()
}

fn ids(changes: &Changes) -> Vec<u64> {
    changes.index().items_after(None).map(|entry| entry.id).collect()
}

const ERROR: StoreError = StoreError::Disk(BlockError::Device(28));

#[test]
fn what_failed_is_undone_in_order_and_its_space_waits_for_the_next_commit() {
    let (mut changes, allocator) = changes();
    for _ in 0..4 {
        add(&mut changes, &allocator);
    }
    commit(&mut changes, &allocator);
    let failed = add(&mut changes, &allocator);
    flush(&mut changes);
    let removals = [changes.remove(1), changes.remove(2)];
    assert!(removals.iter().all(|(is_found, _)| *is_found));
    let batch = changes.begin().unwrap();
    // The next one removes too, before the outcome is known.
    assert!(changes.remove(3).0);
    changes.fail(batch, ERROR);
    assert_eq!(failed.get(), Some(Err(ERROR)));
    assert!(removals.iter().all(|(_, outcome)| outcome.as_ref().unwrap().get() == Some(Err(ERROR))));
    assert_eq!(ids(&changes), [1, 2, 4]);
    assert_eq!(changes.sequence(), 2);
    assert_eq!(allocator.free_entries(), 95);
    commit(&mut changes, &allocator);
    assert_eq!((ids(&changes), changes.sequence()), (vec![1, 2, 4], 3));
    assert_eq!(allocator.free_entries(), 97);
    assert!(changes.begin().is_none());
    // The next id is new.
    add(&mut changes, &allocator);
    commit(&mut changes, &allocator);
    assert_eq!(ids(&changes), [1, 2, 4, 6]);
}

#[test]
fn a_commit_leaves_out_only_what_its_own_batch_removes() {
    let (mut changes, allocator) = changes();
    for _ in 0..4 {
        add(&mut changes, &allocator);
    }
    commit(&mut changes, &allocator);
    assert!(changes.remove(1).0);
    let batch = changes.begin().unwrap();
    // During the flush of this commit.
    let (is_found, outcome) = changes.remove(2);
    assert!(is_found);
    let written = planned(&changes, &batch);
    assert_eq!(written, [2, 3, 4]);
    succeed(&mut changes, batch, &allocator);
    // The commit of that removal fails: the item is served again, as the durable index has it.
    let batch = changes.begin().unwrap();
    let written = planned(&changes, &batch);
    assert_eq!(written, [3, 4]);
    changes.fail(batch, ERROR);
    assert_eq!(outcome.unwrap().get(), Some(Err(ERROR)));
    assert_eq!(ids(&changes), [2, 3, 4]);
}

#[test]
fn removals_that_fail_one_after_the_other_keep_the_order() {
    let (mut changes, allocator) = changes();
    for _ in 0..4 {
        add(&mut changes, &allocator);
    }
    commit(&mut changes, &allocator);
    assert!(changes.remove(1).0 && changes.remove(2).0);
    let first = changes.begin().unwrap();
    assert!(changes.remove(3).0);
    changes.fail(first, ERROR);
    let second = changes.begin().unwrap();
    changes.fail(second, ERROR);
    assert_eq!(ids(&changes), [1, 2, 3, 4]);
}

#[test]
fn a_failed_flush_fails_the_uploads_that_wait_too() {
    let (mut changes, allocator) = changes();
    add(&mut changes, &allocator);
    commit(&mut changes, &allocator);
    let first = add(&mut changes, &allocator);
    flush(&mut changes);
    let batch = changes.begin().unwrap();
    let second = add(&mut changes, &allocator);
    changes.fail_waiting(ERROR);
    changes.fail(batch, ERROR);
    assert_eq!([first, second].map(|outcome| outcome.get()), [Some(Err(ERROR)); 2]);
    assert!(changes.begin().is_none());
    assert_eq!(ids(&changes), [1]);
    // A commit without changes makes their space free.
    assert!(changes.settle());
    commit(&mut changes, &allocator);
    assert_eq!(allocator.free_entries(), 99);
    assert!(!changes.settle() && changes.begin().is_none());
}

#[test]
fn a_removal_that_finds_nothing_waits_for_those_before_it() {
    let (mut changes, allocator) = changes();
    assert!(changes.remove(1).1.is_none());
    add(&mut changes, &allocator);
    commit(&mut changes, &allocator);
    let (_, before) = changes.remove(1);
    let (is_found, same) = changes.remove(1);
    assert!(!is_found);
    let batch = changes.begin().unwrap();
    let (_, in_flight) = changes.remove(1);
    succeed(&mut changes, batch, &allocator);
    assert!([before, same, in_flight].into_iter().all(|outcome| outcome.unwrap().get() == Some(Ok(()))));
    assert!(changes.remove(1).1.is_none());
}

#[test]
fn a_commit_has_what_was_written_before_the_last_flush_began() {
    let (mut changes, allocator) = changes();
    let outcomes: Vec<Outcome> = (0..2).map(|_| add(&mut changes, &allocator)).collect();
    assert!(changes.wants_flush() && changes.begin().is_none());
    changes.begin_flush();
    let during = add(&mut changes, &allocator);
    assert!(changes.begin().is_none());
    changes.end_flush();
    let batch = changes.begin().unwrap();
    let written = planned(&changes, &batch);
    assert_eq!(written, [1, 2]);
    // The flush of its index covers the third one.
    changes.begin_flush();
    changes.end_flush();
    succeed(&mut changes, batch, &allocator);
    assert!(outcomes.iter().all(|outcome| outcome.get() == Some(Ok(()))));
    assert!(during.get().is_none() && !changes.wants_flush());
    let batch = changes.begin().unwrap();
    succeed(&mut changes, batch, &allocator);
    assert_eq!((during.get(), ids(&changes)), (Some(Ok(())), vec![1, 2, 3]));
}

#[test]
fn a_removal_waits_for_no_data_and_each_one_has_its_own_outcome() {
    let (mut changes, allocator) = changes();
    add(&mut changes, &allocator);
    add(&mut changes, &allocator);
    commit(&mut changes, &allocator);
    let added = add(&mut changes, &allocator);
    let (_, first) = changes.remove(1);
    let batch = changes.begin().unwrap();
    let written = planned(&changes, &batch);
    assert_eq!(written, [2]);
    // The flush of this commit covers the upload, which shares the next one with another removal.
    changes.begin_flush();
    let (_, second) = changes.remove(2);
    changes.end_flush();
    succeed(&mut changes, batch, &allocator);
    assert_eq!((first.unwrap().get(), added.get()), (Some(Ok(())), None));
    let batch = changes.begin().unwrap();
    changes.fail(batch, ERROR);
    assert_eq!([second.unwrap().get(), added.get()], [Some(Err(ERROR)); 2]);
    assert_eq!(ids(&changes), [2]);
}

#[test]
fn a_failed_flush_fails_what_it_would_have_covered_and_what_came_later() {
    let (mut changes, allocator) = changes();
    let covered = add(&mut changes, &allocator);
    changes.begin_flush();
    let later = add(&mut changes, &allocator);
    changes.fail_waiting(ERROR);
    assert_eq!([covered.get(), later.get()], [Some(Err(ERROR)); 2]);
    assert!(!changes.wants_flush() && changes.begin().is_none());
    // No index names them, but their space comes back as that of all failed uploads.
    assert!(changes.settle());
    commit(&mut changes, &allocator);
    assert_eq!(allocator.free_entries(), 100);
}

#[test]
fn a_commit_has_no_more_changes_than_the_log_has_space_for_and_each_one_its_own_outcome() {
    let (mut changes, allocator) = changes_with(6);
    let outcomes: Vec<Outcome> = (0..7).map(|_| add(&mut changes, &allocator)).collect();
    flush(&mut changes);
    // An upload that can be resumed changes two places, so each item counts for two.
    let counts = [3, 3, 1].map(|count| {
        let batch = changes.begin().expect("there are more");
        assert_eq!(changes.plan(&batch).changes.len(), count);
        succeed(&mut changes, batch, &allocator);
        outcomes.iter().filter(|outcome| outcome.get().is_some()).count()
    });
    assert_eq!(counts, [3, 6, 7]);
    // Removals fill up what is left of a batch.
    assert!((1..8).all(|id| changes.remove(id).0));
    let (_, last) = changes.remove(1);
    for left in [2, 0] {
        let batch = changes.begin().expect("there are more");
        succeed(&mut changes, batch, &allocator);
        assert_eq!(ids(&changes).len(), 0);
        assert_eq!(last.as_ref().unwrap().get().is_some(), left == 0, "the last one has its own");
    }
    assert!(changes.begin().is_none());
}
