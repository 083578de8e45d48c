//! The call tree of a profile, and what every function cost by itself and with its callees.
//!
//! Text and page are both made from [`Tree`]. It holds no names of samples and no times: a million
//! samples become as many nodes as there are distinct call paths. Broken stacks, spinning and
//! idling have roots of their own, distinguished by [`Kind`] and not by their names, so nothing that
//! was recorded can pass for them, nor they for it.

mod build;
mod merge;
mod totals;

pub use totals::FunctionTotal;

use std::collections::HashMap;

use crate::identity::ProcessTracks;
pub use crate::kind::{Broken, Kind};
use crate::layer::Layer;
use crate::model::{HostSide, Profile, Sample, State, StateCounts};

use build::Detail;

/// A call tree. Nodes are in the order of a walk: each before its callees, siblings next to each
/// other with the largest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// What nodes refer to; entry 0 is the root's.
    pub functions: Vec<Function>,
    /// Where nodes and functions spend their time.
    pub locations: Vec<Location>,
    /// Entry 0 is the root, which all samples share.
    pub nodes: Vec<Node>,
    /// Each node's own samples by track, in order of track and node; none is zero.
    pub own: Vec<Own>,
    /// How often each line of each node was seen, in order of node.
    pub lines: Vec<LineCount>,
    /// One for each of the profile's tracks, and one more if samples name a track that is not there.
    pub tracks: Vec<TrackShare>,
    /// The processes whose threads are tracks.
    pub processes: Vec<ProcessTracks>,
    /// What [`Tree::merge_small`] did.
    pub merged: Merged,
    /// The side of the host of the profile, if it has one and is in a view.
    pub host: Option<HostSide>,
}

/// A function, or one of the report's own entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Printable: see [`crate::names::printable`].
    pub name: String,
    /// The program or library; empty for the report's own entries.
    pub image: String,
    /// What it stands for.
    pub kind: Kind,
    /// In a view of host and guest: whose code it is.
    pub layer: Option<Layer>,
}

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Printable.
    pub file: String,
    /// From 1 on.
    pub line: Option<u32>,
}

/// A function as called by one chain of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Index into [`Tree::functions`].
    pub function: usize,
    /// Index of the caller; the root names itself.
    pub parent: usize,
    /// 0 for the root.
    pub depth: usize,
    /// Index just after the last callee's last callee.
    pub end: usize,
    /// Samples of the node itself.
    pub self_samples: u64,
    /// Samples of the node and of everything below it.
    pub total_samples: u64,
    /// Its most frequent line: an index into [`Tree::locations`].
    pub location: Option<usize>,
    /// Whether the compiler inlined it into its caller.
    pub inlined: Inlined,
    /// Of code in a segment that was merged by time: how far from the rest it was sampled at most, in nanoseconds; else 0.
    pub apart_ns: u64,
}

/// Whether the code of a node was inlined into its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inlined {
    /// In no sample.
    #[default]
    Never,
    /// In some samples.
    Sometimes,
    /// In all samples.
    Always,
}

/// A node's own samples on one track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Own {
    /// Index into [`Tree::tracks`].
    pub track: usize,
    /// Index into [`Tree::nodes`].
    pub node: usize,
    /// How many.
    pub samples: u64,
}

/// How often a line of a node was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// Index into [`Tree::nodes`].
    pub node: usize,
    /// Index into [`Tree::locations`].
    pub location: usize,
    /// As the innermost frame.
    pub self_samples: u64,
    /// As any frame.
    pub total_samples: u64,
}

/// What one track was doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrackShare {
    /// Printable.
    pub name: String,
    /// The vCPU's index or the thread id; `None` for samples of tracks that are not in the recording.
    pub id: Option<u64>,
    /// Its samples.
    pub states: StateCounts,
    /// A thread of the host, beside a machine that is the guest.
    pub is_host: bool,
    /// Its samples are in no node: the view leaves the host out.
    pub is_left_out: bool,
}

/// Which nodes were too small to be kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merged {
    /// How many nodes are gone.
    pub nodes: u64,
    /// How many samples they held: each is still in its caller's `[small nodes, merged]`.
    pub samples: u64,
    /// Nodes with fewer samples than this were merged; 0 if none was.
    pub below_samples: u64,
}

/// The node of each sample: an index into [`Tree::nodes`] by stack and state.
#[derive(Debug, Clone, Default)]
pub struct Leaves(HashMap<(usize, State), usize>);

impl Leaves {
    /// The node of a sample of the profile that the tree was built from.
    ///
    /// # Panics
    /// For a sample of another profile, or of a track that the view leaves out.
    pub fn node(&self, sample: &Sample) -> usize {
        self.0[&(sample.stack as usize, sample.state)]
    }
}

impl Tree {
    /// Counts the samples of a profile. The cost grows with samples plus distinct stacks times depth.
    pub fn build(profile: &Profile) -> Tree {
        build::build(profile, Detail::Functions).0
    }

    /// A finer tree: siblings differ in function or line, and the location of a node is that of all its
    /// samples. Also gives the node of each sample.
    pub fn build_by_line(profile: &Profile) -> (Tree, Leaves) {
        build::build(profile, Detail::Lines)
    }

    /// The function of a node.
    pub fn function(&self, node: usize) -> &Function {
        &self.functions[self.nodes[node].function]
    }

    /// What the track was doing in the samples of each node. But for trees by line, [`State::Running`] includes [`State::InVmm`].
    pub fn states(&self) -> Vec<State> {
        let mut states = vec![State::Running; self.nodes.len()];
        for index in 1..self.nodes.len() {
            states[index] = match self.function(index).kind {
                Kind::In(state) => state,
                _ => states[self.nodes[index].parent],
            };
        }
        states
    }

    /// Samples by state, of all tracks that the view does not leave out.
    pub fn counts(&self) -> StateCounts {
        let counted = self.tracks.iter().filter(|track| !track.is_left_out);
        counted.fold(StateCounts::default(), |mut sum, track| {
            sum += track.states;
            sum
        })
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// Fills in [`Node::end`], given that each node's own is the index after itself.
fn find_ends(nodes: &mut [Node]) {
    for index in (1..nodes.len()).rev() {
        let Node { parent, end, .. } = nodes[index];
        nodes[parent].end = nodes[parent].end.max(end);
    }
}

/// Sorts, and makes one entry of all with the same track and node.
fn add_up(own: &mut Vec<Own>) {
    own.sort_unstable();
    own.dedup_by(|next, sum| {
        let same = (next.track, next.node) == (sum.track, sum.node);
        if same {
            sum.samples += next.samples;
        }
        same
    });
}
