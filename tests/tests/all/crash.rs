//! `kill -9` during uploads, repeatedly: afterwards the queue contains the uploads that were answered 2xx, whole and in
//! order, and nothing else. `GLASS_KILL_ROUNDS` sets how often, `GLASS_SEED` the random choices.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Clients that upload at the same time.
const UPLOADERS: u64 = 4;
/// The largest item; the smallest has 8 bytes, which identify an item.
const ITEM_BYTES_MAX: u64 = 300_000;
/// Items that an uploader sends at most between two kills: a bound for the disk's size.
const ITEMS_MAX: u64 = 40;
/// Stored items that the consumer leaves in the queue; a round's kill comes when there are more.
const LEFT_MIN: usize = 2;
/// How long a round runs from then on, at most.
const LOAD_MS_MAX: u64 = 500;
/// The longest pause during an upload.
const PAUSE_MS_MAX: u64 = 150;
/// How long a client waits while the server may be dead.
const PATIENCE: Duration = Duration::from_secs(120);

/// The clients' record of an item.
#[derive(Debug, Clone)]
struct Item {
    content: Content,
    /// The last known moment at which a part of it had not been sent.
    unfinished: Arc<Mutex<Instant>>,
    /// When its upload was answered 200; an item without may be there or not.
    stored: Option<Instant>,
    /// A removal was requested, so it may be there or not.
    removing: bool,
    /// The removal was answered 200: it must not be there.
    removed: bool,
}

/// All items whose upload was started, by their first 8 bytes.
type Items = Arc<Mutex<HashMap<u64, Item>>>;

/// How many items are stored and not removed.
fn left(items: &Items) -> usize {
    items.lock().unwrap().values().filter(|item| item.stored.is_some() && !item.removing).count()
}

fn key(content: Content) -> u64 {
    let bytes = Content { length_bytes: 8, ..content }.bytes();
    u64::from_le_bytes(bytes.try_into().expect("8 bytes were requested"))
}

impl Item {
    fn new(content: Content) -> Item {
        let unfinished = Arc::new(Mutex::new(Instant::now()));
        Item { content, unfinished, stored: None, removing: false, removed: false }
    }
}

/// The delayed end of a stream, and the moment of its arrival.
struct Pause(Duration, Arc<Mutex<Instant>>);

impl Read for Pause {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(std::mem::take(&mut self.0));
        *self.1.lock().unwrap() = Instant::now();
        Ok(0)
    }
}

/// The body of `content`, with a `pause` half-way, so that kills find it half done
/// and others overtake it.
fn body(content: Content, pause: Pause) -> impl Read {
    let mut second_half = content.reader();
    let half = content.length_bytes / 2;
    std::io::copy(&mut (&mut second_half).take(half), &mut std::io::sink()).expect("memory does not fail");
    content.reader().take(half).chain(pause).chain(second_half)
}

/// Uploads items until `stop` or until the server is gone.
fn upload(address: SocketAddr, items: &Items, seeds: &AtomicU64, stop: &AtomicBool, mut random: fastrand::Rng) {
    for _ in 0..ITEMS_MAX {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // Relaxed, here and above: a number that is unique, and a flag that carries no data.
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let content = Content { seed, length_bytes: 8 + random.u64(..ITEM_BYTES_MAX - 8) };
        let item = Item::new(content);
        let unfinished = item.unfinished.clone();
        items.lock().unwrap().insert(key(content), item);
        let Ok(mut client) = Client::connect_within(address, PATIENCE) else { return };
        let pause = Duration::from_millis(if random.u64(..3) == 0 { random.u64(..PAUSE_MS_MAX) } else { 0 });
        match client.put("/uploader", content.length_bytes, &mut body(content, Pause(pause, unfinished))) {
            Ok(response) if response.status() == 200 => {
                items.lock().unwrap().get_mut(&key(content)).expect("it was put there").stored = Some(Instant::now());
            }
            Ok(response) => panic!("an upload was answered {}: {}", response.status(), response.text()),
            Err(_) => return,
        }
    }
}

/// What the head of the queue is, and its entity tag; `None` when the server is gone.
fn head(address: SocketAddr, items: &Items) -> Option<(u64, String)> {
    let mut body = Vec::new();
    let mut client = Client::connect_within(address, PATIENCE).ok()?;
    let response = client.get_into("/downloader", &mut body).ok()?;
    assert_eq!(response.status(), 200, "{}", response.text());
    assert!(body.len() >= 8, "an item of {} bytes was never uploaded", body.len());
    let key = u64::from_le_bytes(body[..8].try_into().expect("8 bytes"));
    let item = items.lock().unwrap().get(&key).cloned().expect("an item appears that was never uploaded");
    assert!(body == item.content.bytes(), "item {} is not whole", item.content.seed);
    assert!(!item.removed, "item {} appears after its removal", item.content.seed);
    Some((key, response.etag().to_owned()))
}

/// Removes the head of the queue, which is the item `key`; false when the server is gone.
fn remove(address: SocketAddr, items: &Items, (key, etag): (u64, String)) -> bool {
    items.lock().unwrap().get_mut(&key).expect("it was found").removing = true;
    let response = Client::connect_within(address, PATIENCE)
        .and_then(|mut client| client.request_if_match("DELETE", "/downloader", &etag));
    let Ok(response) = response else { return false };
    assert_eq!(response.status(), 200, "{}", response.text());
    items.lock().unwrap().get_mut(&key).expect("it was found").removed = true;
    true
}

