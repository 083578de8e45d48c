//! A queue takes the space of a disk that has become larger, and a power cut at any moment of that leaves it whole.

use crate::common::site::{Site, content as bytes};
use crate::common::{Cutter, Event, RecordingDisk, Rng, content, drain, get, open, open_grown, put, remove_head, run};
use glass_platform_sim::SimBlock;
use std::cell::Cell;
use std::rc::Rc;
use upload_queue::format::{BLOCK_BYTES, IndexPlace, Layout, decode_superblock};
use upload_queue::{OpenError, Store, StoreError};

const SMALL: usize = 50 * BLOCK_BYTES;
const LARGE: usize = 70 * BLOCK_BYTES;
const MIB: usize = 1 << 20;

/// A disk whose 37 blocks of data have three items, with room for one more.
fn filled() -> Vec<u8> {
    let disk = RecordingDisk::plain(vec![0; SMALL]);
    let used = disk.clone();
    run(async move |executor| {
        let store = open(&executor, used).await;
        for tag in 0..3 {
            put(&store, &content(tag, 12 * BLOCK_BYTES), 1 << 20).await.unwrap();
        }
    });
    disk.image()
}

fn grown(mut image: Vec<u8>, bytes: usize) -> Vec<u8> {
    image.resize(bytes, 0x77);
    image
}

fn total_blocks(image: &[u8]) -> u32 {
    decode_superblock(image).unwrap().unwrap().place.total_blocks()
}

#[test]
fn a_larger_disk_is_used_on_request_only() {
    run(async |executor| {
        let disk = RecordingDisk::plain(grown(filled(), LARGE));
        let (store, recovery) = Store::open(disk.clone(), false).await.unwrap();
        assert_eq!((recovery.grown_bytes, recovery.unused_bytes, recovery.can_grow), (0, 20 * 4096, true));
        assert_eq!(store.usage().data_bytes, 37 * 4096);
        assert_eq!(total_blocks(&disk.image()), 50);
        let (store, recovery) = Store::open_and_grow(disk.clone()).await.unwrap();
        assert_eq!((recovery.grown_bytes, recovery.unused_bytes, recovery.can_grow), (20 * 4096, 0, false));
        let usage = store.usage();
        assert_eq!((usage.data_bytes, usage.free_bytes), (57 * 4096, 21 * 4096));
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).unwrap();
        // In the new space, and over its border.
        let data = content(9, 21 * BLOCK_BYTES);
        put(&store, &data, 1 << 20).await.unwrap();
        assert!(matches!(store.upload(1), Err(StoreError::DiskFull { .. })));
        // It stays so without the request, and does not grow twice.
        for again in [false, true] {
            let opened =
                if again { Store::open_and_grow(disk.clone()).await } else { Store::open(disk.clone(), false).await };
            let (store, recovery) = opened.unwrap();
            assert_eq!((recovery.items, recovery.grown_bytes, recovery.unused_bytes), (4, 0, 0));
            assert!(drain(store.fetch_item(4).unwrap()).await.unwrap() == data);
        }
        let mut shorter = disk.image();
        shorter.truncate(SMALL);
        let error = Store::open_and_grow(RecordingDisk::plain(shorter)).await.err().unwrap();
        assert_eq!(error, OpenError::Shrunk { queue_bytes: LARGE as u64, size_bytes: SMALL as u64 });
    });
}

/// The index moves to where there is room for one that is as large as that of a new queue.
#[test]
fn the_number_of_items_grows_with_the_disk() {
    run(async |executor| {
        let disk = RecordingDisk::plain(grown(filled(), 4 * MIB));
        let wanted = Layout::for_device(4 << 20).unwrap();
        assert_eq!(wanted.entries_max(), 252);
        let store = open_grown(&executor, disk.clone()).await;
        let blocks = 1024 - 1 - wanted.index_blocks();
        assert_eq!((store.usage().items_max, store.usage().data_bytes), (252, blocks * 4096));
        for number in 3..252 {
            put(&store, &content(number, 10_000), 1 << 20).await.unwrap();
        }
        assert_eq!(store.upload(0).err(), Some(StoreError::IndexFull { items_max: 252 }));
        let IndexPlace::Pages(layout) = decode_superblock(&disk.image()).unwrap().unwrap().place else { panic!() };
        assert!(layout.index_start > 13 && layout.pages_max == 4, "{layout:?}");
        let (store, recovery) = Store::open(disk, false).await.unwrap();
        assert_eq!(recovery.items, 252);
        assert!(drain(store.fetch_item(252).unwrap()).await.unwrap() == content(251, 10_000));
    });
}

#[test]
fn a_start_whose_superblock_cannot_be_written_fails_and_loses_nothing() {
    for seed in 0..20 {
        run(async move |executor| {
            let disk = RecordingDisk::new(grown(filled(), LARGE), 512, seed, 2);
            match seed % 2 {
                0 => disk.fail_writes_after(0),
                _ => disk.fail_flushes_after(0),
            }
            assert!(matches!(Store::open_and_grow(disk.clone()).await, Err(OpenError::Disk(_))));
            let store = open_grown(&executor, RecordingDisk::plain(disk.image())).await;
            assert_eq!((store.usage().items, store.usage().free_bytes), (3, 21 * 4096));
            put(&store, &content(3, 21 * BLOCK_BYTES), 1 << 20).await.unwrap();
        });
    }
}

