//! Peers that send what they should not, too little, or nothing.

use crate::site::{LIMIT, NAME, PORT, Site, echo, identity, pattern};
use core::time::Duration;
use glass_api::{Clock, Listener, Net, NetError, Platform, Split, Stream};
use glass_lib_tls::{ClientOptions, ServerOptions, TlsError};
use glass_platform_sim::{Chance, LinkConfig, Node, NodeConfig, for_seeds};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn a_peer_that_stalls_in_the_handshake_ends_by_the_time_limit() {
    let mut site = Site::new(1, LinkConfig::default());
    let server = site.tls_server(identity("server"), ServerOptions::default());
    let ends: Rc<RefCell<Vec<(f64, NetError)>>> = Rc::default();
    let (noted, clock) = (ends.clone(), site.server.clone());
    site.serve(&server, move |mut stream| {
        let (noted, clock) = (noted.clone(), clock.clone());
        async move {
            let start = clock.now();
            let error = stream.read(&mut [0; 10]).await.unwrap_err();
            noted.borrow_mut().push((clock.now().since(start).as_secs_f64(), error));
        }
    });
    // Nothing, the start of a record, and a byte a second.
    let (net, remote, clock) = (site.client.net(), site.server.endpoint(PORT), site.client.clone());
    let calls = async move {
        let _silent = net.connect(remote).await.unwrap();
        let mut started = net.connect(remote).await.unwrap();
        started.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        let mut slow = net.connect(remote).await.unwrap();
        let _ = slow.write_all(&[22, 3, 1, 2, 0]).await;
        for _ in 0..20 {
            clock.sleep(Duration::from_secs(1)).await;
            if slow.write_all(&[0]).await.is_err() {
                break;
            }
        }
    };
    site.world.complete(&site.client, LIMIT, calls).unwrap();
    let ends = ends.borrow();
    assert_eq!(ends.len(), 3, "{ends:?}");
    for (secs, error) in ends.iter() {
        // A record of zeros is not valid: that connection may end sooner.
        assert!(
            (9.9..10.2).contains(secs) && *error == NetError::TimedOut || matches!(error, NetError::Tls(_)),
            "{ends:?}"
        );
    }
    assert!(ends.iter().filter(|(_, error)| *error == NetError::TimedOut).count() >= 2, "{ends:?}");
}

#[test]
fn a_client_of_a_silent_server_ends_by_its_time_limit() {
    let mut site = Site::new(1, LinkConfig::default());
    let here = site.server.clone();
    site.server.run("silent", async move {
        let mut listener = here.net().listen(PORT).await.unwrap();
        let _stream = listener.accept().await.unwrap();
        here.sleep(LIMIT).await;
    });
    let options = ClientOptions { handshake_timeout: Duration::from_secs(3), ..ClientOptions::default() };
    let client = site.tls_client("root", options);
    let clock = site.client.clone();
    let (outcome, waited, second) = site.call(&client, NAME, |mut stream| async move {
        let start = clock.now();
        let outcome = stream.handshake().await;
        (outcome, clock.now().since(start), stream.write(b"x").await)
    });
    assert_eq!((outcome, second), (Err(TlsError::TimedOut), Err(NetError::TimedOut)));
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_millis(3100), "{waited:?}");
}

