//! The perf map of a process: a file in its own mount namespace, named by the pid in its own namespace.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use crate::files::open;
use crate::proc::{living, words_of_stat};
use crate::sys::{read_clocks, ticks_per_sec};

/// How much older than its process a map may seem: file times and process times have different resolutions.
const AGE_TOLERANCE_NS: u64 = 2_000_000_000;

/// Opens `/tmp/perf-PID.map` of the process; `None` if there is none. Fails with a phrase about a file that the
/// process did not write.
pub(crate) fn open_perf_map(process: u32) -> Result<Option<File>, String> {
    let folder = format!("/proc/{}", living(process));
    // Without the process the owner of the file cannot be checked.
    let Some(status) = fs::read_to_string(format!("{folder}/status")).ok() else { return Ok(None) };
    let Some(number) = last_number(&status, "NSpid:") else { return Ok(None) };
    // Without privilege over it, only one with our root may have its map where we see it.
    let may_look_inside = fs::read_link(format!("{folder}/root")).is_ok();
    let opened = match may_look_inside {
        true => open::in_root(living(process), &format!("/tmp/perf-{number}.map"), false),
        false => open::in_root(std::process::id(), &format!("/tmp/perf-{process}.map"), false),
    };
    let Ok(file) = opened else { return Ok(None) };
    let Ok(data) = file.metadata() else { return Ok(None) };
    let owners = [0, user(&status).unwrap_or(0)];
    if !owners.contains(&data.uid()) {
        return Err("belongs to another user than the process".to_owned());
    }
    let written_ns = u64::try_from(data.mtime()).unwrap_or(0).saturating_mul(1_000_000_000);
    if start_ns(&folder).is_some_and(|start_ns| written_ns.saturating_add(AGE_TOLERANCE_NS) < start_ns) {
        return Err("is older than the process, so it is of another one".to_owned());
    }
    Ok(Some(file))
}

/// The last number of a line of `/proc/PID/status`: that of the innermost namespace.
fn last_number(status: &str, title: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(title))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// The effective user of a process.
fn user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// When a process was started, in nanoseconds since 1970.
fn start_ns(folder: &str) -> Option<u64> {
    /// The first field after the name is the third of all, the start the 22nd.
    const START: usize = 22 - 3;
    let stat = fs::read(format!("{folder}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let ticks: u64 = words_of_stat(&stat)?.nth(START)?.parse().ok()?;
    let clocks = read_clocks();
    let booted_ns = clocks.realtime_ns.saturating_sub(clocks.boottime_ns);
    Some(booted_ns.saturating_add(ticks.saturating_mul(1_000_000_000 / ticks_per_sec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_file_it_is() {
        let status = "Name:\tnode\nUid:\t1000\t1001\t0\t0\nNSpid:\t4711\t12\t3\n";
        assert_eq!((last_number(status, "NSpid:"), user(status)), (Some(3), Some(1001)));
        assert_eq!((last_number("NSpid:\t7\n", "NSpid:"), last_number("", "NSpid:")), (Some(7), None));
        let now = read_clocks().realtime_ns;
        let start = start_ns("/proc/self").unwrap();
        assert!(start <= now + AGE_TOLERANCE_NS && now - start.min(now) < 86_400_000_000_000, "{start} of {now}");
    }

    #[test]
    fn a_map_of_an_earlier_process_of_the_same_number_is_not_used() {
        let process = std::process::id();
        let path = format!("/tmp/perf-{process}.map");
        assert!(open_perf_map(process).unwrap().is_none());
        let file = File::create_new(&path).unwrap();
        assert!(open_perf_map(process).unwrap().is_some());
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let older = open_perf_map(process);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/maps", &path).unwrap();
        let link = open_perf_map(process);
        fs::remove_file(&path).unwrap();
        assert!(older.unwrap_err().starts_with("is older"));
        assert!(link.unwrap().is_none());
    }
}
