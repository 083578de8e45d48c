//! Clients that are slow, absent, too many or not HTTP clients at all.

use crate::common::site::{Site, content, put_head};
use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, NodeConfig, SimBlock};
use glasshouse::sync::Latch;
use glasshouse::{Clock, Net, Platform, Spawn, Stream};
use upload_queue::limits::SMALL_BYTES;

const MIB: u64 = 1 << 20;

#[test]
fn the_space_of_clients_that_vanish_comes_back() {
    let mut site = Site::new(6, MIB, &[]);
    let free = site.figure("bytes free");
    // One resets its connection.
    site.run(async |client| {
        let mut peer = client.connect().await;
        peer.send(put_head(600_000)).await;
        peer.send(content(1, 100_000)).await;
        client.node.sleep(Duration::from_secs(1)).await;
    });
    site.world.run_for(Duration::from_secs(1)).unwrap();
    assert_eq!(site.figure("bytes free"), free);
    // One stops sending: it gets an answer, and its space is free after two windows at most.
    let reply = site.run(async |client| {
        let mut peer = client.connect().await;
        peer.send(put_head(600_000)).await;
        peer.send(content(1, 100_000)).await;
        let began = client.node.now();
        let reply = peer.reply().await;
        assert!(client.node.now() - began < Duration::from_secs(65));
        reply
    });
    assert_eq!(reply.status, 408);
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn a_download_waits_for_an_item() {
    let mut site = Site::new(7, MIB, &[]);
    let (client, uploader) = (site.client(), site.client());
    site.client.run("later", async move {
        uploader.node.sleep(Duration::from_secs(3000)).await;
        assert_eq!(uploader.put(b"at last").await.status, 200);
    });
    site.run(async move |_| {
        let reply = client.get().await;
        assert_eq!(reply.text(), "at last");
        assert!(client.node.now().0 > 3000 * 1_000_000_000);
        client.delete(&reply).await;
        // With a limit it ends, and on time.
        let began = client.node.now();
        let reply = client.ask("GET /downloader?a=b&wait=20 HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!(reply.status, 204);
        let took = client.node.now() - began;
        assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(21), "{took:?}");
    });
}

#[test]
fn a_waiting_client_that_leaves_is_noticed() {
    let mut site = Site::new(8, MIB, &[]);
    site.world.run_for(Duration::from_secs(10)).unwrap();
    let tasks = site.server.task_count();
    site.run(async |client| {
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let mut peer = client.connect().await;
            peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            waiting.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
    });
    site.world.run_for(Duration::from_secs(20)).unwrap();
    assert_eq!(site.server.task_count(), tasks);
}

#[test]
fn a_waiting_client_that_ended_its_half_still_gets_the_item() {
    let mut site = Site::new(28, MIB, &[]);
    site.run(async |client| {
        let half_closed = async |target: &str| {
            let mut peer = client.connect().await;
            peer.send(format!("GET {target} HTTP/1.1\r\nHost: q\r\n\r\n")).await;
            peer.stream.close().await.unwrap();
            peer
        };
        let (mut early, began) = (half_closed("/downloader").await, client.node.now());
        client.node.sleep(Duration::from_secs(20)).await;
        assert_eq!(client.put(b"worth the wait").await.status, 200);
        let reply = early.reply().await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "worth the wait"));
        assert!(early.ends().await && client.node.now() - began < Duration::from_secs(21));
        client.delete(&reply).await;
        // Whether it still reads cannot be detected, so its wait is bounded; a shorter wait stays shorter.
        for (target, seconds) in [("/downloader", 30), ("/downloader?wait=1000", 30), ("/downloader?wait=7", 7)] {
            let (mut late, began) = (half_closed(target).await, client.node.now());
            assert_eq!(late.reply().await.status, 204);
            let took = client.node.now() - began;
            assert_eq!(took.as_secs(), seconds, "{target}: {took:?}");
        }
        // One that has closed the whole connection removes nothing.
        let gone = half_closed("/downloader").await;
        client.node.sleep(Duration::from_secs(1)).await;
        drop(gone);
        assert_eq!(client.put(b"still there").await.status, 200);
        assert_eq!(client.get().await.text(), "still there");
    });
}

