//! Keeps our threads off the CPUs of the vCPUs: if the sampling thread shares one with a vCPU, the
//! scheduler makes one wait for the other, and a stop takes milliseconds; our other threads
//! would take the guest's time.

use std::fs::File;
use std::io;
use std::os::unix::process::parent_id;

use crate::backends::thread_stat::ThreadStat;
use crate::sys::Cpus;

/// Rests between two checks of the vCPUs' CPUs: they change rarely, and a check takes some 10 us.
const EVERY: u32 = 16;

/// The CPUs that we were allowed, and those that we use.
pub(super) struct Affinity {
    /// The process that started this one and works for it, if there is one.
    reader: Option<u32>,
    allowed: Option<Cpus>,
    now: Option<Cpus>,
    rests: u32,
}

impl Affinity {
    pub(super) fn new() -> Affinity {
        let allowed = Cpus::of_this_thread().ok();
        Affinity { reader: None, allowed, now: allowed, rests: 0 }
    }

    /// Includes the threads of the process that started this one.
    pub(super) fn include_parent(&mut self) {
        self.reader = Some(parent_id());
    }

    fn apply(&self, cpus: &Cpus) -> io::Result<()> {
        // A parent that is gone is another one by now.
        if let Some(reader) = self.reader.filter(|reader| *reader == parent_id()) {
            cpus.apply_to(reader)?;
        }
        cpus.apply_to(std::process::id())
    }

    /// Called before each rest, with the `stat` file of each vCPU's thread.
    pub(super) fn look<'a>(&mut self, vcpus: impl Iterator<Item = &'a File>) {
        self.rests += 1;
        let Some(allowed) = self.allowed.filter(|_| self.rests % EVERY == 1) else { return };
        // With a vCPU on every CPU no CPU is better.
        let wanted = vcpus.filter_map(ThreadStat::read).map(|stat| stat.cpu).fold(allowed, Cpus::without);
        if self.now != Some(wanted) && self.apply(&wanted).is_ok() {
            self.now = Some(wanted);
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if let Some(allowed) = self.allowed.filter(|_| self.now != self.allowed) {
            // Refused only if those CPUs are gone, and then the kernel has chosen others.
            let _ = self.apply(&allowed);
        }
    }
}
