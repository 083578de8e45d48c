//! Any sequence of requests has the same effect on a queue as on a list, whether its items are on a disk or in an engine, and whichever of two
//! queues over one engine they are sent to.

use super::{Service, Taken, content, server};
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::programs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

struct Item {
    id: u64,
    body: Vec<u8>,
    /// Of the newest lease, and whether it was not given back.
    lease: Option<(Taken, bool)>,
    deliveries: u64,
}

impl Item {
    fn is_leased(&self) -> bool {
        self.lease.as_ref().is_some_and(|(_, is_held)| *is_held)
    }
}

/// How often an item is given out.
const TRIES: u64 = 3;

impl Item {
    fn state(&self) -> &'static str {
        match self.is_leased() {
            true => "leased",
            false if self.deliveries >= TRIES => "dead",
            false => "ready",
        }
    }
}

struct Model {
    items: Vec<Item>,
    /// Tokens that are not valid any more, of items that may still be there.
    old: Vec<Taken>,
    tags: u64,
}

/// Queues with the same items.
struct Queues {
    services: Vec<Service>,
    /// A restart ends leases.
    forgets: bool,
}

fn check(mut queues: Queues, seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Model { items: Vec::new(), old: Vec::new(), tags: 0 };
    for step in 0..steps {
        let context = format!("seed {seed}, step {step}");
        if random.u32(..60) == 0 {
            restart(&mut queues, &mut model, &mut random);
        }
        let queue = &queues.services[random.usize(..queues.services.len())];
        match random.u32(..20) {
            0..=5 => {
                model.tags += 1;
                let length = [0, 8, 5_000, 1_100_000][random.usize(..4)];
                let body = if length == 0 { Vec::new() } else { content(model.tags, length) };
                assert_eq!(queue.put(&body), 200, "{context}");
                let id = queue.list().last().unwrap()["id"].as_u64().unwrap();
                assert!(model.items.iter().all(|item| item.id < id), "{context}");
                model.items.push(Item { id, body, lease: None, deliveries: 0 });
            }
            6..=9 => {
                let taken = queue.take(10_000);
                let expected = model.items.iter_mut().find(|item| item.state() == "ready");
                assert_eq!(taken.is_some(), expected.is_some(), "{context}");
                let (Some(taken), Some(item)) = (taken, expected) else { continue };
                item.deliveries += 1;
                assert!(taken.body == item.body, "{context}: {} bytes", taken.body.len());
                assert_eq!(taken.lease, format!("/leases/{}", item.id), "{context}");
                assert_eq!(taken.deliveries, item.deliveries.to_string(), "{context}");
                model.old.extend(item.lease.replace((taken, true)).map(|(taken, _)| taken));
            }
            10..=12 => {
                let held = pick(&mut model, &mut random, |item| item.lease.is_some());
                let Some(place) = held else { continue };
                let (taken, _) = model.items[place].lease.clone().unwrap();
                assert_eq!(queue.acknowledge(&taken), 200, "{context}");
                model.old.push(taken);
                model.items.remove(place);
            }
            13 => {
                let held = pick(&mut model, &mut random, |item| item.lease.is_some());
                let Some(place) = held else { continue };
                let (taken, is_held) = model.items[place].lease.as_mut().unwrap();
                let answer = queue.send("POST", &taken.lease, &[("If-Match", &taken.token)], &[]).unwrap();
                assert_eq!(answer.status(), 204, "{context}");
                *is_held = false;
            }
            14 => {
                let held = pick(&mut model, &mut random, |item| item.lease.is_some());
                let Some(place) = held else { continue };
                let (taken, is_held) = model.items[place].lease.as_mut().unwrap();
                let target = format!("{}?secs=9000", taken.lease);
                let answer = queue.send("PUT", &target, &[("If-Match", &taken.token)], &[]).unwrap();
                assert_eq!(answer.status(), 204, "{context}");
                *is_held = true;
            }
            15 => {
                // An older token of an item: another consumer has had it, or it is gone.
                if model.old.is_empty() {
                    continue;
                }
                let taken = model.old.swap_remove(random.usize(..model.old.len()));
                let is_there = model.items.iter().any(|item| taken.lease == format!("/leases/{}", item.id));
                let expected = if is_there { 412 } else { 404 };
                assert_eq!(queue.acknowledge(&taken), expected, "{context}");
            }
            16 => {
                let oldest = model.items.iter().position(|item| item.state() == "ready");
                let answer = queue.send("GET", "/downloader?wait=0", &[], &[]).unwrap();
                let Some(place) = oldest else {
                    assert_eq!(answer.status(), 204, "{context}");
                    continue;
                };
                assert!(answer.body == model.items[place].body, "{context}");
                let removed = queue.send("DELETE", "/downloader", &[("If-Match", answer.etag())], &[]).unwrap();
                assert_eq!(removed.status(), 200, "{context}");
                let item = model.items.remove(place);
                model.old.extend(item.lease.map(|(taken, _)| taken));
            }
            17 => {
                let Some(place) = pick(&mut model, &mut random, |_| true) else { continue };
                let target = format!("/items/{}", model.items[place].id);
                let answer = queue.send("GET", &target, &[], &[]).unwrap();
                assert!(answer.status() == 200 && answer.body == model.items[place].body, "{context}");
                if random.bool() {
                    let removed = queue.send("DELETE", &target, &[("If-Match", answer.etag())], &[]).unwrap();
                    assert_eq!(removed.status(), 200, "{context}");
                    let item = model.items.remove(place);
                    model.old.extend(item.lease.map(|(taken, _)| taken));
                }
            }
            18 => {
                let Some(place) = pick(&mut model, &mut random, |_| true) else { continue };
                let item = &mut model.items[place];
                let answer = queue.send("POST", &format!("/items/{}", item.id), &[], &[]).unwrap();
                assert_eq!(answer.status(), if item.is_leased() { 409 } else { 204 }, "{context}");
                if !item.is_leased() {
                    item.deliveries = 0;
                }
            }
            _ => {
                let field = |item: &serde_json::Value, name: &str| item[name].as_u64().unwrap();
                let listed = queue.list();
                let listed: Vec<_> = listed
                    .iter()
                    .map(|item| {
                        let state = item["state"].as_str().unwrap();
                        (field(item, "id"), field(item, "bytes"), state, field(item, "deliveries"))
                    })
                    .collect();
                let expected =
                    model.items.iter().map(|item| (item.id, item.body.len() as u64, item.state(), item.deliveries));
                assert_eq!(listed, expected.collect::<Vec<_>>(), "{context}");
            }
        }
    }
}

