//! A node of a simulation: the platform of the service on it.

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk::SimBlock;
use crate::files::SimFiles;
use crate::network::{LinkConfig, Network};
use crate::trace::Trace;
use crate::vsock;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use glass_api::{
    Clock, Console, CoreHandle, Cores, Instant, JoinHandle, MemoryUse, Panicked, Platform, Random, Spawn, SpawnError,
    SpawnOnError, VsockAddress, WallSource, WallTime,
};
use glass_lib_cores::Mailboxes;
use glass_lib_executor::sync::Latch;
use glass_lib_executor::{Executor, Unpark};
use glass_lib_net::{Address, Config, Sockets};
use glass_lib_vsock::Joined;
use std::rc::Rc;
use std::sync::Arc;

/// Lines that a node's console keeps; the rest is counted.
const CONSOLE_LINES_MAX: usize = 100_000;
/// Contained panics that a node keeps; more are not.
const PANICS_MAX: usize = 1000;
/// Cores that a node can have.
const CORES_MAX: usize = 64;
/// Tasks that a core of a node with several runs in a round at most.
const TASKS_A_ROUND_MAX: u64 = 4;
/// Memory that the default network buffers are sized for.
const MEMORY_BYTES: usize = 64 << 20;

/// What a node is made of.
#[derive(Clone)]
pub struct NodeConfig {
    /// Its disks, in the order of [`Platform::block`].
    pub disks: Vec<SimBlock>,
    /// The directory that its service gets.
    pub files: Option<SimFiles>,
    /// The service's arguments.
    pub args: Vec<String>,
    /// Its cores, from 1 to 64. The seed chooses which of them run in each round, and how many tasks of each.
    pub cores: usize,
    /// The link to the network.
    pub link: LinkConfig,
    /// Sizes, bounds and times of its network stack. The world chooses the addresses; an IPv6 address unless IPv6 is off, as by default.
    pub network: Config,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            disks: Vec::new(),
            files: None,
            args: Vec::new(),
            cores: 1,
            link: LinkConfig::default(),
            network: Config::for_memory(Address::Dhcp, MEMORY_BYTES),
        }
    }
}

/// The IPv6 address of the node on a port of the network.
pub(crate) fn ipv6_address(port: usize) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd00 << 112 | (port as u128 + 1))
}

/// A node. Clones are handles to the same one.
#[derive(Clone)]
pub struct Node {
    machine: Rc<Machine>,
    first: SimCore,
}

/// A core of a node, for the tasks on it. Clones are handles to the same one.
#[derive(Clone)]
pub struct SimCore {
    machine: Rc<Machine>,
    number: usize,
}

/// No core of a simulated node sleeps.
struct Awake;

impl Unpark for Awake {
    fn unpark(&self) {}
}

struct Machine {
    name: String,
    port: usize,
    address: IpAddr,
    args: Vec<String>,
    disks: Vec<SimBlock>,
    files: Option<SimFiles>,
    clock: SimClock,
    /// One for each core.
    executors: Vec<Executor>,
    mailboxes: Mailboxes<SimCore>,
    net: Joined<Sockets>,
    network: Rc<RefCell<Network>>,
    chance: RefCell<Chance>,
    /// Chooses which cores run.
    schedule: RefCell<Chance>,
    console: RefCell<Vec<String>>,
    console_dropped: Cell<u64>,
    panics: RefCell<Vec<Panicked>>,
    is_dead: Cell<bool>,
    shutdown: Latch,
    memory: Cell<MemoryUse>,
    trace: Trace,
}

/// What the world gives a new node.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) port: usize,
    pub(crate) address: IpAddr,
    pub(crate) args: Vec<String>,
    pub(crate) disks: Vec<SimBlock>,
    pub(crate) files: Option<SimFiles>,
    pub(crate) clock: SimClock,
    pub(crate) cores: usize,
    pub(crate) schedule: Chance,
    pub(crate) net: Joined<Sockets>,
    pub(crate) network: Rc<RefCell<Network>>,
    pub(crate) chance: Chance,
    pub(crate) trace: Trace,
}

