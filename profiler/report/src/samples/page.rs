//! The aggregated profile as the page reads it: compact JSON, columns instead of objects.
//!
//! All texts are in one table, `strings`, and everything else refers to them by index. `nodes` are
//! columns in the order of a walk, so `depth` alone gives the tree; two siblings differ in function
//! or line, and the page makes of it the tree of functions that its reader selects. Samples are in
//! `timeline.cells`, packed by `pack`; the page adds up those slices, tracks and states that
//! the reader selects. Of host and guest the nodes are those of the merged view, and the page makes the others of it.

use std::collections::HashMap;

use base64::Engine as _;
use glass_profiler_core::model::{Profile, State};
use serde::Serialize;

use crate::samples::guest_tracks::{GuestTracks, divide};
use crate::samples::timeline::Timeline;
use crate::samples::variance::Errors;
use glass_profiler_core::names;
use glass_profiler_core::tree::{Function, Inlined, Kind, Tree};
use glass_profiler_core::view::View;

/// Nodes of the call tree that the page shows; the smallest beyond are merged, and counted.
pub const NODES_MAX: usize = 100_000;

/// Raised with every change that an older page would misread.
const VERSION: u32 = 3;

#[derive(Serialize)]
struct Data<'a> {
    version: u32,
    strings: Vec<&'a str>,
    functions: Functions,
    locations: Locations,
    nodes: Nodes,
    tracks: Vec<Track>,
    processes: Vec<Process>,
    timeline: Times,
    merged: MergedNodes,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<ErrorColumns>,
    /// Of a recording of host and guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostColumns>,
    /// Of a guest with processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<&'a GuestTracks>,
}

/// Whose code functions are, what was merged by time, and which tracks are the host's.
#[derive(Serialize)]
struct HostColumns {
    /// One letter for each function: its place in `Layer::ALL`, or `-`.
    layers: String,
    /// Nodes of segments that were merged by time, and how far from the rest they were sampled at most, in ns.
    apart: Vec<(usize, u64)>,
    /// Indices of tracks.
    tracks: Vec<usize>,
}

/// How many errors of independent samples a change of a share must exceed, for a difference: by function.
#[derive(Serialize)]
struct ErrorColumns {
    noise: f64,
    clear: f64,
    has_runs: bool,
    /// Factors of both for a function's own share, and for its share with callees.
    own: Vec<f64>,
    total: Vec<f64>,
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
}

#[derive(Serialize)]
struct Process {
    name: usize,
    /// With what it was before.
    label: usize,
    pid: u32,
    tracks: Vec<usize>,
}

#[derive(Serialize)]
struct Times {
    slice_ns: u64,
    slices: usize,
    duration_ns: u64,
    rate_hz: u32,
    /// Base64 of [`pack`].
    cells: String,
    /// Base64 of [`pack_samples`]; empty if there are too many.
    samples: String,
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

/// The data of the page that [`crate::html`] makes, safe to stand inside a `<script>` element.
pub fn json(profile: &Profile) -> String {
    let viewed = View::Merged.of(profile);
    let page = Page::new(&viewed.profile);
    page.json()
}

/// What a page of a recording is made from.
pub(crate) struct Page {
    pub tree: Tree,
    timeline: Timeline,
    guest: Option<GuestTracks>,
}

impl Page {
    /// Of a profile in the merged view.
    pub(crate) fn new(profile: &Profile) -> Page {
        let divided = divide(profile);
        let (tree, timeline) = by_line(divided.as_ref().map_or(profile, |(divided, _)| divided));
        Page { tree, timeline, guest: divided.map(|(_, guest)| guest) }
    }

    /// Whether it has tables of processes and threads.
    pub(crate) fn has_processes(&self) -> bool {
        self.guest.is_some()
    }

