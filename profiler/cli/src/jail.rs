//! The jail of the process that reads what a VM or a process and its files contain (decisions 34 and 35). It has what it writes, its perf events and the socket to the
//! holder open when it enters.

use glass_lib_jail::{Condition, Jail, SystemCalls, older};

use crate::console::say;

/// Memory of its own: 32 MiB of samples that wait, stacks, and the names of a large program.
const MEMORY_BYTES: u64 = 1 << 30;
/// What it opens later: files that processes have mapped are kept open.
const DESCRIPTORS: u64 = 2048;
/// Perf events are switched on and off (Linux, include/uapi/linux/perf_event.h).
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;

/// Enters. Files that each user may read can be read; no process can be started, and no other one be seen or reached. Returns a sentence
/// for the recording if a part is not possible here.
pub fn enter() -> Option<String> {
    report(jail().system_calls(system_calls()))
}

/// Enters, and prints the sentence.
pub fn enter_and_say() {
    if let Some(gap) = enter() {
        say!("glass: warning: {gap}");
    }
}

/// The same for a process that draws on its terminal and reads keys.
pub fn enter_with_screen() -> Option<String> {
    report(jail().terminal().system_calls(with_screen(system_calls())))
}

fn jail() -> Jail {
    // Beside those of a process that is sampled: one for each thread and CPU.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    Jail::new().read_only("/").own_user().memory_bytes(MEMORY_BYTES).descriptors(open + DESCRIPTORS)
}

fn report(jail: Jail) -> Option<String> {
    match jail.enter() {
        Ok(report) => report.sentence("the process that reads the guest"),
        Err(error) => Some(format!("the process that reads the guest has no jail: {error}")),
    }
}

fn system_calls() -> SystemCalls {
    let files = [
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
        libc::SYS_getdents64,
        libc::SYS_getcwd,
        libc::SYS_fcntl,
        libc::SYS_dup,
    ];
    // Its recording, which may be a pipe.
    let output = [libc::SYS_ftruncate, libc::SYS_pwrite64, libc::SYS_fsync, libc::SYS_fdatasync];
    // The holder: messages, files, and its end or that of a command.
    let holder =
        [libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_wait4, libc::SYS_waitid];
    let itself = [
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getrusage,
        libc::SYS_sysinfo,
        libc::SYS_uname,
        libc::SYS_prlimit64,
        libc::SYS_clock_getres,
        libc::SYS_gettimeofday,
        libc::SYS_rt_sigpending,
        libc::SYS_membarrier,
    ];
    let calls = SystemCalls::of_every_program().with_threads();
    let older = [older::OPEN, older::STAT, older::ACCESS, older::READLINK].concat();
    let calls = [&files[..], &older, &output, &holder, &itself].into_iter().fold(calls, SystemCalls::allow);
    // What libraries try, and do without: the file of a failed recording is removed by the holder, and the earlier one gets its name back.
    let calls = calls.refuse(older::UNLINK).refuse(older::RENAME).refuse(&[
        libc::SYS_unlinkat,
        libc::SYS_renameat2,
        libc::SYS_socket,
        libc::SYS_sched_setaffinity,
    ]);
    // The size and the kind of the terminal.
    with_controls(calls, &[libc::TCGETS, libc::TIOCGWINSZ, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE])
}

fn with_controls(calls: SystemCalls, commands: &[libc::Ioctl]) -> SystemCalls {
    commands.iter().fold(calls, |calls, command| {
        let is_it = Condition { argument: 1, mask: u32::MAX, value: *command as u32 };
        calls.allow_where(libc::SYS_ioctl, &[is_it])
    })
}

/// What crossterm does: it waits for keys and for SIGWINCH, which arrives by a pair of sockets. The mode of the terminal is set when the
/// screen is taken over and given back.
fn with_screen(calls: SystemCalls) -> SystemCalls {
    let is_unix = Condition { argument: 0, mask: u32::MAX, value: libc::AF_UNIX as u32 };
    let calls = calls.allow_where(libc::SYS_socketpair, &[is_unix]);
    // Without a terminal it would run `tput`, beginning with a pipe.
    let calls = calls.refuse(&[libc::SYS_pipe2]);
    with_controls(calls, &[libc::TCSETS, libc::TCSETSW, libc::TCSETSF, libc::TCGETS2, libc::TCSETS2, libc::FIONBIO])
}
