//! A power cut at every moment of many scripted runs: the queue contains exactly what was answered.

use crate::common::{
    Cutter, Event, Note, RecordingDisk, Rng, content, get, open, open_grown, put, remove_head, run, send,
};
use glass_lib_executor::{Executor, sync::Notify};
use glasshouse::future::join_array;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use upload_queue::format::UploadName;
use upload_queue::limits::resumable_max;
use upload_queue::{Algorithm, Digests, Store, StoreError};

/// A log of eight blocks, so that there are many checkpoints, one page, and room for about half a megabyte of data.
const DISK_BYTES: usize = 130 * 4096;
/// The same after growth.
const GROWN_BYTES: usize = 160 * 4096;
/// Of an index with one page.
const ITEMS_MAX: usize = 63;
/// Each with two lives and a cut after each of some 150 events; `QUEUE_CRASH_SEEDS` sets another number.
const SEEDS: u64 = 40;
/// With `GLASS_TESTS_LONG`.
const SEEDS_LONG: u64 = 10_000;

/// An item of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    id: u64,
    tag: u64,
    length: usize,
}

/// The possible items of the queue at a moment of a run.
struct Model {
    /// Every item of the run in order of completion, also those that are still to come. Items join
    /// at the end and leave at the start, so the queue is always a part of it without gaps.
    sequence: Vec<Known>,
    asked: HashSet<u64>,
    /// So many first items were answered.
    adds_answered: usize,
    /// For so many first items the removal was requested; so many of those were answered.
    removes_asked: usize,
    removes_answered: usize,
    /// What was acknowledged of the uploads that can be resumed, by their tags.
    uploads: HashMap<u64, Acknowledged>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Acknowledged {
    offset: u64,
    is_complete: bool,
    forget_asked: bool,
    forget_answered: bool,
}

impl Model {
    /// Before a run that starts with the items `initial` and will write `events`.
    fn new(initial: &[Known], events: &[Event], found: &[Upload]) -> Model {
        let mut sequence = initial.to_vec();
        sequence.extend(events.iter().filter_map(|event| match *event {
            Event::Note(Note::AddAnswered { tag, id, length }) => Some(Known { id, tag, length }),
            _ => None,
        }));
        sequence.sort_by_key(|known| known.id);
        let complete = found.iter().filter(|upload| upload.is_complete).map(|upload| upload.tag);
        let asked = initial.iter().map(|known| known.tag).chain(complete).collect();
        let before = found.iter().map(|upload| {
            let is_complete = upload.is_complete;
            (upload.tag, Acknowledged { offset: upload.offset, is_complete, ..Acknowledged::default() })
        });
        let uploads = before.collect();
        Model { sequence, asked, adds_answered: initial.len(), removes_asked: 0, removes_answered: 0, uploads }
    }

    fn follow(&mut self, event: &Event) {
        match *event {
            Event::Note(Note::AddAsked { tag }) => drop(self.asked.insert(tag)),
            Event::Note(Note::Saved { tag, offset }) => self.uploads.entry(tag).or_default().offset = offset,
            Event::Note(Note::ForgetAsked { tag }) => self.uploads.entry(tag).or_default().forget_asked = true,
            Event::Note(Note::ForgetAnswered { tag }) => self.uploads.entry(tag).or_default().forget_answered = true,
            Event::Note(Note::AddAnswered { id, tag, .. }) => {
                if let Some(upload) = self.uploads.get_mut(&tag) {
                    upload.is_complete = true;
                }

                let place = self.sequence.iter().position(|known| known.id == id).expect("the sequence has every item");
                self.adds_answered = self.adds_answered.max(place + 1);
            }
            Event::Note(Note::RemoveAsked { .. }) => self.removes_asked += 1,
            Event::Note(Note::RemoveAnswered { .. }) => self.removes_answered += 1,
            _ => {}
        }
    }