impl Node {
    pub(crate) fn new(parts: Parts) -> Node {
        assert!((1..=CORES_MAX).contains(&parts.cores), "a node has from 1 to {CORES_MAX} cores");
        let awake: Arc<dyn Unpark> = Arc::new(Awake);
        let executors: Vec<Executor> = (0..parts.cores).map(|_| Executor::new(awake.clone())).collect();
        for disk in &parts.disks {
            disk.attach(parts.clock.clone(), executors[0].clone(), parts.trace.clone());
        }
        if let Some(files) = &parts.files {
            files.attach(parts.clock.clone(), executors[0].clone());
        }
        let mailboxes = Mailboxes::new((0..parts.cores).map(|_| awake.clone()));
        let Parts { name, port, address, args, disks, files, clock, net, network, chance, trace, schedule, .. } = parts;
        let machine = Machine {
            name,
            port,
            address,
            args,
            disks,
            files,
            clock,
            executors,
            mailboxes,
            net,
            network,
            chance: RefCell::new(chance),
            schedule: RefCell::new(schedule),
            console: RefCell::default(),
            console_dropped: Cell::new(0),
            panics: RefCell::default(),
            is_dead: Cell::new(false),
            shutdown: Latch::new(),
            memory: Cell::new(MemoryUse { total_bytes: MEMORY_BYTES as u64, ..MemoryUse::default() }),
            trace,
        };
        let machine = Rc::new(machine);
        Node { first: SimCore { machine: machine.clone(), number: 0 }, machine }
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

    /// The same over IPv6, which its configuration must not have switched off.
    pub fn ipv6_endpoint(&self, port: u16) -> SocketAddr {
        SocketAddr::new(ipv6_address(self.machine.port).into(), port)
    }

    /// Where others reach its vsock port `port`.
    pub fn vsock(&self, port: u32) -> VsockAddress {
        VsockAddress { cid: vsock::cid(self.machine.port), port }
    }

    /// Spawns a task; [`Spawn::spawn`] returns an error instead of a panic.
    ///
    /// # Panics
    /// When there are too many tasks.
    pub fn run<T: 'static>(&self, name: &'static str, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawn(name, task).unwrap_or_else(|error| panic!("{} on {}: {error}", name, self.name()))
    }

    /// Completes [`Platform::shutdown`] on this node, as SIGTERM does for a process.
    pub fn shut_down(&self) {
        self.machine.shutdown.open();
    }

    /// Sets what [`Platform::memory`] returns on this node, whose heap is not simulated. Its peak is the largest that
    /// was set.
    pub fn set_memory_used(&self, used_bytes: u64) {
        let before = self.machine.memory.get();
        self.machine.memory.set(MemoryUse { used_bytes, peak_bytes: before.peak_bytes.max(used_bytes), ..before });
    }

    /// Cuts the power: tasks are dropped, nothing is sent any more (no FIN, no RST), the disks lose power.
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

    /// Replaces the link to the network: [`LinkConfig::unplugged`] makes a partition.
    pub fn set_link(&self, link: LinkConfig) {
        self.machine.network.borrow_mut().set_link(self.machine.port, link);
    }

    /// What was printed so far, of messages of `tracing` warnings and errors.
    pub fn console(&self) -> Vec<String> {
        self.machine.console.borrow().clone()
    }

    /// Lines that did not fit into [`Node::console`].
    pub fn console_dropped(&self) -> u64 {
        self.machine.console_dropped.get()
    }

    /// The panics of this node that were [contained](Spawn::contain), since the last call. A test that expects some has to take them:
    /// the end of a world with others fails, so that no bug hides behind an answer of 500.
    pub fn take_panics(&self) -> Vec<Panicked> {
        self.machine.panics.take()
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.machine.executors.iter().map(Executor::task_count).sum()
    }

    /// Lets the cores run, and returns whether one did anything.
    pub(crate) fn run_cores(&self, now: Instant) -> bool {
        let Machine { executors, schedule, .. } = &*self.machine;
        if let [only] = &executors[..] {
            only.fire_timers(now);
            let has_delivered = self.deliver(0);
            return only.run_ready() > 0 || has_delivered;
        }
        let mut order: Vec<usize> = (0..executors.len()).collect();
        let mut schedule = schedule.borrow_mut();
        for index in (1..order.len()).rev() {
            order.swap(index, schedule.below(index as u64 + 1) as usize);
        }
        // At least one runs, and what the others have to do waits for a later round.
        let running = schedule.below(order.len() as u64) as usize + 1;
        let tasks = schedule.below(TASKS_A_ROUND_MAX) as usize + 1;
        drop(schedule);
        for core in &order[..running] {
            executors[*core].fire_timers(now);
            self.deliver(*core);
            executors[*core].run_ready_up_to(tasks);
        }
        running < order.len() && self.is_due(now) || self.has_ready()
    }

