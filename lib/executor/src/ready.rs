//! The set of runnable tasks: a two-level bitmap in which any thread may set bits.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use glass_lib_trace::{Group, is_on};

const WORD_BITS: usize = 64;
/// One summary word of 64 words of 64 bits.
pub(crate) const SLOTS_MAX: usize = WORD_BITS * WORD_BITS;

/// How a wake-up from another thread reaches a core that sleeps.
pub trait Unpark: Send + Sync {
    /// Makes the sleeping core check its tasks. Called from any thread, often; must be cheap.
    fn unpark(&self);
}

pub(crate) struct ReadySet {
    /// Bit w is set when `words[w]` may have a bit set.
    summary: AtomicU64,
    words: [AtomicU64; WORD_BITS],
    unpark: Arc<dyn Unpark>,
}

impl ReadySet {
    pub(crate) fn new(unpark: Arc<dyn Unpark>) -> ReadySet {
        ReadySet { summary: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORD_BITS], unpark }
    }

    pub(crate) fn set(&self, slot: usize) {
        // Release: pairs with the Acquire swaps in `take`, so that the task sees what its waker wrote.
        let word = self.words[slot / WORD_BITS].fetch_or(1 << (slot % WORD_BITS), Ordering::Release);
        if word == 0 {
            let summary = self.summary.fetch_or(1 << (slot / WORD_BITS), Ordering::Release);
            if summary == 0 {
                self.unpark.unpark();
            }
        }
    }

    fn is_set(&self, slot: usize) -> bool {
        self.words[slot / WORD_BITS].load(Ordering::Relaxed) & 1 << (slot % WORD_BITS) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.summary.load(Ordering::Acquire) == 0
    }

    /// Takes every set bit and passes its slot to `run`, in ascending order, until that returns false. A bit that is set
    /// meanwhile may wait for the next call, so a task that wakes itself cannot starve the rest.
    pub(crate) fn take(&self, mut run: impl FnMut(usize) -> bool) {
        // The summary is taken first: a waker that sets a word afterwards sets its bit again.
        let mut summary = self.summary.swap(0, Ordering::Acquire);
        while summary != 0 {
            let index = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            let mut word = self.words[index].swap(0, Ordering::Acquire);
            while word != 0 {
                let goes_on = run(index * WORD_BITS + word.trailing_zeros() as usize);
                word &= word - 1;
                if !goes_on {
                    self.words[index].fetch_or(word, Ordering::Release);
                    self.summary.fetch_or(summary | u64::from(word != 0) << index, Ordering::Release);
                    return;
                }
            }
        }
    }
}

/// The waker of one slot. It outlives the task: a late wake-up causes one unnecessary poll of the slot's next task.
pub(crate) struct SlotWaker {
    pub(crate) slot: usize,
    /// Number of the task in the slot, 0 while there is none.
    pub(crate) task: AtomicU32,
    pub(crate) ready: Arc<ReadySet>,
}

impl SlotWaker {
    /// The event comes first: once the bit is set, another thread may poll the task.
    #[cold]
    fn trace(&self) {
        let task = self.task.load(Ordering::Relaxed);
        if task != 0 && !self.ready.is_set(self.slot) {
            glass_lib_trace::wake(task);
        }
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if is_on(Group::Tasks) {
            self.trace();
        }
        self.ready.set(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicUsize;

    struct Count(AtomicUsize);
    impl Unpark for Count {
        fn unpark(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn takes_each_slot_once_and_unparks_only_when_empty() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let set = ReadySet::new(count.clone());
        for slot in [4095, 0, 64, 0, 63] {
            set.set(slot);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let mut taken = Vec::new();
        set.take(|slot| {
            taken.push(slot);
            if slot == 0 {
                set.set(0);
            }
            true
        });
        assert_eq!(taken, [0, 63, 64, 4095]);
        assert!(!set.is_empty());
        set.take(|slot| slot == 0);
        assert!(set.is_empty());
        // What is left is taken later.
        let slots = [5, 6, 4000, 4001];
        slots.into_iter().for_each(|slot| set.set(slot));
        taken.clear();
        for _ in slots {
            assert!(!set.is_empty());
            set.take(|slot| {
                taken.push(slot);
                false
            });
        }
        assert_eq!(taken, slots);
        assert!(set.is_empty());
    }
}
