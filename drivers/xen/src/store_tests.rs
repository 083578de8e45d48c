//! [`Store`] against a fake xenstored, which may be slow or wrong.

use super::*;
use crate::byte_ring::{ByteRing, Layout};
use crate::wire::{HEADER_BYTES, Header, kind, split};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::Instant;
use proptest::prelude::*;

struct NoEvents;

impl Events for NoEvents {
    fn notify(&self, _port: u32) {}
}

/// A xenstored on the other side of the page. It moves at most `step` bytes at a time.
struct Daemon {
    requests: ByteRing,
    answers: ByteRing,
    received: Vec<u8>,
    outgoing: Vec<u8>,
    step: usize,
    values: BTreeMap<String, String>,
    watches: Vec<(String, String)>,
    /// Ends of transactions to refuse.
    conflicts: u32,
    /// Transactions that have started and not ended.
    open: u32,
    is_silent: bool,
}

impl Daemon {
    fn new(page: SharedPages, step: usize) -> Daemon {
        let layout = |data, consumed, produced| Layout { data, bytes: 1024, consumed, produced };
        Daemon {
            requests: ByteRing::reader(page.clone(), layout(0, 2048, 2052)),
            answers: ByteRing::writer(page, layout(1024, 2056, 2060)),
            received: Vec::new(),
            outgoing: Vec::new(),
            step,
            values: BTreeMap::new(),
            watches: Vec::new(),
            conflicts: 0,
            open: 0,
            is_silent: false,
        }
    }

    fn send(&mut self, kind: u32, id: u32, payload: &[u8]) {
        let header = Header { kind, id, transaction: 0, bytes: payload.len() as u32 };
        self.outgoing.extend(header.encode());
        self.outgoing.extend(payload);
    }

    fn serve(&mut self) {
        let mut bytes = vec![0; self.step];
        let count = self.requests.read(&mut bytes).unwrap();
        self.received.extend(&bytes[..count]);
        while let Some(header) = self.received.first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(*header).unwrap();
            let end = HEADER_BYTES + header.bytes as usize;
            if self.received.len() < end {
                break;
            }
            let payload: Vec<u8> = self.received.drain(..end).skip(HEADER_BYTES).collect();
            if !self.is_silent {
                self.answer(header, &payload);
            }
        }
        let count = self.answers.write(&self.outgoing[..self.outgoing.len().min(self.step)]).unwrap();
        self.outgoing.drain(..count);
    }

    fn answer(&mut self, header: Header, payload: &[u8]) {
        let path_end = payload.iter().position(|&byte| byte == 0).unwrap();
        let path = String::from_utf8(payload[..path_end].to_vec()).unwrap();
        match header.kind {
            kind::READ => match self.values.get(&path).cloned() {
                Some(value) => self.send(kind::READ, header.id, value.as_bytes()),
                None => self.send(kind::ERROR, header.id, b"ENOENT\0"),
            },
            kind::WRITE => {
                let value = String::from_utf8(payload[path_end + 1..].to_vec()).unwrap();
                for (watched, token) in self.watches.clone() {
                    if path.starts_with(&watched) {
                        self.send(kind::WATCH_EVENT, 0, &crate::wire::strings(&[&path, &token]));
                    }
                }
                self.values.insert(path, value);
                self.send(kind::WRITE, header.id, b"OK\0");
            }
            kind::DIRECTORY => {
                let below = format_names(&self.values, &path);
                self.send(kind::DIRECTORY, header.id, &below);
            }
            kind::WATCH => {
                let parts = split(payload).unwrap();
                self.watches.push((parts[0].clone(), parts[1].clone()));
                self.send(kind::WATCH, header.id, b"OK\0");
                self.send(kind::WATCH_EVENT, 0, payload);
            }
            kind::UNWATCH => {
                let token = split(payload).unwrap()[1].clone();
                self.watches.retain(|(_, watched)| *watched != token);
                self.send(kind::UNWATCH, header.id, b"OK\0");
            }
            kind::TRANSACTION_START => {
                self.open += 1;
                self.send(kind::TRANSACTION_START, header.id, b"7\0");
            }
            kind::TRANSACTION_END => {
                assert_eq!(header.transaction, 7);
                self.open -= 1;
                match self.conflicts.checked_sub(1) {
                    Some(left) => {
                        self.conflicts = left;
                        self.send(kind::ERROR, header.id, b"EAGAIN\0");
                    }
                    None => self.send(kind::TRANSACTION_END, header.id, b"OK\0"),
                }
            }
            kind::RM => {
                self.values.retain(|key, _| !key.starts_with(&path));
                self.send(kind::RM, header.id, b"OK\0");
            }
            other => panic!("kind {other}"),
        }
    }
}

