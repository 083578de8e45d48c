//! The call tree for a terminal.

use std::fmt::Write as _;

use glass_profile::model::State;

use super::{COLUMNS, cut_path, fit_name, line};
use crate::format::{count, cut_end, pad, percent};
use crate::tree::{Kind, Tree};

/// Levels by which a line is indented; deeper ones say theirs.
const INDENT_LEVELS: usize = 24;
const NAME_COLUMNS: usize = 72;
const PLACE_COLUMNS: usize = 24;
/// More lines than this help nobody.
const LINES_MAX: usize = 500;

/// Writes the nodes with at least `min_percent` of the running samples, each with its own callees below
/// it, heaviest first; what is left out of a caller's callees is one line.
pub(super) fn call_tree(out: &mut String, tree: &Tree, min_percent: f64) {
    let running = tree.samples_in(State::Running);
    if running == 0 {
        return;
    }
    let states = tree.states();
    let counts = |node: usize| {
        states[node] == State::Running && tree.nodes[node].total_samples as f64 * 100.0 >= min_percent * running as f64
    };
    out.push('\n');
    line(out, &format!("Call tree: nodes with at least {min_percent} % of {} running samples", count(running)));
    line(out, &format!("{:>7} {:>7}  function", "total %", "self %"));
    let mut lines = 0;
    let mut node = 1;
    while node < tree.nodes.len() {
        if !counts(node) {
            node = tree.nodes[node].end;
            continue;
        }
        if lines == LINES_MAX {
            line(out, &format!("... more than {LINES_MAX} lines: ask for a larger --min"));
            return;
        }
        node_line(out, tree, node, running);
        lines += 1;
        node += 1;
    }
}

fn node_line(out: &mut String, tree: &Tree, index: usize, running: u64) {
    let node = &tree.nodes[index];
    let function = tree.function(index);
    let level = node.depth - 1;
    let mut indent = " ".repeat(level.min(INDENT_LEVELS));
    if level > INDENT_LEVELS {
        let _ = write!(indent, "({level}) ");
    }
    let own = if node.self_samples == 0 { String::new() } else { percent(node.self_samples, running) };
    let width = NAME_COLUMNS - PLACE_COLUMNS;
    let place = match (node.location, function.kind) {
        (Some(location), _) => tree.locations[location].to_string(),
        (None, Kind::Function) => function.image.clone(),
        _ => String::new(),
    };
    let name = format!("{indent}{}", fit_name(&function.name, width.saturating_sub(indent.len()).max(16)));
    let row = format!(
        "{:>7} {own:>7}  {} {}",
        percent(node.total_samples, running),
        pad(&name, COLUMNS - PLACE_COLUMNS - 20),
        cut_path(&place, PLACE_COLUMNS)
    );
    line(out, &cut_end(&row, COLUMNS));
}
