//! TCP on bad networks, with many seeds.

use crate::common::{PORT, echo, listen, pattern, read_to_end};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use glass_api::{Clock, Net, NetError, Platform, Stream};
use glass_lib_net::{Address, Config, Ipv6};
use glass_platform_sim::{Chance, LinkConfig, Node, NodeConfig, World, for_seeds};
use std::rc::Rc;

const MINUTE: Duration = Duration::from_secs(60);

fn with_link(link: LinkConfig) -> NodeConfig {
    NodeConfig { link, ..NodeConfig::default() }
}

/// Sends `bytes` to a node that echoes them.
fn push(world: &mut World, from: &Node, to: &Node, bytes: usize, limit: Duration) -> Vec<u8> {
    let seed = world.seed();
    let received = Rc::new(RefCell::new(None));
    let slot = received.clone();
    listen(to, move |mut stream| {
        let slot = slot.clone();
        async move {
            // Reads of an odd size cross the ring's end in every possible way.
            let got = read_to_end(&mut stream, 7001).await;
            *slot.borrow_mut() = Some(got);
            let _ = stream.close().await;
        }
    });
    let (net, remote) = (from.net(), to.endpoint(PORT));
    let sent = world.complete(from, limit, async move {
        let mut stream = net.connect(remote).await?;
        let mut chance = Chance::new(seed);
        let mut place = 0;
        while place < bytes {
            let end = bytes.min(place + 1 + chance.below(50_000) as usize);
            stream.write_all(&pattern(seed, place..end)).await?;
            place = end;
        }
        stream.close().await?;
        // The peer closes when it has everything.
        stream.read(&mut [0; 1]).await
    });
    assert_eq!(sent.unwrap(), Ok(0), "seed {seed}");
    received.take().unwrap().unwrap()
}

#[test]
fn a_bulk_transfer_over_a_bad_network_is_exact() {
    for_seeds(0..60, |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", with_link(LinkConfig::bad()));
        let client = world.node("client", with_link(LinkConfig::bad()));
        let bytes = 400_000 + seed as usize;
        let received = push(&mut world, &client, &server, bytes, 10 * MINUTE);
        assert!(received == pattern(seed, 0..bytes), "seed {seed}: {} bytes", received.len());
        let counters = world.network_counters();
        assert!(counters.lost > 0 && counters.duplicated > 0 && counters.reordered > 0, "{counters:?}");
    });
}

/// The longest time without a byte is that of a few timeouts of the sender, which double.
#[test]
fn one_frame_lost_in_twenty_stalls_no_transfer() {
    for_seeds(0..40, |seed| {
        let mut world = World::new(seed);
        let link = || with_link(LinkConfig { loss_per_million: 50_000, ..LinkConfig::default() });
        let (server, client) = (world.node("server", link()), world.node("client", link()));
        listen(&server, move |mut stream| async move {
            stream.write_all(&pattern(seed, 0..400_000)).await.unwrap();
            stream.close().await.unwrap();
        });
        let (here, remote) = (client.clone(), server.endpoint(PORT));
        let (received, longest) = world
            .complete(&client, 10 * MINUTE, async move {
                // An address by DHCP, ARP and a handshake may lose too much for one attempt.
                let mut stream = match here.net().connect(remote).await {
                    Err(NetError::TimedOut) => here.net().connect(remote).await.unwrap(),
                    result => result.unwrap(),
                };
                let (mut received, mut piece) = (Vec::new(), vec![0; 10_000]);
                let (mut last, mut longest) = (here.now(), Duration::ZERO);
                loop {
                    let bytes = stream.read(&mut piece).await.unwrap();
                    longest = longest.max(here.now() - last);
                    last = here.now();
                    if bytes == 0 {
                        return (received, longest);
                    }
                    received.extend_from_slice(&piece[..bytes]);
                }
            })
            .unwrap();
        assert!(received == pattern(seed, 0..400_000), "seed {seed}");
        assert!(longest < Duration::from_secs(10), "seed {seed}: {longest:?} without a byte");
    });
}

#[test]
fn one_seed_has_one_trace() {
    let run = |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", with_link(LinkConfig::bad()));
        let client = world.node("client", with_link(LinkConfig::bad()));
        push(&mut world, &client, &server, 100_000, 10 * MINUTE);
        (world.fingerprint(), world.now(), world.network_counters())
    };
    for_seeds(0..10, |seed| assert_eq!(run(seed), run(seed), "seed {seed}"));
    assert_ne!(run(1).0, run(2).0);
}

