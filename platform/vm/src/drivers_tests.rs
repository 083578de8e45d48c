//! Devices that interrupt at every moment of their start and of a sleep, on fake interrupt controllers; devices that break.

use crate::bus::{Found, Place};
use crate::drivers::{Drivers, Halt, StartError};
use crate::interrupts::{Source, Target, Vectors};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use glass_drivers_device::{Driver, SetupError, Violation};
use glass_drivers_virtio::device;
use glass_drivers_virtio::fake::Fake;

/// How the fake controller hears of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// A line whose rise counts, if the pin is routed then. As KVM's I/O APIC: a line that is up already when the pin is routed is not seen.
    Edge,
    /// A line that interrupts as long as it is up.
    Level,
    /// A message, which waits while it is masked.
    Message,
}

/// What the device does at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// It has completed a request, and interrupts if that is wanted.
    Completion,
    /// It interrupts for nothing, wanted or not.
    Nuisance,
}

/// The device, its wire and the core's controller. Time is the number of calls so far.
struct World {
    wire: Wire,
    events: BTreeMap<usize, Event>,
    time: usize,
    /// Vectors that have come and not been taken.
    pending: BTreeSet<u8>,
    target: Option<Target>,
    is_up: bool,
    is_waiting: bool,
    is_armed: bool,
    completions: usize,
    handled: usize,
}

type Shared = Rc<RefCell<World>>;

impl World {
    fn new(wire: Wire, events: BTreeMap<usize, Event>) -> Shared {
        Rc::new(RefCell::new(World {
            wire,
            events,
            time: 0,
            pending: BTreeSet::new(),
            target: None,
            is_up: false,
            is_waiting: false,
            is_armed: false,
            completions: 0,
            handled: 0,
        }))
    }

    /// A moment passes.
    fn tick(&mut self) {
        self.time += 1;
        if let Some(event) = self.events.remove(&self.time) {
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        if event == Event::Completion {
            self.completions += 1;
            if !self.is_armed {
                return;
            }
        }
        let rises = !core::mem::replace(&mut self.is_up, true);
        match (self.wire, self.target) {
            (Wire::Edge, Some(target)) if rises => _ = self.pending.insert(target.vector),
            (Wire::Level | Wire::Message, Some(target)) => _ = self.pending.insert(target.vector),
            (Wire::Message, None) => self.is_waiting = true,
            _ => {}
        }
    }
}

struct FakeSource(Shared);

impl Source for FakeSource {
    fn count(&self) -> u16 {
        1
    }

    fn route(&mut self, _: u16, target: Target) {
        let mut world = self.0.borrow_mut();
        world.tick();
        world.target = Some(target);
        let is_due = match world.wire {
            Wire::Edge => false,
            Wire::Level => world.is_up,
            Wire::Message => core::mem::take(&mut world.is_waiting),
        };
        if is_due {
            world.pending.insert(target.vector);
        }
        world.tick();
    }

    fn mask(&mut self, _: u16) {
        self.0.borrow_mut().target = None;
    }
}

struct FakeDriver(Shared);

impl Driver for FakeDriver {
    fn poll(&mut self) -> bool {
        let mut world = self.0.borrow_mut();
        world.tick();
        let progress = world.handled < world.completions;
        world.handled = world.completions;
        world.tick();
        progress
    }

    fn kick(&mut self) -> bool {
        self.0.borrow_mut().tick();
        false
    }

    fn arm(&mut self) -> bool {
        let mut world = self.0.borrow_mut();
        world.tick();
        world.is_armed = true;
        world.tick();
        let has_work = world.handled < world.completions;
        world.tick();
        has_work
    }

    fn disarm(&mut self) {
        let mut world = self.0.borrow_mut();
        world.tick();
        world.is_armed = false;
    }

    fn acknowledge(&mut self) {
        let mut world = self.0.borrow_mut();
        world.tick();
        world.is_up = false;
        world.tick();
    }

    fn violation(&self) -> Option<Violation> {
        None
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        Ok(())
    }
}

struct FakeCore<'a> {
    world: Shared,
    vectors: &'a Vectors,
    halts: usize,
}

