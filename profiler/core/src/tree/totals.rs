//! Self and total of every function.

use std::collections::HashMap;

use crate::model::State;

use super::{Kind, Tree};

/// What one function cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionTotal {
    /// Index into [`Tree::functions`].
    pub function: usize,
    /// Samples in which it was the innermost frame.
    pub self_samples: u64,
    /// Samples in which it was anywhere on the stack, counted once however often it recurs.
    pub total_samples: u64,
    /// The line with most of its own samples, or, if it has none, with most of all: an index into
    /// [`Tree::locations`].
    pub location: Option<usize>,
}

impl Tree {
    /// The cost of each function in samples of the given states, hottest by self first.
    ///
    /// The report's own entries are left out; merged nodes are counted for none of their functions.
    pub fn function_totals(&self, states: &[State]) -> Vec<FunctionTotal> {
        let state_of = self.states();
        let included = |node: usize| states.contains(&state_of[node]);
        let mut sums = vec![(0_u64, 0_u64); self.functions.len()];
        // How many nodes of each function are on the path to the current node.
        let mut open_count = vec![0_usize; self.functions.len()];
        let mut path: Vec<usize> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            while let Some(last) = path.pop_if(|last| self.nodes[*last].end <= index) {
                open_count[self.nodes[last].function] -= 1;
            }
            if included(index) {
                sums[node.function].0 += node.self_samples;
                if open_count[node.function] == 0 {
                    sums[node.function].1 += node.total_samples;
                }
            }
            open_count[node.function] += 1;
            path.push(index);
        }

        let hottest = self.hottest_lines(included);
        let mut totals: Vec<FunctionTotal> = (0..self.functions.len())
            .filter(|function| self.functions[*function].kind == Kind::Function && sums[*function].1 > 0)
            .map(|function| FunctionTotal {
                function,
                self_samples: sums[function].0,
                total_samples: sums[function].1,
                location: hottest.get(&function).copied(),
            })
            .collect();
        totals.sort_by(|a, b| {
            let name = |total: &FunctionTotal| {
                let function = &self.functions[total.function];
                (&function.name, &function.image)
            };
            (b.self_samples, b.total_samples)
                .cmp(&(a.self_samples, a.total_samples))
                .then_with(|| name(a).cmp(&name(b)))
        });
        totals
    }

    fn hottest_lines(&self, included: impl Fn(usize) -> bool) -> HashMap<usize, usize> {
        let mut sums: HashMap<(usize, usize), (u64, u64)> = HashMap::new();
        for line in self.lines.iter().filter(|line| included(line.node)) {
            let sum = sums.entry((self.nodes[line.node].function, line.location)).or_default();
            sum.0 += line.self_samples;
            sum.1 += line.total_samples;
        }
        // Of equal lines the first in the source, as in the page.
        let rank = |location: usize, (self_samples, total_samples): (u64, u64)| {
            (self_samples, total_samples, std::cmp::Reverse(&self.locations[location]))
        };
        let mut hottest: HashMap<usize, (usize, (u64, u64))> = HashMap::new();
        for ((function, location), sum) in sums {
            let best = hottest.entry(function).or_insert((location, sum));
            if rank(location, sum) > rank(best.0, best.1) {
                *best = (location, sum);
            }
        }
        hottest.into_iter().map(|(function, (location, _))| (function, location)).collect()
    }
}