/// Loads the queue, kills it under load, and waits for the clients to end.
fn load_and_kill(mut queue: Queue, items: &Items, seeds: &Arc<AtomicU64>, random: &mut fastrand::Rng) {
    let stop = Arc::new(AtomicBool::new(false));
    let address = queue.address;
    let mut clients = Vec::new();
    for _ in 0..UPLOADERS {
        let (items, seeds, stop, random) =
            (items.clone(), seeds.clone(), stop.clone(), fastrand::Rng::with_seed(random.u64(..)));
        clients.push(std::thread::spawn(move || upload(address, &items, &seeds, &stop, random)));
    }
    let (consumer_items, consumer_stop) = (items.clone(), stop.clone());
    clients.push(std::thread::spawn(move || {
        while !consumer_stop.load(Ordering::Relaxed) {
            // A kill leaves something behind.
            if left(&consumer_items) > LEFT_MIN {
                let Some(found) = head(address, &consumer_items) else { return };
                if !remove(address, &consumer_items, found) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }));
    let end = Instant::now() + PATIENCE;
    while left(items) <= LEFT_MIN && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(random.u64(..LOAD_MS_MAX)));
    queue.kill();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        if let Err(panic) = client.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Drains the queue up to a last item of our own and compares the found items with the record.
fn drain_and_check(address: SocketAddr, items: &Items, seeds: &AtomicU64) -> usize {
    let last = Content { seed: seeds.fetch_add(1, Ordering::Relaxed), length_bytes: 8 };
    items.lock().unwrap().insert(key(last), Item::new(last));
    let response = Client::connect(address).unwrap().put("/uploader", 8, &mut last.reader()).unwrap();
    assert_eq!(response.status(), 200, "{}", response.text());
    let mut found = Vec::new();
    loop {
        let (key_found, etag) = head(address, items).expect("the server runs");
        assert!(!found.contains(&key_found), "an item appears twice");
        found.push(key_found);
        assert!(remove(address, items, (key_found, etag)), "the server runs");
        if key_found == key(last) {
            break;
        }
    }
    let mut items = items.lock().unwrap();
    let lost = items.values().filter(|item| item.stored.is_some() && !item.removing);
    let lost: Vec<u64> = lost.map(|item| item.content.seed).collect();
    assert!(lost.is_empty(), "items {lost:?} were stored and are lost");
    let in_order: Vec<&Item> = found.iter().map(|key| &items[key]).collect();
    for (place, later) in in_order.iter().enumerate() {
        for earlier in &in_order[..place] {
            let overtaken = later.stored.is_some_and(|stored| stored < *earlier.unfinished.lock().unwrap());
            assert!(
                !overtaken,
                "item {} comes after {}, which was complete later",
                later.content.seed, earlier.content.seed
            );
        }
    }
    items.retain(|_, item| item.stored.is_none() || item.removed);
    found.len() - 1
}

/// Kills of a process or a VM: with `--long` 1,000 on all platforms.
fn rounds(world: World) -> u64 {
    let long = if world == World::Tcg { 200 } else { 400 };
    programs::number("GLASS_KILL_ROUNDS", if programs::is_long() { long } else { 5 })
}

pub fn nothing_acknowledged_is_lost(world: World, rounds: u64) {
    let seed = programs::number("GLASS_SEED", u64::from(std::process::id()));
    let folder = Folder::new("crash").unwrap();
    let options = Options { disk_size: "512M".into(), ..Options::default() };
    let start = || Queue::start(world, &folder.file("queue.img"), &options).unwrap();
    let items = Items::default();
    let seeds = Arc::new(AtomicU64::new(1));
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut survived, mut checks) = (0, 0);
    for round in 1..=rounds {
        let Some(queue) = start() else { return };
        load_and_kill(queue, &items, &seeds, &mut random);
        // Occasionally the queue is not drained, so that items survive several crashes.
        if random.u64(..3) > 0 || round == rounds {
            let queue = start().expect("it started a moment ago");
            survived += drain_and_check(queue.address, &items, &seeds);
            checks += 1;
        }
    }
    let begun = seeds.load(Ordering::Relaxed) - 1;
    say(&format!(
        "crash {world}: seed {seed}, {rounds} kills, {begun} uploads begun, {survived} found in {checks} checks"
    ));
    assert!(survived > 0, "no kill ever left an item behind: the test shows nothing");
}

/// 400 kills take five minutes on a quiet machine.
fn limit() -> Duration {
    Duration::from_secs(if programs::is_long() { 3600 } else { 900 })
}

#[test]
fn process() {
    within(limit(), || nothing_acknowledged_is_lost(World::Process, rounds(World::Process)));
}

#[test]
fn kvm() {
    within(limit(), || nothing_acknowledged_is_lost(World::Kvm, rounds(World::Kvm)));
}

#[test]
fn tcg() {
    within(limit(), || nothing_acknowledged_is_lost(World::Tcg, rounds(World::Tcg)));
}
