//! Time limits: a test that hangs fails, and its children are killed.

use crate::{folder, process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `test`; when it takes longer than `limit`, kills every child and ends the whole program,
/// because a thread that hangs cannot be stopped.
pub fn within<T: Send + 'static>(limit: Duration, test: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let current = std::thread::current();
    let name = current.name().unwrap_or("test").to_owned();
    let worker = std::thread::Builder::new().name(name.clone()).spawn(move || {
        // The receiver waits for this thread, so sending cannot fail.
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

/// Sets a flag when it is dropped. A thread that runs until then ends also if the test fails; else the scope would wait for it forever.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Prints a line past the test runner, which hides the output of a passing test.
pub fn say(line: &str) {
    use std::io::Write;
    // When standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "{line}");
}
