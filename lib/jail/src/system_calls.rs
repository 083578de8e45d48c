//! Which system calls are possible (seccomp; Linux, Documentation/userspace-api/seccomp_filter.rst).

use crate::filter::{self, Verdict};
use crate::{Missing, older};
use std::collections::BTreeMap;

/// A condition on one argument of a system call: of its low 32 bits, those of `mask` have to be those of `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Which argument, from 0 on.
    pub argument: u8,
    /// The bits that matter.
    pub mask: u32,
    /// What they have to be.
    pub value: u32,
}

/// The system calls of a process. All that is not in it ends the process by `SIGSYS`: a call that the program never makes was made by other
/// code, and an error would let that try the next one. The kernel's log has its number (`dmesg`, `type=1326`).
#[derive(Debug, Clone)]
pub struct SystemCalls {
    allowed: BTreeMap<i64, Vec<Vec<Condition>>>,
    /// By their errors.
    refused: BTreeMap<i32, Vec<i64>>,
}

/// What each program in Rust does: it reads and writes open files, allocates memory, reads clocks, waits, panics and ends.
const OF_EVERY_PROGRAM: [i64; 34] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_fstat,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// What each program may try: the backtrace of a panic or an error reads files, and is shorter without.
const REFUSED: [i64; 5] =
    [libc::SYS_openat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_readlinkat, libc::SYS_getcwd];
const MAP_KIND: u32 = libc::MAP_TYPE as u32;
const MAP_PRIVATE: u32 = libc::MAP_PRIVATE as u32;
const MAP_ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const EXECUTABLE: u32 = libc::PROT_EXEC as u32;

impl SystemCalls {
    /// Those that each program makes; it is refused to open files and to read their metadata. Memory that is mapped cannot become executable, and what can be written is limited by
    /// [`Jail::memory_bytes`](crate::Jail::memory_bytes) or has a file.
    pub fn of_every_program() -> SystemCalls {
        let data = Condition { argument: 2, mask: EXECUTABLE, value: 0 };
        let is_private = Condition { argument: 3, mask: MAP_KIND, value: MAP_PRIVATE };
        let has_file = Condition { argument: 3, mask: MAP_ANONYMOUS, value: 0 };
        // The standard library checks it before it closes a file, in debug builds.
        let is_open = Condition { argument: 1, mask: u32::MAX, value: libc::F_GETFD as u32 };
        SystemCalls { allowed: BTreeMap::new(), refused: BTreeMap::new() }
            .allow(&OF_EVERY_PROGRAM)
            .allow(older::POLL)
            .refuse(&REFUSED)
            .refuse(older::OPEN)
            .refuse(older::STAT)
            .refuse(older::ACCESS)
            .refuse(older::READLINK)
            .allow_where(libc::SYS_mmap, &[data, is_private])
            .allow_where(libc::SYS_mmap, &[data, has_file])
            .allow_where(libc::SYS_mprotect, &[data])
            .allow_where(libc::SYS_fcntl, &[is_open])
    }

    /// Allows system calls by their numbers (`libc::SYS_...`), with any arguments.
    pub fn allow(mut self, numbers: &[i64]) -> SystemCalls {
        for number in numbers {
            self.allowed.insert(*number, Vec::new());
        }
        self.without_refusal(numbers)
    }

    /// What is allowed later is not refused.
    fn without_refusal(mut self, numbers: &[i64]) -> SystemCalls {
        self.refused.values_mut().for_each(|refused| refused.retain(|number| !numbers.contains(number)));
        self
    }

    /// Allows a system call if all `conditions` hold. Several of these for the same call: if one holds.
    pub fn allow_where(mut self, number: i64, conditions: &[Condition]) -> SystemCalls {
        self.allowed.entry(number).or_default().push(conditions.to_vec());
        self.without_refusal(&[number])
    }

    /// These fail with `EPERM` and do not end the process: what a library tries, and can do without.
    pub fn refuse(mut self, numbers: &[i64]) -> SystemCalls {
        self.refused.entry(libc::EPERM).or_default().extend(numbers);
        self
    }

    /// Threads can be started, but no processes.
    pub fn with_threads(mut self) -> SystemCalls {
        let thread = libc::CLONE_THREAD as u32;
        let is_thread = Condition { argument: 0, mask: thread, value: thread };
        let name = libc::PR_SET_NAME as u32;
        let is_name = Condition { argument: 0, mask: u32::MAX, value: name };
        // Its flags are in memory, which a filter does not see. Without it C libraries use `clone`.
        self.refused.entry(libc::ENOSYS).or_default().push(libc::SYS_clone3);
        self.allow_where(libc::SYS_clone, &[is_thread]).allow_where(libc::SYS_prctl, &[is_name])
    }

    /// From here on no others are possible. What is missing, if something is.
    pub(crate) fn apply(self) -> Option<Missing> {
        let Some(architecture) = filter::architecture() else {
            return Some(Missing::SystemCalls(format!("not known for {}", std::env::consts::ARCH)));
        };
        let program = filter::program(&self.verdicts(), architecture);
        seccompiler::apply_filter(&program).err().map(|error| Missing::SystemCalls(error.to_string()))
    }

    /// What is refused is not allowed.
    fn verdicts(self) -> BTreeMap<i64, Verdict> {
        let allowed = self.allowed.into_iter().map(|(number, rules)| {
            (number, if rules.is_empty() { Verdict::Allow } else { Verdict::AllowWhere(rules) })
        });
        let mut verdicts: BTreeMap<_, _> = allowed.collect();
        for (error, numbers) in self.refused {
            verdicts.extend(numbers.into_iter().map(|number| (number, Verdict::Refuse(error))));
        }
        verdicts
    }
}
