//! What a trace shows of connections.

use crate::common::{Wire, config, run};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use glass_api::{Listener, Net, Stream};
use glass_lib_net::{Config, Congestion};
use glass_lib_trace::{BlockKind, Event, Group, Kind, Writer};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const PORT: u16 = 80;
const WORDS: usize = 1 << 16;
static MEMORY: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static WRITER: OnceLock<Writer> = OnceLock::new();
/// One test at a time: the ring and the groups are the process's.
static TURN: Mutex<()> = Mutex::new(());

/// The ring from now on, with these groups switched on.
struct Tape {
    from: u64,
    _turn: MutexGuard<'static, ()>,
}

fn head() -> u64 {
    glass_lib_trace::CONTROL.rings[0].head.load(Ordering::Relaxed)
}

impl Tape {
    fn new(groups: &[Group]) -> Tape {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = WRITER.get_or_init(|| {
            glass_lib_trace::start(false, &MEMORY, 0, 1);
            Writer::claim("test", &MEMORY).unwrap()
        });
        glass_lib_trace::set_current(Some(writer));
        glass_lib_trace::switch(groups.iter().map(|group| *group as u32).sum());
        Tape { from: head(), _turn: turn }
    }

    /// What was written since.
    fn events(&self) -> Vec<Event> {
        assert!(head() - self.from < WORDS as u64 / 4, "the ring was too short for this test");
        let word = |number: u64, index: usize| MEMORY[(number as usize * 4 + index) % WORDS].load(Ordering::Relaxed);
        (self.from..head()).map(|number| Event::from_words([0, 1, 2, 3].map(|index| word(number, index)))).collect()
    }

    fn of(&self, kind: Kind) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.kind == kind as u16).collect()
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        glass_lib_trace::switch(0);
    }
}

fn sequence(event: &Event) -> u32 {
    event.b as u32
}

fn bytes(event: &Event) -> u32 {
    event.c as u32
}

fn window(event: &Event) -> u32 {
    (event.c >> 32) as u32
}

/// Both ends of a connection, opened.
fn connected(wire: &mut Wire) -> (glass_lib_net::Stream, glass_lib_net::Stream) {
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    run(wire, Duration::from_secs(1), async move {
        let mut listener = right.listen(PORT).await.unwrap();
        let near = left.connect(remote).await.unwrap();
        (near, listener.accept().await.unwrap())
    })
}

#[test]
fn a_connection_shows_its_segments_from_begin_to_end() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::with(Config { receive_bytes: 262_144, ..config(2) });
    let (mut near, mut far) = connected(&mut wire);
    run(&mut wire, Duration::from_secs(1), async move {
        near.write_all(&[1; 100]).await.unwrap();
        far.read(&mut [0; 100]).await.unwrap();
        far.close().await.unwrap();
        near.close().await.unwrap();
    });
    wire.advance(Duration::from_secs(60));
    let connections = tape.of(Kind::Connection);
    // Both stacks write the same ring here; each numbers its own from 1 on.
    assert_eq!(connections.iter().map(|event| event.detail).collect::<Vec<_>>(), [1, 1, 2, 2]);
    let ports = connections[0].c;
    assert_eq!((connections[0].a, connections[0].b, ports >> 16), (1, u64::from(0x0a00_0002u32), PORT.into()));
    assert_eq!((connections[1].b, connections[1].c & 0xffff), (u64::from(0x0a00_0001u32), PORT.into()));
    let (sent, received) = (tape.of(Kind::SegmentOut), tape.of(Kind::SegmentIn));
    assert_eq!(sent.len(), received.len());
    // The answer to a SYN belongs to no connection yet.
    assert!(sent.iter().enumerate().all(|(index, event)| event.a == u32::from(index != 1)));
    // SYN; SYN and ACK; ACK, all with the values of the header.
    assert_eq!(sent[..3].iter().map(|event| event.detail).collect::<Vec<_>>(), [2, 18, 16]);
    assert_eq!(sequence(&sent[2]), sequence(&sent[0]) + 1);
    assert_eq!(sent[2].b >> 32, u64::from(sequence(&sent[1]) + 1));
    let data = sent.iter().position(|event| bytes(event) > 0).unwrap();
    assert_eq!((bytes(&sent[data]), sequence(&sent[data])), (100, sequence(&sent[0]) + 1));
    // The whole window, although the header has 16 bits for it; a SYN's is not scaled.
    assert_eq!((window(&sent[0]), window(&sent[data]), window(&received[data])), (65_535, 262_144, 262_144));
    assert_eq!(tape.of(Kind::Retransmit), []);
}

#[test]
fn a_question_whether_the_peer_is_there_is_no_repetition() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::new();
    let (mut near, mut far) = connected(&mut wire);
    run(&mut wire, Duration::from_secs(1), async move {
        near.write_all(&[1; 100]).await.unwrap();
        far.read(&mut [0; 100]).await.unwrap();
        std::mem::forget((near, far));
    });
    // Each sends a keep-alive probe, with a number that was sent before.
    let before = tape.of(Kind::SegmentOut).len();
    wire.advance(Duration::from_secs(40));
    assert!(tape.of(Kind::SegmentOut).len() > before, "nobody has asked");
    assert_eq!(tape.of(Kind::Retransmit), []);
}

