//! Indices of the polls, waits and visits of each task and span.

use crate::trace::model::Trace;

/// Built once for a trace, used for many paths.
#[derive(Debug, Clone, Default)]
pub struct Index {
    polls: Lists,
    waits: Lists,
    visits: Lists,
}

/// Lists of indices, one after the other.
#[derive(Debug, Clone, Default)]
struct Lists {
    ends: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// Sorts `0..keys.len()` into lists by their keys, in order. Keys from `lists` on are left out.
    fn new(lists: usize, keys: impl Iterator<Item = u32> + Clone) -> Lists {
        let mut ends = vec![0u32; lists];
        for key in keys.clone().filter(|key| (*key as usize) < lists) {
            ends[key as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            let count = *end;
            *end = sum;
            sum += count;
        }
        let mut items = vec![0; sum as usize];
        for (item, key) in (0u32..).zip(keys).filter(|(_, key)| (*key as usize) < lists) {
            items[ends[key as usize] as usize] = item;
            ends[key as usize] += 1;
        }
        Lists { ends, items }
    }

    fn list(&self, key: u32) -> &[u32] {
        let Some(end) = self.ends.get(key as usize) else { return &[] };
        let start = key.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.items[start as usize..*end as usize]
    }
}

impl Index {
    /// Takes time and memory in proportion to the polls, waits and visits.
    pub fn new(trace: &Trace) -> Index {
        Index {
            polls: Lists::new(trace.tasks.len(), trace.polls.iter().map(|poll| poll.task)),
            waits: Lists::new(trace.tasks.len(), trace.waits.iter().map(|wait| wait.task)),
            visits: Lists::new(trace.spans.len(), trace.span_visits.iter().map(|visit| visit.span)),
        }
    }

    /// The polls of a task in order: indices into `Trace::polls`.
    pub fn polls(&self, task: u32) -> &[u32] {
        self.polls.list(task)
    }

    /// The waits of a task in order: indices into `Trace::waits`.
    pub fn waits(&self, task: u32) -> &[u32] {
        self.waits.list(task)
    }

    /// The visits of a span in order: indices into `Trace::span_visits`.
    pub fn visits(&self, span: u32) -> &[u32] {
        self.visits.list(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_the_order_and_leave_out_what_has_no_list() {
        let lists = Lists::new(3, [2, 0, 2, 7, 0].into_iter());
        assert_eq!([lists.list(0), lists.list(1), lists.list(2), lists.list(7)], [&[1, 4][..], &[], &[0, 2], &[]]);
    }
}
