//! What a trace shows of the drivers.

use crate::Blk;
use crate::console::{Console, ConsoleConfig};
use crate::fake::{Fake, GuardedDma};
use crate::files::HostFiles;
use crate::fs::{Data, Fs};
use crate::fuse::Message;
use crate::net::{Net, NetConfig};
use crate::transport::{device, feature};
use crate::vsock::{Vsock, VsockConfig};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::task::{Context, Waker};
use glass_api::{Block, Buf, Files, Instant};
use glass_drivers_device::{Disk, Driver, NetDevice, NetTransmit};
use glass_lib_trace::{BlockKind, Event, Group, Kind, Operation, Writer};
use std::sync::{Mutex, OnceLock};

/// Words of the ring that all tests share.
const WORDS: usize = 4096;
static MEMORY: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static WRITER: OnceLock<Writer> = OnceLock::new();
/// One test at a time: the ring and the groups are the process's.
static TURN: Mutex<()> = Mutex::new(());

/// The events of `work`, without those that only say what is traced.
fn traced(groups: &[Group], work: impl FnOnce()) -> Vec<Event> {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let writer = WRITER.get_or_init(|| {
        glass_lib_trace::start(false, &MEMORY, 0, 1);
        Writer::claim("test", &MEMORY).expect("the first writer gets a ring")
    });
    // The other tests' threads have none.
    glass_lib_trace::set_current(Some(writer));
    let ring = glass_lib_trace::CONTROL.rings.iter().find(|ring| ring.capacity.load(ORDER) != 0).unwrap();
    let before = ring.head.load(ORDER);
    glass_lib_trace::switch(groups.iter().map(|group| *group as u32).sum());
    work();
    glass_lib_trace::switch(0);
    let numbers = before..ring.head.load(ORDER);
    assert!(numbers.clone().count() < WORDS / 4, "the ring was too short for this test");
    let word = |number: u64, index: usize| MEMORY[(number as usize * 4 + index) % WORDS].load(ORDER);
    let events = numbers.map(|number| Event::from_words([0, 1, 2, 3].map(|index| word(number, index))));
    events.filter(|event| event.kind != Kind::Groups as u16).collect()
}

const ORDER: core::sync::atomic::Ordering = core::sync::atomic::Ordering::SeqCst;

fn of(events: &[Event], kind: Kind) -> Vec<Event> {
    events.iter().filter(|event| event.kind == kind as u16).copied().collect()
}

/// Bytes, and requests in flight.
fn size(event: &Event) -> (u64, u64) {
    (event.c & 0xffff_ffff, event.c >> 32)
}

/// Records in the trace when it wakes.
struct Waking;
impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        glass_lib_trace::wake(7);
    }
}

fn disk() -> (Fake, Disk<Blk<Fake, GuardedDma>>) {
    let mut config = 64u64.to_le_bytes().to_vec();
    config.resize(64, 0);
    let fake = Fake::new(device::BLK, feature::INDIRECT | feature::EVENT_IDX | feature::BLK_FLUSH, &config);
    let mut disk = Disk::new(Blk::new(fake.clone(), GuardedDma).unwrap());
    disk.set_trace_name(glass_lib_trace::intern("disk 0"));
    (fake, disk)
}

/// The device answers its oldest request with `status`.
fn answer(fake: &Fake, status: u8) {
    fake.with(0, |queue| {
        let chain = queue.take().expect("a request was sent");
        let mut reply = vec![0; chain.writable_bytes() as usize - 1];
        reply.push(status);
        let written = chain.write(&reply);
        queue.complete(chain.head, written);
    });
}

