//! The load of this machine while it samples.

use std::fs;

/// The number of runnable threads, averaged over several reads.
#[derive(Debug, Default)]
pub(crate) struct Load {
    runnable: u64,
    looks: u64,
}

/// The number of running and runnable threads, in `/proc/loadavg`: before the slash of its fourth word.
fn parse(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

impl Load {
    /// Adds another read.
    pub(crate) fn look(&mut self) {
        if let Some(runnable) = fs::read_to_string("/proc/loadavg").ok().as_deref().and_then(parse) {
            self.runnable += runnable;
            self.looks += 1;
        }
    }

    /// The average number of runnable threads and the number of CPUs, if the threads exceed the CPUs by 0.5 or more.
    pub(crate) fn overload(&self) -> Option<(f64, usize)> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.overload_of(cpus)
    }

    fn overload_of(&self, cpus: usize) -> Option<(f64, usize)> {
        let runnable = self.runnable as f64 / self.looks.max(1) as f64;
        (runnable >= cpus as f64 + 0.5).then_some((runnable, cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_overloaded_by_threads_that_wait() {
        assert_eq!(parse("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse("0.20"), None);
        let of = |runnable, looks| Load { runnable, looks }.overload_of(2);
        assert_eq!(of(0, 0), None);
        assert_eq!(of(24, 10), None);
        assert_eq!(of(40, 10), Some((4.0, 2)));
        let mut load = Load::default();
        load.look();
        assert_eq!(load.looks, 1);
    }
}
