//! `--open`: a page in the user's browser, and a recording that becomes one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::console::{exit_code, say};

/// The option.
pub(crate) const OPTION: &str = "--open";
/// How often a recorder is waited for. It takes seconds.
const PERIOD: Duration = Duration::from_millis(20);

/// Opens a page in the browser of this desktop. Without one it prints where the page is.
pub(crate) fn show(page: &Path) {
    let page = std::path::absolute(page).unwrap_or_else(|_| page.to_owned());
    let is_open = ["xdg-open", "open"].iter().any(|program| {
        let mut command = Command::new(program);
        command.arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    if !is_open {
        say!("glass: no browser could be opened: the page is file://{}", page.display());
    }
}

/// The page of a recording: beside it.
pub(crate) fn page_of(recording: &Path) -> PathBuf {
    recording.with_extension("html")
}

/// Runs this program again without [`OPTION`]. The recorder gives up its right to start programs and to make files, so the browser needs
/// another process.
///
/// `Ok(None)` if it succeeded.
pub(crate) fn run_without_option() -> Result<Option<ExitCode>> {
    // Ctrl-C reaches the recorder by itself, and ends the recording; SIGTERM is passed on.
    let terminated = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, terminated.clone())
        .context("cannot watch for SIGTERM")?;
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted).context("cannot watch for Ctrl-C")?;
    let mut recorder = Command::new("/proc/self/exe")
        .args(without_option(std::env::args_os().skip(1)))
        .spawn()
        .context("cannot start the recorder")?;
    let status = loop {
        if let Some(status) = recorder.try_wait().context("cannot wait for the recorder")? {
            break status;
        }
        if terminated.swap(false, Ordering::Relaxed)
            && let Some(pid) = i32::try_from(recorder.id()).ok().and_then(Pid::from_raw)
        {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        std::thread::sleep(PERIOD);
    };
    Ok(if status.success() { None } else { Some(ExitCode::from(exit_code(status))) })
}

/// The arguments without the option. What follows `--` is of the command that is sampled.
fn without_option(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_own = true;
    arguments
        .filter(|argument| {
            is_own = is_own && argument != "--";
            !(is_own && argument == OPTION)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_own_option_stays() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let left = without_option(words("record --open -d 1 -- xdg --open --").into_iter());
        assert_eq!(left, words("record -d 1 -- xdg --open --"));
    }

    #[test]
    fn a_page_is_beside_its_recording() {
        assert_eq!(page_of(Path::new("/tmp/a.pftrace")), Path::new("/tmp/a.html"));
        assert_eq!(page_of(Path::new("cpu")), Path::new("cpu.html"));
    }
}
