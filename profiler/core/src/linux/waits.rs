//! What a task of a Linux waits for, by the functions of the kernel that it waits in.

use std::ops::Range;

use super::tasks::TaskState;
use crate::map::SymbolMap;

/// What a task that does not run waits for. [`Wait::OnCpu`] is that of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Nothing: it runs.
    OnCpu,
    /// A CPU.
    Cpu,
    /// A disk or a file system.
    Disk,
    /// Another thread: a futex, a lock of the kernel or of a file.
    Lock,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// One of several files, or requests that the kernel has (`poll`, `epoll`, `select`, `io_uring`).
    Events,
    /// A terminal.
    Terminal,
    /// Time.
    Timer,
    /// The end of another process.
    Process,
    /// A signal.
    Signal,
    /// To be continued: it was stopped by a signal or a debugger.
    Stopped,
    /// Work: a thread of the kernel.
    Work,
    /// Something else.
    Other,
}

impl Wait {
    /// All of them; the position of one is its number.
    pub const ALL: [Wait; 14] = [
        Wait::OnCpu,
        Wait::Cpu,
        Wait::Disk,
        Wait::Lock,
        Wait::Pipe,
        Wait::Socket,
        Wait::Events,
        Wait::Terminal,
        Wait::Timer,
        Wait::Process,
        Wait::Signal,
        Wait::Stopped,
        Wait::Work,
        Wait::Other,
    ];

    /// What stands for it in a stack, as the innermost frame.
    #[must_use]
    pub const fn frame(self) -> &'static str {
        match self {
            Wait::OnCpu => "[on a CPU]",
            Wait::Cpu => "[waits for a CPU]",
            Wait::Disk => "[waits for a disk]",
            Wait::Lock => "[waits for a lock]",
            Wait::Pipe => "[waits for a pipe]",
            Wait::Socket => "[waits for a socket]",
            Wait::Events => "[waits for events]",
            Wait::Terminal => "[waits for a terminal]",
            Wait::Timer => "[waits for a timer]",
            Wait::Process => "[waits for a process]",
            Wait::Signal => "[waits for a signal]",
            Wait::Stopped => "[stopped]",
            Wait::Work => "[waits for work]",
            Wait::Other => "[waits]",
        }
    }
}

/// Functions in which tasks wait, without what compilers append to names. The innermost of them in a stack decides, so what all kinds of waits use
/// (`schedule_timeout`, `schedule_hrtimeout_range`) is not among them. Names of Linux 5.10 to 7.3.
const FUNCTIONS: [(Wait, &[&str]); 11] = [
    (
        Wait::Disk,
        &[
            "io_schedule",
            "io_schedule_timeout",
            "bit_wait_io",
            "folio_wait_bit_common",
            "wait_on_page_bit_common",
            "jbd2_log_wait_commit",
            "jbd2_journal_commit_transaction",
            "wait_transaction_locked",
            "add_transaction_credits",
            "__wait_on_buffer",
            "rq_qos_wait",
            "submit_bio_wait",
            "blkdev_issue_flush",
            "blk_mq_freeze_queue_wait",
            "wait_for_completion_io",
            "wait_for_completion_io_timeout",
            "wait_sb_inodes",
            "rpc_wait_bit_killable",
            "nfs_wait_bit_killable",
            "request_wait_answer",
        ],
    ),
    (
        Wait::Lock,
        &[
            "futex_wait_queue",
            "futex_wait_queue_me",
            "futex_do_wait",
            "__futex_wait",
            "futex_wait",
            "futex_wait_requeue_pi",
            "futex_lock_pi",
            "__mutex_lock",
            "__ww_mutex_lock",
            "__mutex_lock_slowpath",
            "rwsem_down_read_slowpath",
            "rwsem_down_write_slowpath",
            "__down_common",
            "__down",
            "percpu_rwsem_wait",
            "__percpu_down_read",
            "rt_mutex_slowlock",
            "rt_mutex_slowlock_block",
            "rwbase_read_lock",
            "rwbase_write_lock",
            "flock_lock_inode_wait",
            "locks_lock_inode_wait",
            "fcntl_setlk",
            "do_semtimedop",
            "__do_semtimedop",
        ],
    ),
    (
        Wait::Pipe,
        &["pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write", "pipe_wait", "wait_for_partner", "fifo_open"],
    ),
    (
        Wait::Socket,
        &[
            "sk_wait_data",
            "__skb_wait_for_more_packets",
            "unix_stream_data_wait",
            "unix_stream_read_generic",
            "unix_wait_for_peer",
            "sock_alloc_send_pskb",
            "inet_csk_accept",
            "inet_csk_wait_for_connect",
            "inet_wait_for_connect",
            "__inet_stream_connect",
            "sk_stream_wait_memory",
            "sk_stream_wait_connect",
            "sk_stream_wait_close",
            "vsock_connectible_wait_data",
            "vsock_accept",
            "packet_recvmsg",
        ],
    ),
    (
        Wait::Events,
        &[
            "ep_poll",
            "do_epoll_wait",
            "do_poll",
            "do_sys_poll",
            "do_select",
            "poll_schedule_timeout",
            "io_cqring_wait",
            "io_sq_thread",
            "io_wq_worker",
            "read_events",
            "eventfd_read",
            "signalfd_read",
            "inotify_read",
            "fanotify_read",
            "fuse_dev_do_read",
            "do_syslog",
            "syslog_print",
            "devkmsg_read",
            "wq_sleep",
        ],
    ),
    (Wait::Terminal, &["n_tty_read", "n_tty_write", "wait_port_writable", "port_fops_read", "tty_wait_until_sent"]),
    (
        Wait::Timer,
        &[
            "do_nanosleep",
            "hrtimer_nanosleep",
            "msleep",
            "msleep_interruptible",
            "usleep_range",
            "usleep_range_state",
            "timerfd_read",
        ],
    ),
    (Wait::Process, &["do_wait", "kernel_wait4", "wait_for_vfork_done", "kernel_clone", "_do_fork"]),
    (Wait::Signal, &["do_sigtimedwait", "sigsuspend", "__do_sys_pause", "__x64_sys_pause", "__se_sys_pause"]),
    (Wait::Stopped, &["do_signal_stop", "ptrace_stop", "do_freezer_trap", "__refrigerator"]),
    (
        Wait::Work,
        &[
            "worker_thread",
            "kthreadd",
            "smpboot_thread_fn",
            "kthread_worker_fn",
            "rescuer_thread",
            "kjournald2",
            "kswapd",
            "kcompactd",
            "khugepaged",
            "oom_reaper",
            "rcu_gp_kthread",
            "rcu_tasks_one_gp",
            "devtmpfsd",
            "kauditd_thread",
            "irq_thread",
            "watchdog",
        ],
    ),
];

