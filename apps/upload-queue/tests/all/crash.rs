//! A power cut at every moment of many scripted runs: the queue contains exactly what was answered.

use crate::common::{Cutter, Event, Note, RecordingDisk, Rng, content, get, open, put, remove_head, run};
use glass_lib_executor::{Executor, sync::Notify};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use upload_queue::Store;

/// One block per index slot and room for about half a megabyte of data.
const DISK_BYTES: usize = 120 * 4096;
/// Each with two lives and a cut after each of some 150 events; `QUEUE_CRASH_SEEDS` sets more.
const SEEDS: u64 = 40;

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
}

impl Model {
    /// Before a run that starts with the items `initial` and will write `events`.
    fn new(initial: &[Known], events: &[Event]) -> Model {
        let mut sequence = initial.to_vec();
        sequence.extend(events.iter().filter_map(|event| match *event {
            Event::Note(Note::AddAnswered { tag, id, length }) => Some(Known { id, tag, length }),
            _ => None,
        }));
        sequence.sort_by_key(|known| known.id);
        let asked = initial.iter().map(|known| known.tag).collect();
        Model { sequence, asked, adds_answered: initial.len(), removes_asked: 0, removes_answered: 0 }
    }

    fn follow(&mut self, event: &Event) {
        match *event {
            Event::Note(Note::AddAsked { tag }) => drop(self.asked.insert(tag)),
            Event::Note(Note::AddAnswered { id, .. }) => {
                let place = self.sequence.iter().position(|known| known.id == id).expect("the sequence has every item");
                self.adds_answered = self.adds_answered.max(place + 1);
            }
            Event::Note(Note::RemoveAsked { .. }) => self.removes_asked += 1,
            Event::Note(Note::RemoveAnswered { .. }) => self.removes_answered += 1,
            _ => {}
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

/// Three uploaders and a consumer, with sizes and moments from `seed`.
async fn script(executor: Executor, disk: RecordingDisk, store: Store<RecordingDisk>, seed: u64) {
    let (running, ended) = (Rc::new(Cell::new(4)), Notify::new());
    for worker in 0..4 {
        let (disk, store, running, ended) = (disk.clone(), store.clone(), running.clone(), ended.clone());
        let mut rng = Rng(seed * 4 + worker);
        let work = async move {
            for step in 0..6 {
                match worker {
                    0 => consume(&disk, &store, &mut rng).await,
                    _ => produce(&disk, &store, &mut rng, seed * 1000 + worker * 100 + step).await,
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
    let data = content(tag, length);
    let Ok(mut upload) = store.upload(length as u64) else { return };
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

/// Opens the disk after a cut, reads every item and uses the queue. Returns ids and data.
pub fn reopen(image: Vec<u8>, context: &str) -> (Vec<u64>, Vec<Vec<u8>>) {
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
        let id = put(&store, b"one more", 8).await.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(ids.iter().all(|&old| old < id), "{context}: an id was used twice");
        assert_eq!(get(&store).await.unwrap().unwrap(), b"one more", "{context}");
        assert_eq!(remove_head(&store).await, Ok(true));
        let usage = store.usage();
        assert_eq!((usage.free_bytes, usage.free_items), (usage.data_bytes, usage.items_max), "{context}: space leaks");
        (ids, items)
    })
}

fn reopen_and_check(image: Vec<u8>, model: &Model, context: &str) -> Vec<Known> {
    let (ids, items) = reopen(image, context);
    let found = model.check(&ids, context);
    for (known, data) in found.iter().zip(items) {
        assert!(data == content(known.tag, known.length), "{context}: {known:?} has other bytes");
    }
    found.to_vec()
}

#[test]
fn whatever_was_answered_survives_a_cut_at_every_moment() {
    let seeds = std::env::var("QUEUE_CRASH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut cuts = 0;
    for seed in 0..seeds {
        let sector_bytes = if seed % 2 == 0 { 512 } else { 4096 };
        let mut rng = Rng(seed);
        let mut image = vec![0; DISK_BYTES];
        let mut initial = Vec::new();
        // The second life starts with the disk after a cut in the first one.
        for life in 0..2 {
            let disk = RecordingDisk::new(image.clone(), sector_bytes, seed, 1 + seed % 12);
            let recorded = disk.clone();
            run(async move |executor| {
                let store = open(&executor, recorded.clone()).await;
                if seed % 4 < 2 {
                    store.discard_removed();
                }
                if seed % 3 == 0 {
                    store.set_early_flush_bytes(20_000);
                }
                script(executor, recorded, store, seed * 2 + life).await;
            });
            let events = disk.events();
            let mut model = Model::new(&initial, &events);
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
            (image, initial) = (cut, found);
        }
    }
    assert!(cuts > seeds * 200, "only {cuts} cuts");
}
