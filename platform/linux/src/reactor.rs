//! Which sockets are ready: epoll, edge-triggered, and the doorbell that other threads ring.

use crate::trace;
use glass_lib_executor::Unpark;
use glass_lib_trace::{BlockKind, Group, Name, WakeSource, block, has_request, idle_begin, idle_end, interrupt, is_on};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Events taken from the kernel in one call.
const EVENTS_MAX: usize = 256;

/// Operations that one source completes in a row before other tasks have their turn.
const TURN_OPERATIONS_MAX: u32 = 64;

/// How often a sleeping process polls for requests of the host of a trace: a VM does the same.
const HOST_POLL_PERIOD: Duration = Duration::from_millis(250);

/// The kernel takes no timeout without end.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

static LISTENER: Name = Name::new("listener");
static CONNECTION: Name = Name::new("connection");
static DATAGRAMS: Name = Name::new("datagrams");
static SOCKETS: Name = Name::new("sockets");
static TURN: Name = Name::new("turn");
static SIGNAL: Name = Name::new("signal");

/// The doorbell's data in an event; no source has so high a number.
const DOORBELL: u64 = u64::MAX;

/// Finds ready sockets. Clones share it.
#[derive(Clone)]
pub(crate) struct Reactor {
    inner: Rc<Inner>,
}

struct Inner {
    epoll: OwnedFd,
    doorbell: Arc<Doorbell>,
    slots: RefCell<Slots>,
    events: RefCell<Vec<epoll::Event>>,
}

#[derive(Default)]
struct Slots {
    sources: Vec<Option<Rc<Source>>>,
    free: Vec<u32>,
    /// Makes a slot's next user distinct from its last, whose events may still be on their way.
    generation: u32,
}

/// Wakes the thread that sleeps in [`Reactor::turn`].
pub(crate) struct Doorbell {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Unpark for Doorbell {
    fn unpark(&self) {
        // Pairs with the fence in `fall_asleep`: either we see that the thread sleeps, or it sees the
        // task that was made ready before this call.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // Fails only when the counter is full, and then the doorbell rings already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Doorbell {
    pub(crate) fn new() -> Result<Doorbell, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { fd, asleep: AtomicBool::new(false) })
    }

    fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// What is known about one descriptor, and who waits for it.
pub(crate) struct Source {
    generation: u32,
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// An end or an error is waiting: no further edge will come.
    ended: Cell<bool>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
    operations: Cell<u32>,
}

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Role {
    /// It listens on this port.
    Listener(u32),
    Connection,
    /// It is open for datagrams on this port.
    Datagrams(u16),
    /// A byte comes with each signal.
    Signals,
}

/// When a sleep ends at the latest.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// Time from now on.
    pub(crate) timeout: Duration,
    /// The same by the clock of the guest, for the trace.
    pub(crate) clock_ns: u64,
}

/// A direction.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Interest {
    Read,
    Write,
}

/// A descriptor that the reactor watches until this is dropped, which closes it.
pub(crate) struct Watched {
    fd: OwnedFd,
    source: Rc<Source>,
    role: Role,
    index: u32,
    reactor: Reactor,
}

