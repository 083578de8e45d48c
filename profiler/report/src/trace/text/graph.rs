//! A series as a graph of characters: how many so far, with the gaps marked, and how many in each slice.

use glass_profiler_core::trace::model::Trace;

use crate::trace::label::duration;
use crate::trace::over_time::{Gap, Series};

/// Marks of gaps.
pub(super) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
const SLICES: usize = 80;
const ROWS: usize = 12;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Value at the end of each slice: the count so far, or the counter's value.
fn heights(trace: &Trace, series: &Series, slice_ns: u64) -> Vec<i64> {
    let mut heights = Vec::with_capacity(SLICES);
    let mut index = 0;
    let mut value = series.values.first().copied().unwrap_or(0);
    for slice in 1..=SLICES as u64 {
        let end_ns = trace.start_ns.saturating_add(slice.saturating_mul(slice_ns));
        while series.times.get(index).is_some_and(|time| *time < end_ns) {
            value = series.values.get(index).copied().unwrap_or(index as i64 + 1);
            index += 1;
        }
        heights.push(value);
    }
    heights
}

pub(super) fn text(trace: &Trace, series: &Series, gaps: &[Gap]) -> String {
    let all_ns = (trace.end_ns - trace.start_ns).max(1);
    let slice_ns = all_ns.div_ceil(SLICES as u64).max(1);
    let heights = heights(trace, series, slice_ns);
    let first = if series.values.is_empty() { 0 } else { heights[0] };
    let low = heights.iter().copied().min().unwrap_or(0).min(first);
    let high = heights.iter().copied().max().unwrap_or(0);
    let range = (high as f64 - low as f64).max(1.0);
    let mut out = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            0 => low.to_string(),
            _ if row == ROWS - 1 => high.to_string(),
            _ => String::new(),
        };
        let cells: String = heights
            .iter()
            .map(|height| {
                let eighths = (*height as f64 - low as f64) / range * (ROWS * 8) as f64;
                EIGHTHS[(eighths.round() as i64 - row as i64 * 8).clamp(0, 8) as usize]
            })
            .collect();
        out.push_str(&format!("{label:>16} |{}\n", cells.trim_end()));
    }
    out.push_str(&format!("{:>16} +{}\n", "", "-".repeat(SLICES)));
    out.push_str(&format!("{:>16}  {}\n", "in each slice", rates(trace, series, slice_ns)));
    let marks = marks(trace, gaps, slice_ns);
    if !gaps.is_empty() {
        out.push_str(&format!("{:>16}  {}\n", "gaps", marks.trim_end()));
    }
    let end = duration(all_ns);
    out.push_str(&format!("{:>16}  0{:>width$}\n", "", end, width = SLICES - 1));
    out.push_str(&format!("{:>16}  a character is {}\n", "", duration(slice_ns)));
    out
}

/// How many moments lie in each slice, as bars.
fn rates(trace: &Trace, series: &Series, slice_ns: u64) -> String {
    let mut counts = [0u64; SLICES];
    for time in &series.times {
        let slice = time.saturating_sub(trace.start_ns) / slice_ns;
        counts[(slice as usize).min(SLICES - 1)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bars: String = counts.iter().map(|count| EIGHTHS[(count * 8).div_ceil(most) as usize]).collect();
    bars.trim_end().to_owned()
}

/// A letter wherever most of a slice lies in a gap; at least one for each gap.
fn marks(trace: &Trace, gaps: &[Gap], slice_ns: u64) -> String {
    let mut marks = [' '; SLICES];
    for (letter, gap) in LETTERS.chars().zip(gaps) {
        let slice = |time_ns: u64| ((time_ns.saturating_sub(trace.start_ns) / slice_ns) as usize).min(SLICES - 1);
        let middle = gap.start_ns + (gap.end_ns - gap.start_ns) / 2;
        marks[slice(middle)] = letter;
        let whole = slice(gap.start_ns) + 1..slice(gap.end_ns);
        marks[whole.start.min(whole.end)..whole.end].fill(letter);
    }
    marks.iter().collect()
}