#[test]
fn a_request_is_submitted_and_completes_under_one_number() {
    let mut name = 0;
    let events = traced(&[Group::Devices, Group::Tasks], || {
        let (fake, mut disk) = disk();
        name = glass_lib_trace::intern("disk 0");
        let waker = Waker::from(Arc::new(Waking));
        let mut context = Context::from_waker(&waker);
        let reader = disk.clone();
        let mut first = Box::pin(reader.read(0, Buf::zeroed(1024).unwrap()));
        let mut second = Box::pin(reader.write(512, Buf::zeroed(512).unwrap()));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        disk.kick();
        disk.kick();
        answer(&fake, 0);
        answer(&fake, 1);
        assert!(disk.poll());
        assert!(first.as_mut().poll(&mut context).is_ready());
        assert!(second.as_mut().poll(&mut context).is_ready());
    });
    let (submits, completes) = (of(&events, Kind::Submit), of(&events, Kind::Complete));
    assert_eq!(submits.iter().map(size).collect::<Vec<_>>(), [(1024, 1), (512, 2)]);
    assert_eq!(completes.iter().map(size).collect::<Vec<_>>(), [(1024, 1), (512, 0)]);
    assert_eq!([submits[0].detail, submits[1].detail], [Operation::Read as u16, Operation::Write as u16]);
    assert_eq!([submits[0].b, submits[1].b], [1, 2]);
    assert!(submits.iter().zip(&completes).all(|(submit, complete)| submit.b == complete.b));
    // The second failed.
    assert_eq!([completes[0].detail, completes[1].detail], [0, 1]);
    assert!(name != 0 && submits.iter().chain(&completes).all(|event| event.a == name));
    // Each waits for its own, and the device is notified once.
    let blocks = of(&events, Kind::Block);
    assert_eq!(blocks.iter().map(|block| block.b).collect::<Vec<_>>(), [submits[0].b, submits[1].b]);
    assert!(blocks.iter().all(|block| block.a == name && block.detail == BlockKind::Request as u16));
    let kicks = of(&events, Kind::Kick);
    assert_eq!(kicks.len(), 1);
    // It has its duration, all of it after the requests.
    assert!(kicks[0].b > 0 && kicks[0].ticks - kicks[0].b >= submits[1].ticks);
    // Who is woken stands behind what woke him.
    let order: Vec<u16> = events.iter().map(|event| event.kind).filter(|kind| matches!(kind, 5 | 33)).collect();
    assert_eq!(order, [33, 5, 33, 5]);
}

#[test]
fn a_request_without_room_waits_for_it() {
    let events = traced(&[Group::Tasks], || {
        let (_fake, disk) = disk();
        let mut context = Context::from_waker(Waker::noop());
        let mut requests: Vec<_> = (0..129).map(|_| Box::pin(disk.flush())).collect();
        for request in &mut requests {
            assert!(request.as_mut().poll(&mut context).is_pending());
        }
    });
    let kinds: Vec<u16> = of(&events, Kind::Block).iter().map(|block| block.detail).collect();
    assert_eq!(kinds.len(), 129);
    assert!(kinds[..128].iter().all(|kind| *kind == BlockKind::Request as u16));
    assert_eq!(kinds[128], BlockKind::Resource as u16);
}

#[test]
fn frames_are_requests_too() {
    let events = traced(&[Group::Devices, Group::Counters], || {
        let fake = Fake::new(device::NET, feature::EVENT_IDX | feature::NET_MAC, &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let mut net =
            Net::new(fake.clone(), GuardedDma, NetConfig { memory_bytes: 64 << 10, ..NetConfig::default() }).unwrap();
        net.set_trace_name(glass_lib_trace::intern("net"));
        for bytes in [60, 1514] {
            net.transmit().unwrap().send(bytes, None, |_| ());
        }
        net.kick();
        let chain = fake.with(1, |queue| queue.take().unwrap());
        fake.with(1, |queue| queue.complete(chain.head, 0));
        net.poll();
        fake.with(0, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(&[0; 12 + 100]);
            queue.complete(chain.head, written);
        });
        assert!(net.poll());
        assert!(net.receive().is_some());
        net.kick();
    });
    let (submits, completes) = (of(&events, Kind::Submit), of(&events, Kind::Complete));
    assert_eq!(submits.iter().map(size).collect::<Vec<_>>(), [(60, 1), (1514, 2)]);
    assert!(submits.iter().all(|event| event.detail == Operation::Transmit as u16));
    let name = glass_lib_trace::intern("net");
    assert!(submits.iter().chain(&completes).chain(&of(&events, Kind::Kick)).all(|event| event.a == name));
    assert_eq!(of(&events, Kind::Kick).len(), 1, "the first kick is that of a card without a name");
    // One was sent; one was received without a request, into one of 16 buffers.
    assert_eq!(completes.iter().map(size).collect::<Vec<_>>(), [(60, 1), (100, 15)]);
    assert_eq!(completes[0].b, submits[0].b);
    assert_ne!(submits[0].b, submits[1].b);
    assert_eq!(completes[1].b, glass_lib_trace::UNREQUESTED_MIN + 1);
    let gauges: Vec<i64> = of(&events, Kind::Counter).iter().map(|event| event.b as i64).collect();
    // The new card sends nothing and has 16 buffers; then two frames wait, then one.
    assert_eq!(gauges, [0, 16, 2, 1]);
}