#[test]
fn a_lost_segment_is_sent_again() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::new();
    let (mut near, mut far) = connected(&mut wire);
    // Only the sender may run while the wire is cut.
    wire.spawn(async move {
        near.write_all(&[1; 100]).await.unwrap();
        std::mem::forget(near);
    });
    wire.executor.run_ready();
    wire.left.poll(wire.now);
    let lost = wire.left.device_mut().outgoing.borrow_mut().pop_back();
    assert!(lost.is_some_and(|frame| frame.len() > 100));
    run(&mut wire, Duration::from_secs(10), async move {
        far.read(&mut [0; 100]).await.unwrap();
        std::mem::forget(far);
    });
    let again = tape.of(Kind::Retransmit);
    assert_eq!(again.iter().map(bytes).collect::<Vec<_>>(), [100]);
    // It is announced, then sent.
    let sent: Vec<Event> = tape.of(Kind::SegmentOut).into_iter().filter(|event| bytes(event) == 100).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!((sent[1].b, sent[1].c), (again[0].b, again[0].c));
}

#[test]
fn one_large_frame_is_one_segment() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::between(Config { receive_bytes: 262_144, send_bytes: 262_144, ..config(2) }, true);
    let (mut near, mut far) = connected(&mut wire);
    run(&mut wire, Duration::from_secs(10), async move {
        let (data, mut buf) = (vec![1; 200_000], vec![0; 200_000]);
        let mut left = data.len();
        near.write_all(&data).await.unwrap();
        while left > 0 {
            left -= far.read(&mut buf).await.unwrap();
        }
        std::mem::forget((near, far));
    });
    let sizes: Vec<u32> = tape.of(Kind::SegmentOut).iter().map(bytes).filter(|bytes| *bytes > 0).collect();
    assert_eq!(sizes.iter().sum::<u32>(), 200_000);
    assert!(sizes.iter().any(|bytes| *bytes > 10_000), "{sizes:?}");
}

#[test]
fn a_task_tells_what_it_waits_for() {
    let tape = Tape::new(&[Group::Tasks]);
    let mut wire = Wire::new();
    let (mut near, mut far) = connected(&mut wire);
    let kinds = |events: &[Event]| events.iter().map(|event| (event.detail, event.b)).collect::<Vec<_>>();
    // `connect` waits for its answer, which is acknowledged at once.
    let waits = [(BlockKind::Receive as u16, 1)];
    assert_eq!(kinds(&tape.of(Kind::Block)), waits);
    wire.spawn(async move { _ = far.read(&mut [0; 1]).await });
    wire.spawn(async move { _ = near.write_all(&vec![0; 4 << 20]).await });
    let right = wire.right.sockets();
    wire.spawn(async move { _ = right.listen(PORT + 1).await.unwrap().accept().await.is_ok() });
    wire.executor.run_ready();
    let waits = [(BlockKind::Receive as u16, 1), (BlockKind::Send as u16, 1), (BlockKind::Accept as u16, 81)];
    assert_eq!(kinds(&tape.of(Kind::Block))[1..], waits);
}

#[test]
fn a_trace_that_begins_late_is_told_of_what_there_is() {
    let mut wire = {
        let _quiet = Tape::new(&[]);
        let mut wire = Wire::new();
        std::mem::forget(connected(&mut wire));
        wire
    };
    let tape = Tape::new(&[Group::Net]);
    wire.left.announce();
    let connections = tape.of(Kind::Connection);
    assert_eq!(connections.iter().map(|event| (event.a, event.detail)).collect::<Vec<_>>(), [(1, 3)]);
    wire.settle();
}

#[test]
fn segments_for_no_connection_are_shown_too() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::new();
    // From then on, connections do not wait for a first listener.
    wire.advance(Duration::from_secs(1));
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    assert!(run(&mut wire, Duration::from_secs(1), async move { left.connect(remote).await.is_err() }));
    // The SYN as the right end received it, and its reset as sent there: both of connection 0.
    let of_none =
        |kind| tape.of(kind).iter().filter(|event| event.a == 0).map(|event| event.detail).collect::<Vec<_>>();
    assert_eq!((of_none(Kind::SegmentIn), of_none(Kind::SegmentOut)), (vec![2], vec![4 | 16]));
}

#[test]
fn every_second_full_segment_is_acknowledged() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::new();
    let (mut near, mut far) = connected(&mut wire);
    run(&mut wire, Duration::from_secs(10), async move {
        let (data, mut buf) = (vec![1; 100_000], vec![0; 100_000]);
        near.write_all(&data).await.unwrap();
        let mut left = data.len();
        while left > 0 {
            left -= far.read(&mut buf).await.unwrap();
        }
        std::mem::forget((near, far));
    });
    let sent = tape.of(Kind::SegmentOut);
    let full = sent.iter().filter(|event| bytes(event) == 1448).count();
    let empty = sent.iter().filter(|event| bytes(event) == 0).count();
    assert!(full > 60 && empty < full * 3 / 4, "{empty} acknowledgements of {full} segments");
}

/// What is short goes out at once, although the segment before it is not acknowledged; but not the end of what fills the queue, because the
/// writer has more.
#[test]
fn only_a_writer_that_waits_for_room_has_its_segments_filled() {
    let tape = Tape::new(&[Group::Net]);
    let mut wire = Wire::with(Config { send_bytes: 10_000, congestion: Congestion::None, ..config(2) });
    let (mut near, far) = connected(&mut wire);
    let sizes = || tape.of(Kind::SegmentOut).iter().map(bytes).filter(|bytes| *bytes > 0).collect::<Vec<_>>();
    for _ in 0..2 {
        near = run(&mut wire, Duration::from_secs(1), async move {
            near.write_all(&[1; 100]).await.unwrap();
            near
        });
    }
    assert_eq!(sizes(), [100, 100]);
    wire.spawn(async move { _ = near.write_all(&[1; 100_000]).await });
    wire.executor.run_ready();
    wire.left.poll(wire.now);
    assert_eq!(sizes()[2..], [1448; 6]);
    drop(far);
}