/// Opens the disk after a cut, as it is or with growth, and removes all items. Returns them, in their order.
fn items_of(image: Vec<u8>, grow: bool, context: &str) -> Vec<Vec<u8>> {
    let context = context.to_owned();
    run(async move |executor| {
        let disk = RecordingDisk::plain(image);
        let opened = if grow { Store::open_and_grow(disk).await } else { Store::open(disk, false).await };
        let (store, _) = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
        let running = store.clone();
        executor.spawn("store", async move { running.run().await }).unwrap();
        let mut items = Vec::new();
        while let Some(data) = get(&store).await {
            items.push(data.unwrap_or_else(|error| panic!("{context}: {error}")));
            remove_head(&store).await.unwrap();
        }
        let usage = store.usage();
        assert_eq!((usage.free_bytes, usage.free_items), (usage.data_bytes, usage.items_max), "{context}: space leaks");
        assert!(!grow || usage.data_bytes == 57 * 4096, "{context}");
        items
    })
}

/// Blocks behind the old end are used from the first upload on, and no index may name them before the superblock is durable.
#[test]
fn a_power_cut_at_every_moment_of_growth_and_of_the_first_uploads_loses_nothing() {
    const CUTS: usize = 4;
    let before = grown(filled(), LARGE);
    let (mut old, mut new, mut cuts) = (0, 0, 0);
    for seed in 0..12 {
        let disk = RecordingDisk::new(before.clone(), if seed % 2 == 0 { 512 } else { 4096 }, seed, 1 + seed % 8);
        let recorded = disk.clone();
        // How many were answered by each event.
        let answered = Rc::new(Cell::new(Vec::new()));
        let list = answered.clone();
        run(async move |executor| {
            let store = open_grown(&executor, recorded.clone()).await;
            let mut moments = Vec::new();
            for tag in 3..6 {
                put(&store, &content(tag, 7 * BLOCK_BYTES - 10), 1 << 20).await.unwrap();
                moments.push(recorded.events().len());
            }
            list.set(moments);
        });
        let (answered, events) = (answered.take(), disk.events());
        let is_superblock = |event: &&Event| matches!(event, Event::Write { offset: 0, .. });
        assert_eq!(events.iter().filter(is_superblock).count(), 1, "one write makes a queue larger");
        let behind = |event: &Event| matches!(event, Event::Write { offset, .. } if *offset >= SMALL);
        assert!(events.iter().any(behind), "the new space is used");
        let (mut cutter, mut rng) = (Cutter::new(before.clone()), Rng(seed));
        for (moment, event) in events.iter().enumerate() {
            cutter.follow(event);
            for cut in 0..CUTS {
                let context = format!("seed {seed}, cut {cut} after event {moment} of {}", events.len());
                let image = cutter.cut(&mut rng);
                match total_blocks(&image) {
                    50 => old += 1,
                    70 => new += 1,
                    other => panic!("{context}: {other} blocks"),
                }
                let items = items_of(image, cut % 2 == 1, &context);
                let kept = 3 + answered.iter().filter(|answered| **answered <= moment + 1).count();
                assert!((kept..=6).contains(&items.len()), "{context}: {} items, {kept} were answered", items.len());
                for (tag, data) in items.iter().enumerate() {
                    let length = if tag < 3 { 12 * BLOCK_BYTES } else { 7 * BLOCK_BYTES - 10 };
                    assert!(*data == content(tag as u64, length), "{context}: item {tag} has other bytes");
                }
                cuts += 1;
            }
        }
    }
    assert!(old > 30 && new > 30 && cuts > 800, "{old} with the old superblock, {new} with the new one");
}

#[test]
fn the_service_grows_by_its_argument_and_states_it() {
    let mut site = Site::new(140, MIB as u64, &[]);
    site.run(async |client| assert_eq!(client.put(&bytes(1, 900_000)).await.status, 200));
    let image = grown(site.disk.image(), 2 * MIB + 512);
    let start = |image, args: &[&str]| {
        Site::with_disk(141, SimBlock::with_image(141, Default::default(), image), Default::default(), args)
    };
    let mut site = start(image.clone(), &[]);
    let remark = "upload-queue: the disk has 1049088 bytes more than the queue uses: --grow takes them";
    assert_eq!(site.server.console()[0], remark);
    assert_eq!(site.run(async |client| client.put(&bytes(2, 900_000)).await.status), 507);
    let mut site = start(image, &["--grow"]);
    let console = site.server.console();
    assert_eq!(console[0], "upload-queue: the queue has grown by 1048576 bytes");
    // Not whole blocks, so there is no advice.
    assert_eq!(console[1], "upload-queue: the disk has 512 bytes more than the queue uses");
    site.run(async |client| {
        assert_eq!(client.put(&bytes(2, 900_000)).await.status, 200);
        for tag in 1..3 {
            let reply = client.get().await;
            assert!(reply.body == bytes(tag, 900_000));
            assert_eq!(client.delete(&reply).await.status, 200);
        }
    });
}
