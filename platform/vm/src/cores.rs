//! What belongs to one core, reached through a register of its own in one instruction.
//!
//! Each core finds its own block, so plain cells do. What other cores may touch is in [`Public`] and [`Mail`], on lines of memory of their own.

use crate::arch;
use crate::core_heap::CoreHeap;
use crate::generator::Generator;
use alloc::boxed::Box;
use core::cell::{Cell, OnceCell, RefCell};
use core::fmt;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use glass_api::{Instant, WallTime};
use glass_formats::{Activity, CORE_MAGIC, CORES_MAX, CoreState};
use glass_lib_cores::List;
use glass_lib_executor::Executor;
use glass_lib_trace::Writer;

/// Prints one line.
pub type Print = dyn Fn(fmt::Arguments);

/// One core's block. `this` comes first: boot.s points the core's register at it. The offsets of the first fields are in boot.s too.
#[repr(C, align(64))]
pub struct Core {
    this: Cell<*const Core>,
    /// Written by `glass_lib_trace` alone, see `CORE_WORDS_OFFSET` there.
    trace_words: [Cell<usize>; 2],
    /// What boot.s reads and writes.
    pub arch: arch::Block,
    index: Cell<usize>,
    /// The lowest bytes of the stacks of `arch`.
    pub stack_bottom: Cell<u64>,
    pub fault_stack_bottom: Cell<u64>,
    /// Memory for everything allocated on this core.
    pub heap: CoreHeap,
    /// Ticks at the image's entry, the zero of the clock.
    pub clock_origin: Cell<u64>,
    /// Nanoseconds a tick, times 2^32.
    pub clock_scale: Cell<u64>,
    /// Ticks per second of the timer that ends a halt.
    pub timer_hz: Cell<u64>,
    /// The generator of its random bytes.
    pub random: RefCell<Option<Generator>>,
    /// When the time of day was read last, and what it was; `None` if the machine has no clock for it.
    pub wall: Cell<Option<(Instant, Option<WallTime>)>>,
    /// Prints a line on the console, once the platform runs.
    pub print: OnceCell<Box<Print>>,
    /// Gives the host what was printed, once the platform runs.
    pub flush: OnceCell<Box<dyn Fn()>>,
    /// The core's tasks, once the platform runs.
    pub executor: OnceCell<Executor>,
    /// Where the core's events go.
    pub trace: OnceCell<Writer>,
    /// The memory of that ring.
    pub trace_memory: Cell<&'static [AtomicU64]>,
    /// Steps of the boot so far.
    pub steps: Cell<u64>,
    /// The step that is being done, 0 for none.
    pub step: Cell<u64>,
    /// The task that ran when a crash of another core stopped this one.
    pub stopped_task: Cell<&'static str>,
    pub public: Public,
    pub mail: Mail,
}

const _: () = assert!(offset_of!(Core, trace_words) == glass_lib_trace::CORE_WORDS_OFFSET);
const _: () = assert!(offset_of!(Core, arch) == 24);

/// What this core writes and others read, seldom.
#[repr(align(64))]
pub struct Public {
    /// Its number in hardware: of its local APIC on x86-64, its affinity on AArch64.
    pub processor: AtomicU32,
    /// A [`Presence`].
    presence: AtomicU32,
    /// A crash of another core has stopped it for good; the fault in `Core::arch` is valid.
    pub is_stopped: AtomicBool,
    /// Bytes of its heap that are in use, and the most that were.
    pub heap_used_bytes: AtomicUsize,
    pub heap_peak_bytes: AtomicUsize,
}

/// What other cores write.
#[repr(align(64))]
pub struct Mail {
    /// The core halts, or is about to: it needs an interrupt.
    pub is_asleep: AtomicBool,
    /// Memory of this core that others have freed.
    pub freed: List,
}

/// How far a core is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Presence {
    /// It was requested to start.
    Starting = 0,
    /// It runs Rust.
    Up = 1,
    /// It was too late, and halts if it comes.
    GivenUp = 2,
}

