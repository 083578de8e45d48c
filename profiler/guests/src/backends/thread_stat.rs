//! Where a thread of a VMM runs, and for how long it has, by its files in `/proc`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::proc::words_of_stat;

/// The number of the word after the thread's name in `/proc/PID/task/TID/stat` that is its CPU (proc(5)).
const PROCESSOR_WORD: usize = 36;

/// The state of a thread. Reading it takes 1.5 us (2026-11-27, Intel Xeon).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadStat {
    /// It runs, or waits only for a CPU.
    pub(super) is_runnable: bool,
    /// It sleeps until it is woken.
    pub(super) is_asleep: bool,
    /// The CPU on which it runs, or ran last.
    pub(super) cpu: usize,
}

impl ThreadStat {
    /// Reads the thread's `stat` file.
    pub(super) fn read(stat: &File) -> Option<ThreadStat> {
        let mut bytes = [0; 1024];
        let count = stat.read_at(&mut bytes, 0).ok()?;
        ThreadStat::parse(&String::from_utf8_lossy(&bytes[..count]))
    }

    fn parse(stat: &str) -> Option<ThreadStat> {
        let mut words = words_of_stat(stat)?;
        let state = words.next()?;
        let cpu = words.nth(PROCESSOR_WORD - 1)?.parse().ok()?;
        Some(ThreadStat { is_runnable: state == "R", is_asleep: state == "S", cpu })
    }
}

/// For how long a thread has waited for a CPU since its start. Reading it takes 1.4 us (2026-11-27).
pub(super) fn waited_ns(schedule: &File) -> Option<u64> {
    number(schedule, 1)
}

/// For how long a thread has run since its start.
pub(super) fn ran_ns(schedule: &File) -> Option<u64> {
    number(schedule, 0)
}

fn number(schedule: &File, index: usize) -> Option<u64> {
    let mut bytes = [0; 128];
    let count = schedule.read_at(&mut bytes, 0).ok()?;
    parse(std::str::from_utf8(&bytes[..count]).ok()?, index)
}

/// A number in `/proc/PID/task/TID/schedstat` (`Documentation/scheduler/sched-stats.rst` of Linux).
fn parse(text: &str, index: usize) -> Option<u64> {
    text.split_ascii_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc() {
        let words: Vec<String> = (4..=52).map(|word| word.to_string()).collect();
        let of = |state| ThreadStat::parse(&format!("7 (a ) b) {state} {}", words.join(" ")));
        for (state, is_runnable, is_asleep) in [("R", true, false), ("S", false, true), ("t", false, false)] {
            assert_eq!(of(state), Some(ThreadStat { is_runnable, is_asleep, cpu: 39 }));
        }
        assert_eq!(ThreadStat::parse("7 (a) S 1"), None);
        assert_eq!(ThreadStat::parse(""), None);
        assert!(ThreadStat::read(&File::open("/proc/thread-self/stat").unwrap()).unwrap().is_runnable);
    }

    #[test]
    fn the_kernels_numbers() {
        assert_eq!([0, 1].map(|index| parse("176755099 25218189 430\n", index)), [Some(176_755_099), Some(25_218_189)]);
        for text in ["", "1", "1 x 3"] {
            assert_eq!(parse(text, 1), None, "{text}");
        }
        let own = File::open("/proc/thread-self/schedstat").unwrap();
        assert!(waited_ns(&own).is_some());
    }
}
