//! From samples to a call tree.

use std::collections::HashMap;

use glass_profile::model::{Frame, Profile, Stack, State};

use super::{Broken, Function, Inlined, Kind, LineCount, Location, Node, Own, TrackShare, Tree};
use crate::names::printable;

pub(super) fn build(profile: &Profile) -> Tree {
    let mut tracks: Vec<TrackShare> = profile
        .tracks
        .iter()
        .map(|track| TrackShare { name: printable(&track.name), id: Some(track.id), ..TrackShare::default() })
        .collect();
    let mut groups: HashMap<Group, u64> = HashMap::new();
    for sample in &profile.samples {
        let track = (sample.track as usize).min(profile.tracks.len());
        if track == tracks.len() {
            tracks.push(TrackShare { name: "(unknown track)".to_string(), ..TrackShare::default() });
        }
        match sample.state {
            State::Running => tracks[track].running += 1,
            State::Spinning => tracks[track].spinning += 1,
            State::Idle => tracks[track].idle += 1,
        }
        let group = Group { stack: sample.stack as usize, state: StateOrder::of(sample.state), track };
        *groups.entry(group).or_default() += 1;
    }
    let mut groups: Vec<(Group, u64)> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(group, _)| *group);

    let mut builder = Builder::new(profile);
    for (group, samples) in groups {
        builder.add(profile, group, samples);
    }
    builder.finish(tracks)
}

/// Samples that differ only in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Group {
    stack: usize,
    state: StateOrder,
    track: usize,
}

/// [`State`] with an order, so that trees do not depend on a hash's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum StateOrder {
    Running,
    Spinning,
    Idle,
}

impl StateOrder {
    fn of(state: State) -> StateOrder {
        match state {
            State::Running => StateOrder::Running,
            State::Spinning => StateOrder::Spinning,
            State::Idle => StateOrder::Idle,
        }
    }
}

/// A node before it has its place in the walk.
struct Growing {
    function: usize,
    parent: usize,
    self_samples: u64,
    total_samples: u64,
    inlined_samples: u64,
}

/// One frame (a function at a line) under one caller.
struct Edge {
    node: usize,
    frame: usize,
    self_samples: u64,
    total_samples: u64,
}

struct Builder {
    functions: Vec<Function>,
    own_entries: HashMap<Kind, usize>,
    locations: Vec<Location>,
    /// Index of the function and of the location of each of the profile's frames.
    frames: Vec<(usize, Option<usize>)>,
    nodes: Vec<Growing>,
    /// Found by caller and frame: the fast path.
    edges: HashMap<(usize, usize), usize>,
    edge_counts: Vec<Edge>,
    /// Found by caller and function.
    children: HashMap<(usize, usize), usize>,
    own: HashMap<(usize, usize), u64>,
}

impl Builder {
    fn new(profile: &Profile) -> Builder {
        let root = Function { name: Kind::Root.label(), image: String::new(), kind: Kind::Root };
        let mut functions = vec![root];
        let mut locations = Vec::new();
        let mut function_of: HashMap<(&str, &str), usize> = HashMap::new();
        let mut location_of: HashMap<(&str, Option<u32>), usize> = HashMap::new();
        let mut frames = Vec::with_capacity(profile.frames.len());
        for Frame { function, file, line, image, .. } in &profile.frames {
            let function = *function_of.entry((function, image)).or_insert_with(|| {
                let image = if image.is_empty() { String::new() } else { printable(image) };
                functions.push(Function { name: printable(function), image, kind: Kind::Function });
                functions.len() - 1
            });
            let line = line.filter(|line| *line > 0);
            let location = file.as_deref().map(|file| {
                *location_of.entry((file, line)).or_insert_with(|| {
                    locations.push(Location { file: printable(file), line });
                    locations.len() - 1
                })
            });
            frames.push((function, location));
        }
        let nodes = vec![Growing { function: 0, parent: 0, self_samples: 0, total_samples: 0, inlined_samples: 0 }];
        Builder {
            functions,
            own_entries: HashMap::from([(Kind::Root, 0)]),
            locations,
            frames,
            nodes,
            edges: HashMap::new(),
            edge_counts: Vec::new(),
            children: HashMap::new(),
            own: HashMap::new(),
        }
    }

