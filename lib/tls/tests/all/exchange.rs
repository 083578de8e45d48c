//! What arrives: everything, in order, over good and bad networks, and the end of each half.

use crate::site::{Connection, LIMIT, NAME, PORT, Site, echo, identity, pattern, read_to_end};
use core::time::Duration;
use glass_api::{Clock, Listener, Net, NetError, Platform, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_tls::{ClientOptions, ServerOptions};
use glass_platform_sim::{LinkConfig, NodeConfig, for_seeds};
use std::cell::Cell;
use std::rc::Rc;

/// Sends while it receives, and returns what came back.
async fn exchange(stream: Connection, sent: Vec<u8>) -> Vec<u8> {
    let mut stream = stream;
    stream.handshake().await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let send = async {
        writer.write_all(&sent).await.unwrap();
        writer.close().await.unwrap();
    };
    let receive = async {
        let (mut all, mut buf) = (Vec::new(), vec![0; 3000]);
        loop {
            match reader.read(&mut buf).await.unwrap() {
                0 => return all,
                count => all.extend_from_slice(&buf[..count]),
            }
        }
    };
    embassy_futures::join::join(send, receive).await.1
}

#[test]
fn bytes_arrive_over_a_bad_network() {
    for_seeds(0..20, |seed| {
        let mut site = Site::new(seed, LinkConfig::bad());
        let server = site.tls_server(identity("server"), ServerOptions::default());
        site.serve(&server, echo);
        let client = site.tls_client("root", ClientOptions::default());
        for bytes in [0, 1, 16_384, 16_385, 100_000] {
            let sent = pattern(seed, bytes);
            let expected = sent.clone();
            assert!(site.call(&client, NAME, move |stream| exchange(stream, sent)) == expected, "{bytes} bytes");
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let fingerprint = |seed| {
        let mut site = Site::new(seed, LinkConfig::default());
        let server = site.tls_server(identity("server"), ServerOptions::default());
        site.serve(&server, echo);
        let client = site.tls_client("root", ClientOptions::default());
        for _ in 0..3 {
            site.call(&client, NAME, |stream| exchange(stream, pattern(1, 20_000)));
        }
        site.world.fingerprint()
    };
    assert_eq!(fingerprint(3), fingerprint(3));
    assert_ne!(fingerprint(3), fingerprint(4));
}

#[test]
fn a_half_that_is_closed_leaves_the_other_one_open() {
    let mut site = Site::new(1, LinkConfig::default());
    let server = site.tls_server(identity("server"), ServerOptions::default());
    let here = site.server.clone();
    site.serve(&server, move |mut stream| {
        let here = here.clone();
        async move {
            let question = read_to_end(&mut stream, 100).await.unwrap();
            // Long after the client's end.
            here.sleep(Duration::from_secs(5)).await;
            stream.write_all(&question).await.unwrap();
            stream.write_all(b" answered").await.unwrap();
            stream.close().await.unwrap();
        }
    });
    let client = site.tls_client("root", ClientOptions::default());
    let answer = site.call(&client, NAME, |mut stream| async move {
        stream.write_all(b"question").await.unwrap();
        stream.close().await.unwrap();
        assert_eq!(stream.write(b"more").await, Err(NetError::Reset));
        read_to_end(&mut stream, 7).await
    });
    assert_eq!(answer.unwrap(), b"question answered");
}

#[test]
fn an_end_without_close_notify_is_reported() {
    let mut site = Site::new(1, LinkConfig::default());
    // What is between both copies some records, and ends in order, as an attacker would who cuts a response short.
    let attacker = site.world.node("attacker", NodeConfig::default());
    let (here, target) = (attacker.clone(), site.server.endpoint(PORT));
    attacker.run("attacker", async move {
        let mut listener = here.net().listen(PORT).await.unwrap();
        let (mut near_reader, mut near_writer) = listener.accept().await.unwrap().split();
        let (mut far_reader, mut far_writer) = here.net().connect(target).await.unwrap().split();
        let there = async {
            let mut buf = vec![0; 10_000];
            while let Ok(count @ 1..) = near_reader.read(&mut buf).await {
                far_writer.write_all(&buf[..count]).await.unwrap();
            }
        };
        let back = async {
            let (mut left, mut buf) = (60_000, vec![0; 10_000]);
            while left > 0 {
                let count = far_reader.read(&mut buf).await.unwrap().min(left);
                near_writer.write_all(&buf[..count]).await.unwrap();
                left -= count;
            }
            near_writer.close().await.unwrap();
        };
        embassy_futures::join::join(there, back).await;
    });
    let server = site.tls_server(identity("server"), ServerOptions::default());
    site.serve(&server, |mut stream| async move {
        let _ = stream.write_all(&pattern(1, 200_000)).await;
        let _ = stream.close().await;
    });
    let client = site.tls_client("root", ClientOptions::default());
    let (net, near) = (site.client.net(), attacker.endpoint(PORT));
    let read = site.world.complete(&site.client, LIMIT, async move {
        let mut stream = client.connect(net.connect(near).await.unwrap(), NAME).unwrap();
        let mut buf = vec![0; 5000];
        let mut total = 0;
        loop {
            match stream.read(&mut buf).await {
                Ok(0) => return (total, None),
                Ok(count) => total += count,
                Err(error) => return (total, Some(error)),
            }
        }
    });
    let (total, error) = read.unwrap();
    assert_eq!(error, Some(NetError::Truncated));
    assert!(total > 20_000 && total < 60_000, "{total}");
}

#[test]
fn a_write_that_is_dropped_sends_nothing_twice() {
    for_seeds(0..10, |seed| {
        // So slow that the stream below is full most of the time.
        let mut site = Site::new(seed, LinkConfig { bytes_per_sec: Some(400_000), ..LinkConfig::default() });
        let server = site.tls_server(identity("server"), ServerOptions::default());
        let received = Rc::new(Cell::new(0));
        let count = received.clone();
        site.serve(&server, move |mut stream| {
            let count = count.clone();
            async move {
                let all = read_to_end(&mut stream, 4000).await.unwrap();
                assert!(all == pattern(seed, all.len()));
                count.set(all.len());
                stream.close().await.unwrap();
            }
        });
        let client = site.tls_client("root", ClientOptions::default());
        let clock = site.client.clone();
        site.call(&client, NAME, move |mut stream| async move {
            let data = pattern(seed, 800_000);
            let mut sent = 0;
            let mut dropped = 0;
            while sent < data.len() {
                match clock.timeout(Duration::from_micros(100), stream.write(&data[sent..])).await {
                    Ok(count) => sent += count.unwrap(),
                    Err(_) => dropped += 1,
                }
            }
            assert!(dropped > 10, "{dropped}");
            stream.close().await.unwrap();
            assert_eq!(stream.read(&mut [0]).await, Ok(0));
        });
        assert_eq!(received.get(), 800_000);
    });
}

#[test]
fn halves_complete_the_handshake_together_and_then_have_no_limit() {
    let mut site = Site::new(1, LinkConfig::default());
    let server = site.tls_server(identity("server"), ServerOptions::default());
    site.serve(&server, echo);
    let client = site.tls_client("root", ClientOptions::default());
    let clock = site.client.clone();
    let received = site.call(&client, NAME, move |stream| async move {
        let (mut reader, mut writer) = stream.split();
        let write = async {
            writer.write_all(b"first").await.unwrap();
            // Longer than a handshake may take, while the other half waits in one read.
            clock.sleep(Duration::from_secs(60)).await;
            writer.write_all(b"second").await.unwrap();
            writer.close().await.unwrap();
        };
        let read = async {
            let (mut all, mut buf) = (Vec::new(), vec![0; 100]);
            loop {
                match reader.read(&mut buf).await.unwrap() {
                    0 => return all,
                    count => all.extend_from_slice(&buf[..count]),
                }
            }
        };
        embassy_futures::join::join(write, read).await.1
    });
    assert_eq!(received, b"firstsecond");
}
