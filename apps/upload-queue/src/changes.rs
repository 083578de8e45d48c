//! What the queue has, and the changes to it that are not durable yet.
//!
//! A change with data waits until a flush covers the data, then until a commit has written an index with it and flushed that. Each flush
//! covers what was written before it began, so the flush of one commit's index is that of the next one's data.
//!
//! A commit writes the slot of the index that is not current, so when one fails the queue is as before: its uploads and
//! removals are undone and answered with an error. Whether the slot is nevertheless readable is unknown until another commit has written
//! it again. Until then the space of the failed uploads is not reused.

use crate::account::Charge;
use crate::allocator::Space;
use crate::error::StoreError;
use crate::format::{Entry, UploadEntry, UploadName, UploadProgress};
use crate::resumable::{Resumable, Saved};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem;
use xxhash_rust::xxh3::Xxh3;

/// An item and its space; the last holder's drop frees the space.
pub(crate) struct Item {
    pub(crate) entry: Entry,
    _space: Space,
    /// What it counts for its uploader, if that is known.
    _charge: Option<Charge>,
    removal: Cell<Removal>,
    /// A read of its data has shown that it is damaged.
    is_damaged: Cell<bool>,
}

/// Whether an item is being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    No,
    /// By the next commit.
    Requested,
    /// By the open one.
    Open,
}

impl Item {
    pub(crate) fn new(entry: Entry, space: Space, charge: Option<Charge>) -> Rc<Item> {
        let (removal, is_damaged) = (Cell::new(Removal::No), Cell::new(false));
        Rc::new(Item { entry, _space: space, _charge: charge, removal, is_damaged })
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged.get()
    }
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

/// A whole upload that becomes an item.
enum Add {
    Item(Rc<Item>),
    /// Its space is there until the commit is durable.
    Resumable(Rc<Resumable>, Entry, Saved),
}

impl Add {
    fn entry(&self) -> Entry {
        match self {
            Add::Item(item) => item.entry,
            Add::Resumable(_, entry, _) => *entry,
        }
    }
}

/// Progress of an upload, or a new one.
struct Save {
    upload: Rc<Resumable>,
    saved: Saved,
    hasher: Box<Xxh3>,
}

/// What one commit changes.
#[derive(Default)]
pub(crate) struct Batch {
    /// Whole uploads.
    adds: Vec<Add>,
    /// Removed items; they hold their space until the commit that removes them is durable.
    removes: Vec<Rc<Item>>,
    /// Progress of uploads.
    saves: Vec<Save>,
    /// Uploads that end without an item.
    ends: Vec<Rc<Resumable>>,
    /// One for each of the batches that it was joined of.
    outcomes: Vec<Outcome>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.saves.is_empty() && self.removes.is_empty() && self.ends.is_empty()
    }

    /// The outcome of what is added now.
    fn outcome(&mut self) -> Outcome {
        if let Some(outcome) = self.outcomes.first() {
            return outcome.clone();
        }
        let outcome = Outcome::default();
        self.outcomes.push(outcome.clone());
        outcome
    }

    fn join(&mut self, mut later: Batch) {
        self.adds.append(&mut later.adds);
        self.removes.append(&mut later.removes);
        self.saves.append(&mut later.saves);
        self.ends.append(&mut later.ends);
        self.outcomes.append(&mut later.outcomes);
    }
}

pub(crate) struct Changes {
    /// What the newest durable index has, oldest completion first.
    items: VecDeque<Rc<Item>>,
    uploads: BTreeMap<UploadName, Rc<Resumable>>,
    /// Changes with data that is written, and that no flush covers.
    written: Batch,
    /// Those that the flush in progress covers.
    flushing: Batch,
    /// What the next commit changes: without data, or a flush has covered it.
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
    pub(crate) fn new(
        items: VecDeque<Rc<Item>>,
        uploads: BTreeMap<UploadName, Rc<Resumable>>,
        sequence: u64,
        next_id: u64,
    ) -> Changes {
        let (written, flushing, next) = (Batch::default(), Batch::default(), Batch::default());
        let (current, in_doubt) = (None, Vec::new());
        Changes { items, uploads, written, flushing, next, current, in_doubt, settle: false, sequence, next_id }
    }

