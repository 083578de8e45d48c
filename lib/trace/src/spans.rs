//! The spans that a core is in, the numbers of new spans, and the spans that have several handles.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Nested spans that a core records; deeper ones work, but are not the parent of what is in them.
const DEPTH_MAX: usize = 32;

/// The spans that a core or thread is in, innermost last. Only that core writes it.
#[derive(Debug)]
pub(crate) struct Entered {
    depth: AtomicU32,
    spans: [AtomicU64; DEPTH_MAX],
}

impl Entered {
    pub(crate) const fn new() -> Entered {
        Entered { depth: AtomicU32::new(0), spans: [const { AtomicU64::new(0) }; DEPTH_MAX] }
    }

    fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }

    /// The innermost span, 0 if there is none.
    pub(crate) fn innermost(&self) -> u64 {
        let last = self.depth().checked_sub(1).and_then(|last| self.spans.get(last));
        last.map_or(0, |span| span.load(Ordering::Relaxed))
    }

    pub(crate) fn enter(&self, span: u64) {
        let depth = self.depth();
        if let Some(place) = self.spans.get(depth) {
            place.store(span, Ordering::Relaxed);
            self.depth.store(depth as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Exits a span, which is mostly the innermost.
    pub(crate) fn exit(&self, span: u64) {
        let spans = &self.spans[..self.depth().min(DEPTH_MAX)];
        let Some(place) = spans.iter().rposition(|inside| inside.load(Ordering::Relaxed) == span) else { return };
        for index in place + 1..spans.len() {
            spans[index - 1].store(spans[index].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.depth.store(spans.len() as u32 - 1, Ordering::Relaxed);
    }
}

/// Span numbers that a core reserves at a time: a word that all cores write to would cost each span 10 ns.
const NUMBERS_AT_ONCE: u64 = 64;

/// The last number that a core has reserved.
static NUMBERS_TAKEN: AtomicU64 = AtomicU64::new(0);

/// The numbers that one core gives to spans, each unique in the program and none 0. Only that core writes it.
#[derive(Debug)]
pub(crate) struct Numbers {
    last: AtomicU64,
}

impl Numbers {
    pub(crate) const fn new() -> Numbers {
        Numbers { last: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> u64 {
        let last = self.last.load(Ordering::Relaxed);
        let is_used_up = last.is_multiple_of(NUMBERS_AT_ONCE);
        let before = if is_used_up { NUMBERS_TAKEN.fetch_add(NUMBERS_AT_ONCE, Ordering::Relaxed) } else { last };
        let next = before + 1;
        self.last.store(next, Ordering::Relaxed);
        next
    }
}

/// Spans that can have more than one handle at the same time; further ones end with their first handle.
const SHARED_MAX: usize = 128;

/// Spans with several handles. Few have, so one load suffices for the others.
pub(crate) struct Shared {
    is_locked: AtomicBool,
    count: AtomicU32,
    /// A span's number and how many handles it has beyond the first; number 0 is a free place.
    places: [(AtomicU64, AtomicU32); SHARED_MAX],
}

impl Shared {
    pub(crate) const fn new() -> Shared {
        let places = [const { (AtomicU64::new(0), AtomicU32::new(0)) }; SHARED_MAX];
        Shared { is_locked: AtomicBool::new(false), count: AtomicU32::new(0), places }
    }

    /// The span has one more handle.
    pub(crate) fn add(&self, span: u64) {
        self.locked(|| {
            let place = self.place_of(span).or_else(|| self.place_of(0));
            let Some((number, more)) = place else { return };
            if number.swap(span, Ordering::Relaxed) == 0 {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            more.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Drops a handle; returns whether it was the last.
    pub(crate) fn remove(&self, span: u64) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.locked(|| {
            let Some((number, more)) = self.place_of(span) else { return true };
            if more.fetch_sub(1, Ordering::Relaxed) == 1 {
                number.store(0, Ordering::Relaxed);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            false
        })
    }

    fn place_of(&self, span: u64) -> Option<&(AtomicU64, AtomicU32)> {
        self.places.iter().find(|place| place.0.load(Ordering::Relaxed) == span)
    }

    /// Code under this lock does not wait, so no thread waits for it long.
    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        while self.is_locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin_loop();
        }
        let result = work();
        self.is_locked.store(false, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn spans_nest_and_may_be_left_in_any_order() {
        let entered = Entered::new();
        entered.exit(1);
        assert_eq!(entered.innermost(), 0);
        for span in 1..=4 {
            entered.enter(span);
        }
        entered.exit(2);
        entered.exit(4);
        assert_eq!(entered.innermost(), 3);
        entered.exit(3);
        entered.exit(1);
        assert_eq!(entered.innermost(), 0);
        for span in 1..=DEPTH_MAX as u64 + 5 {
            entered.enter(span);
        }
        assert_eq!(entered.innermost(), DEPTH_MAX as u64);
        for span in (1..=DEPTH_MAX as u64 + 5).rev() {
            entered.exit(span);
        }
        assert_eq!(entered.innermost(), 0);
    }

    #[test]
    fn cores_never_give_the_same_number() {
        let cores = [Numbers::new(), Numbers::new()];
        let mut numbers: std::vec::Vec<u64> = (0..1000).map(|step| cores[usize::from(step % 3 == 0)].next()).collect();
        assert!(numbers.iter().all(|number| *number > 0));
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
    }

    #[test]
    fn the_last_of_several_handles_ends_a_span() {
        let shared = Shared::new();
        assert!(shared.remove(7));
        shared.add(7);
        shared.add(7);
        shared.add(8);
        assert!(shared.remove(9));
        assert_eq!([shared.remove(7), shared.remove(7), shared.remove(7)], [false, false, true]);
        assert_eq!([shared.remove(8), shared.remove(8)], [false, true]);
        for span in 1..=SHARED_MAX as u64 + 3 {
            shared.add(span);
        }
        assert!(!shared.remove(SHARED_MAX as u64));
        assert!(shared.remove(SHARED_MAX as u64 + 1));
    }
}
