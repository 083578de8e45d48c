//! From samples to a call tree.
//!
//! Stacks are sorted by their functions, so that all calls of one node follow each other: the tree
//! grows along one open path, and nothing is looked up. (The first version found children in hash
//! maps; a million distinct stacks with eleven million nodes took it more than a minute.)

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::identity::processes;
use crate::model::{Frame, Profile, State};

use super::{Broken, Function, Inlined, Kind, Leaves, LineCount, Location, Merged, Node, Own, TrackShare, Tree};
use crate::layer::Layer;
use crate::names::printable;
use crate::view::Hosts;

/// What makes two calls one node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// The same functions.
    Functions,
    /// The same lines of the same functions.
    Lines,
}

pub(super) fn build(profile: &Profile, detail: Detail) -> (Tree, Leaves) {
    let (is_host, left_out) = (Hosts::of(profile).tracks(profile), profile.left_out());
    let mut tracks: Vec<TrackShare> = profile
        .tracks
        .iter()
        .zip(is_host.into_iter().zip(left_out))
        .map(|(track, (is_host, is_left_out))| TrackShare {
            name: printable(&track.name),
            id: Some(track.id),
            is_host,
            is_left_out,
            ..TrackShare::default()
        })
        .collect();
    let mut groups: HashMap<Group, u64> = HashMap::new();
    for sample in &profile.samples {
        let track = (sample.track as usize).min(profile.tracks.len());
        if track == tracks.len() {
            tracks.push(TrackShare { name: "(unknown track)".to_string(), ..TrackShare::default() });
        }
        tracks[track].states.add(sample.state, 1);
        if tracks[track].is_left_out {
            continue;
        }
        *groups.entry(Group { stack: sample.stack as usize, state: sample.state, track }).or_default() += 1;
    }

    let names = Names::new(profile);
    let mut paths = Paths { detail, steps: Vec::new(), keys: Vec::new() };
    let mut calls: Vec<Call> =
        groups.into_iter().map(|(group, samples)| paths.add(profile, &names, group, samples)).collect();
    calls.sort_unstable_by(|a, b| {
        let keys = |call: &Call| &paths.keys[call.path.clone()];
        keys(a).cmp(keys(b)).then_with(|| (a.group.stack, a.group.track).cmp(&(b.group.stack, b.group.track)))
    });
    let mut growing = Growing::default();
    growing.open(0, (0, 0));
    for call in &calls {
        growing.add(call, &paths);
    }
    let (mut tree, leaves) = growing.finish(names, tracks, &calls);
    tree.processes = processes(profile);
    tree.host = profile.host;
    (tree, leaves)
}

/// Samples that differ only in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    stack: usize,
    state: State,
    track: usize,
}

/// The tables that nodes refer to, and the place in them of each of the profile's frames.
struct Names {
    functions: Vec<Function>,
    entries: HashMap<(Kind, Option<Layer>), usize>,
    locations: Vec<Location>,
    frames: Vec<Step>,
}

/// One frame of a path.
#[derive(Clone, Copy)]
struct Step {
    function: usize,
    location: Option<usize>,
    inlined: bool,
    apart_ns: u64,
}

impl Names {
    fn new(profile: &Profile) -> Names {
        let root = Function { name: Kind::Root.label(), image: String::new(), kind: Kind::Root, layer: None };
        let mut functions = vec![root];
        let mut locations = Vec::new();
        let mut function_of: HashMap<(&str, &str, Option<Layer>), usize> = HashMap::new();
        let mut location_of: HashMap<(&str, Option<u32>), usize> = HashMap::new();
        let mut frames = Vec::with_capacity(profile.frames.len());
        for Frame { function, file, line, image, inlined, layer, entry, apart_ns, .. } in &profile.frames {
            if entry.is_some() {
                // Its function is made below, after those of code.
                frames.push(Step { function: 0, location: None, inlined: false, apart_ns: 0 });
                continue;
            }
            let function = *function_of.entry((function, image, *layer)).or_insert_with(|| {
                let image = if image.is_empty() { String::new() } else { printable(image) };
                functions.push(Function { name: printable(function), image, kind: Kind::Function, layer: *layer });
                functions.len() - 1
            });
            let line = line.filter(|line| *line > 0);
            let location = file.as_deref().map(|file| {
                *location_of.entry((file, line)).or_insert_with(|| {
                    locations.push(Location { file: printable(file), line });
                    locations.len() - 1
                })
            });
            frames.push(Step { function, location, inlined: *inlined, apart_ns: *apart_ns });
        }
        let mut names = Names { functions, entries: HashMap::new(), locations, frames };
        // Made in one order, whatever the samples are, so that a profile has one tree.
        for kind in Kind::parents() {
            names.add_entry(kind, None);
        }
        let entries = || profile.frames.iter().map(|frame| frame.entry.map(|kind| (kind, frame.layer)));
        for (kind, layer) in entries().flatten().collect::<BTreeSet<_>>() {
            names.add_entry(kind, layer);
        }
        for (frame, entry) in entries().enumerate() {
            if let Some((kind, layer)) = entry {
                names.frames[frame] = names.entry(kind, layer);
            }
        }
        names
    }