/// Over links that lose, repeat and reorder frames, also those of neighbour discovery.
#[test]
fn bytes_arrive_over_ipv6() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        let config = || {
            let network = Config { ipv6: Ipv6::Auto, ..Config::for_memory(Address::Dhcp, 32 << 20) };
            NodeConfig { network, ..with_link(LinkConfig::bad()) }
        };
        let (server, client) = (world.node("server", config()), world.node("client", config()));
        listen(&server, echo);
        let (net, remote, done) = (client.net(), server.ipv6_endpoint(PORT), Rc::new(Cell::new(false)));
        let is_done = done.clone();
        client.run("client", async move {
            let mut stream = net.connect(remote).await.unwrap();
            let data = pattern(6, 0..30_000);
            stream.write_all(&data).await.unwrap();
            stream.close().await.unwrap();
            assert!(read_to_end(&mut stream, 1000).await.unwrap() == data);
            is_done.set(true);
        });
        world.run_until(5 * MINUTE, || done.get()).unwrap();
    });
}

#[test]
fn many_clients_at_once_are_served_beyond_the_backlog() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        let network = Config { backlog_max: 1, ..Config::for_memory(Address::Dhcp, 32 << 20) };
        let server = world.node("server", NodeConfig { network, ..NodeConfig::default() });
        listen(&server, echo);
        let done = Rc::new(Cell::new(0));
        for index in 0..40 {
            let client = world.node(&format!("client {index}"), with_link(LinkConfig::bad()));
            let (net, remote, done) = (client.net(), server.endpoint(PORT), done.clone());
            client.run("client", async move {
                let mut stream = net.connect(remote).await.unwrap();
                let data = pattern(index, 0..30_000);
                stream.write_all(&data).await.unwrap();
                stream.close().await.unwrap();
                assert!(read_to_end(&mut stream, 1000).await.unwrap() == data);
                done.set(done.get() + 1);
            });
        }
        world.run_until(5 * MINUTE, || done.get() == 40).unwrap();
        let counters = world.stack_counters(&server);
        assert_eq!(counters.accepted, 40, "{counters:?}");
        world.run_for(MINUTE).unwrap();
        assert_eq!(world.connection_count(&server), 0, "seed {seed}");
    });
}

/// Acknowledgements of both directions were lost at the same time and never repaired: see `resync.rs` of lib/net.
#[test]
fn an_outage_amid_data_in_both_directions_is_overcome() {
    for_seeds(0..40, |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", NodeConfig::default());
        let client = world.node("client", NodeConfig::default());
        listen(&server, echo);
        let (here, cable) = (client.clone(), client.clone());
        client.run("outage", async move {
            here.sleep(Duration::from_micros(1000 + 100 * seed)).await;
            cable.set_link(LinkConfig::unplugged());
            here.sleep(Duration::from_millis(100)).await;
            cable.set_link(LinkConfig::default());
        });
        let (net, remote) = (client.net(), server.endpoint(PORT));
        let echoed = world.complete(&client, MINUTE, async move {
            let mut stream = net.connect(remote).await?;
            for round in 0..30 {
                let data = pattern(round, 0..40_000);
                stream.write_all(&data).await?;
                let mut reply = vec![0; data.len()];
                let mut filled = 0;
                while filled < reply.len() {
                    filled += stream.read(&mut reply[filled..]).await?;
                }
                assert!(reply == data, "seed {seed}, round {round}");
            }
            stream.close().await
        });
        assert_eq!(echoed.unwrap(), Ok(()), "seed {seed}");
    });
}

