//! The processes and threads of a Linux guest, for `glass ps --pid`.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use glass_profiler_core::format::{cut_end, cut_start, pad};
use glass_profiler_core::linux::tasks::{Task, Tasks};
use glass_profiler_core::names::printable;
use glass_profiler_guests::GuestProcesses;
use glass_profiler_guests::systems::linux_guest::{Belongings, LinuxGuest};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use crate::console;
use crate::linux::{LinuxArgs, torn};

/// Columns of a control group's path, if it has to be cut.
const CGROUP_WIDTH_MIN: usize = 12;
const COLUMNS: usize = 8;
const TITLES: [&str; COLUMNS] = ["PID", "NSPID", "TID", "S", "CPU", "START", "NAME", "CGROUP"];
const IS_NUMBER: [bool; COLUMNS] = [true, true, true, false, true, true, false, false];
const NAMESPACE: usize = 1;
const THREAD: usize = 2;
const CGROUP: usize = 7;

/// A process, or a thread.
struct Row {
    task: Task,
    belongings: Belongings,
    /// Its CPU time; that of all threads for a process.
    cpu_ns: u64,
    parent: Option<u32>,
}

impl Row {
    /// Its thread ID in its own namespace, if it differs.
    fn namespace_tid(&self) -> Option<u32> {
        self.belongings.namespace_tids.last().copied().filter(|tid| *tid != self.task.tid)
    }

    fn name(&self) -> String {
        let name = printable(&self.task.name);
        if self.task.is_kernel_thread { format!("[{name}]") } else { name }
    }

    fn cells(&self) -> [String; COLUMNS] {
        [
            self.task.pid.to_string(),
            self.namespace_tid().map_or("-".to_owned(), |tid| tid.to_string()),
            self.task.tid.to_string(),
            self.task.state.letter().to_string(),
            cpu_time(self.cpu_ns),
            time(self.task.start_ns),
            self.name(),
            self.belongings.cgroup.as_deref().map_or("-".to_owned(), printable),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "pid": self.task.pid,
            "tid": self.task.tid,
            "namespace_tids": self.belongings.namespace_tids,
            "name": self.task.name,
            "state": self.task.state.letter().to_string(),
            "cpu_ns": self.cpu_ns,
            "start_ns": self.task.start_ns,
            "switches": self.task.switches,
            "parent": self.parent,
            "cgroup": self.belongings.cgroup,
            "is_kernel_thread": self.task.is_kernel_thread,
        })
    }
}

/// Minutes, seconds and their hundredth parts, as `top` prints CPU time.
fn cpu_time(ns: u64) -> String {
    let hundredths = ns / 10_000_000;
    format!("{}:{:02}.{:02}", hundredths / 6_000, hundredths / 100 % 60, hundredths % 100)
}

/// A time since the start of the guest: days, hours, minutes, seconds and their tenth parts.
fn time(ns: u64) -> String {
    let tenths = ns / 100_000_000;
    let (seconds, days) = (tenths / 10, tenths / 864_000);
    let days = if days == 0 { String::new() } else { format!("{days}d ") };
    format!("{days}{}:{:02}:{:02}.{}", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60, tenths % 10)
}

/// Prints the processes, or all threads.
pub fn run(guest: &LinuxArgs, with_threads: bool, as_json: bool) -> Result<()> {
    let (guest, _) = guest.open(GuestProcesses::default())?;
    let tasks = guest.tasks().context("the list of the guest's tasks cannot be read: repeat")?;
    let rows = rows(&tasks, with_threads, &guest);
    if as_json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        let all = json!({ "tasks": rows, "torn": tasks.torn, "left_out": tasks.left_out });
        return console::print(&(serde_json::to_string_pretty(&all)? + "\n"));
    }
    let mut text = table(&rows, with_threads, console::output_columns().map(usize::from));
    if let Some(sentence) = torn(tasks.torn, tasks.left_out) {
        let _ = writeln!(text, "{sentence}");
    }
    console::print(&text)
}