impl Halt for FakeCore<'_> {
    fn halt(&mut self) -> Option<usize> {
        self.halts += 1;
        let mut world = self.world.borrow_mut();
        world.tick();
        loop {
            if let Some(vector) = world.pending.pop_first() {
                return self.vectors.owner(vector);
            }
            // Nothing comes while the core halts but what the device does.
            let Some((time, event)) = world.events.pop_first() else {
                assert_eq!(
                    world.handled, world.completions,
                    "the device is deaf: it has completed, and no interrupt came"
                );
                return None;
            };
            world.time = time;
            world.happen(event);
        }
    }

    fn woken(&mut self, _: Option<u32>) {}

    fn end_of_interrupt(&mut self) {
        let mut world = self.world.borrow_mut();
        world.tick();
        // A level that is still up comes again.
        if let (Wire::Level, true, Some(target)) = (world.wire, world.is_up, world.target) {
            world.pending.insert(target.vector);
        }
    }
}

fn found(world: &Shared) -> Found {
    let transport = Box::new(Fake::new(device::BLK, 0, &[]));
    Found { place: Place::Mmio(0), transport, interrupts: Box::new(FakeSource(world.clone())) }
}

/// Starts the device, then runs the loop of a core until the device has nothing more to do. How often the core halted.
fn boot(wire: Wire, events: BTreeMap<usize, Event>) -> usize {
    let count = events.len();
    let world = World::new(wire, events);
    let (mut drivers, mut vectors) = (Drivers::default(), Vectors::new(0));
    world.borrow_mut().tick();
    let build = |_| {
        // The device is set up and may run.
        (0..3).for_each(|_| world.borrow_mut().tick());
        Ok(("device".to_string(), Box::new(FakeDriver(world.clone())) as Box<dyn Driver>))
    };
    drivers.start(found(&world), &mut vectors, build).unwrap();
    let mut core = FakeCore { world: world.clone(), vectors: &vectors, halts: 0 };
    // Each event is good for a few rounds at most.
    for _ in 0..20 * (count + 1) {
        let progress = drivers.poll() | drivers.kick();
        let is_over = world.borrow().events.is_empty() && world.borrow().pending.is_empty();
        if !progress && drivers.sleep(&mut core) && is_over {
            let world = world.borrow();
            assert_eq!((world.handled, world.events.len()), (world.completions, 0));
            return core.halts;
        }
    }
    panic!("the core never comes to rest");
}

/// Moments of a start and of the rounds behind it.
const MOMENTS: usize = 60;
const WIRES: [Wire; 3] = [Wire::Edge, Wire::Level, Wire::Message];

#[test]
fn no_order_of_arm_interrupt_route_and_look_leaves_a_device_deaf() {
    for wire in WIRES {
        for first in 0..MOMENTS {
            for event in [Event::Completion, Event::Nuisance] {
                boot(wire, [(first, event)].into());
                for second in first + 1..MOMENTS {
                    boot(wire, [(first, event), (second, Event::Completion)].into());
                }
            }
        }
    }
}

#[test]
fn a_thousand_boots_with_interrupts_at_random_moments_of_the_start() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..1000 {
        let wire = WIRES[random(3)];
        let events = (0..1 + random(6)).map(|_| {
            let event = if random(2) == 0 { Event::Completion } else { Event::Nuisance };
            (random(MOMENTS), event)
        });
        boot(wire, events.collect());
    }
}

/// A level is acknowledged before the interrupt ends: otherwise each would wake the core twice.
#[test]
fn an_interrupt_wakes_the_core_once() {
    for wire in WIRES {
        let halts = boot(wire, [(1000, Event::Completion)].into());
        assert_eq!(halts, 2, "{wire:?}: one halt until the interrupt, and one that nothing ends");
    }
}

