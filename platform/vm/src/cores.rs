//! What belongs to one core, reached through %gs in one instruction.
//!
//! Nothing here is shared: each core finds its own block and no other, so plain cells do.

use crate::random::Generator;
use crate::wall;
use alloc::boxed::Box;
use core::arch::asm;
use core::cell::{Cell, OnceCell, RefCell};
use core::fmt;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::AtomicU64;
use glass_executor::Executor;
use glass_formats::{Activity, CORE_MAGIC, CORES_MAX, CoreState};
use glass_trace::Writer;
use talc::{TalcCell, source::Manual};

/// Cores that this version starts.
pub const CORES: usize = 1;

/// Prints one line.
pub type Print = dyn Fn(fmt::Arguments);

/// One core's block. `this` comes first: boot.s points %gs at it.
#[repr(C, align(64))]
pub struct Core {
    this: Cell<*const Core>,
    /// Written by `glass_trace` alone, see `CORE_WORDS_OFFSET` there.
    trace_words: [Cell<usize>; 2],
    index: Cell<usize>,
    /// Memory for everything allocated on this core.
    pub heap: TalcCell<Manual>,
    /// Bytes given to the heap at boot.
    pub heap_bytes: Cell<usize>,
    /// Bytes of the heap that are in use.
    pub heap_used_bytes: Cell<usize>,
    /// The most that were in use.
    pub heap_peak_bytes: Cell<usize>,
    /// TSC at the 32-bit entry, the zero of the clock.
    pub clock_origin: Cell<u64>,
    /// Nanoseconds a TSC tick, times 2^32.
    pub clock_scale: Cell<u64>,
    /// Local APIC timer ticks per second.
    pub apic_timer_hz: Cell<u64>,
    /// The generator of its random bytes.
    pub random: RefCell<Option<Generator>>,
    /// The time of day, as it was read last.
    pub wall: Cell<Option<wall::Reading>>,
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
}

const _: () = assert!(offset_of!(Core, trace_words) == glass_trace::CORE_WORDS_OFFSET);

struct Blocks([Core; CORES]);

// SAFETY: `this_core` is the only way to a block, and gives each core its own.
unsafe impl Sync for Blocks {}

#[unsafe(export_name = "GLASS_CORE_BLOCKS")]
static BLOCKS: Blocks = Blocks(
    [const {
        Core {
            this: Cell::new(ptr::null()),
            trace_words: [const { Cell::new(0) }; 2],
            index: Cell::new(0),
            heap: TalcCell::new(Manual),
            heap_bytes: Cell::new(0),
            heap_used_bytes: Cell::new(0),
            heap_peak_bytes: Cell::new(0),
            clock_origin: Cell::new(0),
            clock_scale: Cell::new(0),
            apic_timer_hz: Cell::new(0),
            random: RefCell::new(None),
            wall: Cell::new(None),
            print: OnceCell::new(),
            flush: OnceCell::new(),
            executor: OnceCell::new(),
            trace: OnceCell::new(),
            trace_memory: Cell::new(&[]),
            steps: Cell::new(0),
            step: Cell::new(0),
        }
    }; CORES],
);

/// What the profiler reads from outside; the symbol is `glass_formats::CORES_SYMBOL`.
#[unsafe(export_name = "GLASS_CORES")]
static STATES: [CoreState; CORES_MAX] = [const { CoreState::new() }; CORES_MAX];

/// Must run first on the boot core, before [`this_core`].
pub fn initialize_boot_core() {
    let core = &BLOCKS.0[0];
    core.this.set(core);
    core.index.set(0);
    let state = core.state();
    state.magic.store(CORE_MAGIC, core::sync::atomic::Ordering::Relaxed);
    state.set_activity(Activity::Running);
}

/// The block of the core that runs this.
pub fn this_core() -> &'static Core {
    let core: *const Core;
    // SAFETY: boot.s pointed GS at this core's block, whose first word is its own address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) core, options(pure, readonly, nostack, preserves_flags)) };
    // SAFETY: the block is a static, and only this core uses it.
    unsafe { &*core }
}

impl Core {
    /// Number of the core, from 0 on.
    pub fn index(&self) -> usize {
        self.index.get()
    }

    /// The core's state as the profiler sees it.
    pub fn state(&self) -> &'static CoreState {
        &STATES[self.index.get()]
    }
}
