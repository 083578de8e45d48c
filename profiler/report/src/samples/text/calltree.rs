//! The call tree for a terminal.

use std::fmt::Write as _;

use super::{COLUMNS, by_layer, cut_path, fit_name, line};
use glass_profiler_core::format::{count, cut_end, pad, percent};
use glass_profiler_core::tree::{Kind, Tree};

/// Levels by which a line is indented; deeper ones say theirs.
const INDENT_LEVELS: usize = 24;
const NAME_COLUMNS: usize = 72;
const PLACE_COLUMNS: usize = 24;
/// A chain of calls is shown in short from this length on, and then this much of either end.
const CHAIN_MIN: usize = 24;
const CHAIN_ENDS_SHOWN: usize = 6;
/// More lines than this are too many to read.
const LINES_MAX: usize = 500;

/// Writes the nodes with at least `min_percent` of the samples in which code ran, each with its own callees below
/// it, heaviest first; what is left out of a caller's callees is one line.
pub(super) fn call_tree(out: &mut String, tree: &Tree, min_percent: f64) {
    let sums = tree.counts();
    let active = sums.active();
    if active == 0 {
        return;
    }
    let states = tree.states();
    let counts = |node: usize| {
        states[node].is_active() && tree.nodes[node].total_samples as f64 * 100.0 >= min_percent * active as f64
    };
    out.push('\n');
    let words = sums.active_words();
    line(out, &format!("Call tree: nodes with at least {min_percent} % of {} {words}", count(active)));
    line(out, &format!("{:>7} {:>7}  function", "total %", "self %"));
    let mut lines = 0;
    let mut node = 1;
    while node < tree.nodes.len() {
        if !counts(node) {
            node = tree.nodes[node].end;
            continue;
        }
        if lines == LINES_MAX {
            line(out, &format!("... more than {LINES_MAX} lines: give a larger --min"));
            return;
        }
        // Where each only calls the next, the ends say it all: imports of an interpreter are a hundred frames deep.
        let chain = only_calls(tree, node);
        if chain >= CHAIN_MIN {
            let ends = CHAIN_ENDS_SHOWN;
            (node..node + ends).for_each(|node| node_line(out, tree, node, active));
            line(out, &format!("{:>17}... {} calls, each the only one of the one before", "", chain - 2 * ends));
            node += chain - ends;
            lines += ends + 1;
            continue;
        }
        node_line(out, tree, node, active);
        lines += 1;
        node += 1;
    }
}

/// How many nodes there are from this one on of which each is only what calls the next one.
fn only_calls(tree: &Tree, first: usize) -> usize {
    let mut node = first;
    // A callee with as many samples as its caller is the only one that has any.
    while node + 1 < tree.nodes[node].end && tree.nodes[node + 1].total_samples == tree.nodes[node].total_samples {
        node += 1;
    }
    node - first
}

fn node_line(out: &mut String, tree: &Tree, index: usize, active: u64) {
    let node = &tree.nodes[index];
    let function = tree.function(index);
    let level = node.depth - 1;
    let mut indent = " ".repeat(level.min(INDENT_LEVELS));
    if level > INDENT_LEVELS {
        let _ = write!(indent, "({level}) ");
    }
    let own = if node.self_samples == 0 { String::new() } else { percent(node.self_samples, active) };
    let width = NAME_COLUMNS - PLACE_COLUMNS;
    let place = match (node.location, function.kind) {
        (Some(location), _) => tree.locations[location].to_string(),
        (None, Kind::Function) => function.image.clone(),
        _ => String::new(),
    };
    let mark = match function.layer.filter(|_| by_layer(tree)) {
        Some(layer) => format!(" [{}]", layer.word()),
        None => String::new(),
    };
    let columns = width.saturating_sub(indent.len() + mark.len()).max(16);
    let name = format!("{indent}{}{mark}", fit_name(&function.name, columns));
    let row = format!(
        "{:>7} {own:>7}  {} {}",
        percent(node.total_samples, active),
        pad(&name, COLUMNS - PLACE_COLUMNS - 20),
        cut_path(&place, PLACE_COLUMNS)
    );
    line(out, &cut_end(&row, COLUMNS));
}
