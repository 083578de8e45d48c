//! Uploads that are interrupted and continued, by the store's interface.

use crate::common::{RecordingDisk, content, get, open, remove_head, run, send};
use glass_lib_executor::Executor;
use std::rc::Rc;
use upload_queue::limits::{CHUNK_BYTES, SAVE_BYTES, resumable_max};
use upload_queue::{Resumable, Store, StoreError, Upload};

const NAME: [u8; 16] = [7; 16];
const DISK_BYTES: usize = 900 * 4096;
const LENGTH_MAX: u64 = 1 << 30;

type Queue = Store<RecordingDisk>;

async fn begin(store: &Queue, length: Option<u64>) -> Upload<RecordingDisk> {
    store.begin(NAME, length, LENGTH_MAX, 9).await.unwrap()
}

async fn resume(store: &Queue, known: &Rc<Resumable>) -> Result<Upload<RecordingDisk>, StoreError> {
    store.resume(known, LENGTH_MAX, 9).await
}

fn offset(store: &Queue) -> u64 {
    store.find(&NAME).expect("it is known").offset()
}

async fn restart(executor: &Executor, disk: &mut RecordingDisk) -> Queue {
    *disk = RecordingDisk::new(disk.image(), 4096, 2, 3);
    open(executor, disk.clone()).await
}

fn is_empty(store: &Queue) -> bool {
    let usage = store.usage();
    (usage.free_bytes, usage.free_items) == (usage.data_bytes, usage.items_max)
}

#[test]
fn an_upload_goes_on_where_it_was_interrupted_also_after_a_restart() {
    // Within a block, at its end, within a chunk and at its end.
    let cuts = [0, 1, 4095, 4096, 5000, 5001, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 7, 700_000, 700_001];
    for (is_announced, restarts) in [(true, false), (true, true), (false, false), (false, true)] {
        run(async move |executor| {
            let data = content(1, 700_001);
            let length = is_announced.then_some(data.len() as u64);
            let mut disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
            let mut store = open(&executor, disk.clone()).await;
            drop(begin(&store, length).await);
            for cut in cuts {
                if restarts {
                    store = restart(&executor, &mut disk).await;
                }
                let known = store.find(&NAME).unwrap();
                let mut upload = resume(&store, &known).await.unwrap();
                assert_eq!((upload.received_bytes(), known.length()), (known.offset(), length));
                send(&mut upload, &data[known.offset() as usize..cut]).await.unwrap();
                assert_eq!(upload.save().await, Ok(cut as u64));
                assert_eq!(offset(&store), cut as u64);
            }
            let known = store.find(&NAME).unwrap();
            let mut upload = resume(&store, &known).await.unwrap();
            if !is_announced {
                upload.end();
            }
            let id = upload.finish().await.unwrap();
            assert_eq!((known.item(), known.offset()), (Some(id), data.len() as u64));
            assert!(get(&store).await.unwrap().unwrap() == data);
        });
    }
}

/// tusd makes a second item there (tusd#1364).
#[test]
fn a_complete_upload_is_known_until_it_is_forgotten_and_makes_no_second_item() {
    run(async |executor| {
        let mut disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
        let mut store = open(&executor, disk.clone()).await;
        let mut upload = begin(&store, Some(5000)).await;
        send(&mut upload, &content(1, 5000)).await.unwrap();
        let id = upload.finish().await.unwrap();
        for is_removed in [false, true] {
            if is_removed {
                assert_eq!(remove_head(&store).await, Ok(true));
            }
            store = restart(&executor, &mut disk).await;
            let known = store.find(&NAME).unwrap();
            assert_eq!((known.item(), known.offset(), known.length()), (Some(id), 5000, Some(5000)));
            assert_eq!(resume(&store, &known).await.err(), Some(StoreError::UploadEnded));
            assert_eq!(store.usage().items, usize::from(!is_removed));
        }
        store.forget(&store.find(&NAME).unwrap()).await.unwrap();
        assert!(store.find(&NAME).is_none() && is_empty(&store));
        store = restart(&executor, &mut disk).await;
        assert!(store.find(&NAME).is_none() && is_empty(&store));
    });
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing() {
    run(async |executor| {
        let mut disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
        let mut store = open(&executor, disk.clone()).await;
        let mut upload = begin(&store, Some(500_000)).await;
        let known = upload.resumable().unwrap().clone();
        send(&mut upload, &content(1, 300_000)).await.unwrap();
        // It ends when the session has: its writes must not hit blocks of others.
        drop(upload);
        store.forget(&known).await.unwrap();
        assert!(known.is_forgotten() && store.find(&NAME).is_none() && is_empty(&store));
        assert_eq!(resume(&store, &known).await.err(), Some(StoreError::UploadEnded));
        store = restart(&executor, &mut disk).await;
        assert!(store.find(&NAME).is_none() && is_empty(&store) && store.usage().items == 0);
    });
}

#[test]
fn what_an_interrupted_session_did_not_save_is_written_again() {
    run(async |executor| {
        let disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
        let store = open(&executor, disk.clone()).await;
        let mut upload = begin(&store, Some(400_000)).await;
        let known = upload.resumable().unwrap().clone();
        send(&mut upload, &content(1, 5000)).await.unwrap();
        upload.save().await.unwrap();
        // Other bytes after those that were saved, up to the end, and then none.
        let mut upload = resume(&store, &known).await.unwrap();
        send(&mut upload, &content(9, 395_000)).await.unwrap();
        drop(upload);
        let mut upload = resume(&store, &known).await.unwrap();
        assert_eq!(upload.received_bytes(), 5000);
        let data = [content(1, 5000), content(2, 395_000)].concat();
        send(&mut upload, &data[5000..]).await.unwrap();
        upload.finish().await.unwrap();
        assert!(get(&store).await.unwrap().unwrap() == data);
    });
}

#[test]
fn progress_is_saved_beside_what_arrives() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 40 << 20]);
        let store = open(&executor, disk.clone()).await;
        let data = content(1, 3 * SAVE_BYTES as usize);
        let mut upload = begin(&store, Some(data.len() as u64)).await;
        send(&mut upload, &data[..data.len() - 1]).await.unwrap();
        // Without the end of a session.
        while offset(&store) == 0 {
            embassy_futures::yield_now().await;
        }
        let saved = offset(&store);
        assert!(saved >= SAVE_BYTES && saved.is_multiple_of(4096), "{saved}");
        let after = open(&executor, RecordingDisk::plain(disk.image())).await;
        let known = after.find(&NAME).unwrap();
        assert_eq!(known.offset(), saved);
        let mut rest = resume(&after, &known).await.unwrap();
        send(&mut rest, &data[saved as usize..]).await.unwrap();
        rest.finish().await.unwrap();
        assert!(get(&after).await.unwrap().unwrap() == data);
    });
}

