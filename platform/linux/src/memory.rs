//! How much memory the process uses, and how much it may.

use glass_api::MemoryUse;
use std::fs;
use std::path::Path;

/// Resident memory of this process, now and at its peak, and what the host lets it have: its control group's limit or all
/// of the host's memory. What cannot be read is 0.
pub(crate) fn of_this_process() -> MemoryUse {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let host = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let host_bytes = bytes_of(&host, "MemTotal:");
    let used_bytes = bytes_of(&status, "VmRSS:");
    MemoryUse {
        used_bytes,
        // The kernel updates the two at different moments.
        peak_bytes: bytes_of(&status, "VmHWM:").max(used_bytes),
        total_bytes: group_limit().map_or(host_bytes, |limit| limit.min(host_bytes)),
    }
}

/// A value of the files in /proc whose lines are `Name:   1234 kB`.
fn bytes_of(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The least limit of this process's control group (version 2) and the groups around it.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let root = Path::new("/sys/fs/cgroup");
    let limits = own.ancestors().filter_map(|group| fs::read_to_string(root.join(group).join("memory.max")).ok());
    // Without a limit the word is `max`.
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_names() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t 7 kB\n";
        assert_eq!((bytes_of(text, "VmRSS:"), bytes_of(text, "VmHWM:")), (1 << 20, 2 << 20));
        assert_eq!((bytes_of(text, "VmSwap:"), bytes_of("VmRSS: x kB", "VmRSS:")), (0, 0));
    }

    #[test]
    fn memory_that_is_filled_shows() {
        let before = of_this_process();
        assert!(before.used_bytes > 0 && before.used_bytes < before.total_bytes, "{before:?}");
        let filled = vec![1u8; 64 << 20];
        let after = of_this_process();
        assert!(filled.iter().step_by(4096).all(|byte| *byte == 1));
        assert!(after.peak_bytes >= before.used_bytes.max(64 << 20), "{before:?}, then {after:?}");
    }
}
