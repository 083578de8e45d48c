//! Secondary cores: what each needs, how they are started, and what becomes of those that do not come up.
//!
//! The boot core prepares everything before the final page tables are built, requests the start, and continues; it counts who is up
//! when its devices have started.

use crate::arch::{controller, halt, processor};
use crate::cores::{self, Core, Presence, this_core};
use crate::heap;
use crate::machine::Machine;
use crate::paging::PAGE_BYTES;
use crate::platform::VmCore;
use crate::serial::print_line;
use crate::trace;
use crate::{clock, random};
use alloc::alloc::{Layout, alloc_zeroed};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::spin_loop;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use core::time::Duration;
use glass_formats::CORES_MAX;
use glass_lib_cores::Mailboxes;
use glass_lib_executor::Unpark;

const STACK_BYTES: u64 = 256 << 10;
const FAULT_STACK_BYTES: u64 = 16 << 10;
/// How long the service waits for cores that were requested to start. On a busy host a virtual CPU may get no time for long.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Cores that were prepared.
pub struct SecondaryCores {
    cores: Vec<&'static Core>,
}

/// What a core needs to run tasks, which it gets when all that run are known.
pub struct Work {
    /// Its number for services.
    pub number: usize,
    pub mailboxes: &'static Mailboxes<VmCore>,
    /// Entropy for its generator.
    pub seed: [u8; 32],
}

/// Parts of the memory that are left to the boot core: with fewer cores there is more for it.
const BOOT_CORE_PARTS: u64 = 4;

/// By core: its work, null until it is known.
static WORK: [AtomicPtr<Work>; CORES_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; CORES_MAX];

/// Makes everything that the secondary cores of the machine need. Their numbers are the order of the machine's table.
pub fn prepare(machine: &Machine) -> SecondaryCores {
    let boot = processor::identifier();
    this_core().public.processor.store(boot, Ordering::Relaxed);
    let others = machine.processors.iter().copied().filter(|other| *other != boot && processor::is_reachable(*other));
    let others: Vec<u32> = others.collect();
    if others.len() >= CORES_MAX {
        print_line(format_args!("{} of the machine's {} cores are used", CORES_MAX, others.len() + 1));
    }
    let others = &others[..others.len().min(CORES_MAX - 1)];
    if others.is_empty() {
        return SecondaryCores { cores: Vec::new() };
    }
    heap::share(machine.ram.iter().map(|(_, end)| *end).max().unwrap_or(0));
    let bytes = heap::total_bytes() / (others.len() as u64 + 1);
    // The heap of each takes a part of the memory at least, and the boot core needs some for devices and the service.
    let fits = |index: usize| heap::parts_left() > index as u64 + BOOT_CORE_PARTS;
    let make = |(index, processor): (usize, &u32)| fits(index).then(|| make(index + 1, *processor, bytes)).flatten();
    let cores: Vec<_> = others.iter().enumerate().map_while(make).collect();
    if cores.len() < others.len() {
        let (made, all) = (cores.len() + 1, others.len() + 1);
        print_line(format_args!("the memory is enough for {made} of {all} cores: give the VM more"));
    }
    SecondaryCores { cores }
}

/// Makes a core's block, its stacks and its ring; `None` without memory for a core. Its share of the memory is `memory_bytes`.
fn make(index: usize, processor: u32, memory_bytes: u64) -> Option<&'static Core> {
    let area = PAGE_BYTES + STACK_BYTES + PAGE_BYTES + FAULT_STACK_BYTES + processor::OWN_BYTES;
    let layout = Layout::from_size_align(area as usize, PAGE_BYTES as usize).ok()?;
    // SAFETY: the layout's size is not zero. The area is never freed.
    let area = unsafe { alloc_zeroed(layout) }.expose_provenance() as u64;
    if area == 0 {
        return None;
    }
    let core = cores::add(index);
    core.public.processor.store(processor, Ordering::Relaxed);
    core.stack_bottom.set(area + PAGE_BYTES);
    core.arch.stack_top.set(core.stack_bottom.get() + STACK_BYTES);
    core.fault_stack_bottom.set(core.arch.stack_top.get() + PAGE_BYTES);
    core.arch.fault_stack_top.set(core.fault_stack_bottom.get() + FAULT_STACK_BYTES);
    // SAFETY: the bytes behind the stacks are no part of any other object.
    unsafe { processor::prepare(core, core.arch.fault_stack_top.get()) };
    core.trace_memory.set(trace::secondary_ring(memory_bytes));
    Some(core)
}

impl SecondaryCores {
    /// Whether the machine has one core.
    pub fn are_none(&self) -> bool {
        self.cores.is_empty()
    }

