//! The aggregated profile as the page reads it: compact JSON, columns instead of objects.
//!
//! All texts are in one table, `strings`, and everything else refers to them by index. `nodes` are
//! columns in the order of a walk, so `depth` alone gives the tree. Each track has the nodes' own
//! samples as two columns, node (as the difference from the one before) and samples; the page adds
//! up those tracks and states that the reader asks for. A future column set, for instance one for
//! each slice of time, can be added up by the same code.

use std::collections::HashMap;

use glass_profile::model::State;
use serde::Serialize;

use crate::names;
use crate::tree::{Inlined, Kind, Tree};

/// Raised with every change that an older page would misread.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Data<'a> {
    version: u32,
    strings: Vec<&'a str>,
    functions: Functions,
    locations: Locations,
    nodes: Nodes,
    tracks: Vec<Track>,
    merged: MergedNodes,
}

#[derive(Serialize, Default)]
struct Functions {
    name: Vec<usize>,
    short: Vec<usize>,
    group: Vec<usize>,
    image: Vec<usize>,
    kind: String,
    /// Index into `locations` plus 1, or 0.
    location: Vec<usize>,
}

#[derive(Serialize, Default)]
struct Locations {
    file: Vec<usize>,
    /// 0 if it is not known.
    line: Vec<u32>,
}

#[derive(Serialize, Default)]
struct Nodes {
    function: Vec<usize>,
    depth: Vec<usize>,
    /// Index into `locations` plus 1, or 0.
    location: Vec<usize>,
    /// One digit for each node: 0 never, 1 sometimes, 2 always inlined.
    inlined: String,
}

#[derive(Serialize)]
struct Track {
    name: usize,
    id: Option<u64>,
    running: u64,
    spinning: u64,
    idle: u64,
    /// Difference from the node before.
    node: Vec<usize>,
    samples: Vec<u64>,
}

#[derive(Serialize)]
struct MergedNodes {
    nodes: u64,
    samples: u64,
    below: u64,
}

/// Each text once.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    index: HashMap<String, usize>,
}

impl Strings {
    fn add(&mut self, text: &str) -> usize {
        if let Some(index) = self.index.get(text) {
            return *index;
        }
        self.list.push(text.to_string());
        self.index.insert(text.to_string(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// The data of a page, safe to stand inside a `<script>` element.
pub fn json(tree: &Tree) -> String {
    let mut strings = Strings::default();
    let functions = functions(tree, &mut strings);
    let mut locations = Locations::default();
    for location in &tree.locations {
        locations.file.push(strings.add(&location.file));
        locations.line.push(location.line.unwrap_or(0));
    }
    let mut nodes = Nodes::default();
    for node in &tree.nodes {
        nodes.function.push(node.function);
        nodes.depth.push(node.depth);
        nodes.location.push(node.location.map_or(0, |index| index + 1));
        nodes.inlined.push(match node.inlined {
            Inlined::Never => '0',
            Inlined::Sometimes => '1',
            Inlined::Always => '2',
        });
    }
    let tracks = tracks(tree, &mut strings);
    let data = Data {
        version: VERSION,
        strings: strings.list.iter().map(String::as_str).collect(),
        functions,
        locations,
        nodes,
        tracks,
        merged: MergedNodes {
            nodes: tree.merged.nodes,
            samples: tree.merged.samples,
            below: tree.merged.below_samples,
        },
    };
    // Maps with odd keys and failing writers are the only ways for this to fail.
    let json = serde_json::to_string(&data).expect("columns of numbers and texts can be written");
    escape_for_script(&json)
}

fn functions(tree: &Tree, strings: &mut Strings) -> Functions {
    let mut locations = vec![0; tree.functions.len()];
    // Where a function never runs, its line while spinning or idle is better than none.
    for states in [&[State::Spinning, State::Idle][..], &[State::Running][..]] {
        for total in tree.function_totals(states) {
            locations[total.function] = total.location.map_or(0, |index| index + 1);
        }
    }
    let mut columns = Functions { location: locations, ..Functions::default() };
    for function in &tree.functions {
        let code = function.kind == Kind::Function;
        columns.name.push(strings.add(&function.name));
        let short = if code { names::short(&function.name) } else { function.name.clone() };
        columns.short.push(strings.add(&short));
        let group = if code { names::group(&function.name, &function.image) } else { String::new() };
        columns.group.push(strings.add(&group));
        columns.image.push(strings.add(&function.image));
        columns.kind.push(match function.kind {
            Kind::Function => 'f',
            Kind::Root => 'r',
            Kind::Broken(_) => 'b',
            Kind::Spinning => 's',
            Kind::Idle => 'i',
            Kind::Merged => 'm',
        });
    }
    columns
}

fn tracks(tree: &Tree, strings: &mut Strings) -> Vec<Track> {
    let mut tracks: Vec<Track> = tree
        .tracks
        .iter()
        .map(|track| Track {
            name: strings.add(&track.name),
            id: track.id,
            running: track.running,
            spinning: track.spinning,
            idle: track.idle,
            node: Vec::new(),
            samples: Vec::new(),
        })
        .collect();
    let mut last = vec![0; tracks.len()];
    for own in &tree.own {
        let track = &mut tracks[own.track];
        track.node.push(own.node - last[own.track]);
        track.samples.push(own.samples);
        last[own.track] = own.node;
    }
    tracks
}

/// Writes what could end a `<script>` element, or a line of an old parser, as JSON escapes. Such
/// characters stand only inside JSON's strings, so the meaning stays the same.
fn escape_for_script(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            '\u{2028}' => safe.push_str("\\u2028"),
            '\u{2029}' => safe.push_str("\\u2029"),
            _ => safe.push(c),
        }
    }
    safe
}
