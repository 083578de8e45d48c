//! The entries of an index of version 3 in memory: the pages as on the disk.

use super::log::{LogEnd, replay};
use super::pages::{Checkpoint, Layout, PAGE_ENTRIES, page_entries, page_entries_mut, seal_page};
use super::uploads::{self, Kind};
use super::{
    BLOCK_BYTES, ENTRY_BYTES, Entry, EntryBytes, Extent, Fault, IndexPlace, UploadEntry, UploadName, UploadProgress,
    check_extents, decode_entry,
};
use alloc::collections::{BTreeSet, TryReserveError};
use alloc::vec::Vec;

/// All places of an index, which are numbered: [`PAGE_ENTRIES`] in each page. A page takes a block of memory: 65 bytes for an entry.
#[derive(Debug, Default)]
pub struct Table {
    pages: Vec<Page>,
    /// Those with a free place.
    open: BTreeSet<u32>,
}

#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    used: u32,
}

/// Where the entries of an upload are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The place of its name.
    pub name: u32,
    /// The place of its data, while it is in progress.
    pub data: Option<u32>,
}

/// What an index has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    /// Ids of items and their places, in the order of ids.
    pub items: Vec<(u64, u32)>,
    /// Uploads in the order of their names' places.
    pub uploads: Vec<(UploadEntry, Places)>,
    /// The blocks of items, in the order of the disk.
    pub taken: Vec<Extent>,
}

fn page_of(place: u32) -> (usize, usize) {
    ((place / PAGE_ENTRIES) as usize, (place % PAGE_ENTRIES) as usize)
}

fn is_free(entry: &EntryBytes) -> bool {
    *entry == [0; ENTRY_BYTES]
}

impl Table {
    /// Without pages.
    pub fn new() -> Table {
        Table::default()
    }

