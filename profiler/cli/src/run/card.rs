//! `--net tap=NAME`: the VM's network card, which `glass tap` serves in a process of its own.

use super::Args;
use super::helpers::Helper;
use super::options::Network;
use super::qemu::escape;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

const SERVES: (&str, &str) = ("glass tap", "network");

/// QEMU's `-netdev`.
pub(super) const NETDEV: &str = "vhost-user,id=net,chardev=card";

/// Whether a process of its own serves the card: without KVM, QEMU 7.2 crashes when the card's interrupts come from there.
pub(super) fn is_apart(accel: &str) -> bool {
    accel == "kvm"
}

/// The socket between QEMU and the process.
fn socket(folder: &Path) -> PathBuf {
    folder.join("card")
}

/// QEMU's options for the socket.
pub(super) fn chardev(folder: &Path) -> [String; 2] {
    ["-chardev".to_owned(), format!("socket,id=card,path={}", escape(&socket(folder)))]
}

/// The words that start the process, behind `glass`; `None` if QEMU serves the card, or there is none.
pub(super) fn words(args: &Args, accel: &str, folder: &Path) -> Option<[String; 4]> {
    match &args.net {
        Network::Tap(name) if is_apart(accel) => {
            let socket = socket(folder).display().to_string();
            Some(["tap".to_owned(), name.clone(), "--socket".to_owned(), socket])
        }
        _ => None,
    }
}

/// Starts the process, if the VM needs it.
pub(super) fn start(args: &Args, accel: &str, folder: &Path) -> Result<Option<Helper>> {
    let Some(words) = words(args, accel, folder) else { return Ok(None) };
    let program = std::env::current_exe().context("cannot find the program glass")?;
    Helper::start(SERVES, &program, &words, &socket(folder), folder.join("card.log")).map(Some)
}
