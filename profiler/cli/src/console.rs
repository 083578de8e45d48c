//! The standard streams. A reader that closes one of them is not an error, and never causes a panic.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr as _;

/// Writes a line to standard error. If that is closed, the line is lost.
macro_rules! say {
    ($($part:tt)*) => { $crate::console::say_line(format!($($part)*)) };
}
pub(crate) use say;

/// Implements [`say`].
pub(crate) fn say_line(mut line: String) {
    line.push('\n');
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    printed(output.write_all(text.as_bytes()).and_then(|()| output.flush()))
}

/// The result of writing to standard output.
pub(crate) fn printed(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// How a process ended as a shell has it in `$?`: its exit code, or 128 and the number of the signal that ended it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Whether a live screen can be drawn.
pub(crate) fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    !is_dumb && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Columns of the terminal, by a stream that is open: a process in its jail opens no terminal.
pub(crate) fn columns() -> u16 {
    let of = |stream: BorrowedFd<'_>| tcgetwinsize(stream).ok().map(|size| size.ws_col).filter(|columns| *columns > 0);
    of(io::stdout().as_fd()).or_else(|| of(io::stderr().as_fd())).or_else(|| of(io::stdin().as_fd())).unwrap_or(80)
}

/// Columns of the terminal that text for standard output has to fit, if it goes to one.
pub(crate) fn output_columns() -> Option<u16> {
    io::stdout().is_terminal().then(columns)
}

/// The text in lines of at most `columns_max` columns, broken between words. A word that is longer than a line stays whole.
pub(crate) fn wrap(text: &str, columns_max: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= columns_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A status line on a terminal.
pub(crate) fn spinner() -> Option<ProgressBar> {
    io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar
    })
}

/// Columns for its text: without the spinner and one free column, so that the line does not wrap.
pub(crate) fn columns_max() -> usize {
    usize::from(columns()).saturating_sub(3)
}

/// A line about a long operation, on a terminal; removed when this is dropped.
pub(crate) struct Busy(Option<ProgressBar>);

impl Busy {
    /// Shows the line.
    pub(crate) fn with(what: &str) -> Busy {
        let bar = spinner();
        if let Some(bar) = &bar {
            bar.set_message(glass_profiler_core::format::cut_end(what, columns_max()));
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Busy(bar)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("a verylongword b", 5), ["a", "verylongword", "b"]);
        assert_eq!(wrap("名前 名前 a", 9), ["名前 名前", "a"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn only_a_closed_pipe_is_no_error() {
        assert!(printed(Err(ErrorKind::BrokenPipe.into())).is_ok());
        let error = printed(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write to standard output: "));
    }
}
