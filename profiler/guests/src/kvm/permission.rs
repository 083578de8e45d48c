//! Why the kernel does not let us trace a process, and what would change that.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::error::GuestError;

/// What decides about tracing, as far as it can be seen from outside.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// Who traces the process already.
    tracer: Option<u32>,
    /// `kernel.yama.ptrace_scope`, 0 if there is none.
    scope: u32,
    /// The process belongs to another user than we are.
    is_foreign: bool,
}

/// The error for a process that may not be traced.
pub(crate) fn explain(pid: u32) -> GuestError {
    let tracers = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(65_536);
    let tracer = tracers.filter_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
    });
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let owner = |path: String| fs::metadata(path).map(|metadata| metadata.uid()).ok();
    let facts = Facts {
        tracer: tracer.max().filter(|tracer| *tracer != 0 && *tracer != std::process::id()),
        scope: scope.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
        is_foreign: owner(format!("/proc/{pid}")) != owner("/proc/self".to_owned()),
    };
    GuestError::NotPermitted { action: format!("trace the VMM {pid} by ptrace"), remedy: remedy(facts) }
}

fn remedy(facts: Facts) -> String {
    match facts {
        Facts { tracer: Some(tracer), .. } => format!("process {tracer} traces it already; end that one first"),
        Facts { scope: 3.., .. } => "kernel.yama.ptrace_scope is 3, which forbids it until the next boot".to_owned(),
        Facts { scope: 2, .. } => {
            "kernel.yama.ptrace_scope is 2: run glass with CAP_SYS_PTRACE (as root, say)".to_owned()
        }
        Facts { is_foreign: false, scope: 1, .. } => {
            "run glass with CAP_SYS_PTRACE (as root, say), or `sysctl kernel.yama.ptrace_scope=0`".to_owned()
        }
        _ => "run glass as the user who started the VM, or with CAP_SYS_PTRACE (as root, say)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_own_remedy() {
        let says = |facts, words: &str| assert!(remedy(facts).contains(words), "{}", remedy(facts));
        let facts = Facts::default();
        says(Facts { tracer: Some(77), scope: 3, is_foreign: true }, "process 77");
        says(Facts { scope: 3, ..facts }, "next boot");
        says(Facts { scope: 2, ..facts }, "CAP_SYS_PTRACE");
        says(Facts { scope: 1, ..facts }, "sysctl kernel.yama.ptrace_scope=0");
        says(Facts { scope: 1, is_foreign: true, ..facts }, "the user who started");
        says(facts, "CAP_SYS_PTRACE");
    }
}
