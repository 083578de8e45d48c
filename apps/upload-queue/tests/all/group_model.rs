//! Many uploads and removals at once, some of which are cancelled, on a disk that fails now and then: the answers and the queue agree.
//!
//! The model has for each request when it was sent and how it was answered. A request that was cancelled may have any effect or none, and
//! all others exactly theirs.

use crate::common::{RecordingDisk, Rng, content, drain, open, run, send};
use crate::crash::reopen;
use embassy_futures::select::{Either, select};
use embassy_futures::yield_now;
use glass_lib_executor::Executor;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use upload_queue::Store;

/// Room for all uploads, and for 191 items.
const DISK_BYTES: usize = 800 * 4096;
const UPLOADERS: u64 = 20;
const CONSUMERS: u64 = 4;
const STEPS: u64 = 6;
/// `GLASS_TESTS_LONG` has more.
const SEEDS: u64 = 100;
const SEEDS_LONG: u64 = 10_000;

/// What is known of an item whose upload was answered with its id.
#[derive(Debug, Clone, Copy)]
struct Known {
    tag: u64,
    length: usize,
    /// When its upload began and was answered, by a clock that counts requests and answers.
    sent: u64,
    answered: u64,
}

/// What is known of the removal of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    Done,
    /// It was cancelled, or is in progress.
    Unknown,
}

#[derive(Default)]
struct Model {
    time: Cell<u64>,
    items: RefCell<BTreeMap<u64, Known>>,
    /// Bytes of uploads that were cancelled: whether they are items is unknown.
    cancelled: RefCell<Vec<Vec<u8>>>,
    removals: RefCell<BTreeMap<u64, Removal>>,
    failures: Cell<u64>,
}

impl Model {
    fn now(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }
}

/// `request`, or `None` if it is dropped before its end: the connection of its client was lost.
async fn cancelled_at_times<T>(rng: &mut Rng, request: impl Future<Output = T>) -> Option<T> {
    let polls = if rng.below(4) == 0 { rng.below(60) } else { u64::MAX };
    let lost = async {
        for _ in 0..polls {
            yield_now().await;
        }
    };
    match select(request, lost).await {
        Either::First(answer) => Some(answer),
        Either::Second(()) => None,
    }
}

async fn upload(store: &Store<RecordingDisk>, model: &Model, rng: &mut Rng, tag: u64) {
    let length = [rng.below(20_000), rng.below(5_000), 10][rng.below(3) as usize] as usize;
    let (data, sent) = (content(tag, length), model.now());
    let Ok(mut upload) = store.upload(length as u64) else { return };
    if send(&mut upload, &data).await.is_err() {
        return model.failures.set(model.failures.get() + 1);
    }
    match cancelled_at_times(rng, upload.finish()).await {
        Some(Ok(id)) => {
            let known = Known { tag, length, sent, answered: model.now() };
            assert!(model.items.borrow_mut().insert(id, known).is_none(), "id {id} was used twice");
        }
        // In the queue of now it is not, as the checks show.
        Some(Err(_)) => model.failures.set(model.failures.get() + 1),
        None => model.cancelled.borrow_mut().push(data),
    }
}

async fn remove(store: &Store<RecordingDisk>, model: &Model, rng: &mut Rng) {
    for _ in 0..rng.below(80) {
        yield_now().await;
    }
    let entries = store.items_after(None, 3);
    let Some(entry) = entries.get(rng.below(3) as usize) else { return };
    model.removals.borrow_mut().insert(entry.id, Removal::Unknown);
    match cancelled_at_times(rng, store.remove(entry.id)).await {
        // Another consumer may have been faster, and its answer may still be on its way.
        Some(Ok(_)) => _ = model.removals.borrow_mut().insert(entry.id, Removal::Done),
        Some(Err(_)) => model.failures.set(model.failures.get() + 1),
        None => {}
    }
}