/// Copies one direction, and changes bytes by chance.
async fn pass(
    mut from: impl glass_api::ReadHalf,
    mut to: impl glass_api::WriteHalf,
    mut change: impl FnMut(&mut Vec<u8>),
) {
    let mut buf = vec![0; 20_000];
    while let Ok(count @ 1..) = from.read(&mut buf).await {
        let mut bytes = buf[..count].to_vec();
        change(&mut bytes);
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.close().await;
}

/// Passes one connection on, with changes.
async fn attack(here: Node, remote: core::net::SocketAddr, seed: u64) {
    let mut listener = here.net().listen(PORT).await.unwrap();
    let near = listener.accept().await.unwrap();
    let far = here.net().connect(remote).await.unwrap();
    let ((near_reader, near_writer), (far_reader, far_writer)) = (near.split(), far.split());
    let chance = |salt: u64| {
        let mut chance = Chance::new(seed ^ salt);
        // Where the only change is.
        let mut left = chance.below(60_000);
        let kind = chance.below(4);
        move |bytes: &mut Vec<u8>| {
            let place = left as usize;
            left = left.saturating_sub(bytes.len() as u64);
            if place >= bytes.len() || (place == 0 && left == 0 && bytes.is_empty()) {
                return;
            }
            left = u64::MAX;
            match kind {
                0 => bytes[place] ^= 1 << chance.below(8),
                1 => {
                    bytes.remove(place);
                }
                2 => bytes.insert(place, chance.below(256) as u8),
                _ => bytes.truncate(place),
            }
        }
    };
    let there = pass(near_reader, far_writer, chance(1));
    let back = pass(far_reader, near_writer, chance(2));
    embassy_futures::join::join(there, back).await;
}

#[test]
fn changed_bytes_are_never_delivered() {
    for_seeds(0..300, |seed| {
        let mut site = Site::new(seed, LinkConfig::default());
        let server = site.tls_server(identity("server"), ServerOptions::default());
        site.serve(&server, echo);
        let attacker = site.world.node("attacker", NodeConfig::default());
        attacker.run("attack", attack(attacker.clone(), site.server.endpoint(PORT), seed));
        let client = site.tls_client("root", ClientOptions::default());
        let (net, near, clock) = (site.client.net(), attacker.endpoint(PORT), site.client.clone());
        let sent = pattern(seed, 50_000);
        let expected = sent.clone();
        let exchanged = async move {
            let mut stream = client.connect(net.connect(near).await.unwrap(), NAME).unwrap();
            let mut received = Vec::new();
            let mut buf = vec![0; 3000];
            let exchange = async {
                for piece in sent.chunks(5000) {
                    stream.write_all(piece).await?;
                    let mut left = piece.len();
                    while left > 0 {
                        let count = stream.read(&mut buf).await?;
                        if count == 0 {
                            return Ok(());
                        }
                        received.extend_from_slice(&buf[..count]);
                        left = left.saturating_sub(count);
                    }
                }
                Ok::<(), NetError>(())
            };
            // A byte that is missing can make both wait for more, as it would over TCP alone.
            let _ = clock.timeout(Duration::from_secs(60), exchange).await;
            received
        };
        let received = site.world.complete(&site.client, LIMIT, exchanged).unwrap();
        assert!(received.len() <= expected.len() && received == expected[..received.len()], "{}", received.len());
    });
}

#[test]
fn random_bytes_end_a_connection() {
    for_seeds(0..200, |seed| {
        let mut site = Site::new(seed, LinkConfig::default());
        let server = site.tls_server(identity("server"), ServerOptions::default());
        let ended: Rc<RefCell<Vec<NetError>>> = Rc::default();
        let noted = ended.clone();
        site.serve(&server, move |mut stream| {
            let noted = noted.clone();
            async move {
                let error = stream.read(&mut [0; 10]).await.unwrap_err();
                noted.borrow_mut().push(error);
            }
        });
        let (net, remote, clock) = (site.client.net(), site.server.endpoint(PORT), site.client.clone());
        let call = async move {
            let mut chance = Chance::new(seed);
            let mut bytes: Vec<u8> = (0..chance.below(2000)).map(|_| chance.below(256) as u8).collect();
            // Half of them look like a record of the handshake.
            if seed % 2 == 0 {
                let length = (chance.below(300) as u16).to_be_bytes();
                bytes.splice(0..0, [22, 3, 1, length[0], length[1], 1, 0, 0, chance.below(200) as u8]);
            }
            let mut stream = net.connect(remote).await.unwrap();
            let _ = stream.write_all(&bytes).await;
            let _ = stream.close().await;
            clock.sleep(Duration::from_secs(11)).await;
        };
        site.world.complete(&site.client, LIMIT, call).unwrap();
        assert_eq!(ended.borrow().len(), 1);
    });
}
