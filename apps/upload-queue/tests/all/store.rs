//! The store's interface, on a disk in memory.

use crate::common::{DISCARDED, Event, RecordingDisk, content, drain, get, open, put, remove_head, run};
use core::future::pending;
use embassy_futures::poll_once;
use glasshouse::future::join_array;
use glasshouse::{Block, BlockError, BlockInfo, Buf};
use std::cell::Cell;
use std::rc::Rc;
use upload_queue::limits::{CHUNK_BYTES, CHUNKS_PER_TRANSFER};
use upload_queue::{OpenError, Store, StoreError, Upload};

const SMALL: usize = 26 * 4096;

fn disk(bytes: usize) -> RecordingDisk {
    RecordingDisk::new(vec![0; bytes], 512, 1, 3)
}

/// A disk that counts reads and writes, and answers none of them once it is stuck.
#[derive(Clone)]
struct StuckDisk {
    disk: RecordingDisk,
    is_stuck: Rc<Cell<bool>>,
    requests: Rc<Cell<usize>>,
}

impl StuckDisk {
    async fn request(&self) {
        self.requests.set(self.requests.get() + 1);
        if self.is_stuck.get() {
            pending().await
        }
    }
}

impl Block for StuckDisk {
    fn info(&self) -> BlockInfo {
        self.disk.info()
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        self.request().await;
        self.disk.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        self.request().await;
        self.disk.write(offset, buf).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.disk.flush().await
    }
}

#[test]
fn a_transfer_holds_no_more_chunks_than_its_bound() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 40 * CHUNK_BYTES]);
        let disk = StuckDisk { disk, is_stuck: Rc::default(), requests: Rc::default() };
        let store = open(&executor, disk.clone()).await;
        put(&store, &content(1, 10 * CHUNK_BYTES), 1 << 20).await.unwrap();
        disk.is_stuck.set(true);
        disk.requests.set(0);
        let mut download = store.fetch().unwrap();
        assert!(poll_once(download.next()).is_pending());
        assert_eq!(disk.requests.take(), CHUNKS_PER_TRANSFER);
        let mut upload = store.upload(10 * CHUNK_BYTES as u64).unwrap();
        for _ in 0..CHUNKS_PER_TRANSFER {
            upload.receive(async |space| Ok::<usize, ()>(space.len())).await.unwrap().unwrap();
        }
        assert!(poll_once(upload.receive(async |space| Ok::<usize, ()>(space.len()))).is_pending());
        assert_eq!(disk.requests.take(), CHUNKS_PER_TRANSFER);
    });
}

#[test]
fn a_download_tells_how_much_of_it_is_left() {
    run(async |executor| {
        let store = open(&executor, RecordingDisk::plain(vec![0; 610 * 4096])).await;
        put(&store, &content(1, 200_000), 1 << 20).await.unwrap();
        let mut download = store.fetch().unwrap();
        assert_eq!(download.bytes_left(), 200_000);
        let first = download.next().await.unwrap().unwrap().len();
        assert_eq!(download.bytes_left(), 200_000 - first as u64);
        while download.next().await.unwrap().is_some() {}
        assert_eq!(download.bytes_left(), 0);
    });
}

#[test]
fn an_upload_of_unknown_length_that_ends_with_a_chunk_writes_no_other() {
    for chunks in 0..2 {
        run(async move |executor| {
            let disk = disk(310 * 4096);
            let store = open(&executor, disk.clone()).await;
            let writes = || disk.events().iter().filter(|event| matches!(event, Event::Write { .. })).count();
            let before = writes();
            let mut upload = store.upload_of_unknown_length(1 << 20).unwrap();
            for _ in 0..chunks {
                upload.receive(async |space| Ok::<usize, ()>(space.len())).await.unwrap().unwrap();
            }
            assert_eq!(upload.receive(async |_| Ok::<usize, ()>(0)).await, Ok(Ok(0)));
            assert!(upload.is_open());
            upload.end();
            assert!(!upload.is_open());
            upload.finish().await.unwrap();
            assert_eq!(writes() - before, chunks + 1, "the chunks and the index");
            assert_eq!(store.head().unwrap().length, (chunks * CHUNK_BYTES) as u64);
        });
    }
}

#[test]
fn fills_up_and_works_again_when_drained() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let free = store.usage().free_bytes;
        assert_eq!(free, 13 * 4096);
        for round in 0..3 {
            for n in 0..6 {
                put(&store, &content(n, 5371), 1000).await.unwrap();
            }
            let error = put(&store, &content(9, 5371), 1000).await.unwrap_err();
            assert_eq!(error, StoreError::DiskFull { wanted_bytes: 5371, free_bytes: 4096 }, "round {round}");
            for n in 0..6 {
                assert_eq!(get(&store).await.unwrap().unwrap(), content(n, 5371));
                assert_eq!(remove_head(&store).await, Ok(true));
            }
            assert_eq!(store.usage().free_bytes, free);
        }
    });
}

