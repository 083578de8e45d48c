//! Secondary cores: what each needs, how they are started, and what becomes of those that do not come up.
//!
//! The boot core prepares everything before the final page tables are built, requests the start, and continues; it counts who is up
//! when its devices have started.

use crate::arch::apic;
use crate::arch::paging::PAGE_BYTES;
use crate::arch::ports::halt;
use crate::cores::{self, Core, Presence, this_core};
use crate::heap;
use crate::machine::Machine;
use crate::memory::PAGE_TABLES;
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
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};
use core::time::Duration;
use glass_formats::CORES_MAX;
use glass_lib_cores::Mailboxes;
use glass_lib_executor::Unpark;

/// Where a core starts, in 16-bit mode: RAM on every VMM, and used by none after it has entered the image.
const TRAMPOLINE: u64 = 0x8000;
const STACK_BYTES: u64 = 256 << 10;
const FAULT_STACK_BYTES: u64 = 16 << 10;
const RING0_STACK_BYTES: u64 = 4 << 10;
/// A task state segment and its bitmap of ports, all of which are ring 3's.
const TASK_STATE_BYTES: u64 = 104 + 8192 + 8;
/// Offset of the ring-0 stack pointer, and of the bitmap's offset.
const RSP0: u64 = 4;
const BITMAP_OFFSET: u64 = 102;
/// The boot core's table of segments, without its task state segment (boot.s, gdt).
const SEGMENTS: [u64; 7] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_9b00_0000_ffff,
    0,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
];
/// Between the two requests to start, as Intel's manual has them (volume 3, section 9.4.4.1), though a virtual CPU needs no time.
const AFTER_INIT: Duration = Duration::from_micros(200);
const START_AGAIN: Duration = Duration::from_millis(2);
/// How long the service waits for cores that were requested to start. On a busy host a virtual CPU may get no time for long.
const ARRIVAL: Duration = Duration::from_secs(1);

unsafe extern "C" {
    static glass_trampoline: u8;
    static glass_trampoline_end: u8;
    static glass_page_tables: AtomicU64;
    static glass_core_numbers: [AtomicU8; 256];
}

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
    let boot = u32::from(apic::identifier());
    this_core().public.apic.store(boot, Ordering::Relaxed);
    // With identifiers above 254 a core cannot be addressed by the registers that we use.
    let others = machine.processors.iter().copied().filter(|apic| *apic != boot && *apic < 255);
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
    let make = |(index, apic): (usize, &u32)| fits(index).then(|| make(index + 1, *apic, bytes)).flatten();
    let cores: Vec<_> = others.iter().enumerate().map_while(make).collect();
    if cores.len() < others.len() {
        let (made, all) = (cores.len() + 1, others.len() + 1);
        print_line(format_args!("the memory is enough for {made} of {all} cores: give the VM more"));
    }
    SecondaryCores { cores }
}