impl Reactor {
    /// One that `doorbell` wakes, which is no other one's.
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Result<Reactor, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &doorbell.fd, epoll::EventData::new_u64(DOORBELL), epoll::EventFlags::IN)?;
        let events = RefCell::new(Vec::with_capacity(EVENTS_MAX));
        Ok(Reactor { inner: Rc::new(Inner { epoll, doorbell, slots: RefCell::default(), events }) })
    }

    pub(crate) fn doorbell(&self) -> Arc<Doorbell> {
        self.inner.doorbell.clone()
    }

    /// Watches a non-blocking descriptor. `writable` is what is assumed until the kernel reports it.
    pub(crate) fn watch(&self, fd: OwnedFd, role: Role, writable: bool) -> Result<Watched, Errno> {
        let (index, source) = self.inner.slots.borrow_mut().insert(writable);
        let data = epoll::EventData::new_u64(u64::from(index) | u64::from(source.generation) << 32);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        // Made first, so that a failure gives the slot back.
        let watched = Watched { fd, source, role, index, reactor: self.clone() };
        epoll::add(&self.inner.epoll, &watched.fd, data, flags)?;
        Ok(watched)
    }

    /// Waits until a source is ready, the doorbell rings or the deadline is there, and wakes the tasks that wait. `has_work` is
    /// called when every later wake is certain to ring the doorbell, `awake` is called before the first wake, `poll_host` whenever the
    /// thread looks for requests of the trace's host, if it `polls_host`. Returns what ended the wait.
    pub(crate) fn turn(
        &self,
        deadline: Option<Deadline>,
        polls_host: bool,
        has_work: impl FnOnce() -> bool,
        awake: impl FnOnce(),
        poll_host: impl Fn(),
    ) -> Result<WakeSource, Errno> {
        let doorbell = &self.inner.doorbell;
        doorbell.fall_asleep();
        let timeout = if has_work() { Some(Duration::ZERO) } else { deadline.map(|deadline| deadline.timeout) };
        let is_idle = timeout != Some(Duration::ZERO);
        let mut events = self.inner.events.borrow_mut();
        events.clear();
        if is_idle {
            idle_begin(deadline.map(|deadline| deadline.clock_ns));
        }
        let waited = self.wait(&mut events, timeout, polls_host && trace::is_shared(), poll_host);
        doorbell.asleep.store(false, Ordering::Relaxed);
        let source = match (waited, &events[..]) {
            (Err(Errno::INTR), _) => WakeSource::Other,
            (Err(error), _) => return Err(error),
            (Ok(_), []) if polls_host && has_request() => WakeSource::Other,
            (Ok(_), []) => WakeSource::Timer,
            (Ok(_), [event]) if event.data.u64() == DOORBELL => WakeSource::Core,
            (Ok(_), _) => WakeSource::Device,
        };
        if is_idle {
            idle_end(source, if source == WakeSource::Device { SOCKETS.number() } else { 0 });
        }
        awake();
        if source == WakeSource::Device && is_on(Group::Cores) {
            // What a process has instead of one: the cause of the wakes that follow.
            interrupt(SOCKETS.number(), 0);
        }
        for event in events.drain(..) {
            self.dispatch(event.data.u64(), event.flags);
        }
        Ok(source)
    }

    /// Waits for events, or until the host of a trace requests something, which rings no doorbell.
    fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
        polls_host: bool,
        poll_host: impl Fn(),
    ) -> Result<(), Errno> {
        let piece = if polls_host { HOST_POLL_PERIOD } else { SLEEP_MAX };
        let end = timeout.filter(|timeout| *timeout > piece).map(|timeout| Instant::now() + timeout);
        let mut left = timeout;
        loop {
            let part = left.map_or(piece, |left| left.min(piece));
            let timespec = Timespec { tv_sec: part.as_secs() as i64, tv_nsec: part.subsec_nanos().into() };
            epoll::wait(&self.inner.epoll, rustix::buffer::spare_capacity(events), Some(&timespec))?;
            poll_host();
            if !events.is_empty() || polls_host && has_request() || left == Some(part) {
                return Ok(());
            }
            left = end.map(|end| end.saturating_duration_since(Instant::now()));
        }
    }

    fn dispatch(&self, data: u64, flags: epoll::EventFlags) {
        if data == DOORBELL {
            // Takes the whole count; fails only when it was taken before.
            let _ = rustix::io::read(&self.inner.doorbell.fd, &mut [0; 8]);
            return;
        }
        let Some(source) = self.inner.slots.borrow().get(data) else { return };
        let ended = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        if ended {
            source.ended.set(true);
        }
        if ended || flags.contains(epoll::EventFlags::IN) {
            source.readable.set(true);
            wake(&source.reader);
        }
        // The end of the peer's half alone does not make us able to write.
        if flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            source.writable.set(true);
            wake(&source.writer);
        }
    }
}

fn wake(waiter: &Cell<Option<Waker>>) {
    if let Some(waker) = waiter.take() {
        waker.wake();
    }
}

impl Slots {
    fn insert(&mut self, writable: bool) -> (u32, Rc<Source>) {
        self.generation = self.generation.wrapping_add(1);
        let source = Rc::new(Source {
            generation: self.generation,
            readable: Cell::new(false),
            writable: Cell::new(writable),
            ended: Cell::new(false),
            reader: Cell::new(None),
            writer: Cell::new(None),
            operations: Cell::new(0),
        });
        let index = self.free.pop().unwrap_or_else(|| {
            self.sources.push(None);
            // The kernel has fewer descriptors.
            u32::try_from(self.sources.len() - 1).expect("fewer than 2^32 sockets")
        });
        self.sources[index as usize] = Some(source.clone());
        (index, source)
    }

    fn get(&self, data: u64) -> Option<Rc<Source>> {
        let source = self.sources.get(data as u32 as usize)?.as_ref()?;
        (u64::from(source.generation) == data >> 32).then(|| source.clone())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut slots = self.reactor.inner.slots.borrow_mut();
        slots.sources[self.index as usize] = None;
        slots.free.push(self.index);
        // Closing the descriptor, which is not duplicated, takes it out of epoll.
    }
}

