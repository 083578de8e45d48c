//! What the queue has, and the changes to it that are not durable yet.
//!
//! A change with data waits until a flush covers the data, then until a commit has written an index with it and flushed that. Each flush
//! covers what was written before it began, so the flush of one commit's index is that of the next one's data.
//!
//! A commit writes its changes to the log, so when one fails the queue is as before: its uploads and removals are undone and answered with an
//! error. Whether they are nevertheless readable there is unknown until another commit has been written in their place. Until then the space of
//! the failed uploads is not reused.

use crate::account::Charge;
use crate::allocator::{Allocator, Space};
use crate::error::StoreError;
use crate::format::{Entry, UploadName, UploadProgress};
use crate::index::{Index, Plan};
use crate::resumable::{Resumable, Saved};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem;
use xxhash_rust::xxh3::Xxh3;

/// An item whose commit is not durable yet, and its space.
pub(crate) struct NewItem {
    pub(crate) entry: Entry,
    pub(crate) space: Space,
    /// What it counts for its uploader, if that is known.
    pub(crate) charge: Option<Charge>,
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
    Item(NewItem),
    /// Its space is there until the commit is durable.
    Resumable(Rc<Resumable>, Entry, Saved),
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
    /// Ids of removed items.
    removes: Vec<u64>,
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

