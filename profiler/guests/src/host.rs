//! How busy this machine is while it samples.

use std::fs;

/// How many threads want a CPU, on average over looks.
#[derive(Debug, Default)]
pub(crate) struct Load {
    runnable: u64,
    looks: u64,
}

/// The number of threads that run or want to, in `/proc/loadavg`: before the slash of its fourth word.
fn parse(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

impl Load {
    /// Counts once more.
    pub(crate) fn look(&mut self) {
        if let Some(runnable) = fs::read_to_string("/proc/loadavg").ok().as_deref().and_then(parse) {
            self.runnable += runnable;
            self.looks += 1;
        }
    }

    /// How many threads wanted a CPU, and how many CPUs there are, if these were fewer by a half or more.
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
