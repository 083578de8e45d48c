//! Chrome's JSON trace events, for chrome://tracing, ui.perfetto.dev, speedscope and many others.
//!
//! Groups of tracks are the format's processes, tracks its threads. Times are microseconds with three decimal
//! digits, so nanoseconds stay exact.

use std::collections::HashMap;
use std::io::{self, Write};

use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace::model::{Trace, Value};

use crate::chains::title;
use crate::json;
use crate::lanes::{self, Description, Lane, Mark, Nest, Place, Step, Viewer};

/// Larger numbers are not exact where JSON's numbers are floating point.
const EXACT_MAX: u64 = 1 << 53;

pub(crate) fn write(recording: &Recording, trace: &Trace, output: &mut dyn Write) -> io::Result<()> {
    output.write_all(b"{\"displayTimeUnit\":\"ns\",\"otherData\":{\"exporter\":")?;
    json::string(output, concat!("glass ", env!("CARGO_PKG_VERSION")))?;
    output.write_all(b",\"guest\":")?;
    json::string(output, &title(&recording.profile))?;
    output.write_all(b"},\"traceEvents\":[")?;
    let mut writer = Writer { output, is_first: true, threads: HashMap::new(), processes: 0 };
    lanes::draw(trace, &mut writer)?;
    writer.close()?;
    writer.output.write_all(b"\n]}\n")
}

/// A track in the format.
struct Thread {
    process: u64,
    thread: u64,
    /// For the values of a counter, which belong to a process and a name.
    name: String,
    open: Nest,
    /// Names of the slices that are open.
    names: Vec<String>,
}

struct Writer<'a> {
    output: &'a mut dyn Write,
    is_first: bool,
    threads: HashMap<Lane, Thread>,
    processes: u64,
}

/// Nanoseconds as microseconds, exactly.
struct Microseconds(u64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

impl Writer<'_> {
    /// Starts an event: the comma, and the fields of all events.
    fn begin(&mut self, phase: &str, lane: Lane, time_ns: u64) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { "," };
        let (process, thread) = self.threads.get(&lane).map_or((0, 0), |thread| (thread.process, thread.thread));
        let time = Microseconds(time_ns);
        write!(self.output, "{comma}\n{{\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread},\"ts\":{time}")
    }

    /// With the name of the slice: otherwise speedscope would put another `B` event of the same time first.
    fn end_slice(&mut self, lane: Lane, time_ns: u64) -> io::Result<()> {
        let name = self.threads.get_mut(&lane).and_then(|thread| thread.names.pop()).unwrap_or_default();
        self.begin("E", lane, time_ns)?;
        self.text("name", &name)?;
        self.end(&[])
    }

    /// Ends what is still open.
    fn close(&mut self) -> io::Result<()> {
        let mut open: Vec<(Lane, Nest)> =
            self.threads.iter_mut().map(|(lane, thread)| (*lane, std::mem::take(&mut thread.open))).collect();
        open.sort_by_key(|(lane, _)| lane.number());
        for (lane, mut nest) in open {
            nest.close(|end_ns| self.end_slice(lane, end_ns))?;
        }
        Ok(())
    }

    fn text(&mut self, name: &str, text: &str) -> io::Result<()> {
        write!(self.output, ",\"{name}\":")?;
        json::string(self.output, text)
    }

    /// Ends an event with its details.
    fn end(&mut self, details: &[(&str, Value)]) -> io::Result<()> {
        if !details.is_empty() {
            self.output.write_all(b",\"args\":{")?;
            for (index, (name, value)) in details.iter().enumerate() {
                if index > 0 {
                    self.output.write_all(b",")?;
                }
                // A guest may give two values under one name; JSON may not.
                match details[..index].iter().filter(|(other, _)| other == name).count() {
                    0 => json::string(self.output, name)?,
                    again => json::string(self.output, &format!("{name} ({})", again + 1))?,
                }
                self.output.write_all(b":")?;
                self.value_of(value)?;
            }
            self.output.write_all(b"}")?;
        }
        self.output.write_all(b"}")
    }

    fn value_of(&mut self, value: &Value) -> io::Result<()> {
        match value {
            Value::Unsigned(number) if *number > EXACT_MAX => write!(self.output, "\"{number}\""),
            Value::Signed(number) if number.unsigned_abs() > EXACT_MAX => write!(self.output, "\"{number}\""),
            Value::Unsigned(number) => write!(self.output, "{number}"),
            Value::Signed(number) => write!(self.output, "{number}"),
            Value::Bool(flag) => write!(self.output, "{flag}"),
            Value::Float(number) if number.is_finite() => write!(self.output, "{number}"),
            Value::Float(number) => write!(self.output, "\"{number}\""),
            Value::Text(text) => json::string(self.output, text),
        }
    }

    /// Arrows, which are separate events and bind to the slice around them.
    fn arrows(&mut self, mark: &Mark<'_>, time_ns: u64) -> io::Result<()> {
        for Step { arrow, place } in mark.steps {
            let phase = match place {
                Place::Begin => "s",
                Place::Pass => "t",
                Place::End => "f",
            };
            self.begin(phase, mark.lane, time_ns)?;
            let binds = if *place == Place::End { ",\"bp\":\"e\"" } else { "" };
            write!(self.output, ",\"id\":{arrow},\"cat\":\"arrow\",\"name\":\"arrow\"{binds}")?;
            self.end(&[])?;
        }
        Ok(())
    }

    /// The name and the place in the order of a process or thread.
    fn metadata(&mut self, lane: Lane, what: &str, name: &str, rank: u64) -> io::Result<()> {
        self.begin("M", lane, 0)?;
        write!(self.output, ",\"name\":\"{what}_name\",\"args\":{{\"name\":")?;
        json::string(self.output, name)?;
        self.output.write_all(b"}}")?;
        self.begin("M", lane, 0)?;
        write!(self.output, ",\"name\":\"{what}_sort_index\",\"args\":{{\"sort_index\":{rank}}}}}")
    }
}