    /// Runs tasks until none is ready: for a node that has died.
    pub(crate) fn run_to_the_end(&self) {
        while self.machine.executors.iter().any(|executor| executor.run_ready() > 0) {}
    }

    fn deliver(&self, number: usize) -> bool {
        self.machine.mailboxes.deliver(&SimCore { machine: self.machine.clone(), number }) > 0
    }

    /// Whether a core has something to do now.
    pub(crate) fn has_ready(&self) -> bool {
        let Machine { executors, mailboxes, .. } = &*self.machine;
        executors.iter().any(Executor::has_ready) || (0..executors.len()).any(|core| mailboxes.has_mail(core))
    }

    /// Whether a timer of a core should have fired.
    fn is_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// The earliest deadline of a task.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.machine.executors.iter().filter_map(Executor::next_deadline).min()
    }

    pub(crate) fn vsock_sockets(&self) -> &glass_lib_vsock::Sockets {
        self.machine.net.vsock.as_ref().expect("each machine has vsock")
    }

    pub(crate) fn disks(&self) -> &[SimBlock] {
        &self.machine.disks
    }

    /// Every task is dropped when it would be polled next.
    pub(crate) fn die(&self) {
        if !self.machine.is_dead.replace(true) {
            self.machine.trace.add(self.machine.clock.now(), "death", &[self.machine.port as u64], &[]);
            self.machine.executors.iter().for_each(Executor::cancel_all);
        }
    }
}

impl Clock for SimCore {
    fn now(&self) -> Instant {
        self.machine.clock.now()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.executor().sleep_until(deadline)
    }

    fn wall(&self) -> Option<WallTime> {
        Some(WallTime { since_epoch: self.machine.clock.wall(), source: WallSource::Simulated })
    }
}

impl Console for SimCore {
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

impl Random for SimCore {
    fn fill_random(&self, bytes: &mut [u8]) {
        self.machine.chance.borrow_mut().fill(bytes);
    }
}

impl Spawn for SimCore {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        let task = self.executor().spawn(name, task)?;
        if self.machine.is_dead.get() {
            task.cancel();
        }
        Ok(task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        let machine = self.machine.clone();
        glass_lib_contain::contain(task, self.executor(), move |panicked| {
            machine.trace.add(machine.clock.now(), "panic", &[machine.port as u64], panicked.place.as_bytes());
            let mut panics = machine.panics.borrow_mut();
            if panics.len() < PANICS_MAX {
                panics.push(panicked.clone());
            }
        })
    }
}

impl SimCore {
    fn executor(&self) -> &Executor {
        &self.machine.executors[self.number]
    }
}

impl Cores for SimCore {
    type Core = SimCore;

    fn cores(&self) -> usize {
        self.machine.executors.len()
    }

    fn core(&self) -> usize {
        self.number
    }

    fn spawn_on<T, F>(
        &self,
        core: usize,
        name: &'static str,
        start: impl FnOnce(SimCore) -> F + Send + 'static,
    ) -> Result<CoreHandle<T>, SpawnOnError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.machine.mailboxes.spawn_on(core, name, start)
    }
}

glass_lib_cores::forward_to_core!(Node, SimCore, |node| &node.first);

impl Platform for Node {
    type Block = SimBlock;
    type Files = SimFiles;
    type Net = Joined<Sockets>;

    fn args(&self) -> &[String] {
        &self.machine.args
    }

    fn block(&self, index: usize) -> Option<SimBlock> {
        self.machine.disks.get(index).cloned()
    }

    fn files(&self) -> Option<SimFiles> {
        self.machine.files.clone()
    }

    fn net(&self) -> Joined<Sockets> {
        self.machine.net.clone()
    }

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        self.machine.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        self.machine.memory.get()
    }
}
