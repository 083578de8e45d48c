//! The pieces put together, and the loop.

use crate::console::Lines;
use crate::disk::{Disk, DiskError};
use crate::net::HostNet;
use crate::options::Options;
use crate::reactor::{Deadline, Reactor};
use crate::trace::{self, Rate};
use crate::workers::Workers;
use crate::{log, memory, signals};
use glass_api::{
    Clock, Console, Instant, JoinHandle, MemoryUse, Platform, Random, Spawn, SpawnError, WallSource, WallTime,
};
use glass_executor::Executor;
use glass_executor::sync::Latch;
use glass_trace::Name;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What a task waits for until the service is to end.
static SHUTDOWN: Name = Name::new("shutdown");

/// A Linux process as a service's world. Clones are handles to the same one.
#[derive(Clone)]
pub struct LinuxPlatform {
    host: Rc<Host>,
}

/// What everything here shares.
pub(crate) struct Host {
    pub(crate) executor: Executor,
    pub(crate) reactor: Reactor,
    pub(crate) bind: IpAddr,
    rate: Rate,
    args: Vec<String>,
    disks: Vec<Disk>,
    lines: Arc<Lines>,
    /// Opened by a signal, once signals are watched.
    pub(crate) shutdown: Latch,
    watches_signals: Cell<bool>,
}

impl Host {
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.rate.origin().elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Why a process cannot become a platform.
#[derive(Debug)]
pub enum StartError {
    /// A disk cannot be used.
    Disk(DiskError),
    /// The host lacks a descriptor, a thread or memory.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StartError::Disk(error) => write!(f, "{error}"),
            StartError::Host(error) => write!(f, "the host lacks what a service needs: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl LinuxPlatform {
    /// Opens the disks and prepares everything else.
    pub fn new(options: &Options) -> Result<LinuxPlatform, StartError> {
        let host = |error| StartError::Host(error);
        let workers = Workers::new();
        let disks = options.disks.iter().enumerate();
        let disks = disks.map(|(index, disk)| Disk::open(index, disk, workers.clone()).map_err(StartError::Disk));
        let disks = disks.collect::<Result<_, _>>()?;
        let reactor = Reactor::new().map_err(|errno| host(errno.into()))?;
        let lines = Arc::new(Lines::new(io::stdout()).map_err(host)?);
        let rate = Rate::begin();
        log::start(options.log, rate.origin(), &lines);
        Ok(LinuxPlatform {
            host: Rc::new(Host {
                executor: Executor::new(reactor.bell()),
                reactor,
                bind: options.bind,
                rate,
                args: options.service_args.clone(),
                disks,
                lines,
                shutdown: Latch::named(&SHUTDOWN),
                watches_signals: Cell::new(false),
            }),
        })
    }

    /// Runs `task`, and the tasks that it spawns, until it ends; the others are left where they are.
    /// Fails when the host's events cannot be waited for.
    pub fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> io::Result<T> {
        let outcome = Rc::new(RefCell::new(None));
        let result = outcome.clone();
        let main = async move {
            let output = task.await;
            *result.borrow_mut() = Some(output);
        };
        let Host { executor, reactor, rate, .. } = &*self.host;
        executor.spawn("main", main).map_err(io::Error::other)?;
        loop {
            executor.run_ready();
            if let Some(output) = outcome.borrow_mut().take() {
                return Ok(output);
            }
            let deadline = executor.next_deadline().map(|deadline| {
                let now = self.now();
                let timeout = if executor.fire_timers(now) > 0 { Duration::ZERO } else { deadline.since(now) };
                Deadline { timeout, clock_ns: deadline.0 }
            });
            // A service that has nothing to do measures too: otherwise its trace has no clock until its first client.
            reactor.turn(deadline, || executor.has_ready(), || trace::follow_host(executor), || rate.refine())?;
        }
    }

    /// Waits a moment until the console's lines are written.
    pub(crate) fn drain_console(&self) {
        self.host.lines.drain();
    }
}

impl Platform for LinuxPlatform {
    type Block = Disk;
    type Net = HostNet;

    fn args(&self) -> &[String] {
        &self.host.args
    }

    fn block(&self, index: usize) -> Option<Disk> {
        self.host.disks.get(index).cloned()
    }

    fn net(&self) -> HostNet {
        HostNet { host: self.host.clone() }
    }

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        if !self.host.watches_signals.replace(true)
            && let Err(error) = signals::watch(&self.host)
        {
            self.print(format_args!("signals end this process at once: they cannot be watched: {error}"));
        }
        self.host.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        memory::of_this_process()
    }
}

impl Clock for LinuxPlatform {
    fn now(&self) -> Instant {
        self.host.now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.host.executor.sleep_until(deadline)
    }

    fn wall(&self) -> Option<WallTime> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(WallTime { since_epoch, source: WallSource::Host })
    }
}

impl Console for LinuxPlatform {
    fn print(&self, line: fmt::Arguments) {
        self.host.lines.print(line);
    }

    async fn room(&self, bytes: usize) {
        self.host.lines.room(bytes).await;
    }
}

impl Random for LinuxPlatform {
    fn fill_random(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => (),
                // A service must not go on with predictable bytes. Linux has the call since 3.17.
                Err(error) => panic!("the host has no random bytes: {error}"),
            }
        }
    }
}

impl Spawn for LinuxPlatform {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.host.executor.spawn(name, task)
    }
}
