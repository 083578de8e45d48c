//! The queue against devices that are correct, slow, reordering and malfunctioning.

use crate::fake::{Chain, DAMAGED, Fake, GuardedDma, RecordingDma};
use crate::queue::{AddError, Queue, QueueOptions, Segment, Token, kick_all};
use crate::session::Session;
use crate::transport::{device, feature};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use glass_drivers_device::{Users, Violation};
use proptest::prelude::*;
use std::sync::{Arc, Condvar, Mutex};

const SIZE: u16 = 16;

/// A queue and the use of the device that keeps its memory.
struct Used {
    queue: Queue,
    _session: Session<Fake>,
}

impl Deref for Used {
    type Target = Queue;
    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl DerefMut for Used {
    fn deref_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

fn queue_of(size: u16, event_idx: bool, table_entries: u16) -> (Fake, Used) {
    let features = if event_idx { feature::EVENT_IDX } else { 0 };
    let fake = Fake::new(device::BLK, features, &[]);
    let mut session = Session::new(fake.clone());
    session.begin(device::BLK, features, 0, &[]).unwrap();
    let queue = Queue::new(&mut session, &GuardedDma, 0, QueueOptions { size, event_idx, table_entries }).unwrap();
    session.go();
    (fake, Used { queue, _session: session })
}

fn segment(address: u64, device_writes: bool) -> Segment {
    Segment { address, bytes: 8, device_writes }
}

/// Queues a request whose segments the tests' device never touches.
fn add(queue: &mut Queue, readable: u64, writable: u64) -> Result<Token, AddError> {
    let mut segments: Vec<Segment> = (0..readable).map(|index| segment(index << 32 | 8, false)).collect();
    segments.extend((0..writable).map(|index| segment(index << 32 | 16, true)));
    // SAFETY: the device of these tests looks at descriptors and never at what they point to.
    unsafe { queue.add(&segments) }
}

/// Runs `count` requests through, so that all indices stand at `count`.
fn warm_up(fake: &Fake, queue: &mut Queue, count: u32) {
    for _ in 0..count {
        let token = add(queue, 1, 0).unwrap();
        fake.with(0, |device| {
            let chain = device.take().unwrap();
            device.put(u32::from(chain.head), 0);
        });
        assert_eq!(queue.pop().unwrap().unwrap().token, token);
    }
    let mut fake = fake.clone();
    queue.kick(&mut fake);
    fake.notifications();
}

#[test]
fn a_chain_arrives_as_it_was_written() {
    for table_entries in [0, 4] {
        let (fake, mut queue) = queue_of(8, true, table_entries);
        let token = add(&mut queue, 2, 1).unwrap();
        let chain = fake.with(0, |device| device.take()).unwrap();
        assert_eq!(usize::from(chain.head), token.index());
        assert_eq!(chain.segments, [segment(8, false), segment(1 << 32 | 8, false), segment(16, true)]);
        // With a table, a request costs one descriptor.
        let count = if table_entries == 0 { 5 } else { 7 };
        assert!(queue.has_space(1) && add(&mut queue, count, 0).is_ok() && !queue.has_space(8));
    }
}

#[test]
fn a_full_queue_says_so() {
    let (fake, mut queue) = queue_of(4, true, 0);
    add(&mut queue, 3, 0).unwrap();
    assert_eq!(add(&mut queue, 1, 1), Err(AddError::Full));
    add(&mut queue, 1, 0).unwrap();
    assert!(!queue.has_space(1));
    fake.with(0, |device| {
        let chain = device.take().unwrap();
        device.complete(chain.head, 0);
    });
    queue.pop().unwrap().unwrap();
    assert!(queue.has_space(3) && !queue.has_space(4));
}

#[test]
fn a_short_device_queue_is_used_as_far_as_it_goes() {
    let make = |size_max| {
        let fake = Fake::new(device::BLK, 0, &[]);
        let mut session = Session::new(fake.clone());
        session.begin(device::BLK, 0, 0, &[]).unwrap();
        fake.state().queue_size_max = size_max;
        let options = QueueOptions { size: 64, event_idx: false, table_entries: 0 };
        Queue::new(&mut session, &GuardedDma, 0, options).map(|queue| queue.size())
    };
    assert_eq!(make(1024).unwrap(), 64);
    assert_eq!(make(48).unwrap(), 32);
    assert!(make(0).is_err() && make(1).is_err());
}

/// Virtio 1.2, section 2.7: 16 bytes for each descriptor, 6 and 2 for each request, 6 and 8 for each completion.
#[test]
fn a_queue_takes_the_memory_of_its_rings_and_tables() {
    for (size, table_entries, available, used, bytes) in [
        (2, 0, 32, 64, &[64 + 6 + 16][..]),
        (16, 4, 256, 320, &[320 + 6 + 128, 16 * 4 * 16]),
        (128, 3, 2048, 2368, &[2368 + 6 + 1024, 128 * 3 * 16]),
    ] {
        let fake = Fake::new(device::BLK, 0, &[]);
        let dma = RecordingDma::default();
        let mut session = Session::new(fake.clone());
        session.begin(device::BLK, 0, 0, &[]).unwrap();
        Queue::new(&mut session, &dma, 0, QueueOptions { size, event_idx: true, table_entries }).unwrap();
        let allocated = dma.allocated();
        assert_eq!(allocated.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), bytes);
        assert!(allocated[0].1 == Users::DeviceWrites && allocated[1..].iter().all(|of| of.1 == Users::DeviceReads));
        let addresses = fake.with(0, |device| device.addresses());
        assert_eq!(addresses.available - addresses.descriptors, available);
        assert_eq!(addresses.used - addresses.descriptors, used, "a line of its own");
    }
}

#[test]
#[should_panic(expected = "assertion failed: !segments.is_empty()")]
fn a_request_has_a_segment() {
    _ = add(&mut queue_of(SIZE, true, 0).1, 0, 0);
}

#[test]
#[should_panic(expected = "assertion failed: !segments.is_empty()")]
fn what_the_device_writes_comes_last() {
    // SAFETY: the device looks at nothing.
    _ = unsafe { queue_of(SIZE, true, 0).1.add(&[segment(16, true), segment(8, false)]) };
}

#[test]
fn the_times_of_several_notifications_add_up() {
    const TICKS: u64 = 10_000;
    let fake = Fake::new(device::BLK, 0, &[]);
    let mut session = Session::new(fake.clone());
    session.begin(device::BLK, 0, 0, &[]).unwrap();
    let options = QueueOptions { size: 4, event_idx: false, table_entries: 0 };
    let mut queues = [0, 1, 2].map(|number| Queue::new(&mut session, &GuardedDma, number, options).unwrap());
    session.go();
    assert_eq!(kick_all(&mut queues, &mut session.transport), None);
    for queue in &mut queues[1..] {
        add(queue, 1, 0).unwrap();
    }
    fake.state().notify_ticks = TICKS;
    let start = glass_lib_trace::ticks();
    let ticks = kick_all(&mut queues, &mut session.transport).unwrap();
    let end = glass_lib_trace::ticks();
    assert!((2 * TICKS..=end - start).contains(&ticks), "{ticks} of {}", end - start);
    assert_eq!(fake.notifications(), [1, 2]);
}

#[test]
fn each_lie_has_words_of_its_own() {
    let violations = [
        Violation::IdOutOfRange { id: 1 },
        Violation::NotInFlight { id: 1 },
        Violation::LengthTooLong { bytes: 1, writable: 0 },
        Violation::TooManyCompletions { count: 2, in_flight: 1 },
        Violation::NeedsReset,
    ];
    let words = violations.map(Violation::as_str);
    assert!(words.iter().all(|text| text.starts_with("it ")), "{words:?}");
    assert_eq!(words.iter().collect::<std::collections::BTreeSet<_>>().len(), violations.len());
}

/// Each violation, while two requests are in flight.
#[test]
fn each_lie_breaks_the_queue_once_and_for_all() {
    type Violate = fn(&mut crate::fake::DeviceQueue);
    let violations: [(Violate, Violation); 6] = [
        (|device| device.put(16, 0), Violation::IdOutOfRange { id: 16 }),
        (|device| device.put(0xffff_ffff, 0), Violation::IdOutOfRange { id: u32::MAX }),
        (|device| device.put(0x1_0000, 0), Violation::IdOutOfRange { id: 0x1_0000 }),
        // The second descriptor of the first chain is no request.
        (|device| device.put(1, 0), Violation::NotInFlight { id: 1 }),
        (|device| device.put(0, 9), Violation::LengthTooLong { bytes: 9, writable: 8 }),
        (|device| device.publish(3), Violation::TooManyCompletions { count: 3, in_flight: 2 }),
    ];
    for (violate, violation) in violations {
        let (fake, mut queue) = queue_of(SIZE, true, 0);
        add(&mut queue, 1, 1).unwrap();
        add(&mut queue, 1, 1).unwrap();
        fake.with(0, violate);
        assert!(queue.arm(), "a violation is to be handled");
        assert_eq!(queue.pop(), Err(violation));
        assert_eq!(queue.violation(), Some(violation));
        // Nothing moves any more, and no task waits.
        assert_eq!(add(&mut queue, 1, 0), Err(AddError::Broken(violation)));
        assert_eq!(queue.pop(), Err(violation));
        assert!(!queue.arm() && !queue.has_used() && !queue.has_space(1));
        queue.kick(&mut fake.clone());
        assert_eq!(fake.notifications(), []);
        assert_eq!(queue.break_with(Violation::NeedsReset), violation);
    }
}

#[test]
fn a_request_completed_twice_is_a_lie() {
    let (fake, mut queue) = queue_of(SIZE, true, 0);
    add(&mut queue, 1, 0).unwrap();
    add(&mut queue, 1, 0).unwrap();
    fake.with(0, |device| {
        device.put(0, 0);
        device.put(0, 0);
    });
    assert!(queue.pop().unwrap().is_some());
    assert_eq!(queue.pop(), Err(Violation::NotInFlight { id: 0 }));
}

#[test]
fn without_event_idx_flags_decide() {
    let (fake, mut queue) = queue_of(SIZE, false, 0);
    let mut registers = fake.clone();
    let complete = || {
        fake.with(0, |device| {
            let chain = device.take().unwrap();
            device.complete(chain.head, 0)
        })
    };
    for (no_notify, kicks) in [(false, 1), (true, 0)] {
        fake.with(0, |device| device.set_no_notify(no_notify));
        add(&mut queue, 1, 0).unwrap();
        queue.kick(&mut registers);
        queue.kick(&mut registers);
        assert_eq!(fake.notifications().len(), kicks);
    }
    assert!(!complete(), "a new queue is quiet");
    assert!(queue.arm());
    queue.pop().unwrap().unwrap();
    assert!(!queue.arm());
    assert!(complete());
    queue.disarm();
    add(&mut queue, 1, 0).unwrap();
    assert!(!complete());
}

#[test]
fn a_kick_comes_exactly_when_the_wish_was_passed() {
    // Windows around the point where all indices start again from 0.
    for start in [0u32, 65_530] {
        let (fake, mut queue) = queue_of(SIZE, true, 0);
        let mut registers = fake.clone();
        warm_up(&fake, &mut queue, start);
        let mut from = start as u16;
        for round in 0..200u16 {
            let added = round % (SIZE + 1);
            let wish = from.wrapping_add(round % 23).wrapping_sub(4);
            fake.with(0, |device| device.set_available_event(wish));
            for _ in 0..added {
                add(&mut queue, 1, 0).unwrap();
            }
            let expected = (0..added).any(|index| from.wrapping_add(index) == wish);
            queue.kick(&mut registers);
            assert_eq!(fake.notifications(), if expected { alloc::vec![0] } else { Vec::new() });
            queue.kick(&mut registers);
            assert_eq!(fake.notifications(), [], "nothing new, no kick");
            from = from.wrapping_add(added);
            fake.with(0, |device| {
                assert_eq!(device.available_index(), from);
                while let Some(chain) = device.take() {
                    device.put(u32::from(chain.head), 0);
                }
            });
            while queue.pop().unwrap().is_some() {}
        }
    }
}

#[test]
fn a_kick_after_a_whole_turn_of_the_index_is_not_lost() {
    let (fake, mut queue) = queue_of(SIZE, true, 0);
    fake.with(0, |device| device.set_available_event(5));
    // 65,536 requests without a kick: the index stands where it was, yet every wish was passed.
    for _ in 0..65_536 {
        add(&mut queue, 1, 0).unwrap();
        fake.with(0, |device| {
            let chain = device.take().unwrap();
            device.put(u32::from(chain.head), 0);
        });
        queue.pop().unwrap().unwrap();
    }
    queue.kick(&mut fake.clone());
    assert_eq!(fake.notifications(), [0]);
}

#[test]
fn an_interrupt_comes_exactly_when_asked_for() {
    for start in [0u32, 65_530] {
        let (fake, mut queue) = queue_of(SIZE, true, 0);
        warm_up(&fake, &mut queue, start);
        for round in 0..100u16 {
            let count = 1 + round % SIZE;
            let more = round % 7;
            for _ in 0..count {
                add(&mut queue, 1, 0).unwrap();
            }
            let armed = !round.is_multiple_of(3);
            if armed {
                assert!(!queue.arm_after(more));
                assert_eq!(fake.with(0, |device| device.used_event()), {
                    let index = fake.with(0, |device| device.used_index);
                    index.wrapping_add(more.min(count - 1))
                });
            } else {
                queue.disarm();
            }
            let interrupts: Vec<bool> = (0..count)
                .map(|_| {
                    fake.with(0, |device| {
                        let chain = device.take().unwrap();
                        device.complete(chain.head, 0)
                    })
                })
                .collect();
            for (index, interrupt) in interrupts.into_iter().enumerate() {
                assert_eq!(interrupt, armed && index == usize::from(more.min(count - 1)), "round {round}");
            }
            assert!(queue.arm(), "completions that came before the question are found by it");
            while queue.pop().unwrap().is_some() {}
            assert!(!queue.arm());
        }
    }
}

/// A driver that sleeps whenever it may, and a device on another thread that interrupts only when
/// requested. One lost wake-up and the driver sleeps until the time-out. On a busy machine three seconds bring fewer requests.
#[test]
fn no_wake_up_is_lost_to_a_race() {
    const REQUESTS: usize = 60_000;
    for event_idx in [true, false] {
        let end = std::time::Instant::now() + Duration::from_secs(3);
        let (fake, mut queue) = queue_of(SIZE, event_idx, 0);
        let interrupt = Arc::new((Mutex::new(false), Condvar::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicUsize::new(0));
        let device = {
            let (fake, interrupt, stop, sent) = (fake.clone(), interrupt.clone(), stop.clone(), sent.clone());
            // The device's thread owns its side of the queue; the registers' lock would order the two.
            let mut device = fake.state().queues.pop().unwrap();
            std::thread::spawn(move || {
                let mut pause = 1u32;
                while !stop.load(Ordering::Relaxed) {
                    let Some(chain) = device.take() else {
                        std::thread::yield_now();
                        continue;
                    };
                    pause = pause.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (0..pause >> 26).for_each(|_| core::hint::spin_loop());
                    if device.complete(chain.head, 0) {
                        sent.fetch_add(1, Ordering::Relaxed);
                        *interrupt.0.lock().unwrap() = true;
                        interrupt.1.notify_one();
                    }
                }
            })
        };
        let mut done = 0;
        let mut slept = 0;
        while done < REQUESTS && (slept == 0 || std::time::Instant::now() < end) {
            while queue.in_flight() < 2 {
                add(&mut queue, 1, 0).unwrap();
            }
            while queue.pop().unwrap().is_some() {
                done += 1;
            }
            if queue.in_flight() == 0 || queue.arm() {
                continue;
            }
            let pending = interrupt.0.lock().unwrap();
            let (mut pending, timeout) =
                interrupt.1.wait_timeout_while(pending, Duration::from_secs(60), |pending| !*pending).unwrap();
            assert!(!timeout.timed_out(), "a wake-up was lost after {done} requests and {slept} sleeps");
            *pending = false;
            slept += 1;
        }
        stop.store(true, Ordering::Relaxed);
        device.join().unwrap();
        assert!(sent.load(Ordering::Relaxed) >= slept, "the test slept {slept} times");
    }
}

/// The question and the answer at the same moment, again and again: at least one side must see the
/// other. Without the fence in `arm` both look too early within some thousand rounds, if the
/// machine has two cores to spare (4 of 6 runs failed on a busy one).
#[test]
fn the_question_and_the_completion_never_miss_each_other() {
    const ROUNDS: usize = 300_000;
    let (fake, mut queue) = queue_of(SIZE, true, 0);
    let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let wait_for = |counter: &AtomicUsize, round: usize| {
        let mut polls = 0;
        while counter.load(Ordering::Acquire) >> 1 < round {
            polls += 1;
            if polls % 2000 == 0 { std::thread::yield_now() } else { core::hint::spin_loop() }
        }
        counter.load(Ordering::Acquire) & 1 == 1
    };
    let end = std::time::Instant::now() + Duration::from_secs(3);
    let device = {
        let (asked, answered) = (asked.clone(), answered.clone());
        let mut device = fake.state().queues.pop().unwrap();
        std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                // The low bit is set in the last round.
                let is_last = wait_for(&asked, round);
                let chain = device.take().unwrap();
                let interrupt = device.complete(chain.head, 0);
                answered.store(round << 1 | usize::from(interrupt), Ordering::Release);
                if is_last {
                    break;
                }
            }
        })
    };
    for round in 1..=ROUNDS {
        add(&mut queue, 1, 0).unwrap();
        let is_last = round == ROUNDS || std::time::Instant::now() > end;
        asked.store(round << 1 | usize::from(is_last), Ordering::Release);
        // The device needs some hundred cycles to find the request: meet it at every point of that.
        (0..round % 2048).for_each(|cycle| _ = core::hint::black_box(cycle));
        let found = queue.arm();
        let interrupted = wait_for(&answered, round);
        assert!(found || interrupted, "a wake-up was lost in round {round}");
        assert!(queue.pop().unwrap().is_some());
        queue.disarm();
        if is_last {
            break;
        }
    }
    device.join().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Add {
        readable: u64,
        writable: u64,
    },
    Take,
    /// Completes one of the requests that the device holds, with a part of the permitted length.
    Complete {
        which: usize,
        share: u32,
    },
    Pop,
    Kick,
    Arm,
    Disarm,
    Wish(u16),
    Violation {
        id: u32,
        bytes: u32,
        jump: u16,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..4, 0u64..4).prop_map(|(readable, writable)| Step::Add { readable, writable }),
        5 => Just(Step::Take),
        5 => (any::<usize>(), 0u32..=4).prop_map(|(which, share)| Step::Complete { which, share }),
        5 => Just(Step::Pop),
        2 => Just(Step::Kick),
        1 => Just(Step::Arm),
        1 => Just(Step::Disarm),
        1 => any::<u16>().prop_map(Step::Wish),
    ]
}

