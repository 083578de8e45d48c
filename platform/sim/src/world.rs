//! The loop of the simulation.

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::log;
use crate::network::{Network, NetworkCounters, SimDevice};
use crate::node::{self, Node, NodeConfig, Parts};
use crate::trace::Trace;
use crate::vsock::{self, Carrier};
use core::cell::RefCell;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_net::{Address, Counters, Ipv6, Stack};
use glass_lib_vsock::Joined;
use std::rc::Rc;

/// Nodes that a world can have: the hosts of 10.0.0.0/24.
const NODES_MAX: usize = 254;
/// Rounds of the loop that a world can have.
const ROUNDS_MAX: u64 = 10_000_000;
/// Rounds at one moment after which something is taken to spin.
const ROUNDS_AT_A_MOMENT_MAX: u64 = 100_000;

/// A simulation. The crate's documentation shows one.
pub struct World {
    seed: u64,
    clock: SimClock,
    chance: Chance,
    trace: Trace,
    network: Rc<RefCell<Network>>,
    vsock: Carrier,
    nodes: Vec<(Node, Stack<SimDevice>)>,
    rounds: u64,
}

/// Why a simulation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimError {
    /// The seed that repeats it.
    pub seed: u64,
    /// When it was noticed.
    pub now: Instant,
    /// What is wrong.
    pub reason: SimFailure,
}

/// See [`SimError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimFailure {
    /// The time limit was reached.
    TimeLimit(Duration),
    /// Deadlock: no task is runnable and no timer, frame or disk request is pending.
    Stalled,
    /// Livelock: 100,000 rounds without progress of time.
    Spinning,
    /// The world had so many rounds, the limit of a simulation: mostly, what the test waits for never happens.
    RoundLimit(u64),
    /// The node died before its task ended.
    Died(String),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "seed {} at {}: ", self.seed, self.now)?;
        match &self.reason {
            SimFailure::TimeLimit(limit) => write!(f, "not done after {limit:?} of simulated time"),
            SimFailure::Stalled => write!(f, "nothing is left that could happen"),
            SimFailure::Spinning => write!(f, "tasks keep each other busy and get nowhere"),
            SimFailure::RoundLimit(limit) => write!(f, "not done after {limit} rounds, although time passed"),
            SimFailure::Died(name) => write!(f, "the node {name} died before its task ended"),
        }
    }
}

impl std::error::Error for SimError {}

impl World {
    /// A world without nodes in which everything follows from `seed`.
    pub fn new(seed: u64) -> World {
        log::install();
        let mut chance = Chance::new(seed);
        let trace = Trace::new();
        let network = Rc::new(RefCell::new(Network::new(chance.fork(), trace.clone())));
        // A source of its own, so that seeds of earlier failures repeat them.
        let vsock = Carrier::new(Chance::new(seed.rotate_left(32) ^ 1), trace.clone());
        World { seed, clock: SimClock::new(seed), chance, trace, network, vsock, nodes: Vec::new(), rounds: 0 }
    }

