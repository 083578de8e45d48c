//! Uploads that their clients may continue: what the disk has of each, and who writes to it now.
//!
//! One request at a time writes to an upload: a *session*, which is an [`Upload`](crate::Upload) that has the upload's space. Between
//! sessions the space is here. What the newest durable index has is what was acknowledged, and where the next session starts.

use crate::account::Charge;
use crate::allocator::{IndexEntry, Reservation};
use crate::changes::NewItem;
use crate::format::{BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, UploadEntry, UploadName, UploadProgress};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::{Cell, RefCell};
use glasshouse::Instant;
use glasshouse::sync::Latch;
use xxhash_rust::xxh3::Xxh3;

/// An upload that its client may continue.
pub struct Resumable {
    name: UploadName,
    state: RefCell<State>,
    /// What it counts for its uploader.
    pub(crate) charge: RefCell<Option<Charge>>,
    /// Ends the session of now: another request wants the upload.
    pub(crate) stop: RefCell<Option<Latch>>,
    /// When it is forgotten.
    pub(crate) expires: Cell<Instant>,
    /// The field Upload-Metadata that its client sent (tus); not on the disk.
    pub(crate) metadata: RefCell<Option<String>>,
}

struct State {
    saved: Saved,
    /// Of its name in the index; `None` once it is forgotten.
    _entry: Option<IndexEntry>,
    /// `None` while a session has it, and after the end.
    space: Option<Reservation>,
    /// Of the saved bytes; `None` after a restart.
    hasher: Option<Box<Xxh3>>,
    /// Commits that change it and have not ended.
    commits: u32,
    /// A commit that changed it failed, and its index may be on the disk all the same.
    is_in_doubt: bool,
    is_forgotten: bool,
}

/// What a durable index has of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) length: Option<u64>,
    pub(crate) deadline_secs: u64,
    pub(crate) progress: UploadProgress,
}

impl Saved {
    pub(crate) fn entry(&self, name: UploadName) -> UploadEntry {
        UploadEntry { name, length: self.length, deadline_secs: self.deadline_secs, progress: self.progress }
    }

    /// Bytes that are on stable storage.
    pub(crate) fn offset(&self) -> u64 {
        match self.progress {
            UploadProgress::Open { offset, .. } => offset,
            UploadProgress::Complete { .. } => self.length.unwrap_or_default(),
        }
    }
}

impl Resumable {
    /// One that was never saved, or that an index has.
    pub(crate) fn new(
        upload: UploadEntry,
        entry: IndexEntry,
        space: Option<Reservation>,
        hasher: Option<Box<Xxh3>>,
    ) -> Rc<Resumable> {
        let UploadEntry { name, length, deadline_secs, progress } = upload;
        let saved = Saved { length, deadline_secs, progress };
        let state =
            State { saved, _entry: Some(entry), space, hasher, commits: 0, is_in_doubt: false, is_forgotten: false };
        Rc::new(Resumable {
            name,
            state: RefCell::new(state),
            charge: RefCell::default(),
            stop: RefCell::default(),
            expires: Cell::default(),
            metadata: RefCell::default(),
        })
    }

    /// What names it in requests.
    pub fn name(&self) -> UploadName {
        self.name
    }

    /// How many bytes are on stable storage.
    pub fn offset(&self) -> u64 {
        self.state.borrow().saved.offset()
    }

    /// Its length in bytes, if its client has announced it.
    pub fn length(&self) -> Option<u64> {
        self.state.borrow().saved.length
    }

    /// The item that it has become.
    pub fn item(&self) -> Option<u64> {
        match self.state.borrow().saved.progress {
            UploadProgress::Complete { id } => Some(id),
            UploadProgress::Open { .. } => None,
        }
    }

    /// Whether it was given up, or took too long.
    pub fn is_forgotten(&self) -> bool {
        self.state.borrow().is_forgotten
    }

    pub(crate) fn saved(&self) -> Saved {
        self.state.borrow().saved
    }

    /// Whether a session writes to it, or its end is not durable yet.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state.borrow();
        state.commits > 0 || (state.space.is_none() && matches!(state.saved.progress, UploadProgress::Open { .. }))
    }

    /// Whether a commit has to settle what is on the disk before the next session.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.borrow().is_in_doubt
    }

    /// The space for a session, and the hasher of the saved bytes; `None` while it is busy.
    pub(crate) fn take_space(&self) -> Option<(Reservation, Option<Box<Xxh3>>)> {
        let mut state = self.state.borrow_mut();
        if state.commits > 0 || state.is_in_doubt {
            return None;
        }
        let hasher = state.hasher.clone();
        state.space.take().map(|space| (space, hasher))
    }

    /// A session has ended: no write of it is in flight.
    pub(crate) fn park(&self, space: Reservation) {
        self.state.borrow_mut().space = Some(space);
    }

    pub(crate) fn commit_begins(&self) {
        self.state.borrow_mut().commits += 1;
    }

    pub(crate) fn commit_failed(&self) {
        let mut state = self.state.borrow_mut();
        state.commits -= 1;
        state.is_in_doubt = true;
    }

    /// A later commit has written the index again.
    pub(crate) fn settle(&self) {
        self.state.borrow_mut().is_in_doubt = false;
    }

    pub(crate) fn commit_saved(&self, saved: Saved, hasher: Option<Box<Xxh3>>) {
        let mut state = self.state.borrow_mut();
        state.commits -= 1;
        state.saved = saved;
        state.hasher = hasher;
    }

    /// Its commit is durable: it is an item now.
    pub(crate) fn become_item(&self, entry: Entry, saved: Saved) -> NewItem {
        self.commit_saved(saved, None);
        let mut state = self.state.borrow_mut();
        let space = state.space.take().expect("the session that ended left the space");
        let space = space.into_space(entry.length.div_ceil(BLOCK_BYTES as u64));
        NewItem { entry, space, charge: self.charge.take() }
    }

    /// Its end is durable: its space is free.
    pub(crate) fn forget(&self) {
        let mut state = self.state.borrow_mut();
        state.commits -= 1;
        state.is_forgotten = true;
        state.space = None;
        state._entry = None;
        self.charge.take();
    }
}

/// The byte of the device where block `number` of these starts.
pub(crate) fn place_of(extents: &[Extent; EXTENTS_MAX], mut number: u64) -> Option<u64> {
    for extent in extents {
        if number < u64::from(extent.blocks) {
            return Some((u64::from(extent.start) + number) * BLOCK_BYTES as u64);
        }
        number -= u64::from(extent.blocks);
    }
    None
}