/// Makes a core's block, its stacks and its ring; `None` without memory for a core. Its share of the memory is `memory_bytes`.
fn make(index: usize, apic: u32, memory_bytes: u64) -> Option<&'static Core> {
    let area = PAGE_BYTES + STACK_BYTES + PAGE_BYTES + FAULT_STACK_BYTES + RING0_STACK_BYTES + TASK_STATE_BYTES;
    let layout = Layout::from_size_align(area as usize, PAGE_BYTES as usize).ok()?;
    // SAFETY: the layout's size is not zero. The area is never freed.
    let area = unsafe { alloc_zeroed(layout) }.expose_provenance() as u64;
    if area == 0 {
        return None;
    }
    let core = cores::add(index);
    core.public.apic.store(apic, Ordering::Relaxed);
    core.stack_bottom.set(area + PAGE_BYTES);
    core.stack_top.set(core.stack_bottom.get() + STACK_BYTES);
    core.fault_stack_bottom.set(core.stack_top.get() + PAGE_BYTES);
    core.fault_stack_top.set(core.fault_stack_bottom.get() + FAULT_STACK_BYTES);
    core.ring0_stack_top.set(core.fault_stack_top.get() + RING0_STACK_BYTES);
    let task_state = core.ring0_stack_top.get();
    // SAFETY: both fields are in the area, behind the stacks; no reference to it exists.
    unsafe {
        ((task_state + RSP0) as *mut u64).write_unaligned(core.ring0_stack_top.get());
        ((task_state + BITMAP_OFFSET) as *mut u16).write_unaligned(104);
    }
    let limit = TASK_STATE_BYTES - 8;
    let descriptor = limit & 0xffff
        | (task_state & 0xff_ffff) << 16
        | 0x89 << 40
        | (limit >> 16 & 0xf) << 48
        | (task_state >> 24 & 0xff) << 56;
    let entries = SEGMENTS.into_iter().chain([descriptor, task_state >> 32]);
    core.segments.iter().zip(entries).for_each(|(place, entry)| place.set(entry));
    let table = (&raw const core.segments).addr() as u64;
    let words = [size_of_val(&core.segments) as u64 - 1, table, table >> 16, table >> 32, table >> 48];
    core.segments_pointer.set(words.map(|word| word as u16));
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

    /// Requests the start of all. The boot core has its page tables, clock and APIC.
    pub fn start(&self) {
        let root = PAGE_TABLES.load(Ordering::Relaxed);
        assert!(root < 1 << 32, "the page tables are from the first memory, below 4 GiB");
        let boot = this_core();
        // SAFETY: boot.s defines both; a secondary core reads them when it starts, which is requested below.
        let (page_tables, numbers) = unsafe { (&glass_page_tables, &glass_core_numbers) };
        page_tables.store(root, Ordering::Relaxed);
        for core in &self.cores {
            core.clock_origin.set(boot.clock_origin.get());
            core.clock_scale.set(boot.clock_scale.get());
            core.apic_timer_hz.set(boot.apic_timer_hz.get());
            numbers[apic_of(core) as usize].store(core.index() as u8, Ordering::Relaxed);
        }
        let (code, end) = (&raw const glass_trampoline, &raw const glass_trampoline_end);
        // SAFETY: the page is mapped for writing and not used any more: the command line and all that the VMM has handed over were read.
        unsafe { ptr::copy_nonoverlapping(code, TRAMPOLINE as *mut u8, end.addr() - code.addr()) };
        fence(Ordering::SeqCst);
        self.cores.iter().for_each(|core| apic::init(apic_of(core)));
        wait(AFTER_INIT, || false);
        self.request();
        // A core that runs already ignores the second request.
        wait(START_AGAIN, || self.are_up());
        self.request();
    }

    fn request(&self) {
        for core in self.cores.iter().filter(|core| !core.public.is_up()) {
            apic::start_up(apic_of(core), (TRAMPOLINE / PAGE_BYTES) as u8);
        }
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
                let (index, apic) = (core.index(), apic_of(core));
                print_line(format_args!("core {index} (local APIC {apic}) did not start: the service runs without it"));
            }
            !is_late
        });
        arrived
    }
}

fn apic_of(core: &Core) -> u8 {
    core.public.apic.load(Ordering::Relaxed) as u8
}

fn wait(limit: Duration, mut is_done: impl FnMut() -> bool) {
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
        apic::ring(apic_of(core));
    }
    mailboxes
}

/// A secondary core comes here from boot.s, in ring 3, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn glass_core_start() -> ! {
    let core = this_core();
    apic::initialize_secondary(core.apic_timer_hz.get());
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
        apic::idle(None);
    }
}

/// What wakes `core`, from any core.
pub fn doorbell(core: &Core) -> Arc<dyn Unpark> {
    Arc::new(Doorbell { core: core.index(), apic: apic_of(core) })
}

struct Doorbell {
    core: usize,
    apic: u8,
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
            apic::ring(self.apic);
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
