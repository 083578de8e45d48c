//! Finds the threads that run a VMM's vCPUs.
//!
//! A vCPU is a descriptor, `anon_inode:kvm-vcpu:N`; the thread that calls `KVM_RUN` on it runs it. What
//! a thread calls is in `/proc/PID/task/TID/syscall` unless it is on a CPU at the moment; then it has to be stopped.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::permission;
use super::vcpu::{Hold, Thread, is_run};
use crate::error::GuestError;
use crate::find::vcpus::Descriptor;
use crate::proc::words_of_stat;
use crate::sys::ChildSignals;

/// The most descriptors and threads of a process that are inspected.
const ENTRIES_MAX: usize = 65_536;
/// Duration of the search for threads: one that handles a device is not in `KVM_RUN`.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long one thread may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Threads that the kernel creates for a process (since 6.4; those of io_uring have the other bit).
/// "kvm-nx-lpage-re" is one: it seems to be in `KVM_RUN`, but cannot be traced.
const PF_USER_WORKER: u64 = 0x4000;
const PF_IO_WORKER: u64 = 0x10;

/// The state of a thread that is visible without stopping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Glance {
    /// On a CPU, or ready to.
    Running,
    /// Waits in `KVM_RUN` on this descriptor.
    InRun(i32),
    Other,
}

fn parse_syscall(text: &str) -> Glance {
    let mut words = text.split_ascii_whitespace();
    let number = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    match words.next() {
        Some("running") => Glance::Running,
        Some(call) if call.parse() == Ok(libc::SYS_ioctl) => match (number(words.next()), number(words.next())) {
            (Some(descriptor), Some(request)) if is_run(request) => Glance::InRun(descriptor as u32 as i32),
            _ => Glance::Other,
        },
        _ => Glance::Other,
    }
}

/// State and flags from `/proc/.../stat`.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let mut words = words_of_stat(text)?;
    Some((words.next()?.chars().next()?, words.nth(5)?.parse().ok()?))
}

fn glance(pid: u32, thread: u32) -> io::Result<Glance> {
    let folder = format!("/proc/{pid}/task/{thread}");
    // The name may have bytes that are not UTF-8.
    let Ok(stat) = fs::read(format!("{folder}/stat")) else { return Ok(Glance::Other) };
    match parse_stat(&String::from_utf8_lossy(&stat)) {
        Some((state, flags)) if flags & (PF_USER_WORKER | PF_IO_WORKER) == 0 && !"ZXx".contains(state) => {}
        _ => return Ok(Glance::Other),
    }
    match fs::read_to_string(format!("{folder}/syscall")) {
        Ok(text) => Ok(parse_syscall(&text)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // It has ended.
        Err(_) => Ok(Glance::Other),
    }
}

/// The vCPU in a thread's name: "CPU 3/KVM" (QEMU), "fc_vcpu 3" (Firecracker), "vcpu3".
fn named_vcpu(name: &str) -> Option<u32> {
    let name = name.trim_end().trim_end_matches("/KVM");
    let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    name.to_ascii_lowercase().contains("cpu").then(|| digits.parse().ok())?
}

/// A thread that runs a vCPU.
pub(super) struct Found {
    pub(super) descriptor: Descriptor,
    pub(super) id: u32,
    pub(super) thread: Thread,
    /// Its system call has shown it, not just its name.
    pub(super) is_certain: bool,
}

/// The search for the threads of a VMM's vCPUs.
pub(super) struct Search<'a> {
    pub(super) pid: u32,
    /// Those that are wanted.
    pub(super) vcpus: &'a [Descriptor],
    /// All of the VM.
    pub(super) all: &'a [Descriptor],
    pub(super) signals: &'a ChildSignals,
    /// The error if the kernel refuses.
    pub(super) refused: &'a dyn Fn(io::Error) -> GuestError,
}

