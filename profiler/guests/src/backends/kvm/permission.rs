//! Why the kernel does not permit us to trace a process, and the remedy.

use std::fs;
use std::os::unix::fs::MetadataExt;

use glass_profiler_core::names::is_unsafe;

use crate::error::GuestError;

/// The conditions of tracing that are visible from outside.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// The tracer of the process: its id and name.
    tracer: Option<(u32, String)>,
    /// `kernel.yama.ptrace_scope`, 0 if there is none.
    scope: u32,
    /// The process belongs to another user than we are.
    is_foreign: bool,
}

/// The tracer of any thread of a process: its id and name.
fn tracer_of(pid: u32) -> Option<(u32, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(65_536);
    let tracers = threads.filter_map(|entry| {
        let status = fs::read(entry.path().join("status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
    });
    tracers.max().filter(|tracer| *tracer != 0).map(|tracer| (tracer, name_of(tracer)))
}

/// The error for a VMM whose threads could not be found: while another tracer stops them they cannot be recognized.
pub(super) fn explain_missing(pid: u32) -> GuestError {
    if tracer_of(pid).is_some() { explain(pid) } else { GuestError::NoVcpu(pid) }
}

/// The error for a process that may not be traced.
pub(crate) fn explain(pid: u32) -> GuestError {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let owner = |path: String| fs::metadata(path).map(|metadata| metadata.uid()).ok();
    let facts = Facts {
        tracer: tracer_of(pid),
        scope: scope.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
        is_foreign: owner(format!("/proc/{pid}")) != owner("/proc/self".to_owned()),
    };
    GuestError::NotPermitted { action: format!("trace the VMM {pid} by ptrace"), remedy: remedy(facts) }
}

/// The name of a process, without characters that could change the terminal.
fn name_of(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().replace(is_unsafe, "?");
    if name.is_empty() { "another debugger".to_owned() } else { name }
}

fn remedy(facts: Facts) -> String {
    match facts {
        Facts { tracer: Some((tracer, name)), .. } => format!(
            "{name} (process {tracer}) traces it already, and a thread has one tracer: detach or end that one first"
        ),
        Facts { scope: 3.., .. } => "kernel.yama.ptrace_scope is 3, which forbids it until the next boot".to_owned(),
        Facts { scope: 2, .. } => {
            "kernel.yama.ptrace_scope is 2: run glass with CAP_SYS_PTRACE (as root, say)".to_owned()
        }
        Facts { is_foreign: false, scope: 1, .. } => {
            "run glass with CAP_SYS_PTRACE (as root, say), or `sysctl kernel.yama.ptrace_scope=0`".to_owned()
        }
        Facts { is_foreign: true, .. } => {
            "run glass as the user who started the VM, or with CAP_SYS_PTRACE (as root, say)".to_owned()
        }
        // A VMM with more rights than its user, or one that has made itself undumpable.
        _ => "the VMM is protected from its own user: run glass with CAP_SYS_PTRACE (as root, say)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_own_remedy() {
        let says = |facts, words: &str| {
            let text = remedy(facts);
            assert!(text.contains(words), "{text}");
        };
        let facts = Facts::default();
        says(Facts { tracer: Some((77, "gdb".to_owned())), scope: 3, is_foreign: true }, "gdb (process 77)");
        says(Facts { scope: 3, ..facts.clone() }, "next boot");
        says(Facts { scope: 2, ..facts.clone() }, "CAP_SYS_PTRACE");
        says(Facts { scope: 1, ..facts.clone() }, "sysctl kernel.yama.ptrace_scope=0");
        says(Facts { scope: 1, is_foreign: true, ..facts.clone() }, "the user who started");
        says(Facts { is_foreign: true, ..facts.clone() }, "the user who started");
        says(facts, "protected from its own user");
    }
}
