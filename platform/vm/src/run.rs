//! The loop of a core: tasks and devices in turn, a short spin, then sleep.

use crate::apic::{self, Wake};
use crate::command_line::Addressing;
use crate::cores::this_core;
use crate::devices::{self, Devices, Owner, VmDisk, VmNet};
use crate::platform::{CONSOLE_ROOM, VmPlatform, World};
use crate::ports::read_tsc;
use crate::report::exit;
use crate::serial::print_line;
use crate::start::Boot;
use crate::trace::step;
use crate::{clock, functions, random};
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt::Display;
use core::hint::spin_loop;
use core::mem;
use core::time::Duration;
use glass_api::{Console, Instant};
use glass_executor::sync::Notify;
use glass_executor::{Executor, Unpark};
use glass_formats::{Activity, CoreState, Exit};
use glass_net::{Address, Config, Sockets, Stack};
use glass_trace::{Group, WakeSource};
use glass_virtio::Driver;

/// How long a core without work looks for some before it halts. A halt and its wake-up cost 25 to
/// 90 us and two exits to the VMM, so a core that is woken soon after it halts spins longer the next
/// time. Measured under KVM with the upload queue (2026-11-21, medians of 5, two cores): at most
/// 20 us gave 125 MB/s up and 120 down, at most 200 us 268 and 238, at most 1 ms 316 and 268.
const SPIN_MIN: Duration = Duration::from_micros(50);
const SPIN_MAX: Duration = Duration::from_micros(1000);
/// A device that woke the core sooner than this after it halted would have been worth waiting for.
const SHORT_HALT: Duration = Duration::from_micros(1500);
/// How long a halted core does not look whether the host asks for another trace. A look costs some 10 us.
const HOST_LOOK: Duration = Duration::from_millis(250);
/// Looks at the console that the last lines of a service that has ended get: tens of milliseconds.
const FAREWELL_LOOKS: usize = 5_000_000;

/// One core needs no wake from elsewhere: whoever wakes a task runs on it, and it is awake.
struct AlwaysAwake;
impl Unpark for AlwaysAwake {
    fn unpark(&self) {}
}

/// Starts the devices, runs `serve` until it returns and ends the VM. `entry!` calls it.
pub fn run<S, F, E>(boot: Boot, serve: S) -> !
where
    S: FnOnce(VmPlatform) -> F,
    F: Future<Output = Result<(), E>> + 'static,
    E: Display + 'static,
{
    let executor = Executor::new(Arc::new(AlwaysAwake));
    let _ = this_core().executor.set(executor.clone());
    let memory_bytes = this_core().heap_bytes.get();
    let mut devices = step("boot: devices", || devices::start(&boot, memory_bytes));
    for word in &boot.command_line.unknown {
        print_line(format_args!("the command line's `{word}` means nothing to this image"));
    }
    let net = devices.net.take();
    let (stack, sockets) = step("boot: network", || start_network(net, boot.command_line.address, memory_bytes));
    let world = Rc::new(World {
        args: boot.command_line.args,
        executor,
        disks: mem::take(&mut devices.disks),
        sockets,
        console: RefCell::new(devices.console.take()),
        console_room: Notify::of_resource(&CONSOLE_ROOM),
    });
    let platform = VmPlatform { world: world.clone() };
    let result = Rc::new(Cell::new(None));
    let (future, slot) = (serve(platform.clone()), result.clone());
    world.executor.spawn("main", async move { slot.set(Some(future.await)) }).expect("the first task has room");
    let Devices { owners, names, .. } = devices;
    let mut core = Loop { disks: world.disks.clone(), world, stack, owners, names, spin: SPIN_MIN };
    let result = core.run_until(|| result.take());
    let how = match result {
        Ok(()) => Exit::Success,
        Err(error) => {
            platform.print(format_args!("error: {error}"));
            Exit::Error
        }
    };
    if let Some(console) = &mut *platform.world.console.borrow_mut() {
        console.drain(FAREWELL_LOOKS);
    }
    exit(how)
}

fn start_network(net: Option<VmNet>, address: Addressing, memory_bytes: usize) -> (Option<Stack<VmNet>>, Sockets) {
    let Some(net) = net else { return (None, Sockets::without_device()) };
    let address = match address {
        Addressing::Dhcp => Address::Dhcp,
        Addressing::Static { address, prefix_bits, gateway } => {
            Address::Static { address: address.into(), prefix_bits, gateway: gateway.map(Into::into) }
        }
    };
    let mac = net.mac();
    match Stack::new(net, mac, Config::for_memory(address, memory_bytes), random::next(), clock::now()) {
        Ok(stack) => {
            let sockets = stack.sockets();
            (Some(stack), sockets)
        }
        Err(error) => {
            print_line(format_args!("no network: {error}"));
            (None, Sockets::without_device())
        }
    }
}

struct Loop {
    world: Rc<World>,
    disks: Vec<VmDisk>,
    stack: Option<Stack<VmNet>>,
    owners: Vec<Owner>,
    /// Their names in the trace.
    names: Vec<u32>,
    spin: Duration,
}

impl Loop {
    fn run_until<T>(&mut self, finished: impl Fn() -> Option<T>) -> T {
        loop {
            let progress = self.round();
            if let Some(result) = finished() {
                return result;
            }
            if !progress && !self.spin() {
                self.sleep();
            }
        }
    }