    /// Adds an entry of the report's own, if it is not there.
    fn add_entry(&mut self, kind: Kind, layer: Option<Layer>) {
        let next = self.functions.len();
        if *self.entries.entry((kind, layer)).or_insert(next) == next {
            self.functions.push(Function { name: kind.label(), image: String::new(), kind, layer });
        }
    }

    fn entry(&self, kind: Kind, layer: Option<Layer>) -> Step {
        Step { function: self.entries[&(kind, layer)], location: None, inlined: false, apart_ns: 0 }
    }
}

/// What one node has in common: a function, and a location plus 1 where lines are distinguished.
type Key = (usize, usize);

/// The ways from the root to the innermost functions, one after the other.
struct Paths {
    detail: Detail,
    steps: Vec<Step>,
    /// One for each of `steps`, for comparing.
    keys: Vec<Key>,
}

/// Samples with one path.
struct Call {
    /// Where in [`Paths`].
    path: Range<usize>,
    group: Group,
    samples: u64,
}

impl Paths {
    fn add(&mut self, profile: &Profile, names: &Names, group: Group, samples: u64) -> Call {
        let start = self.steps.len();
        let is_active = group.state.is_active();
        // A page lets its reader choose by states, also among those in which code ran.
        if !is_active || (self.detail == Detail::Lines && group.state != State::Running) {
            self.steps.push(names.entry(Kind::In(group.state), None));
        }
        let stack = profile.stacks.get(group.stack);
        let sound = stack.filter(|stack| stack.frames.iter().all(|frame| (*frame as usize) < names.frames.len()));
        let broken = match sound {
            None => Some(Broken::Missing),
            // A track that sleeps or spins need not say where.
            Some(stack) if stack.frames.is_empty() && !is_active => None,
            Some(stack) if stack.frames.is_empty() => Some(Broken::of(stack.end).unwrap_or(Broken::NoFrames)),
            Some(stack) => Broken::of(stack.end),
        };
        self.steps.extend(broken.map(|broken| names.entry(Kind::Broken(broken), None)));
        let frames = sound.map_or(&[][..], |stack| &stack.frames);
        self.steps.extend(frames.iter().map(|frame| names.frames[*frame as usize]));
        let by_line = self.detail == Detail::Lines;
        let line = |step: &Step| if by_line { step.location.map_or(0, |location| location + 1) } else { 0 };
        self.keys.extend(self.steps[start..].iter().map(|step| (step.function, line(step))));
        Call { path: start..self.steps.len(), group, samples }
    }
}

/// A tree in the order of the sorted paths.
#[derive(Default)]
struct Growing {
    nodes: Vec<Sprout>,
    /// From the root to the last node that was added to.
    path: Vec<Open>,
    lines: Vec<LineCount>,
    own: Vec<Own>,
}

struct Sprout {
    function: usize,
    key: Key,
    parent: usize,
    self_samples: u64,
    total_samples: u64,
    inlined_samples: u64,
    apart_ns: u64,
}

/// A node that may still get samples.
struct Open {
    node: usize,
    /// Location, own samples, all samples; in order of location.
    lines: Vec<(usize, u64, u64)>,
}

impl Growing {
    fn open(&mut self, function: usize, key: Key) {
        let parent = self.path.last().map_or(0, |open| open.node);
        self.nodes.push(Sprout {
            function,
            key,
            parent,
            self_samples: 0,
            total_samples: 0,
            inlined_samples: 0,
            apart_ns: 0,
        });
        self.path.push(Open { node: self.nodes.len() - 1, lines: Vec::new() });
    }

    /// Closes all nodes deeper than the first `depth`.
    fn close(&mut self, depth: usize) {
        for Open { node, lines } in self.path.drain(depth..) {
            self.lines.extend(lines.into_iter().map(|(location, self_samples, total_samples)| LineCount {
                node,
                location,
                self_samples,
                total_samples,
            }));
        }
    }

