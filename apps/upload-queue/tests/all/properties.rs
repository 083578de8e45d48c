//! Any sequence of operations has the same effect as on a list.

use crate::common::{RecordingDisk, content, drain, get, open, remove_head, run, send};
use proptest::prelude::*;
use std::collections::VecDeque;
use upload_queue::{Download, Store, StoreError, Upload};

/// 46 blocks for data.
const DISK_BYTES: usize = 59 * 4096;
const DATA_BYTES: u64 = 46 * 4096;

#[derive(Debug, Clone)]
enum Operation {
    /// Starts an upload of so many bytes in this place, ending the one that was there.
    Begin(usize, usize),
    /// Lets the upload in this place receive so much.
    Receive(usize, usize),
    Finish(usize),
    Abort(usize),
    /// Starts a download in this place.
    Fetch(usize),
    /// Reads a download to its end.
    Drain(usize),
    /// Removes the item of the download in this place, if it is still there.
    RemoveRead(usize),
    /// Removes the item in this place of the queue.
    RemoveAt(usize),
    RemoveHead,
    /// Starts an upload of so many bytes that can be resumed, under this name.
    BeginResumable(usize, usize),
    /// Lets a session of the upload with this name receive so much, and saves it, or is interrupted.
    Continue(usize, usize, bool),
    /// Sends the rest of it.
    Complete(usize),
    Forget(usize),
    Restart,
}

fn operation() -> impl Strategy<Value = Operation> {
    let place = 0usize..4;
    prop_oneof![
        4 => (place.clone(), prop_oneof![Just(0usize), 1usize..9000, 1usize..200_000]).prop_map(|(place, length)| Operation::Begin(place, length)),
        4 => (place.clone(), 1usize..150_000).prop_map(|(place, bytes)| Operation::Receive(place, bytes)),
        5 => place.clone().prop_map(Operation::Finish),
        1 => place.clone().prop_map(Operation::Abort),
        2 => place.clone().prop_map(Operation::Fetch),
        2 => place.clone().prop_map(Operation::Drain),
        2 => place.prop_map(Operation::RemoveRead),
        1 => Just(Operation::RemoveHead),
        1 => (0usize..5).prop_map(Operation::RemoveAt),
        2 => (0usize..3, prop_oneof![Just(0usize), 1usize..9000, 1usize..100_000]).prop_map(|(name, length)| Operation::BeginResumable(name, length)),
        4 => (0usize..3, 0usize..60_000, any::<bool>()).prop_map(|(name, bytes, saves)| Operation::Continue(name, bytes, saves)),
        2 => (0usize..3).prop_map(Operation::Complete),
        1 => (0usize..3).prop_map(Operation::Forget),
        1 => Just(Operation::Restart),
    ]
}

struct Sending {
    upload: Upload<RecordingDisk>,
    tag: u64,
    data: Vec<u8>,
}