    /// Everything once: timers, devices, tasks, one kick a device. Tells whether there is more to do.
    fn round(&mut self) -> bool {
        self.follow_host();
        let now = clock::now();
        let executor = &self.world.executor;
        let mut progress = executor.fire_timers(now) > 0;
        for disk in &mut self.disks {
            progress |= disk.poll();
        }
        if let Some(console) = &mut *self.world.console.borrow_mut() {
            progress |= console.poll();
            if console.take_room() {
                self.world.console_room.notify_all();
            }
        }
        let polled = executor.run_ready();
        CoreState::add(&this_core().state().polls, polled as u64);
        // After the tasks: what they have queued leaves in this round, and in the same kick.
        if let Some(stack) = &mut self.stack {
            stack.device_mut().poll();
            progress |= stack.poll(now);
        }
        self.for_each_driver(|driver| driver.kick());
        progress || polled > 0 || self.has_work()
    }

    /// Switches the events on and off that the host asks for.
    fn follow_host(&mut self) {
        let Some(change) = glass_trace::follow_host(functions::switch) else { return };
        // What is there already is told to a trace that has just begun.
        if change.begun & Group::Tasks as u32 != 0 {
            self.world.executor.announce();
        }
        if change.begun & Group::Net as u32 != 0
            && let Some(stack) = &self.stack
        {
            stack.announce();
        }
    }

    /// Whether the next round has something to do, whatever the devices say.
    fn has_work(&self) -> bool {
        self.world.executor.has_ready() || self.stack.as_ref().is_some_and(Stack::has_work)
    }

    fn for_each_driver(&mut self, mut call: impl FnMut(&mut dyn Driver)) {
        for disk in &mut self.disks {
            call(disk);
        }
        if let Some(stack) = &mut self.stack {
            call(stack.device_mut());
        }
        if let Some(console) = &mut *self.world.console.borrow_mut() {
            call(console);
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let now = clock::now();
        let network = self.stack.as_mut().and_then(|stack| stack.next_deadline(now));
        network.into_iter().chain(self.world.executor.next_deadline()).min()
    }

    /// Waits a moment for a device or a deadline. True when there is work.
    fn spin(&mut self) -> bool {
        let state = this_core().state();
        state.set_activity(Activity::Spinning);
        let deadline = self.next_deadline();
        let end = clock::now() + self.spin;
        let mut is_traced = false;
        let found = loop {
            let mut found = false;
            self.for_each_driver(|driver| found |= driver.poll());
            let now = clock::now();
            if found || deadline.is_some_and(|deadline| deadline <= now) || self.has_work() {
                break true;
            }
            if now >= end {
                break false;
            }
            // One pair of events for each spin that lasts.
            if !mem::replace(&mut is_traced, true) {
                glass_trace::spin_begin();
            }
            spin_loop();
        };
        if is_traced {
            glass_trace::spin_end();
        }
        state.set_activity(Activity::Running);
        found
    }

    /// Halts until a device or a deadline needs the core. Every device is armed and looked at once
    /// more first; an interrupt after that look ends the halt at once.
    fn sleep(&mut self) {
        let mut work = false;
        self.for_each_driver(|driver| work |= driver.arm());
        if !work {
            let deadline = self.next_deadline();
            let state = this_core().state();
            let start = read_tsc();
            let start_time = clock::now();
            state.set_activity(Activity::Idle);
            glass_trace::idle_begin(deadline.map(|deadline| deadline.0));
            let wake = halt(deadline);
            self.trace_wake(wake);
            state.set_activity(Activity::Running);
            CoreState::add(&state.halts, 1);
            CoreState::add(&state.idle_ticks, read_tsc().saturating_sub(start));
            self.adapt_spin(wake, clock::now().since(start_time));
            self.acknowledge(wake);
        }
        self.for_each_driver(|driver| driver.disarm());
    }

    fn trace_wake(&self, wake: Wake) {
        let (source, device) = match wake {
            Wake::Timer => (WakeSource::Timer, 0),
            Wake::Device(index) => (WakeSource::Device, self.names.get(index).copied().unwrap_or(0)),
            Wake::Other => (WakeSource::Other, 0),
        };
        // The halt may have ended only because the host has asked for something.
        if wake != Wake::Other {
            glass_trace::interrupt(device, wake.vector().into());
        }
        glass_trace::idle_end(source, device);
    }

    fn adapt_spin(&mut self, wake: Wake, halted: Duration) {
        let wanted = match wake {
            Wake::Device(_) if halted < SHORT_HALT => self.spin * 2,
            _ => self.spin / 2,
        };
        self.spin = wanted.clamp(SPIN_MIN, SPIN_MAX);
    }

    fn acknowledge(&mut self, wake: Wake) {
        let Wake::Device(index) = wake else { return };
        match self.owners.get(index) {
            Some(Owner::Disk(disk)) => self.disks[*disk].acknowledge_interrupt(),
            Some(Owner::Net) => {
                if let Some(stack) = &mut self.stack {
                    stack.device_mut().acknowledge_interrupt();
                }
            }
            Some(Owner::Console) => {
                if let Some(console) = &mut *self.world.console.borrow_mut() {
                    console.acknowledge_interrupt();
                }
            }
            None => {}
        }
    }
}

/// Halts until a device or `deadline` needs the core, or the host asks for something.
fn halt(deadline: Option<Instant>) -> Wake {
    loop {
        let look = clock::now() + HOST_LOOK;
        let wake = apic::idle(Some(deadline.map_or(look, |deadline| deadline.min(look))));
        let is_early = wake == Wake::Timer && deadline.is_none_or(|deadline| clock::now() < deadline);
        // An interrupt that came meanwhile ends the next halt at once.
        if !is_early {
            return wake;
        }
        if glass_trace::is_asked() {
            return Wake::Other;
        }
    }
}
