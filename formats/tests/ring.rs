//! The ring under every order of memory accesses that the language allows: run with `--cfg loom`.
//!
//! `cargo xtask test` does: `RUSTFLAGS="--cfg loom" cargo test -p glass-formats --release --test ring`, in a target folder
//! of its own. Removing either fence of the ring or the Release of its head makes a test fail.
#![cfg(loom)]

use glass_formats::trace::{EVENT_WORDS, Ring};
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering as CountOrdering};

struct Memory {
    head: AtomicU64,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new(capacity: usize) -> Memory {
        let words = (0..capacity * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Memory { head: AtomicU64::new(0), words }
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.head, &self.words).unwrap()
    }
}

/// The words of event `number`: never zero, unlike memory that was not written.
fn event(number: u64) -> [u64; EVENT_WORDS] {
    [0x100 + number; EVENT_WORDS]
}

/// A writer that has written `before` events writes `during` more while a reader reads once.
fn check(capacity: usize, before: u64, during: u64) {
    let executions = Arc::new(Count::new(0));
    let overwritten = Arc::new(Count::new(0));
    let (counted, lost) = (executions.clone(), overwritten.clone());
    let mut builder = loom::model::Builder::new();
    // Enough to find every injected fault, in seconds.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        counted.fetch_add(1, CountOrdering::Relaxed);
        let memory = Arc::new(Memory::new(capacity));
        for number in 0..before {
            memory.ring().push(event(number));
        }
        let shared = memory.clone();
        let writer = thread::spawn(move || (before..before + during).for_each(|n| shared.ring().push(event(n))));
        let mut seen = Vec::new();
        let next = memory.ring().read(0, |number, words| seen.push((number, words)));
        writer.join().unwrap();
        let end = before + during;
        assert!((before..=end).contains(&next), "{next}");
        // The events are whole and in order, and were in the ring when the reader started.
        assert!(seen.is_sorted_by(|one, other| one.0 < other.0), "{seen:?}");
        for (number, words) in &seen {
            assert_eq!(*words, event(*number), "event {number} of {seen:?}");
            assert!(*number < next && number + capacity as u64 > next, "event {number} before {next}");
        }
        lost.fetch_add(u64::from((seen.len() as u64) < next.min(capacity as u64 - 1)), CountOrdering::Relaxed);
        // Afterwards every event is readable except the one that the writer might be overwriting.
        let mut last = Vec::new();
        memory.ring().read(0, |number, _| last.push(number));
        assert_eq!(last, ((end + 1).saturating_sub(capacity as u64)..end).collect::<Vec<_>>());
    });
    let executions = executions.load(CountOrdering::Relaxed);
    println!("{executions} executions, a loss in {}", overwritten.load(CountOrdering::Relaxed));
    // A model that explores one order proves nothing.
    assert!(executions > 50, "{executions} executions");
    assert!(overwritten.load(CountOrdering::Relaxed) > 0, "the writer never interfered");
}

#[test]
fn an_event_that_is_overwritten_meanwhile_is_never_torn() {
    check(2, 2, 2);
}

#[test]
fn two_slots_that_are_overwritten_more_than_once() {
    check(2, 1, 3);
}

#[test]
fn four_slots_of_which_the_oldest_are_overwritten() {
    check(4, 4, 2);
}

/// The head alone, so that the orderings of `push` are what is tested and not those of `join`.
#[test]
fn whoever_sees_the_head_sees_the_event() {
    let (executions, seen_first) = (Arc::new(Count::new(0)), Arc::new(Count::new(0)));
    let (counted, seen) = (executions.clone(), seen_first.clone());
    loom::model(move || {
        counted.fetch_add(1, CountOrdering::Relaxed);
        let memory = Arc::new(Memory::new(2));
        let (shared, seen) = (memory.clone(), seen.clone());
        let reader = thread::spawn(move || {
            shared.ring().read(0, |number, words| {
                assert_eq!(words, event(number));
                seen.fetch_add(1, CountOrdering::Relaxed);
            })
        });
        memory.ring().push(event(0));
        reader.join().unwrap();
    });
    let (executions, seen) = (executions.load(CountOrdering::Relaxed), seen_first.load(CountOrdering::Relaxed));
    println!("{executions} executions, the event was seen in {seen}");
    assert!(seen > 0 && seen < executions);
}
