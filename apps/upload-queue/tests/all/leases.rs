//! Several consumers with leases, on a simulated machine with its clock.

use crate::common::site::{Client, Reply, Site, content};
use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, LinkConfig, SimBlock, for_seeds};
use glasshouse::sync::Notify;
use glasshouse::{Clock, Instant, Spawn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const MIB: u64 = 1 << 20;

async fn ask(client: &Client, start: &str, fields: &str) -> Reply {
    client.ask(format!("{start} HTTP/1.1\r\nHost: q\r\n{fields}\r\n")).await
}

async fn take(client: &Client, secs: u64, wait: u64) -> Reply {
    ask(client, &format!("POST /leases?secs={secs}"), &format!("Prefer: respond-async, wait={wait}\r\n")).await
}

fn field(reply: &Reply, name: &str) -> String {
    reply.header(name).unwrap_or_else(|| panic!("{name}: {reply:?}")).to_owned()
}

/// A request about the lease of this answer.
async fn about(client: &Client, method: &str, item: &Reply, query: &str) -> Reply {
    let start = format!("{method} {}{query}", field(item, "Location"));
    ask(client, &start, &format!("If-Match: {}\r\n", field(item, "Lease-Token"))).await
}

#[test]
fn two_consumers_have_two_items_and_the_lease_ends_extended_returned_or_acknowledged() {
    let mut site = Site::new(100, 4 * MIB, &[]);
    site.run(async |client| {
        let secs = |count| client.node.sleep(Duration::from_secs(count));
        for tag in 0..3 {
            assert_eq!(client.put(&content(tag, 5000)).await.status, 200);
        }
        let (first, second) = (take(&client, 10, 0).await, take(&client, 10, 0).await);
        assert!(first.body == content(0, 5000) && second.body == content(1, 5000));
        assert_eq!((field(&first, "Lease-Seconds"), field(&first, "Delivery-Count")), ("10".into(), "1".into()));
        // The original downloader gets what no consumer has.
        assert!(client.get().await.body == content(2, 5000));
        let list = ask(&client, "GET /items?count=2", "").await.text();
        assert!(
            list.contains("\"id\":1,\"bytes\":5000,") && list.contains("\"state\":\"leased\",\"lease_seconds\":"),
            "{list}"
        );
        assert!(list.contains("\"next\":\"/items?after=2&count=2\"") && !list.contains("\"id\":3"), "{list}");
        let rest = ask(&client, "GET /items?after=2", "").await.text();
        assert!(rest.contains("\"id\":3,") && rest.contains("\"state\":\"ready\"") && !rest.contains("next"), "{rest}");
        let part =
            ask(&client, "GET /items/2", &format!("If-Range: {}\r\nRange: bytes=5-9\r\n", field(&second, "ETag")))
                .await;
        assert!(part.status == 206 && part.body == content(1, 5000)[5..10]);
        // One is extended and one is not: the second is given out again, and its first consumer is refused.
        secs(8).await;
        assert_eq!(about(&client, "PUT", &first, "?secs=30").await.status, 204);
        secs(5).await;
        let again = take(&client, 10, 0).await;
        assert_eq!((field(&again, "Location"), field(&again, "Delivery-Count")), ("/leases/2".into(), "2".into()));
        for method in ["DELETE", "PUT", "POST"] {
            let reply = about(&client, method, &second, "").await;
            assert!(reply.status == 412 && reply.text().contains("Another consumer"), "{reply:?}");
        }
        assert_eq!(ask(&client, "DELETE /leases/2", "").await.status, 428);
        assert_eq!(ask(&client, "DELETE /leases/2", "If-Match: *\r\n").await.status, 412);
        assert_eq!(about(&client, "DELETE", &again, "").await.status, 200);
        assert_eq!(about(&client, "DELETE", &again, "").await.status, 404);
        // Returned, it is the oldest again.
        assert_eq!(about(&client, "POST", &first, "").await.status, 204);
        assert_eq!(field(&take(&client, 10, 0).await, "Location"), "/leases/1");
        assert_eq!(field(&take(&client, 10, 0).await, "Location"), "/leases/3");
        assert_eq!(take(&client, 10, 0).await.status, 204);
        // One that waits gets it when the time of the other is over.
        let before = client.node.now();
        assert_eq!(field(&take(&client, 1, 60).await, "Location"), "/leases/1");
        assert!(client.node.now() - before >= Duration::from_secs(9));
    });
}

#[test]
fn an_item_that_nobody_acknowledges_is_set_aside() {
    let mut site = Site::new(101, 4 * MIB, &["--tries", "2"]);
    site.run(async |client| {
        assert_eq!(client.put(b"poison").await.status, 200);
        for _ in 0..2 {
            assert_eq!(take(&client, 1, 0).await.body, b"poison");
            client.node.sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(take(&client, 1, 3).await.status, 204);
        let list = ask(&client, "GET /items", "").await.text();
        assert!(list.contains("\"deliveries\":2,\"state\":\"dead\""), "{list}");
        assert_eq!(ask(&client, "POST /items/1", "").await.status, 204);
        assert_eq!(field(&take(&client, 9, 0).await, "Delivery-Count"), "1");
        assert_eq!(ask(&client, "POST /items/1", "").await.status, 409);
        let item = ask(&client, "GET /items/1", "").await;
        assert_eq!((item.status, item.body.clone()), (200, b"poison".to_vec()));
        assert_eq!(ask(&client, "DELETE /items/1", "").await.status, 428);
        assert_eq!(ask(&client, "DELETE /items/1", "If-Match: \"x\"\r\n").await.status, 412);
        let tag = format!("If-Match: {}\r\n", field(&item, "ETag"));
        for (start, status) in
            [("DELETE /items/1", 200), ("DELETE /items/1", 404), ("GET /items/1", 404), ("POST /items/1", 404)]
        {
            assert_eq!(ask(&client, start, &tag).await.status, status, "{start}");
        }
        for (start, status) in [
            ("GET /leases", 405),
            ("PATCH /leases/1", 405),
            ("POST /leases?secs=x", 400),
            ("GET /items?after=", 400),
            ("GET /items/x", 404),
        ] {
            assert_eq!(ask(&client, start, "").await.status, status, "{start}");
        }
    });
}

#[test]
fn a_restart_ends_all_leases_and_refuses_their_tokens() {
    let mut site = Site::new(102, 4 * MIB, &[]);
    let before = site.run(async |client| {
        assert_eq!(client.put(b"item").await.status, 200);
        take(&client, 600, 0).await
    });
    site.server.power_off();
    let mut site = Site::with_disk(103, site.disk.restart(1), LinkConfig::default(), &[]);
    site.run(async move |client| {
        assert_eq!(about(&client, "DELETE", &before, "").await.status, 412);
        let again = take(&client, 600, 0).await;
        assert_eq!((again.body.clone(), about(&client, "DELETE", &before, "").await.status), (b"item".to_vec(), 412));
        assert_eq!(about(&client, "DELETE", &again, "").await.status, 200);
    });
}

#[test]
fn the_figures_count_what_happened() {
    let mut site = Site::new(104, 4 * MIB, &["--tries", "1"]);
    site.run(async |client| {
        for length in [3, 5000, 10] {
            assert_eq!(client.put(&content(1, length)).await.status, 200);
        }
        take(&client, 1, 0).await;
        client.node.sleep(Duration::from_secs(2)).await;
        assert_eq!(take(&client, 60, 0).await.body.len(), 5000);
        let reply = ask(&client, "GET /metrics", "").await;
        let text = reply.text();
        for line in [
            "items 3",
            "items_leased 1",
            "items_dead 1",
            "ready 1",
            "leases_total 2",
            "received_bytes_total 5013",
            "sent_bytes_total 5003",
        ] {
            assert!(text.contains(&format!("\nglass_queue_{line}\n")), "{line}: {text}");
        }
        // Each has its help and its type before it.
        for lines in text.lines().collect::<Vec<_>>().chunks(3) {
            let name = lines[2].split(' ').next().unwrap();
            assert!(
                lines[0].starts_with(&format!("# HELP {name} ")) && lines[1].starts_with(&format!("# TYPE {name} ")),
                "{lines:?}"
            );
        }
        assert_eq!(ask(&client, "POST /metrics", "").await.status, 405);
    });
}

/// What is known of an item from the answers.
#[derive(Default, Clone)]
struct Known {
    /// Of the newest lease: not before this does it end, and who has it.
    until: Option<Instant>,
    consumer: u64,
    acknowledged: u32,
}

#[derive(Default)]
struct Round {
    items: RefCell<BTreeMap<String, Known>>,
    working: Cell<usize>,
    done: Notify,
    refused: Cell<u32>,
}

/// A consumer that is fast or slow, extends, gives back, or forgets.
async fn consume(client: Client, round: Rc<Round>, number: u64, mut chance: Chance) {
    let sleep = |millis| client.node.sleep(Duration::from_millis(millis));
    for _ in 0..8 {
        let (asked, secs) = (client.node.now(), 1 + chance.below(3));
        let item = take(&client, secs, chance.below(3)).await;
        if item.status == 204 {
            sleep(chance.below(500)).await;
            continue;
        }
        let name = field(&item, "Location");
        {
            let mut items = round.items.borrow_mut();
            let known = items.entry(name.clone()).or_default();
            let is_free = known.until.is_none_or(|until| client.node.now() >= until);
            assert!(is_free && known.acknowledged == 0, "{name} has two consumers, or was acknowledged");
            *known = Known { until: Some(asked + Duration::from_secs(secs)), consumer: number, acknowledged: 0 };
        }
        sleep(chance.below(1500 * secs)).await;
        let mine = |round: &Round| round.items.borrow()[&name].consumer == number;
        // Whether another consumer may have it, of which no answer is here yet.
        let is_over = |until: Option<Instant>| until.is_none_or(|until| client.node.now() >= until);
        let (was_mine, until) = (mine(&round), round.items.borrow()[&name].until);
        match chance.below(6) {
            0 => continue,
            1 => {
                // What is free again is so before the answer is here.
                if was_mine {
                    round.items.borrow_mut().get_mut(&name).unwrap().until = None;
                }
                let status = about(&client, "POST", &item, "").await.status;
                assert!(status == 204 || !mine(&round) || is_over(until), "{status}");
                continue;
            }
            2 => {
                let asked = client.node.now();
                let status = about(&client, "PUT", &item, "?secs=2").await.status;
                if status == 204 && mine(&round) {
                    round.items.borrow_mut().get_mut(&name).unwrap().until = Some(asked + Duration::from_secs(2));
                }
                assert!(was_mine || status != 204, "another consumer has {name}");
                sleep(chance.below(2500)).await;
            }
            _ => {}
        }
        let was_mine = mine(&round);
        let reply = about(&client, "DELETE", &item, "").await;
        let mut items = round.items.borrow_mut();
        let known = items.get_mut(&name).unwrap();
        match reply.status {
            200 => {
                known.acknowledged += 1;
                assert!(was_mine && known.acknowledged == 1, "{name} was acknowledged by an older consumer, or twice");
            }
            404 | 412 => {
                assert!(known.consumer != number || is_over(known.until), "{name}: {reply:?}");
                round.refused.set(round.refused.get() + 1);
            }
            _ => panic!("{reply:?}"),
        }
    }
    round.working.set(round.working.get() - 1);
    round.done.notify_all();
}

#[test]
fn each_item_is_acknowledged_once_whatever_consumers_do() {
    let refused = Cell::new(0);
    for_seeds(0..60, |seed| {
        let disk = SimBlock::new(seed, DiskConfig { size_bytes: MIB, ..DiskConfig::default() });
        let mut site = Site::with_disk(seed, disk, LinkConfig::default(), &["--tries", "0"]);
        refused.set(
            refused.get()
                + site.run(async move |client| {
                    let mut chance = Chance::new(seed);
                    let count = 3 + chance.below(5);
                    for tag in 0..count {
                        assert_eq!(client.put(&content(tag, 1 + chance.below(9000) as usize)).await.status, 200);
                    }
                    let round = Rc::new(Round::default());
                    round.working.set(4);
                    for number in 1..=4 {
                        let work = consume(client.clone(), round.clone(), number, Chance::new(seed * 100 + number));
                        client.node.spawn("consumer", work).unwrap();
                    }
                    while round.working.get() > 0 {
                        round.done.notified().await;
                    }
                    // What is left is given out to one more.
                    loop {
                        let item = take(&client, 60, 5).await;
                        if item.status == 204 {
                            break;
                        }
                        assert_eq!(about(&client, "DELETE", &item, "").await.status, 200);
                        round.items.borrow_mut().entry(field(&item, "Location")).or_default().acknowledged += 1;
                    }
                    let items = round.items.borrow();
                    assert_eq!(items.len() as u64, count, "seed {seed}");
                    assert!(items.values().all(|known| known.acknowledged == 1), "seed {seed}");
                    round.refused.get()
                }),
        );
    });
    assert!(refused.get() > 20 || std::env::var_os("GLASS_SIM_SEED").is_some(), "only {} were refused", refused.get());
}
