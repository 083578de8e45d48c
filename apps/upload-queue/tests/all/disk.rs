//! A disk that does not answer, cannot be read, or is changed by another program while the service uses it.

use crate::common::site::{Client, Site, content, put_head};
use crate::common::{RecordingDisk, get, open, put, run};
use core::ops::Range;
use core::time::Duration;
use glass_platform_sim::Faults;
use glasshouse::{Clock, Spawn};
use upload_queue::limits::{CHUNK_BYTES, CHUNKS_PER_TRANSFER, DISK_ANSWER_TIME, SMALL_BYTES, UPLOADS_MAX};
use upload_queue::{Health, StoreError};

const MIB: u64 = 1 << 20;
const READY: &str = "GET /readyz HTTP/1.1\r\nHost: q\r\n\r\n";
const HEALTHY: &str = "GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n";
const GET: &str = "GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n";

async fn ready(client: &Client) -> (u16, String) {
    let reply = client.ask(READY).await;
    (reply.status, reply.text())
}

#[test]
fn a_disk_that_does_not_answer_is_not_ready_until_it_does() {
    let mut site = Site::new(40, 4 * MIB, &[]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        assert_eq!(ready(&client).await, (200, "ready\n".into()));
        disk.set_faults(Faults { slower_by: 2 * DISK_ANSWER_TIME, ..Faults::default() });
        let (began, own) = (client.node.now(), client.clone());
        let put = async move { assert_eq!(own.put(b"late").await.status, 200) };
        let put = client.node.spawn("put", put).unwrap();
        while client.node.now() - began < DISK_ANSWER_TIME - Duration::from_millis(100) {
            assert_eq!(ready(&client).await.0, 200);
            client.node.sleep(Duration::from_millis(50)).await;
        }
        client.node.sleep(Duration::from_secs(1)).await;
        let reply = client.ask(READY).await;
        let text = reply.text();
        assert_eq!((reply.status, text.as_str()), (503, "the disk has not answered for 5 s\n"));
        assert_eq!(reply.header("Retry-After"), Some("1"));
        assert_eq!(client.ask(HEALTHY).await.status, 200, "the service itself answers");
        disk.set_faults(Faults::default());
        put.await.unwrap();
        assert_eq!(ready(&client).await.0, 200);
    });
}

#[test]
fn a_disk_that_cannot_be_read_is_not_written_until_it_can() {
    let mut site = Site::new(41, 4 * MIB, &[]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        assert_eq!(client.put(&content(1, 50_000)).await.status, 200);
        let all: Range<u64> = 0..4 * MIB;
        disk.set_faults(Faults { read_ranges: vec![all], ..Faults::default() });
        assert_eq!(client.get().await.status, 500);
        // The check of the disk takes a moment.
        while !ready(&client).await.1.contains("so nothing is written until it can") {}
        let writes = disk.counters().writes;
        let reply = client.put(b"nowhere").await;
        assert_eq!((reply.status, reply.text().contains("the device reported error 5")), (500, true), "{reply:?}");
        assert_eq!(client.delete_matching("*").await.status, 500);
        assert_eq!(disk.counters().writes, writes);
        disk.set_faults(Faults::default());
        // A probe is all that it takes.
        while ready(&client).await.0 == 503 {}
        assert_eq!(client.put(b"here").await.status, 200);
        assert!(client.get().await.body == content(1, 50_000));
    });
}

#[test]
fn a_failed_write_is_not_ready_until_a_commit_succeeds() {
    let mut site = Site::new(42, 4 * MIB, &[]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        disk.set_faults(Faults { flush_every: Some(1), ..Faults::default() });
        assert_eq!(client.put(b"lost").await.status, 500);
        for _ in 0..5 {
            let (status, text) = ready(&client).await;
            assert_eq!((status, text.contains("the disk failed: ")), (503, true), "{text}");
            client.node.sleep(Duration::from_secs(1)).await;
        }
        disk.set_faults(Faults::default());
        while ready(&client).await.0 == 503 {}
        assert_eq!(client.ask(GET).await.status, 204, "the commit of the check adds nothing");
    });
}