impl Viewer for Writer<'_> {
    fn lane(&mut self, description: &Description) -> io::Result<()> {
        let Description { lane, name, is_counter } = description;
        let root = lane.root();
        let process = match self.threads.get(&root) {
            Some(root) => root.process,
            None => {
                self.processes += 1;
                self.processes
            }
        };
        let thread = self.threads.len() as u64 + 1;
        let name = match lane.parent().and_then(|parent| self.threads.get(&parent)) {
            // There are only two levels: a track that is in another one has its name.
            Some(parent) if lane.parent() != Some(root) => format!("{}: {name}", parent.name),
            _ => name.clone(),
        };
        self.threads
            .insert(*lane, Thread { process, thread, name: name.clone(), open: Nest::default(), names: Vec::new() });
        if *lane == root {
            self.metadata(*lane, "process", &name, u64::from(lane.rank()))?;
        }
        if *is_counter || matches!(lane, Lane::Group(_)) {
            return Ok(());
        }
        // Tracks come in their final order, but a nested one may come late: it is placed beside its parent.
        let outer = lane.parent().filter(|parent| *parent != root).unwrap_or(*lane);
        let inner = if outer == *lane { 0 } else { u64::from(lane.rank()) + 1 };
        self.metadata(*lane, "thread", &name, u64::from(outer.rank()) * 2048 + inner)
    }

    /// As one `B` and one `E` event: for readers that add a start and a duration in floating point, adjacent slices would
    /// overlap.
    fn slice(&mut self, mark: &Mark<'_>) -> io::Result<()> {
        let Some(thread) = self.threads.get_mut(&mark.lane) else { return Ok(()) };
        let mut open = std::mem::take(&mut thread.open);
        let (start_ns, _) = open.open(mark.start_ns, mark.end_ns, |end_ns| self.end_slice(mark.lane, end_ns))?;
        if let Some(thread) = self.threads.get_mut(&mark.lane) {
            thread.open = open;
            thread.names.push(mark.name.to_owned());
        }
        self.begin("B", mark.lane, start_ns)?;
        self.text("cat", mark.category)?;
        self.text("name", mark.name)?;
        self.end(mark.details)?;
        self.arrows(mark, start_ns)
    }

    fn instant(&mut self, mark: &Mark<'_>) -> io::Result<()> {
        self.begin("i", mark.lane, mark.start_ns)?;
        self.output.write_all(b",\"s\":\"t\"")?;
        self.text("cat", mark.category)?;
        self.text("name", mark.name)?;
        self.end(mark.details)?;
        self.arrows(mark, mark.start_ns)
    }

    fn value(&mut self, lane: Lane, time_ns: u64, value: i64) -> io::Result<()> {
        let name = self.threads.get(&lane).map_or_else(String::new, |thread| thread.name.clone());
        self.begin("C", lane, time_ns)?;
        self.text("name", &name)?;
        self.end(&[("value", Value::Signed(value))])
    }
}
