//! Watches whether QEMU has stopped the VM by itself: it does so when it cannot continue, and prints nothing.

use crate::console::say;
use glass_profiler_guests::SocketAddress;
use glass_profiler_guests::backends::monitor::Monitor;
use glass_profiler_guests::find::monitor::{Language, MonitorAddress};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Interval of the queries. A query costs QEMU a few hundred microseconds.
const ROUND: Duration = Duration::from_secs(2);
/// The name of the monitor's socket in the folder of the run.
const SOCKET: &str = "monitor";
/// Why QEMU stops a VM for good (`RunState` in its `qapi/run-state.json`). A VM that a debugger or a user stops is not among them.
const REASONS: [(&str, &str); 4] = [
    ("io-error", "the host could not read or write its disk: make space there, then start the VM again"),
    ("internal-error", "KVM or QEMU cannot run its code: start the VM again"),
    ("guest-panicked", "the guest has reported a panic: start the VM again"),
    ("watchdog", "its watchdog has fired: start the VM again"),
];

/// QEMU's options for the monitor.
pub(super) fn arguments(folder: &Path) -> [String; 4] {
    let socket = super::escape::escape(&folder.join(SOCKET));
    let chardev = format!("socket,path={socket},server=on,wait=off,id=monitor");
    ["-chardev".to_owned(), chardev, "-mon".to_owned(), "chardev=monitor,mode=control".to_owned()]
}

/// Watches until this is dropped.
pub(super) struct Watch {
    _end: Sender<()>,
}

impl Watch {
    /// Starts to watch the QEMU whose sockets are in `folder`. Prints one sentence each time that it stops the VM.
    pub(super) fn start(folder: &Path) -> Watch {
        let (end, ended) = mpsc::channel();
        let socket = folder.join(SOCKET);
        std::thread::spawn(move || {
            let mut before = None;
            while ended.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
                let now = reason(&socket);
                if let Some((name, advice)) = now.filter(|_| before != now) {
                    say!("glass: QEMU has stopped the VM ({name}): {advice}");
                }
                before = now;
            }
        });
        Watch { _end: end }
    }
}

/// Why the VM is stopped; `None` also if QEMU does not answer.
fn reason(socket: &Path) -> Option<(&'static str, &'static str)> {
    let address = MonitorAddress { language: Language::Qmp, socket: SocketAddress::Unix(socket.to_path_buf()) };
    // A new connection for each query: the monitor serves one client at a time, and others may need it.
    let status = Monitor::connect(&address).ok()?.ask("info status").ok()?;
    known(&status)
}

/// The reason in the output of `info status`, `VM status: paused (io-error)`.
fn known(status: &str) -> Option<(&'static str, &'static str)> {
    let word = status.split_once('(')?.1.split_once(')')?.0;
    REASONS.into_iter().find(|(name, _)| *name == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_qemu_does_by_itself_is_a_reason() {
        assert_eq!(known("VM status: paused (io-error)\r\n").map(|(name, _)| name), Some("io-error"));
        for other in ["VM status: running\r\n", "VM status: paused\r\n", "VM status: paused (debug)", "", "(", "x)("] {
            assert_eq!(known(other), None, "{other}");
        }
    }
}