/// The functions of a kernel in which tasks wait.
#[derive(Debug, Clone, Default)]
pub struct WaitFunctions {
    /// By their addresses.
    ranges: Vec<(Range<u64>, Wait)>,
}

impl WaitFunctions {
    /// Those of a kernel and its modules.
    #[must_use]
    pub fn of(map: &SymbolMap) -> WaitFunctions {
        let kind_of = |name: &str| {
            let name = name.split('.').next().unwrap_or(name);
            FUNCTIONS.iter().find(|(_, names)| names.contains(&name)).map(|(wait, _)| *wait)
        };
        let mut ranges = map.functions_by(kind_of);
        ranges.sort_by_key(|(range, _)| range.start);
        WaitFunctions { ranges }
    }

    /// What a task in this state, which is on no CPU, waits for; `calls` are the addresses of its calls in the kernel, innermost first.
    #[must_use]
    pub fn wait(&self, state: TaskState, calls: impl Iterator<Item = u64>) -> Wait {
        match state {
            TaskState::Runnable => Wait::Cpu,
            TaskState::Stopped | TaskState::Traced => Wait::Stopped,
            _ => calls.filter_map(|address| self.at(address)).next().unwrap_or(Wait::Other),
        }
    }

    fn at(&self, address: u64) -> Option<Wait> {
        let behind = self.ranges.partition_point(|(range, _)| range.start <= address);
        let (range, wait) = self.ranges.get(behind.checked_sub(1)?)?;
        range.contains(&address).then_some(*wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_the_order_of_the_numbers() {
        for (number, wait) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, number);
        }
        let frames: std::collections::HashSet<_> = Wait::ALL.map(Wait::frame).into();
        assert_eq!(frames.len(), Wait::ALL.len());
        let names: Vec<_> = FUNCTIONS.iter().flat_map(|(_, names)| *names).collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "a function is in two lists");
    }

    #[test]
    fn the_innermost_function_that_waits_decides() {
        let map = "1000 t schedule\n1100 t io_schedule\n1200 t schedule_hrtimeout_range\n1300 t ep_poll\n1400 t do_nanosleep.cold.3\n1500 t vfs_read\n1600 T linux_banner\n";
        let functions = WaitFunctions::of(&SymbolMap::parse(map.as_bytes(), &["linux_banner"]).unwrap());
        let wait = |state, calls: &[u64]| functions.wait(state, calls.iter().copied());
        assert_eq!(wait(TaskState::Sleeping, &[0x1010, 0x1210, 0x1310]), Wait::Events);
        assert_eq!(wait(TaskState::Blocked, &[0x1010, 0x11ff, 0x1310]), Wait::Disk);
        assert_eq!(wait(TaskState::Sleeping, &[0x1010, 0x1400]), Wait::Timer);
        assert_eq!(wait(TaskState::Sleeping, &[0x1010, 0x1510, 0xfff]), Wait::Other);
        assert_eq!(wait(TaskState::Runnable, &[0x1110]), Wait::Cpu);
        assert_eq!(wait(TaskState::Traced, &[0x1110]), Wait::Stopped);
        assert_eq!(WaitFunctions::default().wait(TaskState::Sleeping, [0x1110].into_iter()), Wait::Other);
    }
}
