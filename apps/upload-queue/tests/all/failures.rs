//! A disk whose writes and flushes fail for a while: requests fail, answered items stay, and the queue continues.

use crate::common::{Cutter, Event, Note, RecordingDisk, Rng, content, get, open, put, remove_head, run};
use crate::crash::reopen;
use embassy_futures::yield_now;
use glass_lib_executor::Executor;
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use upload_queue::{Store, StoreError};

const DISK_BYTES: usize = 130 * 4096;
const SEEDS: u64 = 60;

fn disk() -> RecordingDisk {
    RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3)
}

#[test]
fn a_failed_index_write_fails_its_changes_and_no_later_ones() {
    run(async |executor| {
        let disk = disk();
        let store = open(&executor, disk.clone()).await;
        let first = put(&store, b"1", 1).await.unwrap();
        // The data is written, the index is not.
        disk.fail_writes_after(1);
        assert!(matches!(put(&store, b"2", 1).await, Err(StoreError::Disk(_))));
        assert!(matches!(store.remove(first).await, Err(StoreError::Disk(_))));
        assert_eq!(get(&store).await.unwrap().unwrap(), b"1");
        disk.fail_writes_after(u64::MAX);
        let third = put(&store, b"3", 1).await.unwrap();
        assert_eq!(store.remove(first).await, Ok(true));
        assert_eq!(store.remove(third).await, Ok(true));
        let usage = store.usage();
        assert_eq!((usage.items, usage.free_bytes), (0, usage.data_bytes));
    });
}

#[test]
fn space_of_failed_uploads_comes_back_without_a_restart() {
    run(async |executor| {
        let disk = disk();
        let store = open(&executor, disk.clone()).await;
        let data = content(1, store.usage().data_bytes as usize);
        // All writes of the data, not the one of the index.
        disk.fail_writes_after(data.len().div_ceil(upload_queue::limits::CHUNK_BYTES) as u64);
        assert!(matches!(put(&store, &data, 1 << 20).await, Err(StoreError::Disk(_))));
        disk.fail_writes_after(u64::MAX);
        // The index that names it may be on the disk, so its space stays unused until another one is written.
        assert!(matches!(store.upload(4096), Err(StoreError::DiskFull { .. })));
        while store.usage().free_bytes == 0 {
            store.changed().await;
        }
        put(&store, &data, 1 << 20).await.unwrap();
    });
}

#[test]
fn a_failed_flush_fails_every_upload_under_way() {
    for good in 0..2 {
        run(async move |executor| {
            let disk = disk();
            let store = open(&executor, disk.clone()).await;
            put(&store, b"1", 1).await.unwrap();
            let mut upload = store.upload(1).unwrap();
            upload.receive(async |space| Ok::<usize, ()>(space.len())).await.unwrap().unwrap();
            disk.fail_flushes_after(good);
            assert!(matches!(put(&store, b"2", 1).await, Err(StoreError::Disk(_))));
            disk.fail_flushes_after(u64::MAX);
            assert_eq!(upload.finish().await, Err(StoreError::Lost));
            put(&store, b"3", 1).await.unwrap();
            for expected in [b"1", b"3"] {
                assert_eq!(get(&store).await.unwrap().unwrap(), expected);
                assert_eq!(remove_head(&store).await, Ok(true));
            }
            assert!(store.head().is_none());
        });
    }
}

/// Uploads, removals and failures at moments from `seed`; the queue works at the end.
async fn script(executor: Executor, disk: RecordingDisk, store: Store<RecordingDisk>, seed: u64) {
    // Many share their commits, and their failures.
    let (workers, steps) = if seed % 4 == 3 { (12, 3) } else { (4, 8) };
    let running = Rc::new(Cell::new(workers));
    for worker in 0..workers {
        let (disk, store, running) = (disk.clone(), store.clone(), running.clone());
        let mut rng = Rng(seed * workers + worker);
        let work = async move {
            for step in 0..steps {
                match worker {
                    0 => consume(&disk, &store, &mut rng).await,
                    _ => produce(&disk, &store, &mut rng, 1 + seed * 1000 + worker * 100 + step).await,
                }
            }
            running.set(running.get() - 1);
        };
        executor.spawn("worker", work).unwrap();
    }
    let mut rng = Rng(seed + 1_000_000);
    while running.get() > 0 {
        match rng.below(4) {
            0 => disk.fail_writes_after(rng.below(5)),
            1 => disk.fail_flushes_after(rng.below(3)),
            _ => works_again(&disk),
        }
        for _ in 0..rng.below(60) {
            yield_now().await;
        }
    }
    works_again(&disk);
    let last = produce_bytes(&disk, &store, seed * 1000 + 999, 100).await;
    assert!(matches!(last, Ok(()) | Err(StoreError::DiskFull { .. })), "seed {seed}: {last:?}");
}

