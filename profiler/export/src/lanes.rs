//! A trace as tracks with slices, as every trace viewer shows it. (A [`Lane`] is a track of a trace; a `Track` of the
//! recording is one of samples.)
//!
//! [`draw`] assigns slices to tracks, once for all formats; a format is a [`Viewer`] that writes them. The tracks are
//! those of our own page: cores, tasks, devices with their requests, connections, counters.

mod cores;
mod devices;
mod flows;
mod lane;
mod nest;
mod spans;
mod tasks;

use std::collections::HashSet;
use std::io;

use glass_profiler_core::names::printable;
use glass_profiler_core::trace::model::{Task, Trace, Value};

pub(crate) use flows::{Place, Step};
pub(crate) use lane::Lane;
pub(crate) use nest::Nest;
pub(crate) use spans::level;

/// The description of a track before its first use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Description {
    pub lane: Lane,
    /// Printable.
    pub name: String,
    pub is_counter: bool,
}

/// A slice, a moment or a value on a track.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark<'a> {
    pub lane: Lane,
    pub start_ns: u64,
    /// The same as `start_ns` for a moment.
    pub end_ns: u64,
    pub category: &'static str,
    /// Printable.
    pub name: &'a str,
    /// Arrows that start, pass or end here.
    pub steps: &'a [Step],
    /// Names and values, unchanged from the guest.
    pub details: &'a [(&'a str, Value)],
}

/// Writes a format. Tracks are described before they are used; slices of a track come in order of their start.
pub(crate) trait Viewer {
    fn lane(&mut self, description: &Description) -> io::Result<()>;
    /// A slice.
    fn slice(&mut self, mark: &Mark<'_>) -> io::Result<()>;
    /// A moment.
    fn instant(&mut self, mark: &Mark<'_>) -> io::Result<()>;
    /// The value of a counter from a moment on.
    fn value(&mut self, lane: Lane, time_ns: u64, value: i64) -> io::Result<()>;
}

/// Writes a trace to a viewer. Arrows start before they end, also where both have the same time.
pub(crate) fn draw(trace: &Trace, viewer: &mut dyn Viewer) -> io::Result<()> {
    let mut board = Board { trace, viewer, described: HashSet::new() };
    cores::draw(&mut board)?;
    devices::draw(&mut board)?;
    tasks::draw(&mut board)?;
    spans::draw(&mut board)?;
    for (index, counter) in (0u32..).zip(&trace.counters) {
        board.describe(Lane::Counter(index), || printable(trace.name(counter.name)), true)?;
        for (time_ns, value) in &counter.points {
            board.viewer.value(Lane::Counter(index), *time_ns, *value)?;
        }
    }
    for text in &trace.warnings {
        let name = printable(text);
        let mark = Mark::moment(Lane::Warnings, trace.start_ns, "warning", &name);
        board.instant(&mark, || "Warnings".to_owned())?;
    }
    Ok(())
}

impl<'a> Mark<'a> {
    fn new(lane: Lane, start_ns: u64, end_ns: u64, category: &'static str, name: &'a str) -> Mark<'a> {
        Mark { lane, start_ns, end_ns: end_ns.max(start_ns), category, name, steps: &[], details: &[] }
    }

    fn moment(lane: Lane, time_ns: u64, category: &'static str, name: &'a str) -> Mark<'a> {
        Mark::new(lane, time_ns, time_ns, category, name)
    }
}

/// A viewer, and the tracks that were described to it.
struct Board<'a> {
    trace: &'a Trace,
    viewer: &'a mut dyn Viewer,
    described: HashSet<Lane>,
}

impl Board<'_> {
    /// Describes a track at its first use, after its parents.
    fn describe(&mut self, lane: Lane, name: impl FnOnce() -> String, is_counter: bool) -> io::Result<()> {
        if !self.described.insert(lane) {
            return Ok(());
        }
        let mut outer: Vec<Lane> = std::iter::successors(lane.parent(), |lane| lane.parent()).collect();
        outer.retain(|lane| self.described.insert(*lane));
        for lane in outer.into_iter().rev() {
            let name = self.container_name(lane);
            self.viewer.lane(&Description { lane, name, is_counter: false })?;
        }
        self.viewer.lane(&Description { lane, name: name(), is_counter })
    }

    /// The name of a parent track.
    fn container_name(&self, lane: Lane) -> String {
        match lane {
            Lane::Group(group) => group.name().to_owned(),
            Lane::Core(core) => core_name(self.trace, core),
            Lane::Task(task) => task_name(self.trace, task),
            Lane::Device(device) => device_name(self.trace, device),
            _ => String::new(),
        }
    }

    fn slice(&mut self, mark: &Mark<'_>, name: impl FnOnce() -> String) -> io::Result<()> {
        self.describe(mark.lane, name, false)?;
        self.viewer.slice(mark)
    }

    fn instant(&mut self, mark: &Mark<'_>, name: impl FnOnce() -> String) -> io::Result<()> {
        self.describe(mark.lane, name, false)?;
        self.viewer.instant(mark)
    }
}

fn core_name(trace: &Trace, core: u32) -> String {
    trace.cores.get(core as usize).map_or_else(|| format!("core {core}?"), |core| printable(&core.name))
}

/// "connection #4".
pub(crate) fn task_name(trace: &Trace, task: u32) -> String {
    match trace.tasks.get(task as usize) {
        Some(Task { number, name: 0, .. }) => format!("task #{number}"),
        Some(Task { number, name, .. }) => format!("{} #{number}", printable(trace.name(*name))),
        None => "task".to_owned(),
    }
}

fn device_name(trace: &Trace, device: u32) -> String {
    trace.devices.get(device as usize).map_or_else(|| "device".to_owned(), |device| printable(trace.name(device.name)))
}

fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

/// Items with their start and end, in order of their start.
type Timed<'a, T> = std::iter::Peekable<Box<dyn Iterator<Item = (u64, u64, T)> + 'a>>;

/// Merges several lists that are each in order of time.
fn by_time<'a, T: Copy + 'a>(mut lists: Vec<Timed<'a, T>>) -> impl Iterator<Item = T> + 'a {
    std::iter::from_fn(move || {
        let next = lists
            .iter_mut()
            .enumerate()
            .filter_map(|(index, list)| list.peek().map(|(start, end, _)| (*start, *end, index)))
            .min()?;
        lists[next.2].next().map(|(_, _, item)| item)
    })
}

/// A list for [`by_time`].
fn list<'a, T: Copy + 'a>(items: impl Iterator<Item = (u64, u64, T)> + 'a) -> Timed<'a, T> {
    let boxed: Box<dyn Iterator<Item = (u64, u64, T)> + 'a> = Box::new(items);
    boxed.peekable()
}