    /// Adds samples that share their stack, state and track.
    fn add(&mut self, profile: &Profile, group: Group, samples: u64) {
        let mut node = match group.state {
            StateOrder::Running => 0,
            StateOrder::Spinning => self.entry(0, Kind::Spinning),
            StateOrder::Idle => self.entry(0, Kind::Idle),
        };
        let known = |stack: &&Stack| stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len());
        let (frames, broken) = match profile.stacks.get(group.stack).filter(known) {
            None => (&[][..], Some(Broken::Missing)),
            // A track that sleeps or spins need not say where.
            Some(stack) if stack.frames.is_empty() && group.state != StateOrder::Running => (&[][..], None),
            Some(stack) if stack.frames.is_empty() => {
                (&[][..], Some(Broken::of(stack.end).unwrap_or(Broken::NoFrames)))
            }
            Some(stack) => (&stack.frames[..], Broken::of(stack.end)),
        };
        if let Some(broken) = broken {
            node = self.entry(node, Kind::Broken(broken));
        }
        let mut last_edge = None;
        for frame in frames {
            let frame = *frame as usize;
            let edge = self.edge(node, frame);
            let counts = &mut self.edge_counts[edge];
            counts.total_samples += samples;
            node = counts.node;
            if profile.frames[frame].inlined {
                self.nodes[node].inlined_samples += samples;
            }
            last_edge = Some(edge);
        }
        if let Some(edge) = last_edge {
            self.edge_counts[edge].self_samples += samples;
        }
        self.nodes[node].self_samples += samples;
        *self.own.entry((group.track, node)).or_default() += samples;
    }

    /// The child of `parent` for one of the report's own entries.
    fn entry(&mut self, parent: usize, kind: Kind) -> usize {
        let functions = &mut self.functions;
        let function = *self.own_entries.entry(kind).or_insert_with(|| {
            functions.push(Function { name: kind.label(), image: String::new(), kind });
            functions.len() - 1
        });
        self.child(parent, function)
    }

    fn child(&mut self, parent: usize, function: usize) -> usize {
        let nodes = &mut self.nodes;
        *self.children.entry((parent, function)).or_insert_with(|| {
            nodes.push(Growing { function, parent, self_samples: 0, total_samples: 0, inlined_samples: 0 });
            nodes.len() - 1
        })
    }

    fn edge(&mut self, parent: usize, frame: usize) -> usize {
        if let Some(edge) = self.edges.get(&(parent, frame)) {
            return *edge;
        }
        let node = self.child(parent, self.frames[frame].0);
        self.edge_counts.push(Edge { node, frame, self_samples: 0, total_samples: 0 });
        self.edges.insert((parent, frame), self.edge_counts.len() - 1);
        self.edge_counts.len() - 1
    }

    /// Sums up, and puts the nodes in the order of a walk.
    fn finish(mut self, tracks: Vec<TrackShare>) -> Tree {
        // A node is made after its parent, so the sums flow upwards in one pass.
        for index in (0..self.nodes.len()).rev() {
            let total = self.nodes[index].total_samples + self.nodes[index].self_samples;
            self.nodes[index].total_samples = total;
            if index > 0 {
                let parent = self.nodes[index].parent;
                self.nodes[parent].total_samples += total;
            }
        }
        let (order, place) = self.walk();
        let mut nodes: Vec<Node> = Vec::with_capacity(order.len());
        for (index, old) in order.iter().enumerate() {
            let growing = &self.nodes[*old];
            let parent = place[growing.parent];
            nodes.push(Node {
                function: growing.function,
                parent,
                depth: if index == 0 { 0 } else { nodes[parent].depth + 1 },
                end: index + 1,
                self_samples: growing.self_samples,
                total_samples: growing.total_samples,
                location: None,
                inlined: match growing.inlined_samples {
                    0 => Inlined::Never,
                    all if all == growing.total_samples => Inlined::Always,
                    _ => Inlined::Sometimes,
                },
            });
        }
        for index in (1..nodes.len()).rev() {
            let (parent, end) = (nodes[index].parent, nodes[index].end);
            nodes[parent].end = nodes[parent].end.max(end);
        }
        let lines = self.lines(&place);
        for line in &lines {
            // The first line of a node is its most frequent one.
            nodes[line.node].location.get_or_insert(line.location);
        }
        let mut own: Vec<Own> = self
            .own
            .iter()
            .map(|((track, node), samples)| Own { track: *track, node: place[*node], samples: *samples })
            .collect();
        own.sort_unstable();
        Tree {
            functions: self.functions,
            locations: self.locations,
            nodes,
            own,
            lines,
            tracks,
            merged: super::Merged::default(),
        }
    }

    /// The order in which nodes are walked, and each node's place in it: siblings by kind, then by
    /// samples, then by name.
    fn walk(&self) -> (Vec<usize>, Vec<usize>) {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            children[node.parent].push(index);
        }
        for siblings in &mut children {
            siblings.sort_unstable_by(|a, b| self.rank(*a).cmp(&self.rank(*b)));
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut place = vec![0; self.nodes.len()];
        let mut waiting = vec![0];
        while let Some(node) = waiting.pop() {
            place[node] = order.len();
            order.push(node);
            waiting.extend(children[node].iter().rev());
        }
        (order, place)
    }

    fn rank(&self, node: usize) -> (Kind, std::cmp::Reverse<u64>, &str, &str) {
        let Growing { function, total_samples, .. } = self.nodes[node];
        let Function { name, image, kind } = &self.functions[function];
        (*kind, std::cmp::Reverse(total_samples), name, image)
    }

    fn lines(&self, place: &[usize]) -> Vec<LineCount> {
        let mut sums: HashMap<(usize, usize), (u64, u64)> = HashMap::new();
        for edge in &self.edge_counts {
            if let Some(location) = self.frames[edge.frame].1 {
                let sum = sums.entry((place[edge.node], location)).or_default();
                sum.0 += edge.self_samples;
                sum.1 += edge.total_samples;
            }
        }
        let mut lines: Vec<LineCount> = sums
            .into_iter()
            .map(|((node, location), (self_samples, total_samples))| LineCount {
                node,
                location,
                self_samples,
                total_samples,
            })
            .collect();
        lines.sort_unstable_by(|a, b| {
            (a.node, std::cmp::Reverse(a.total_samples), &self.locations[a.location]).cmp(&(
                b.node,
                std::cmp::Reverse(b.total_samples),
                &self.locations[b.location],
            ))
        });
        lines
    }
}