#[test]
fn connections_beyond_the_limit_wait_for_their_turn() {
    let mut world = World::new(1);
    let network = Config { connections_max: 3, ..Config::for_memory(Address::Dhcp, 32 << 20) };
    let server = world.node("server", NodeConfig { network, ..NodeConfig::default() });
    listen(&server, echo);
    let client = world.node("client", NodeConfig::default());
    let (done, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for _ in 0..10 {
        let (here, remote, done) = (client.clone(), server.endpoint(PORT), done.clone());
        client.run("client", async move {
            let mut stream = loop {
                match here.net().connect(remote).await {
                    Ok(stream) => break stream,
                    Err(error) => assert_eq!(error, NetError::TimedOut),
                }
            };
            here.sleep(Duration::from_secs(1)).await;
            stream.write_all(b"x").await.unwrap();
            stream.close().await.unwrap();
            assert_eq!(read_to_end(&mut stream, 10).await.unwrap(), b"x");
            done.set(done.get() + 1);
        });
    }
    while done.get() < 10 {
        world.run_for(Duration::from_millis(100)).unwrap();
        most.set(most.get().max(world.connection_count(&server)));
        assert!(world.now().0 < 300_000_000_000);
    }
    assert_eq!(most.get(), 3);
    assert!(world.stack_counters(&server).refused_limit > 0);
}

#[test]
fn data_queued_at_close_arrives_although_the_stream_is_gone() {
    for_seeds(0..30, |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", with_link(LinkConfig::bad()));
        let client = world.node("client", with_link(LinkConfig::bad()));
        let answered = Rc::new(Cell::new(false));
        let flag = answered.clone();
        listen(&server, move |mut stream| {
            let flag = flag.clone();
            async move {
                // All of it fits into the socket: nothing has to be acknowledged before the drop.
                stream.write_all(&pattern(1, 0..60_000)).await.unwrap();
                stream.close().await.unwrap();
                drop(stream);
                flag.set(true);
            }
        });
        let (here, remote, flag) = (client.clone(), server.endpoint(PORT), answered.clone());
        let received = world.complete(&client, 5 * MINUTE, async move {
            let mut stream = here.net().connect(remote).await.unwrap();
            while !flag.get() {
                here.sleep(Duration::from_millis(50)).await;
            }
            let received = read_to_end(&mut stream, 999).await.unwrap();
            stream.close().await.unwrap();
            received
        });
        assert!(received.unwrap() == pattern(1, 0..60_000), "seed {seed}");
        world.run_for(MINUTE).unwrap();
        assert_eq!(world.connection_count(&server), 0, "seed {seed}");
        assert_eq!(world.connection_count(&client), 0, "seed {seed}");
    });
}

#[test]
fn a_peer_that_still_sends_gets_the_answer_before_it_is_cut_off() {
    let mut world = World::new(1);
    let server = world.node("server", NodeConfig::default());
    let client = world.node("client", NodeConfig::default());
    listen(&server, |mut stream| async move {
        stream.read(&mut [0; 10]).await.unwrap();
        stream.write_all(b"no").await.unwrap();
        stream.close().await.unwrap();
    });
    let (net, remote) = (client.net(), server.endpoint(PORT));
    let (answer, sent) = world
        .complete(&client, MINUTE, async move {
            let mut stream = net.connect(remote).await.unwrap();
            let mut sent = 0;
            // More than any buffer on the path holds, less than the peer drops.
            while sent < 2_000_000 {
                sent += stream.write(&[1; 10_000]).await.unwrap();
            }
            let answer = {
                let mut answer = [0; 10];
                let count = stream.read(&mut answer).await.unwrap();
                answer[..count].to_vec()
            };
            // Without limit is too long.
            while stream.write(&[1; 10_000]).await.is_ok_and(|count| {
                sent += count;
                sent < 100_000_000
            }) {}
            (answer, sent)
        })
        .unwrap();
    assert_eq!(answer, b"no");
    // The server discards 4 MiB; the rest is in the buffers of both ends.
    assert!(sent < 25_000_000, "{sent} bytes were taken");
    assert_eq!(world.stack_counters(&server).linger_cut, 1);
}

#[test]
fn a_client_that_vanishes_is_noticed_and_its_socket_freed() {
    for_seeds(0..20, |seed| {
        for phase in ["idle", "sending", "receiving", "closing"] {
            let mut world = World::new(seed);
            let server = world.node("server", NodeConfig::default());
            let client = world.node("client", NodeConfig::default());
            let outcome = Rc::new(Cell::new(None));
            let slot = outcome.clone();
            listen(&server, move |mut stream| {
                let slot = slot.clone();
                async move {
                    let result = match phase {
                        "receiving" => loop {
                            if let Err(error) = stream.write(&[0; 1000]).await {
                                break Err(error);
                            }
                        },
                        "closing" => match stream.write_all(&[0; 50_000]).await {
                            Ok(()) => stream.close().await,
                            // It vanished before the congestion window had room for everything.
                            error => error,
                        },
                        _ => loop {
                            match stream.read(&mut [0; 1000]).await {
                                Ok(0) => break Ok(()),
                                Ok(_) => {}
                                Err(error) => break Err(error),
                            }
                        },
                    };
                    slot.set(Some(result));
                }
            });
            let (here, remote) = (client.clone(), server.endpoint(PORT));
            client.run("client", async move {
                let mut stream = here.net().connect(remote).await.unwrap();
                match phase {
                    "sending" => while stream.write(&[0; 1000]).await.is_ok() {},
                    "receiving" => while stream.read(&mut [0; 1000]).await.is_ok() {},
                    _ => here.sleep(10 * MINUTE).await,
                }
            });
            world.run_for(Duration::from_micros(500 + 37 * seed)).unwrap();
            assert_eq!(world.connection_count(&server), 1, "seed {seed}, {phase}");
            client.power_off();
            world.run_for(2 * MINUTE).unwrap();
            assert_eq!(world.connection_count(&server), 0, "seed {seed}, {phase}");
            match (phase, outcome.get()) {
                ("closing", Some(Ok(()))) | (_, Some(Err(NetError::TimedOut))) => {}
                // It can vanish before the connection is open.
                (_, None) => assert_eq!(world.stack_counters(&server).accepted, 0, "seed {seed}, {phase}"),
                (_, other) => panic!("seed {seed}, {phase}: {other:?}"),
            }
        }
    });
}

