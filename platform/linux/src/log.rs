//! Messages of the service on its console.

use crate::console::Lines;
use glass_lib_trace::{ConsoleLog, LevelFilter, tracing_subscriber};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The console of the process, and zero of its clock.
static CONSOLE: OnceLock<(Arc<Lines>, Instant)> = OnceLock::new();

/// Has messages of `level` and of worse ones printed. The first platform of a process has them.
pub(crate) fn start(level: LevelFilter, origin: Instant, lines: &Arc<Lines>) {
    if CONSOLE.set((lines.clone(), origin)).is_ok() {
        tracing_subscriber::install(ConsoleLog { level, print });
    }
}

fn print(line: fmt::Arguments) {
    if let Some((lines, origin)) = CONSOLE.get() {
        lines.print(format_args!("{:.6} s {line}", origin.elapsed().as_secs_f64()));
    }
}