fn format_names(values: &BTreeMap<String, String>, path: &str) -> Vec<u8> {
    let below = values.keys().filter_map(|key| key.strip_prefix(path)?.strip_prefix('/'));
    below.flat_map(|name| name.bytes().chain([0])).collect()
}

fn world(step: usize) -> (Store<NoEvents>, Daemon) {
    let page = IdentityFrames.allocate(1).unwrap();
    (Store::new(page.clone(), 1, NoEvents, Instant(0), Duration::from_secs(1)), Daemon::new(page, step))
}

/// Runs `future` beside the daemon; `None` when it does not end. Time does not pass.
fn try_run<R>(store: &Store<NoEvents>, daemon: &mut Daemon, future: impl Future<Output = R>) -> Option<R> {
    let mut future = pin!(future);
    for _ in 0..20_000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(result);
        }
        store.poll(Instant(0));
        daemon.serve();
        store.poll(Instant(0));
    }
    None
}

fn run<R>(store: &Store<NoEvents>, daemon: &mut Daemon, future: impl Future<Output = R>) -> R {
    try_run(store, daemon, future).expect("the daemon answers")
}

#[test]
fn values_are_written_read_listed_and_removed() {
    for step in [1, 7, 1024] {
        let (store, mut daemon) = world(step);
        let long = "x".repeat(4000);
        run(&store, &mut daemon, async {
            store.write("device/vbd/1/state", "3").await.unwrap();
            store.write("device/vbd/1/long", &long).await.unwrap();
            assert_eq!(store.read("device/vbd/1/state").await.unwrap(), "3");
            assert_eq!(store.read("device/vbd/1/long").await.unwrap(), long);
            assert_eq!(store.list("device/vbd/1").await.unwrap(), ["long", "state"]);
            assert!(store.list("device/none").await.unwrap().is_empty());
            store.remove("device").await.unwrap();
            assert_eq!(store.read("device/vbd/1/state").await, Err(StoreError::Refused("ENOENT".to_string())));
            assert_eq!(store.write("a", &"x".repeat(4095)).await, Err(StoreError::BadRequest));
            assert_eq!(store.read("a\0b").await, Err(StoreError::BadRequest));
        });
    }
}

#[test]
fn transactions_are_made_again_within_a_bound() {
    let (store, mut daemon) = world(1024);
    let mut times = 0;
    let mut transact = |daemon: &mut Daemon| {
        let work = store.transaction(async |transaction| {
            times += 1;
            transaction.write("a", "1").await?;
            transaction.read("a").await
        });
        run(&store, daemon, work)
    };
    daemon.conflicts = 2;
    assert_eq!(transact(&mut daemon), Ok("1".to_string()));
    daemon.conflicts = 1000;
    assert_eq!(transact(&mut daemon), Err(StoreError::Contended));
    assert_eq!(times, 3 + 16);
}

#[test]
fn a_watch_reports_many_changes_as_one() {
    let (store, mut daemon) = world(64);
    let mut watch = run(&store, &mut daemon, store.watch("device")).unwrap();
    run(&store, &mut daemon, watch.changed()).unwrap();
    for value in 0..300 {
        run(&store, &mut daemon, store.write("device/a", &value.to_string())).unwrap();
    }
    run(&store, &mut daemon, watch.changed()).unwrap();
    assert!(try_run(&store, &mut daemon, watch.changed()).is_none());
    drop(watch);
    run(&store, &mut daemon, store.write("device/a", "")).unwrap();
    assert!(daemon.watches.is_empty() && store.violation().is_none());
}