    /// Pages that there are.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Adds a page of free places. Fails if there is no memory for it.
    pub fn grow(&mut self) -> Result<(), TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(BLOCK_BYTES)?;
        bytes.resize(BLOCK_BYTES, 0);
        self.pages.try_reserve(1)?;
        self.open.insert(self.pages());
        self.pages.push(Page { bytes, used: 0 });
        Ok(())
    }

    /// Adds a page with the entries of a block.
    pub fn add_page(&mut self, block: &[u8]) -> Result<(), TryReserveError> {
        self.grow()?;
        let page = self.pages.last_mut().expect("it was added");
        page.bytes.copy_from_slice(block);
        page.used = page_entries(&page.bytes).iter().filter(|entry| !is_free(entry)).count() as u32;
        if page.used == PAGE_ENTRIES {
            self.open.pop_last();
        }
        Ok(())
    }

    /// The entry at a place.
    pub fn get(&self, place: u32) -> &EntryBytes {
        let (page, number) = page_of(place);
        &page_entries(&self.pages[page].bytes)[number]
    }

    /// The item at a place that has one.
    pub fn item(&self, place: u32) -> Entry {
        decode_entry(self.get(place))
    }

    /// Changes the entry at a place, of a page that there is.
    pub fn set(&mut self, place: u32, entry: &EntryBytes) {
        let (number, within) = page_of(place);
        let page = &mut self.pages[number];
        let old = &mut page_entries_mut(&mut page.bytes)[within];
        page.used = page.used + u32::from(!is_free(entry)) - u32::from(!is_free(old));
        *old = *entry;
        if page.used < PAGE_ENTRIES {
            self.open.insert(number as u32);
        } else {
            self.open.remove(&(number as u32));
        }
    }

    /// Free places, the lowest first, so that new entries are beside each other and pages are few.
    pub fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.iter().flat_map(|&page| {
            let entries = page_entries(&self.pages[page as usize].bytes).iter().zip(page * PAGE_ENTRIES..);
            entries.filter(|(entry, _)| is_free(entry)).map(|(_, place)| place)
        })
    }

    /// Pages up to the last one that has an entry.
    pub fn used_pages(&self) -> u32 {
        self.pages.iter().rposition(|page| page.used > 0).map_or(0, |last| last as u32 + 1)
    }

    /// Writes a page to a block, with the changes of all commits up to this one. Returns its checksum.
    pub fn encode_page(&self, page: u32, sequence: u64, block: &mut [u8]) -> u64 {
        block.copy_from_slice(&self.pages[page as usize].bytes);
        seal_page(page, sequence, block)
    }

    /// Applies the commits of a log ([`replay`]), and returns its end and the pages that they change. The outer error is for want of memory.
    pub fn replay(
        &mut self,
        layout: Layout,
        ring: &[u8],
        checkpoint: &Checkpoint,
    ) -> Result<Result<(LogEnd, BTreeSet<u32>), Fault>, TryReserveError> {
        let (mut dirty, mut grown) = (BTreeSet::new(), Ok(()));
        let end = replay(layout, ring, checkpoint, |place, entry| {
            let page = place / PAGE_ENTRIES;
            while grown.is_ok() && self.pages() <= page {
                grown = self.grow();
            }
            if grown.is_ok() {
                self.set(place, entry);
                dirty.insert(page);
            }
            Ok(())
        });
        grown?;
        Ok(end.map(|end| (end, dirty)))
    }

    fn places(&self) -> impl Iterator<Item = (u32, &EntryBytes)> {
        self.pages.iter().flat_map(|page| page_entries(&page.bytes)).zip(0..).map(|(entry, place)| (place, entry))
    }

    /// What the entries are together, or the first one that contradicts the layout, another one or itself.
    pub fn contents(&self, layout: Layout, next_id: u64) -> Result<Contents, Fault> {
        let count = self.pages.iter().map(|page| page.used as usize).sum();
        let mut items = Vec::with_capacity(count);
        let mut runs: Vec<(Extent, u32)> = Vec::with_capacity(count);
        let (mut uploads, mut names, mut data) = (Vec::new(), BTreeSet::<UploadName>::new(), BTreeSet::new());
        let mut named = BTreeSet::new();
        let disk = IndexPlace::Pages(layout);
        for (place, bytes) in self.places().filter(|(_, entry)| !is_free(entry)) {
            let position = place as usize;
            let of_upload = |what| Fault::Upload { position, what };
            match uploads::kind(bytes).map_err(of_upload)? {
                Kind::Free => {}
                Kind::Item(entry) => {
                    let fault = |what| Fault::Entry { position, id: entry.id, what };
                    if entry.id >= next_id {
                        return Err(fault("its id is out of order"));
                    }
                    let checked =
                        check_extents(disk, entry.length, &entry.extents, |extent| runs.push((extent, place)));
                    checked.map_err(fault)?;
                    items.push((entry.id, place));
                }
                Kind::Data(UploadProgress::Open { offset, extents, .. }) => {
                    check_extents(disk, offset, &extents, |extent| runs.push((extent, place))).map_err(of_upload)?;
                    data.insert(place);
                }
                Kind::Data(UploadProgress::Complete { .. }) => {}
                Kind::Name => {
                    let places = Places { name: place, data: uploads::data_place(bytes) };
                    let upload = self.upload(places, layout)?;
                    if !names.insert(upload.name) {
                        return Err(of_upload("another upload has its name"));
                    }
                    match upload.progress {
                        UploadProgress::Complete { id } if id >= next_id => {
                            return Err(of_upload("no item had its id"));
                        }
                        UploadProgress::Open { offset, .. } if upload.length.is_some_and(|length| length < offset) => {
                            return Err(of_upload("it has more bytes than its length"));
                        }
                        _ => uploads.push((upload, places)),
                    }
                }
            }
        }
        // Each place with data belongs to one name.
        for (_, places) in &uploads {
            if let Some(place) = places.data
                && !named.insert(place)
            {
                return Err(Fault::Upload { position: place as usize, what: "two uploads have its data" });
            }
        }
        if let Some(place) = data.difference(&named).next() {
            return Err(Fault::Upload { position: *place as usize, what: "no name has its data" });
        }
        items.sort_unstable();
        if let Some(pair) = items.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Fault::Entry { position: pair[1].1 as usize, id: pair[1].0, what: "another item has its id" });
        }
        runs.sort_unstable_by_key(|(extent, _)| extent.start);
        if let Some(pair) = runs.windows(2).find(|pair| pair[0].0.end() > u64::from(pair[1].0.start)) {
            let (position, what) = (pair[1].1 as usize, "it overlaps another item");
            return Err(match uploads::kind(self.get(pair[1].1)) {
                Ok(Kind::Item(entry)) => Fault::Entry { position, id: entry.id, what },
                _ => Fault::Upload { position, what },
            });
        }
        let of_items = runs.into_iter().filter(|(_, place)| !data.contains(place));
        Ok(Contents { items, uploads, taken: of_items.map(|(extent, _)| extent).collect() })
    }

    fn upload(&self, places: Places, layout: Layout) -> Result<UploadEntry, Fault> {
        let position = places.name as usize;
        let data = match places.data {
            None => None,
            Some(place) if place as usize >= layout.entries_max() || place / PAGE_ENTRIES >= self.pages() => {
                return Err(Fault::Upload { position, what: "its data has no place" });
            }
            Some(place) => match uploads::kind(self.get(place)) {
                Ok(Kind::Data(progress)) => Some(progress),
                _ => return Err(Fault::Upload { position, what: "its data is not there" }),
            },
        };
        uploads::decode_named(position, self.get(places.name), data)
    }
}
