//! A gdbstub that QEMU was not started with: its monitor starts it, and stops it again.
//!
//! A client of a gdbstub controls the guest, so its socket is in a folder that only the user who runs
//! QEMU, and root, can enter.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use crate::backends::monitor::Monitor;
use crate::error::GuestError;
use crate::find::monitor::MonitorAddress;
use crate::find::registry;
use crate::stream::SocketAddress;
use crate::sys::{Cleanup, RawAddress};

/// Prefix of the names of our folders.
const FOLDER_PREFIX: &str = "glass-stub-";
const OFF: &str = "gdbserver none";
/// The text in old and new versions of QEMU.
const IS_ON: &str = "Waiting for gdb connection";

/// A gdbstub that can be started.
pub(super) struct Switch {
    monitor: MonitorAddress,
    folder: PathBuf,
}

/// The state of QEMU's gdbstub, from its monitor.
pub(super) enum Found {
    /// Started by another process, and without a client.
    On(SocketAddress),
    /// Off; there is a folder for its socket.
    Off(Switch),
}

/// The line of a gdbstub in the output of `info chardev`: whether a client is connected, and its socket.
fn parse_chardev(text: &str) -> Option<(bool, &str)> {
    let name = text.lines().find_map(|line| line.trim().strip_prefix("gdb: filename="))?;
    let is_free = name.strip_prefix("disconnected:");
    // The address ends at a comma; the client follows.
    let address = is_free.unwrap_or(name).split([',', ' ']).next()?;
    Some((is_free.is_none(), address))
}

fn parse_address(text: &str) -> Option<SocketAddress> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Some(SocketAddress::Unix(path.into()));
    }
    let (host, port) = text.strip_prefix("tcp:")?.rsplit_once(':')?;
    let host = if matches!(host, "" | "0.0.0.0" | "::" | "[::]") { "127.0.0.1" } else { host };
    Some(SocketAddress::Tcp(host.to_owned(), port.parse().ok()?))
}

impl Switch {
    /// Queries the monitor of a process for its gdbstub, and creates a folder if it has none.
    pub(super) fn find(pid: u32, address: &MonitorAddress) -> Result<Found, GuestError> {
        let mut monitor = Monitor::connect(address)?;
        let chardevs = monitor.ask("info chardev")?;
        match parse_chardev(&chardevs) {
            Some((true, at)) => {
                return Err(GuestError::Monitor(format!(
                    "a debugger is connected to the gdbstub of QEMU {pid} at {at} already; end it first"
                )));
            }
            // Left by a glass whose watchdog was killed too.
            Some((false, at)) if at.contains(FOLDER_PREFIX) => drop(monitor.ask(OFF)?),
            Some((false, at)) => {
                return parse_address(at).map(Found::On).ok_or_else(|| {
                    GuestError::Monitor(format!("its gdbstub is at {at}, where glass cannot connect to"))
                });
            }
            None => {}
        }
        remove_orphans(pid);
        let folder = make_folder(pid)
            .map_err(|error| GuestError::System { action: "make a folder for a socket".to_owned(), error })?;
        Ok(Found::Off(Switch { monitor: address.clone(), folder }))
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("gdb")
    }

    pub(super) fn address(&self) -> SocketAddress {
        SocketAddress::Unix(self.socket())
    }

    /// Starts it.
    pub(super) fn on(&self) -> Result<(), GuestError> {
        // A comma would end the path; two commas stand for one.
        let path = self.socket().display().to_string().replace(',', ",,");
        let said = Monitor::connect(&self.monitor)
            .and_then(|mut monitor| monitor.ask(&format!("gdbserver unix:{path},server=on,wait=off")));
        let error = match said {
            Ok(said) if said.contains(IS_ON) => return Ok(()),
            Ok(said) => {
                let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
                GuestError::Monitor(format!("does not switch on a gdbstub: {said}"))
            }
            Err(error) => error,
        };
        self.remove_folder();
        Err(error)
    }

    /// Stops it.
    pub(super) fn off(&self) -> Result<(), GuestError> {
        let said = Monitor::connect(&self.monitor).and_then(|mut monitor| monitor.ask(OFF));
        self.remove_folder();
        said.map(|_| ())
    }

    /// Removes what was made for a gdbstub that is off.
    pub(super) fn remove_folder(&self) {
        // Usually QEMU has removed the socket.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_dir(&self.folder);
    }

    /// The watchdog's equivalent of [`Switch::off`].
    pub(super) fn cleanup(&self) -> Result<Cleanup, GuestError> {
        let prepare = || {
            let text = |path: PathBuf| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
            let endpoints = self.monitor.socket.endpoints()?;
            let endpoint = endpoints.first().ok_or_else(|| io::Error::other("the name has no address"))?;
            Ok(Cleanup {
                monitor: RawAddress::of(endpoint)?,
                words: self.monitor.script(&[OFF]),
                socket: text(self.socket())?,
                folder: text(self.folder.clone())?,
            })
        };
        prepare().map_err(|error: io::Error| GuestError::System { action: "prepare the watchdog".to_owned(), error })
    }
}

/// Removes the folders of processes that were killed before they had a watchdog.
fn remove_orphans(pid: u32) {
    let prefix = format!("{FOLDER_PREFIX}{pid}-");
    if let Ok(parent) = registry::folder() {
        registry::remove_orphans(&parent, |name| name.strip_prefix(&prefix)?.split('-').next()?.parse().ok());
    }
}

/// A new folder that only we and the user who runs QEMU can enter.
fn make_folder(pid: u32) -> io::Result<PathBuf> {
    let owner = fs::metadata(format!("/proc/{pid}"))?.uid();
    let is_foreign = owner != fs::metadata("/proc/self")?.uid();
    // Another user cannot enter our own folder. Only root can change its owner.
    let base = if is_foreign { PathBuf::from("/tmp") } else { registry::folder()? };
    // One thread may still use it when another starts.
    for number in 0..100 {
        let path = base.join(format!("{FOLDER_PREFIX}{pid}-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            result => result?,
        }
        if is_foreign && let Err(error) = std::os::unix::fs::chown(&path, Some(owner), None) {
            let _ = fs::remove_dir(&path);
            return Err(error);
        }
        return Ok(path);
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gdbstub_among_the_character_devices() {
        let list = |line: &str| format!("compat_monitor0: filename=unix:/q,server=on\r\n{line}\r\n");
        assert_eq!(parse_chardev(&list("#chr026: filename=gdb")), None);
        assert_eq!(parse_chardev(&list("gdb: filename=disconnected:unix:/g,server=on")), Some((false, "unix:/g")));
        assert_eq!(parse_chardev(&list("gdb: filename=unix:/g,server=on")), Some((true, "unix:/g")));
        let connected = "gdb: filename=tcp:127.0.0.1:1234,server=on <-> 127.0.0.1:4";
        assert_eq!(parse_chardev(connected), Some((true, "tcp:127.0.0.1:1234")));
        assert_eq!(parse_address("tcp:0.0.0.0:99"), Some(SocketAddress::Tcp("127.0.0.1".to_owned(), 99)));
        assert_eq!(parse_address("unix:/a"), Some(SocketAddress::Unix("/a".into())));
        assert_eq!(parse_address("pty:/dev/pts/3"), None);
    }
}
