//! Distinct stacks with weights that fade, in bounded memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::CountedStack;
use crate::guest::ThreadId;
use crate::model::State;
use crate::unwind::CallAddress;

/// Distinct combinations of stack, track and state; above it the lighter half makes room.
pub(super) const STACKS_MAX: usize = 32 << 10;
/// Frames in all distinct stacks in total: 8 MiB.
const ENTRIES_MAX: usize = 2 << 20;
/// A stack that weighs less than this part of a sample is dropped at the next clean-up.
const WEIGHT_MIN: f64 = 1.0 / 1024.0;
/// New samples weigh increasingly more, old ones keep their weight; before numbers get large, all are
/// scaled down.
const HALF_LIVES_MAX: f64 = 256.0;

/// What samples are of, beside their stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Of {
    pub track: u32,
    pub state: State,
    pub thread: Option<ThreadId>,
    pub is_user: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    stack: u32,
    of: Of,
}

pub(super) struct Stacks {
    half_life_ns: Option<u64>,
    /// A sample at this time weighs 1.
    unit_ns: Option<u64>,
    frame_ids: HashMap<CallAddress, u32>,
    frames: Vec<CallAddress>,
    stack_ids: HashMap<Arc<[u32]>, u32>,
    stacks: Vec<Arc<[u32]>>,
    weights: HashMap<Key, f64>,
    entries: usize,
    forgotten: f64,
    ids: Vec<u32>,
}

impl Stacks {
    pub(super) fn new(half_life_ns: Option<u64>) -> Stacks {
        Stacks {
            half_life_ns: half_life_ns.map(|half_life_ns| half_life_ns.max(1)),
            unit_ns: None,
            frame_ids: HashMap::new(),
            frames: Vec::new(),
            stack_ids: HashMap::new(),
            stacks: Vec::new(),
            weights: HashMap::new(),
            entries: 0,
            forgotten: 0.0,
            ids: Vec::new(),
        }
    }

    /// Half-lives from the unit to `time_ns`; negative before it.
    fn age(&self, time_ns: u64) -> f64 {
        match (self.half_life_ns, self.unit_ns) {
            (Some(half_life), Some(unit)) => (time_ns as f64 - unit as f64) / half_life as f64,
            _ => 0.0,
        }
    }

    pub(super) fn add(&mut self, time_ns: u64, of: Of, chain: &[CallAddress]) {
        self.unit_ns.get_or_insert(time_ns);
        if self.age(time_ns) > HALF_LIVES_MAX {
            let scale = (-self.age(time_ns)).exp2();
            self.weights.values_mut().for_each(|weight| *weight *= scale);
            self.forgotten *= scale;
            self.unit_ns = Some(time_ns);
        }
        if self.weights.len() >= STACKS_MAX || self.entries + chain.len() > ENTRIES_MAX {
            self.make_room(time_ns);
        }
        let weight = self.age(time_ns).exp2();
        let stack = self.stack(chain);
        *self.weights.entry(Key { stack, of }).or_default() += weight;
    }

    /// Threads of guests that have samples.
    pub(super) fn threads(&self) -> HashSet<ThreadId> {
        self.weights.keys().filter_map(|key| key.of.thread).collect()
    }

    fn stack(&mut self, chain: &[CallAddress]) -> u32 {
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        for call in chain {
            let next = self.frames.len() as u32;
            let id = *self.frame_ids.entry(*call).or_insert(next);
            if id == next {
                self.frames.push(*call);
            }
            ids.push(id);
        }
        let stack = match self.stack_ids.get(&ids[..]) {
            Some(stack) => *stack,
            None => {
                let (stack, frames) = (self.stacks.len() as u32, Arc::from(&ids[..]));
                self.entries += ids.len();
                self.stacks.push(Arc::clone(&frames));
                self.stack_ids.insert(frames, stack);
                stack
            }
        };
        self.ids = ids;
        stack
    }

    /// Keeps the heavier half and drops the rest, but not its weight: shares stay right.
    fn make_room(&mut self, now_ns: u64) {
        let mut sorted: Vec<(Key, f64)> = self.weights.iter().map(|(key, weight)| (*key, *weight)).collect();
        sorted.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
        let least = WEIGHT_MIN * self.age(now_ns).exp2();
        let mut kept = Stacks { unit_ns: self.unit_ns, forgotten: self.forgotten, ..Stacks::new(self.half_life_ns) };
        for (key, weight) in sorted {
            let frames = &self.stacks[key.stack as usize];
            let is_full = kept.weights.len() >= STACKS_MAX / 2 || kept.entries + frames.len() > ENTRIES_MAX / 2;
            if weight < least || is_full {
                kept.forgotten += weight;
                continue;
            }
            let chain: Vec<CallAddress> = frames.iter().map(|id| self.frames[*id as usize]).collect();
            let stack = kept.stack(&chain);
            kept.weights.insert(Key { stack, ..key }, weight);
        }
        *self = kept;
    }

