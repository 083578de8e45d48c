//! The items of the queue, and the changes to them that are not durable yet.
//!
//! A commit writes the slot of the index that is not current, so when one fails the queue is as before: its uploads and
//! removals are undone and answered with an error. Whether the slot is nevertheless readable is unknown until another commit has written
//! it again. Until then the space of the failed uploads is not reused.

use crate::allocator::Space;
use crate::error::StoreError;
use crate::format::Entry;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem;

/// An item and its space; the last holder's drop frees the space.
pub(crate) struct Item {
    pub(crate) entry: Entry,
    pub(crate) _space: Space,
}

/// The result of a commit, for the tasks that wait for it.
#[derive(Clone, Default)]
pub(crate) struct Outcome(Rc<Cell<Option<Result<(), StoreError>>>>);

impl Outcome {
    /// `None` while it is not known.
    pub(crate) fn get(&self) -> Option<Result<(), StoreError>> {
        self.0.get()
    }
}

/// What one commit changes.
#[derive(Default)]
pub(crate) struct Batch {
    /// Whole uploads.
    pub(crate) adds: Vec<Rc<Item>>,
    /// Removed items, oldest first; they hold their space until the commit that removes them is durable.
    removes: Vec<Rc<Item>>,
    outcome: Outcome,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.removes.is_empty()
    }
}

pub(crate) struct Changes {
    /// Durable items that were not removed, oldest completion first.
    items: VecDeque<Rc<Item>>,
    /// What the next commit changes.
    next: Batch,
    /// The open commit.
    current: Option<Outcome>,
    /// Uploads of failed commits.
    in_doubt: Vec<Rc<Item>>,
    /// A commit is needed although nothing changes.
    settle: bool,
    /// Sequence of the newest durable index.
    sequence: u64,
    next_id: u64,
}

impl Changes {
    pub(crate) fn new(items: VecDeque<Rc<Item>>, sequence: u64, next_id: u64) -> Changes {
        let (next, in_doubt) = (Batch::default(), Vec::new());
        Changes { items, next, current: None, in_doubt, settle: false, sequence, next_id }
    }

    pub(crate) fn head(&self) -> Option<&Rc<Item>> {
        self.items.front()
    }

    pub(crate) fn item_count(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// An id that no item had or will have.
    pub(crate) fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn add(&mut self, item: Item) -> Outcome {
        self.next.adds.push(Rc::new(item));
        self.next.outcome.clone()
    }

    /// Removes the head if it is item `id`. Returns whether it did, and the outcome of all removals so far, unless these are durable.
    pub(crate) fn remove(&mut self, id: u64) -> (bool, Option<Outcome>) {
        let removed = self.items.pop_front_if(|head| head.entry.id == id);
        let is_found = removed.is_some();
        self.next.removes.extend(removed);
        let next = (!self.next.removes.is_empty()).then(|| self.next.outcome.clone());
        (is_found, next.or_else(|| self.current.clone()))
    }

    /// Requests a commit if a failed one left space that cannot be used. Returns whether it does.
    pub(crate) fn settle(&mut self) -> bool {
        self.settle = !self.in_doubt.is_empty();
        self.settle
    }

    /// What the next commit changes; `None` while there is nothing to commit.
    pub(crate) fn begin(&mut self) -> Option<Batch> {
        let is_wanted = mem::take(&mut self.settle) || !self.next.is_empty();
        if !is_wanted {
            return None;
        }
        let batch = mem::take(&mut self.next);
        self.current = Some(batch.outcome.clone());
        Some(batch)
    }

    /// The index once `batch` is committed. What was removed since the batch began is still in it: that removal is of the next commit,
    /// which may fail. It is older than all other items, because only the head can be removed.
    pub(crate) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = Entry> + Clone + 'a {
        self.next.removes.iter().chain(&self.items).chain(&batch.adds).map(|item| item.entry)
    }

    /// `batch` is durable, with this sequence. Returns the items whose space is free when they are dropped.
    pub(crate) fn succeed(&mut self, batch: Batch, sequence: u64) -> Vec<Rc<Item>> {
        self.sequence = sequence;
        self.items.extend(batch.adds);
        self.end(&batch.outcome, Ok(()));
        let mut free = batch.removes;
        free.append(&mut self.in_doubt);
        free
    }

    /// The write of the slot for `batch` failed, or was not tried.
    pub(crate) fn fail(&mut self, batch: Batch, error: StoreError) {
        // Not simply to the front: a removal that failed earlier may have put older items back since.
        self.items.extend(batch.removes);
        self.items.make_contiguous().sort_by_key(|item| item.entry.id);
        self.in_doubt.extend(batch.adds);
        self.end(&batch.outcome, Err(error));
    }