#[test]
fn text_that_the_host_does_not_read_is_under_way() {
    let events = traced(&[Group::Devices, Group::Counters], || {
        let fake = Fake::new(device::CONSOLE, feature::EVENT_IDX, &[]);
        let config = ConsoleConfig { buffers: 2, buffer_bytes: 100, receive: false, port: 0 };
        let mut console = Console::new(fake.clone(), GuardedDma, config).unwrap();
        console.set_trace_name(glass_lib_trace::intern("console"));
        for _ in 0..2 {
            assert!(console.has_space(80));
            console.write(&[b'x'; 80]);
            console.kick();
        }
        assert!(!console.has_space(80));
        console.want_space();
        assert!(!console.arm() && !console.poll());
        let chain = fake.with(1, |queue| queue.take().unwrap());
        fake.with(1, |queue| queue.complete(chain.head, 0));
        assert!(console.arm() && console.poll() && console.take_space_freed() && console.has_space(80));
        assert!(!console.has_space(1000) && !console.poll() && !console.take_space_freed());
    });
    let (submits, completes) = (of(&events, Kind::Submit), of(&events, Kind::Complete));
    assert_eq!(submits.iter().map(size).collect::<Vec<_>>(), [(80, 1), (80, 2)]);
    assert_eq!(completes.iter().map(size).collect::<Vec<_>>(), [(80, 1)]);
    assert_eq!(completes[0].b, submits[0].b);
    assert_ne!(submits[0].b, submits[1].b);
    let name = glass_lib_trace::intern("console");
    assert!(submits.iter().all(|submit| (submit.a, submit.detail) == (name, Operation::Write as u16)));
    assert!(completes[0].a == name && completes[0].detail == 0);
    assert_eq!(
        of(&events, Kind::Kick).iter().map(|kick| kick.a).collect::<Vec<_>>(),
        [name],
        "the second finds the device at work"
    );
    let gauges: Vec<i64> = of(&events, Kind::Counter).iter().map(|event| event.b as i64).collect();
    assert_eq!(gauges, [80, 160, 80]);
}

/// A trace of one group alone learns when the host has read.
#[test]
fn what_the_host_has_read_is_seen_at_the_next_poll() {
    for (group, kind) in [(Group::Devices, Kind::Complete), (Group::Counters, Kind::Counter)] {
        let events = traced(&[group], || {
            let fake = Fake::new(device::CONSOLE, 0, &[]);
            let mut console = Console::new(fake.clone(), GuardedDma, ConsoleConfig::default()).unwrap();
            console.set_trace_name(glass_lib_trace::intern("console"));
            console.write(b"text");
            console.kick();
            let chain = fake.with(1, |queue| queue.take().unwrap());
            fake.with(1, |queue| queue.complete(chain.head, 0));
            assert!(!console.poll(), "no task waits for it");
        });
        // The gauge has gone up and down.
        assert_eq!(of(&events, kind).len(), if kind == Kind::Counter { 2 } else { 1 });
    }
}

