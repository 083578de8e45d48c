//! A machine of the simulated world, as the service on it sees it.

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk::SimBlock;
use crate::network::{LinkConfig, Network};
use crate::trace::Trace;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use glass_api::{
    Clock, Console, Instant, JoinHandle, MemoryUse, Platform, Random, Spawn, SpawnError, WallSource, WallTime,
};
use glass_executor::Executor;
use glass_executor::sync::Latch;
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
    is_dead: Cell<bool>,
    shutdown: Latch,
    memory: Cell<MemoryUse>,
    trace: Trace,
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
            is_dead: Cell::new(false),
            shutdown: Latch::new(),
            memory: Cell::new(MemoryUse { total_bytes: MEMORY_BYTES as u64, ..MemoryUse::default() }),
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
    pub fn run<T: 'static>(&self, name: &'static str, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawn(name, task).unwrap_or_else(|error| panic!("{} on {}: {error}", name, self.name()))
    }

    /// Completes [`Platform::shutdown`] on this machine, as SIGTERM does for a process.
    pub fn shut_down(&self) {
        self.machine.shutdown.open();
    }

    /// Sets what [`Platform::memory`] returns on this machine, whose heap is not simulated. Its peak is the largest that
    /// was set.
    pub fn set_memory_used(&self, used_bytes: u64) {
        let before = self.machine.memory.get();
        self.machine.memory.set(MemoryUse { used_bytes, peak_bytes: before.peak_bytes.max(used_bytes), ..before });
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
        !self.machine.is_dead.get()
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

    /// Every task is dropped at its next turn.
    pub(crate) fn die(&self) {
        if !self.machine.is_dead.replace(true) {
            self.machine.trace.add(self.machine.clock.now(), "death", &[self.machine.port as u64], &[]);
            self.machine.executor.cancel_all();
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

    fn wall(&self) -> Option<WallTime> {
        Some(WallTime { since_epoch: self.machine.clock.wall(), source: WallSource::Simulated })
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
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        let task = self.machine.executor.spawn(name, task)?;
        if !self.is_alive() {
            task.cancel();
        }
        Ok(task)
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

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        self.machine.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        self.machine.memory.get()
    }
}