fn violation() -> impl Strategy<Value = Step> {
    (prop_oneof![0u32..20, any::<u32>()], prop_oneof![0u32..40, any::<u32>()], prop_oneof![0u16..3, any::<u16>()])
        .prop_map(|(id, bytes, jump)| Step::Violation { id, bytes, jump })
}

/// What the driver and the device must agree on.
#[derive(Default)]
struct Model {
    /// Tokens in flight with the bytes that the device may write.
    in_flight: Vec<(u16, u32)>,
    /// Requests that the device holds.
    taken: Vec<Chain>,
    /// Completions that the driver has not taken: token and length.
    completed: VecDeque<(u16, u32)>,
    expected_order: VecDeque<(u16, u64, u64)>,
}

fn run(start: u32, table_entries: u16, steps: &[Step]) {
    let (fake, mut queue) = queue_of(SIZE, true, table_entries);
    warm_up(&fake, &mut queue, start);
    let mut model = Model::default();
    let mut has_violated = false;
    for step in steps {
        match *step {
            Step::Add { readable: 0, writable: 0 } => {}
            Step::Add { readable, writable } => match add(&mut queue, readable, writable) {
                Ok(token) => {
                    let id = token.index() as u16;
                    assert!(id < SIZE && model.in_flight.iter().all(|request| request.0 != id), "token used twice");
                    model.in_flight.push((id, 8 * writable as u32));
                    model.expected_order.push_back((id, readable, writable));
                }
                Err(AddError::Full) => assert!(!queue.has_space((readable + writable) as usize)),
                Err(AddError::Broken(_)) => assert!(has_violated),
            },
            // A request that a violation has ended may be overwritten before the device takes it.
            Step::Take if has_violated => {}
            Step::Take => {
                if let Some(chain) = fake.with(0, |device| device.take()) {
                    // What arrives is what was added, in order.
                    let (id, readable, writable) = model.expected_order.pop_front().unwrap();
                    assert_eq!(chain.head, id);
                    assert_eq!(chain.segments.len() as u64, readable + writable);
                    assert_eq!(u64::from(chain.writable_bytes()), 8 * writable);
                    model.taken.push(chain);
                }
            }
            Step::Complete { which, share } if !model.taken.is_empty() => {
                let chain = model.taken.swap_remove(which % model.taken.len());
                let bytes = chain.writable_bytes() / 4 * share;
                fake.with(0, |device| device.put(u32::from(chain.head), bytes));
                model.completed.push_back((chain.head, bytes));
            }
            Step::Complete { .. } => {}
            Step::Pop => match queue.pop() {
                Ok(Some(used)) => {
                    let id = used.token.index() as u16;
                    let place = model.in_flight.iter().position(|request| request.0 == id);
                    let (_, writable) = model.in_flight.swap_remove(place.expect("only what is in flight completes"));
                    assert!(used.bytes_written <= writable);
                    if !has_violated {
                        assert_eq!(model.completed.pop_front(), Some((id, used.bytes_written)));
                    }
                }
                Ok(None) => assert!(has_violated || model.completed.is_empty(), "a completion was lost"),
                Err(_) => assert!(has_violated, "a correct device was taken for a broken one"),
            },
            Step::Kick => _ = queue.kick(&mut fake.clone()),
            Step::Arm => {
                let waits = queue.arm();
                assert!(has_violated || waits != model.completed.is_empty());
            }
            Step::Disarm => queue.disarm(),
            Step::Wish(index) => fake.with(0, |device| device.set_available_event(index)),
            Step::Violation { id, bytes, jump } => {
                has_violated = true;
                fake.with(0, |device| {
                    device.put(id, bytes);
                    device.publish(jump);
                });
            }
        }
        let used: usize = usize::from(queue.in_flight());
        assert_eq!(used, model.in_flight.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn an_honest_device_loses_and_doubles_nothing(
        start in prop_oneof![Just(0u32), Just(65_500), 0u32..40],
        tables in prop_oneof![Just(0u16), Just(4)],
        steps in prop::collection::vec(step(), 0..300),
    ) {
        run(start, tables, &steps);
        prop_assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_malfunctioning_device_corrupts_nothing(
        tables in prop_oneof![Just(0u16), Just(4)],
        steps in prop::collection::vec(prop_oneof![12 => step(), 1 => violation()], 0..300),
    ) {
        run(0, tables, &steps);
        prop_assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
    }
}