    pub(crate) fn json(&self) -> String {
        write(&self.tree, &self.timeline, None, self.guest.as_ref())
    }
}

/// What a page is made from: a tree by line, small enough to show, and its samples over time.
pub(crate) fn by_line(profile: &Profile) -> (Tree, Timeline) {
    let (tree, mut leaves) = Tree::build_by_line(profile);
    let tree = tree.merge_small_with(NODES_MAX, &mut leaves);
    let timeline = Timeline::build(profile, &leaves);
    (tree, timeline)
}

/// `errors` are those of a difference.
pub(crate) fn write(tree: &Tree, timeline: &Timeline, errors: Option<&Errors>, guest: Option<&GuestTracks>) -> String {
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
    let tracks = tree.tracks.iter().map(|track| Track { name: strings.add(&track.name), id: track.id }).collect();
    let processes = tree.processes.iter().map(|process| Process {
        name: strings.add(&process.name),
        label: strings.add(&process.label()),
        pid: process.pid,
        tracks: process.tracks.clone(),
    });
    let processes = processes.collect();
    let data = Data {
        version: VERSION,
        strings: strings.list.iter().map(String::as_str).collect(),
        functions,
        locations,
        nodes,
        tracks,
        processes,
        timeline: Times {
            slice_ns: timeline.slice_ns,
            slices: timeline.slices,
            duration_ns: timeline.duration_ns,
            rate_hz: timeline.rate_hz,
            cells: base64::engine::general_purpose::STANDARD.encode(pack(timeline)),
            samples: base64::engine::general_purpose::STANDARD.encode(pack_samples(timeline)),
        },
        merged: MergedNodes {
            nodes: tree.merged.nodes,
            samples: tree.merged.samples,
            below: tree.merged.below_samples,
        },
        errors: errors.map(|errors| error_columns(tree, errors)),
        host: tree.host.map(|_| host_columns(tree)),
        guest,
    };
    // Maps with odd keys and failing writers are the only ways for this to fail.
    let json = serde_json::to_string(&data).expect("columns of numbers and texts can be written");
    escape_for_script(&json)
}

fn host_columns(tree: &Tree) -> HostColumns {
    let letter = |function: &Function| function.layer.map_or('-', |layer| char::from(b'0' + layer.number() as u8));
    let apart = tree.nodes.iter().enumerate().map(|(index, node)| (index, node.apart_ns));
    let tracks = tree.tracks.iter().enumerate().filter(|(_, track)| track.is_host);
    HostColumns {
        layers: tree.functions.iter().map(letter).collect(),
        apart: apart.filter(|(_, apart_ns)| *apart_ns > 0).collect(),
        tracks: tracks.map(|(index, _)| index).collect(),
    }
}

fn error_columns(tree: &Tree, errors: &Errors) -> ErrorColumns {
    let round = |number: f64| (number * 1000.0).round() / 1000.0;
    let [noise, clear] = errors.limits().map(round);
    let factors = tree.functions.iter().map(|function| errors.factors(function).map(round));
    let (own, total) = factors.map(|[own, total]| (own, total)).unzip();
    ErrorColumns { noise, clear, has_runs: errors.has_runs(), own, total }
}

fn functions(tree: &Tree, strings: &mut Strings) -> Functions {
    let mut locations = vec![0; tree.functions.len()];
    // Where a function never runs, its line while spinning or idle is better than none.
    for states in [&[State::Spinning, State::Idle][..], &State::ACTIVE[..]] {
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
            Kind::In(state) => letter(state),
            Kind::Guest => 'g',
            Kind::Merged => 'm',
        });
    }
    columns
}

/// The kind of the functions that are parents of samples in a state (`STATE_KINDS` in profile.js).
fn letter(state: State) -> char {
    match state {
        State::Running => 'r',
        State::Spinning => 's',
        State::Idle => 'i',
        State::NeverStarted => 'n',
        State::Paused => 'p',
        State::Stolen => 't',
        State::InVmm => 'v',
        State::Unknown => 'u',
        State::Waiting => 'w',
    }
}

/// Entries as numbers of seven bits a byte, the lowest first, the highest bit of a byte set where
/// more follow.
///
/// Entries of one slice and track are a cell: slices since the cell before, track, entries, and for
/// each entry twice the nodes since the entry before, plus 1 where it has more than one sample; how
/// many more than two comes next. Most entries have one sample, so most take one or two bytes.
fn pack(timeline: &Timeline) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(timeline.entries.len() * 2);
    let mut last_slice = 0;
    for cell in timeline.entries.chunk_by(|a, b| (a.slice, a.track) == (b.slice, b.track)) {
        let (slice, track) = (cell[0].slice, cell[0].track);
        for number in [slice - last_slice, track, cell.len() as u32] {
            push_number(&mut bytes, number.into());
        }
        last_slice = slice;
        let mut last_node = 0;
        for entry in cell {
            let several = u64::from(entry.samples > 1);
            push_number(&mut bytes, u64::from(entry.node - last_node) * 2 + several);
            if several == 1 {
                push_number(&mut bytes, u64::from(entry.samples) - 2);
            }
            last_node = entry.node;
        }
    }
    bytes
}

/// Samples in order of time as numbers like those of [`pack`]: nanoseconds since the sample before, track, node.
fn pack_samples(timeline: &Timeline) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(timeline.samples.len() * 6);
    let mut before_ns = 0;
    for sample in &timeline.samples {
        for number in [sample.time_ns - before_ns, sample.track.into(), sample.node.into()] {
            push_number(&mut bytes, number);
        }
        before_ns = sample.time_ns;
    }
    bytes
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
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
