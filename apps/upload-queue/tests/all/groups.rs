//! Uploads that end together share flushes; those of one client have as many as they need.

use crate::common::site::{Site, content, put_request};
use crate::process;
use core::time::Duration;
use glass_platform_sim::{DiskConfig, LinkConfig, SimBlock};
use glasshouse::Clock;
use glasshouse::future::join_array;
use std::path::PathBuf;

const CLIENTS: usize = 64;
const ITEM_BYTES: usize = 4096;
/// Each client's uploads, one after the other on one connection.
const ROUNDS: usize = 20;
const WRITE: Duration = Duration::from_millis(1);
const FLUSH: Duration = Duration::from_millis(10);

/// A slow disk with a queue that `clients` use at once. Returns its flushes and writes, and the simulated time that the uploads took.
fn uploads<const CLIENTS: usize>(seed: u64) -> (u64, u64, Duration) {
    let fixed = |time| time..time + Duration::from_nanos(1);
    let config = DiskConfig {
        size_bytes: 64 << 20,
        write_latency: fixed(WRITE),
        flush_latency: fixed(FLUSH),
        ..DiskConfig::default()
    };
    let mut site = Site::with_disk(seed, SimBlock::new(seed, config), LinkConfig::default(), &[]);
    let before = site.disk.counters();
    let took = site.run(async |client| {
        let began = client.node.now();
        let uploads = async |number: usize| {
            let mut peer = client.connect().await;
            for round in 0..ROUNDS {
                peer.send(put_request(&content((number * ROUNDS + round) as u64, ITEM_BYTES))).await;
                assert_eq!(peer.reply().await.status, 200);
            }
        };
        // Boxed: each has a buffer of 64 KiB.
        join_array::<_, CLIENTS>(core::array::from_fn(|number| Box::pin(uploads(number)))).await;
        client.node.now() - began
    });
    let after = site.disk.counters();
    assert_eq!(site.figure("items"), format!("{} of 4032", CLIENTS * ROUNDS));
    (after.flushes - before.flushes, after.writes - before.writes, took)
}

#[test]
fn clients_at_once_need_a_tenth_of_a_flush_each_or_less() {
    for seed in 0..4 {
        let (flushes, ..) = uploads::<CLIENTS>(seed);
        let puts = (CLIENTS * ROUNDS) as u64;
        assert!(10 * flushes <= puts, "seed {seed}: {flushes} flushes for {puts} uploads");
    }
}

#[test]
fn an_upload_alone_takes_two_writes_and_two_flushes() {
    let (flushes, writes, took) = uploads::<1>(1);
    assert_eq!((flushes, writes), (2 * ROUNDS as u64, 2 * ROUNDS as u64));
    // The rest is the network's.
    let alone = (WRITE + FLUSH) * 2 * ROUNDS as u32;
    assert!(took < alone + alone / 10, "{took:?} instead of {alone:?}");
}

#[test]
fn clients_of_a_process_at_once_need_a_tenth_of_a_flush_each_or_less() {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("groups.img");
    let _ = std::fs::remove_file(&disk);
    let service = process::Service::start(&disk);
    let before = flushes(service.port);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| process::Client::connect(service.port).unwrap()).collect();
    for round in 0..ROUNDS {
        // All send before the first is received, however busy the machine is.
        service.signal("STOP");
        for (number, client) in clients.iter_mut().enumerate() {
            client.send_put(&content((number * ROUNDS + round) as u64, ITEM_BYTES)).unwrap();
        }
        service.signal("CONT");
        assert!(clients.iter_mut().all(|client| client.answer().unwrap().status == 200));
    }
    let (flushes, puts) = (flushes(service.port) - before, (CLIENTS * ROUNDS) as u64);
    println!("{flushes} flushes for {puts} uploads");
    assert!(10 * flushes <= puts, "{flushes} flushes for {puts} uploads");
    let _ = std::fs::remove_file(&disk);
}

/// The flushes of a process since its start.
fn flushes(port: u16) -> u64 {
    let reply = process::Client::connect(port).unwrap().ask("GET /metrics HTTP/1.1\r\n", &[]).unwrap();
    let text = String::from_utf8(reply.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("glass_queue_flushes_total "));
    line.expect("the flushes are counted").parse().unwrap()
}