impl Public {
    /// Changes the state from `Starting`; whether it was that.
    pub fn settle(&self, to: Presence) -> bool {
        let starting = Presence::Starting as u32;
        // AcqRel: what the core has written before it came up is seen by who sees it up.
        self.presence.compare_exchange(starting, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the core is up.
    pub fn is_up(&self) -> bool {
        self.presence.load(Ordering::Acquire) == Presence::Up as u32
    }
}

/// The boot core's block, which boot.s finds before there is any memory.
struct BootCore(Core);

// SAFETY: `this_core` gives the block to its core alone. Others get only `public` and `mail`, which are `Sync`.
unsafe impl Sync for BootCore {}

#[unsafe(export_name = "GLASS_BOOT_CORE")]
static BOOT_CORE: BootCore = BootCore(Core::new());

/// The blocks by core number. boot.s reads it.
#[unsafe(export_name = "GLASS_CORE_BLOCKS")]
static BLOCKS: [AtomicPtr<Core>; CORES_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; CORES_MAX];

/// What the profiler reads from outside; the symbol is `glass_formats::CORES_SYMBOL`.
#[unsafe(export_name = "GLASS_CORES")]
static STATES: [CoreState; CORES_MAX] = [const { CoreState::new() }; CORES_MAX];

/// Must run first on the boot core, before [`this_core`].
pub fn initialize_boot_core() {
    let core = &BOOT_CORE.0;
    core.this.set(core);
    core.public.settle(Presence::Up);
    BLOCKS[0].store(ptr::from_ref(core).cast_mut(), Ordering::Relaxed);
    core.announce();
}

/// Makes the block of core number `index`, which never ends.
pub fn add(index: usize) -> &'static Core {
    let core: &'static Core = Box::leak(Box::new(Core::new()));
    core.this.set(core);
    core.index.set(index);
    // Release: the block is whole for who finds it.
    BLOCKS[index].store(ptr::from_ref(core).cast_mut(), Ordering::Release);
    core
}

/// The block of the core that runs this.
#[inline(always)]
pub fn this_core() -> &'static Core {
    // SAFETY: the block is a `Core`, it is never freed, and only this core uses it.
    unsafe { &*arch::block::<Core>() }
}

/// What may be known of core number `index`; `None` if there is no such core.
pub fn public(index: usize) -> Option<(&'static Public, &'static Mail)> {
    // SAFETY: both parts are `Sync`, and the rest is not used.
    unsafe { block(index) }.map(|core| (&core.public, &core.mail))
}

/// The block of core number `index`, if it has stopped for good.
pub fn stopped(index: usize) -> Option<&'static Core> {
    // Acquire: pairs with the Release of `report.rs`, with which the core wrote its block last.
    let is_stopped = public(index)?.0.is_stopped.load(Ordering::Acquire);
    // SAFETY: the core does not run any more, so its cells are only read, and by the one core that reports.
    if is_stopped { unsafe { block(index) } } else { None }
}

/// The block of core number `index`.
///
/// # Safety
/// While that core runs, another one may use only `public` and `mail`: the rest are plain cells.
unsafe fn block(index: usize) -> Option<&'static Core> {
    let block = BLOCKS.get(index)?.load(Ordering::Acquire);
    // SAFETY: the table has pointers to blocks that are never freed, or null.
    unsafe { block.as_ref() }
}

/// Ticks of the clock per second, 0 while unknown.
pub fn frequency() -> u64 {
    STATES[0].tsc_hz.load(Ordering::Relaxed)
}

impl Core {
    const fn new() -> Core {
        Core {
            this: Cell::new(ptr::null()),
            trace_words: [const { Cell::new(0) }; 2],
            arch: arch::Block::new(),
            index: Cell::new(0),
            stack_bottom: Cell::new(0),
            fault_stack_bottom: Cell::new(0),
            heap: CoreHeap::new(),
            clock_origin: Cell::new(0),
            clock_scale: Cell::new(0),
            timer_hz: Cell::new(0),
            random: RefCell::new(None),
            wall: Cell::new(None),
            print: OnceCell::new(),
            flush: OnceCell::new(),
            executor: OnceCell::new(),
            trace: OnceCell::new(),
            trace_memory: Cell::new(&[]),
            steps: Cell::new(0),
            step: Cell::new(0),
            stopped_task: Cell::new("none"),
            public: Public {
                processor: AtomicU32::new(0),
                presence: AtomicU32::new(Presence::Starting as u32),
                is_stopped: AtomicBool::new(false),
                heap_used_bytes: AtomicUsize::new(0),
                heap_peak_bytes: AtomicUsize::new(0),
            },
            mail: Mail { is_asleep: AtomicBool::new(false), freed: List::new() },
        }
    }

    /// Number of the core, from 0 on.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index.get()
    }

    /// The core's state as the profiler sees it.
    pub fn state(&self) -> &'static CoreState {
        &STATES[self.index.get()]
    }

    /// Shows the profiler that the core runs.
    pub fn announce(&self) {
        let state = self.state();
        state.magic.store(CORE_MAGIC, Ordering::Relaxed);
        state.set_activity(Activity::Running);
    }
}
