//! Whether a vCPU's thread waits in the VMM because its VM is paused, observed without stopping it.
//!
//! What a thread does and what that means for its vCPU; `KvmVm` distinguishes the cases in this order:
//!
//! | thread | vCPU |
//! |---|---|
//! | has left `KVM_RUN` because of `hlt` (`KVM_EXIT_HLT`) | idle: the APIC is in the VMM, and the VMM waits for an interrupt, on a condition in QEMU. With an APIC in KVM there is no such exit |
//! | sleeps in `KVM_RUN` | idle: it is halted, or was never started |
//! | in `KVM_RUN` on a CPU, behind `hlt` or `mwait` | idle: KVM polls before it sleeps ([`super::halt`]) |
//! | in `KVM_RUN` otherwise | running, also while the host runs another thread |
//! | waits outside of `KVM_RUN` for another thread, in one wait for some time | paused: this module |
//! | is stopped with its process (SIGSTOP) | paused |
//! | elsewhere outside of `KVM_RUN` | running: the VMM handles an exit |
//!
//! A VMM that is to pause interrupts `KVM_RUN` by a signal, and has the thread wait until it is to continue: QEMU on a condition
//! (`qemu_wait_io_event`), crosvm on a condition, Firecracker on a channel, Cloud Hypervisor parked, kvmtool on a mutex. Each of them is a
//! futex to the kernel. While it handles an exit it waits on a futex as well, for a lock that another thread has; but not for long, and not
//! in one piece. So the time decides, and that the thread has not run in between: it is in the same call with the same arguments and the same stack, and was
//! not switched since. A stop by ptrace would end the wait, therefore such a thread is not stopped. It need not be: nothing of the
//! vCPU changes meanwhile, and the registers that KVM has written at its last exit are those of the vCPU.
//!
//! Waits for devices are no futex: a thread that writes to a full pipe or polls a descriptor counts as running.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::str::SplitAsciiWhitespace;
use std::time::Duration;

/// How long a thread waits until its VM counts as paused: on a condition, a channel, or as Rust programs wait for anything (`FUTEX_WAIT_BITSET`).
/// While a VM is not paused the waits of QEMU's vCPUs of this kind are for other vCPUs, and take less than a millisecond.
const CONDITION: Duration = Duration::from_millis(20);
/// The same of a C library's mutex, and of conditions of musl (`FUTEX_WAIT`). QEMU's main loop may keep its lock for longer than the other limit.
const LOCK: Duration = Duration::from_secs(1);

/// A wait of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wait {
    /// The line of `/proc/PID/task/TID/syscall`: number and arguments of the call, stack and instruction pointer.
    call: String,
    /// How often the thread was switched, by itself or by the kernel: it does not change while the thread sleeps.
    switches: (u64, u64),
    /// From when on it is the wait of a pause.
    limit: Duration,
}

/// The arguments of a system call in such a line, if it is one and has this number.
fn arguments(line: &str, call: libc::c_long) -> Option<impl Iterator<Item = u64>> {
    let mut words: SplitAsciiWhitespace = line.split_ascii_whitespace();
    // A thread on a CPU is "running"; one that is in no call has -1.
    let is_it = words.next()?.parse() == Ok(call);
    is_it.then(|| words.map_while(number))
}

/// Whether the thread of this file, `/proc/PID/task/TID/syscall`, is in `KVM_RUN` and not on a CPU. It costs some 3 us.
pub(super) fn is_in_kvm_run(syscall: &File) -> bool {
    /// `KVM_RUN` of `linux/kvm.h`.
    const KVM_RUN: u64 = 0xae80;
    let mut bytes = [0; 256];
    let Ok(count) = syscall.read_at(&mut bytes, 0) else { return false };
    let line = String::from_utf8_lossy(&bytes[..count]);
    arguments(&line, libc::SYS_ioctl).and_then(|mut arguments| arguments.nth(1)) == Some(KVM_RUN)
}

