//! The loop of a core: tasks and devices in turn, a short spin, then sleep.

use crate::arch::{controller, ticks};
use crate::cores::this_core;
use crate::devices::{self, EndRequests, Settings};
use crate::drivers::{Drivers, Halt};
use crate::interrupts::{Vectors, Wake};
use crate::platform::{SHUTDOWN, VmCore, VmPlatform, World};
use crate::report::exit;
use crate::serial::print_line;
use crate::smp::{self, Work};
use crate::start::Boot;
use crate::trace::step;
use crate::{clock, functions, generation, heap, random};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::convert::Infallible;
use core::fmt::Display;
use core::hint::spin_loop;
use core::mem;
use core::time::Duration;
use glass_api::{Console, Cores, Instant};
use glass_formats::{Activity, CoreState, Exit};
use glass_lib_executor::Executor;
use glass_lib_executor::sync::Latch;
use glass_lib_net::Sockets;
use glass_lib_trace::{Group, WakeSource};
use glass_lib_vsock::Joined;

/// How long a core without work looks for some before it halts. A halt and its wake-up cost 25 to
/// 90 us and two exits to the VMM, so a core that is woken soon after it halts spins longer the next
/// time. Measured under KVM with the upload queue (2026-11-21, medians of 5, two cores): at most
/// 20 us gave 125 MB/s up and 120 down, at most 200 us 268 and 238, at most 1 ms 316 and 268.
const SPIN_MIN: Duration = Duration::from_micros(50);
const SPIN_MAX: Duration = Duration::from_micros(1000);
/// A device that woke the core sooner than this after it halted would have been worth waiting for.
const SHORT_HALT: Duration = Duration::from_micros(1500);
/// How long a halted core does not check whether the host requests another trace. A check costs some 10 us.
const HOST_POLL_PERIOD: Duration = Duration::from_millis(250);
/// How long the end of the VM waits for peers that have not acknowledged everything.
const DELIVERY: Duration = Duration::from_secs(2);
/// Looks at the console that the last lines of a service that has ended get: tens of milliseconds.
const FLUSH_POLLS_MAX: usize = 5_000_000;

/// Starts the devices, runs `serve` until it returns and ends the VM. `entry!` calls it.
pub fn run<S, F, E>(boot: Boot, serve: S) -> !
where
    S: FnOnce(VmPlatform) -> F,
    F: Future<Output = Result<(), E>> + 'static,
    E: Display + 'static,
{
    let executor = Executor::new(smp::doorbell(this_core()));
    let _ = this_core().executor.set(executor.clone());
    let Boot { machine, command_line, secondary } = boot;
    let settings = Settings {
        address: command_line.address,
        ipv6: command_line.ipv6,
        name_servers: command_line.name_servers,
        congestion: command_line.congestion,
        console_port: command_line.console_port,
        memory_bytes: heap::total_bytes() as usize,
        disk_timeout: command_line.disk_timeout,
        xen_disk: command_line.xen_disk,
        xen_offloads: command_line.xen_offloads,
    };
    let (mut vectors, mut drivers) = (Vectors::new(controller::identifier()), Drivers::default());
    let found = step("boot: search for devices", || devices::find(&machine));
    // They come up while the devices are started, and not before those have their addresses: while one core changes the map of memory, QEMU 7.2
    // (TCG) may lose what another one writes to its local APIC.
    if !secondary.are_none() {
        step("boot: start of secondary cores", || secondary.start());
    }
    let devices = step("boot: devices", || devices::start(found, &machine, &settings, &mut vectors, &mut drivers));
    let devices = devices.unwrap_or_else(|error| {
        print_line(format_args!("error: {error}"));
        exit(Exit::Error)
    });
    for word in &command_line.unknown {
        print_line(format_args!("the command line's `{word}` is unknown to this image"));
    }
    let secondary = match secondary.are_none() {
        true => Vec::new(),
        false => step("boot: arrival of secondary cores", || secondary.arrived()),
    };
    let mailboxes = smp::put_to_work(&secondary);
    let core = VmCore::new(0, executor, mailboxes, devices.console);
    let world = Rc::new(World {
        args: command_line.args,
        cpus: command_line.cpus,
        core: core.clone(),
        disks: devices.disks,
        files: devices.files,
        net: Joined { ip: devices.sockets.unwrap_or_else(Sockets::without_device), vsock: devices.vsock },
        shutdown: Latch::named(&SHUTDOWN),
        watches_shutdown: Cell::new(false),
    });
    let platform = VmPlatform { world: world.clone() };
    let printer = platform.clone();
    let _ = this_core().print.set(Box::new(move |line| printer.print(line)));
    let result = Rc::new(Cell::new(None));
    if let Some(console) = core.console().cloned() {
        let _ = this_core().flush.set(Box::new(move || console.flush(FLUSH_POLLS_MAX)));
    }
    let (future, slot) = (serve(platform.clone()), result.clone());
    core.executor().spawn("main", async move { slot.set(Some(future.await)) }).expect("the first task has room");
    let first = First { world, end_requests: devices.end_requests };
    let mut running = Loop { core, drivers, vectors, spin: SPIN_MIN, first: Some(first) };
    let result = running.run_until(|| result.take());
    running.deliver();
    let how = match result {
        Ok(()) => Exit::Success,
        Err(error) => {
            platform.print(format_args!("error: {error}"));
            Exit::Error
        }
    };
    end(&platform.world, how)
}

