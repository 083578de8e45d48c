//! The cores of a process: threads, each pinned to a CPU where there are enough, with an executor and an epoll of its own.

use crate::console::Lines;
use crate::reactor::{Deadline, Doorbell, Reactor};
use crate::spin::Spin;
use crate::trace;
use glass_api::{
    Clock, Console, CoreHandle, Cores, Instant, JoinHandle, Panicked, Random, Spawn, SpawnError, SpawnOnError,
    WallSource, WallTime,
};
use glass_lib_cores::Mailboxes;
use glass_lib_executor::{Executor, Unpark};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};

/// A core of the process, for the tasks on it. Clones are handles.
#[derive(Clone)]
pub struct LinuxCore {
    inner: Rc<Inner>,
}

/// A core, as long as it is there.
pub(crate) struct WeakCore(Weak<Inner>);

impl WeakCore {
    /// The core; `None` if it is gone.
    pub(crate) fn upgrade(&self) -> Option<LinuxCore> {
        self.0.upgrade().map(|inner| LinuxCore { inner })
    }
}

struct Inner {
    number: usize,
    executor: Executor,
    reactor: Reactor,
    machine: Arc<Machine>,
}

/// What all cores share.
pub(crate) struct Machine {
    /// Zero of the clock.
    origin: std::time::Instant,
    lines: Arc<Lines>,
    mailboxes: Mailboxes<LinuxCore>,
    doorbells: Vec<Arc<Doorbell>>,
    /// There are several cores, and each has a CPU that is no other one's.
    has_own_cpus: bool,
    /// The first core has ended.
    is_over: AtomicBool,
}

/// What a core does besides its tasks: the first one follows the host of a trace and measures the clock.
pub(crate) trait Duties {
    /// The core is awake.
    fn awake(&self) {}
    /// The core looks for requests of the trace's host.
    fn poll_host(&self) {}
    /// Whether the core has to look.
    const POLLS_HOST: bool;
}

struct NoDuties;
impl Duties for NoDuties {
    const POLLS_HOST: bool = false;
}

/// The CPUs that the process may use, before its first thread was pinned to one.
static CPUS: OnceLock<CpuSet> = OnceLock::new();

impl LinuxCore {
    /// The calling thread becomes the first of `cores` cores, and threads are started for the others, which end with [`LinuxCore::end`].
    pub(crate) fn first(cores: usize, origin: std::time::Instant, lines: Arc<Lines>) -> io::Result<LinuxCore> {
        let doorbells: Vec<Arc<Doorbell>> =
            (0..cores).map(|_| Doorbell::new().map(Arc::new)).collect::<Result<_, _>>()?;
        let mailboxes = Mailboxes::new(doorbells.iter().map(|doorbell| doorbell.clone() as Arc<dyn Unpark>));
        let has_own_cpus = cores > 1 && cpus().is_some_and(|cpus| cpus.len() >= cores);
        let machine =
            Arc::new(Machine { origin, lines, mailboxes, doorbells, has_own_cpus, is_over: AtomicBool::new(false) });
        let first = LinuxCore::new(0, machine.clone())?;
        let (started, starts) = mpsc::channel();
        for number in 1..cores {
            let (machine, started) = (machine.clone(), started.clone());
            let run = move || run(number, machine, &started);
            thread::Builder::new().name(format!("glass-core-{number}")).spawn(run)?;
        }
        // A thread that cannot start drops its sender or reports why.
        drop(started);
        for _ in 1..cores {
            starts.recv().map_err(io::Error::other)??;
        }
        if cores > 1 {
            pin(0, cores);
        }
        Ok(first)
    }

    fn new(number: usize, machine: Arc<Machine>) -> io::Result<LinuxCore> {
        let reactor = Reactor::new(machine.doorbells[number].clone())?;
        let executor = Executor::new(reactor.doorbell());
        Ok(LinuxCore { inner: Rc::new(Inner { number, executor, reactor, machine }) })
    }