    /// A flush for `batch` failed: data written since the flush before may be lost, and a later flush does not report it.
    /// So the uploads that wait for the next commit fail too.
    pub(crate) fn fail_flush(&mut self, batch: Batch, error: StoreError) {
        let next = mem::take(&mut self.next);
        self.fail(next, error);
        self.fail(batch, error);
    }

    fn end(&mut self, outcome: &Outcome, result: Result<(), StoreError>) {
        outcome.0.set(Some(result));
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::format::Extent;
    use alloc::vec;
    use glasshouse::BlockError;

    fn changes() -> (Changes, Allocator) {
        let data = Extent { start: 0, blocks: 100 };
        (Changes::new(VecDeque::new(), 1, 1), Allocator::new(data, 100))
    }

    fn add(changes: &mut Changes, allocator: &Allocator) -> Outcome {
        let mut reserved = allocator.reserve(1).expect("there is space");
        reserved.next(1, 1).expect("it was reserved");
        let space = reserved.into_space(1);
        let entry = Entry { id: changes.take_id(), length: 1, checksum: 0, extents: space.extents };
        changes.add(Item { entry, _space: space })
    }

    fn commit(changes: &mut Changes) {
        let batch = changes.begin().expect("there are changes");
        let sequence = changes.sequence() + 1;
        drop(changes.succeed(batch, sequence));
    }

    fn ids(changes: &Changes) -> Vec<u64> {
        changes.items.iter().map(|item| item.entry.id).collect()
    }

    const ERROR: StoreError = StoreError::Disk(BlockError::Device(28));

    #[test]
    fn what_failed_is_undone_in_order_and_its_space_waits_for_the_next_commit() {
        let (mut changes, allocator) = changes();
        for _ in 0..4 {
            add(&mut changes, &allocator);
        }
        commit(&mut changes);
        let failed = add(&mut changes, &allocator);
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
        commit(&mut changes);
        assert_eq!((ids(&changes), changes.sequence()), (vec![1, 2, 4], 3));
        assert_eq!(allocator.free_entries(), 97);
        assert!(changes.begin().is_none());
        // The next id is new.
        add(&mut changes, &allocator);
        commit(&mut changes);
        assert_eq!(ids(&changes), [1, 2, 4, 6]);
    }

    #[test]
    fn a_commit_leaves_out_only_what_its_own_batch_removes() {
        let (mut changes, allocator) = changes();
        for _ in 0..4 {
            add(&mut changes, &allocator);
        }
        commit(&mut changes);
        assert!(changes.remove(1).0);
        let batch = changes.begin().unwrap();
        // During the first flush of this commit.
        let (is_found, outcome) = changes.remove(2);
        assert!(is_found);
        let written: Vec<u64> = changes.entries(&batch).map(|entry| entry.id).collect();
        assert_eq!(written, [2, 3, 4]);
        drop(changes.succeed(batch, 3));
        // The commit of that removal fails: the item is served again, as the durable index has it.
        let batch = changes.begin().unwrap();
        let written: Vec<u64> = changes.entries(&batch).map(|entry| entry.id).collect();
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
        commit(&mut changes);
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
        commit(&mut changes);
        let first = add(&mut changes, &allocator);
        let batch = changes.begin().unwrap();
        let second = add(&mut changes, &allocator);
        changes.fail_flush(batch, ERROR);
        assert_eq!([first, second].map(|outcome| outcome.get()), [Some(Err(ERROR)); 2]);
        assert!(changes.begin().is_none());
        assert_eq!(ids(&changes), [1]);
        // A commit without changes makes their space free.
        assert!(changes.settle());
        commit(&mut changes);
        assert_eq!(allocator.free_entries(), 99);
        assert!(!changes.settle() && changes.begin().is_none());
    }

    #[test]
    fn a_removal_that_finds_nothing_waits_for_those_before_it() {
        let (mut changes, allocator) = changes();
        assert!(changes.remove(1).1.is_none());
        add(&mut changes, &allocator);
        commit(&mut changes);
        let (_, before) = changes.remove(1);
        let (is_found, same) = changes.remove(1);
        assert!(!is_found);
        let batch = changes.begin().unwrap();
        let (_, in_flight) = changes.remove(1);
        drop(changes.succeed(batch, 3));
        assert!([before, same, in_flight].into_iter().all(|outcome| outcome.unwrap().get() == Some(Ok(()))));
        assert!(changes.remove(1).1.is_none());
    }
}