#[test]
fn a_failed_save_leaves_what_was_acknowledged() {
    for (fails_write, good) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        run(async move |executor| {
            let mut disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
            let mut store = open(&executor, disk.clone()).await;
            let data = content(1, 300_000);
            let mut upload = begin(&store, Some(300_000)).await;
            let known = upload.resumable().unwrap().clone();
            send(&mut upload, &data[..5000]).await.unwrap();
            assert_eq!(upload.save().await, Ok(5000));
            for ends in [false, true] {
                let mut upload = resume(&store, &known).await.unwrap();
                let end = if ends { data.len() } else { 9000 };
                send(&mut upload, &data[5000..end]).await.unwrap();
                match fails_write {
                    // All data is written already when the upload ends.
                    true => disk.fail_writes_after(if ends { 0 } else { good }),
                    false => disk.fail_flushes_after(good),
                }
                let failed = if ends { upload.finish().await } else { upload.save().await };
                assert!(failed.is_err(), "write {fails_write} {good}, end {ends}");
                assert_eq!((known.offset(), known.item()), (5000, None));
                disk.fail_writes_after(u64::MAX);
                disk.fail_flushes_after(u64::MAX);
            }
            let mut upload = resume(&store, &known).await.unwrap();
            assert_eq!(upload.received_bytes(), 5000);
            send(&mut upload, &data[5000..]).await.unwrap();
            upload.finish().await.unwrap();
            store = restart(&executor, &mut disk).await;
            assert!(get(&store).await.unwrap().unwrap() == data);
            remove_head(&store).await.unwrap();
            store.forget(&store.find(&NAME).unwrap()).await.unwrap();
            assert!(is_empty(&store), "write {fails_write} {good}: {:?}", store.usage());
        });
    }
}

#[test]
fn saved_bytes_that_are_damaged_are_not_continued() {
    run(async |executor| {
        let mut disk = RecordingDisk::new(vec![0; DISK_BYTES], 512, 1, 3);
        let store = open(&executor, disk.clone()).await;
        let data = content(1, 50_000);
        let mut upload = begin(&store, Some(100_000)).await;
        send(&mut upload, &data).await.unwrap();
        upload.save().await.unwrap();
        disk.change_image(|image| {
            let place = image.windows(16).position(|window| window == &data[30_000..30_016]).unwrap();
            image[place] ^= 1;
        });
        let store = restart(&executor, &mut disk).await;
        let known = store.find(&NAME).unwrap();
        assert_eq!(resume(&store, &known).await.err(), Some(StoreError::DamagedUpload));
        // It can be given up then.
        store.forget(&known).await.unwrap();
        while !is_empty(&store) {
            store.changed().await;
        }
    });
}

#[test]
fn no_more_uploads_are_in_progress_than_the_index_has_space_for() {
    run(async |executor| {
        let store = open(&executor, RecordingDisk::new(vec![0; 200 * 4096], 512, 1, 3)).await;
        let count_max = resumable_max(store.usage().items_max);
        let begin = async |number: u8| store.begin([number; 16], Some(10), LENGTH_MAX, 9).await;
        for number in 0..count_max as u8 {
            begin(number).await.unwrap();
        }
        assert_eq!(begin(100).await.err(), Some(StoreError::TooManyUploads { count_max }));
        // One that is complete gives its place.
        let known = store.find(&[3; 16]).unwrap();
        let mut upload = resume(&store, &known).await.unwrap();
        send(&mut upload, b"0123456789").await.unwrap();
        upload.finish().await.unwrap();
        begin(100).await.unwrap();
        assert!(store.find(&[3; 16]).is_none() && store.find(&[100; 16]).is_some());
        assert_eq!((store.resumables().len(), store.usage().items), (count_max, 1));
    });
}