    /// Adds a node. A node with the address of an earlier one cannot be added: restart a service in another world.
    ///
    /// # Panics
    /// When there are 254 already, or the network's configuration is impossible.
    pub fn node(&mut self, name: &str, config: NodeConfig) -> Node {
        let port = self.nodes.len();
        assert!(port < NODES_MAX, "a world has at most {NODES_MAX} nodes");
        let host = port as u8 + 1;
        let mac = [2, 0, 0, 0, 0, host];
        let address = Ipv4Addr::new(10, 0, 0, host);
        let device = self.network.borrow_mut().plug(mac, config.link);
        let mut network_config = config.network;
        network_config.address = Address::Static { address, prefix_bits: 24, gateway: None };
        if network_config.ipv6 != Ipv6::Off {
            let address = node::ipv6_address(port);
            network_config.ipv6 = Ipv6::Static { address, prefix_bits: 64, gateway: None };
        }
        let seed = self.chance.next_u64();
        let stack = Stack::new(device, mac, network_config, seed.into(), self.clock.now());
        let stack = stack.unwrap_or_else(|error| panic!("the network of {name}: {error}"));
        let clock = self.clock.clone();
        let vsock_config = glass_lib_vsock::Config::default();
        let vsock = glass_lib_vsock::Sockets::new(vsock::cid(port).into(), vsock_config, seed, move || clock.now());
        let node = Node::new(Parts {
            name: name.to_string(),
            port,
            address: address.into(),
            args: config.args,
            disks: config.disks,
            files: config.files,
            clock: self.clock.clone(),
            cores: config.cores,
            // A source of its own, so that nodes of one core do not depend on it.
            schedule: Chance::new(self.seed ^ (port as u64 + 1) << 40),
            net: Joined { ip: stack.sockets(), vsock: Some(vsock) },
            network: self.network.clone(),
            chance: self.chance.fork(),
            trace: self.trace.clone(),
        });
        self.nodes.push((node.clone(), stack));
        node
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// A hash of everything that happened (frames, disk requests, console lines, deaths): equal for two runs of the same seed.
    pub fn fingerprint(&self) -> u64 {
        self.trace.value()
    }

    /// What happened to frames so far.
    pub fn network_counters(&self) -> NetworkCounters {
        self.network.borrow().counters
    }

    /// What happened in a node's network stack so far.
    pub fn stack_counters(&self, node: &Node) -> Counters {
        self.stack(node).counters()
    }

    /// Connections that a node's network stack holds.
    pub fn connection_count(&self, node: &Node) -> usize {
        self.stack(node).connection_count()
    }

    /// Connections that a machine's vsock holds.
    pub fn vsock_connection_count(&self, node: &Node) -> usize {
        node.vsock_sockets().connection_count()
    }

    fn stack(&self, node: &Node) -> &Stack<SimDevice> {
        let found = self.nodes.iter().find(|(other, _)| other.address() == node.address());
        &found.expect("the node is part of this world").1
    }

    /// Runs until `done` returns true; fails after `limit` of simulated time.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut() -> bool) -> Result<(), SimError> {
        let until = self.now() + limit;
        loop {
            if self.settle(&mut done)? {
                return Ok(());
            }
            match self.next_event() {
                None => return Err(self.failure(SimFailure::Stalled)),
                Some(next) if next > until => {
                    self.clock.advance_to(until);
                    return Err(self.failure(SimFailure::TimeLimit(limit)));
                }
                Some(next) => self.clock.advance_to(next),
            }
        }
    }

    /// Runs for `duration` of simulated time.
    pub fn run_for(&mut self, duration: Duration) -> Result<(), SimError> {
        let until = self.now() + duration;
        match self.run_until(duration, || false) {
            Err(SimError { reason: SimFailure::TimeLimit(_) | SimFailure::Stalled, .. }) => {
                self.clock.advance_to(until);
                self.settle(&mut || false).map(|_| ())
            }
            other => other,
        }
    }

