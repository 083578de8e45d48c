//! Keeps the sampling thread on the CPU of a vCPU that is emulated.
//!
//! There its timer ends its sleep while the vCPU runs, and to run it is to stop the vCPU. On another CPU it delays QEMU's main loop when that serves a
//! device, and where that CPU is idle it wakes later than where the main loop runs: the guest would be sampled less often just
//! before it notifies a device, and more often while it waits for one.

use std::fs::File;

use crate::backends::thread_stat::ThreadStat;
use crate::sys::Cpus;

/// The CPUs that this thread may use, and the one that it uses.
pub(super) struct Beside {
    allowed: Option<Cpus>,
    now: Option<usize>,
}

impl Beside {
    /// For this thread.
    pub(super) fn new() -> Beside {
        Beside { allowed: Cpus::of_this_thread().ok(), now: None }
    }

    /// Called before each rest, with the `stat` file of each thread that runs vCPUs.
    pub(super) fn follow<'a>(&mut self, mut vcpus: impl Iterator<Item = &'a File>) {
        let Some(allowed) = self.allowed else { return };
        // The CPU of one that waits is no better than any.
        let runnable = |stat| ThreadStat::read(stat).filter(|stat| stat.is_runnable);
        let Some(stat) = vcpus.find_map(runnable) else { return };
        if self.now != Some(stat.cpu)
            && let Some(only) = allowed.only(stat.cpu)
            && only.apply_to_this_thread().is_ok()
        {
            self.now = Some(stat.cpu);
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(allowed) = self.allowed.filter(|_| self.now.is_some()) {
            // Refused only if those CPUs are gone, and then the kernel has chosen others.
            let _ = allowed.apply_to_this_thread();
        }
    }
}
