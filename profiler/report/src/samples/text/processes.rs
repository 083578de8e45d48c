//! The tables of a guest's processes and threads for a terminal.

use super::{line, wrap};
use crate::samples::processes::{GuestProcesses, Ran, Share};
use glass_profiler_core::format::{count, cut_end, pad, percent};
use glass_profiler_core::model::{Profile, StateCounts};

/// Rows of each table; one more counts the rest.
const ROWS_MAX: usize = 16;
/// Columns of names of processes, and of threads, whose processes need room.
const NAME_COLUMNS: usize = 38;
const THREAD_COLUMNS: usize = 22;

/// Writes the tables, if the profile has a guest with processes.
pub(super) fn tables(out: &mut String, profile: &Profile) {
    let Some(guest) = GuestProcesses::of(profile) else { return };
    let running = guest.running();
    let mut counts = StateCounts::default();
    profile.samples.iter().for_each(|sample| counts.add(sample.state, 1));
    let words = counts.active_words();
    let title = |what: &str, shown: usize, all: usize| {
        let (shown, all) = (count(shown.min(ROWS_MAX) as u64), count(all as u64));
        format!("\n{what} of the guest: {shown} of {all}; 100 % = {} {}", count(running), words)
    };
    let processes = guest.processes.len();
    line(out, &title("Processes", processes, processes));
    heads(out, "pid", "process", NAME_COLUMNS, "threads");
    for share in guest.processes.iter().take(ROWS_MAX) {
        let process = &guest.all.processes[share.index];
        let inside = process.namespace_pid.map_or(String::new(), |pid| format!(" ({pid} in its namespace)"));
        let threads = count(share.threads as u64);
        let (pid, name) = (process.pid.to_string(), format!("{}{inside}", process.name));
        row(out, (&pid, &name, NAME_COLUMNS), share.ran, running, &threads);
    }
    more(out, guest.processes.get(ROWS_MAX..).unwrap_or_default(), ("processes", NAME_COLUMNS), running);
    for (name, ran) in
        [("[idle task: interrupts, the idle loop]", guest.idle_task), ("[process unknown]", guest.unknown)]
    {
        if ran.samples > 0 {
            row(out, ("", name, NAME_COLUMNS), ran, running, "");
        }
    }
    if guest.idle > 0 {
        let all = guest.idle + running;
        wrap(
            out,
            "  ",
            &format!(
                "Besides, {} samples are of idle vCPUs: {} of these and the above.",
                count(guest.idle),
                percent(guest.idle, all)
            ),
        );
    }
    // Of processes with one thread each, they would be the same table.
    if guest.threads.len() == guest.processes.len() {
        return;
    }
    let threads = guest.threads.len();
    line(out, &title("Threads", threads, threads));
    heads(out, "tid", "thread", THREAD_COLUMNS, "process");
    for share in guest.threads.iter().take(ROWS_MAX) {
        let thread = &guest.all.threads[share.index];
        let process = &guest.all.processes[thread.process];
        let of = format!("{} {}", process.name, process.pid);
        row(out, (&thread.tid.to_string(), &thread.name, THREAD_COLUMNS), share.ran, running, &of);
    }
    more(out, guest.threads.get(ROWS_MAX..).unwrap_or_default(), ("threads", THREAD_COLUMNS), running);
}

fn heads(out: &mut String, number: &str, name: &str, columns: usize, last: &str) {
    let name = pad(name, columns);
    line(out, &format!("{number:>9}  {name} {:>9} {:>7} {:>7} {:>7}  {last}", "samples", "share", "user", "kernel"));
}

fn row(out: &mut String, (number, name, columns): (&str, &str, usize), ran: Ran, running: u64, last: &str) {
    let name = pad(&cut_end(name, columns), columns);
    let [share, user, kernel] =
        [ran.samples, ran.user, ran.samples.saturating_sub(ran.user)].map(|part| percent(part, running));
    line(out, &format!("{number:>9}  {name} {:>9} {share:>7} {user:>7} {kernel:>7}  {last}", count(ran.samples)));
}

/// Those that have no row of their own.
fn more(out: &mut String, rest: &[Share], (what, columns): (&str, usize), running: u64) {
    let ran = rest.iter().fold(Ran::default(), |sum, share| Ran {
        samples: sum.samples + share.ran.samples,
        user: sum.user + share.ran.user,
    });
    if !rest.is_empty() {
        row(out, ("", &format!("{} more {what}", count(rest.len() as u64)), columns), ran, running, "");
    }
}
