//! A machine of the simulated world, as the service on it sees it.

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk::SimBlock;
use crate::network::{LinkConfig, Network};
use crate::trace::Trace;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use glass_api::{Clock, Console, Instant, Platform, Random, Spawn, SpawnError};
use glass_executor::Executor;
use glass_net::{Address, Config, Sockets};
use std::rc::Rc;

/// Lines that a machine's console keeps; the rest is counted.
const CONSOLE_LINES_MAX: usize = 100_000;
/// Memory that the default network buffers are sized for.
const MEMORY_BYTES: usize = 64 << 20;

/// What a machine is made of.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its disks, in the order of [`Platform::block`].
    pub disks: Vec<SimBlock>,
    /// The service's arguments.
    pub args: Vec<String>,
    /// The cable to the network.
    pub link: LinkConfig,
    /// Sizes, bounds and times of its network stack. The world chooses the address.
    pub network: Config,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            disks: Vec::new(),
            args: Vec::new(),
            link: LinkConfig::default(),
            network: Config::for_memory(Address::Dhcp, MEMORY_BYTES),
        }
    }
}

/// A machine. Clones are handles to the same one.
#[derive(Clone)]
pub struct Node {
    machine: Rc<Machine>,
}

struct Machine {
    name: String,
    port: usize,
    address: IpAddr,
    args: Vec<String>,
    disks: Vec<SimBlock>,
    clock: SimClock,
    executor: Executor,
    sockets: Sockets,
    network: Rc<RefCell<Network>>,
    chance: RefCell<Chance>,
    console: RefCell<Vec<String>>,
    console_dropped: Cell<u64>,
    life: Rc<Life>,
    trace: Trace,
}

/// Whether a machine runs, and whom to wake when it stops.
#[derive(Default)]
struct Life {
    dead: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

/// What the world gives a new machine.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) port: usize,
    pub(crate) address: IpAddr,
    pub(crate) args: Vec<String>,
    pub(crate) disks: Vec<SimBlock>,
    pub(crate) clock: SimClock,
    pub(crate) executor: Executor,
    pub(crate) sockets: Sockets,
    pub(crate) network: Rc<RefCell<Network>>,
    pub(crate) chance: Chance,
    pub(crate) trace: Trace,
}

impl Node {
    pub(crate) fn new(parts: Parts) -> Node {
        for disk in &parts.disks {
            disk.attach(parts.clock.clone(), parts.executor.clone(), parts.trace.clone());
        }
        let Parts { name, port, address, args, disks, clock, executor, sockets, network, chance, trace } = parts;
        let machine = Machine {
            name,
            port,
            address,
            args,
            disks,
            clock,
            executor,
            sockets,
            network,
            chance: RefCell::new(chance),
            console: RefCell::default(),
            console_dropped: Cell::new(0),
            life: Rc::default(),
            trace,
        };
        Node { machine: Rc::new(machine) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Its address in the world's network.
    pub fn address(&self) -> IpAddr {
        self.machine.address
    }

    /// Where others reach its port `port`.
    pub fn endpoint(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.machine.address, port)
    }

    /// Starts a task; [`Spawn::spawn`] for those who cannot have too many.
    ///
    /// # Panics
    /// When the executor is full.
    pub fn run(&self, name: &'static str, task: impl Future<Output = ()> + 'static) {
        self.spawn(name, task).unwrap_or_else(|error| panic!("{} on {}: {error}", name, self.name()));
    }

    /// The machine vanishes: its tasks are dropped, it sends nothing any more, and its disks lose
    /// their power. Its peers are not told.
    pub fn power_off(&self) {
        for disk in &self.machine.disks {
            disk.power_cut();
        }
        self.die();
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        !self.machine.life.dead.get()
    }

    /// Replaces the cable to the network.
    pub fn set_link(&self, link: LinkConfig) {
        self.machine.network.borrow_mut().set_link(self.machine.port, link);
    }

    /// What was printed so far.
    pub fn console(&self) -> Vec<String> {
        self.machine.console.borrow().clone()
    }

    /// Lines that did not fit into [`Node::console`].
    pub fn console_dropped(&self) -> u64 {
        self.machine.console_dropped.get()
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.machine.executor.task_count()
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.machine.executor
    }

    pub(crate) fn disks(&self) -> &[SimBlock] {
        &self.machine.disks
    }

    /// Tasks see their end when they are polled next, and are dropped there.
    pub(crate) fn die(&self) {
        let life = &self.machine.life;
        if !life.dead.replace(true) {
            self.machine.trace.add(self.machine.clock.now(), "death", &[self.machine.port as u64], &[]);
            for waker in life.wakers.take() {
                waker.wake();
            }
        }
    }
}

impl Clock for Node {
    fn now(&self) -> Instant {
        self.machine.clock.now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.machine.executor.sleep_until(deadline)
    }
}

impl Console for Node {
    fn print(&self, line: fmt::Arguments) {
        let line = line.to_string();
        self.machine.trace.add(self.now(), "console", &[self.machine.port as u64], line.as_bytes());
        let mut console = self.machine.console.borrow_mut();
        if console.len() < CONSOLE_LINES_MAX {
            console.push(line);
        } else {
            self.machine.console_dropped.set(self.machine.console_dropped.get() + 1);
        }
    }
}

impl Random for Node {
    fn fill_random(&self, bytes: &mut [u8]) {
        self.machine.chance.borrow_mut().fill(bytes);
    }
}

impl Spawn for Node {
    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) -> Result<(), SpawnError> {
        let life = self.machine.life.clone();
        self.machine.executor.spawn(name, Mortal { life, task: Some(Box::pin(task)), known: false })
    }
}

impl Platform for Node {
    type Block = SimBlock;
    type Net = Sockets;

    fn args(&self) -> &[String] {
        &self.machine.args
    }

    fn block(&self, index: usize) -> Option<SimBlock> {
        self.machine.disks.get(index).cloned()
    }

    fn net(&self) -> Sockets {
        self.machine.sockets.clone()
    }
}

/// A task that ends with its machine.
struct Mortal<F> {
    life: Rc<Life>,
    task: Option<Pin<Box<F>>>,
    known: bool,
}

impl<F: Future<Output = ()>> Future for Mortal<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        let this = &mut *self;
        if this.life.dead.get() {
            this.task = None;
        }
        if !this.known {
            this.known = true;
            let mut wakers = this.life.wakers.borrow_mut();
            // The executor has one waker a slot, so the list is as long as it has had tasks at once.
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
        }
        match &mut this.task {
            Some(task) => task.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}
