//! The index in memory: every entry as on the disk, in what order items are, and what is known of a few of them.
//!
//! An item takes 65 bytes of a page ([`Table`]) and 12 to 30 bytes of the order. All else is for few items: those that are removed, read or
//! damaged; and, with tokens, what each counts for its uploader.

use crate::account::Charge;
use crate::allocator::{Allocator, Space};
use crate::error::StoreError;
use crate::format::{Contents, Entry, EntryBytes, PAGE_ENTRIES, Places, Table, UploadEntry, UploadName};
use crate::limits::{INDEX_PAGES_ALWAYS, MEMORY_BESIDE_INDEX};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;
use glasshouse::OutOfMemory;

/// Whether an item is being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// By the next commit.
    Requested,
    /// By the open one.
    Open,
}

/// What the newest durable index has.
pub(crate) struct Index {
    table: Table,
    /// The places of items by their ids, which is the order of completion.
    order: BTreeMap<u64, u32>,
    /// The places of uploads that can be resumed.
    uploads: BTreeMap<UploadName, Places>,
    removals: BTreeMap<u64, Removal>,
    /// Items of which a read has shown that they are damaged.
    damaged: BTreeSet<u64>,
    /// What items count for their uploaders, of those of which that is known.
    charges: BTreeMap<u64, Charge>,
    readers: Readers,
}

/// What a commit changes of an index.
#[derive(Default)]
pub(crate) struct Plan {
    /// Places, and the entries that they have from then on. No place is there twice.
    pub(crate) changes: Vec<(u32, EntryBytes)>,
    /// Where the uploads are from then on.
    uploads: Vec<(UploadName, Option<Places>)>,
    items: Vec<(u64, u32)>,
}

impl Index {
    pub(crate) fn new(table: Table, contents: &Contents) -> Index {
        Index {
            table,
            order: contents.items.iter().copied().collect(),
            uploads: contents.uploads.iter().map(|(upload, places)| (upload.name, *places)).collect(),
            removals: BTreeMap::new(),
            damaged: BTreeSet::new(),
            charges: BTreeMap::new(),
            readers: Readers::default(),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Has pages for so many entries, if there is memory for them.
    pub(crate) fn make_space(&mut self, entries: usize) -> Result<(), StoreError> {
        while self.table.pages() as usize * (PAGE_ENTRIES as usize) < entries {
            // Uploads and connections need memory, too, and some of it has no substitute.
            let is_free = |bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
            let has_memory = self.table.pages() < INDEX_PAGES_ALWAYS || is_free(MEMORY_BESIDE_INDEX);
            if !has_memory || self.table.grow().is_err() {
                return Err(StoreError::Memory(OutOfMemory { bytes: MEMORY_BESIDE_INDEX }));
            }
        }
        Ok(())
    }

    /// The items after item `id` that were not removed, oldest completion first.
    pub(crate) fn items_after(&self, id: Option<u64>) -> impl Iterator<Item = Entry> + '_ {
        let range = self.order.range(id.map_or(0, |id| id.saturating_add(1))..);
        range.filter(|(id, _)| !self.removals.contains_key(id)).map(|(_, &place)| self.table.item(place))
    }

    /// The newest item.
    pub(crate) fn last(&self) -> Option<u64> {
        self.order.keys().rev().find(|id| !self.removals.contains_key(id)).copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.order.len() - self.removals.len()
    }

    /// Item `id`, unless it was removed.
    pub(crate) fn item(&self, id: u64) -> Option<Entry> {
        let place = self.order.get(&id).filter(|_| !self.removals.contains_key(&id))?;
        Some(self.table.item(*place))
    }

    /// Keeps the space of an item that is read, also if it is removed.
    pub(crate) fn reader(&self, id: u64) -> Rc<Reader> {
        self.readers.begin(id)
    }

    /// Returns whether that is news; not of an item that was removed.
    pub(crate) fn set_damaged(&mut self, id: u64, is_damaged: bool) -> bool {
        let is_there = self.item(id).is_some();
        is_there && if is_damaged { self.damaged.insert(id) } else { self.damaged.remove(&id) }
    }

    /// The items that were found damaged, oldest first.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = u64> + '_ {
        self.damaged.iter().filter(|id| !self.removals.contains_key(id)).copied()
    }

    /// Item `id` is to be removed. False if it is not there.
    pub(crate) fn request_removal(&mut self, id: u64) -> bool {
        let is_there = self.item(id).is_some();
        if is_there {
            self.removals.insert(id, Removal::Requested);
        }
        is_there
    }

    /// The commit of these removals has begun.
    pub(crate) fn begin_removals(&mut self, ids: &[u64]) {
        ids.iter().for_each(|id| _ = self.removals.insert(*id, Removal::Open));
    }

