//! The whole service loses its power while clients use it over a bad network.

use crate::common::site::{Client, Peer, Site, put_request};
use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, LinkConfig, SimBlock, for_seeds};
use glasshouse::{Clock, Instant};
use std::cell::RefCell;
use std::rc::Rc;

const DISK_BYTES: u64 = 1 << 20;
const UPLOADERS: u64 = 3;

/// The requests of the clients, and their answers.
#[derive(Default)]
struct Ledger {
    uploads: Vec<Sent>,
    /// Tags whose removal was requested, and was answered.
    removes: Vec<(u64, bool)>,
}

#[derive(Clone, Copy)]
struct Sent {
    tag: u64,
    began: Instant,
    answered: Option<Instant>,
}

/// The tag at the start determines the other bytes.
fn content(tag: u64) -> Vec<u8> {
    let mut chance = Chance::new(tag);
    let length_max = if chance.below(4) == 0 { 200_000 } else { 6_000 };
    let mut data = vec![0; 8 + chance.below(length_max) as usize];
    chance.fill(&mut data);
    data[..8].copy_from_slice(&tag.to_le_bytes());
    data
}

fn tag_of(data: &[u8]) -> u64 {
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

async fn upload_some(client: Client, ledger: Rc<RefCell<Ledger>>, first_tag: u64) {
    let mut peer = client.connect().await;
    for tag in first_tag..first_tag + 12 {
        let place = {
            let mut ledger = ledger.borrow_mut();
            ledger.uploads.push(Sent { tag, began: client.node.now(), answered: None });
            ledger.uploads.len() - 1
        };
        peer.send(put_request(&content(tag))).await;
        match peer.try_reply().await {
            Some(reply) if reply.status == 200 => ledger.borrow_mut().uploads[place].answered = Some(client.node.now()),
            // A full disk ends the connection, because the body was not read.
            Some(reply) => {
                assert_eq!(reply.status, 507);
                peer = client.connect().await;
            }
            None => return,
        }
    }
}

async fn consume_some(client: Client, ledger: Rc<RefCell<Ledger>>) {
    let mut peer: Peer = client.connect().await;
    loop {
        peer.send("GET /downloader?wait=2 HTTP/1.1\r\nHost: q\r\n\r\n").await;
        let Some(reply) = peer.try_reply().await else { return };
        if reply.status == 204 || reply.cut {
            return;
        }
        let tag = tag_of(&reply.body);
        assert!(reply.body == content(tag));
        ledger.borrow_mut().removes.push((tag, false));
        let item = reply.header("ETag").expect("an item has a tag");
        peer.send(format!("DELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: {item}\r\n\r\n")).await;
        match peer.try_reply().await {
            Some(reply) => assert_eq!(reply.status, 200),
            None => return,
        }
        ledger.borrow_mut().removes.last_mut().unwrap().1 = true;
    }
}

/// One life of the service that ends with a power cut; returns the clients' record.
fn live(seed: u64, disk: SimBlock, cut_at_operation: u64) -> Rc<RefCell<Ledger>> {
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let mut site = Site::with_disk(seed, disk, LinkConfig::bad(), &[]);
    site.disk.cut_at_operation(site.disk.operations() + cut_at_operation);
    for uploader in 0..UPLOADERS {
        site.client.run("uploader", upload_some(site.client(), ledger.clone(), seed * 1000 + uploader * 100));
    }
    site.client.run("consumer", consume_some(site.client(), ledger.clone()));
    let (server, client) = (site.server.clone(), site.client.clone());
    let over = || !server.is_alive() || client.task_count() == 0;
    site.world.run_until(Duration::from_secs(600), over).unwrap();
    site.server.power_off();
    let console = site.server.console();
    assert!(console.iter().all(|line| !line.contains("damaged")), "seed {seed}: {console:?}");
    ledger
}

/// Removes every item from the queue after a cut.
fn take_all(seed: u64, disk: SimBlock) -> Vec<u64> {
    let mut site = Site::with_disk(seed, disk, LinkConfig::default(), &[]);
    let tags = site.run(async move |client| {
        let mut tags = Vec::new();
        loop {
            let reply = client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await;
            if reply.status == 204 {
                return tags;
            }
            assert_eq!(reply.status, 200, "seed {seed}: {reply:?}");
            let tag = tag_of(&reply.body);
            assert!(!reply.cut && reply.body == content(tag), "seed {seed}: item {tag} is not whole");
            assert_eq!(client.delete(&reply).await.status, 200);
            tags.push(tag);
        }
    });
    let free = site.figure("bytes free");
    let (left, all) = free.split_once(" of ").unwrap();
    assert_eq!(left, all, "seed {seed}: space leaks");
    tags
}

#[test]
fn what_clients_were_told_is_true_after_a_power_cut() {
    let mut cut_short = 0;
    for_seeds(0..150, |seed| {
        let config = DiskConfig {
            size_bytes: DISK_BYTES,
            sector_bytes: if seed % 2 == 0 { 512 } else { 4096 },
            ..DiskConfig::default()
        };
        let disk = SimBlock::new(seed, config);
        let ledger = live(seed, disk.clone(), Chance::new(seed).below(160));
        let found = take_all(seed, disk.restart(seed + 1));
        let ledger = ledger.borrow();
        for sent in &ledger.uploads {
            let removed = ledger.removes.iter().find(|(tag, _)| *tag == sent.tag);
            let there = found.contains(&sent.tag);
            match removed {
                Some((tag, true)) => assert!(!there, "seed {seed}: item {tag} is back after its removal"),
                Some((_, false)) => {}
                None => assert!(there || sent.answered.is_none(), "seed {seed}: item {} is lost", sent.tag),
            }
            cut_short += u64::from(sent.answered.is_none());
        }
        let sent: Vec<Sent> = found
            .iter()
            .map(|tag| *ledger.uploads.iter().find(|sent| sent.tag == *tag).expect("it was sent"))
            .collect();
        for (place, later) in sent.iter().enumerate() {
            for earlier in &sent[..place] {
                let swapped = later.answered.is_some_and(|answered| answered < earlier.began);
                assert!(!swapped, "seed {seed}: item {} is before item {}", earlier.tag, later.tag);
            }
        }
    });
    assert!(cut_short > 100 || std::env::var_os("GLASS_SIM_SEED").is_some(), "only {cut_short} uploads were cut short");
}
