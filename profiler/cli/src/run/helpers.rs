//! Programs of the host that serve a device of the VM over a unix socket (vhost-user), started before QEMU and ended with it.

use super::ends_with_us;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a helper may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Interval of the checks whether it does.
const ROUND: Duration = Duration::from_millis(5);

/// A running helper. Dropping it ends it.
pub(super) struct Helper {
    child: Child,
}

impl Helper {
    /// Starts `program` with `arguments` and waits until it has made the socket `socket`. Its messages are in `log`.
    pub(super) fn start(program: &Path, arguments: &[String], socket: &Path, log: &Path) -> Result<Helper> {
        let messages = fs::File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command: Command = ends_with_us(program);
        command.args(arguments).process_group(0).stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
        let child = command.spawn().context("cannot run setpriv: install util-linux")?;
        let mut helper = Helper { child };
        let end = Instant::now() + START_LIMIT;
        while !socket.exists() {
            let ended = helper.child.try_wait().context("cannot wait for a helper")?;
            if ended.is_some() || Instant::now() > end {
                let messages = fs::read_to_string(log).unwrap_or_default();
                bail!("{} does not start: {}", program.display(), messages.trim());
            }
            std::thread::sleep(ROUND);
        }
        Ok(helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program `name` in `PATH` or in one of the folders `other`.
pub(super) fn find(name: &str, other: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(other.iter().cloned())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
