//! Clients that request large files and do not read them.

use crate::site::{Site, content};
use core::time::Duration;
use glass_platform_sim::{NodeConfig, SimFiles};
use glasshouse::{Clock, Net, Platform, Spawn, Stream};
use std::cell::Cell;
use std::rc::Rc;

const LARGE: usize = 3_000_000;
const GET_LARGE: &[u8] = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n";

fn site(seed: u64) -> Site {
    let files = SimFiles::new(seed);
    files.put("large", &content(1, LARGE));
    files.put("small", &content(2, 10_000));
    Site::new(seed, files)
}

/// Has `machines` of them each hold as many connections as it can, on which it does not read; it connects again when one is reset.
fn stall(site: &mut Site, machines: usize) -> Rc<Cell<usize>> {
    let (to, opened) = (site.tcp(), Rc::new(Cell::new(0)));
    for _ in 0..machines {
        let node = site.world.node("stalled", NodeConfig::default());
        let (own, opened) = (node.clone(), opened.clone());
        node.run("connect", async move {
            let count = own.net().up().await.unwrap().connections_max.min(500 / machines);
            for _ in 0..count {
                let (node, opened) = (own.clone(), opened.clone());
                let stalled = async move {
                    loop {
                        let connected = node.net().connect_to(to).await;
                        node.sleep(Duration::from_secs(1)).await;
                        let Ok(mut stream) = connected else { continue };
                        opened.set(opened.get() + 1);
                        let _ = stream.write_all(GET_LARGE).await;
                        // A reset is noticed here, and only then.
                        while stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.is_ok() {
                            node.sleep(Duration::from_secs(1)).await;
                        }
                    }
                };
                own.spawn("stalled", stalled).unwrap();
            }
        });
    }
    site.world.run_for(Duration::from_secs(6)).unwrap();
    opened
}

/// How long the slowest of some requests takes.
fn slowest(site: &mut Site, target: &str, body: &[u8]) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..8 {
        let began = site.client.now();
        assert!(site.get(target).body == body);
        slowest = slowest.max(site.client.now() - began);
    }
    slowest
}

#[test]
fn readers_that_do_not_read_hold_up_no_small_file() {
    for machines in [1, 25] {
        let mut site = site(50);
        let alone = slowest(&mut site, "/small", &content(2, 10_000));
        let opened = stall(&mut site, machines);
        let network = site.server.net();
        let connections_max = site.world.complete(&site.server.clone(), Duration::from_secs(1), async move {
            network.up().await.unwrap().connections_max
        });
        assert!(opened.get() > connections_max.unwrap(), "{} connections are not all that there may be", opened.get());
        let beside = slowest(&mut site, "/small", &content(2, 10_000));
        // Of one machine, another one has slots left; of many, the slowest lose theirs.
        assert!(beside < 10 * alone, "{beside:?} beside {machines} machines, {alone:?} without");
    }
}

#[test]
fn readers_that_do_not_read_lose_their_slots_to_a_large_file() {
    for machines in [1, 25] {
        let mut site = site(51);
        stall(&mut site, machines);
        let began = site.client.now();
        let answer = site.get("/large");
        assert!(answer.status == 200 && answer.body == content(1, LARGE), "{}", answer.head);
        let took = site.client.now() - began;
        assert!(took < web_server::limits::SLOT_WAIT + Duration::from_secs(1), "{took:?} beside {machines} machines");
    }
}