#[test]
fn the_space_of_removed_items_is_discarded_if_nobody_reads_it() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 310 * 4096]);
        let store = open(&executor, disk.clone()).await;
        store.discard_removed();
        let holds = |data: &[u8]| disk.image().windows(data.len()).any(|window| window == data);
        let discarded = || disk.image().iter().filter(|&&byte| byte == DISCARDED).count();
        let items = [3, 4, 5].map(|n| content(n, 10_000));
        for data in &items {
            put(&store, data, 10_000).await.unwrap();
        }
        let before = discarded();
        assert_eq!(remove_head(&store).await, Ok(true));
        assert!(!holds(&items[0]) && holds(&items[1]) && holds(&items[2]));
        // Whole blocks, and nothing of what a random byte looks like.
        assert!((3 * 4096 - 100..=3 * 4096).contains(&(discarded() - before)), "{}", discarded() - before);
        let download = store.fetch().unwrap();
        assert_eq!(remove_head(&store).await, Ok(true));
        let data = drain(download).await.unwrap();
        assert_eq!(data, items[1]);
        assert_eq!(get(&store).await.unwrap().unwrap(), items[2]);
    });
}

/// Receives so much of an upload.
async fn receive<B: Block>(upload: &mut Upload<B>, mut bytes: usize) {
    while bytes > 0 {
        let read = async |space: &mut [u8]| Ok::<usize, ()>(space.len().min(bytes));
        bytes -= upload.receive(read).await.unwrap().unwrap();
    }
}

#[test]
fn data_are_flushed_before_the_end_of_a_long_upload() {
    for fails in [false, true] {
        run(async move |executor| {
            let disk = disk(1010 * 4096);
            let store = open(&executor, disk.clone()).await;
            store.set_early_flush_bytes(2 * CHUNK_BYTES as u64);
            let flushes = || {
                let is_flush = |event: &&Event| matches!(event, Event::Flush { .. } | Event::FlushFailed);
                disk.events().iter().filter(is_flush).count()
            };
            let before = flushes();
            if fails {
                disk.fail_flushes_after(0);
            }
            let mut upload = store.upload(10 * CHUNK_BYTES as u64).unwrap();
            receive(&mut upload, 2 * CHUNK_BYTES).await;
            assert_eq!(flushes(), before);
            receive(&mut upload, 5 * CHUNK_BYTES).await;
            while flushes() == before {
                embassy_futures::yield_now().await;
            }
            // A flush that succeeds later does not bring back what this one has lost.
            disk.fail_flushes_after(u64::MAX);
            receive(&mut upload, 3 * CHUNK_BYTES).await;
            let added = upload.finish().await;
            match fails {
                true => assert_eq!(added, Err(StoreError::Lost)),
                false => assert!(added.is_ok() && flushes() >= before + 3, "{added:?}, {} flushes", flushes()),
            }
        });
    }
}

#[test]
fn the_order_is_that_of_completion() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let first = store.upload(0).unwrap();
        let second = store.upload(0).unwrap();
        put(&store, b"third", 9).await.unwrap();
        let second = second.finish().await.unwrap();
        let first = first.finish().await.unwrap();
        assert_eq!(get(&store).await.unwrap().unwrap(), b"third");
        remove_head(&store).await.unwrap();
        for id in [second, first] {
            assert_eq!(store.head().unwrap().id, id);
            assert_eq!(get(&store).await.unwrap().unwrap(), b"");
            remove_head(&store).await.unwrap();
        }
        assert!(store.fetch().is_none());
    });
}

#[test]
fn an_upload_of_the_wrong_size_leaves_nothing() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let before = store.usage();
        let mut upload = store.upload(10).unwrap();
        let read = async |space: &mut [u8]| {
            assert_eq!(space.len(), 10, "there is no room for more than was announced");
            space[..4].copy_from_slice(b"four");
            Ok::<usize, ()>(4)
        };
        upload.receive(read).await.unwrap().unwrap();
        assert_eq!(upload.missing_bytes(), 6);
        assert_eq!(upload.finish().await, Err(StoreError::Short { length: 10, received: 4 }));
        assert_eq!(store.usage(), before);
    });
}

#[test]
fn only_what_was_finished_survives_a_restart() {
    run(async |executor| {
        let disk = disk(SMALL);
        let store = open(&executor, disk.clone()).await;
        put(&store, b"whole", 5).await.unwrap();
        let mut partial = store.upload(20_000).unwrap();
        partial.receive(async |space| Ok::<usize, ()>(space.len() / 2)).await.unwrap().unwrap();
        for sector_bytes in [512, 4096] {
            // The layout does not depend on the sector size.
            let again = RecordingDisk::new(disk.image(), sector_bytes, 1, 3);
            let (store, recovery) = Store::open(again, false).await.unwrap();
            assert_eq!((recovery.items, recovery.formatted, recovery.broken_slot), (1, false, None));
            assert_eq!(get(&store).await.unwrap().unwrap(), b"whole");
            assert_eq!((store.usage().free_bytes, store.usage().free_items), (12 * 4096, 62));
        }
        drop(partial);
    });
}

