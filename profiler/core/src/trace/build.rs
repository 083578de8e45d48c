//! From what was copied out of a guest to what it means.

use super::model::Trace;
use super::raw::RawTrace;

/// Makes the tables of a trace.
pub fn build(raw: &RawTrace) -> Trace {
    Trace { event_count: raw.event_count(), ..Trace::default() }
}
