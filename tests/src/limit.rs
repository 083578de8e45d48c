//! Time limits: a test that hangs ends loudly, and takes its children with it.

use crate::{folder, process};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `test`; when it takes longer than `limit`, kills every child and ends the whole program,
/// because a thread that hangs cannot be stopped.
pub fn within<T: Send + 'static>(limit: Duration, test: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let current = std::thread::current();
    let name = current.name().unwrap_or("test").to_owned();
    let worker = std::thread::Builder::new().name(name.clone()).spawn(move || {
        // The receiver waits for us, so there is nobody to tell of an error.
        let _ = sender.send(test());
    });
    let worker = worker.expect("the system has room for a thread");
    match receiver.recv_timeout(limit) {
        Ok(value) => value,
        Err(RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the worker sends before it ends"),
        },
        Err(RecvTimeoutError::Timeout) => {
            process::kill_all();
            folder::remove_all();
            say(&format!("{name}: not done after its time limit of {} s", limit.as_secs()));
            std::process::exit(101);
        }
    }
}

/// Prints a line past the test runner, which keeps what a passing test prints to itself.
pub fn say(line: &str) {
    use std::io::Write;
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}