    /// The items that were not removed, oldest completion first.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Rc<Item>> {
        self.items_after(None)
    }

    /// Those after item `id`.
    pub(crate) fn items_after(&self, id: Option<u64>) -> impl Iterator<Item = &Rc<Item>> {
        let start = id.map_or(0, |id| self.items.partition_point(|item| item.entry.id <= id));
        self.items.range(start..).filter(|item| item.removal.get() == Removal::No)
    }

    pub(crate) fn head(&self) -> Option<&Rc<Item>> {
        self.items().next()
    }

    pub(crate) fn item_count(&self) -> usize {
        self.items().count()
    }

    /// The uploads that can be resumed, and those that were completed lately.
    pub(crate) fn uploads(&self) -> &BTreeMap<UploadName, Rc<Resumable>> {
        &self.uploads
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

    pub(crate) fn add(&mut self, item: Rc<Item>) -> Outcome {
        self.written.adds.push(Add::Item(item));
        self.written.outcome()
    }

    /// An upload becomes an item with this id, length and data. Its space has to be parked.
    pub(crate) fn complete(&mut self, upload: &Rc<Resumable>, entry: Entry, deadline_secs: u64) -> Outcome {
        let progress = UploadProgress::Complete { id: entry.id };
        let saved = Saved { length: Some(entry.length), deadline_secs, progress };
        upload.commit_begins();
        self.written.adds.push(Add::Resumable(upload.clone(), entry, saved));
        self.written.outcome()
    }

    /// Progress of an upload, or a new one. `hasher` has hashed the bytes that are saved.
    pub(crate) fn save(&mut self, upload: &Rc<Resumable>, saved: Saved, hasher: Box<Xxh3>) -> Outcome {
        upload.commit_begins();
        self.written.saves.push(Save { upload: upload.clone(), saved, hasher });
        self.written.outcome()
    }

    /// Ends an upload without an item, or forgets one that has become an item. No change of it may be open: this one would overtake it.
    pub(crate) fn end(&mut self, upload: &Rc<Resumable>) -> Outcome {
        upload.commit_begins();
        self.next.ends.push(upload.clone());
        self.next.outcome()
    }

    /// Forgets an upload that has become an item, because a new one needs its place: with the commit that has the new one.
    pub(crate) fn give_place(&mut self, upload: &Rc<Resumable>) {
        upload.commit_begins();
        self.written.ends.push(upload.clone());
    }

    /// Item `id`, unless it was removed.
    pub(crate) fn item(&self, id: u64) -> Option<&Rc<Item>> {
        let place = self.items.binary_search_by_key(&id, |item| item.entry.id).ok()?;
        self.items.get(place).filter(|item| item.removal.get() == Removal::No)
    }

    /// Item `id` is damaged, or is not. Returns whether that is news; not of an item that was removed.
    pub(crate) fn set_damaged(&self, id: u64, is_damaged: bool) -> bool {
        self.item(id).is_some_and(|item| item.is_damaged.replace(is_damaged) != is_damaged)
    }

    /// Removes item `id`. Returns whether it was there, and the outcome of all removals so far, unless these are durable.
    pub(crate) fn remove(&mut self, id: u64) -> (bool, Option<Outcome>) {
        let removed = self.item(id).cloned();
        let is_found = removed.is_some();
        if let Some(item) = removed {
            item.removal.set(Removal::Requested);
            self.next.removes.push(item);
        }
        let next = (!self.next.removes.is_empty()).then(|| self.next.outcome());
        (is_found, next.or_else(|| self.current.clone()))
    }

    /// Requests a commit if a failed one left space that cannot be used. Returns whether it does.
    pub(crate) fn settle(&mut self) -> bool {
        self.settle = !self.in_doubt.is_empty();
        self.settle
    }

    /// Requests a commit in any case.
    pub(crate) fn write_again(&mut self) -> Outcome {
        self.settle = true;
        self.next.outcome()
    }

    /// Whether data of changes has to be flushed.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.written.is_empty()
    }

    /// A flush begins: it covers what is written by now.
    pub(crate) fn begin_flush(&mut self) {
        self.flushing = mem::take(&mut self.written);
    }

    /// The flush has succeeded.
    pub(crate) fn end_flush(&mut self) {
        self.next.join(mem::take(&mut self.flushing));
    }

    /// What the next commit changes; `None` while there is nothing that it could.
    pub(crate) fn begin(&mut self) -> Option<Batch> {
        let is_wanted = mem::take(&mut self.settle) || !self.next.is_empty();
        if !is_wanted {
            return None;
        }
        let batch = mem::take(&mut self.next);
        batch.removes.iter().for_each(|item| item.removal.set(Removal::Open));
        self.current = batch.outcomes.first().cloned();
        Some(batch)
    }

    /// The items of the index once `batch` is committed. What was removed since the batch began is still in it: that removal is of the next
    /// commit, which may fail.
    pub(crate) fn entries<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = Entry> + Clone + 'a {
        let kept = self.items.iter().filter(|item| item.removal.get() != Removal::Open);
        kept.map(|item| item.entry).chain(batch.adds.iter().map(Add::entry))
    }

    /// The uploads of the index once `batch` is committed.
    pub(crate) fn upload_entries(&self, batch: &Batch) -> Vec<UploadEntry> {
        let mut saved: BTreeMap<_, _> = self.uploads.iter().map(|(name, upload)| (*name, upload.saved())).collect();
        batch.ends.iter().for_each(|upload| _ = saved.remove(&upload.name()));
        saved.extend(batch.saves.iter().map(|save| (save.upload.name(), save.saved)));
        for add in &batch.adds {
            if let Add::Resumable(upload, _, complete) = add {
                saved.insert(upload.name(), *complete);
            }
        }
        saved.into_iter().map(|(name, saved)| saved.entry(name)).collect()
    }

    /// `batch` is durable, with this sequence. Returns the items whose space is free when they are dropped.
    pub(crate) fn succeed(&mut self, batch: Batch, sequence: u64) -> Vec<Rc<Item>> {
        self.sequence = sequence;
        if !batch.removes.is_empty() {
            self.items.retain(|item| item.removal.get() != Removal::Open);
        }
        self.uploads.values().for_each(|upload| upload.settle());
        for Save { upload, saved, hasher } in batch.saves {
            upload.commit_saved(saved, Some(hasher));
            self.uploads.insert(upload.name(), upload);
        }
        for add in batch.adds {
            self.items.push_back(match add {
                Add::Item(item) => item,
                Add::Resumable(upload, entry, saved) => upload.become_item(entry, saved),
            });
        }
        for upload in batch.ends {
            self.uploads.remove(&upload.name());
            upload.forget();
        }
        self.end_commit(&batch.outcomes, Ok(()));
        let mut free = batch.removes;
        free.append(&mut self.in_doubt);
        free
    }

    /// The write of the slot for `batch` failed, or was not tried.
    pub(crate) fn fail(&mut self, batch: Batch, error: StoreError) {
        batch.removes.iter().for_each(|item| item.removal.set(Removal::No));
        for add in batch.adds {
            match add {
                Add::Item(item) => self.in_doubt.push(item),
                Add::Resumable(upload, ..) => upload.commit_failed(),
            }
        }
        let uploads = batch.saves.into_iter().map(|save| save.upload).chain(batch.ends);
        uploads.for_each(|upload| upload.commit_failed());
        self.end_commit(&batch.outcomes, Err(error));
    }

    /// A flush failed: data written since the flush before may be lost, and a later flush does not report it. So all that wait fail; the
    /// caller has the open commit fail, too.
    pub(crate) fn fail_waiting(&mut self, error: StoreError) {
        for batch in [mem::take(&mut self.next), mem::take(&mut self.flushing), mem::take(&mut self.written)] {
            self.fail(batch, error);
        }
    }

    fn end_commit(&mut self, outcomes: &[Outcome], result: Result<(), StoreError>) {
        outcomes.iter().for_each(|outcome| outcome.0.set(Some(result)));
        self.current = None;
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
