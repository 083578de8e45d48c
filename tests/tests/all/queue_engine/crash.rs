//! Queues over one engine and the engine's server are killed again and again, while clients upload and take.
//!
//! `QUEUE_ENGINE_ROUNDS` sets how often.

use super::{Service, Taken, content, send, server, wait_until};
use glass_tests::limit::within;
use glass_tests::nats::{self, Server};
use glass_tests::programs;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1800);
/// Of leases: those of consumers that are cut off end soon.
const SECS: u64 = 3;

#[derive(Default)]
struct Known {
    /// Uploads that were answered 200.
    stored: HashMap<u64, usize>,
    /// Items whose acknowledgement was answered 200.
    acknowledged: HashSet<u64>,
    /// Items whose acknowledgement has no answer.
    doubtful: HashSet<u64>,
}

#[derive(Default)]
struct World {
    known: Mutex<Known>,
    tags: AtomicU64,
    ends: AtomicBool,
}

fn length_of(tag: u64) -> usize {
    if tag.is_multiple_of(7) { 1_300_000 } else { 8 + (tag as usize * 977) % 40_000 }
}

fn tag_of(body: &[u8]) -> u64 {
    let tag = u64::from_le_bytes(body[..8].try_into().expect("items have 8 bytes at least"));
    assert!(body == content(tag, length_of(tag)), "item {tag} is damaged: {} bytes", body.len());
    tag
}

fn upload(world: &World, address: SocketAddr) {
    while !world.ends.load(Ordering::Relaxed) {
        let tag = world.tags.fetch_add(1, Ordering::Relaxed);
        let length = length_of(tag);
        match send(address, "PUT", "/uploader", &[], &content(tag, length)) {
            Ok(answer) if answer.status() == 200 => {
                world.known.lock().unwrap().stored.insert(tag, length);
            }
            Ok(answer) => {
                assert_eq!(answer.status(), 503, "{}", answer.text());
                thread::sleep(Duration::from_millis(50));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Takes an item and acknowledges it. `Ok(false)` if there is none.
fn take(world: &World, address: SocketAddr) -> io::Result<bool> {
    let before = world.known.lock().unwrap().acknowledged.clone();
    let answer = send(address, "POST", &format!("/leases?secs={SECS}"), &[], &[])?;
    if answer.status() == 503 {
        thread::sleep(Duration::from_millis(50));
        return Ok(true);
    }
    let Some(taken) = Taken::of(&answer) else { return Ok(false) };
    let tag = tag_of(&taken.body);
    assert!(!before.contains(&tag), "item {tag} was given out after its acknowledgement");
    let answer = send(address, "DELETE", &taken.lease, &[("If-Match", &taken.token)], &[]);
    let mut known = world.known.lock().unwrap();
    match answer.map(|answer| answer.status()) {
        Ok(200) => assert!(known.acknowledged.insert(tag), "item {tag} was acknowledged twice"),
        // The lease has ended, and another consumer has the item, or has acknowledged it.
        Ok(412 | 404) => {}
        Ok(503) | Err(_) => _ = known.doubtful.insert(tag),
        Ok(status) => panic!("an acknowledgement was answered {status}"),
    }
    Ok(true)
}

#[test]
fn nothing_acknowledged_is_lost_when_queues_and_the_engine_are_killed() {
    within(LIMIT, || {
        let Some(mut server) = server() else { return };
        let rounds = programs::number("QUEUE_ENGINE_ROUNDS", if programs::is_long() { 60 } else { 3 });
        let mut queues = [Service::over(&server, "jobs"), Service::over(&server, "jobs")];
        let world = Arc::new(World::default());
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for queue in &queues {
            let address = queue.address();
            for _ in 0..2 {
                let world = world.clone();
                threads.push(thread::spawn(move || upload(&world, address)));
            }
            let world = world.clone();
            threads.push(thread::spawn(move || {
                while !world.ends.load(Ordering::Relaxed) {
                    if !matches!(take(&world, address), Ok(true)) {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            }));
        }
        for round in 0..rounds {
            thread::sleep(Duration::from_millis(700));
            match round % 3 {
                0 => server.kill(),
                1 => queues[0].kill(),
                _ => {
                    queues[1].kill();
                    server.kill();
                }
            }
            thread::sleep(Duration::from_millis(100));
            match round % 3 {
                0 => server.start(),
                1 => queues[0].start_again(),
                _ => {
                    queues[1].start_again();
                    server.start();
                }
            }
        }
        thread::sleep(Duration::from_millis(700));
        world.ends.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a client found something wrong");
        }
        wait_until("the engine is back", || queues[0].send("GET", "/readyz", &[], &[]).unwrap().status() == 200);
        // The rest, when the leases of before have ended.
        wait_until("the queue is not empty", || {
            while take(&world, queues[1].address()).unwrap() {}
            queues[0].list().is_empty()
        });
        let known = world.known.lock().unwrap();
        let lost: Vec<_> = known
            .stored
            .keys()
            .filter(|tag| !known.acknowledged.contains(*tag) && !known.doubtful.contains(*tag))
            .collect();
        assert!(lost.is_empty(), "of {} items {lost:?} are lost", known.stored.len());
        assert!(known.stored.len() > rounds as usize, "{} uploads succeeded", known.stored.len());
        let data = server.ask("$JS.API.STREAM.INFO.jobs-data", "").unwrap();
        println!(
            "{} items stored, {} acknowledged, {} in doubt; data: {}",
            known.stored.len(),
            known.acknowledged.len(),
            known.doubtful.len(),
            data["state"]
        );
    });
}

#[test]
fn three_servers_keep_the_queue_while_any_one_is_away() {
    within(LIMIT, || {
        let (Some(_), Some(program)) = (programs::built("upload-queue"), nats::program()) else { return };
        let mut servers = Server::cluster(&program).unwrap();
        servers.iter_mut().for_each(Server::start);
        let addresses: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let store = format!("nats://{}/jobs?replicas=3", addresses.join(","));
        let queues = [Service::start(&[], &["--store", &store]), Service::start(&[], &["--store", &store])];
        let put = |number: u64| {
            // Until the others have noticed, the answer is 503, and the item is none.
            let body = content(number, 100_000);
            let queue = &queues[number as usize % 2];
            wait_until("an upload succeeds", || queue.put(&body) == 200);
        };
        put(0);
        let (away, items) = if programs::is_long() { (3, 7) } else { (1, 3) };
        for (server, number) in servers.iter_mut().take(away).zip(0..) {
            server.kill();
            put(number * 2 + 1);
            server.start();
            put(number * 2 + 2);
        }
        // In order, and none twice: an upload that was answered by 503 is withdrawn.
        wait_until("all items are there", || {
            let answer = queues[1].send("GET", "/items", &[], &[]).unwrap();
            answer.status() == 200 && queues[1].list().len() as u64 == items
        });
        for number in 0..items {
            let taken = queues[number as usize % 2].take(600).unwrap();
            assert!(taken.body == content(number, 100_000), "item {number}");
            assert_eq!(queues[1].acknowledge(&taken), 200);
        }
    });
}
