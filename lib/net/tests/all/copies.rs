//! A stack whose VM has become a copy of another one: the connections that it had are the other one's.

use crate::common::peer::Peer;
use crate::common::{Wire, config};
use glass_api::{Listener, Net, Stream};
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
