//! The events that an executor writes, in which order, from which thread.

use glass_api::Instant;
use glass_formats::trace::{EVENT_WORDS, Ring};
use glass_lib_executor::sync::{self, Latch, Notify, Semaphore, channel_named, oneshot_named, yield_now};
use glass_lib_executor::{Executor, Unpark};
use glass_lib_trace::{BlockKind, CONTROL, Event, Group, Kind, Name, Outcome, Writer};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

/// The groups are those of the whole process, so one test at a time switches them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static START: Once = Once::new();

struct Nothing;
impl Unpark for Nothing {
    fn unpark(&self) {}
}

/// A ring, and an executor on this thread.
struct World {
    executor: Executor,
    ring: Ring<'static>,
    _guard: MutexGuard<'static, ()>,
}

fn attach() -> Ring<'static> {
    let words: &'static [AtomicU64] = Vec::leak((0..256 * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect());
    glass_lib_trace::set_current(Some(Box::leak(Box::new(Writer::claim("test", words).unwrap()))));
    let address = words.as_ptr() as u64;
    let entry = CONTROL.rings.iter().find(|entry| entry.address.load(Ordering::Relaxed) == address).unwrap();
    Ring::new(&entry.head, words).unwrap()
}

fn world(groups: u32) -> World {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    START.call_once(|| {
        glass_lib_trace::start(true, &[], 0, 0);
    });
    let ring = attach();
    glass_lib_trace::switch(groups);
    World { executor: Executor::new(Arc::new(Nothing)), ring, _guard: guard }
}

/// What a ring holds beside the switches.
fn events(ring: Ring<'static>) -> Vec<Event> {
    let mut events = Vec::new();
    ring.read(0, |_, words| events.push(Event::from_words(words)));
    events.retain(|event| event.kind != Kind::Groups as u16);
    events
}

/// Tasks by numbers from 0 on, since other tests take numbers, too.
fn story(ring: Ring<'static>) -> Vec<(Kind, u32, u16)> {
    let events = events(ring);
    let is_task = |event: &Event| matches!(Kind::from_number(event.kind), Some(Kind::TaskSpawn));
    let first = events.iter().find(|event| is_task(event)).map_or(0, |event| event.a);
    let parts = |event: Event| {
        let kind = Kind::from_number(event.kind).unwrap();
        let is_about_a_task = matches!(kind, Kind::TaskSpawn | Kind::PollBegin | Kind::PollEnd | Kind::Wake);
        (kind, if is_about_a_task { event.a - first } else { 0 }, event.detail)
    };
    events.into_iter().map(parts).collect()
}

const PENDING: u16 = Outcome::Pending as u16;
const READY: u16 = Outcome::Ready as u16;

#[test]
fn a_life_from_spawn_to_end_comes_in_order() {
    let world = world(Group::Tasks as u32 | Group::Cores as u32);
    static DOOR: Name = Name::new("door");
    let (door, executor) = (Notify::named(&DOOR), world.executor.clone());
    let opened = door.notified();
    let parent = async move {
        executor.spawn("child", opened).unwrap();
        executor.sleep_until(Instant(500)).await;
        yield_now().await;
        door.notify_all();
    };
    world.executor.spawn("parent", parent).unwrap();
    world.executor.run_ready();
    world.executor.run_ready();
    assert_eq!(world.executor.fire_timers(Instant(499)), 0);
    assert_eq!(world.executor.fire_timers(Instant(500)), 1);
    for _ in 0..3 {
        world.executor.run_ready();
    }
    assert_eq!(world.executor.task_count(), 0);
    use Kind::*;
    let wait = |kind: BlockKind| (Block, 0, kind as u16);
    let expected = [
        (TaskSpawn, 0, 0),
        (PollBegin, 0, 0),
        (TaskSpawn, 1, 0),
        wait(BlockKind::Timer),
        (PollEnd, 0, PENDING),
        (PollBegin, 1, 0),
        wait(BlockKind::Notify),
        (PollEnd, 1, PENDING),
        (TimersFire, 0, 0),
        (Wake, 0, 0),
        (PollBegin, 0, 0),
        wait(BlockKind::Yield),
        (Wake, 0, 0),
        (PollEnd, 0, PENDING),
        (PollBegin, 0, 0),
        (Wake, 1, 0),
        (PollEnd, 0, READY),
        (PollBegin, 1, 0),
        (PollEnd, 1, READY),
    ];
    assert_eq!(story(world.ring), expected);
    let events = events(world.ring);
    assert!(events.is_sorted_by_key(|event| event.ticks));
    let (parent, child) = (events[0], events[2]);
    assert_eq!((parent.b >> 32, child.b >> 32), (0, u64::from(parent.a)));
    assert_eq!(child.b as u32, glass_lib_trace::intern("child"));
    assert_eq!((events[3].b, events[6].a), (500, glass_lib_trace::intern("door")));
    assert_eq!(events[8].a, 1);
}

