//! What the stacks of a Linux kernel have to be, of a guest in which a process reads `/dev/zero` and computes.

/// Where system calls start.
const SYSCALL: &str = "entry_SYSCALL_64_after_hwframe";
/// The handler of timer interrupts.
const INTERRUPT: &str = "__sysvec_apic_timer_interrupt";

/// Code of a process of which nothing is known.
const PROCESS: &str = "[guest user space]";

/// A call stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Innermost first.
    pub functions: Vec<String>,
    /// Why it does not reach the outermost function, if it does not.
    pub broken: Option<String>,
    /// How many samples it stands for, or how much time.
    pub weight: u64,
}

impl Stack {
    /// The kernel's part of a stack that starts with a process and functions of it that have no names: those of the shell, which has no tables to unwind
    /// it by either. Without a kernel's part it is one function.
    #[must_use]
    pub fn of_kernel(mut self) -> Stack {
        let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_process = |name: &String| name.rsplit_once(' ').is_some_and(|(_, number)| is_number(number));
        self.functions.pop_if(|name| is_process(name));
        let count = self.functions.len();
        while self.functions.pop_if(|name| name == PROCESS || name.starts_with("0x")).is_some() {}
        if self.functions.len() < count {
            self.broken = None;
        }
        if self.functions.is_empty() && count > 0 {
            self.functions.push(PROCESS.to_owned());
        }
        self
    }
}

/// Checks the stacks of a vCPU, or of several.
///
/// # Panics
/// If they are wrong.
pub fn check(stacks: &[Stack]) {
    let sum = |condition: &dyn Fn(&Stack) -> bool| -> u64 {
        stacks.iter().filter(|stack| condition(stack)).map(|stack| stack.weight).sum()
    };
    let functions = |condition: &dyn Fn(&[String]) -> bool| sum(&|stack| condition(&stack.functions));
    let total = sum(&|_| true);
    let percent = |part: u64| part as f64 * 100.0 / total.max(1) as f64;
    for stack in stacks {
        if let Some(reason) = &stack.broken {
            eprintln!("{reason}: {}", stack.functions.join(" < "));
        }
    }
    let broken = sum(&|stack| stack.broken.is_some());
    assert!(broken * 20 <= total, "{:.1} % of {} stacks are broken", percent(broken), stacks.len());
    let unnamed = functions(&|names| names.iter().any(|name| name == "?" || name.starts_with("0x")));
    assert!(unnamed * 100 <= total, "{:.1} % of the stacks have addresses without names", percent(unnamed));
    // Interrupts run on a stack of their own, above the one that they left.
    let is_interrupt = |stack: &Stack| stack.functions.iter().any(|name| name == INTERRUPT);
    let cut = stacks.iter().find(|stack| is_interrupt(stack) && stack.broken.is_some());
    assert!(cut.is_none(), "the stack of an interrupt is broken: {cut:?}");
    // A process has one frame; its system calls start at the one entry.
    assert!(functions(&|names| names == [PROCESS]) > 0, "no process runs");
    let syscalls = functions(&|names| names.ends_with(&["do_syscall_64".into(), SYSCALL.into()]));
    let entries = functions(&|names| names.iter().any(|name| name == SYSCALL));
    let roots = functions(&|names| names.last().is_some_and(|name| name == SYSCALL));
    assert!(syscalls * 10 >= total, "{:.1} % are system calls", percent(syscalls));
    assert_eq!(entries, roots, "nothing calls the entry of system calls");
    let reads = functions(&|names| {
        let called = |by: &[&str]| names.windows(by.len()).any(|part| part == by);
        called(&["read_zero", "vfs_read", "ksys_read"]) && called(&["do_syscall_64", SYSCALL])
    });
    assert!(reads * 50 >= total, "{:.1} % are reads of /dev/zero", percent(reads));
}