    /// Pages that must not be mapped, so that a stack that grows too far is found.
    pub fn guards(&self) -> impl Iterator<Item = u64> {
        let pages =
            |core: &&'static Core| [core.stack_bottom.get() - PAGE_BYTES, core.fault_stack_bottom.get() - PAGE_BYTES];
        self.cores.iter().flat_map(pages)
    }

    /// Requests the start of all. The boot core has its page tables, clock and interrupt controller.
    pub fn start(&self) {
        let boot = this_core();
        for core in &self.cores {
            core.clock_origin.set(boot.clock_origin.get());
            core.clock_scale.set(boot.clock_scale.get());
            core.timer_hz.set(boot.timer_hz.get());
        }
        processor::start(&self.cores);
    }

    fn are_up(&self) -> bool {
        self.cores.iter().all(|core| core.public.is_up())
    }

    /// The cores that are up; the others are reported and never used.
    pub fn arrived(self) -> Vec<&'static Core> {
        wait(ARRIVAL, || self.are_up());
        let mut arrived = self.cores;
        arrived.retain(|core| {
            let is_late = core.public.settle(Presence::GivenUp);
            if is_late {
                let (index, processor) = (core.index(), core.public.processor.load(Ordering::Relaxed));
                print_line(format_args!(
                    "core {index} (processor {processor:#x}) did not start: the service runs without it"
                ));
            }
            !is_late
        });
        arrived
    }
}

/// Waits until something is done, or for `limit`.
pub fn wait(limit: Duration, mut is_done: impl FnMut() -> bool) {
    let end = clock::now() + limit;
    while !is_done() && clock::now() < end {
        spin_loop();
    }
}

/// The mailboxes of the boot core and of `secondary`, which get to work.
pub fn put_to_work(secondary: &[&'static Core]) -> &'static Mailboxes<VmCore> {
    let doorbells = core::iter::once(this_core()).chain(secondary.iter().copied()).map(doorbell);
    let mailboxes: &'static Mailboxes<VmCore> = Box::leak(Box::new(Mailboxes::new(doorbells)));
    for (index, core) in secondary.iter().enumerate() {
        let mut seed = [0; 32];
        random::fill(&mut seed);
        let work = Box::new(Work { number: index + 1, mailboxes, seed });
        // Release: pairs with the Acquire in `await_work`.
        WORK[core.index()].store(Box::into_raw(work), Ordering::Release);
        controller::ring(core.public.processor.load(Ordering::Relaxed));
    }
    mailboxes
}

/// A secondary core comes here from boot.s, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn glass_core_start() -> ! {
    let core = this_core();
    controller::initialize_secondary(core.timer_hz.get());
    core.state().tsc_hz.store(cores::frequency(), Ordering::Relaxed);
    if !core.public.settle(Presence::Up) {
        loop {
            halt();
        }
    }
    core.announce();
    trace::start_secondary(core);
    random::initialize();
    let work = await_work(core);
    crate::run::run_secondary(*work)
}

fn await_work(core: &Core) -> Box<Work> {
    loop {
        // Acquire: pairs with the Release in `put_to_work`.
        let work = WORK[core.index()].swap(ptr::null_mut(), Ordering::Acquire);
        if !work.is_null() {
            // SAFETY: it is from `Box::into_raw`, and taken once.
            return unsafe { Box::from_raw(work) };
        }
        // A ring after the look ends the halt at once.
        controller::idle(None);
    }
}

/// What wakes `core`, from any core.
pub fn doorbell(core: &Core) -> Arc<dyn Unpark> {
    Arc::new(Doorbell { core: core.index(), processor: core.public.processor.load(Ordering::Relaxed) })
}

struct Doorbell {
    core: usize,
    processor: u32,
}

impl Unpark for Doorbell {
    fn unpark(&self) {
        if self.core == this_core().index() {
            return;
        }
        let Some((_, mail)) = cores::public(self.core) else { return };
        // Pairs with the fence in `fall_asleep`: either the core is seen to sleep, or it sees what was done before this call.
        fence(Ordering::SeqCst);
        let is_asleep = &mail.is_asleep;
        if is_asleep.load(Ordering::Relaxed) && is_asleep.swap(false, Ordering::Relaxed) {
            controller::ring(self.processor);
        }
    }
}

/// This core is about to halt: from now on others ring. Check for work after it.
pub fn fall_asleep(core: &Core) {
    core.mail.is_asleep.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// This core does not need to be rung for any more.
pub fn awake(core: &Core) {
    core.mail.is_asleep.store(false, Ordering::Relaxed);
}
