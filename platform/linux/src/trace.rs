//! The trace of this process: its memory, a ring for each thread, its clock.

use crate::sys::nominal_rate;
use crate::{functions, sys};
use glass_formats::trace::{EVENT_WORDS, GROUPS, Group, RINGS_MAX};
use glass_lib_trace::{CONTROL, Writer, ticks};
use std::cell::Cell;
use std::env;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The variable that names groups to be on from the start.
const VARIABLE: &str = "GLASS_TRACE";

/// The ring of the thread that runs the tasks: 262,144 events.
const MAIN_RING_WORDS: usize = 8 * 1024 * 1024 / 8;
/// The ring of every other thread: 32,768 events.
const THREAD_RING_WORDS: usize = 1024 * 1024 / 8;
const AREA_WORDS: usize = MAIN_RING_WORDS + (RINGS_MAX - 1) * THREAD_RING_WORDS;

/// The memory for rings and how much of it was given away.
struct Area {
    words: &'static [AtomicU64],
    used: AtomicUsize,
}

static AREA: OnceLock<Area> = OnceLock::new();

/// The groups that the environment wants; why it cannot be followed, in one sentence.
pub(crate) fn wanted_groups() -> Result<u32, String> {
    let Some(list) = env::var_os(VARIABLE) else { return Ok(0) };
    let text = list.to_string_lossy();
    Group::parse_list(&text).map_err(|word| {
        let names: Vec<&str> = GROUPS.iter().map(|(_, name)| *name).collect();
        format!("{VARIABLE} names the group {word}, which there is not: take all or some of {}", names.join(","))
    })
}

/// Makes the trace visible from outside, and gives the thread that calls the main ring. Without it the process runs
/// as well. Once a process.
pub(crate) fn start(groups: u32) -> io::Result<()> {
    let words = sys::share(&CONTROL, AREA_WORDS * size_of::<AtomicU64>())?;
    if AREA.set(Area { words, used: AtomicUsize::new(0) }).is_err() {
        return Ok(());
    }
    glass_lib_trace::start(true, words, ticks(), nominal_rate().unwrap_or(0));
    attach_with("main", MAIN_RING_WORDS);
    if groups != 0 {
        functions::start(groups);
        glass_lib_trace::switch(groups);
    }
    Ok(())
}

/// Whether a profiler can read the trace, and request more of it.
pub(crate) fn is_shared() -> bool {
    AREA.get().is_some()
}

/// Gives the thread that calls a ring of its own, if the process can be traced and there is one left.
pub(crate) fn attach(name: &str) {
    attach_with(name, THREAD_RING_WORDS);
}

fn attach_with(name: &str, word_count: usize) {
    let Some(area) = AREA.get() else { return };
    let first = area.used.fetch_add(word_count, Ordering::Relaxed);
    // Beyond the area there is no memory, and the claim counts the thread as one without a ring.
    let words = area.words.get(first..first.saturating_add(word_count)).unwrap_or_default();
    // A thread's ring is kept after its end, since what it did is still of interest. `RINGS_MAX` bounds them.
    glass_lib_trace::set_current(Writer::claim(name, words).map(|writer| &*Box::leak(Box::new(writer))));
}

/// The rate of the clock of events, measured while the service runs, so that its start need not wait.
pub(crate) struct Rate {
    begin: Instant,
    begin_ticks: u64,
    /// Measurements that were made.
    done: Cell<usize>,
}

/// When it is measured: an error of 100 ns in each reading is 10^-5 after the first and 10^-8 after the last.
const MEASURED_AFTER: [Duration; 3] = [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(10)];

impl Rate {
    /// Zero of the guest's clock is now.
    pub(crate) fn begin() -> Rate {
        let (begin, begin_ticks) = now();
        glass_lib_trace::set_origin(begin_ticks);
        Rate { begin, begin_ticks, done: Cell::new(0) }
    }

    /// Zero of the guest's clock.
    pub(crate) fn origin(&self) -> Instant {
        self.begin
    }

    /// Measures if it is time to.
    pub(crate) fn refine(&self) {
        let Some(after) = MEASURED_AFTER.get(self.done.get()) else { return };
        if self.begin.elapsed() < *after {
            return;
        }
        let (end, end_ticks) = now();
        let elapsed_ns = (end - self.begin).as_nanos().max(1);
        let rate = u128::from(end_ticks.saturating_sub(self.begin_ticks)) * 1_000_000_000 / elapsed_ns;
        glass_lib_trace::set_rate(u64::try_from(rate).unwrap_or(0));
        let passed = MEASURED_AFTER.iter().filter(|after| elapsed_ns >= after.as_nanos()).count();
        self.done.set(passed);
    }
}

/// Both clocks at the same moment: the best of three looks.
fn now() -> (Instant, u64) {
    let measure = || {
        let before = ticks();
        let time = Instant::now();
        let after = ticks();
        (after.wrapping_sub(before), time, before.wrapping_add(after.wrapping_sub(before) / 2))
    };
    let best = [measure(), measure(), measure()].into_iter().min_by_key(|(took, ..)| *took);
    best.map_or_else(|| (Instant::now(), ticks()), |(_, time, ticks)| (time, ticks))
}

const _: () = assert!((MAIN_RING_WORDS / EVENT_WORDS).is_power_of_two());
const _: () = assert!((THREAD_RING_WORDS / EVENT_WORDS).is_power_of_two());
