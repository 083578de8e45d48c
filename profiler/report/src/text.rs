//! The summary for a terminal.

use std::fmt::Write as _;

use glass_profile::model::{Cost, Origin, Profile, State};
use unicode_width::UnicodeWidthStr;

use crate::format::{count, cut_end, cut_start, date, duration, pad, percent};
use crate::names::printable;
use crate::tree::{FunctionTotal, TrackShare, Tree};

/// No line is wider.
const COLUMNS: usize = 100;
/// Columns for a function's name and for its place, if both are long.
const NAME_COLUMNS: usize = 39;
const PLACE_COLUMNS: usize = 23;
/// Tracks that get a line of their own; the rest share one.
const TRACKS_MAX: usize = 16;

/// A summary of at most 100 columns: where the profile comes from, what looking cost, what each
/// track was doing, and the `top` hottest functions by self.
pub fn text(profile: &Profile, top: usize) -> String {
    let tree = Tree::build(profile);
    let mut out = String::new();
    origin(&mut out, &profile.origin);
    out.push_str("\nCost of looking\n");
    for (name, value) in cost_lines(&profile.cost, profile.origin.duration_ns) {
        line(&mut out, &format!("  {} {value}", pad(name, 9)));
    }
    if !profile.warnings.is_empty() {
        out.push_str("\nWarnings\n");
        for warning in &profile.warnings {
            wrap(&mut out, "  ! ", &printable(warning));
        }
    }
    tracks(&mut out, &tree);
    functions(&mut out, &tree, top);
    out
}

/// What the recording cost, as names and sentences: the same in text and page.
pub(crate) fn cost_lines(cost: &Cost, duration_ns: u64) -> Vec<(&'static str, String)> {
    let wanted = cost.samples_wanted;
    let samples = format!(
        "{} wanted, {} taken, {} lost ({}), {} late ({})",
        count(wanted),
        count(cost.samples_taken),
        count(cost.samples_lost),
        percent(cost.samples_lost, wanted),
        count(cost.samples_late),
        percent(cost.samples_late, cost.samples_taken)
    );
    let stacks = format!("{} broken ({})", count(cost.stacks_broken), percent(cost.stacks_broken, cost.samples_taken));
    let pause = if cost.pause.count == 0 {
        "none: taking a sample does not stop the guest".to_string()
    } else {
        format!(
            "median {}, 99 % within {}, longest {}; {} in all ({} of the recording)",
            duration(cost.pause.median_ns),
            duration(cost.pause.p99_ns),
            duration(cost.pause.max_ns),
            duration(cost.pause.sum_ns),
            percent(cost.pause.sum_ns, duration_ns)
        )
    };
    let profiler = format!(
        "{} of CPU time ({} of one core)",
        duration(cost.profiler_cpu_ns),
        percent(cost.profiler_cpu_ns, duration_ns)
    );
    vec![("samples", samples), ("stacks", stacks), ("pauses", pause), ("profiler", profiler)]
}

/// Where and how a recording was taken, in a sentence.
pub(crate) fn origin_line(origin: &Origin) -> String {
    let mut said = format!("recorded {}", date(origin.start_unix_ns));
    for (word, value) in [("on", &origin.host), ("by", &origin.recorder), ("through", &origin.backend)] {
        if !value.is_empty() {
            let _ = write!(said, " {word} {}", printable(value));
        }
    }
    let _ = write!(said, ", {} at {} Hz", duration(origin.duration_ns), count(origin.rate_hz.into()));
    said
}

fn origin(out: &mut String, origin: &Origin) {
    let guest = if origin.guest.is_empty() { "unnamed guest".to_string() } else { printable(&origin.guest) };
    line(out, &guest);
    wrap(out, "  ", &origin_line(origin));
    let symbols = match origin.symbols.is_empty() {
        true => "none: functions have no names".to_string(),
        false => cut_start(&printable(&origin.symbols), COLUMNS - "  symbols ".len()),
    };
    line(out, &format!("  symbols {symbols}"));
}

fn tracks(out: &mut String, tree: &Tree) {
    line(
        out,
        &format!("\n{} {:>12} {:>10} {:>10} {:>10}", pad("Tracks", 36), "samples", "running", "spinning", "idle"),
    );
    let shown = if tree.tracks.len() > TRACKS_MAX { TRACKS_MAX - 1 } else { tree.tracks.len() };
    let (first, rest) = tree.tracks.split_at(shown);
    for track in first {
        track_line(out, &track.name, track);
    }
    if !rest.is_empty() {
        track_line(out, &format!("{} more", count(rest.len() as u64)), &sum(rest));
    }
    if tree.tracks.len() > 1 {
        track_line(out, "all", &sum(&tree.tracks));
    }
}

fn sum(tracks: &[TrackShare]) -> TrackShare {
    tracks.iter().fold(TrackShare::default(), |sum, track| TrackShare {
        running: sum.running + track.running,
        spinning: sum.spinning + track.spinning,
        idle: sum.idle + track.idle,
        ..sum
    })
}

fn track_line(out: &mut String, name: &str, track: &TrackShare) {
    let all = track.samples();
    let name = pad(&cut_end(name, 34), 34);
    line(
        out,
        &format!(
            "  {name} {:>12} {:>10} {:>10} {:>10}",
            count(all),
            percent(track.running, all),
            percent(track.spinning, all),
            percent(track.idle, all)
        ),
    );
}

fn functions(out: &mut String, tree: &Tree, top: usize) {
    let running = tree.samples_in(State::Running);
    let totals = tree.function_totals(&[State::Running]);
    let shown = &totals[..top.min(totals.len())];
    out.push('\n');
    if running == 0 {
        line(out, "No sample found the guest running: there are no functions to show.");
        return;
    }
    line(
        out,
        &format!(
            "Hottest functions by self: {} of {}; 100 % = {} running samples",
            count(shown.len() as u64),
            count(totals.len() as u64),
            count(running)
        ),
    );
    line(out, &format!("{:>11} {:>8} {:>11} {:>8}  {}", "self", "self %", "total", "total %", "function"));
    for total in shown {
        function_line(out, tree, total, running);
    }
}

fn function_line(out: &mut String, tree: &Tree, total: &FunctionTotal, running: u64) {
    let numbers = format!(
        "{:>11} {:>8} {:>11} {:>8}  ",
        count(total.self_samples),
        percent(total.self_samples, running),
        count(total.total_samples),
        percent(total.total_samples, running)
    );
    let function = &tree.functions[total.function];
    let place = total.location.map_or_else(|| function.image.clone(), |location| tree.locations[location].to_string());
    let room = COLUMNS.saturating_sub(numbers.width() + 1);
    // Whichever of the two is short leaves its room to the other.
    let place_columns = place.width().min(PLACE_COLUMNS.max(room.saturating_sub(function.name.width())));
    let name_columns = NAME_COLUMNS.max(room.saturating_sub(place_columns)).min(room);
    let name =
        if function.name.width() > name_columns { crate::names::short(&function.name) } else { function.name.clone() };
    let name = cut_end(&name, name_columns);
    let place = cut_start(&place, room.saturating_sub(name.width()).min(place_columns));
    line(out, &format!("{numbers}{} {place}", pad(&name, NAME_COLUMNS.min(room.saturating_sub(place.width())))));
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