fn works_again(disk: &RecordingDisk) {
    disk.fail_writes_after(u64::MAX);
    disk.fail_flushes_after(u64::MAX);
}

async fn produce(disk: &RecordingDisk, store: &Store<RecordingDisk>, rng: &mut Rng, tag: u64) {
    let length_max = [200_000, 9_000, 9_000, 10][rng.below(4) as usize];
    let length = rng.below(length_max) as usize;
    // A failure is an answer.
    let _ = produce_bytes(disk, store, tag, length).await;
    for _ in 0..rng.below(20) {
        yield_now().await;
    }
}

async fn produce_bytes(
    disk: &RecordingDisk,
    store: &Store<RecordingDisk>,
    tag: u64,
    length: usize,
) -> Result<(), StoreError> {
    let data = content(tag, length);
    let mut upload = store.upload(length as u64)?;
    while upload.missing_bytes() > 0 {
        let rest = &data[length - upload.missing_bytes() as usize..];
        let read = async |space: &mut [u8]| {
            let count = space.len().min(30_000);
            space[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        upload.receive(read).await?.unwrap();
        // A slow client: the disk fails and works again during its upload.
        for _ in 0..tag % 30 {
            yield_now().await;
        }
    }
    let id = upload.finish().await?;
    disk.note(Note::AddAnswered { tag, id, length });
    Ok(())
}

async fn consume(disk: &RecordingDisk, store: &Store<RecordingDisk>, rng: &mut Rng) {
    for _ in 0..rng.below(100) {
        yield_now().await;
    }
    let Some(id) = store.head().map(|head| head.id) else { return };
    disk.note(Note::RemoveAsked { id });
    if store.remove(id).await.is_ok() {
        disk.note(Note::RemoveAnswered { id });
    }
}

/// The answers up to a moment.
#[derive(Default)]
struct Answers {
    /// Tag and length of each item whose upload was answered and whose removal was not requested.
    kept: BTreeMap<u64, (u64, usize)>,
    /// A consumer can be faster than the answer to the uploader.
    requested: HashSet<u64>,
    removed: HashSet<u64>,
}

impl Answers {
    fn follow(&mut self, event: &Event) {
        match *event {
            Event::Note(Note::AddAnswered { tag, id, length }) if !self.requested.contains(&id) => {
                self.kept.insert(id, (tag, length));
            }
            Event::Note(Note::RemoveAsked { id }) => {
                self.kept.remove(&id);
                self.requested.insert(id);
            }
            Event::Note(Note::RemoveAnswered { id }) => drop(self.removed.insert(id)),
            _ => {}
        }
    }

    fn check(&self, ids: &[u64], items: &[Vec<u8>], context: &str) {
        assert!(ids.is_sorted(), "{context}: {ids:?}");
        assert!(ids.iter().all(|id| !self.removed.contains(id)), "{context}: a removed item is back: {ids:?}");
        for (id, (tag, length)) in &self.kept {
            let place = ids.iter().position(|found| found == id);
            let place = place.unwrap_or_else(|| panic!("{context}: item {id} was answered and is lost: {ids:?}"));
            assert!(items[place] == content(*tag, *length), "{context}: item {id} has other bytes");
        }
    }
}

#[test]
fn whatever_was_answered_survives_failures_and_a_cut_at_every_moment() {
    let mut failures = 0;
    for seed in 0..SEEDS {
        let image = vec![0; DISK_BYTES];
        let disk = RecordingDisk::new(image.clone(), if seed % 2 == 0 { 512 } else { 4096 }, seed, 1 + seed % 12);
        let recorded = disk.clone();
        run(async move |executor| {
            let store = open(&executor, recorded.clone()).await;
            if seed % 4 < 2 {
                store.discard_removed();
            }
            if seed % 3 == 0 {
                store.set_early_flush_bytes(20_000);
            }
            script(executor, recorded, store, seed).await;
        });
        let (mut cutter, mut answers, mut rng) = (Cutter::new(image), Answers::default(), Rng(seed));
        // Before it, there is no queue.
        let mut is_made = false;
        for (moment, event) in disk.events().iter().enumerate() {
            cutter.follow(event);
            answers.follow(event);
            is_made |= matches!(event, Event::Note(_));
            failures += u64::from(matches!(event, Event::FlushFailed));
            if is_made {
                let context = format!("seed {seed}, cut after event {moment}");
                let (ids, items, _) = reopen(cutter.cut(&mut rng), &context);
                answers.check(&ids, &items, &context);
            }
        }
    }
    assert!(failures > SEEDS, "only {failures} flushes failed");
}
