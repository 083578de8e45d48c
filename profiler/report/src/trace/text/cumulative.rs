//! The table of functions.

use glass_profiler_core::format::count;
use glass_profiler_core::trace::model::Trace;

use super::Settings;
use crate::trace::{functions, sheets};

pub(super) fn text(trace: &Trace, settings: &Settings) -> String {
    let sheet = sheets::functions(trace, &settings.hide, settings.min_ns);
    let number = functions::totals(trace, &settings.hide).len();
    let mut out = format!("Functions: {} calls of {}", count(trace.calls.len() as u64), count(number as u64));
    if !settings.hide.is_empty() {
        out.push_str(&format!(", time of {} counts for their callers", settings.hide.join(", ")));
    }
    out.push('\n');
    out.push_str(&sheet.lines());
    out
}