/// Requests at moments from `seed`; the disk works at the end.
async fn script(executor: &Executor, disk: &RecordingDisk, store: &Store<RecordingDisk>, model: &Rc<Model>, seed: u64) {
    let running = Rc::new(Cell::new(UPLOADERS + CONSUMERS));
    for worker in 0..UPLOADERS + CONSUMERS {
        let (store, running, model) = (store.clone(), running.clone(), model.clone());
        let mut rng = Rng(seed * 100 + worker);
        let work = async move {
            for step in 0..STEPS {
                match worker.checked_sub(CONSUMERS) {
                    Some(_) => upload(&store, &model, &mut rng, 1 + seed * 1000 + worker * 10 + step).await,
                    None => remove(&store, &model, &mut rng).await,
                }
            }
            running.set(running.get() - 1);
        };
        executor.spawn("worker", work).unwrap();
    }
    let (mut rng, may_fail) = (Rng(seed + 1_000_000), !seed.is_multiple_of(3));
    while running.get() > 0 {
        match rng.below(6) {
            0 if may_fail => disk.fail_writes_after(rng.below(30)),
            1 if may_fail => disk.fail_flushes_after(rng.below(5)),
            _ => works(disk),
        }
        for _ in 0..rng.below(60) {
            yield_now().await;
        }
    }
    works(disk);
}

fn works(disk: &RecordingDisk) {
    disk.fail_writes_after(u64::MAX);
    disk.fail_flushes_after(u64::MAX);
}

/// Items and their data, in order.
async fn items(store: &Store<RecordingDisk>) -> Vec<(u64, Vec<u8>)> {
    let mut items = Vec::new();
    for entry in store.items_after(None, usize::MAX) {
        let download = store.fetch_item(entry.id).expect("it is there");
        items.push((entry.id, drain(download).await.expect("it is whole")));
    }
    items
}

fn check(model: &Model, found: &[(u64, Vec<u8>)], context: &str) {
    let (known, removals) = (model.items.borrow(), model.removals.borrow());
    assert!(found.is_sorted_by(|first, second| first.0 < second.0), "{context}: not in the order of ids");
    for (id, data) in found {
        assert_ne!(removals.get(id), Some(&Removal::Done), "{context}: item {id} was removed");
        match known.get(id) {
            Some(known) => assert!(*data == content(known.tag, known.length), "{context}: item {id} has other bytes"),
            None => {
                let is_cancelled = model.cancelled.borrow().contains(data);
                assert!(is_cancelled, "{context}: item {id} is one of a failed upload, or of none");
            }
        }
    }
    for id in known.keys() {
        let is_there = found.iter().any(|(found, _)| found == id);
        assert!(is_there || removals.contains_key(id), "{context}: item {id} was answered and is lost");
    }
    // An upload that was answered before another one began is before it.
    for (first, earlier) in known.iter() {
        for (second, later) in known.iter() {
            assert!(earlier.answered > later.sent || first < second, "{context}: {earlier:?} is after {later:?}");
        }
    }
}

#[test]
fn answers_and_queue_agree_whatever_fails_and_is_cancelled() {
    let seeds = if std::env::var_os("GLASS_TESTS_LONG").is_some() { SEEDS_LONG } else { SEEDS };
    let (mut answered, mut flushes, mut failed, mut cancelled) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let context = format!("seed {seed}");
        let disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, seed, 1 + seed % 20);
        let model = Rc::new(Model::default());
        let (on_disk, of_run) = (disk.clone(), model.clone());
        let text = context.clone();
        run(async move |executor| {
            let (disk, model, context) = (on_disk, of_run, text);
            let store = open(&executor, disk.clone()).await;
            script(&executor, &disk, &store, &model, seed).await;
            // Changes of cancelled requests may still be in progress: a removal that finds nothing waits for those before it, and an upload
            // shares the commit of all that were written.
            while store.remove(u64::MAX).await.is_err() {}
            let mut last = store.upload(0);
            while last.is_err() {
                // Failed uploads keep their space until the next commit.
                store.changed().await;
                last = store.upload(0);
            }
            let id = last.unwrap().finish().await.unwrap();
            assert_eq!(store.remove(id).await, Ok(true), "{context}");
            check(&model, &items(&store).await, &context);
        });
        // The same after a restart.
        let (ids, data, _) = reopen(disk.image(), &context);
        check(&model, &ids.into_iter().zip(data).collect::<Vec<_>>(), &context);
        answered += model.items.borrow().len() as u64;
        failed += model.failures.get();
        cancelled += model.cancelled.borrow().len() as u64;
        flushes += disk.flushes();
    }
    println!("{answered} uploads with {flushes} flushes; {failed} requests failed, {cancelled} uploads were cancelled");
    assert!(answered > 2 * flushes, "{flushes} flushes for {answered} uploads");
    assert!(failed > seeds && cancelled > seeds, "{failed} requests failed, {cancelled} were cancelled");
}
