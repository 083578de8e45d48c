//! Tests of the table of neighbours: requests, answers, ageing and bounds.

use super::*;
use alloc::vec;
use core::net::Ipv4Addr;

const START: Instant = Instant(1_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn host(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

fn mac(number: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, number])
}

fn held(byte: u8) -> Held {
    Held { frame: vec![byte; 100], segment_bytes: None }
}

fn requests(neighbours: &mut Neighbours) -> Vec<Request> {
    core::iter::from_fn(|| neighbours.next_request()).collect()
}

fn released(neighbours: &mut Neighbours) -> Vec<(EthernetAddress, u8)> {
    core::iter::from_fn(|| neighbours.next_released()).map(|(mac, held)| (mac, held.frame[0])).collect()
}

/// The times of requests, in seconds from the start, and whether they are to all.
fn requests_until(neighbours: &mut Neighbours, end: Instant) -> Vec<(u64, bool)> {
    let mut found = Vec::new();
    while let Some(at) = neighbours.next_deadline().filter(|at| *at <= end) {
        neighbours.advance(at);
        found.extend(requests(neighbours).iter().map(|request| (at.since(START).as_secs(), request.to.is_none())));
    }
    found
}

#[test]
fn each_address_is_requested_at_once_and_once_a_second_three_times() {
    let mut neighbours = Neighbours::default();
    for number in 1..=200 {
        assert_eq!(neighbours.lookup(START, host(number)), None);
        assert_eq!(neighbours.lookup(START, host(number)), None);
    }
    assert_eq!(requests(&mut neighbours).len(), 200);
    for number in 2..=200 {
        neighbours.answer(START, host(number), mac(number as u8));
        assert_eq!(neighbours.lookup(START, host(number)), Some(mac(number as u8)));
    }
    assert_eq!(requests_until(&mut neighbours, START + SECOND * 20), [(1, true), (2, true)]);
    // Nothing is left of it: the next one who needs it starts anew.
    assert_eq!((neighbours.entries.len(), neighbours.resolving), (199, 0));
}

#[test]
fn frames_wait_for_an_answer_the_newest_eight_of_each_address() {
    let mut neighbours = Neighbours::default();
    neighbours.lookup(START, host(1));
    neighbours.hold(host(2), held(0));
    for byte in 1..=10 {
        neighbours.hold(host(1), held(byte));
    }
    assert_eq!(neighbours.held_bytes, 800);
    neighbours.answer(START, host(1), mac(1));
    assert!(neighbours.has_work());
    assert_eq!(released(&mut neighbours), (3..=10).map(|byte| (mac(1), byte)).collect::<Vec<_>>());
    assert_eq!(neighbours.held_bytes, 0);
    neighbours.hold(host(1), held(1));
    assert_eq!(released(&mut neighbours), []);
    // All of them together have a bound, and those without an answer are dropped.
    for number in 2..500 {
        neighbours.lookup(START, host(number));
        neighbours.hold(host(number), Held { frame: vec![0; 1500], segment_bytes: None });
    }
    assert!(neighbours.held_bytes <= HELD_BYTES_MAX && neighbours.held_bytes > HELD_BYTES_MAX - 1500);
    requests_until(&mut neighbours, START + SECOND * 10);
    assert_eq!((neighbours.held_bytes, neighbours.entries.len()), (0, 1));
}

#[test]
fn who_requests_our_address_is_known_and_who_reports_its_own_only_if_it_was() {
    let mut neighbours = Neighbours::default();
    neighbours.learn(START, host(1), mac(1));
    assert_eq!(neighbours.lookup(START, host(1)), Some(mac(1)));
    neighbours.update(START, host(1), mac(2));
    neighbours.update(START, host(2), mac(2));
    neighbours.answer(START, host(3), mac(3));
    assert_eq!([1, 2, 3].map(|number| neighbours.lookup(START, host(number))), [Some(mac(2)), None, None]);
    // It answers a request of ours at the same time.
    neighbours.learn(START, host(2), mac(2));
    assert_eq!(neighbours.lookup(START, host(2)), Some(mac(2)));
    assert_eq!(neighbours.resolving, 1);
}

