//! Host names, from a name server on the other end of the wire.

use crate::common::{Wire, config, run};
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use glass_api::{Datagrams, Listener, Net, NetError, Stream};
use glass_lib_net::Config;
use std::cell::Cell;
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(60);
/// Where the server is, and where there is none.
const SERVER: [u8; 4] = [10, 0, 0, 2];
const NOTHING: [u8; 4] = [10, 0, 0, 77];
const NO_ERROR: u8 = 0;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
const TYPE_A: [u8; 2] = [0, 1];
const TYPE_CNAME: [u8; 2] = [0, 5];

fn with_servers(servers: &[[u8; 4]]) -> Wire {
    Wire::with(Config { name_servers: servers.iter().map(|server| (*server).into()).collect(), ..config(2) })
}

/// An answer to `query` (RFC 1035, section 4) with these records, each with the name of the question.
fn answer(query: &[u8], code: u8, records: &[([u8; 2], &[u8])]) -> Vec<u8> {
    let mut bytes = query.to_vec();
    (bytes[2], bytes[3]) = (0x81, 0x80 | code);
    bytes[7] = records.len() as u8;
    for (kind, data) in records {
        // A pointer to the name of the question.
        bytes.extend([0xc0, 12]);
        bytes.extend(kind);
        bytes.extend([0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        bytes.extend(*data);
    }
    bytes
}

/// The right end serves names: `reply` makes the datagrams that answer one.
fn serve(wire: &Wire, mut reply: impl FnMut(&[u8]) -> Vec<Vec<u8>> + 'static) {
    let right = wire.right.sockets();
    wire.spawn(async move {
        let socket = right.bind(53).await.unwrap();
        let mut buf = [0; 600];
        while let Ok((count, from)) = socket.recv_from(&mut buf).await {
            for datagram in reply(&buf[..count]) {
                socket.send_to(&datagram, from).await.unwrap();
            }
        }
    });
}

#[test]
fn a_name_has_its_addresses() {
    let mut wire = with_servers(&[SERVER]);
    serve(&wire, |query| {
        let name = b"\x05queue\x07example\0";
        assert_eq!(&query[12..12 + name.len()], name);
        vec![answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1]), (TYPE_A, &[192, 0, 2, 2])])]
    });
    let left = wire.left.sockets();
    run(&mut wire, LIMIT, async move {
        let expected: Vec<IpAddr> = vec![Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::new(192, 0, 2, 2).into()];
        assert_eq!(left.resolve("queue.example").await, Ok(expected.clone()));
        assert_eq!(left.resolve("queue.example.").await, Ok(expected));
        assert_eq!(left.resolve("192.0.2.7").await, Ok(vec![Ipv4Addr::new(192, 0, 2, 7).into()]));
    });
}

#[test]
fn a_name_that_nobody_has_is_an_error() {
    let mut wire = with_servers(&[SERVER]);
    serve(&wire, |query| match query[13] {
        b'u' => vec![answer(query, NO_SUCH_NAME, &[])],
        b'e' => vec![answer(query, NO_ERROR, &[])],
        b'f' => vec![answer(query, SERVER_FAILURE, &[])],
        b'g' => vec![answer(query, NO_ERROR, &[(TYPE_A, &[224, 0, 0, 1]), (TYPE_A, &[0; 4]), (TYPE_A, &[255; 4])])],
        // An alias whose own address is not in the answer.
        _ => vec![answer(query, NO_ERROR, &[(TYPE_CNAME, b"\x01x\0")])],
    });
    let left = wire.left.sockets();
    run(&mut wire, LIMIT, async move {
        for (name, error) in [
            ("unknown.example", NetError::NoSuchName),
            ("empty.example", NetError::NoAddress),
            ("alias.example", NetError::NoAddress),
            ("group.example", NetError::NoAddress),
            ("failed.example", NetError::NameServerFailed),
        ] {
            assert_eq!(left.resolve(name).await, Err(error), "{name}");
        }
        let (long, longer) = ("x".repeat(64), "x.".repeat(200));
        for name in ["", ".", "a..b", ".a", "a b", "a\n", "a\0", "\u{e4}.example", "a/b", &long, &longer] {
            assert_eq!(left.resolve(name).await, Err(NetError::InvalidName), "{name}");
        }
    });
    let mut wire = with_servers(&[]);
    let left = wire.left.sockets();
    run(&mut wire, LIMIT, async move {
        assert_eq!(left.resolve("queue.example").await, Err(NetError::NoNameServer));
    });
}

#[test]
fn an_answer_that_is_too_long_for_a_datagram_is_requested_over_tcp() {
    for (is_served, expected) in [
        (true, Ok(vec![Ipv4Addr::new(192, 0, 2, 1).into(); 200])),
        // Nothing listens there, and then a server that does not answer.
        (false, Err(NetError::Reset)),
    ] {
        let mut wire = with_servers(&[SERVER]);
        // A record is cut, as servers may do.
        serve(&wire, |query| {
            let mut datagram = answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 9])]);
            datagram[2] |= 2;
            datagram.truncate(datagram.len() - 2);
            vec![datagram]
        });
        let (left, right) = (wire.left.sockets(), wire.right.sockets());
        if is_served {
            wire.spawn(async move {
                let mut stream = right.listen(53_u16).await.unwrap().accept().await.unwrap();
                let mut query = [0; 2 + 12 + 15 + 4];
                let mut count = 0;
                while count < query.len() {
                    count += stream.read(&mut query[count..]).await.unwrap();
                }
                let mut message = answer(&query[2..], NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1][..]); 200]);
                message.splice(0..0, (message.len() as u16).to_be_bytes());
                stream.write_all(&message).await.unwrap();
                stream.close().await.unwrap();
            });
        }
        run(&mut wire, LIMIT, async move { assert_eq!(left.resolve("queue.example").await, expected) });
    }
}