/// A hexadecimal number of such a line.
fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// When a call is the wait of a pause, if it may be one.
fn limit(call: &str) -> Option<Duration> {
    /// `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME` of `linux/futex.h`.
    const FLAGS: u64 = 128 | 256;
    let operation = arguments(call, libc::SYS_futex)?.nth(1)? & 0xffff_ffff & !FLAGS;
    match i32::try_from(operation).ok()? {
        libc::FUTEX_WAIT => Some(LOCK),
        libc::FUTEX_WAIT_BITSET => Some(CONDITION),
        _ => None,
    }
}

/// The last two numbers of such a line.
fn stack_and_instruction(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace().rev();
    let (instruction, stack) = (number(words.next()?)?, number(words.next()?)?);
    Some((stack, instruction))
}

/// The numbers of switches in `/proc/PID/task/TID/status`.
fn switches(status: &str) -> Option<(u64, u64)> {
    let number = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    Some((number("voluntary_ctxt_switches:")?, number("nonvoluntary_ctxt_switches:")?))
}

/// The waits of one thread, as far as it was looked at.
#[derive(Debug)]
pub(super) struct Waiting {
    folder: String,
    /// The last one, and when it was seen first.
    last: Option<(Wait, u64)>,
}

impl Waiting {
    pub(super) fn new(pid: u32, thread: u32) -> Waiting {
        Waiting { folder: format!("/proc/{pid}/task/{thread}"), last: None }
    }

    /// The wait in which the thread is, if it is in one. It costs some 10 us.
    fn read(&self) -> Option<Wait> {
        let read = |name| fs::read(format!("{}/{name}", self.folder)).ok();
        let call = String::from_utf8(read("syscall")?).ok()?;
        let limit = limit(&call)?;
        // The name in it may have bytes that are not UTF-8.
        let switches = switches(&String::from_utf8_lossy(&read("status")?))?;
        Some(Wait { call, switches, limit })
    }

    /// Takes note of what the thread does. `None` if it does not wait for another thread, else whether it does for so long that
    /// its VM is paused.
    pub(super) fn look(&mut self, now_ns: u64) -> Option<bool> {
        let wait = self.read();
        self.note(wait, now_ns)
    }

    fn note(&mut self, wait: Option<Wait>, now_ns: u64) -> Option<bool> {
        let known = self.last.take();
        let wait = wait?;
        let limit = wait.limit;
        let since_ns = known.filter(|(known, _)| *known == wait).map_or(now_ns, |(_, since_ns)| since_ns);
        self.last = Some((wait, since_ns));
        Some(u128::from(now_ns.saturating_sub(since_ns)) >= limit.as_nanos())
    }

    /// The stack pointer and the instruction pointer of the wait in which it was at the last look.
    pub(super) fn stack_and_instruction(&self) -> Option<(u64, u64)> {
        stack_and_instruction(&self.last.as_ref()?.0.call)
    }

    /// Whether it has been in the same wait since the last look.
    pub(super) fn is_unchanged(&self) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| self.read().as_ref() == Some(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Condvar, Mutex};
    use std::time::Instant;

    const CONDITION_LINE: &str = "202 0x7f10 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe00 0x7f55\n";

    #[test]
    fn where_a_call_was_made() {
        assert_eq!(stack_and_instruction(CONDITION_LINE), Some((0x7ffe00, 0x7f55)));
        assert_eq!((stack_and_instruction("running\n"), stack_and_instruction("0x1")), (None, None));
    }