#[test]
fn one_damaged_item_stops_no_other_one() {
    run(async |executor| {
        let disk = RecordingDisk::plain(vec![0; 64 * 4096]);
        let store = open(&executor, disk.clone()).await;
        let damaged = put(&store, &content(1, 5000), 5000).await.unwrap();
        let at = disk.image().windows(8).position(|bytes| bytes == &content(1, 8)[..]).unwrap();
        disk.change_image(|image| image[at] ^= 1);
        assert!(matches!(get(&store).await, Some(Err(StoreError::Damaged { .. }))));
        let second = put(&store, b"second", 6).await.unwrap();
        assert_eq!((store.remove(damaged).await, store.health()), (Ok(true), Health::Good));
        assert_eq!(store.head().map(|entry| entry.id), Some(second));
    });
}

#[test]
fn a_disk_that_another_program_has_overwritten_is_not_written() {
    // The superblock, both checkpoints, the log, or everything, as in a file that was cut to nothing and has grown again.
    for range in [0..4096, 4096..3 * 4096, 3 * 4096..11 * 4096, 0..64 * 4096] {
        run(async move |executor| {
            let disk = RecordingDisk::plain(vec![0; 64 * 4096]);
            let store = open(&executor, disk.clone()).await;
            let id = put(&store, &content(1, 5000), 5000).await.unwrap();
            let at = disk.image().windows(8).position(|bytes| bytes == &content(1, 8)[..]).unwrap();
            disk.change_image(|image| {
                image[range].fill(0);
                image[at] ^= 1;
            });
            assert!(matches!(get(&store).await, Some(Err(StoreError::Damaged { .. }))));
            while store.health() == Health::Good {
                store.changed().await;
            }
            let before = disk.image();
            assert_eq!(put(&store, b"2", 1).await, Err(StoreError::Overwritten));
            assert_eq!(store.remove(id).await, Err(StoreError::Overwritten));
            // Nor does it become good again by a check.
            store.request_check();
            store.changed().await;
            assert_eq!((store.health(), disk.image() == before), (Health::Overwritten, true));
        });
    }
}

#[test]
fn uploads_that_were_abandoned_keep_their_places_until_the_disk_has_written_them() {
    let mut site = Site::new(43, 64 * MIB, &[]);
    let disk = site.disk.clone();
    site.run(async move |client| {
        let slow = Duration::from_secs(100);
        disk.set_faults(Faults { slower_by: slow, ..Faults::default() });
        // Slower than the network: each sends what an upload may have in flight, and resets its connection.
        let in_flight = CHUNK_BYTES * CHUNKS_PER_TRANSFER;
        for number in 0..3 * UPLOADS_MAX as u64 {
            let mut peer = client.connect().await;
            // All that have a place have space, too.
            peer.send(put_head(6_000_000)).await;
            // One that gets no place is not read.
            let sent = async {
                peer.send(content(number, in_flight)).await;
                // It is in the buffer, and has to arrive.
                client.node.sleep(slow).await;
            };
            let _ = client.node.timeout(Duration::from_millis(500), sent).await;
        }
        let bound = (UPLOADS_MAX * CHUNKS_PER_TRANSFER) as u64;
        let writes = disk.counters().writes;
        assert!(writes <= bound, "{writes} writes of {CHUNK_BYTES} bytes are in memory, more than {bound}");
        let reply = client.put(&content(9, SMALL_BYTES as usize + 1)).await;
        assert_eq!((reply.status, reply.text().as_str()), (503, "Too many uploads\n"));
        disk.set_faults(Faults::default());
        client.node.sleep(slow).await;
        assert_eq!(client.put(b"place").await.status, 200);
    });
}