#[test]
fn a_server_that_does_not_end_its_answer_over_tcp_has_ten_seconds() {
    let mut wire = with_servers(&[SERVER]);
    serve(&wire, |query| {
        let mut datagram = answer(query, NO_ERROR, &[]);
        datagram[2] |= 2;
        vec![datagram]
    });
    let (left, right) = (wire.left.sockets(), wire.right.sockets());
    wire.spawn(async move {
        let mut stream = right.listen(53_u16).await.unwrap().accept().await.unwrap();
        stream.write_all(&[0]).await.unwrap();
        core::future::pending::<()>().await;
    });
    run(&mut wire, LIMIT, async move { assert_eq!(left.resolve("queue.example").await, Err(NetError::TimedOut)) });
    assert_eq!(wire.now, glass_api::Instant(0) + Duration::from_secs(10));
}

#[test]
fn a_server_that_is_silent_gives_way_to_the_next_and_at_last_to_an_error() {
    for (servers, expected) in [
        (vec![NOTHING, SERVER], Ok(vec![Ipv4Addr::new(192, 0, 2, 1).into()])),
        (vec![NOTHING, NOTHING], Err(NetError::TimedOut)),
    ] {
        let mut wire = with_servers(&servers);
        serve(&wire, |query| vec![answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1])])]);
        let left = wire.left.sockets();
        run(&mut wire, LIMIT, async move { assert_eq!(left.resolve("queue.example").await, expected) });
    }
}

/// A lost answer is requested again; the answer to another query is ignored.
#[test]
fn only_the_answer_to_this_query_counts() {
    let mut wire = with_servers(&[SERVER]);
    let queries = Rc::new(Cell::new(0));
    let count = queries.clone();
    serve(&wire, move |query| {
        count.set(count.get() + 1);
        let right = answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1])]);
        let mut other = answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 9])]);
        other[1] ^= 1;
        if count.get() < 3 { Vec::new() } else { vec![other, right] }
    });
    let left = wire.left.sockets();
    run(&mut wire, LIMIT, async move {
        assert_eq!(left.resolve("queue.example").await, Ok(vec![Ipv4Addr::new(192, 0, 2, 1).into()]));
    });
    assert_eq!(queries.get(), 3);
}

/// Whatever a server sends, a query ends, and the next one has its answer.
#[test]
fn a_server_that_lies_does_no_harm() {
    let mut wire = with_servers(&[SERVER]);
    let mut random = 1u64;
    serve(&wire, move |query| {
        if query[13] != b'l' {
            return vec![answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1])])];
        }
        let right = answer(query, NO_ERROR, &[(TYPE_CNAME, b"\x01x\xc0\x0c"), (TYPE_A, &[192, 0, 2, 1])]);
        let mut next = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize
        };
        let mut replies = vec![right[..next() % right.len()].to_vec()];
        for _ in 0..4 {
            let mut changed = right.clone();
            for _ in 0..=next() % 3 {
                // The identifier stays right.
                let at = 2 + next() % (changed.len() - 2);
                changed[at] = next() as u8;
            }
            replies.push(changed);
        }
        replies
    });
    let left = wire.left.sockets();
    run(&mut wire, Duration::from_secs(60 * 60), async move {
        for _ in 0..300 {
            let _ = left.resolve("lies.example").await;
        }
        assert!(left.resolve("queue.example").await.is_ok());
    });
}

#[test]
fn queries_are_bounded_and_end_with_their_future() {
    let mut wire = with_servers(&[SERVER]);
    serve(&wire, |query| match query[13] {
        b's' => Vec::new(),
        _ => vec![answer(query, NO_ERROR, &[(TYPE_A, &[192, 0, 2, 1])])],
    });
    let left = wire.left.sockets();
    run(&mut wire, LIMIT, async move {
        for _ in 0..3 {
            let mut silent: Vec<_> = (0..65).map(|_| Box::pin(left.resolve("silent.example"))).collect();
            let mut answers = 0;
            for query in &mut silent {
                let answer =
                    core::future::poll_fn(|context| core::task::Poll::Ready(query.as_mut().poll(context))).await;
                answers += usize::from(answer == core::task::Poll::Ready(Err(NetError::TooMany)));
            }
            assert_eq!(answers, 1);
            drop(silent);
            assert!(left.resolve("queue.example").await.is_ok());
        }
    });
}

#[test]
fn an_address_that_no_name_server_can_have_is_left_out() {
    for server in [[127, 0, 0, 1], [224, 0, 0, 1], [0, 0, 0, 0]] {
        let mut wire = with_servers(&[server]);
        let left = wire.left.sockets();
        run(&mut wire, LIMIT, async move {
            assert_eq!(left.resolve("queue.example").await, Err(NetError::NoNameServer), "{server:?}");
        });
    }
}
