//! The difference of two recordings for a terminal.

use glass_profiler_core::model::{Profile, State};

use super::{COLUMNS, fit_name, line, recorded, wrap};
use crate::samples::difference::{Change, Difference, Verdict, length, remarks};
use glass_profiler_core::format::{count, cut_end, pad, percent};
use glass_profiler_core::names::printable;
use glass_profiler_core::tree::TrackShare;

const NAME_COLUMNS: usize = 34;

/// A table of at most 100 columns: what the recordings of both sides are, what makes them hard to compare, and
/// the `top` functions whose own share of the samples in which code ran changed most.
pub fn text(a: &[&Profile], b: &[&Profile], top: usize) -> String {
    let difference = Difference::build(a, b);
    let mut out = String::new();
    line(&mut out, &format!("Difference of recordings: B minus A, in points of each side's {}", difference.words));
    for (index, profiles) in [a, b].into_iter().enumerate() {
        side(&mut out, ["A", "B"][index], profiles, &difference.tree.tracks[index]);
    }
    let remarks = remarks(a, b);
    if !remarks.is_empty() {
        out.push_str("\nRemarks\n");
        remarks.iter().for_each(|remark| wrap(&mut out, "  ! ", remark));
    }
    only_in_one(&mut out, &difference);
    functions(&mut out, &difference, top);
    out
}

fn side(out: &mut String, name: &str, profiles: &[&Profile], share: &TrackShare) {
    for (profile, number) in profiles.iter().zip(1..) {
        let origin = &profile.origin;
        let guest = if origin.guest.is_empty() { "unnamed guest".to_string() } else { printable(&origin.guest) };
        let name = if profiles.len() == 1 { format!("{name} ") } else { format!("{name}{number}") };
        wrap(out, &format!("  {name} "), &format!("{guest}, recorded {}, {}", recorded(origin), length(profile)));
    }
    let all = share.states.all();
    let common = State::COMMON.map(|state| (state, share.states.of(state)));
    let states = common.into_iter().chain(share.states.rare());
    let states: Vec<String> =
        states.map(|(state, samples)| format!("{} {}", percent(samples, all), state.word())).collect();
    wrap(out, "     ", &format!("{} samples: {}", count(all), states.join(", ")));
}

fn only_in_one(out: &mut String, difference: &Difference) {
    out.push('\n');
    for (side, name) in ["A", "B"].into_iter().enumerate() {
        let (functions, samples) = difference.only_in(side);
        if functions > 0 {
            let share = percent(samples, difference.running[side]);
            wrap(
                out,
                "",
                &format!(
                    "Only in {name}: {} functions, with {share} of its {}",
                    count(functions as u64),
                    difference.words
                ),
            );
        }
    }
}

fn functions(out: &mut String, difference: &Difference, top: usize) {
    let [a, b] = difference.running;
    if a == 0 || b == 0 {
        line(out, "There are no running samples in one of them: nothing can be compared.");
        return;
    }
    let shown = &difference.functions[..top.min(difference.functions.len())];
    line(
        out,
        &format!(
            "Functions by change of self: {} of {}; 100 % = {} (A) and {} (B) {}",
            count(shown.len() as u64),
            count(difference.functions.len() as u64),
            count(a),
            count(b),
            difference.words
        ),
    );
    wrap(
        out,
        "",
        &format!(
            "± is what chance exceeds once in 22 times; ~ within it, ? perhaps chance, no mark: {}",
            difference.clear_word()
        ),
    );
    line(
        out,
        &format!(
            "{:>8} {:>8}  {:<14}  {:>8} {:>8}  {:<14} function",
            "self A", "self B", "change", "total A", "total B", "change"
        ),
    );
    for function in shown {
        let shares = |samples: [u64; 2]| format!("{:>8} {:>8}", percent(samples[0], a), percent(samples[1], b));
        let name = fit_name(&difference.tree.functions[function.function].name, NAME_COLUMNS);
        let row = format!(
            "{}  {}  {}  {} {}",
            shares(function.self_samples),
            pad(&points(difference.own(function)), 14),
            shares(function.total_samples),
            pad(&points(difference.total(function)), 14),
            name
        );
        line(out, &cut_end(&row, COLUMNS));
    }
}

/// `+1.6 ± 0.9 ?`
fn points(change: Change) -> String {
    let mark = match change.verdict {
        Verdict::Noise => " ~",
        Verdict::Unsure => " ?",
        Verdict::Clear => "",
    };
    format!("{:>+5.1} ± {:.1}{mark}", change.points, change.noise_points)
}