/// Runs what others start on this core, which is not the first one, until the VM ends.
pub fn run_secondary(work: Work) -> ! {
    random::add(&work.seed);
    let executor = Executor::new(smp::doorbell(this_core()));
    let _ = this_core().executor.set(executor.clone());
    let core = VmCore::new(work.number, executor, work.mailboxes, None);
    let printer = core.clone();
    let _ = this_core().print.set(Box::new(move |line| printer.print(line)));
    let vectors = Vectors::new(controller::identifier());
    let mut running = Loop { core, drivers: Drivers::default(), vectors, spin: SPIN_MIN, first: None };
    match running.run_until(|| None::<Infallible>) {}
}

/// Ends the VM once the host has the last lines.
fn end(world: &World, how: Exit) -> ! {
    if let Some(console) = world.core.console() {
        console.flush(FLUSH_POLLS_MAX);
    }
    exit(how)
}

struct Loop {
    core: VmCore,
    drivers: Drivers,
    vectors: Vectors,
    spin: Duration,
    first: Option<First>,
}

/// What only the first core has: the service's world, and the host's requests.
struct First {
    world: Rc<World>,
    end_requests: Rc<EndRequests>,
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

    /// Prints what other cores have sent before the service ended, and polls until the peers of connections that it has closed have received
    /// what was sent to them, within a limit.
    fn deliver(&mut self) {
        self.core.mailboxes().deliver(&self.core);
        let end = clock::now() + DELIVERY;
        while self.drivers.is_delivering() && clock::now() < end {
            self.round();
        }
    }

    /// Passes on the host's requests to end. A service that does not wait for the first one, and any service at the second, ends
    /// at once, as a signal ends a process; a power button that is pressed again changes nothing.
    fn follow_end_requests(&self) {
        let Some(First { world, end_requests }) = &self.first else { return };
        let World { shutdown, watches_shutdown, .. } = &**world;
        for _ in 0..end_requests.interrupts.take() {
            if !watches_shutdown.get() || shutdown.is_open() {
                end(world, Exit::Error);
            }
            shutdown.open();
        }
        if end_requests.power_button.take() {
            if !watches_shutdown.get() {
                end(world, Exit::Success);
            }
            shutdown.open();
        }
    }

    /// Everything once: timers, what other cores request, devices, tasks, one kick a device. Returns whether there is more to do.
    fn round(&mut self) -> bool {
        self.follow_host();
        heap::take_freed();
        let executor = self.core.executor();
        let mut progress = executor.fire_timers(clock::now()) > 0;
        if self.has_mail() {
            progress |= self.core.mailboxes().deliver(&self.core) > 0;
        }
        progress |= self.drivers.poll();
        self.follow_end_requests();
        let polled = self.core.executor().run_ready();
        CoreState::add(&this_core().state().polls, polled as u64);
        // After the tasks: what they have queued leaves in this round, and with one notification a device.
        progress |= self.drivers.kick();
        self.drivers.repair(|broken| {
            print_line(format_args!("{broken}"));
            tracing::error!("{broken}");
        });
        self.drivers.take_notices(|device, notice| {
            print_line(format_args!("{device} {notice}"));
            tracing::error!("{device} {notice}");
        });
        progress || polled > 0 || self.has_work()
    }

    /// Switches the events on and off that the host requests, which the first core does for all.
    fn follow_host(&mut self) {
        if self.first.is_none() {
            return;
        }
        let Some(change) = glass_lib_trace::follow_host(functions::switch) else { return };
        // A trace that has just begun gets what is there already.
        if change.switched_on & Group::Tasks as u32 != 0 {
            self.core.executor().announce();
            for core in 1..self.core.cores() {
                // One that takes no message has its tasks recorded from their next polls on.
                let _ = self.core.mailboxes().post(core, |core| core.executor().announce());
            }
        }
        self.drivers.announce(change.switched_on);
    }

    fn has_mail(&self) -> bool {
        self.core.mailboxes().has_mail(self.core.core())
    }

    /// Whether the next round has something to do, whatever the devices say.
    fn has_work(&self) -> bool {
        self.core.executor().has_ready() || self.has_mail() || self.drivers.has_work()
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.drivers.deadline().into_iter().chain(self.core.executor().next_deadline()).min()
    }

