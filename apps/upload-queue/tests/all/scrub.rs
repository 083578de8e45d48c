//! The scrub: items that wait are read again, and damage is reported once.

use crate::common::site::{Client, Site, content};
use crate::common::{RecordingDisk, open, put, run};
use core::cell::RefCell;
use core::time::Duration;
use embassy_futures::poll_once;
use glass_platform_sim::{Faults, SimBlock};
use glasshouse::sync::Latch;
use glasshouse::{Block, BlockError, BlockInfo, Buf, Clock};
use std::rc::Rc;
use upload_queue::{Health, StoreError};

const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const READY: &str = "GET /readyz HTTP/1.1\r\nHost: q\r\n\r\n";

/// A figure of `/metrics`.
async fn figure(client: &Client, name: &str) -> u64 {
    let text = client.ask("GET /metrics HTTP/1.1\r\nHost: q\r\n\r\n").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("glass_queue_{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

/// Waits until the scrub has passed over all items so often.
async fn until_passes(client: &Client, count: u64) {
    let mut pause = Duration::from_secs(10);
    while figure(client, "scrub_passes_total").await < count {
        client.node.sleep(pause).await;
        pause = (2 * pause).min(Duration::from_secs(600));
    }
}

/// Runs `task` for some days at most.
fn for_days(site: &mut Site, task: impl AsyncFnOnce(Client) + 'static) {
    let (node, client) = (site.client.clone(), site.client());
    site.world.complete(&node, 10 * DAY, async move { task(client).await }).unwrap();
}

/// The same disk after a restart, with a byte changed at each of these places of `data`.
fn damaged(disk: &SimBlock, data: &[u8], places: &[usize]) -> SimBlock {
    let mut image = disk.image();
    let start = image.windows(16).position(|window| window == &data[..16]).expect("the item is on the disk");
    places.iter().for_each(|place| image[start + place] ^= 1);
    SimBlock::with_image(7, Default::default(), image)
}

fn restarted(seed: u64, disk: SimBlock, args: &[&str]) -> Site {
    Site::with_disk(seed, disk, Default::default(), args)
}

fn lines(site: &Site) -> Vec<String> {
    site.server.console().into_iter().filter(|line| line.contains("scrub: ")).collect()
}

#[test]
fn damage_is_reported_once_and_the_item_stays() {
    let mut site = Site::new(150, 4 * MIB, &[]);
    let items = [content(1, 300_000), content(2, 900_000), content(3, 100)];
    let sent = items.clone();
    site.run(async move |client| {
        for item in &sent {
            assert_eq!(client.put(item).await.status, 200);
        }
    });
    let mut site = restarted(151, damaged(&site.disk, &items[1], &[850_000]), &["--scrub", "1"]);
    let disk = site.disk.clone();
    for_days(&mut site, async move |client| {
        until_passes(&client, 1).await;
        // Eleven reads, of which each has a pause.
        assert!(client.node.now().0 < Duration::from_secs(30).as_nanos() as u64);
        assert_eq!(figure(&client, "scrub_bytes_total").await, 1_200_100);
        let found = (figure(&client, "items_damaged").await, figure(&client, "damage_found_total").await);
        assert_eq!(found, (1, 1));
        let page = client.ask("GET /status HTTP/1.1\r\nHost: q\r\n\r\n").await.text();
        assert!(page.contains("<dd class=problem>item 2<"), "{page}");
        assert!(page.contains("<dt>checked<dd>1.1 MiB since the start, complete passes: 1"), "{page}");
        assert_eq!(client.ask(READY).await.status, 200, "one item is not the disk");
        let reads = disk.counters().reads;
        client.node.sleep(DAY / 2).await;
        assert_eq!(disk.counters().reads, reads, "a pass a day");
        assert!(figure(&client, "scrub_age_seconds").await > 43_000);
        until_passes(&client, 3).await;
        assert_eq!(figure(&client, "damage_found_total").await, 1);
        assert!(figure(&client, "scrub_age_seconds").await <= 600);
        // The others are delivered, and a consumer removes it as always.
        let reply = client.get().await;
        assert!(reply.body == items[0]);
        client.delete(&reply).await;
        assert!(client.get().await.cut);
        assert_eq!(client.delete_matching("*").await.status, 200);
        assert_eq!(figure(&client, "items_damaged").await, 0);
        assert!(client.get().await.body == items[2]);
    });
    let lines = lines(&site);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("upload-queue: scrub: item 2 is damaged: its checksum was "), "{lines:?}");
}

#[test]
fn damage_that_a_download_found_is_no_news_for_the_scrub() {
    let mut site = Site::new(152, 4 * MIB, &[]);
    let item = content(1, 300_000);
    let sent = item.clone();
    site.run(async move |client| assert_eq!(client.put(&sent).await.status, 200));
    let disk = damaged(&site.disk, &item, &[0]);
    let mut site = restarted(153, disk.restart(1), &[]);
    site.run(async |client| {
        assert!(client.get().await.cut);
        assert_eq!((figure(&client, "items_damaged").await, figure(&client, "damage_found_total").await), (1, 1));
        let text = client.ask("GET /metrics HTTP/1.1\r\nHost: q\r\n\r\n").await.text();
        assert!(!text.contains("glass_queue_scrub"), "{text}");
    });
    let mut site = restarted(154, site.disk.restart(1), &["--scrub=1"]);
    for_days(&mut site, async |client| {
        // Before the scrub has read all of it.
        assert!(client.get().await.cut);
        until_passes(&client, 2).await;
    });
    assert!(lines(&site).is_empty(), "{:?}", lines(&site));
}

#[test]
fn every_item_is_checked_and_new_ones_by_the_next_pass() {
    const ITEMS: u64 = 200;
    let mut site = Site::new(155, 4 * MIB, &["--scrub=1"]);
    let disk = site.disk.clone();
    for_days(&mut site, async move |client| {
        until_passes(&client, 1).await;
        let mut peer = client.connect().await;
        for tag in 0..ITEMS {
            peer.send(crate::common::site::put_request(&content(tag, 1000 + tag as usize))).await;
            assert_eq!(peer.reply().await.status, 200);
        }
        assert_eq!(figure(&client, "scrub_bytes_total").await, 0, "the queue was empty");
        let (reads, begun) = (disk.counters().reads, client.node.now());
        until_passes(&client, 2).await;
        let sum: u64 = (0..ITEMS).map(|tag| 1000 + tag).sum();
        assert_eq!((figure(&client, "scrub_bytes_total").await, disk.counters().reads - reads), (sum, ITEMS));
        // Eight reads a second at most.
        assert!(client.node.now() - begun > Duration::from_millis(125 * ITEMS));
    });
}

#[test]
fn an_item_that_is_removed_while_it_is_read_is_no_damage() {
    const BYTES: usize = 1_200_000;
    for round in 0..20 {
        let mut site = Site::new(300 + round, 2 * MIB, &[]);
        site.run(async move |client| assert_eq!(client.put(&content(1, BYTES)).await.status, 200));
        let mut site = restarted(400 + round, site.disk.restart(round), &["--scrub=1"]);
        site.run(async move |client| {
            while figure(&client, "scrub_bytes_total").await < round * BYTES as u64 / 20 {
                client.node.sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(figure(&client, "scrub_passes_total").await, 0, "it is being read");
            assert_eq!(client.delete_matching("*").await.status, 200);
            // There is no room for two, so this one has its blocks, and they are free at once.
            assert_eq!(client.put(&content(2, BYTES)).await.status, 200);
            until_passes(&client, 1).await;
            assert!(figure(&client, "scrub_bytes_total").await <= (round + 3) * BYTES as u64 / 20);
            assert_eq!(figure(&client, "damage_found_total").await, 0);
            assert_eq!(client.ask(READY).await.status, 200);
        });
        assert!(lines(&site).is_empty(), "round {round}: {:?}", lines(&site));
    }
}

/// A disk whose reads wait once it is closed, and read what is there when it is open.
#[derive(Clone)]
struct Gate {
    disk: RecordingDisk,
    open: Rc<RefCell<Option<Latch>>>,
}

impl Block for Gate {
    fn info(&self) -> BlockInfo {
        self.disk.info()
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let gate = self.open.borrow().clone();
        if let Some(gate) = gate {
            gate.wait().await;
        }
        self.disk.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        self.disk.write(offset, buf).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.disk.flush().await
    }
}

#[test]
fn what_a_read_returns_of_blocks_with_a_new_owner_is_not_used() {
    run(async |executor| {
        let disk = Gate { disk: RecordingDisk::plain(vec![0; 26 * 4096]), open: Rc::default() };
        let store = open(&executor, disk.clone()).await;
        let free = store.usage().free_bytes as usize;
        let old = put(&store, &vec![1; free], 1 << 20).await.unwrap();
        let entry = store.item(old).unwrap();
        let gate = Latch::new();
        *disk.open.borrow_mut() = Some(gate.clone());
        let mut check = Box::pin(store.check_item(&entry, async |_| {}));
        assert!(poll_once(check.as_mut()).is_pending());
        // The scrub holds no space: the next item gets these blocks at once.
        assert_eq!(store.remove(old).await, Ok(true));
        let new = put(&store, &vec![2; free], 1 << 20).await.unwrap();
        gate.open();
        assert_eq!(check.await, None);
        let entry = store.item(new).unwrap();
        assert_eq!(store.check_item(&entry, async |_| {}).await, Some(Ok(())));
        disk.disk.change_image(|image| image[17 * 4096] ^= 1);
        let result = store.check_item(&entry, async |_| {}).await;
        assert!(matches!(result, Some(Err(StoreError::Damaged { .. }))), "{result:?}");
        assert!(store.damaged().is_empty() && store.health() == Health::Good, "who reads decides what to report");
    });
}

#[test]
fn an_item_that_cannot_be_read_is_reported_and_is_whole_again_when_it_can() {
    let mut site = Site::new(157, 4 * MIB, &[]);
    let item = content(2, 50_000);
    let sent = item.clone();
    site.run(async move |client| {
        for data in [&content(1, 50_000), &sent, &content(3, 50_000)] {
            assert_eq!(client.put(data).await.status, 200);
        }
    });
    let image = site.disk.image();
    let place = image.windows(16).position(|window| window == &item[..16]).unwrap() as u64;
    let mut site = restarted(158, site.disk.restart(1), &["--scrub=1"]);
    let disk = site.disk.clone();
    let sector = place..place + 1;
    disk.set_faults(Faults { read_ranges: vec![sector], ..Faults::default() });
    for_days(&mut site, async move |client| {
        until_passes(&client, 2).await;
        assert_eq!((figure(&client, "items_damaged").await, figure(&client, "damage_found_total").await), (1, 1));
        assert_eq!(client.ask(READY).await.status, 200, "the disk works, as a commit has shown");
        let failed = disk.counters().faults;
        // Twice when it was new, and once by the second pass.
        assert_eq!(failed, 3);
        disk.set_faults(Faults::default());
        until_passes(&client, 3).await;
        assert_eq!((figure(&client, "items_damaged").await, figure(&client, "damage_found_total").await), (0, 1));
    });
    let lines = lines(&site);
    assert_eq!(
        lines,
        [
            "upload-queue: scrub: item 2 cannot be read: the disk failed: the device reported error 5",
            "upload-queue: scrub: item 2 can be read again, and is whole"
        ]
    );
}

#[test]
fn a_disk_that_is_away_is_not_taken_for_damage() {
    let mut site = Site::new(159, 4 * MIB, &[]);
    site.run(async move |client| {
        for tag in 0..20 {
            assert_eq!(client.put(&content(tag, 5000)).await.status, 200);
        }
    });
    let mut site = restarted(160, site.disk.restart(1), &["--scrub=1"]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        client.node.sleep(Duration::from_secs(1)).await;
        assert_eq!(figure(&client, "scrub_passes_total").await, 0);
        let all = 0..4 * MIB;
        disk.set_faults(Faults { read_ranges: vec![all], ..Faults::default() });
        client.node.sleep(Duration::from_secs(600)).await;
        assert_eq!((client.ask(READY).await.status, figure(&client, "damage_found_total").await), (503, 0));
        disk.set_faults(Faults::default());
        while client.ask(READY).await.status == 503 {}
        until_passes(&client, 1).await;
        assert_eq!(
            (figure(&client, "damage_found_total").await, figure(&client, "scrub_bytes_total").await),
            (0, 100_000)
        );
    });
    assert!(lines(&site).is_empty(), "{:?}", lines(&site));
}

/// Its reads have a sixteenth of the disk's time at most.
#[test]
fn a_slow_disk_is_read_less_often() {
    let mut site = Site::new(161, 4 * MIB, &[]);
    site.run(async move |client| assert_eq!(client.put(&content(1, 2_000_000)).await.status, 200));
    let mut site = restarted(162, site.disk.restart(1), &["--scrub=1"]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        disk.set_faults(Faults { slower_by: Duration::from_secs(1), ..Faults::default() });
        client.node.sleep(Duration::from_secs(1)).await;
        let reads = disk.counters().reads;
        client.node.sleep(Duration::from_secs(160)).await;
        let done = disk.counters().reads - reads;
        assert!((9..=11).contains(&done), "{done} reads in 160 s");
        // As long as one that is paused with its VM: the pause has a bound.
        disk.set_faults(Faults { slower_by: Duration::from_secs(20), ..Faults::default() });
        client.node.sleep(Duration::from_secs(100)).await;
        let reads = disk.counters().reads;
        client.node.sleep(Duration::from_secs(240)).await;
        let done = disk.counters().reads - reads;
        assert!((2..=4).contains(&done), "{done} reads in 240 s");
    });
}