#[test]
fn a_watch_of_a_path_with_a_nul_sends_nothing() {
    let (store, mut daemon) = world(64);
    assert_eq!(run(&store, &mut daemon, store.watch("a\0b")).err(), Some(StoreError::BadRequest));
    daemon.values.insert("a".to_string(), "1".to_string());
    assert_eq!(run(&store, &mut daemon, store.read("a")), Ok("1".to_string()));
    assert!(daemon.received.is_empty() && daemon.watches.is_empty() && store.violation().is_none());
}

#[test]
fn a_dropped_transaction_is_ended() {
    let mut context = Context::from_waker(Waker::noop());
    // Dropped before its start was answered, at each step of its work, and after that.
    for steps in 1..200 {
        let (store, mut daemon) = world(8);
        let work = async |transaction: &Transaction<'_, NoEvents>| transaction.write("a", "1").await;
        let is_done = {
            let mut future = pin!(store.transaction(work));
            (0..steps).any(|_| {
                let is_done = future.as_mut().poll(&mut context).is_ready();
                store.poll(Instant(0));
                daemon.serve();
                store.poll(Instant(0));
                is_done
            })
        };
        (0..100).for_each(|_| {
            store.poll(Instant(0));
            daemon.serve();
        });
        assert_eq!((daemon.open, store.violation()), (0, None), "after {steps} steps");
        if is_done {
            return;
        }
    }
    panic!("the transaction does not end");
}

#[test]
fn a_silent_daemon_ends_requests_and_a_late_answer_is_ignored() {
    let (store, mut daemon) = world(1024);
    daemon.is_silent = true;
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..32 {
        let mut request = pin!(store.read("a"));
        assert!(request.as_mut().poll(&mut context).is_pending());
        let late = store.deadline().unwrap();
        store.poll(late);
        assert_eq!(request.as_mut().poll(&mut context), Poll::Ready(Err(StoreError::TimedOut)));
        daemon.serve();
        assert_eq!(store.deadline(), None);
    }
    assert_eq!(run(&store, &mut daemon, store.read("a")), Err(StoreError::Busy));
    (1..=32).for_each(|id| daemon.send(kind::READ, id, b"late"));
    daemon.is_silent = false;
    (0..4).for_each(|_| {
        daemon.serve();
        store.poll(Instant(0));
    });
    daemon.values.insert("a".to_string(), "new".to_string());
    assert_eq!(run(&store, &mut daemon, store.read("a")), Ok("new".to_string()));
}

#[test]
fn a_wrong_answer_breaks_the_connection() {
    let too_long = Header { kind: kind::READ, id: 1, transaction: 0, bytes: 4097 }.encode();
    let cases: [(u32, u32, &[u8], BackendViolation); 4] = [
        (kind::READ, 9, b"", BackendViolation::UnknownAnswer { id: 9 }),
        (kind::WRITE, 1, b"OK\0", BackendViolation::Malformed),
        (kind::ERROR, 1, b"ENOENT", BackendViolation::Malformed),
        (kind::WATCH_EVENT, 0, b"path\0", BackendViolation::Malformed),
    ];
    for (kind, id, payload, violation) in cases {
        let (store, mut daemon) = world(1024);
        daemon.is_silent = true;
        daemon.send(kind, id, payload);
        assert_eq!(run(&store, &mut daemon, store.read("a")), Err(StoreError::Broken(violation)));
        assert_eq!(run(&store, &mut daemon, store.read("a")), Err(StoreError::Broken(violation)));
    }
    let (store, mut daemon) = world(1024);
    daemon.outgoing.extend(too_long);
    let broken = Err(StoreError::Broken(BackendViolation::MessageTooLong { bytes: 4097 }));
    daemon.is_silent = true;
    assert_eq!(run(&store, &mut daemon, store.read("a")), broken);
}

proptest! {
    #[test]
    fn any_bytes_end_within_the_time_limit(bytes in proptest::collection::vec(prop_oneof![0_u8..20, any::<u8>()], 0..1024)) {
        let (store, mut daemon) = world(1024);
        daemon.outgoing.extend(&bytes);
        daemon.serve();
        let mut request = pin!(store.read("a"));
        let mut context = Context::from_waker(Waker::noop());
        let _ = request.as_mut().poll(&mut context);
        for _ in 0..70 {
            store.poll(Instant(0));
        }
        store.poll(Instant(0) + Duration::from_secs(1));
        prop_assert!(request.as_mut().poll(&mut context).is_ready());
    }
}
