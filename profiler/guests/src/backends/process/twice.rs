//! Threads that are sampled twice: a thread that is started while others are opened has its own event if it is seen, and has
//! inherited its parent's if that was open. Only its samples show whether it has: each names the event that was opened.

use std::collections::{HashMap, HashSet};

/// The events that were opened for threads, and which of them are left out.
#[derive(Debug, Default)]
pub(super) struct Twice {
    /// The thread and the CPU of each, by its id.
    opened: HashMap<u64, (u32, u32)>,
    /// Of threads that may have inherited another: id and index, by thread and CPU.
    doubtful: HashMap<(u32, u32), (u64, usize)>,
    left_out: HashSet<u64>,
    found: Vec<usize>,
}

impl Twice {
    /// An event was opened for a thread; `doubtful` is its index if the thread may have inherited another.
    pub(super) fn opened(&mut self, id: u64, tid: u32, cpu: u32, doubtful: Option<usize>) {
        self.opened.insert(id, (tid, cpu));
        if let Some(index) = doubtful {
            self.doubtful.insert((tid, cpu), (id, index));
        }
    }

    /// Whether a sample of a thread is to be left out. From its first one by an inherited event on, those by its own are.
    pub(super) fn is_left_out(&mut self, tid: u32, id: u64) -> bool {
        if self.left_out.contains(&id) {
            // What the thread has started by then has inherited both.
            return true;
        }
        if let Some((owner, cpu)) = self.opened.get(&id)
            && *owner != tid
            && let Some((own, index)) = self.doubtful.remove(&(tid, *cpu))
        {
            self.left_out.insert(own);
            self.found.push(index);
        }
        false
    }

    /// A thread has ended: its number may come again.
    pub(super) fn ended(&mut self, tid: u32) {
        if !self.doubtful.is_empty() {
            self.doubtful.retain(|(of, _), _| *of != tid);
        }
    }

    /// The indices of events that were found to be left out since this was called last.
    pub(super) fn found(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_event_of_a_thread_that_has_inherited_another_is_left_out() {
        let mut twice = Twice::default();
        twice.opened(1, 10, 0, None);
        twice.opened(2, 11, 0, Some(7));
        twice.opened(3, 12, 0, Some(8));
        // Its own first, then the inherited one.
        assert!(!twice.is_left_out(11, 2) && twice.found().is_empty());
        assert!(!twice.is_left_out(11, 1));
        assert_eq!(twice.found(), [7]);
        assert!(twice.is_left_out(11, 2) && !twice.is_left_out(11, 1) && twice.found().is_empty());
        // One that has inherited nothing, and one with its number later.
        assert!(!twice.is_left_out(12, 3));
        twice.ended(12);
        assert!(!twice.is_left_out(12, 1) && twice.found().is_empty());
    }
}