    /// For a task of the core, which would keep it otherwise.
    pub(crate) fn downgrade(&self) -> WeakCore {
        WeakCore(Rc::downgrade(&self.inner))
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    pub(crate) fn reactor(&self) -> &Reactor {
        &self.inner.reactor
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.machine.lines
    }

    /// Has each other core record the tasks that it has: a trace has just begun.
    pub(crate) fn announce_all(&self) {
        self.executor().announce();
        for core in 1..self.cores() {
            // One that takes no message has its tasks recorded from their next polls on.
            let _ = self.inner.machine.mailboxes.post(core, |core| core.executor().announce());
        }
    }

    /// Runs tasks until `finished` returns a value. Fails when the host's events cannot be waited for.
    pub(crate) fn run_until<T, D: Duties>(&self, duties: &D, mut finished: impl FnMut() -> Option<T>) -> io::Result<T> {
        let Inner { number, executor, reactor, machine } = &*self.inner;
        let mut spin = Spin::default();
        loop {
            executor.run_ready();
            if let Some(value) = finished() {
                return Ok(value);
            }
            let deadline = executor.next_deadline().map(|deadline| {
                let now = self.now();
                let timeout = if executor.fire_timers(now) > 0 { Duration::ZERO } else { deadline.since(now) };
                Deadline { timeout, clock_ns: deadline.0 }
            });
            let has_work = || {
                executor.has_ready() || machine.mailboxes.has_mail(*number) || machine.is_over.load(Ordering::Relaxed)
            };
            // Where threads share a CPU, the one that is awaited may need ours.
            let may_spin = machine.has_own_cpus && !has_work();
            if !(may_spin && spin.finds(deadline.map(|deadline| deadline.timeout), has_work)) {
                let start = may_spin.then(std::time::Instant::now);
                let source =
                    reactor.turn(deadline, D::POLLS_HOST, has_work, || duties.awake(), || duties.poll_host())?;
                if let Some(start) = start {
                    spin.slept(start.elapsed(), source);
                }
            }
            if machine.mailboxes.has_mail(*number) {
                machine.mailboxes.deliver(self);
            }
        }
    }

    /// Ends the other cores, whose tasks are dropped.
    pub(crate) fn end(&self) {
        self.inner.machine.is_over.store(true, Ordering::Relaxed);
        self.inner.machine.doorbells.iter().for_each(|doorbell| doorbell.unpark());
    }
}

/// A secondary core.
fn run(number: usize, machine: Arc<Machine>, started: &Sender<io::Result<()>>) {
    trace::attach(&format!("core {number}"));
    pin(number, machine.mailboxes.cores());
    let (core, result) = match LinuxCore::new(number, machine.clone()) {
        Ok(core) => (Some(core), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // The first core waits for it.
    let _ = started.send(result);
    let Some(core) = core else { return };
    let is_over = || machine.is_over.load(Ordering::Relaxed).then_some(());
    // It fails only when its own descriptors are no such.
    let _ = core.run_until(&NoDuties, is_over);
}

/// The CPUs that the process may use; `None` where that is unknown.
fn cpus() -> Option<Vec<usize>> {
    let now = sched_getaffinity(None).ok()?;
    let all = CPUS.get_or_init(|| now);
    Some((0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect())
}

/// Pins the calling thread to a CPU of its own, if there is one for each core.
fn pin(number: usize, cores: usize) {
    let Some(cpus) = cpus().filter(|cpus| cpus.len() >= cores) else { return };
    let mut own = CpuSet::new();
    own.set(cpus[number]);
    // A thread that is not pinned works as well.
    let _ = sched_setaffinity(None, &own);
}

/// Lets the calling thread, which a pinned one has started, run on each CPU again.
pub(crate) fn unpin() {
    if let Some(all) = CPUS.get() {
        let _ = sched_setaffinity(None, all);
    }
}

impl Clock for LinuxCore {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.inner.machine.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.executor().sleep_until(deadline)
    }

    fn wall(&self) -> Option<WallTime> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(WallTime { since_epoch, source: WallSource::Host })
    }
}

impl Console for LinuxCore {
    fn print(&self, line: fmt::Arguments) {
        self.lines().print(line);
    }

    async fn writable(&self, bytes: usize) {
        self.lines().writable(bytes).await;
    }
}

impl Random for LinuxCore {
    fn fill_random(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => (),
                // A service must not continue with predictable bytes. Linux has the call since 3.17.
                Err(error) => panic!("the host has no random bytes: {error}"),
            }
        }
    }
}

impl Spawn for LinuxCore {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.executor().spawn(name, task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        glass_lib_contain::contain(task, self.executor(), |_| ())
    }
}

impl Cores for LinuxCore {
    type Core = LinuxCore;

    fn cores(&self) -> usize {
        self.inner.machine.mailboxes.cores()
    }

    fn core(&self) -> usize {
        self.inner.number
    }

    fn spawn_on<T, F>(
        &self,
        core: usize,
        name: &'static str,
        start: impl FnOnce(LinuxCore) -> F + Send + 'static,
    ) -> Result<CoreHandle<T>, SpawnOnError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.inner.machine.mailboxes.spawn_on(core, name, start)
    }
}