/// The place of an item of those that `is_wanted` accepts.
fn pick(model: &mut Model, random: &mut fastrand::Rng, is_wanted: impl Fn(&Item) -> bool) -> Option<usize> {
    let places: Vec<_> = (0..model.items.len()).filter(|place| is_wanted(&model.items[*place])).collect();
    random.choice(places)
}

fn restart(queues: &mut Queues, model: &mut Model, random: &mut fastrand::Rng) {
    let number = random.usize(..queues.services.len());
    queues.services[number].kill();
    queues.services[number].start_again();
    if queues.forgets {
        for item in &mut model.items {
            item.deliveries = 0;
            model.old.extend(item.lease.take().map(|(taken, _)| taken));
        }
    }
}

fn rounds() -> (u64, usize) {
    let steps = if programs::is_long() { 3_000 } else { 200 };
    (programs::number("QUEUE_ENGINE_SEED", 1), steps)
}

#[test]
fn the_model_holds_for_a_disk() {
    within(LIMIT, || {
        let Some(_) = programs::built("upload-queue") else { return };
        let folder = Folder::new("queue-model").unwrap();
        let disk = folder.file("disk").display().to_string();
        let service = Service::start(&["--disk", &disk, "--disk-size", "512M"], &["--tries", "3"]);
        let (seed, steps) = rounds();
        check(Queues { services: vec![service], forgets: true }, seed, steps);
    });
}

#[test]
fn the_model_holds_for_an_engine_of_two_queues() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let store = server.queue("jobs");
        let start = || Service::start(&[], &["--store", &store, "--tries", "3"]);
        let (seed, steps) = rounds();
        check(Queues { services: vec![start(), start()], forgets: false }, seed, steps);
    });
}
