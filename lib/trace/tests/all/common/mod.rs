//! A program whose threads have rings, and a reader of them.

use glass_formats::trace::{EVENT_WORDS, Event, Kind, NAMES_OFFSET, Ring};
use glass_lib_trace::{CONTROL, ConsoleLog, LevelFilter, Writer};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The groups are those of the whole process, so one test at a time switches them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What was printed.
pub static CONSOLE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A thread that is traced, until this is dropped.
pub struct Traced {
    words: &'static [AtomicU64],
    entry: usize,
    _guard: MutexGuard<'static, ()>,
}

pub fn memory(events: usize) -> &'static [AtomicU64] {
    Vec::leak((0..events * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect())
}

/// Makes tracing possible, with everything off.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        glass_lib_trace::start(true, memory(2), 0, 1_000_000_000);
        let print = |line: std::fmt::Arguments| CONSOLE.lock().unwrap().push(line.to_string());
        glass_lib_trace::tracing_subscriber::install(ConsoleLog { level: LevelFilter::WARN, print });
    });
}

/// A ring of `events` for this thread, with `groups` on.
pub fn traced(groups: u32, events: usize) -> Traced {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    start();
    let words = memory(events);
    let writer = Writer::claim("test", words).unwrap();
    let address = words.as_ptr() as u64;
    let entry = CONTROL.rings.iter().position(|entry| entry.address.load(Ordering::Relaxed) == address).unwrap();
    glass_lib_trace::set_current(Some(Box::leak(Box::new(writer))));
    glass_lib_trace::switch(groups);
    Traced { words, entry, _guard: guard }
}

impl Traced {
    /// What the thread wrote, in order.
    pub fn events(&self) -> Vec<Event> {
        let ring = Ring::new(&CONTROL.rings[self.entry].head, self.words).unwrap();
        let mut events = Vec::new();
        ring.read(0, |_, words| events.push(Event::from_words(words)));
        events
    }

    /// The same without the times and the switch at the start.
    pub fn recorded(&self) -> Vec<(Kind, u16, u32, u64, u64)> {
        let events = self.events().into_iter().filter(|event| event.kind != Kind::Groups as u16);
        events.map(|event| (kind(&event), event.detail, event.a, event.b, event.c)).collect()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        glass_lib_trace::switch(0);
        glass_lib_trace::set_current(None);
        // So that there are rings for as many tests as there are.
        CONTROL.rings[self.entry].capacity.store(0, Ordering::Relaxed);
        CONTROL.rings[self.entry].head.store(0, Ordering::Relaxed);
        CONTROL.rings[self.entry].taken.store(0, Ordering::Relaxed);
    }
}

pub fn kind(event: &Event) -> Kind {
    Kind::from_number(event.kind).unwrap()
}

/// A name as in the table.
pub fn name(number: u32) -> String {
    assert_eq!(std::mem::offset_of!(glass_formats::trace::Control, names), NAMES_OFFSET);
    let bytes: Vec<u8> =
        CONTROL.names[number as usize].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    String::from_utf8(bytes[2..2 + length].to_vec()).unwrap()
}