fn rows(tasks: &Tasks, with_threads: bool, guest: &LinuxGuest) -> Vec<Row> {
    let pids: HashMap<u64, u32> = tasks.tasks.iter().map(|task| (task.address, task.pid)).collect();
    let mut of_processes: BTreeMap<u32, u64> = BTreeMap::new();
    for task in &tasks.tasks {
        let sum = of_processes.entry(task.pid).or_default();
        *sum = sum.saturating_add(task.cpu_ns);
    }
    let is_shown = |task: &&Task| with_threads || task.tid == task.pid;
    let mut rows: Vec<Row> = tasks
        .tasks
        .iter()
        .filter(is_shown)
        .map(|task| Row {
            belongings: guest.belongings(task),
            cpu_ns: if with_threads { task.cpu_ns } else { of_processes[&task.pid] },
            parent: pids.get(&task.parent).copied(),
            task: task.clone(),
        })
        .collect();
    rows.sort_by_key(|row| (row.task.pid, row.task.tid != row.task.pid, row.task.tid));
    rows
}

/// The rows as text, not wider than the terminal, if it is one.
fn table(rows: &[Row], with_threads: bool, columns_max: Option<usize>) -> String {
    let has_namespaces = rows.iter().any(|row| row.namespace_tid().is_some());
    let is_shown = |column: usize| match column {
        NAMESPACE => has_namespaces,
        THREAD => with_threads,
        CGROUP => rows.iter().any(|row| row.belongings.cgroup.is_some()),
        _ => true,
    };
    let shown: Vec<usize> = (0..COLUMNS).filter(|column| is_shown(*column)).collect();
    let cells: Vec<[String; COLUMNS]> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        cells.iter().map(|row| row[column].width()).chain([TITLES[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut out = String::new();
    for row in [TITLES.map(str::to_owned)].iter().chain(&cells) {
        let mut line = String::new();
        for column in &shown {
            let (cell, width) = (&row[*column], widths[*column]);
            if *column == CGROUP {
                let free_columns = columns_max.map_or(usize::MAX, |columns| columns.saturating_sub(line.width()));
                line.push_str(&cut_start(cell, free_columns.max(CGROUP_WIDTH_MIN)));
            } else if IS_NUMBER[*column] {
                let _ = write!(line, "{cell:>width$}  ");
            } else {
                line.push_str(&pad(cell, width + 2));
            }
        }
        let line = columns_max.map_or_else(|| line.clone(), |columns| cut_end(line.trim_end(), columns));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::linux::tasks::TaskState;

    fn row(pid: u32, tid: u32, name: &str) -> Row {
        let mut task = Task::default();
        (task.pid, task.tid, task.name) = (pid, tid, name.to_owned());
        (task.state, task.start_ns) = (TaskState::Blocked, 90_061_500_000_000);
        let belongings = Belongings { namespace_tids: vec![tid], cgroup: Some("/".to_owned()) };
        Row { task, belongings, cpu_ns: 61_230_000_000, parent: None }
    }

    #[test]
    fn columns_are_those_that_differ_and_fit() {
        let mut kernel = row(2, 2, "kthreadd");
        kernel.task.is_kernel_thread = true;
        let mut nested = row(400, 401, "a\x1bb\u{202e}c");
        nested.belongings = Belongings {
            namespace_tids: vec![401, 7, 1],
            cgroup: Some("/system.slice/of/a/very/long/path/that/fits/in/no/terminal.service".to_owned()),
        };
        let plain = table(&[row(2, 2, "sh"), kernel], false, None);
        assert_eq!(
            plain,
            "PID  S      CPU         START  NAME        CGROUP\n  \
             2  D  1:01.23  1d 1:01:01.5  sh          /\n  \
             2  D  1:01.23  1d 1:01:01.5  [kthreadd]  /\n"
        );
        let text = table(&[row(2, 2, "sh"), nested], true, Some(70));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.width() <= 70), "{text}");
        assert!(lines[0].starts_with("PID  NSPID  TID  S"), "{text}");
        assert!(lines[1].starts_with("  2      -    2  D") && lines[2].starts_with("400      1  401  D"), "{text}");
        assert!(lines[2].contains("  a\u{fffd}b\u{fffd}c") && lines[2].ends_with("terminal.service"), "{text}");
    }

    #[test]
    fn times() {
        assert_eq!([0, 10_000_000, 3_600_000_000_000].map(cpu_time), ["0:00.00", "0:00.01", "60:00.00"]);
        assert_eq!([0, 3_723_400_000_000].map(time), ["0:00:00.0", "1:02:03.4"]);
        assert_eq!(time(u64::MAX), "213503d 23:34:33.7");
    }
}
