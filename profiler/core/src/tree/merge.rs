//! Keeping a tree small enough to show: the smallest nodes become one for each caller.

use super::{Function, Inlined, Kind, Leaves, LineCount, Merged, Node, Own, Tree};

impl Tree {
    /// Merges the nodes with the fewest samples until at most `nodes_max` others are left; each
    /// caller gets one `[small nodes, merged]` for those of its callees that are gone. How many nodes
    /// and samples that concerns is in [`Tree::merged`]. A tree within the limit stays as it is.
    pub fn merge_small(self, nodes_max: usize) -> Tree {
        self.merge_small_with(nodes_max, &mut Leaves::default())
    }

    /// [`Tree::merge_small`] that keeps `leaves` in line.
    pub fn merge_small_with(self, nodes_max: usize, leaves: &mut Leaves) -> Tree {
        if self.nodes.len() <= nodes_max {
            return self;
        }
        let mut totals: Vec<u64> = self.nodes.iter().map(|node| node.total_samples).collect();
        totals.sort_unstable_by(|a, b| b.cmp(a));
        let below_samples = totals[nodes_max] + 1;

        let mut functions = self.functions;
        functions.push(Function { name: Kind::Merged.label(), image: String::new(), kind: Kind::Merged, layer: None });
        let merged_function = functions.len() - 1;
        let mut merged = Merged { nodes: 0, samples: 0, below_samples };
        let mut nodes: Vec<Node> = Vec::new();
        // Where the samples of each old node went, and whether it is still a node of its own.
        let mut place: Vec<usize> = Vec::with_capacity(self.nodes.len());
        let mut kept: Vec<bool> = Vec::with_capacity(self.nodes.len());
        // Siblings come largest first, so those to be merged end their caller's list, and a
        // merged node can be appended to as long as its caller is the same.
        for (index, node) in self.nodes.iter().enumerate() {
            let keep = node.total_samples >= below_samples || index == 0 || !is_code(&functions[node.function]);
            let keep = keep && kept.get(node.parent).is_none_or(|parent| *parent);
            kept.push(keep);
            if keep {
                place.push(nodes.len());
                let parent = if index == 0 { 0 } else { place[node.parent] };
                nodes.push(Node { parent, end: nodes.len() + 1, ..*node });
                continue;
            }
            merged.nodes += 1;
            if !kept[node.parent] {
                let into = place[node.parent];
                place.push(into);
                continue;
            }
            merged.samples += node.total_samples;
            let parent = place[node.parent];
            let last = nodes.len() - 1;
            if nodes[last].function == merged_function && nodes[last].parent == parent {
                nodes[last].self_samples += node.total_samples;
                nodes[last].total_samples += node.total_samples;
                place.push(last);
            } else {
                place.push(nodes.len());
                nodes.push(Node {
                    function: merged_function,
                    parent,
                    depth: node.depth,
                    end: nodes.len() + 1,
                    self_samples: node.total_samples,
                    total_samples: node.total_samples,
                    location: None,
                    inlined: Inlined::Never,
                    apart_ns: 0,
                });
            }
        }
        super::find_ends(&mut nodes);

        leaves.0.values_mut().for_each(|node| *node = place[*node]);
        let mut own: Vec<Own> = self.own.iter().map(|own| Own { node: place[own.node], ..*own }).collect();
        super::add_up(&mut own);
        let lines = self.lines.iter().filter(|line| kept[line.node]);
        let lines = lines.map(|line| LineCount { node: place[line.node], ..*line }).collect();
        Tree {
            functions,
            locations: self.locations,
            nodes,
            own,
            lines,
            tracks: self.tracks,
            processes: self.processes,
            merged,
            host: self.host,
        }
    }
}

fn is_code(function: &Function) -> bool {
    function.kind == Kind::Function
}