impl Watched {
    /// A number that no other descriptor had, nor will have before 4 billion more.
    pub(crate) fn number(&self) -> u32 {
        self.source.generation
    }

    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        &self.fd
    }

    /// Runs `operation` once the descriptor looks ready, again whenever it did not complete because
    /// it was not. Interrupted operations are repeated.
    pub(crate) fn poll<T>(
        &self,
        interest: Interest,
        context: &mut Context,
        mut operation: impl FnMut() -> Result<T, Errno>,
    ) -> Poll<Result<T, Errno>> {
        let (ready, waiter) = match interest {
            Interest::Read => (&self.source.readable, &self.source.reader),
            Interest::Write => (&self.source.writable, &self.source.writer),
        };
        if self.source.operations.get() >= TURN_OPERATIONS_MAX {
            self.source.operations.set(0);
            block(BlockKind::Yield, &TURN, 0);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while ready.get() {
            match operation() {
                Err(Errno::AGAIN) => ready.set(false),
                Err(Errno::INTR) => (),
                result => {
                    self.source.operations.set(self.source.operations.get() + 1);
                    return Poll::Ready(result);
                }
            }
        }
        self.source.operations.set(0);
        waiter.set(Some(context.waker().clone()));
        match (self.role, interest) {
            (Role::Signals, _) => block(BlockKind::Other, &SIGNAL, 0),
            (Role::Listener(port), _) => block(BlockKind::Accept, &LISTENER, port.into()),
            (Role::Datagrams(port), Interest::Read) => block(BlockKind::Receive, &DATAGRAMS, port.into()),
            (Role::Datagrams(port), Interest::Write) => block(BlockKind::Send, &DATAGRAMS, port.into()),
            (Role::Connection, Interest::Read) => block(BlockKind::Receive, &CONNECTION, self.number().into()),
            (Role::Connection, Interest::Write) => block(BlockKind::Send, &CONNECTION, self.number().into()),
        }
        Poll::Pending
    }

    /// An operation moved less than it could have: unless an end is waiting, the next one would
    /// find nothing, and the kernel will report what comes later. Saves a call that would only fail.
    pub(crate) fn exhausted(&self, interest: Interest) {
        if !self.source.ended.get() {
            match interest {
                Interest::Read => self.source.readable.set(false),
                Interest::Write => self.source.writable.set(false),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn watched(reactor: &Reactor) -> (Watched, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (reactor.watch(ours.into(), Role::Connection, true).unwrap(), theirs)
    }

    fn new_reactor() -> Reactor {
        Reactor::new(Arc::new(Doorbell::new().unwrap())).unwrap()
    }

    fn turn(reactor: &Reactor) {
        let deadline = Deadline { timeout: Duration::from_secs(10), clock_ns: 0 };
        reactor.turn(Some(deadline), false, || false, || (), || ()).unwrap();
    }

    #[test]
    fn a_source_that_is_always_ready_lets_others_have_their_turn() {
        let reactor = new_reactor();
        let (watched, _peer) = watched(&reactor);
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        for round in 1..4 {
            for _ in 0..TURN_OPERATIONS_MAX {
                assert!(watched.poll(Interest::Write, &mut context, || Ok(())).is_ready());
            }
            assert!(watched.poll(Interest::Write, &mut context, || Ok(())).is_pending());
            assert_eq!(count.0.load(Ordering::Relaxed), round);
        }
    }

    #[test]
    fn a_late_event_of_a_slots_last_user_does_not_reach_the_next() {
        let reactor = new_reactor();
        let (first, _peer) = watched(&reactor);
        let stale = u64::from(first.index) | u64::from(first.source.generation) << 32;
        drop(first);
        let (second, _peer) = watched(&reactor);
        assert_eq!(second.index, stale as u32);
        reactor.dispatch(stale, epoll::EventFlags::IN);
        assert!(!second.source.readable.get());
        // Numbers that were never given are no harm either.
        reactor.dispatch(12345, epoll::EventFlags::IN);
    }

    #[test]
    fn an_end_behind_data_is_not_lost() {
        let reactor = new_reactor();
        let (watched, mut peer) = watched(&reactor);
        std::io::Write::write_all(&mut peer, b"data").unwrap();
        drop(peer);
        turn(&reactor);
        let mut context = Context::from_waker(Waker::noop());
        let mut buf = [0; 100];
        let mut read = || watched.poll(Interest::Read, &mut context, || rustix::io::read(watched.fd(), &mut buf));
        assert_eq!(read(), Poll::Ready(Ok(4)));
        watched.exhausted(Interest::Read);
        assert_eq!(read(), Poll::Ready(Ok(0)));
    }

    #[test]
    fn the_bell_wakes_a_sleeper_and_is_silent_for_one_awake() {
        let reactor = new_reactor();
        let doorbell = reactor.doorbell();
        doorbell.unpark();
        assert_eq!(rustix::io::read(&doorbell.fd, &mut [0; 8]), Err(Errno::AGAIN));
        let ringer = std::thread::spawn(move || {
            for _ in 0..10_000 {
                doorbell.unpark();
                std::thread::sleep(Duration::from_millis(1));
                if Arc::strong_count(&doorbell) == 1 {
                    return;
                }
            }
        });
        for _ in 0..50 {
            let began = std::time::Instant::now();
            turn(&reactor);
            assert!(began.elapsed() < Duration::from_secs(9), "it slept until the timeout");
        }
        drop(reactor);
        ringer.join().unwrap();
    }
}
