//! The summary for a terminal.

mod calltree;
mod difference;
mod processes;

pub use difference::text as difference;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use glass_profiler_core::model::{Distribution, Origin, Profile, State, StateCounts};
use glass_profiler_core::view::{HostSide, View};
use unicode_width::UnicodeWidthStr;

use crate::samples::cost::cards;
use glass_profiler_core::format::{count, cut_end, cut_start, date, duration, pad, percent};
use glass_profiler_core::names::printable;
use glass_profiler_core::tree::{FunctionTotal, Tree};

/// No line is wider.
const COLUMNS: usize = 100;
/// Columns for a function's name, and for its place.
const NAME_COLUMNS: usize = 35;
const PLACE_COLUMNS: usize = 25;
/// The same where a column between them has the mode of the code.
const NAME_COLUMNS_BY_LAYER: usize = 30;
const LAYER_COLUMNS: usize = 12;
const PLACE_COLUMNS_BY_LAYER: usize = 17;
/// Tracks that get a line of their own; the rest share one.
const TRACKS_MAX: usize = 16;

/// [`text`] with the call tree below it, without nodes that have less than `min_percent` of the samples in which code ran.
pub fn text_with_tree(profile: &Profile, top: usize, min_percent: f64) -> String {
    let viewed = View::Guest.of(profile);
    let tree = Tree::build(&viewed.profile);
    let mut out = summary(&viewed.profile, &tree, top);
    calltree::call_tree(&mut out, &tree, min_percent);
    out
}

/// A summary of at most 100 columns: where the profile comes from, the profiler overhead, what each
/// track was doing, and the `top` hottest functions by self. A recording of host and guest is shown in the view that the profile is
/// in; without one, the guest only.
pub fn text(profile: &Profile, top: usize) -> String {
    let viewed = View::Guest.of(profile);
    summary(&viewed.profile, &Tree::build(&viewed.profile), top)
}

/// [`text`] of a profile whose tree is already there.
pub(crate) fn summary(profile: &Profile, tree: &Tree, top: usize) -> String {
    let mut out = String::new();
    origin(&mut out, &profile.origin);
    if let Some(only) = &profile.only {
        wrap(&mut out, "  ", &only.sentence());
    }
    out.push_str("\nProfiler overhead\n");
    for card in cards(profile) {
        wrap(&mut out, &format!("  {}", pad(card.name, 10)), &format!("{}: {}", card.headline, card.detail));
    }
    if !profile.warnings.is_empty() {
        out.push_str("\nWarnings\n");
        for warning in &profile.warnings {
            wrap(&mut out, "  ! ", &printable(warning));
        }
    }
    tracks(&mut out, tree);
    processes::tables(&mut out, profile);
    host_side(&mut out, tree);
    functions(&mut out, tree, top);
    out
}

/// Where and how a recording was made, in a sentence.
pub(crate) fn origin_line(origin: &Origin) -> String {
    let mut said = format!("recorded {}", recorded(origin));
    for (word, value) in [("on", &origin.host), ("by", &origin.recorder), ("through", &origin.backend)] {
        if !value.is_empty() {
            let _ = write!(said, " {word} {}", printable(value));
        }
    }
    let _ = write!(said, ", {}", duration(origin.duration_ns));
    if origin.rate_hz > 0 {
        let _ = write!(said, " at {} Hz", count(origin.rate_hz.into()));
    }
    said
}

/// When it was recorded, if that is known.
pub(crate) fn recorded(origin: &Origin) -> String {
    match origin.start_unix_ns {
        0 => "at an unknown time".to_string(),
        start => date(start),
    }
}

/// Where the names come from, in a sentence, if files are named: a process has its own.
pub(crate) fn symbols_line(origin: &Origin) -> Option<String> {
    (!origin.symbols.is_empty()).then(|| format!("symbols from {}", printable(&origin.symbols)))
}

fn origin(out: &mut String, origin: &Origin) {
    let guest = if origin.guest.is_empty() { "unnamed guest".to_string() } else { printable(&origin.guest) };
    line(out, &guest);
    wrap(out, "  ", &origin_line(origin));
    if let Some(symbols) = symbols_line(origin) {
        line(out, &format!("  {}", cut_start(&symbols, COLUMNS - 2)));
    }
}

/// A line of the table of tracks: a process with all its threads, a thread, a vCPU.
struct Row {
    name: String,
    /// Indices into [`Tree::tracks`].
    tracks: Vec<usize>,
    states: StateCounts,
}