#[test]
fn numbers_are_never_used_again() {
    let world = world(Group::Tasks as u32);
    for _ in 0..5 {
        world.executor.spawn("short", async {}).unwrap();
        world.executor.run_ready();
    }
    let spawned: Vec<u32> =
        story(world.ring).iter().filter(|event| event.0 == Kind::TaskSpawn).map(|event| event.1).collect();
    assert_eq!(spawned, [0, 1, 2, 3, 4]);
}

#[test]
fn a_late_wake_is_the_next_tasks_or_nobodys() {
    let world = world(Group::Tasks as u32);
    let kept: Rc<Cell<Option<Waker>>> = Rc::default();
    let keep = kept.clone();
    let first = poll_fn(move |context| {
        keep.set(Some(context.waker().clone()));
        Poll::Ready(())
    });
    world.executor.spawn("first", first).unwrap();
    world.executor.run_ready();
    let waker = kept.take().unwrap();
    waker.wake_by_ref();
    world.executor.run_ready();
    world.executor.spawn("second", std::future::pending::<()>()).unwrap();
    world.executor.run_ready();
    waker.wake_by_ref();
    // It is ready already.
    waker.wake();
    world.executor.run_ready();
    use Kind::*;
    let first = [(TaskSpawn, 0, 0), (PollBegin, 0, 0), (PollEnd, 0, READY)];
    let second = [(TaskSpawn, 1, 0), (PollBegin, 1, 0), (PollEnd, 1, PENDING)];
    let woken = [(Wake, 1, 0), (PollBegin, 1, 0), (PollEnd, 1, PENDING)];
    assert_eq!(story(world.ring), [first, second, woken].concat());
}

#[test]
fn a_task_that_is_woken_twice_before_its_poll_is_told_of_once_whatever_its_slot() {
    let world = world(Group::Tasks as u32);
    // More than a word of the ready set.
    let wakers: Rc<RefCell<Vec<Waker>>> = Rc::default();
    for _ in 0..130 {
        let wakers = wakers.clone();
        let task = poll_fn(move |context| {
            wakers.borrow_mut().push(context.waker().clone());
            Poll::<()>::Pending
        });
        world.executor.spawn("task", task).unwrap();
    }
    world.executor.run_ready();
    glass_lib_trace::switch(0);
    let wakers = wakers.take();
    for index in [0, 63, 64, 129] {
        let ring = attach();
        glass_lib_trace::switch(Group::Tasks as u32);
        for _ in 0..2 {
            wakers[index].wake_by_ref();
        }
        glass_lib_trace::switch(0);
        assert_eq!(
            events(ring).iter().map(|event| event.kind).collect::<Vec<_>>(),
            [Kind::Wake as u16],
            "slot {index}"
        );
    }
}