#[test]
fn a_removal_names_its_item_and_happens_once() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let first = put(&store, b"1", 1).await.unwrap();
        let second = put(&store, b"2", 1).await.unwrap();
        let third = put(&store, b"3", 1).await.unwrap();
        assert_eq!(store.remove(second).await, Ok(true));
        assert_eq!(store.remove(second).await, Ok(false));
        assert_eq!((store.item(second), store.item(first).map(|entry| entry.id)), (None, Some(first)));
        assert_eq!(get(&store).await.unwrap().unwrap(), b"1");
        assert_eq!(store.remove(first).await, Ok(true));
        assert_eq!(get(&store).await.unwrap().unwrap(), b"3");
        assert_eq!(store.remove(third).await, Ok(true));
        assert_eq!(store.usage().items, 0);
    });
}

#[test]
fn a_removed_item_stays_whole_for_its_readers() {
    run(async |executor| {
        let store = open(&executor, RecordingDisk::plain(vec![0; 610 * 4096])).await;
        let free = store.usage().free_bytes;
        let data = content(1, 590 * 4096);
        put(&store, &data, 1 << 20).await.unwrap();
        let reader = store.fetch().unwrap();
        assert_eq!(remove_head(&store).await, Ok(true));
        assert!(store.fetch().is_none());
        assert!(matches!(store.upload(100 * 4096), Err(StoreError::DiskFull { .. })));
        put(&store, &content(2, 2 * 4096), 1 << 20).await.unwrap();
        assert!(drain(reader).await.unwrap() == data);
        assert_eq!(store.usage().free_bytes, free - 2 * 4096);
        put(&store, &content(3, 585 * 4096), 1 << 20).await.unwrap();
    });
}

#[test]
fn many_changes_share_a_commit() {
    run(async |executor| {
        let disk = RecordingDisk::new(vec![0; SMALL * 10], 512, 1, 40);
        let store = open(&executor, disk.clone()).await;
        let (flushes, commits) = (disk.flushes(), store.usage().commits);
        for n in 0..50 {
            let store = store.clone();
            executor.spawn("put", async move { assert!(put(&store, &content(n, 100), 100).await.is_ok()) }).unwrap();
        }
        while store.usage().items < 50 {
            store.changed().await;
        }
        let commits = store.usage().commits - commits;
        assert!(commits < 12, "{commits} commits");
        // The first data has a flush of its own, all other the one of the commit before.
        assert_eq!(disk.flushes() - flushes, commits + 1);
    });
}

/// A flush waits for the last writes of uploads.
#[test]
fn uploads_whose_last_writes_are_in_flight_share_the_first_flush() {
    for seed in 0..20 {
        run(async move |executor| {
            let disk = RecordingDisk::new(vec![0; SMALL * 10], 512, seed, 40);
            let store = open(&executor, disk.clone()).await;
            let (flushes, commits) = (disk.flushes(), store.usage().commits);
            let uploads: [_; 5] = std::array::from_fn(|_| put(&store, b"1", 1));
            assert!(join_array(uploads).await.iter().all(Result::is_ok));
            let done = (disk.flushes() - flushes, store.usage().commits - commits);
            assert_eq!(done, (2, 1), "seed {seed}: flushes and commits");
        });
    }
}

#[test]
fn an_abandoned_upload_keeps_its_space_until_its_writes_are_done() {
    run(async |executor| {
        let disk = RecordingDisk::new(vec![0; 310 * 4096], 512, 1, 1000);
        let store = open(&executor, disk.clone()).await;
        let free = store.usage().free_bytes;
        let mut upload = store.upload(free).unwrap();
        for _ in 0..4 {
            upload.receive(async |space| Ok::<usize, ()>(space.len())).await.unwrap().unwrap();
        }
        drop(upload);
        assert_eq!(store.usage().free_bytes, 0);
        while store.usage().free_bytes != free {
            store.changed().await;
        }
    });
}

#[test]
fn a_removal_survives_the_loss_of_its_client() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let id = put(&store, b"1", 1).await.unwrap();
        assert!(poll_once(store.remove(id)).is_pending());
        // A removal that finds nothing still waits for those before it.
        let commits = store.usage().commits;
        assert_eq!(store.remove(id).await, Ok(false));
        assert_eq!(store.usage().commits, commits + 1);
        assert_eq!(store.usage().free_bytes, 13 * 4096);
    });
}