fn tracks(out: &mut String, tree: &Tree) {
    let rows = rows(tree);
    let heading = match (tree.host, tree.processes.is_empty()) {
        (None, true) => "Tracks",
        (None, false) => "Processes and threads",
        (Some(_), _) => "Tracks of the guest and of the host",
    };
    let common = common_states(tree);
    let heads: String = common.iter().map(|state| format!(" {:>10}", state.word())).collect();
    line(out, &format!("\n{} {:>12}{heads}", pad(heading, 36), "samples"));
    // The largest, in their order. A process has at least as many samples as each of its threads, and is in front of them.
    let mut kept: Vec<usize> = (0..rows.len()).collect();
    kept.sort_by_key(|row| Reverse(rows[*row].states.all()));
    kept.truncate(if rows.len() > TRACKS_MAX { TRACKS_MAX - 1 } else { rows.len() });
    kept.sort_unstable();
    let mut rest: BTreeSet<usize> = (0..tree.tracks.len()).collect();
    for row in kept.iter().map(|index| &rows[*index]) {
        track_line(out, &common, &row.name, &row.states);
        row.tracks.iter().for_each(|track| _ = rest.remove(track));
    }
    if !rest.is_empty() {
        let name = format!("{} more", count(rest.len() as u64));
        track_line(out, &common, &name, &sum(tree, rest.iter()));
    }
    if tree.tracks.len() > 1 {
        let has_left_out = tree.tracks.iter().any(|track| track.is_left_out);
        track_line(out, &common, if has_left_out { "all of the guest" } else { "all" }, &tree.counts());
    }
}

/// Of a recording of host and guest: what the view shows, and what was merged by time.
fn host_side(out: &mut String, tree: &Tree) {
    let Some(HostSide { view, apart, .. }) = tree.host else { return };
    out.push_str("\nHost and guest\n");
    let others: Vec<&str> = View::ALL.into_iter().filter(|other| *other != view).map(View::name).collect();
    wrap(out, "  View      ", &format!("{} (others: --view {})", view.sentence(), others.join(", --view ")));
    if let Some(sentence) = merged_by_time(&apart) {
        wrap(out, "  By time   ", &sentence);
    }
}

/// What was merged by time, and how far apart it was sampled, in a sentence; `None` if nothing was.
pub(crate) fn merged_by_time(apart: &Distribution) -> Option<String> {
    (apart.count > 0).then(|| {
        format!(
            "segments of the host in {} samples were merged by time: sampled {} (median) to {} (maximum) apart from the guest's",
            count(apart.count),
            duration(apart.median_ns),
            duration(apart.max_ns)
        )
    })
}

fn rows(tree: &Tree) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut of_none: BTreeSet<usize> = (0..tree.tracks.len()).collect();
    let mut row = |name, tracks: &[usize]| {
        rows.push(Row { name, tracks: tracks.to_vec(), states: sum(tree, tracks.iter()) });
    };
    // The guest's own first; its processes are those of the host then.
    let is_guest = |index: &usize| tree.host.is_some() && !tree.tracks[*index].is_host;
    for index in (0..tree.tracks.len()).filter(is_guest) {
        row(tree.tracks[index].name.clone(), &[index]);
        of_none.remove(&index);
    }
    for process in &tree.processes {
        row(process.label(), &process.tracks);
        for index in &process.tracks {
            of_none.remove(index);
            // The only thread of a process is the process.
            if let Some(track) = tree.tracks.get(*index).filter(|_| process.tracks.len() > 1) {
                row(format!("  {} {}", track.name, track.id.unwrap_or(0)), &[*index]);
            }
        }
    }
    of_none.into_iter().for_each(|index| row(tree.tracks[index].name.clone(), &[index]));
    rows
}

fn sum<'a>(tree: &Tree, tracks: impl Iterator<Item = &'a usize>) -> StateCounts {
    let states = tracks.filter_map(|index| Some(tree.tracks.get(*index)?.states));
    states.fold(StateCounts::default(), |mut sum, states| {
        sum += states;
        sum
    })
}

/// The states that have a column: running, and of the others that are not rare those of a sample. Threads of a process neither spin nor idle.
fn common_states(tree: &Tree) -> Vec<State> {
    let has = |state: State| tree.tracks.iter().any(|track| track.states.of(state) > 0);
    let others = [State::Spinning, State::Idle].into_iter().filter(|state| has(*state));
    std::iter::once(State::Running).chain(others).collect()
}

