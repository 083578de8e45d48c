//! Selects and formats events.

use std::collections::BTreeSet;
use std::io::{self, Write};

use glass_formats::trace::{GROUPS, Kind};
use glass_profiler_core::format::{count, cut_end, pad};
use glass_profiler_core::names::printable;
use glass_profiler_core::words::{Line, kind_name};

/// Columns of a core's name, and of a task's.
const CORE: usize = 13;
const TASK: usize = 20;
/// In a terminal of fewer columns than this, cores are left out and tasks get less.
const COLUMNS_NARROW: usize = 60;
const TASK_NARROW: usize = 12;
/// Columns of a line if the width is unknown.
const COLUMNS_MAX: usize = 500;

/// Kinds of events by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kinds(BTreeSet<u16>);

/// Reads a comma-separated list of kinds; the first letters of a name select all kinds that start with them.
pub(crate) fn parse_kinds(text: &str) -> Result<Kinds, String> {
    let mut kinds = BTreeSet::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let matching = Kind::ALL.into_iter().filter(|kind| kind_name(*kind).starts_with(word)).map(|kind| kind as u16);
        let before = kinds.len();
        kinds.extend(matching);
        if kinds.len() == before {
            let names: Vec<&str> = Kind::ALL.into_iter().map(kind_name).collect();
            let groups: Vec<&str> = GROUPS.iter().map(|(_, name)| *name).collect();
            return Err(format!(
                "there is no kind of event `{word}`: take some of {} (--groups has {})",
                names.join(","),
                groups.join(",")
            ));
        }
    }
    Ok(Kinds(kinds))
}

/// The filter; all conditions must hold.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    pub task: Option<String>,
    pub kinds: Option<Kinds>,
    pub text: Option<String>,
}

impl Filter {
    pub fn new(task: Option<&str>, kinds: Option<Kinds>, text: Option<&str>) -> Filter {
        Filter { task: task.map(str::to_lowercase), kinds, text: text.map(str::to_lowercase) }
    }

    pub fn has(&self, line: &Line) -> bool {
        let contains = |text: &str, wanted: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| text.to_lowercase().contains(wanted.as_str()))
        };
        self.kinds.as_ref().is_none_or(|kinds| kinds.0.contains(&line.kind))
            // Events of other tasks about this task are included.
            && (contains(&line.task, &self.task) || contains(&line.text, &self.task))
            && (contains(&line.text, &self.text) || contains(&line.task, &self.text))
    }
}

/// The layout of lines.
pub(crate) struct Printer<W> {
    pub output: W,
    pub has_colours: bool,
    pub columns: Option<usize>,
}

impl<W: Write> Printer<W> {
    fn coloured(&self, text: &str, colour: &str) -> String {
        match self.has_colours && !colour.is_empty() {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    /// `time_ns` is since the start; `None` if the guest's clock is not known yet.
    pub fn line(&mut self, time_ns: Option<i128>, core: &str, line: &Line) -> io::Result<()> {
        let time = time(time_ns);
        let columns = self.columns.unwrap_or(COLUMNS_MAX);
        let (core_columns, task_columns) = if columns < COLUMNS_NARROW { (0, TASK_NARROW) } else { (CORE + 1, TASK) };
        let core = pad(&cut_end(&printable(core), core_columns.saturating_sub(1)), core_columns);
        let task = pad(&cut_end(&line.task, task_columns), task_columns);
        let columns_max = columns.saturating_sub(time.len() + 1 + core_columns + task_columns + 1);
        let text = cut_end(&line.text, columns_max);
        let colour = match line.level {
            1 => "31",
            2 => "33",
            _ => "",
        };
        let text = self.coloured(&text, colour);
        let (time, task) = (self.coloured(&time, "2"), self.coloured(&task, "36"));
        writeln!(self.output, "{time} {core}{task} {}", text.trim_end())
    }

    pub fn lost(&mut self, time_ns: Option<i128>, core: &str, events: u64) -> io::Result<()> {
        let core = printable(core);
        let text = format!("{} -- {} events of {core} are missing here --", time(time_ns), count(events));
        let text = self.coloured(&text, "33");
        writeln!(self.output, "{text}")
    }
}

/// Seconds since the start, to the microsecond.
fn time(time_ns: Option<i128>) -> String {
    match time_ns {
        Some(ns) => format!("{:>12.6}", ns as f64 / 1e9),
        None => format!("{:>12}", "?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: Kind, task: &str, text: &str) -> Line {
        Line { ticks: 0, ring: 0, kind: kind as u16, task: task.into(), level: 0, text: text.into() }
    }

    #[test]
    fn all_filters_must_hold() {
        let wake = line(Kind::Wake, "connection #4", "wakes listener #1");
        let filter = |task, kinds: Option<&str>, text| {
            Filter::new(task, kinds.map(|kinds| parse_kinds(kinds).unwrap()), text).has(&wake)
        };
        assert!(filter(None, None, None));
        assert!(filter(Some("CONNECTION"), Some("wake"), Some("listener")));
        assert!(filter(Some("listener"), None, None), "what is done to a task is shown");
        assert!(!filter(Some("disk"), None, None));
        assert!(!filter(None, Some("poll,submit"), None));
        assert!(!filter(Some("connection"), None, Some("disk")));
        let error = parse_kinds("wake,sleep").unwrap_err();
        assert!(error.contains("`sleep`") && error.contains("poll_begin"), "{error}");
        assert_eq!(parse_kinds("poll").unwrap().0.len(), 2);
    }

    #[test]
    fn lines_are_aligned_cut_and_coloured_only_when_asked() {
        let mut printer = Printer { output: Vec::new(), has_colours: false, columns: Some(65) };
        printer.line(Some(1_500_000), "core 0", &line(Kind::Wake, "connection #4", &"x".repeat(100))).unwrap();
        printer.line(None, "core 0", &line(Kind::SpinBegin, "", "looks for work")).unwrap();
        printer.lost(Some(2_000_000_000), "core 1", 12_345).unwrap();
        let text = String::from_utf8(printer.output).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("    0.001500 core 0        connection #4        {}…", "x".repeat(16)));
        assert_eq!(lines[1], "           ? core 0                             looks for work");
        assert_eq!(lines[2], "    2.000000 -- 12,345 events of core 1 are missing here --");
        // A narrow terminal shows the event, too.
        let mut printer = Printer { output: Vec::new(), has_colours: false, columns: Some(40) };
        printer.line(Some(1_500_000), "core 0", &line(Kind::Wake, "connection #4", "wakes listener #1")).unwrap();
        assert_eq!(String::from_utf8(printer.output).unwrap(), "    0.001500 connection … wakes listene…\n");
        let mut printer = Printer { output: Vec::new(), has_colours: true, columns: None };
        printer.line(None, "c", &Line { level: 1, ..line(Kind::Message, "t", "bad") }).unwrap();
        assert!(String::from_utf8(printer.output).unwrap().contains("\x1b[31mbad\x1b[0m"));
    }
}