    /// Runs the world until `task`, spawned on `node`, ends; fails after `limit` of simulated
    /// time.
    pub fn complete<T: 'static>(
        &mut self,
        node: &Node,
        limit: Duration,
        task: impl Future<Output = T> + 'static,
    ) -> Result<T, SimError> {
        let slot = Rc::new(RefCell::new(None));
        let result = slot.clone();
        node.run("complete", async move {
            let value = task.await;
            *result.borrow_mut() = Some(value);
        });
        self.run_until(limit, || slot.borrow().is_some() || !node.is_alive())?;
        let value = slot.take();
        value.ok_or_else(|| self.failure(SimFailure::Died(node.name().to_string())))
    }

    fn failure(&self, reason: SimFailure) -> SimError {
        SimError { seed: self.seed, now: self.now(), reason }
    }

    /// Does everything that happens at this time, and returns whether `done` became true.
    fn settle(&mut self, done: &mut impl FnMut() -> bool) -> Result<bool, SimError> {
        for _ in 0..ROUNDS_AT_A_MOMENT_MAX {
            let busy = self.round();
            if done() {
                return Ok(true);
            }
            if !busy {
                return Ok(false);
            }
            self.rounds += 1;
            if self.rounds > ROUNDS_MAX {
                return Err(self.failure(SimFailure::RoundLimit(ROUNDS_MAX)));
            }
        }
        Err(self.failure(SimFailure::Spinning))
    }

    /// Lets every node run once, and returns whether anything happened.
    fn round(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = self.network.borrow_mut().deliver(now);
        while let Some((to, packet)) = self.vsock.deliver(now) {
            busy = true;
            if let Some((node, _)) = self.nodes.get(to).filter(|(node, _)| node.is_alive()) {
                vsock::receive(node.vsock_sockets(), packet);
            }
        }
        for (port, (node, stack)) in self.nodes.iter_mut().enumerate() {
            bury_if_powerless(node);
            stack.set_time(now);
            busy |= log::on(node, || node.run_cores(now));
            // A task may have cut the power.
            bury_if_powerless(node);
            if node.is_alive() {
                busy |= stack.poll(now) || stack.has_work();
                self.network.borrow_mut().collect(port, now);
                self.vsock.collect(port, node.vsock_sockets(), now);
            }
            busy |= node.has_ready();
        }
        busy
    }

    fn next_event(&mut self) -> Option<Instant> {
        let now = self.clock.now();
        let mut next = self.network.borrow().next_arrival().into_iter().chain(self.vsock.next_arrival()).min();
        let mut consider = |at: Option<Instant>| next = next.into_iter().chain(at).min();
        for (node, stack) in self.nodes.iter_mut().filter(|(node, _)| node.is_alive()) {
            consider(node.next_deadline());
            consider(stack.next_deadline(now));
            consider(node.vsock_sockets().next_deadline());
            for disk in node.disks() {
                consider(disk.cut_deadline());
            }
        }
        next
    }
}

fn bury_if_powerless(node: &Node) {
    if !node.is_alive() {
        return;
    }
    for disk in node.disks() {
        disk.advance();
    }
    if !node.disks().iter().all(|disk| disk.has_power()) {
        node.power_off();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation: seed {}, at {}", self.seed, self.now());
            return;
        }
        // Tasks hold their node and nodes their tasks: this unties the knot.
        for (node, _) in &self.nodes {
            node.die();
            node.run_to_the_end();
        }
        for (node, _) in &self.nodes {
            if let Some(first) = node.take_panics().first() {
                panic!(
                    "seed {}: {} contained {first}; a test that expects this takes it: Node::take_panics",
                    self.seed,
                    node.name()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_api::{Clock, Spawn};

    #[test]
    fn a_world_that_is_busy_for_ever_does_not_spin() {
        let mut world = World::new(1);
        world.rounds = ROUNDS_MAX - 100;
        let node = world.node("node", NodeConfig::default());
        let clock = node.clone();
        let ticks = async move {
            loop {
                clock.sleep(Duration::from_micros(1)).await;
            }
        };
        let failure = world.complete::<()>(&node, Duration::from_secs(3600), ticks).unwrap_err();
        assert_eq!(failure.reason, SimFailure::RoundLimit(ROUNDS_MAX));
        assert!(failure.to_string().ends_with("not done after 10000000 rounds, although time passed"), "{failure}");
    }

    #[test]
    fn a_contained_panic_is_taken_by_its_test() {
        let mut world = World::new(1);
        let node = world.node("node", NodeConfig::default());
        let contained = node.contain(async { panic!("on purpose") });
        let outcome: Result<(), _> = world.complete(&node, Duration::from_secs(1), contained).unwrap();
        let panicked = outcome.unwrap_err();
        assert_eq!(node.take_panics(), [panicked]);
        let [line] = &node.console()[..] else { panic!("one line: {:?}", node.console()) };
        assert!(
            line.contains("WARN panic: the task complete has panicked at ") && line.ends_with("the service continues"),
            "{line}"
        );
    }

    #[test]
    #[should_panic = "seed 7: node contained a panic at "]
    fn a_contained_panic_that_no_test_takes_fails_it() {
        let mut world = World::new(7);
        let node = world.node("node", NodeConfig::default());
        let contained = node.contain(async { panic!("a bug") });
        let outcome: Result<(), _> = world.complete(&node, Duration::from_secs(1), contained).unwrap();
        assert!(outcome.is_err());
    }
}