#[test]
fn too_many_waiting_clients_are_turned_away_and_the_rest_is_served() {
    let mut site = Site::new(9, MIB, &[]);
    // The network of the simulated machine has a bound, of which an eighth is left to spare, 8 at most.
    let network = site.run(async |client| client.node.net().up().await.unwrap());
    turn_away(site, (network.connections_max - 8) / upload_queue::limits::WAITING_PART);
    let disks = vec![SimBlock::new(32, DiskConfig { size_bytes: MIB, ..DiskConfig::default() })];
    let mut config = NodeConfig { disks, ..NodeConfig::default() };
    config.network.connections_max = 28;
    turn_away(Site::with_config(32, config), (28 - 3) / upload_queue::limits::WAITING_PART);
}

fn turn_away(mut site: Site, waiting_max: usize) {
    site.run(async move |client| {
        let mut waiting = Vec::new();
        for _ in 0..waiting_max {
            let mut peer = client.connect().await;
            peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            waiting.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
        let reply = client.get().await;
        assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("1")));
        assert_eq!(client.put(b"for all").await.status, 200);
        for peer in &mut waiting {
            assert_eq!(peer.reply().await.text(), "for all");
        }
    });
}

#[test]
fn an_upload_beyond_the_bound_waits_for_those_that_move() {
    let mut site = Site::new(10, MIB, &[]);
    site.run(async |client| {
        let mut slow = Vec::new();
        for _ in 0..upload_queue::limits::SHARE_MAX {
            let mut peer = client.connect().await;
            peer.send(put_head(10)).await;
            peer.send("12345").await;
            slow.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
        // One that ends in time makes room for one that waits.
        let mut last = slow.pop().unwrap();
        let sender = client.node.clone();
        client
            .node
            .spawn("last", async move {
                sender.sleep(Duration::from_millis(500)).await;
                last.send("67890").await;
                assert_eq!(last.reply().await.status, 200);
            })
            .unwrap();
        assert_eq!(client.put(b"patient").await.status, 200);
    });
}

#[test]
fn uploads_beyond_the_places_are_refused_while_the_others_move() {
    let mut site = Site::new(29, 64 * MIB, &[]);
    site.run(async |client| {
        for number in 0..upload_queue::limits::SHARE_MAX as u64 {
            let mut peer = client.connect().await;
            let sender = client.node.clone();
            let moving = async move {
                peer.send(put_head(10_000_000)).await;
                // More than the minimum for a client while others wait for its place.
                for _ in 0..20 {
                    peer.send(content(number, 200_000)).await;
                    sender.sleep(Duration::from_secs(1)).await;
                }
            };
            client.node.spawn("moving", moving).unwrap();
        }
        client.node.sleep(Duration::from_secs(3)).await;
        let began = client.node.now();
        let reply = client.put(&content(9, SMALL_BYTES as usize + 1)).await;
        assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("1")), "{}", reply.text());
        assert_eq!((client.node.now() - began).as_secs(), upload_queue::limits::SLOT_WAIT.as_secs());
        // A small one waits for none of them.
        let began = client.node.now();
        assert_eq!(client.put(&content(9, SMALL_BYTES as usize)).await.status, 200);
        assert_eq!((client.node.now() - began).as_secs(), 0);
        assert_eq!(client.ask("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 200);
    });
}

#[test]
fn a_trickle_is_ended_and_a_slow_upload_is_not() {
    let mut site = Site::new(29, MIB, &[]);
    site.run(async |client| {
        for (piece_bytes, status) in [(100_000, 200), (32_000, 408)] {
            let mut peer = client.connect().await;
            peer.send(put_head(5 * piece_bytes)).await;
            for _ in 0..5 {
                peer.send(content(1, piece_bytes)).await;
                client.node.sleep(Duration::from_secs(20)).await;
            }
            assert_eq!(peer.reply().await.status, status, "{piece_bytes} bytes in 20 s");
        }
    });
}

#[test]
fn uploads_that_stand_still_lose_their_places_to_one_that_waits() {
    let mut site = Site::new(24, 4 * MIB, &[]);
    site.run(async |client| {
        let mut stalled = Vec::new();
        for _ in 0..upload_queue::limits::UPLOADS_MAX {
            let mut peer = client.connect().await;
            peer.send(put_head(100_000)).await;
            peer.send("some").await;
            stalled.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
        // All from one address: each of these finds a place in time.
        for tag in 0..10 {
            let began = client.node.now();
            assert_eq!(client.put(&content(tag, 50_000)).await.status, 200);
            assert!(client.node.now() - began < Duration::from_secs(5));
        }
        let reply = stalled[0].reply().await;
        assert_eq!(
            (reply.status, reply.text().contains("less than 131072 bytes were transferred in 2s")),
            (408, true),
            "{reply:?}"
        );
    });
}

#[test]
fn downloads_that_stand_still_lose_their_places_to_one_that_waits() {
    let mut site = Site::new(25, 4 * MIB, &[]);
    site.run(async |client| {
        assert_eq!(client.put(&content(1, 3_000_000)).await.status, 200);
        let mut stalled = Vec::new();
        for _ in 0..upload_queue::limits::DOWNLOADS_MAX {
            let mut peer = client.connect().await;
            peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            stalled.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
        let began = client.node.now();
        let reply = client.get().await;
        assert!(reply.body == content(1, 3_000_000), "{} {} bytes", reply.head, reply.body.len());
        assert!(client.node.now() - began < Duration::from_secs(5));
    });
}

#[test]
fn one_client_that_announces_all_space_takes_none_from_others() {
    let mut site = Site::new(26, 4 * MIB, &[]);
    let free: usize = site.figure("bytes free").split(' ').next().unwrap().parse().unwrap();
    site.run(async move |client| {
        let mut greedy = client.connect().await;
        greedy.send(put_head(free)).await;
        greedy.send(content(0, 8192)).await;
        client.node.sleep(Duration::from_secs(1)).await;
        for tag in 1..4 {
            assert_eq!(client.put(&content(tag, 1_000_000)).await.status, 200);
        }
        // The remaining space is less than it announced, and it is answered when no space is left.
        greedy.send(content(0, free - 8192)).await;
        assert_eq!(greedy.reply().await.status, 507);
        for tag in 1..4 {
            let reply = client.get().await;
            assert!(reply.body == content(tag, 1_000_000));
            client.delete(&reply).await;
        }
        assert_eq!(client.put(&content(5, free)).await.status, 200);
    });
}

#[test]
fn an_upload_that_goes_on_keeps_its_space_and_one_that_stands_still_does_not() {
    let mut site = Site::new(27, 4 * MIB, &[]);
    site.run(async move |client| {
        let data = content(0, 3_000_000);
        let mut steady = client.connect().await;
        steady.send(put_head(data.len())).await;
        for part in data.chunks(300_000) {
            steady.send(part.to_vec()).await;
            client.node.sleep(Duration::from_secs(3)).await;
            // Each newcomer would take what this one lacks at its end.
            assert_eq!(client.put(&content(1, 2_000_000)).await.status, 507);
        }
        assert_eq!(steady.reply().await.status, 200);
        client.delete(&client.get().await).await;
        let mut stands = client.connect().await;
        stands.send(put_head(data.len())).await;
        stands.send(data[..300_000].to_vec()).await;
        let mut answers = Vec::new();
        for _ in 0..3 {
            client.node.sleep(Duration::from_secs(9)).await;
            answers.push(client.put(&content(2, 2_000_000)).await.status);
        }
        assert_eq!(answers, [507, 507, 200]);
    });
}

#[test]
fn a_burst_of_connections_beyond_the_bound_delays_nobody() {
    let mut site = Site::new(30, MIB, &[]);
    let remote = site.client().remote;
    for _ in 0..4 {
        let node = site.world.node("idle", NodeConfig::default());
        let own = node.clone();
        node.run("connect", async move {
            let connections_max = own.net().up().await.unwrap().connections_max;
            for _ in 0..connections_max {
                let node = own.clone();
                let idle = async move {
                    let stream = node.net().connect(remote).await;
                    node.sleep(Duration::from_secs(100)).await;
                    drop(stream);
                };
                own.spawn("idle", idle).unwrap();
            }
        });
    }
    site.run(async |client| {
        for _ in 0..20 {
            let began = client.node.now();
            assert_eq!(client.ask("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 200);
            let took = client.node.now() - began;
            // A lost SYN is retransmitted after a second.
            assert!(took < Duration::from_millis(900), "{took:?}");
        }
    });
}

#[test]
fn connections_that_no_task_can_serve_are_reset_and_told_once() {
    let mut site = Site::new(31, MIB, &[]);
    let (server, others) = (site.server.clone(), Latch::new());
    site.run(async move |client| {
        while server.spawn("other", others.wait()).is_ok() {}
        for _ in 0..3 {
            let mut peer = client.connect().await;
            peer.send("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await;
            assert!(peer.try_reply().await.is_none());
        }
        others.open();
        client.node.sleep(Duration::from_secs(1)).await;
        assert_eq!(client.ask("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 200);
    });
    let console = site.server.console();
    let reported = console.iter().filter(|line| line.contains("a connection was not accepted: "));
    assert_eq!(reported.count(), 1, "{console:?}");
}

#[test]
fn connections_that_do_nothing_hold_up_nobody() {
    let mut site = Site::new(27, MIB, &[]);
    site.run(async |client| {
        let connections_max = client.node.net().up().await.unwrap().connections_max;
        // The client's machine has the same bound: it keeps one for itself.
        let mut idle = Vec::new();
        for number in 0..connections_max - 1 {
            let mut peer = client.connect().await;
            match number % 3 {
                0 => {}
                1 => peer.send("GET / HTT").await,
                _ => peer.send("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await,
            }
            idle.push(peer);
        }
        client.node.sleep(Duration::from_secs(1)).await;
        let began = client.node.now();
        let reply = client.ask("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!(reply.status, 200);
        assert!(client.node.now() - began < Duration::from_secs(1));
    });
}

#[test]
fn ten_thousand_random_requests_end_and_leave_nothing() {
    let mut site = Site::new(14, MIB, &[]);
    let free = site.figure("bytes free");
    site.run(async |client| {
        let mut chance = Chance::new(99);
        let words = [
            "GET ",
            "PUT ",
            "DELETE ",
            "/uploader",
            "/downloader",
            "?wait=0",
            " HTTP/1.1",
            "\r\n",
            "Host: q",
            "\r\n\r\n",
            "Content-Length: 3",
            "Content-Length: 70000",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "If-Match: *",
            "If-Match: \"1-0\"",
            "If-Range: \"1-0\"",
            "Range: bytes=",
            "0-1",
            "Content-Digest: sha-256=:",
            "Want-Repr-Digest: sha-512=1",
            "Trailer: Repr-Digest",
            "Authorization: Bearer ",
            "abc",
            "\0",
            "é",
        ];
        for _ in 0..10_000 {
            let mut bytes = Vec::new();
            for _ in 0..chance.below(14) {
                if chance.below(4) == 0 {
                    let mut noise = vec![0; chance.below(40) as usize];
                    chance.fill(&mut noise);
                    bytes.extend_from_slice(&noise);
                } else {
                    bytes.extend_from_slice(words[chance.below(words.len() as u64) as usize].as_bytes());
                }
            }
            let mut peer = client.connect().await;
            peer.send(&bytes).await;
            let _ = peer.stream.close().await;
            let mut answers = 0;
            while let Some(reply) = peer.try_reply().await {
                assert!(reply.status == 100 || reply.status >= 200, "{bytes:?}: {reply:?}");
                answers += 1;
            }
            assert!(answers < 20);
        }
        loop {
            let reply = client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await;
            if reply.status != 200 {
                break;
            }
            client.delete(&reply).await;
        }
    });
    site.world.run_for(Duration::from_secs(400)).unwrap();
    assert_eq!(site.figure("bytes free"), free);
    assert_eq!(site.server.task_count(), 4);
    let console = site.server.console();
    // Two of them warn: it has neither TLS nor tokens.
    assert_eq!(console.len(), 6, "{console:?}");
}