#[test]
fn a_wake_is_told_by_the_thread_that_does_it() {
    let world = world(Group::Tasks as u32);
    let waker = Arc::new(Mutex::new(None));
    let keep = waker.clone();
    let task = poll_fn(move |context| {
        *keep.lock().unwrap() = Some(context.waker().clone());
        Poll::<()>::Pending
    });
    world.executor.spawn("task", task).unwrap();
    world.executor.run_ready();
    let task = events(world.ring)[0].a;
    let waker = waker.lock().unwrap().take().unwrap();
    let other = thread::spawn(move || {
        let ring = attach();
        waker.wake();
        events(ring)
    });
    let other = other.join().unwrap();
    assert_eq!(other.iter().map(|event| (event.kind, event.a)).collect::<Vec<_>>(), [(Kind::Wake as u16, task)]);
    assert!(events(world.ring).iter().all(|event| event.kind != Kind::Wake as u16));
    assert!(world.executor.has_ready());
}

#[test]
fn a_trace_that_begins_late_hears_of_everyone_who_lives() {
    let world = world(0);
    world.executor.spawn("gone", async {}).unwrap();
    for name in ["one", "two"] {
        world.executor.spawn(name, std::future::pending::<()>()).unwrap();
    }
    world.executor.run_ready();
    assert_eq!(story(world.ring), []);
    glass_lib_trace::switch(Group::Tasks as u32);
    world.executor.announce();
    assert_eq!(story(world.ring), [(Kind::TaskSpawn, 0, 1), (Kind::TaskSpawn, 1, 1)]);
    let names: Vec<u32> = events(world.ring).iter().map(|event| event.b as u32).collect();
    assert_eq!(names, [glass_lib_trace::intern("one"), glass_lib_trace::intern("two")]);
    glass_lib_trace::switch(0);
    world.executor.spawn("untold", async {}).unwrap();
    world.executor.run_ready();
    assert_eq!(story(world.ring).len(), 2);
}

#[test]
fn each_wait_has_its_name() {
    static NAMES: [Name; 7] = [
        Name::new("a place"),
        Name::new("the index"),
        Name::new("orders"),
        Name::new("the answer"),
        Name::new("shutdown"),
        Name::new("more orders"),
        Name::new("free buffer"),
    ];
    let world = world(Group::Tasks as u32);
    let executor = &world.executor;
    let (places, index) = (Semaphore::named(&NAMES[0], 1), Rc::new(sync::Mutex::named(&NAMES[1], 0)));
    let (orders, mut incoming) = channel_named::<u8>(&NAMES[2], 1);
    let (more, _receiver) = channel_named::<u8>(&NAMES[5], 1);
    let (_sender, answer) = oneshot_named::<u8>(&NAMES[3]);
    let stop = Latch::named(&NAMES[4]);
    let (_place, locked) = (places.try_acquire().unwrap(), index.clone());
    let _lock = index.try_lock().unwrap();
    more.try_send(1).unwrap();
    executor.spawn("semaphore", async move { drop(places.acquire().await) }).unwrap();
    executor.spawn("mutex", async move { *locked.lock().await += 1 }).unwrap();
    executor.spawn("receiver", async move { incoming.recv().await }).unwrap();
    executor.spawn("sender", async move { more.send(2).await.is_ok() }).unwrap();
    executor.spawn("oneshot", answer).unwrap();
    let waits = executor.spawn("latch", stop.wait()).unwrap();
    executor.spawn("join", async move { waits.await.is_ok() }).unwrap();
    executor.spawn("buffer", Notify::of_resource(&NAMES[6]).notified()).unwrap();
    executor.run_ready();
    let waits: Vec<(u32, u16)> =
        events(world.ring).iter().filter(|event| event.kind == Kind::Block as u16).map(|e| (e.a, e.detail)).collect();
    let (resource, notify) = (BlockKind::Resource, BlockKind::Notify);
    let expected = [
        ("a place", resource),
        ("the index", resource),
        ("orders", notify),
        ("more orders", resource),
        ("the answer", notify),
        ("shutdown", notify),
        ("end of a task", notify),
        ("free buffer", resource),
    ];
    assert_eq!(waits, expected.map(|(name, kind)| (glass_lib_trace::intern(name), kind as u16)));
    drop(orders);
}