    #[test]
    fn calls_that_wait_for_another_thread() {
        assert_eq!(limit(CONDITION_LINE), Some(CONDITION));
        // As Rust's library waits, and a mutex of the C library; the upper half of the register may be anything.
        assert_eq!(limit(&CONDITION_LINE.replace("0x189", "0x89")), Some(CONDITION));
        assert_eq!(limit(&CONDITION_LINE.replace("0x189", "0xdead00000080")), Some(LOCK));
        // A wake, KVM_RUN, a sleep, user space, a CPU, nothing.
        assert_eq!(limit(&CONDITION_LINE.replace("0x189", "0x81")), None);
        for other in ["16 0x11 0xae80 0x0 0x55 0x7f 0x0 0x7f10 0x7f20\n", "230 0x0 0x0 0x7f", "-1 0x7f 0x7f"] {
            assert_eq!(limit(other), None, "{other}");
        }
        for other in ["running\n", "202", "202 0x1", "202 1 9", ""] {
            assert_eq!(limit(other), None, "{other}");
        }
    }

    #[test]
    fn the_numbers_of_switches() {
        let status = "Name:\tCPU 0/KVM\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(switches(status), Some((150, 545)));
        assert_eq!(switches("Name:\tx\nvoluntary_ctxt_switches:\t150\n"), None);
        assert_eq!(switches(""), None);
    }

    #[test]
    fn one_wait_that_takes_long_is_a_pause() {
        let wait = |call: &str, switches| Some(Wait { call: call.to_owned(), switches, limit: CONDITION });
        let mut waiting = Waiting::new(1, 1);
        let mut note = |wait, ms: u64| waiting.note(wait, 7 + ms * 1_000_000);
        assert_eq!(note(wait("a", (1, 1)), 0), Some(false));
        assert_eq!(note(wait("a", (1, 1)), 19), Some(false));
        assert_eq!(note(wait("a", (1, 1)), 20), Some(true));
        // It has run, and waits at the same place again.
        assert_eq!(note(wait("a", (2, 1)), 21), Some(false));
        assert_eq!(note(wait("a", (2, 1)), 40), Some(false));
        assert_eq!(note(wait("b", (2, 1)), 41), Some(false));
        assert_eq!(note(wait("b", (2, 1)), 61), Some(true));
        assert_eq!(note(None, 62), None);
        assert_eq!(note(wait("b", (2, 1)), 63), Some(false), "it did something else in between");
    }

    /// What is seen of a thread that does something, for some time.
    fn seen(act: impl Fn() + Sync) -> Vec<Option<bool>> {
        let (id, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = fs::read_link("/proc/thread-self").unwrap();
                id.store(link.file_name().unwrap().to_str().unwrap().parse().unwrap(), Ordering::Release);
                while !is_over.load(Ordering::Acquire) {
                    act();
                }
            });
            while id.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let mut waiting = Waiting::new(std::process::id(), id.load(Ordering::Acquire));
            let start = Instant::now();
            let mut seen = Vec::new();
            while start.elapsed() < Duration::from_millis(150) {
                seen.push(waiting.look(crate::sys::monotonic_ns()));
                std::thread::sleep(Duration::from_millis(2));
            }
            is_over.store(true, Ordering::Release);
            seen
        })
    }

    #[test]
    fn threads_of_our_own() {
        let (mutex, condition) = (Mutex::new(()), Condvar::new());
        let wait = |time| drop(condition.wait_timeout(mutex.lock().unwrap(), time).unwrap());
        let long = seen(|| wait(Duration::from_secs(1)));
        assert!(long.contains(&Some(true)), "{long:?}");
        let first = long.iter().position(|seen| *seen == Some(true)).unwrap();
        assert!(first > 2 && long[first..].iter().all(|seen| *seen == Some(true)), "{long:?}");
        // At the same place again and again, but not for long.
        let short = seen(|| wait(Duration::from_millis(3)));
        assert!(short.contains(&Some(false)) && !short.contains(&Some(true)), "{short:?}");
        let other = seen(|| std::thread::sleep(Duration::from_millis(100)));
        assert!(other.iter().filter(|seen| seen.is_some()).count() < 2, "{other:?}");
        assert_eq!(Waiting::new(1 << 22 | 1, 1).look(0), None, "no such process");
    }
}
