//! A trace for a terminal: what is in it, and where the time of calls, tasks, devices and spans went.

mod calls;
mod cumulative;
mod events;
mod graph;
mod path;
mod summary;
mod timeline;

pub use calls::HIDDEN_DEFAULT;
pub use path::dominating_wait;
pub use summary::summary;

use glass_profiler_core::trace::model::Trace;

use crate::trace::sheets;

/// What [`text`] shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// What is in the trace, and what a reader should know.
    Summary,
    /// Every call: start, nested function, duration.
    Calls,
    /// Functions, or tasks, devices and waits where no function was traced.
    Cumulative,
    /// Tasks: how often and how long they ran, and what they waited for.
    Tasks,
    /// What was waited for, how long, and who ended it.
    Waits,
    /// Devices: requests, bytes, latency, depth.
    Devices,
    /// How often something happened over time, and what happened while it did not.
    Events,
    /// Where the time of one span went, and of all of its name.
    Path,
    /// Cores, tasks and devices as tracks of characters.
    Timeline,
}

impl View {
    /// All of them.
    pub const ALL: [View; 9] = [
        View::Summary,
        View::Calls,
        View::Cumulative,
        View::Tasks,
        View::Waits,
        View::Devices,
        View::Events,
        View::Path,
        View::Timeline,
    ];
}

/// How [`text`] shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Calls and parts of paths that took less are left out.
    pub min_ns: u64,
    /// Libraries whose functions are left out, though not those that they call.
    pub hide: Vec<String>,
    /// The series of [`View::Events`].
    pub event: Option<String>,
    /// The span of [`View::Path`] and [`View::Calls`]: `NAME`, `NAME#3`, `NAME#median`.
    pub span: Option<String>,
}

/// One view of a trace, in lines of at most 100 columns; an error lists what there is to choose from.
pub fn text(trace: &Trace, view: View, settings: &Settings) -> Result<String, String> {
    match view {
        View::Summary => Ok(summary(trace)),
        View::Calls => calls::text(trace, settings),
        View::Cumulative if trace.calls.is_empty() => Ok([tasks(trace), waits(trace), devices(trace)].join("\n")),
        View::Cumulative => Ok(cumulative::text(trace, settings)),
        View::Tasks => Ok([tasks(trace), waits(trace)].join("\n")),
        View::Waits if trace.mpi_calls.is_empty() => Ok(waits(trace)),
        View::Waits => Ok([waits(trace), mpi_waits(trace), mpi_collectives(trace)].join("\n")),
        View::Devices => Ok(devices(trace)),
        View::Events => events::text(trace, settings.event.as_deref()),
        View::Path => path::text(trace, settings),
        View::Timeline => Ok(timeline::text(trace)),
    }
}

/// A sheet below a line that counts what it is about.
fn headed(sheet: &sheets::Sheet, number: usize) -> String {
    format!("{}: {}\n{}", sheet.name, glass_profiler_core::format::count(number as u64), sheet.lines())
}

fn tasks(trace: &Trace) -> String {
    headed(&sheets::tasks(trace), trace.tasks.len())
}

fn waits(trace: &Trace) -> String {
    headed(&sheets::waits(trace), trace.waits.len())
}

fn mpi_waits(trace: &Trace) -> String {
    headed(&sheets::mpi_waits(trace), trace.mpi_calls.len())
}

fn mpi_collectives(trace: &Trace) -> String {
    headed(&sheets::mpi_collectives(trace), super::mpi::collectives(trace).len())
}

fn devices(trace: &Trace) -> String {
    headed(&sheets::devices(trace), trace.devices.len())
}