impl Sending {
    async fn receive(&mut self, bytes_max: usize) -> Result<(), StoreError> {
        let sent = self.data.len() - self.upload.missing_bytes() as usize;
        let rest = &self.data[sent..];
        let read = async |space: &mut [u8]| {
            let count = space.len().min(bytes_max);
            space[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        self.upload.receive(read).await.map(|received| _ = received.unwrap())
    }
}

struct Reading {
    download: Download<RecordingDisk>,
    tag: u64,
    length: usize,
}

#[derive(Default)]
struct Model {
    items: VecDeque<(u64, usize)>,
    tags: u64,
    /// Of each name: its tag, its length, how much was saved, and whether it is complete.
    resumable: [Option<(u64, usize, usize, bool)>; 3],
}

fn name(number: usize) -> [u8; 16] {
    [number as u8; 16]
}

/// One operation on an upload that can be resumed.
async fn check_resumable(store: &Store<RecordingDisk>, model: &mut Model, operation: Operation) {
    let (number, bytes, saves) = match operation {
        Operation::BeginResumable(number, length) => {
            if model.resumable[number].is_none() {
                model.tags += 1;
                match store.begin(name(number), Some(length as u64), u64::MAX, 0).await {
                    Ok(_) => model.resumable[number] = Some((model.tags, length, 0, false)),
                    Err(error) => assert!(matches!(error, StoreError::DiskFull { .. }), "{error}"),
                }
            }
            return;
        }
        Operation::Forget(number) => {
            let known = store.find(&name(number));
            assert_eq!(known.is_some(), model.resumable[number].is_some());
            if let Some(known) = known {
                assert_eq!(store.forget(&known).await, Ok(()));
                model.resumable[number] = None;
            }
            return;
        }
        Operation::Continue(number, bytes, saves) => (number, bytes, saves),
        Operation::Complete(number) => (number, usize::MAX, true),
        _ => unreachable!("the caller has the others"),
    };
    let Some((tag, length, saved, is_complete)) = model.resumable[number] else { return };
    let known = store.find(&name(number)).expect("it was begun");
    assert_eq!((known.offset(), known.item().is_some()), (saved as u64, is_complete));
    let resumed = store.resume(&known, u64::MAX, 0).await;
    let Ok(mut upload) = resumed else {
        assert!(is_complete && resumed.err() == Some(StoreError::UploadEnded));
        return;
    };
    let end = length.min(saved.saturating_add(bytes));
    match send(&mut upload, &content(tag, length)[saved..end]).await {
        Ok(()) if bytes == usize::MAX => {
            upload.finish().await.unwrap();
            model.items.push_back((tag, length));
            model.resumable[number] = Some((tag, length, length, true));
        }
        Ok(()) if saves => {
            assert_eq!(upload.save().await, Ok(end as u64));
            model.resumable[number] = Some((tag, length, end, false));
        }
        Ok(()) => {}
        Err(error) => assert!(matches!(error, StoreError::DiskFull { .. }), "{error}"),
    }
}

fn blocks(bytes: usize) -> u64 {
    bytes.div_ceil(4096) as u64
}

async fn check(mut disk: RecordingDisk, executor: glass_lib_executor::Executor, operations: Vec<Operation>) {
    let mut store = open(&executor, disk.clone()).await;
    let mut model = Model::default();
    let mut uploads: [Option<Sending>; 4] = [const { None }; 4];
    let mut downloads: [Option<Reading>; 4] = [const { None }; 4];
    for operation in operations {
        match operation {
            Operation::Begin(place, length) => {
                uploads[place] = None;
                model.tags += 1;
                begin(&store, &model, &mut uploads, place, length);
            }
            Operation::Receive(place, bytes) => {
                if let Some(sending) = &mut uploads[place]
                    && let Err(error) = sending.receive(bytes).await
                {
                    // Others got the space that it had announced.
                    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
                    uploads[place] = None;
                }
            }
            Operation::Finish(place) => {
                let Some(sending) = uploads[place].take() else { continue };
                let (length, missing) = (sending.data.len(), sending.upload.missing_bytes());
                match sending.upload.finish().await {
                    Ok(_) => {
                        assert_eq!(missing, 0);
                        model.items.push_back((sending.tag, length));
                    }
                    Err(error) => {
                        let length = length as u64;
                        assert_eq!(error, StoreError::Short { length, received: length - missing });
                    }
                }
            }
            Operation::Abort(place) => uploads[place] = None,
            Operation::Fetch(place) => {
                let download = store.fetch();
                assert_eq!(download.is_some(), !model.items.is_empty());
                downloads[place] = download.map(|download| {
                    let (tag, length) = model.items[0];
                    Reading { download, tag, length }
                });
            }
            Operation::Drain(place) => {
                let Some(reading) = downloads[place].take() else { continue };
                assert!(drain(reading.download).await.unwrap() == content(reading.tag, reading.length));
            }
            Operation::RemoveRead(place) => {
                let Some(reading) = &downloads[place] else { continue };
                let found = model.items.iter().position(|(tag, _)| *tag == reading.tag);
                assert_eq!(store.remove(reading.download.entry().id).await, Ok(found.is_some()));
                found.map(|found| model.items.remove(found));
            }
            Operation::RemoveAt(place) => {
                let items = store.items_after(None, usize::MAX);
                let lengths = model.items.iter().map(|(_, length)| *length as u64);
                assert!(items.iter().map(|entry| entry.length).eq(lengths));
                if let Some(entry) = items.get(place) {
                    assert_eq!(store.remove(entry.id).await, Ok(true));
                    model.items.remove(place);
                }
            }
            Operation::RemoveHead => {
                let Some(head) = store.head() else { continue };
                assert_eq!(store.remove(head.id).await, Ok(true));
                model.items.pop_front();
            }
            Operation::BeginResumable(..) | Operation::Continue(..) | Operation::Complete(_) | Operation::Forget(_) => {
                check_resumable(&store, &mut model, operation).await;
            }
            Operation::Restart => {
                uploads = [const { None }; 4];
                downloads = [const { None }; 4];
                // The old service continues with a disk that is no longer checked.
                disk = RecordingDisk::new(disk.image(), 4096, model.tags, 3);
                store = open(&executor, disk.clone()).await;
            }
        }
        assert_eq!(store.usage().items, model.items.len());
    }
    drop((uploads, downloads));
    for upload in store.resumables() {
        assert_eq!(store.forget(&upload).await, Ok(()));
    }
    for (tag, length) in model.items {
        assert!(get(&store).await.unwrap().unwrap() == content(tag, length));
        assert_eq!(remove_head(&store).await, Ok(true));
    }
    // The store's own task frees the space of uploads that were dropped halfway.
    while store.usage().free_bytes < DATA_BYTES {
        store.changed().await;
    }
    let usage = store.usage();
    assert_eq!((usage.items, usage.free_bytes, usage.free_items), (0, usage.data_bytes, usage.items_max));
}

fn begin(store: &Store<RecordingDisk>, model: &Model, uploads: &mut [Option<Sending>; 4], place: usize, length: usize) {
    let free_bytes = store.usage().free_bytes;
    match store.upload(length as u64) {
        Ok(upload) => {
            // The missing space is taken from uploads that have not filled it.
            assert_eq!(store.usage().free_bytes, free_bytes.saturating_sub(blocks(length) * 4096));
            uploads[place] = Some(Sending { upload, tag: model.tags, data: content(model.tags, length) });
        }
        // More than five pieces cannot be named; with less than so many free blocks there may be.
        Err(error) => {
            assert_eq!(error, StoreError::DiskFull { wanted_bytes: length as u64, free_bytes });
            assert!(blocks(length) * 4096 > free_bytes || blocks(length) > 5);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_queue_is_a_list(operations in prop::collection::vec(operation(), 1..60), seed in any::<u64>()) {
        let disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, seed, 3);
        run(async move |executor| check(disk, executor, operations).await);
    }
}