    /// Places of the index that it changes at most.
    fn places(&self) -> usize {
        2 * (self.adds.len() + self.saves.len() + self.ends.len()) + self.removes.len()
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

/// Changes that wait: as few batches as the log has room for each.
struct Waiting {
    batches: VecDeque<Batch>,
    places_max: usize,
}

impl Waiting {
    fn new(places_max: usize) -> Waiting {
        Waiting { batches: VecDeque::new(), places_max }
    }

    /// The batch for the next change, which has two places at most.
    fn open(&mut self) -> &mut Batch {
        if self.batches.back().is_none_or(|last| last.places() + 2 > self.places_max) {
            self.batches.push_back(Batch::default());
        }
        self.batches.back_mut().expect("there is one")
    }

    fn append(&mut self, later: &mut Waiting) {
        self.batches.append(&mut later.batches);
    }

    /// The first batch, with as many of the next ones as fit.
    fn pop(&mut self) -> Option<Batch> {
        let mut first = self.batches.pop_front()?;
        while let Some(next) = self.batches.pop_front() {
            if first.places() + next.places() > self.places_max {
                self.batches.push_front(next);
                break;
            }
            first.join(next);
        }
        Some(first)
    }

    fn is_empty(&self) -> bool {
        self.batches.iter().all(Batch::is_empty)
    }
}

pub(crate) struct Changes {
    /// What the newest durable index has.
    index: Index,
    uploads: BTreeMap<UploadName, Rc<Resumable>>,
    /// Changes with data that is written, and that no flush covers.
    written: Waiting,
    /// Those that the flush in progress covers.
    flushing: Waiting,
    /// What the next commit changes: without data, or a flush has covered it.
    next: Waiting,
    /// The open commit.
    current: Option<Outcome>,
    /// Uploads of failed commits.
    in_doubt: Vec<NewItem>,
    /// A commit is needed although nothing changes.
    settle: bool,
    /// Sequence of the newest durable index.
    sequence: u64,
    next_id: u64,
}

impl Changes {
    /// A commit changes `places_max` places at most.
    pub(crate) fn new(
        index: Index,
        uploads: BTreeMap<UploadName, Rc<Resumable>>,
        places_max: usize,
        sequence: u64,
        next_id: u64,
    ) -> Changes {
        let (written, flushing, next) = (Waiting::new(places_max), Waiting::new(places_max), Waiting::new(places_max));
        let (current, in_doubt) = (None, Vec::new());
        Changes { index, uploads, written, flushing, next, current, in_doubt, settle: false, sequence, next_id }
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
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

    pub(crate) fn add(&mut self, item: NewItem) -> Outcome {
        let batch = self.written.open();
        batch.adds.push(Add::Item(item));
        batch.outcome()
    }

    /// An upload becomes an item with this id, length and data. Its space has to be parked.
    pub(crate) fn complete(&mut self, upload: &Rc<Resumable>, entry: Entry, deadline_secs: u64) -> Outcome {
        let progress = UploadProgress::Complete { id: entry.id };
        let saved = Saved { length: Some(entry.length), deadline_secs, progress };
        upload.commit_begins();
        let batch = self.written.open();
        batch.adds.push(Add::Resumable(upload.clone(), entry, saved));
        batch.outcome()
    }

    /// Progress of an upload, or a new one. `hasher` has hashed the bytes that are saved.
    pub(crate) fn save(&mut self, upload: &Rc<Resumable>, saved: Saved, hasher: Box<Xxh3>) -> Outcome {
        upload.commit_begins();
        let batch = self.written.open();
        batch.saves.push(Save { upload: upload.clone(), saved, hasher });
        batch.outcome()
    }

    /// Ends an upload without an item, or forgets one that has become an item. No change of it may be open: this one would overtake it.
    pub(crate) fn end(&mut self, upload: &Rc<Resumable>) -> Outcome {
        upload.commit_begins();
        let batch = self.next.open();
        batch.ends.push(upload.clone());
        batch.outcome()
    }

    /// Forgets an upload that has become an item, because a new one needs its place: with the commit that has the new one.
    pub(crate) fn give_place(&mut self, upload: &Rc<Resumable>) {
        upload.commit_begins();
        self.written.open().ends.push(upload.clone());
    }

    /// Removes item `id`. Returns whether it was there, and the outcome of all removals so far, unless these are durable.
    pub(crate) fn remove(&mut self, id: u64) -> (bool, Option<Outcome>) {
        let is_found = self.index.request_removal(id);
        if is_found {
            self.next.open().removes.push(id);
        }
        let next = self.next.batches.iter_mut().rev().find(|batch| !batch.removes.is_empty()).map(Batch::outcome);
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
        self.next.open().outcome()
    }

    /// Whether data of changes has to be flushed.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.written.is_empty()
    }

    /// A flush begins: it covers what is written by now.
    pub(crate) fn begin_flush(&mut self) {
        self.flushing.append(&mut self.written);
    }

    /// The flush has succeeded.
    pub(crate) fn end_flush(&mut self) {
        self.next.append(&mut self.flushing);
    }

    /// What the next commit changes; `None` while there is nothing that it could.
    pub(crate) fn begin(&mut self) -> Option<Batch> {
        let is_wanted = mem::take(&mut self.settle) || !self.next.is_empty();
        if !is_wanted {
            return None;
        }
        let batch = self.next.pop().unwrap_or_default();
        self.index.begin_removals(&batch.removes);
        self.current = batch.outcomes.first().cloned();
        Some(batch)
    }

    /// What `batch` changes of the index.
    pub(crate) fn plan(&self, batch: &Batch) -> Plan {
        // Of several changes of one upload the last one counts.
        let mut uploads: BTreeMap<UploadName, Option<Saved>> =
            batch.ends.iter().map(|upload| (upload.name(), None)).collect();
        uploads.extend(batch.saves.iter().map(|save| (save.upload.name(), Some(save.saved))));
        let adds = batch.adds.iter().map(|add| match add {
            Add::Item(item) => (item.entry, None),
            Add::Resumable(upload, entry, complete) => {
                uploads.insert(upload.name(), Some(*complete));
                (*entry, Some(upload.name()))
            }
        });
        let adds: Vec<_> = adds.collect();
        let uploads = uploads.into_iter().map(|(name, saved)| (name, saved.map(|saved| saved.entry(name))));
        self.index.plan(&batch.removes, adds.into_iter(), uploads)
    }

    /// `batch`, of which this is the plan, is durable, with this sequence. Returns space that is free when it is dropped.
    pub(crate) fn succeed(&mut self, batch: Batch, plan: Plan, sequence: u64, allocator: &Allocator) -> Vec<Space> {
        self.sequence = sequence;
        let mut free = self.index.apply(plan, &batch.removes, allocator);
        self.uploads.values().for_each(|upload| upload.settle());
        for Save { upload, saved, hasher } in batch.saves {
            upload.commit_saved(saved, Some(hasher));
            self.uploads.insert(upload.name(), upload);
        }
        for add in batch.adds {
            let NewItem { entry, space, charge } = match add {
                Add::Item(item) => item,
                Add::Resumable(upload, entry, saved) => upload.become_item(entry, saved),
            };
            space.keep();
            if let Some(charge) = charge {
                self.index.set_charge(entry.id, charge);
            }
        }
        for upload in batch.ends {
            self.uploads.remove(&upload.name());
            upload.forget();
        }
        self.end_commit(&batch.outcomes, Ok(()));
        free.extend(self.in_doubt.drain(..).map(|item| item.space));
        free
    }

    /// The commit of `batch` failed, or was not tried.
    pub(crate) fn fail(&mut self, batch: Batch, error: StoreError) {
        self.index.undo_removals(&batch.removes);
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
        let mut all = mem::take(&mut self.next.batches);
        all.append(&mut self.flushing.batches);
        all.append(&mut self.written.batches);
        all.into_iter().for_each(|batch| self.fail(batch, error));
    }

    fn end_commit(&mut self, outcomes: &[Outcome], result: Result<(), StoreError>) {
        outcomes.iter().for_each(|outcome| outcome.0.set(Some(result)));
        self.current = None;
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