#[test]
fn the_index_has_a_bound() {
    run(async |executor| {
        let store = open(&executor, disk(SMALL)).await;
        let items_max = store.usage().items_max;
        assert_eq!(items_max, 63);
        for _ in 0..items_max - 1 {
            put(&store, b"", 1).await.unwrap();
        }
        let underway = store.upload(0).unwrap();
        assert_eq!(store.upload(0).err(), Some(StoreError::IndexFull { items_max: 63 }));
        underway.finish().await.unwrap();
        assert_eq!(store.upload(0).err(), Some(StoreError::IndexFull { items_max: 63 }));
        get(&store).await.unwrap().unwrap();
        remove_head(&store).await.unwrap();
        put(&store, b"", 1).await.unwrap();
    });
}

#[test]
fn damaged_data_never_comes_out_whole() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 610 * 4096]);
        let store = open(&executor, disk.clone()).await;
        let data = content(1, 500_000);
        put(&store, &data, 1 << 20).await.unwrap();
        for place in [0, 131_072, 499_999] {
            let start = 15 * 4096;
            assert_eq!(disk.image()[start..start + 8], data[..8]);
            disk.change_image(|image| image[start + place] ^= 4);
            let mut download = store.fetch().unwrap();
            let mut received = 0;
            let error = loop {
                match download.next().await {
                    Ok(Some(chunk)) => received += chunk.len(),
                    Ok(None) => panic!("the damage at {place} was not noticed"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::Damaged { id: 1, .. }));
            assert!(received < data.len());
            disk.change_image(|image| image[start + place] ^= 4);
        }
        assert!(get(&store).await.unwrap().unwrap() == data);
    });
}

#[test]
fn a_failed_write_of_data_fails_that_upload_only() {
    run(async |executor| {
        let disk = disk(SMALL);
        let store = open(&executor, disk.clone()).await;
        let before = store.usage();
        disk.fail_writes_after(0);
        assert!(matches!(put(&store, b"1", 1).await, Err(StoreError::Disk(_))));
        disk.fail_writes_after(u64::MAX);
        assert_eq!(store.usage(), before);
        put(&store, b"2", 1).await.unwrap();
    });
}

#[test]
fn a_queue_whose_beginning_was_erased_is_not_formatted() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 4 << 20]);
        let store = open(&executor, disk.clone()).await;
        put(&store, &content(1, 3 << 20), 1 << 20).await.unwrap();
        let mut image = disk.image();
        image[..1 << 20].fill(0);
        let error = Store::open(RecordingDisk::plain(image), false).await.err().unwrap();
        assert_eq!(error, OpenError::Foreign { offset: 1 << 20 });
    });
}

#[test]
fn disks_that_cannot_be_a_queue_are_refused() {
    run(async |_| {
        let error = Store::open(disk(13 * 4096), false).await.err().unwrap();
        assert_eq!(error, OpenError::TooSmall { size_bytes: 13 * 4096 });
        let image_with = |place: usize| {
            let mut image = vec![0; 4 << 20];
            image[place] = 1;
            image
        };
        let places = [0, 1024, 65_600, 1_048_575, 1_310_719, 3 << 20, 3_940_000, (4 << 20) - 1];
        let images = places.map(|place| (place, image_with(place))).into_iter();
        for (place, image) in images.chain([(0, vec![7; 4 << 20])]) {
            let error = Store::open(RecordingDisk::plain(image.clone()), false).await.err().unwrap();
            assert_eq!(error, OpenError::Foreign { offset: place as u64 });
            assert!(error.to_string().contains("--format"), "{error}");
            let (_, recovery) = Store::open(RecordingDisk::plain(image), true).await.unwrap();
            assert!(recovery.formatted);
        }
        let good = disk(4 << 20);
        Store::open(good.clone(), false).await.unwrap();
        let mut shorter = good.image();
        shorter.truncate(2 << 20);
        let error = Store::open(RecordingDisk::plain(shorter), false).await.err().unwrap();
        assert_eq!(error, OpenError::Shrunk { queue_bytes: 4 << 20, size_bytes: 2 << 20 });
        let mut longer = good.image();
        longer.resize(5 << 20, 7);
        let (_, recovery) = Store::open(RecordingDisk::plain(longer), false).await.unwrap();
        assert_eq!(recovery.unused_bytes, 1 << 20);
    });
}

#[test]
fn data_in_the_middle_of_a_disk_is_found() {
    run(async |_| {
        for sample in [5, 10, 15] {
            let mut image = vec![0; 16 << 20];
            image[sample << 20] = 1;
            let error = Store::open(RecordingDisk::plain(image), false).await.err().unwrap();
            assert_eq!(error, OpenError::Foreign { offset: (sample as u64) << 20 });
        }
    });
}