fn track_line(out: &mut String, common: &[State], name: &str, states: &StateCounts) {
    let all = states.all();
    let name = pad(&cut_end(name, 34), 34);
    if all > 0 && states.of(State::NeverStarted) == all {
        let width = 11 * common.len() - 1;
        return line(out, &format!("  {name} {:>12} {:>width$}", count(all), State::NeverStarted.word()));
    }
    let shares: String = common.iter().map(|state| format!(" {:>10}", percent(states.of(*state), all))).collect();
    let mut row = format!("  {name} {:>12}{shares}", count(all));
    let rare = states.rare().map(|(state, samples)| format!("{} {}", percent(samples, all), state.word()));
    let rare = rare.collect::<Vec<_>>().join(", ");
    if row.chars().count() + rare.chars().count() + 2 > COLUMNS {
        line(out, &row);
        return line(out, &format!("    {rare}"));
    }
    if !rare.is_empty() {
        row.push_str("  ");
    }
    line(out, &(row + &rare));
}

fn functions(out: &mut String, tree: &Tree, top: usize) {
    let counts = tree.counts();
    let active = counts.active();
    let totals = tree.function_totals(&State::ACTIVE);
    let shown = &totals[..top.min(totals.len())];
    out.push('\n');
    if active == 0 {
        line(out, "No sample found code running: there are no functions to show.");
        return;
    }
    line(
        out,
        &format!(
            "Hottest functions by self: {} of {}; 100 % = {} {}",
            count(shown.len() as u64),
            count(totals.len() as u64),
            count(active),
            counts.active_words()
        ),
    );
    let name = match by_layer(tree) {
        true => format!("{} {}", pad("function", NAME_COLUMNS_BY_LAYER), pad("mode", LAYER_COLUMNS)),
        false => pad("function", NAME_COLUMNS),
    };
    line(out, &format!("{:>10} {:>7} {:>10} {:>7}  {name} {}", "self", "self %", "total", "total %", "hottest line"));
    for total in shown {
        function_line(out, tree, total, active);
    }
}

/// Whether functions of the guest and of the host are beside each other.
pub(crate) fn by_layer(tree: &Tree) -> bool {
    tree.host.is_some_and(|host| host.view.is_by_layer())
}

fn function_line(out: &mut String, tree: &Tree, total: &FunctionTotal, active: u64) {
    let function = &tree.functions[total.function];
    let (name, place_columns) = match by_layer(tree) {
        true => {
            let name = pad(&fit_name(&function.name, NAME_COLUMNS_BY_LAYER), NAME_COLUMNS_BY_LAYER);
            let layer = function.layer.map_or("", |layer| layer.word());
            (format!("{name} {}", pad(layer, LAYER_COLUMNS)), PLACE_COLUMNS_BY_LAYER)
        }
        false => (pad(&fit_name(&function.name, NAME_COLUMNS), NAME_COLUMNS), PLACE_COLUMNS),
    };
    let place = total.location.map_or_else(|| function.image.clone(), |location| tree.locations[location].to_string());
    line(
        out,
        &format!(
            "{:>10} {:>7} {:>10} {:>7}  {name} {}",
            count(total.self_samples),
            percent(total.self_samples, active),
            count(total.total_samples),
            percent(total.total_samples, active),
            cut_path(&place, place_columns)
        ),
    );
}

/// The name, or its short form where it is too wide.
fn fit_name(name: &str, columns: usize) -> String {
    match name.width() > columns {
        true => cut_end(&glass_profiler_core::names::short(name), columns),
        false => name.to_string(),
    }
}

/// Cuts a path at its front, at a directory if one is left.
fn cut_path(path: &str, columns: usize) -> String {
    let cut = cut_start(path, columns);
    match cut.strip_prefix('…').and_then(|rest| rest.find('/').map(|at| &rest[at..])) {
        Some(rest) => format!("…{rest}"),
        None => cut,
    }
}

/// Writes one line, cut if it is too wide after all (a sample count of twenty digits).
fn line(out: &mut String, text: &str) {
    for part in text.split('\n') {
        out.push_str(cut_end(part, COLUMNS).trim_end());
        out.push('\n');
    }
}

/// Writes a sentence on as many lines as it takes.
fn wrap(out: &mut String, first: &str, sentence: &str) {
    let indent = " ".repeat(first.width());
    let mut row = first.to_string();
    let mut empty = true;
    for word in sentence.split(' ') {
        if !empty && row.width() + 1 + word.width() > COLUMNS {
            line(out, &row);
            row = indent.clone();
            empty = true;
        }
        if !empty {
            row.push(' ');
        }
        row.push_str(word);
        empty = false;
    }
    line(out, &row);
}