#[test]
fn a_device_that_does_not_start_has_no_interrupts() {
    let world = World::new(Wire::Level, BTreeMap::new());
    let (mut drivers, mut vectors) = (Drivers::default(), Vectors::new(7));
    let error = drivers.start(found(&world), &mut vectors, |_| Err(SetupError::ResetIgnored)).unwrap_err();
    assert_eq!(error.to_string(), "the device does not reset");
    assert_eq!((world.borrow().target, vectors.owner(0x50)), (None, None));
    // The next one has the number that it would have had, and vectors of its own.
    let build = |_| Ok(("device".to_string(), Box::new(FakeDriver(world.clone())) as Box<dyn Driver>));
    drivers.start(found(&world), &mut vectors, build).unwrap();
    assert_eq!(world.borrow().target, Some(Target { processor: 7, vector: 0x51 }));
    assert_eq!(vectors.owner(0x51), Some(0));
    // There is an end of them.
    let build = || |_| Err(SetupError::ResetIgnored);
    while drivers.start(found(&world), &mut vectors, build()) == Err(StartError::Setup(SetupError::ResetIgnored)) {}
    assert_eq!(drivers.start(found(&world), &mut vectors, build()), Err(StartError::OutOfVectors));
    assert_eq!((vectors.owner(0x4f), vectors.owner(0xf0)), (None, None));
}

/// Breaks when the test has it break.
struct Fragile {
    violations: Rc<RefCell<Vec<Violation>>>,
    restart: Result<(), SetupError>,
}

impl Driver for Fragile {
    fn poll(&mut self) -> bool {
        false
    }
    fn kick(&mut self) -> bool {
        false
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn disarm(&mut self) {}
    fn acknowledge(&mut self) {}
    fn violation(&self) -> Option<Violation> {
        self.violations.borrow().last().copied()
    }
    fn restart(&mut self) -> Result<(), SetupError> {
        if self.restart.is_ok() {
            self.violations.borrow_mut().clear();
        }
        self.restart
    }
}

/// A core that must not halt.
struct Awake;

impl Halt for Awake {
    fn halt(&mut self) -> Option<usize> {
        panic!("a device is broken, and nothing may ever wake this core");
    }
    fn woken(&mut self, _: Option<u32>) {}
    fn end_of_interrupt(&mut self) {}
}

/// A driver finds some violations only while it arms its device, so after the round's repairs.
#[test]
fn no_core_halts_before_a_broken_device_was_handled() {
    let violations = Rc::new(RefCell::new(Vec::from([Violation::NeedsReset])));
    let mut drivers = Drivers::default();
    drivers.add("net".to_string(), Box::new(Fragile { violations, restart: Err(SetupError::ResetIgnored) }));
    assert!(!drivers.sleep(&mut Awake));
    let mut reports = 0;
    drivers.repair(|_| reports += 1);
    assert_eq!(reports, 1);
    // A device that is given up keeps no core awake.
    let world = World::new(Wire::Edge, BTreeMap::new());
    assert!(drivers.sleep(&mut FakeCore { world, vectors: &Vectors::new(0), halts: 0 }));
}

#[test]
fn a_device_that_breaks_is_reported_and_started_again_once() {
    for (restart, words) in [
        (Ok(()), "started again"),
        (Err(SetupError::ResetIgnored), "cannot be started again: the device does not reset"),
    ] {
        let violations = Rc::new(RefCell::new(Vec::new()));
        let mut drivers = Drivers::default();
        drivers.add("disk 0".to_string(), Box::new(Fragile { violations: violations.clone(), restart }));
        let mut repair = || {
            let mut reports: Vec<String> = Vec::new();
            drivers.repair(|broken| reports.push(broken.to_string()));
            reports
        };
        assert!(repair().is_empty());
        violations.borrow_mut().push(Violation::NeedsReset);
        let reports = repair();
        assert_eq!(reports.len(), 1);
        assert!(reports[0].starts_with("disk 0 broke: it requested a reset; ") && reports[0].contains(words));
        assert!(repair().is_empty(), "once");
        if restart.is_ok() {
            violations.borrow_mut().push(Violation::NeedsReset);
            assert!(repair()[0].contains("it broke before") && repair().is_empty());
        }
    }
}