    /// Frames, stacks and the dropped weight, in samples of `now_ns`.
    pub(super) fn copy(&self, now_ns: u64) -> (Vec<CallAddress>, Vec<CountedStack>, f64) {
        let scale = (-self.age(now_ns)).exp2();
        let counted = |(key, weight): (&Key, &f64)| CountedStack {
            frames: Arc::clone(&self.stacks[key.stack as usize]),
            track: key.of.track,
            state: key.of.state,
            thread: key.of.thread,
            is_user: key.of.is_user,
            weight: weight * scale,
        };
        (self.frames.clone(), self.weights.iter().map(counted).collect(), self.forgotten * scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn chain(address: u64) -> [CallAddress; 2] {
        [CallAddress { image: Some(1), address }, CallAddress { image: Some(1), address: 7 }]
    }

    fn weight(stacks: &Stacks, now_ns: u64, address: u64) -> f64 {
        let (frames, counted, _) = stacks.copy(now_ns);
        let is_it = |stack: &&CountedStack| frames[stack.frames[0] as usize].address == address;
        counted.iter().filter(is_it).map(|stack| stack.weight).sum()
    }

    #[test]
    fn a_sample_counts_half_after_a_half_life() {
        let mut stacks = Stacks::new(Some(5 * SECOND));
        for index in 0..100 {
            stacks.add(100 * SECOND + index, Of::default(), &chain(1));
        }
        assert!((weight(&stacks, 105 * SECOND, 1) - 50.0).abs() < 0.001);
        stacks.add(110 * SECOND, Of::default(), &chain(2));
        assert!((weight(&stacks, 110 * SECOND, 1) - 25.0).abs() < 0.001);
        assert!((weight(&stacks, 110 * SECOND, 2) - 1.0).abs() < 0.001);
    }

    #[test]
    fn days_of_sampling_do_not_overflow() {
        let mut stacks = Stacks::new(Some(SECOND));
        for second in (0..10 * 86_400).step_by(100) {
            stacks.add(second * SECOND, Of::default(), &chain(1));
        }
        let weight = weight(&stacks, (10 * 86_400 - 100) * SECOND, 1);
        assert!((weight - 1.0).abs() < 0.001, "{weight}");
    }

    #[test]
    fn without_a_half_life_all_count_the_same() {
        let mut stacks = Stacks::new(None);
        stacks.add(1, Of::default(), &chain(1));
        stacks.add(3600 * SECOND, Of::default(), &chain(1));
        assert_eq!(weight(&stacks, 7200 * SECOND, 1), 2.0);
    }

    #[test]
    fn ever_new_stacks_take_bounded_memory_and_keep_their_weight_in_the_sum() {
        for half_life in [None, Some(SECOND)] {
            let mut stacks = Stacks::new(half_life);
            let count = 5 * STACKS_MAX as u64;
            for index in 0..count {
                stacks.add(1000 + index, Of::default(), &chain(1000 + index));
                // Every other stack is the same.
                stacks.add(1000 + index, Of::default(), &chain(1)[..]);
                assert!(stacks.weights.len() <= STACKS_MAX && stacks.frames.len() <= STACKS_MAX + 2);
            }
            let (_, counted, forgotten) = stacks.copy(1000 + count);
            let sum: f64 = counted.iter().map(|stack| stack.weight).sum();
            assert!((sum + forgotten - 2.0 * count as f64).abs() < 50.0, "{sum} {forgotten}");
            assert!(weight(&stacks, 1000 + count, 1) > count as f64 * 0.99, "the heavy stack stays");
        }
    }

    #[test]
    fn deep_stacks_take_bounded_memory() {
        let mut stacks = Stacks::new(None);
        for index in 0..20_000u64 {
            let mut deep = vec![CallAddress { image: None, address: index }];
            deep.extend((0..500).map(|depth| CallAddress { image: Some(1), address: depth }));
            stacks.add(index, Of::default(), &deep);
            assert!(stacks.entries <= ENTRIES_MAX);
        }
    }
}
