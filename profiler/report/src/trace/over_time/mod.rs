//! How often something happened over time, and what happened while it did not.
//!
//! ```
//! use glass_profiler_core::trace::{build, example};
//! use glass_profiler_report::trace::over_time::{Explainer, gaps, series};
//! let trace = build(&example::queue(20_000, 1));
//! let series = series(&trace, "complete disk 0 write").expect("there is such a series");
//! let explainer = Explainer::new(&trace);
//! for gap in gaps(&series.times, trace.end_ns, 5) {
//!     println!("{}", explainer.explain(gap.start_ns, gap.end_ns));
//! }
//! ```

mod explain;
mod overlap;
mod series;

pub use explain::Explainer;
pub use series::{Gap, Series, gaps, names, series};

/// Gaps that are explained, in the text and in the page.
pub(crate) const GAPS_MAX: usize = 12;