    /// Panics unless these uploads may be there now: none is lost, and none has less than was acknowledged.
    fn check_uploads(&self, found: &[Upload], context: &str) {
        for upload in found {
            let acknowledged = self.uploads.get(&upload.tag).copied().unwrap_or_default();
            let is_kept = upload.is_complete || (upload.offset >= acknowledged.offset && !acknowledged.is_complete);
            assert!(is_kept && !acknowledged.forget_answered, "{context}: {upload:?} of {acknowledged:?}");
            assert!(
                !upload.is_complete || self.asked.contains(&upload.tag),
                "{context}: {upload:?} is complete too early"
            );
        }
        for (tag, acknowledged) in &self.uploads {
            // A complete one gives its place to a new one. Some have begun and are not answered yet.
            let begun = found.iter().filter(|upload| !self.uploads.contains_key(&upload.tag)).count();
            let is_evicted = acknowledged.is_complete && self.uploads.len() + begun >= resumable_max(ITEMS_MAX);
            let is_there = acknowledged.forget_asked || found.iter().any(|upload| upload.tag == *tag);
            let is_there = is_there || is_evicted;
            assert!(is_there, "{context}: upload {tag} is lost, {acknowledged:?}");
        }
    }

    /// Panics unless a queue of the items with these ids may be there now.
    fn check(&self, ids: &[u64], context: &str) -> &[Known] {
        let Some(&first) = ids.first() else {
            assert!(self.adds_answered <= self.removes_asked, "{context}: answered uploads are lost");
            return &[];
        };
        let start = self.sequence.iter().position(|known| known.id == first);
        let start = start.unwrap_or_else(|| panic!("{context}: item {first} was never uploaded"));
        let found = self.sequence.get(start..start + ids.len()).unwrap_or_default();
        let found_ids: Vec<u64> = found.iter().map(|known| known.id).collect();
        assert_eq!(found_ids, ids, "{context}: not the order of completion");
        for known in found {
            assert!(self.asked.contains(&known.tag), "{context}: {known:?} is there before its end was sent");
        }
        assert!(start >= self.removes_answered, "{context}: item {first} is back after its removal was answered");
        assert!(start <= self.removes_asked, "{context}: {start} are gone, {} were removed", self.removes_asked);
        assert!(start + ids.len() >= self.adds_answered, "{context}: answered uploads are lost");
        found
    }
}

/// An upload that was found after a cut.
#[derive(Debug, Clone, Copy)]
pub struct Upload {
    tag: u64,
    offset: u64,
    is_complete: bool,
}

/// The name of an upload has its tag and its length.
fn upload_name(tag: u64, length: usize) -> UploadName {
    let mut name = UploadName::default();
    name[..8].copy_from_slice(&tag.to_le_bytes());
    name[8..].copy_from_slice(&length.to_le_bytes());
    name
}

fn of_name(name: UploadName) -> (u64, usize) {
    let (tag, length) = name.split_at(8);
    (u64::from_le_bytes(tag.try_into().unwrap()), usize::from_le_bytes(length.try_into().unwrap()))
}

/// An upload that is interrupted, continued, and completed or given up.
async fn produce_in_parts(disk: &RecordingDisk, store: &Store<RecordingDisk>, rng: &mut Rng, tag: u64, length: usize) {
    let data = content(tag, length);
    let announced = (rng.below(2) == 0).then_some(length as u64);
    let Ok(upload) = store.begin(upload_name(tag, length), announced, 1 << 20, 5).await else { return };
    let known = upload.resumable().unwrap().clone();
    drop(upload);
    disk.note(Note::Saved { tag, offset: 0 });
    for part in 0..1 + rng.below(3) {
        let Ok(mut upload) = store.resume(&known, 1 << 20, 5 + part).await else { return };
        let from = upload.received_bytes() as usize;
        let end = from + rng.below((length - from) as u64 + 1) as usize;
        if send(&mut upload, &data[from..end]).await.is_err() {
            continue;
        }
        if rng.below(3) > 0 {
            let offset = upload.save().await.unwrap();
            disk.note(Note::Saved { tag, offset });
        }
    }
    if rng.below(4) == 0 {
        disk.note(Note::ForgetAsked { tag });
        store.forget(&known).await.unwrap();
        disk.note(Note::ForgetAnswered { tag });
        return;
    }
    let mut upload = store.resume(&known, 1 << 20, 9).await.unwrap();
    let from = upload.received_bytes() as usize;
    if send(&mut upload, &data[from..]).await.is_err() {
        return;
    }
    if announced.is_none() {
        upload.end();
    }
    disk.note(Note::AddAsked { tag });
    let id = upload.finish().await.unwrap();
    disk.note(Note::AddAnswered { tag, id, length });
}

/// A consumer and three uploaders, or so many in groups that most of them wait for the same commits; with sizes and moments from `seed`.
async fn script(executor: Executor, disk: RecordingDisk, store: Store<RecordingDisk>, seed: u64, in_groups: bool) {
    let (workers, steps) = if in_groups { (13, 2) } else { (4, 6) };
    let (running, ended) = (Rc::new(Cell::new(workers)), Notify::new());
    for worker in 0..workers {
        let (disk, store, running, ended) = (disk.clone(), store.clone(), running.clone(), ended.clone());
        let mut rng = Rng(seed * workers + worker);
        let work = async move {
            for step in 0..steps {
                match worker {
                    0 => consume(&disk, &store, &mut rng).await,
                    _ => produce(&disk, &store, &mut rng, seed * 1000 + worker * 50 + step).await,
                }
            }
            running.set(running.get() - 1);
            ended.notify_all();
        };
        executor.spawn("worker", work).unwrap();
    }
    while running.get() > 0 {
        ended.notified().await;
    }
}

async fn produce(disk: &RecordingDisk, store: &Store<RecordingDisk>, rng: &mut Rng, tag: u64) {
    let length = match rng.below(10) {
        0 => 0,
        1 => 150_000 + rng.below(80_000) as usize,
        2..=4 => rng.below(40_000) as usize,
        _ => rng.below(5_000) as usize,
    };
    if rng.below(3) == 0 {
        return produce_in_parts(disk, store, rng, tag, length).await;
    }
    let data = content(tag, length);
    let Ok(mut upload) = store.upload(length as u64) else { return };
    // An item with a wrong digest is in the queue at no moment.
    let (has_digest, is_right) = (rng.below(3) == 0, rng.below(2) == 0);
    if has_digest {
        let mut digests = Digests::default();
        let digest = if is_right { Sha256::digest(&data) } else { Sha256::digest(b"other bytes") };
        digests.expect(Algorithm::Sha256, digest.to_vec());
        upload.verify(digests);
    }
    let give_up_at = if rng.below(5) == 0 { 1 + rng.below(length as u64 + 1) } else { 0 };
    while upload.missing_bytes() > 0 {
        if upload.missing_bytes() <= give_up_at {
            return;
        }
        let rest = &data[data.len() - upload.missing_bytes() as usize..];
        let read = async |space: &mut [u8]| {
            let count = space.len().min(30_000);
            space[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        upload.receive(read).await.unwrap().unwrap();
    }
    if has_digest && !is_right {
        assert_eq!(upload.finish().await, Err(StoreError::Digest { algorithm: Algorithm::Sha256 }));
        return;
    }
    disk.note(Note::AddAsked { tag });
    let id = upload.finish().await.unwrap();
    disk.note(Note::AddAnswered { tag, id, length });
}

async fn consume(disk: &RecordingDisk, store: &Store<RecordingDisk>, rng: &mut Rng) {
    for _ in 0..rng.below(150) {
        embassy_futures::yield_now().await;
    }
    let Some(id) = store.head().map(|head| head.id) else { return };
    get(store).await.unwrap().unwrap();
    disk.note(Note::RemoveAsked { id });
    assert_eq!(store.remove(id).await, Ok(true));
    disk.note(Note::RemoveAnswered { id });
}

/// Opens the disk after a cut, reads every item, continues every upload to its end and uses the queue. Returns ids and data of the items, and
/// the uploads as they were found.
pub fn reopen(image: Vec<u8>, context: &str) -> (Vec<u64>, Vec<Vec<u8>>, Vec<Upload>) {
    let disk = RecordingDisk::plain(image);
    let context = context.to_owned();
    run(async move |executor| {
        let (store, recovery) = Store::open(disk, false).await.unwrap_or_else(|error| panic!("{context}: {error}"));
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).unwrap();
        assert_eq!(store.usage().items, recovery.items);
        let (mut ids, mut items) = (Vec::new(), Vec::new());
        while let Some(head) = store.head() {
            let data = get(&store).await.unwrap().unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(remove_head(&store).await, Ok(true));
            ids.push(head.id);
            items.push(data);
        }
        let mut uploads = Vec::new();
        for known in store.resumables() {
            let (tag, length) = of_name(known.name());
            let is_complete = known.item().is_some();
            uploads.push(Upload { tag, offset: known.offset(), is_complete });
            if !is_complete {
                let data = content(tag, length);
                let mut upload =
                    store.resume(&known, 1 << 20, 5).await.unwrap_or_else(|error| panic!("{context}: {error}"));
                match send(&mut upload, &data[known.offset() as usize..]).await {
                    // Others have so much that its rest does not fit.
                    Err(StoreError::DiskFull { .. }) => {
                        drop(upload);
                        store.forget(&known).await.unwrap_or_else(|error| panic!("{context}: {error}"));
                        continue;
                    }
                    sent => sent.unwrap_or_else(|error| panic!("{context}: {error}")),
                }
                if upload.is_open() {
                    upload.end();
                }
                upload.finish().await.unwrap();
                assert!(get(&store).await.unwrap().unwrap() == data, "{context}: upload {tag} has other bytes");
                assert_eq!(remove_head(&store).await, Ok(true));
            }
            store.forget(&known).await.unwrap();
        }
        let id = put(&store, b"one more", 8).await.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(ids.iter().all(|&old| old < id), "{context}: an id was used twice");
        assert_eq!(get(&store).await.unwrap().unwrap(), b"one more", "{context}");
        assert_eq!(remove_head(&store).await, Ok(true));
        let usage = store.usage();
        assert_eq!((usage.free_bytes, usage.free_items), (usage.data_bytes, usage.items_max), "{context}: space leaks");
        (ids, items, uploads)
    })
}

fn reopen_and_check(image: Vec<u8>, model: &Model, context: &str) -> (Vec<Known>, Vec<Upload>) {
    let (ids, items, uploads) = reopen(image, context);
    model.check_uploads(&uploads, context);
    let found = model.check(&ids, context);
    for (known, data) in found.iter().zip(items) {
        assert!(data == content(known.tag, known.length), "{context}: {known:?} has other bytes");
    }
    (found.to_vec(), uploads)
}

/// The log is in blocks 3 to 10.
fn is_commit(event: &Event) -> bool {
    matches!(event, Event::Write { offset, .. } if (3 * 4096..11 * 4096).contains(offset))
}

/// How many uploads became items with each commit.
fn answered_together(events: &[Event]) -> Vec<usize> {
    let mut groups = vec![0];
    for event in events {
        match event {
            event if is_commit(event) => groups.push(0),
            Event::Note(Note::AddAnswered { .. }) => *groups.last_mut().unwrap() += 1,
            _ => {}
        }
    }
    groups
}

#[test]
fn whatever_was_answered_survives_a_cut_at_every_moment() {
    let usual = if std::env::var_os("GLASS_TESTS_LONG").is_some() { SEEDS_LONG } else { SEEDS };
    let seeds = std::env::var("QUEUE_CRASH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual);
    let (mut cuts, mut groups) = (0, Vec::new());
    for seed in 0..seeds {
        let in_groups = seed % 4 == 3;
        let sector_bytes = if seed % 2 == 0 { 512 } else { 4096 };
        let mut rng = Rng(seed);
        let mut image = vec![0; DISK_BYTES];
        let (mut initial, mut uploads) = (Vec::new(), Vec::new());
        // The second life starts with the disk after a cut in the first one.
        for life in 0..2 {
            // Slow for groups: most changes wait.
            let latency_max = if in_groups { 60 } else { 1 + seed % 12 };
            let grows = life == 1 && seed % 3 == 1;
            if grows {
                image.resize(GROWN_BYTES, 0);
            }
            let disk = RecordingDisk::new(image.clone(), sector_bytes, seed, latency_max);
            let recorded = disk.clone();
            run(async move |executor| {
                let store = if grows {
                    open_grown(&executor, recorded.clone()).await
                } else {
                    open(&executor, recorded.clone()).await
                };
                if seed % 4 < 2 {
                    store.discard_removed();
                }
                if seed % 3 == 0 {
                    store.set_early_flush_bytes(20_000);
                }
                script(executor, recorded, store, seed * 2 + life, in_groups).await;
            });
            let events = disk.events();
            if in_groups {
                groups.extend(answered_together(&events));
            }
            let mut model = Model::new(&initial, &events, &uploads);
            let mut cutter = Cutter::new(image);
            let next_life_at = rng.below(events.len() as u64) as usize;
            let mut next_life = None;
            for (moment, event) in events.iter().enumerate() {
                cutter.follow(event);
                model.follow(event);
                let context = format!("seed {seed}, life {life}, cut after event {moment} of {}", events.len());
                let cut = cutter.cut(&mut rng);
                let found = reopen_and_check(cut.clone(), &model, &context);
                if moment == next_life_at {
                    next_life = Some((cut, found));
                }
                cuts += 1;
            }
            let (cut, found) = next_life.expect("the moment is one of the run");
            image = cut;
            (initial, uploads) = found;
        }
    }
    let (large, largest) = (groups.iter().filter(|&&size| size >= 3).count(), groups.iter().max());
    println!("{cuts} cuts; {large} commits with three items or more, {largest:?} at most");
    assert!(cuts > seeds * 200, "only {cuts} cuts");
    assert!(large as u64 >= seeds / 4, "only {large} commits with three items or more");
}

/// What may be on the disk `image` after cuts while a queue writes a commit with more items than the `items` that it is given before. The entries
/// of the first ones are in the first sector of its block.
fn cuts_of_a_commit(image: &[u8], items: u64, tag: u64) -> Vec<Vec<u8>> {
    const CUTS: usize = 100;
    let disk = RecordingDisk::new(image.to_vec(), 4096, 1, 1);
    let recorded = disk.clone();
    run(async move |executor| {
        let store = open(&executor, recorded).await;
        for item in 0..items {
            put(&store, &content(item, 100), 100).await.unwrap();
        }
        // In one commit. The entries of empty ones are the same whatever the tag is.
        let more = async |tag, bytes| put(&store, &content(tag, bytes), 3000).await.map(drop);
        let done: [_; 20] =
            join_array(std::array::from_fn(|number| more(tag + number as u64, if number < 4 { 3000 } else { 0 })))
                .await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    });
    let events = disk.events();
    let last = events.iter().rposition(is_commit).expect("a commit was written");
    let mut cutter = Cutter::new(image.to_vec());
    events[..=last].iter().for_each(|event| cutter.follow(event));
    let mut rng = Rng(tag);
    (0..CUTS).map(|_| cutter.cut(&mut rng)).collect()
}

/// Parts of a commit that never succeeded and parts of the next one were a valid one together, after two cuts: its items had the data of
/// others (2026-11-28, version 2).
#[test]
fn parts_of_two_commits_are_never_one() {
    const ITEMS: u64 = 2;
    let context = "a cut while a commit is written";
    let is_torn = |image: &Vec<u8>| reopen(image.clone(), context).0.len() as u64 == ITEMS;
    let torn: Vec<Vec<u8>> =
        cuts_of_a_commit(&vec![0; DISK_BYTES], ITEMS, 100).into_iter().filter(is_torn).take(40).collect();
    assert_eq!(torn.len(), 40);
    for image in torn {
        for cut in cuts_of_a_commit(&image, 0, 200) {
            // It reads all items, and compares their checksums.
            reopen(cut, context);
        }
    }
}
