//! Consumers behind a proxy that keeps its connections to the queue and shares them among its clients, as nginx, HAProxy and Envoy do:
//! two requests on a connection are not of one client (RFC 9110, section 3.3).

use crate::common::site::{Client, Peer, Reply, Site, content};
use core::time::Duration;
use glass_platform_sim::Chance;
use glasshouse::sync::Notify;
use glasshouse::{Clock, Spawn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
const GET: &str = "GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n";
const DELETE: &str = "DELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n";

/// The proxy: a request goes over any of its idle connections.
struct Proxy {
    client: Client,
    idle: RefCell<Vec<Peer>>,
    chance: RefCell<Chance>,
}

impl Proxy {
    fn new(client: Client, seed: u64) -> Proxy {
        Proxy { client, idle: RefCell::default(), chance: RefCell::new(Chance::new(seed)) }
    }

    async fn ask(&self, request: &str) -> Reply {
        let count = self.idle.borrow().len() as u64;
        let pooled = (count > 0).then(|| self.idle.borrow_mut().remove(self.chance.borrow_mut().below(count) as usize));
        let mut peer = match pooled {
            Some(peer) => peer,
            None => self.client.connect().await,
        };
        peer.send(request).await;
        let reply = peer.reply().await;
        self.idle.borrow_mut().push(peer);
        reply
    }
}

#[derive(Default)]
struct Round {
    /// Items whose DELETE was answered 200.
    removed: RefCell<BTreeSet<Vec<u8>>>,
    working: Cell<usize>,
    ended: Notify,
}

async fn consume(proxy: Rc<Proxy>, round: Rc<Round>, mut chance: Chance) {
    let mut held: Option<Reply> = None;
    for _ in 0..6 {
        proxy.client.node.sleep(Duration::from_millis(chance.below(20))).await;
        match chance.below(8) {
            // Whatever this connection was used for before, by whichever client.
            0 => assert_eq!(proxy.ask(DELETE).await.status, 428),
            1..5 => {
                let gone = round.removed.borrow().clone();
                let reply = proxy.ask(GET).await;
                assert!(!gone.contains(&reply.body), "an item was sent after its removal was answered 200");
                held = (reply.status == 200).then_some(reply);
            }
            _ => {
                let Some(item) = held.take() else { continue };
                let tag = item.header("ETag").expect("an item has a tag");
                let reply = proxy.ask(&DELETE.replace("\r\n\r\n", &format!("\r\nIf-Match: {tag}\r\n\r\n"))).await;
                assert!(matches!(reply.status, 200 | 412), "{reply:?}");
                if reply.status == 200 {
                    assert!(round.removed.borrow_mut().insert(item.body), "an item was removed twice");
                }
            }
        }
    }
    round.working.set(round.working.get() - 1);
    round.ended.notify_all();
}

#[test]
fn three_consumers_behind_a_proxy_lose_nothing_in_a_thousand_rounds() {
    let mut site = Site::new(33, 4 * MIB, &[]);
    site.run(async |client| {
        let (proxy, mut removals) = (Rc::new(Proxy::new(client.clone(), 33)), 0);
        for seed in 0..1000 {
            let mut chance = Chance::new(seed);
            let items: BTreeSet<Vec<u8>> =
                (0..4).map(|tag| content(seed * 4 + tag, 8 + chance.below(3000) as usize)).collect();
            for item in &items {
                assert_eq!(client.put(item).await.status, 200);
            }
            let round = Rc::new(Round::default());
            round.working.set(3);
            for consumer in 0..3 {
                let work = consume(proxy.clone(), round.clone(), Chance::new(seed * 1000 + consumer));
                client.node.spawn("consumer", work).unwrap();
            }
            while round.working.get() > 0 {
                round.ended.notified().await;
            }
            let mut found = round.removed.take();
            removals += found.len();
            loop {
                let reply = proxy.ask(GET).await;
                if reply.status == 204 {
                    break;
                }
                assert_eq!(client.delete(&reply).await.status, 200);
                assert!(found.insert(reply.body), "seed {seed}: an item was left that was removed");
            }
            assert!(found == items, "seed {seed}: an item is lost");
        }
        assert!(removals > 500, "only {removals} removals");
        assert!(proxy.idle.borrow().len() > 1, "the consumers did not share connections");
    });
}