    /// Waits a moment for a device or a deadline. True when there is work.
    fn spin(&mut self) -> bool {
        let state = this_core().state();
        state.set_activity(Activity::Spinning);
        let deadline = self.next_deadline();
        let end = clock::now() + self.spin;
        let mut is_traced = false;
        let found = loop {
            let found = self.drivers.poll();
            let now = clock::now();
            if found || deadline.is_some_and(|deadline| deadline <= now) || self.has_work() {
                break true;
            }
            if now >= end {
                break false;
            }
            // One pair of events for each spin that lasts.
            if !mem::replace(&mut is_traced, true) {
                glass_lib_trace::spin_begin();
            }
            spin_loop();
        };
        if is_traced {
            glass_lib_trace::spin_end();
        }
        state.set_activity(Activity::Running);
        found
    }

    /// Halts until a device, another core or a deadline needs this one. Every device is armed and looked at once
    /// more first, and so is what other cores have sent; an interrupt after that look ends the halt at once.
    fn sleep(&mut self) {
        let deadline = self.next_deadline();
        let core = this_core();
        smp::fall_asleep(core);
        if !self.has_work() {
            let polls_host = self.first.is_some();
            let vectors = &self.vectors;
            let mut halting = Halting { deadline, polls_host, vectors, wake: Wake::Other, halted: Duration::ZERO };
            if self.drivers.sleep(&mut halting) {
                let is_worth_waiting = matches!(halting.wake, Wake::Interrupt(_) | Wake::Core);
                let halted = halting.halted;
                self.adapt_spin(is_worth_waiting, halted);
            }
        }
        smp::awake(core);
    }

    fn adapt_spin(&mut self, is_worth_waiting: bool, halted: Duration) {
        let wanted = if is_worth_waiting && halted < SHORT_HALT { self.spin * 2 } else { self.spin / 2 };
        self.spin = wanted.clamp(SPIN_MIN, SPIN_MAX);
    }
}

/// One halt of this core.
struct Halting<'a> {
    deadline: Option<Instant>,
    /// The core wakes every now and then for requests of the host.
    polls_host: bool,
    vectors: &'a Vectors,
    /// What ended it.
    wake: Wake,
    /// How long it took.
    halted: Duration,
}

impl Halt for Halting<'_> {
    fn halt(&mut self) -> Option<usize> {
        let state = this_core().state();
        let start = ticks();
        state.set_activity(Activity::Idle);
        glass_lib_trace::idle_begin(self.deadline.map(|deadline| deadline.0));
        self.wake = halt(self.deadline, self.polls_host);
        let end = ticks();
        self.halted = clock::instant(end).since(clock::instant(start));
        CoreState::add(&state.halts, 1);
        CoreState::add(&state.idle_ticks, end.saturating_sub(start));
        match self.wake {
            Wake::Interrupt(vector) => self.vectors.owner(vector),
            Wake::Timer | Wake::Core | Wake::Other => None,
        }
    }

    fn woken(&mut self, device: Option<u32>) {
        let source = match (self.wake, device) {
            (Wake::Timer, _) => WakeSource::Timer,
            (Wake::Interrupt(_), Some(_)) => WakeSource::Device,
            (Wake::Core, _) => WakeSource::Core,
            (Wake::Interrupt(_) | Wake::Other, _) => WakeSource::Other,
        };
        let device = device.unwrap_or(0);
        // The halt may have ended only because the host has requested something.
        if self.wake != Wake::Other {
            glass_lib_trace::interrupt(device, controller::vector(self.wake).into());
        }
        glass_lib_trace::idle_end(source, device);
        this_core().state().set_activity(Activity::Running);
    }

    fn end_of_interrupt(&mut self) {
        if let Wake::Interrupt(_) = self.wake {
            controller::end_of_interrupt();
        }
    }
}

/// Halts until a device, another core or `deadline` needs the core, or the host requests something.
fn halt(deadline: Option<Instant>, polls_host: bool) -> Wake {
    loop {
        let poll_at = polls_host.then(|| clock::now() + HOST_POLL_PERIOD);
        // A VM of several cores has no copies.
        if polls_host {
            generation::before_halt();
        }
        let wake = controller::idle(deadline.into_iter().chain(poll_at).min());
        // Before anything else: in a copy, random numbers and the time are those of another VM until then.
        let is_copy = polls_host && generation::follow();
        let is_early = wake == Wake::Timer && !is_copy && deadline.is_none_or(|deadline| clock::now() < deadline);
        // An interrupt that came meanwhile ends the next halt at once.
        if !is_early {
            return wake;
        }
        if polls_host && glass_lib_trace::has_request() {
            return Wake::Other;
        }
    }
}