#[test]
fn an_address_that_nothing_confirms_is_used_while_it_is_checked_and_then_forgotten() {
    let mut neighbours = Neighbours::default();
    neighbours.lookup(START, host(1));
    requests(&mut neighbours);
    neighbours.answer(START, host(1), mac(1));
    // Nothing is checked before it is used.
    assert_eq!(requests_until(&mut neighbours, START + SECOND * 100), []);
    let used = START + SECOND * 100;
    assert_eq!(neighbours.lookup(used, host(1)), Some(mac(1)));
    let last = used + SECOND * 10;
    let expected = [(105, false), (106, false), (107, false), (108, true), (109, true), (110, true)];
    assert_eq!(requests_until(&mut neighbours, last), expected);
    assert_eq!(neighbours.lookup(last, host(1)), Some(mac(1)));
    requests_until(&mut neighbours, last + SECOND);
    assert_eq!(neighbours.lookup(last + SECOND, host(1)), None);
}

#[test]
fn what_is_acknowledged_confirms_an_address_and_makes_no_requests() {
    let mut neighbours = Neighbours::default();
    neighbours.confirm(START, host(1), mac(1));
    for seconds in 0..200 {
        let now = START + SECOND * seconds;
        neighbours.advance(now);
        assert_eq!(neighbours.lookup(now, host(1)), Some(mac(1)));
        neighbours.confirm(now, host(1), mac(1));
    }
    assert_eq!(requests(&mut neighbours), []);
}

#[test]
fn frames_from_another_hardware_address_are_a_reason_to_request_it_and_no_proof() {
    let mut neighbours = Neighbours::default();
    neighbours.confirm(START, host(1), mac(1));
    let later = START + SECOND * 60;
    for _ in 0..10 {
        neighbours.confirm(later, host(1), mac(2));
    }
    assert_eq!(neighbours.lookup(later, host(1)), Some(mac(1)));
    assert!(neighbours.differs(host(1), mac(2)) && !neighbours.differs(host(1), mac(1)));
    neighbours.advance(later);
    assert_eq!(requests(&mut neighbours), [Request { address: host(1), to: Some(mac(1)) }]);
    neighbours.answer(later, host(1), mac(1));
    // Not again for a while, if they take another way than what we send.
    neighbours.confirm(later, host(1), mac(2));
    assert_eq!(requests_until(&mut neighbours, later + SECOND * 4), []);
    assert_eq!(requests_until(&mut neighbours, later + DELAY_TIME), [(65, false)]);
}

#[test]
fn a_flood_of_requests_to_us_replaces_only_what_is_not_in_use() {
    let mut neighbours = Neighbours::default();
    for number in 0..100 {
        neighbours.lookup(START, host(number));
        neighbours.answer(START, host(number), mac(1));
    }
    for number in 100..5000 {
        neighbours.learn(START, host(number), mac(2));
    }
    assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
    assert!((0..100).all(|number| neighbours.lookup(START, host(number)) == Some(mac(1))));
    // The last one is known, and one that we need finds room in any case.
    assert_eq!(neighbours.lookup(START, host(4999)), Some(mac(2)));
    for number in 0..5000 {
        neighbours.lookup(START, host(number));
        neighbours.answer(START, host(number), mac(1));
    }
    neighbours.learn(START, host(9000), mac(2));
    neighbours.lookup(START, host(9001));
    assert_eq!((neighbours.place(host(9000)), neighbours.place(host(9001)).is_some()), (None, true));
    assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
}

#[test]
fn a_flood_of_addresses_to_resolve_leaves_each_one_time_to_answer() {
    let mut neighbours = Neighbours::default();
    for number in 0..2000 {
        neighbours.lookup(START, host(number));
    }
    assert_eq!((neighbours.resolving, requests(&mut neighbours).len()), (RESOLVING_MAX, RESOLVING_MAX));
    let later = START + ANSWER_TIME;
    neighbours.lookup(later, host(9000));
    assert_eq!(requests(&mut neighbours), [Request { address: host(9000), to: None }]);
    assert_eq!((neighbours.resolving, neighbours.entries.len()), (RESOLVING_MAX, RESOLVING_MAX));
    neighbours.answer(later, host(9000), mac(1));
    assert_eq!(neighbours.lookup(later, host(9000)), Some(mac(1)));
}
