//! The load of this machine while it samples.

use std::fs;
use std::time::{Duration, Instant};

/// Between two reads.
const PERIOD: Duration = Duration::from_secs(1);

/// The number of runnable threads, averaged over several reads.
#[derive(Debug)]
pub(crate) struct Load {
    cpus: usize,
    runnable: u64,
    looks: u64,
    /// The last one.
    looked: Option<Instant>,
}

/// The number of running and runnable threads, in `/proc/loadavg`: before the slash of its fourth word.
fn parse(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// The CPUs that are online, in `/proc/stat`: lines `cpu0`, `cpu1` and so on, after the line `cpu` of all.
fn parse_cpus(text: &str) -> usize {
    let is_one =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    text.lines().filter(is_one).count()
}

impl Load {
    /// Nothing read yet. All CPUs count, as the threads do that wait for them: this thread may leave those of a VM's vCPUs free.
    pub(crate) fn new() -> Load {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Load { cpus: parse_cpus(&text).max(1), runnable: 0, looks: 0, looked: None }
    }

    /// Adds another read, if there was none for some time.
    pub(crate) fn look(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some(runnable) = fs::read_to_string("/proc/loadavg").ok().as_deref().and_then(parse) {
            self.runnable += runnable;
            self.looks += 1;
        }
    }

    /// The average number of runnable threads and the number of CPUs, if the threads exceed the CPUs by 0.5 or more.
    pub(crate) fn overload(&self) -> Option<(f64, usize)> {
        let runnable = self.runnable as f64 / self.looks.max(1) as f64;
        (runnable >= self.cpus as f64 + 0.5).then_some((runnable, self.cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_overloaded_by_threads_that_wait() {
        assert_eq!(parse("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse("0.20"), None);
        assert_eq!(parse_cpus("cpu  9 9\ncpu0 4 5\ncpu3 5 4\nintr 7\ncpufreq 1\n"), 2);
        let of = |runnable, looks| Load { cpus: 2, runnable, looks, looked: None }.overload();
        assert_eq!(of(0, 0), None);
        assert_eq!(of(24, 10), None);
        assert_eq!(of(40, 10), Some((4.0, 2)));
        let mut load = Load::new();
        load.look();
        load.look();
        assert_eq!(load.looks, 1, "two reads at once are one");
    }
}
