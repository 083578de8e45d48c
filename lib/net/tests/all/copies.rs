//! A stack whose VM has become a copy of another one: the connections that it had are the other one's.

use crate::common::peer::Peer;
use crate::common::{Wire, config};
use core::net::Ipv4Addr;
use core::time::Duration;
use glass_api::{Listener, Net, Stream};
use glass_lib_net::Address;
use std::cell::RefCell;
use std::rc::Rc;

const PORT: u16 = 80;

#[test]
fn connections_end_without_a_segment_and_new_ones_open() {
    let mut wire = Wire::with(config(2));
    let sockets = wire.right.sockets();
    let ends = Rc::new(RefCell::new(Vec::new()));
    let noted = ends.clone();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            let mut stream = listener.accept().await.unwrap();
            let result = stream.read(&mut [0]).await;
            noted.borrow_mut().push(result.is_ok());
        }
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    // The handshake of another client is half done.
    assert!(Peer::new(4001, PORT).request(&mut wire).is_some());
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (1, 1));

    wire.right.abandon(7);
    assert_eq!(peer.exchange(&mut wire).len(), 0, "the peer notices nothing");
    assert_eq!(*ends.borrow(), [false]);
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (0, 0));
    // The same client may come to the copy, with the same port.
    assert!(Peer::new(4000, PORT).open(&mut wire));
    assert_eq!(wire.right.connection_count(), 1);
}

/// Sequence numbers of two copies have nothing in common.
#[test]
fn each_copy_has_numbers_of_its_own() {
    let number = |secret: Option<u128>| {
        let mut wire = Wire::with(config(2));
        let sockets = wire.right.sockets();
        wire.spawn(async move {
            let mut listener = sockets.listen(PORT).await.unwrap();
            let _ = listener.accept().await;
        });
        wire.settle();
        if let Some(secret) = secret {
            wire.right.abandon(secret);
        }
        Peer::new(4000, PORT).request(&mut wire).expect("it listens").seq
    };
    assert_eq!(number(None), number(None));
    assert_eq!(number(Some(1)), number(Some(1)));
    assert_ne!(number(Some(1)), number(Some(2)));
    assert_ne!(number(Some(1)), number(None));
}

/// A copy beside the stack that it is a copy of.
#[test]
fn it_moves_to_another_address_and_announces_it() {
    let mut wire = Wire::with(config(2));
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            drop(listener.accept().await);
        }
    });
    wire.settle();
    let (mac, address) = ([2, 0, 10, 0, 0, 7], Ipv4Addr::new(10, 0, 0, 7));
    wire.right.abandon(7);
    let multicast = Address::Static { address: Ipv4Addr::new(224, 0, 0, 1), prefix_bits: 24, gateway: None };
    assert!(wire.right.move_to(mac, multicast).is_err());
    assert_eq!(wire.right.addresses(), [Ipv4Addr::new(10, 0, 0, 2)]);
    wire.right.move_to(mac, Address::Static { address, prefix_bits: 24, gateway: None }).unwrap();
    assert_eq!(wire.right.addresses(), [address]);
    wire.right.poll(wire.now);
    // Sender of the frame; sender's card and address in ARP.
    let announced = wire.right.device().outgoing.borrow().iter().any(|frame| {
        frame[6..12] == mac && frame[12..14] == [8, 6] && frame[22..28] == mac && frame[28..32] == address.octets()
    });
    assert!(announced);
    // It answers a neighbour by that card, too: Ethernet, a request of ARP for IPv4 (RFC 826), its sender and target.
    let left = [2, 0, 0, 0, 0, 1];
    let request =
        [&[0xff; 6][..], &left, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &left, &[10, 0, 0, 1], &[0; 6], &address.octets()];
    wire.right.device().outgoing.borrow_mut().clear();
    wire.right.device().incoming.borrow_mut().push_back(request.concat());
    wire.right.poll(wire.now);
    let answers = wire.right.device().outgoing.borrow().clone();
    let is_answer = |frame: &Vec<u8>| frame[20..22] == [0, 2] && frame[6..12] == mac && frame[22..28] == mac;
    assert!(answers.iter().any(is_answer), "{answers:?}");
    // It answers at the new address only.
    let client = wire.left.sockets();
    let results = Rc::new(RefCell::new(Vec::new()));
    let noted = results.clone();
    wire.spawn(async move {
        for address in [address, Ipv4Addr::new(10, 0, 0, 2)] {
            let result = client.connect((address, PORT).into()).await;
            noted.borrow_mut().push(result.is_ok());
        }
    });
    wire.advance(Duration::from_secs(20));
    assert_eq!(*results.borrow(), [true, false]);
}

/// It requests an address by DHCP as a new client, if it is to have one.
#[test]
fn it_moves_to_an_address_of_a_server() {
    let mut wire = Wire::with(config(2));
    wire.settle();
    let sent = |wire: &mut Wire| -> Vec<Vec<u8>> {
        wire.right.poll(wire.now);
        // UDP from port 68, and behind its header a request of a client (RFC 2131, section 2).
        let of_client = |frame: &Vec<u8>| frame.get(34..36) == Some(&[0, 68]);
        wire.right.device().outgoing.borrow().iter().filter(|frame| of_client(frame)).cloned().collect()
    };
    assert_eq!(sent(&mut wire).len(), 0);
    let mac = [2, 7, 7, 7, 7, 7];
    wire.right.abandon(7);
    wire.right.move_to(mac, Address::Dhcp).unwrap();
    assert!(wire.right.addresses().is_empty());
    let requests = sent(&mut wire);
    assert_eq!(requests.len(), 1);
    // `chaddr`.
    assert_eq!(requests[0][42 + 28..42 + 34], mac);
}