    /// These removals have failed.
    pub(crate) fn undo_removals(&mut self, ids: &[u64]) {
        ids.iter().for_each(|id| _ = self.removals.remove(id));
    }

    /// What a commit changes that removes items, adds others, some of which uploads have become, and changes uploads or ends them (`None`).
    pub(crate) fn plan<'a>(
        &self,
        removes: &[u64],
        adds: impl Iterator<Item = (Entry, Option<UploadName>)>,
        uploads: impl Iterator<Item = (UploadName, Option<UploadEntry>)> + 'a,
    ) -> Plan {
        const FREE: EntryBytes = [0; crate::format::ENTRY_BYTES];
        let (mut plan, mut free) = (Plan::default(), self.table.free());
        let mut next = || free.next().expect("there is a place for each entry that was counted");
        plan.changes.extend(removes.iter().map(|id| (self.order[id], FREE)));
        for (entry, upload) in adds {
            // An upload that becomes an item gives it the place of its data.
            let data = upload.and_then(|name| self.uploads.get(&name)?.data);
            let place = data.unwrap_or_else(&mut next);
            plan.changes.push((place, entry.encoded()));
            plan.items.push((entry.id, place));
        }
        for (name, upload) in uploads {
            let old = self.uploads.get(&name);
            let old_data = old.and_then(|places| places.data);
            let Some(upload) = upload else {
                let places = old.map(|places| places.name).into_iter().chain(old_data);
                plan.changes.extend(places.map(|place| (place, FREE)));
                plan.uploads.push((name, None));
                continue;
            };
            let data = upload.data().map(|data| (old_data.unwrap_or_else(&mut next), data));
            plan.changes.extend(data);
            let places =
                Places { name: old.map_or_else(&mut next, |places| places.name), data: data.map(|(place, _)| place) };
            plan.changes.push((places.name, upload.named(places.data)));
            plan.uploads.push((name, Some(places)));
        }
        plan
    }

    /// The plan is durable. Returns the spaces of removed items that have no reader: they are free when they are dropped.
    pub(crate) fn apply(&mut self, plan: Plan, removed: &[u64], allocator: &Allocator) -> Vec<Space> {
        let mut free = Vec::new();
        for id in removed {
            let place = self.order.remove(id).expect("an item is removed once");
            let space = allocator.space_of(self.table.item(place).extents);
            free.extend(self.readers.leave(*id, space));
            self.removals.remove(id);
            self.damaged.remove(id);
            self.charges.remove(id);
        }
        for (place, entry) in &plan.changes {
            self.table.set(*place, entry);
        }
        self.order.extend(plan.items);
        for (name, places) in plan.uploads {
            match places {
                Some(places) => _ = self.uploads.insert(name, places),
                None => _ = self.uploads.remove(&name),
            }
        }
        free
    }

    /// The items that are being removed.
    #[cfg(test)]
    pub(crate) fn removing(&self) -> impl Iterator<Item = Entry> + '_ {
        self.removals.keys().map(|id| self.table.item(self.order[id]))
    }

    #[cfg(test)]
    pub(crate) fn place(&self, id: u64) -> u32 {
        self.order[&id]
    }

    /// What item `id` counts for its uploader.
    pub(crate) fn set_charge(&mut self, id: u64, charge: Charge) {
        self.charges.insert(id, charge);
    }
}

/// Who reads which items: the space of one that is removed is free when its last reader has ended.
#[derive(Clone, Default)]
struct Readers(Rc<RefCell<BTreeMap<u64, Weak<Reader>>>>);

/// Of an item, shared by all that read it.
pub(crate) struct Reader {
    id: u64,
    readers: Readers,
    /// Once the item is removed.
    space: RefCell<Option<Space>>,
}

impl Readers {
    fn begin(&self, id: u64) -> Rc<Reader> {
        let mut readers = self.0.borrow_mut();
        if let Some(reader) = readers.get(&id).and_then(Weak::upgrade) {
            return reader;
        }
        let reader = Rc::new(Reader { id, readers: self.clone(), space: RefCell::default() });
        readers.insert(id, Rc::downgrade(&reader));
        reader
    }

    /// Item `id` was removed: its readers have its space from now on. Returns it if there are none.
    fn leave(&self, id: u64, space: Space) -> Option<Space> {
        let reader = self.0.borrow().get(&id).and_then(Weak::upgrade);
        match reader {
            Some(reader) => {
                *reader.space.borrow_mut() = Some(space);
                None
            }
            None => Some(space),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.0.borrow_mut().remove(&self.id);
    }
}