impl Search<'_> {
    /// Traces the thread of each vCPU; in the order of their numbers.
    pub(super) fn run(&self) -> Result<Vec<Found>, GuestError> {
        if let Some(found) = self.by_names()? {
            return Ok(found);
        }
        let start = Instant::now();
        let mut found: Vec<Found> = Vec::new();
        while start.elapsed() < PATIENCE {
            let folder =
                fs::read_dir(format!("/proc/{}/task", self.pid)).map_err(|_| GuestError::NoProcess(self.pid))?;
            for entry in folder.take(ENTRIES_MAX).flatten() {
                let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                // The VMM chooses the names; the thread of a vCPU that is still missing later may have any name.
                let may_be_wanted = start.elapsed() > PATIENCE / 2 || self.is_wanted_by_name(id);
                if may_be_wanted && found.iter().all(|known| known.id != id) {
                    found.extend(self.look_at(id, &found)?);
                }
                if found.len() == self.vcpus.len() {
                    found.sort_unstable_by_key(|found| found.descriptor.index);
                    return Ok(found);
                }
            }
            for known in &mut found {
                known.thread.settle()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Threads that we trace ourselves are detached first.
        drop(found);
        Err(permission::explain_missing(self.pid))
    }

    /// The same without a stop, if each vCPU of the VM has one thread with its name, and none that is wanted is seen to do something else. (QEMU counts in names,
    /// and numbers vCPUs for KVM by their places in sockets and cores: then these differ, and one is missing.)
    fn by_names(&self) -> Result<Option<Vec<Found>>, GuestError> {
        let folder = fs::read_dir(format!("/proc/{}/task", self.pid)).map_err(|_| GuestError::NoProcess(self.pid))?;
        let ids = folder.take(ENTRIES_MAX).flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let named: Vec<(u32, u32)> = ids.filter_map(|id| Some((self.named(id)?, id))).collect();
        let mut chosen = Vec::with_capacity(self.vcpus.len());
        for vcpu in self.all {
            let mut ids = named.iter().filter(|(index, _)| *index == vcpu.index).map(|(_, id)| *id);
            let (Some(id), None) = (ids.next(), ids.next()) else { return Ok(None) };
            if !self.vcpus.contains(vcpu) {
                continue;
            }
            let is_certain = match glance(self.pid, id).map_err(self.refused)? {
                Glance::Running => false,
                Glance::InRun(number) if number == vcpu.number => true,
                Glance::InRun(_) | Glance::Other => return Ok(None),
            };
            chosen.push((*vcpu, id, is_certain));
        }
        let mut found = Vec::with_capacity(chosen.len());
        for (descriptor, id, is_certain) in chosen {
            match Thread::seize(id) {
                Ok(thread) => found.push(Found { descriptor, id, thread, is_certain }),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(error) => return Err((self.refused)(error)),
            }
        }
        Ok(Some(found))
    }

    /// The vCPU that a thread is named after.
    fn named(&self, id: u32) -> Option<u32> {
        let name = fs::read(format!("/proc/{}/task/{id}/comm", self.pid)).unwrap_or_default();
        named_vcpu(&String::from_utf8_lossy(&name))
    }

    /// Whether a thread may run a vCPU: one whose name belongs to another vCPU is not even stopped.
    fn is_wanted_by_name(&self, id: u32) -> bool {
        self.named(id).is_none_or(|index| self.vcpus.iter().any(|vcpu| vcpu.index == index))
    }

    /// Traces a thread if it runs one of the vCPUs that are still missing; it runs on in any case.
    fn look_at(&self, id: u32, found: &[Found]) -> Result<Option<Found>, GuestError> {
        let missing = |number: i32| {
            let is_known = found.iter().any(|known| known.descriptor.number == number);
            self.vcpus.iter().find(|vcpu| vcpu.number == number && !is_known).copied()
        };
        match glance(self.pid, id).map_err(self.refused)? {
            Glance::Running => {}
            Glance::InRun(number) if missing(number).is_some() => {}
            _ => return Ok(None),
        }
        let mut thread = match Thread::seize(id) {
            Ok(thread) => thread,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err((self.refused)(error)),
        };
        if let Hold::Yes(call) = thread.hold(self.signals, STOP_TIMEOUT)?
            && let Some(descriptor) = call.run_on.and_then(|number| missing(number as u32 as i32))
        {
            thread.release()?;
            return Ok(Some(Found { descriptor, id, thread, is_certain: true }));
        }
        thread.detach(self.signals, STOP_TIMEOUT)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_waits_for() {
        assert_eq!(parse_syscall("running\n"), Glance::Running);
        let run = "16 0x11 0xae80 0x0 0x55 0x7f 0x0 0x7f10 0x7f20\n";
        assert_eq!(parse_syscall(run), Glance::InRun(17));
        assert_eq!(parse_syscall(&run.replace("ae80", "ae81")), Glance::Other);
        assert_eq!(parse_syscall(&run.replace("16", "202")), Glance::Other);
        assert_eq!(parse_syscall("-1 0x7f 0x7f"), Glance::Other);
        assert_eq!(parse_syscall("16 0x11"), Glance::Other);
        assert_eq!(parse_syscall(""), Glance::Other);
    }

    #[test]
    fn names_of_threads() {
        for (name, vcpu) in [("CPU 3/KVM\n", Some(3)), ("fc_vcpu 12", Some(12)), ("vcpu0", Some(0))] {
            assert_eq!(named_vcpu(name), vcpu, "{name}");
        }
        for name in ["qemu-system-x86", "CPU 0/TCG", "worker 3", "cpu", "", "vcpu 99999999999"] {
            assert_eq!(named_vcpu(name), None, "{name}");
        }
    }

    #[test]
    fn state_and_flags() {
        let line = "77 (a) b (c) S 1 2 3 0 -1 4210944 12 0";
        assert_eq!(parse_stat(line), Some(('S', 4_210_944)));
        assert_eq!(parse_stat("77 (a) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }
}
