//! Warnings and errors of the macros of `tracing` on the console of the node whose task they come from.

use crate::node::Node;
use core::cell::RefCell;
use core::fmt;
use glass_api::{Clock, Console};
use glass_lib_trace::{ConsoleLog, LevelFilter, tracing_subscriber};

thread_local! {
    /// The node whose tasks run on this thread.
    static RUNNING: RefCell<Option<Node>> = const { RefCell::new(None) };
}

/// Has messages printed, once a process.
pub(crate) fn install() {
    tracing_subscriber::install(ConsoleLog { level: LevelFilter::WARN, print });
}

fn print(line: fmt::Arguments) {
    if let Some(node) = RUNNING.with_borrow(Option::clone) {
        node.print(format_args!("{} {line}", node.now()));
    }
}

/// Runs tasks of `node`.
pub(crate) fn on<T>(node: &Node, run: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            RUNNING.with_borrow_mut(|running| running.take());
        }
    }
    RUNNING.set(Some(node.clone()));
    let _end = End;
    run()
}
