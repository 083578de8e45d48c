//! Several consumers of one queue that removes by connection, with one consumer on each: whatever they do and in whatever order, only a
//! consumer that received an item whole removes it.

use crate::common::site::{Client, Site, content};
use core::time::Duration;
use glass_platform_sim::Chance;
use glasshouse::sync::Notify;
use glasshouse::{Clock, Spawn, Stream};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const MIB: u64 = 1 << 20;
const BY_CONNECTION: &[&str] = &["--delete-by-connection"];
const GET: &str = "GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n";
const DELETE: &str = "DELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n";

#[test]
fn a_delete_without_a_condition_is_about_what_its_connection_was_sent() {
    let mut site = Site::new(21, 4 * MIB, BY_CONNECTION);
    site.run(async |client| {
        for tag in 0..2 {
            assert_eq!(client.put(&content(tag, 50_000)).await.status, 200);
        }
        // A and B have the first item, A removes it, and C gets the second.
        let (mut a, mut b, mut c) = (client.connect().await, client.connect().await, client.connect().await);
        for peer in [&mut a, &mut b] {
            peer.send(GET).await;
            assert!(peer.reply().await.body == content(0, 50_000));
        }
        a.send(DELETE).await;
        assert_eq!(a.reply().await.status, 200);
        c.send(GET).await;
        let second = c.reply().await;
        assert!(second.body == content(1, 50_000));
        b.send(DELETE).await;
        let reply = b.reply().await;
        assert_eq!((reply.status, reply.text().contains("it was removed")), (404, true), "{reply:?}");
        // The same again, from a connection that removed its item and from one that never had any.
        for peer in [&mut a, &mut client.connect().await] {
            peer.send(DELETE).await;
            let reply = peer.reply().await;
            let etag = second.header("ETag").unwrap();
            assert_eq!((reply.status, reply.header("ETag")), (428, Some(etag)), "{reply:?}");
            assert!(reply.text().contains(&format!("If-Match: {etag}")), "{reply:?}");
        }
        c.send(DELETE).await;
        assert_eq!(c.reply().await.status, 200);
        c.send(DELETE).await;
        let reply = c.reply().await;
        assert_eq!((reply.status, reply.header("ETag")), (428, None), "{reply:?}");
    });
}

#[test]
fn a_download_that_was_cut_short_allows_no_removal() {
    let mut site = Site::new(22, 4 * MIB, BY_CONNECTION);
    site.run(async |client| {
        assert_eq!(client.put(&content(1, 3_000_000)).await.status, 200);
        let mut reader = client.connect().await;
        reader.send(GET).await;
        let mut some = [0; 100];
        reader.stream.read(&mut some).await.unwrap();
        drop(reader);
        client.node.sleep(Duration::from_secs(1)).await;
        assert_eq!(client.ask(DELETE).await.status, 428);
        assert!(client.get().await.body == content(1, 3_000_000));
    });
}

/// The results of all consumers of a round.
#[derive(Default)]
struct Round {
    /// Items that were received whole and then removed with a 200.
    removed: RefCell<Vec<Vec<u8>>>,
    working: Cell<usize>,
    done: Notify,
}

/// A consumer that gets, disconnects, reconnects and removes at random, and never names an item.
async fn consume(client: Client, round: Rc<Round>, mut chance: Chance) {
    let mut peer = client.connect().await;
    let mut held = None;
    for _ in 0..6 {
        client.node.sleep(Duration::from_millis(chance.below(20))).await;
        match chance.below(8) {
            0 => {
                // A new connection holds nothing, whatever the one before it received.
                peer = client.connect().await;
                held = None;
            }
            1 => {
                peer.send(GET).await;
                let _ = peer.stream.read(&mut [0; 50]).await;
                peer = client.connect().await;
                held = None;
            }
            2..5 => {
                peer.send(GET).await;
                let reply = peer.reply().await;
                held = (reply.status == 200 && !reply.cut).then_some(reply.body);
            }
            _ => {
                peer.send(DELETE).await;
                let reply = peer.reply().await;
                match (reply.status, held.take()) {
                    (200, Some(item)) => round.removed.borrow_mut().push(item),
                    (200, None) => panic!("an item was removed that this connection was not sent"),
                    (404 | 428, _) => {}
                    _ => panic!("{reply:?}"),
                }
            }
        }
    }
    round.working.set(round.working.get() - 1);
    round.done.notify_all();
}

#[test]
fn three_consumers_without_conditions_lose_nothing_in_a_thousand_rounds() {
    let mut site = Site::new(23, 4 * MIB, BY_CONNECTION);
    site.run(async |client| {
        let mut removals = 0;
        for seed in 0..1000 {
            let mut chance = Chance::new(seed);
            let items: Vec<Vec<u8>> =
                (0..4).map(|tag| content(seed * 4 + tag, 8 + chance.below(3000) as usize)).collect();
            for item in &items {
                assert_eq!(client.put(item).await.status, 200);
            }
            let round = Rc::new(Round::default());
            round.working.set(3);
            for consumer in 0..3 {
                let work = consume(client.clone(), round.clone(), Chance::new(seed * 1000 + consumer));
                client.node.spawn("consumer", work).unwrap();
            }
            while round.working.get() > 0 {
                round.done.notified().await;
            }
            let mut found = round.removed.take();
            removals += found.len();
            loop {
                let reply = client.ask(GET).await;
                if reply.status == 204 {
                    break;
                }
                assert_eq!(client.delete(&reply).await.status, 200);
                found.push(reply.body);
            }
            assert_eq!(found.len(), items.len(), "seed {seed}: items removed or left, of those uploaded");
            assert!(items.iter().all(|item| found.contains(item)), "seed {seed}: an item is lost");
        }
        assert!(removals > 500, "only {removals} removals");
    });
}