    fn add(&mut self, call: &Call, paths: &Paths) {
        let steps = &paths.steps[call.path.clone()];
        let keys = &paths.keys[call.path.clone()];
        let same =
            keys.iter().zip(&self.path[1..]).take_while(|(key, open)| self.nodes[open.node].key == **key).count();
        self.close(1 + same);
        for (step, key) in steps.iter().zip(keys).skip(same) {
            self.open(step.function, *key);
        }
        for (depth, step) in steps.iter().enumerate() {
            let Open { node, lines } = &mut self.path[1 + depth];
            if step.inlined {
                self.nodes[*node].inlined_samples += call.samples;
            }
            self.nodes[*node].apart_ns = self.nodes[*node].apart_ns.max(step.apart_ns);
            let Some(location) = step.location else { continue };
            let own = if depth + 1 == steps.len() { call.samples } else { 0 };
            match lines.binary_search_by_key(&location, |line| line.0) {
                Ok(index) => {
                    lines[index].1 += own;
                    lines[index].2 += call.samples;
                }
                Err(index) => lines.insert(index, (location, own, call.samples)),
            }
        }
        let leaf = self.path.last().map_or(0, |open| open.node);
        self.nodes[leaf].self_samples += call.samples;
        self.own.push(Own { track: call.group.track, node: leaf, samples: call.samples });
    }

    /// Sums up, and puts siblings in order.
    fn finish(mut self, names: Names, tracks: Vec<TrackShare>, calls: &[Call]) -> (Tree, Leaves) {
        self.close(0);
        for index in (0..self.nodes.len()).rev() {
            let total = self.nodes[index].total_samples + self.nodes[index].self_samples;
            self.nodes[index].total_samples = total;
            if index > 0 {
                let parent = self.nodes[index].parent;
                self.nodes[parent].total_samples += total;
            }
        }
        let (order, place) = self.walk(&names);
        let mut nodes = self.place_nodes(&order, &place);
        for line in &mut self.lines {
            line.node = place[line.node];
        }
        self.lines.sort_unstable_by(|a, b| {
            (a.node, Reverse(a.total_samples), &names.locations[a.location]).cmp(&(
                b.node,
                Reverse(b.total_samples),
                &names.locations[b.location],
            ))
        });
        for line in &self.lines {
            // The first line of a node is its most frequent one.
            nodes[line.node].location.get_or_insert(line.location);
        }
        for own in &mut self.own {
            own.node = place[own.node];
        }
        // There is one entry for each call up to here.
        let leaf = |(call, own): (&Call, &Own)| ((call.group.stack, call.group.state), own.node);
        let leaves = Leaves(calls.iter().zip(&self.own).map(leaf).collect());
        super::add_up(&mut self.own);
        let Names { functions, locations, .. } = names;
        let merged = Merged::default();
        (
            Tree {
                functions,
                locations,
                nodes,
                own: self.own,
                lines: self.lines,
                tracks,
                processes: Vec::new(),
                merged,
                host: None,
            },
            leaves,
        )
    }

    /// The order in which nodes are walked, and each node's place in it: siblings by kind, then by
    /// samples, then by name.
    fn walk(&self, names: &Names) -> (Vec<usize>, Vec<usize>) {
        const NONE: usize = usize::MAX;
        let mut first_child = vec![NONE; self.nodes.len()];
        let mut next_sibling = vec![NONE; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            next_sibling[index] = first_child[node.parent];
            first_child[node.parent] = index;
        }
        let rank = |index: &usize| {
            let Sprout { function, total_samples, key, .. } = self.nodes[*index];
            let Function { name, image, kind, .. } = &names.functions[function];
            (*kind, Reverse(total_samples), name, image, key)
        };
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut place = vec![0; self.nodes.len()];
        let mut waiting = vec![0];
        while let Some(node) = waiting.pop() {
            place[node] = order.len();
            order.push(node);
            let children = waiting.len();
            let mut child = first_child[node];
            while child != NONE {
                waiting.push(child);
                child = next_sibling[child];
            }
            // The last is taken first.
            waiting[children..].sort_unstable_by(|a, b| rank(b).cmp(&rank(a)));
        }
        (order, place)
    }

    fn place_nodes(&self, order: &[usize], place: &[usize]) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::with_capacity(order.len());
        for (index, old) in order.iter().enumerate() {
            let sprout = &self.nodes[*old];
            let parent = place[sprout.parent];
            nodes.push(Node {
                function: sprout.function,
                parent,
                depth: if index == 0 { 0 } else { nodes[parent].depth + 1 },
                end: index + 1,
                self_samples: sprout.self_samples,
                total_samples: sprout.total_samples,
                location: None,
                inlined: match sprout.inlined_samples {
                    0 => Inlined::Never,
                    all if all == sprout.total_samples => Inlined::Always,
                    _ => Inlined::Sometimes,
                },
                apart_ns: sprout.apart_ns,
            });
        }
        super::find_ends(&mut nodes);
        nodes
    }
}