#[test]
fn an_idle_connection_outlives_the_timeout_and_a_short_cut_of_the_cable() {
    let mut world = World::new(3);
    let server = world.node("server", NodeConfig::default());
    let client = world.node("client", NodeConfig::default());
    listen(&server, echo);
    let (here, remote) = (client.clone(), server.endpoint(PORT));
    let cable = client.clone();
    let reply = world.complete(&client, 20 * MINUTE, async move {
        let mut stream = here.net().connect(remote).await?;
        here.sleep(5 * MINUTE).await;
        cable.set_link(LinkConfig::unplugged());
        stream.write_all(b"still there?").await?;
        here.sleep(Duration::from_secs(20)).await;
        cable.set_link(LinkConfig::default());
        let mut reply = [0; 12];
        let mut filled = 0;
        while filled < reply.len() {
            filled += stream.read(&mut reply[filled..]).await?;
        }
        Ok::<_, NetError>(reply)
    });
    assert_eq!(reply.unwrap(), Ok(*b"still there?"));
}

#[test]
fn a_slow_reader_stops_the_writer_and_loses_nothing() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", with_link(LinkConfig::bad()));
        let client = world.node("client", NodeConfig::default());
        let received = Rc::new(RefCell::new(Vec::new()));
        let (slot, here) = (received.clone(), server.clone());
        listen(&server, move |mut stream| {
            let (slot, here) = (slot.clone(), here.clone());
            async move {
                let mut buf = vec![0; 20_000];
                loop {
                    here.sleep(Duration::from_millis(300)).await;
                    match stream.read(&mut buf).await.unwrap() {
                        0 => return stream.close().await.unwrap(),
                        count => slot.borrow_mut().extend_from_slice(&buf[..count]),
                    }
                }
            }
        });
        let (net, remote) = (client.net(), server.endpoint(PORT));
        let bytes = 500_000;
        let ended = world.complete(&client, 10 * MINUTE, async move {
            let mut stream = net.connect(remote).await?;
            stream.write_all(&pattern(seed, 0..bytes)).await?;
            stream.close().await?;
            stream.read(&mut [0; 1]).await
        });
        assert_eq!(ended.unwrap(), Ok(0), "seed {seed}");
        assert!(*received.borrow() == pattern(seed, 0..bytes), "seed {seed}");
    });
}

#[test]
fn a_listener_that_goes_resets_what_it_did_not_accept() {
    let mut world = World::new(1);
    let server = world.node("server", NodeConfig::default());
    let client = world.node("client", NodeConfig::default());
    let here = server.clone();
    server.run("listener", async move {
        let _listener = here.net().listen(PORT).await.unwrap();
        here.sleep(Duration::from_secs(1)).await;
    });
    let (net, remote) = (client.net(), server.endpoint(PORT));
    let read = world.complete(&client, MINUTE, async move { net.connect(remote).await?.read(&mut [0; 1]).await });
    assert_eq!(read.unwrap(), Err(NetError::Reset));
    world.run_for(Duration::from_secs(5)).unwrap();
    assert_eq!(world.connection_count(&server), 0);
}

#[test]
fn a_narrow_network_with_a_short_queue_is_used_well() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        // 10 MB/s, and a window that is several times what the queue holds.
        let link = LinkConfig { bytes_per_sec: Some(10_000_000), queue_bytes: 60_000, ..LinkConfig::default() };
        let network = Config::for_memory(Address::Dhcp, 128 << 20);
        let node = NodeConfig { link, network, ..NodeConfig::default() };
        let server = world.node("server", node.clone());
        let client = world.node("client", node);
        let received = push(&mut world, &client, &server, 3_000_000, MINUTE);
        assert!(received == pattern(seed, 0..3_000_000), "seed {seed}");
        // Without congestion control this takes minutes. One retransmission timeout is a second.
        assert!(world.now().0 < 5_000_000_000, "seed {seed}: {}", world.now());
    });
}