#[test]
fn packets_are_requests_too() {
    let mut names = (0, 0);
    let events = traced(&[Group::Devices], || {
        let fake = Fake::new(device::VSOCK, feature::EVENT_IDX, &[3, 0, 0, 0, 0, 0, 0, 0]);
        let config = VsockConfig { receive_buffers: 8, receive_bytes: 4096 };
        let mut vsock = Vsock::new(fake.clone(), GuardedDma, config).unwrap();
        names = (glass_lib_trace::intern("vsock"), glass_lib_trace::intern("another"));
        vsock.set_trace_name(names.0);
        assert!(vsock.send(&[0; 44], None) && vsock.send(&[0; 44], Some(Buf::zeroed(100).unwrap())));
        vsock.kick();
        for _ in 0..2 {
            let chain = fake.with(1, |queue| queue.take().unwrap());
            fake.with(1, |queue| queue.complete(chain.head, 0));
        }
        // There is room, but the trace is to learn that they have left.
        assert!(vsock.poll());
        for bytes in [0, 7] {
            fake.with(0, |queue| {
                let chain = queue.take().unwrap();
                let written = chain.write(&vec![1; 44 + bytes]);
                queue.complete(chain.head, written);
            });
            assert!(vsock.receive().is_some());
        }
    });
    let (submits, completes) = (of(&events, Kind::Submit), of(&events, Kind::Complete));
    assert_eq!(submits.iter().map(size).collect::<Vec<_>>(), [(0, 1), (100, 2)]);
    assert_eq!(submits.iter().map(|submit| submit.b).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(completes.iter().map(size).collect::<Vec<_>>(), [(0, 1), (100, 0), (0, 7), (7, 6)]);
    let received = glass_lib_trace::UNREQUESTED_MIN;
    assert_eq!(completes.iter().map(|complete| complete.b).collect::<Vec<_>>(), [1, 2, received + 1, received + 2]);
    assert!(submits.iter().all(|submit| submit.detail == Operation::Transmit as u16));
    assert!(submits.iter().chain(&completes).all(|event| event.a == names.0));
    let kicks = of(&events, Kind::Kick);
    assert_eq!(kicks.iter().map(|kick| kick.a).collect::<Vec<_>>(), [names.0], "the first kick has no name");
}

/// The answer of a host to the oldest request: bytes behind the header.
fn answer_fuse(fake: &Fake, body: &[u8]) {
    fake.with(1, |queue| {
        let chain = queue.take().expect("a request was sent");
        let request = chain.read();
        let header = [&(16 + body.len() as u32).to_le_bytes()[..], &[0; 4], &request[8..16]].concat();
        let written = chain.write(&[&header, body].concat());
        queue.complete(chain.head, written);
    });
}

#[test]
fn requests_to_a_directory_have_the_names_of_their_kind() {
    let mut name = 0;
    let events = traced(&[Group::Devices], || {
        let fake = Fake::new(device::FS, 0, &[0; 40]);
        let mut fs = Fs::new(fake.clone(), GuardedDma).unwrap();
        fs.submit(Message::init(), Data::None, Instant(0)).unwrap();
        fs.kick();
        answer_fuse(&fake, &[0; 64]);
        assert!(fs.poll_one().unwrap().result.is_ok());
        name = glass_lib_trace::intern("files");
        fs.set_trace_name(name);
        assert_eq!(fs.trace_name(), name);
        let buf = || Buf::zeroed(100).unwrap();
        for (message, data, answer) in [
            (Message::read(1, 2, 0, 100), Data::Fill(buf(), 0..100), &[0; 60][..]),
            (Message::read_directory(1, 2, 0, 100), Data::Fill(buf(), 0..100), &[]),
            (Message::write(1, 2, 0, 100), Data::Send(buf(), 0..100), &[0; 8]),
            (Message::sync(1, 2), Data::None, &[]),
            (Message::release(1, 2), Data::None, &[]),
        ] {
            fs.submit(message, data, Instant(0)).unwrap();
            fs.kick();
            answer_fuse(&fake, answer);
            assert!(fs.poll_one().unwrap().result.is_ok());
        }
    });
    let named = |kind| of(&events, kind).into_iter().filter(|event| event.a == name).collect::<Vec<_>>();
    let (submits, completes) = (named(Kind::Submit), named(Kind::Complete));
    let kinds = [Operation::Read, Operation::Read, Operation::Write, Operation::Flush, Operation::Other];
    assert_eq!(submits.iter().map(|submit| submit.detail).collect::<Vec<_>>(), kinds.map(|kind| kind as u16));
    assert_eq!(submits.iter().map(size).collect::<Vec<_>>(), [(100, 1), (100, 1), (100, 1), (0, 1), (0, 1)]);
    assert_eq!(completes.iter().map(size).collect::<Vec<_>>(), [(60, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
    assert!(submits.iter().zip(&completes).all(|(submit, complete)| submit.b == complete.b));
    assert_eq!(of(&events, Kind::Kick).iter().map(|kick| kick.a).collect::<Vec<_>>(), [name; 5]);
}

#[test]
fn a_task_waits_for_its_request_to_a_directory() {
    let mut name = 0;
    let events = traced(&[Group::Devices, Group::Tasks], || {
        let fake = Fake::new(device::FS, 0, &[0; 40]);
        let fs = Fs::new(fake.clone(), GuardedDma).unwrap();
        let mut files = HostFiles::new(fs, || Instant(0));
        name = glass_lib_trace::intern("files");
        files.set_trace_name(name);
        let reader = files.clone();
        let mut first = Box::pin(reader.metadata("one"));
        let mut second = Box::pin(reader.metadata("two"));
        let mut context = Context::from_waker(Waker::noop());
        // Nothing is sent before INIT has its answer.
        assert!(first.as_mut().poll(&mut context).is_pending());
        files.kick();
        let mut init = [0; 64];
        (init[0], init[4]) = (7, 31);
        answer_fuse(&fake, &init);
        assert!(fake.with(1, |queue| queue.take()).is_none());
        assert!(files.poll());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(first.as_mut().poll(&mut context).is_pending());
    });
    let numbers: Vec<u64> = of(&events, Kind::Submit).iter().map(|submit| submit.b).collect();
    assert_eq!(numbers.len(), 3);
    let blocks = of(&events, Kind::Block);
    let kinds = [BlockKind::Resource, BlockKind::Request, BlockKind::Request].map(|kind| kind as u16);
    assert_eq!(blocks.iter().map(|block| block.detail).collect::<Vec<_>>(), kinds);
    assert_eq!([blocks[1].b, blocks[2].b], [numbers[2], numbers[1]]);
    assert!(blocks[1..].iter().all(|block| block.a == name));
}

#[test]
fn nothing_is_written_while_nothing_is_on() {
    let events = traced(&[], || {
        let (fake, mut disk) = disk();
        let writer = disk.clone();
        let mut write = Box::pin(writer.write(0, Buf::zeroed(512).unwrap()));
        assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        answer(&fake, 0);
        assert!(disk.poll());
    });
    assert_eq!(events, []);
}
