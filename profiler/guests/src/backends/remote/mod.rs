//! A VM that is held by another process of ours (decision 35).
//!
//! The *holder* stops vCPUs, reads registers and copies memory. It needs the rights for that, and parses nothing that a guest could have
//! written: no ELF file, no unwind table, no structure of the guest. The *reader* does the rest: it finds what the VM runs, unwinds,
//! finds names, writes the recording and serves the terminal. A socket is between them (`messages.rs`).
//!
//! * The holder is in a session of its own and resumes by itself if it is stopped (`sys/awake.rs`), so what stops the
//!   reader, Ctrl-Z for example, stops no guest.
//! * It never waits for the reader while it holds the VM, nor does it stop looking after the VM's signals while it waits: what finds no
//!   room is dropped, and counted as lost.
//! * It detaches and ends when its end of the socket has no other end any more, for whatever reason the reader is gone.

mod client;
mod messages;
mod server;

pub use client::RemoteVm;
pub(crate) use client::attach;
pub use server::{Task, serve};

use std::path::PathBuf;

use crate::backends::Backend;
use crate::error::GuestError;

/// How a holder is started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments; those of [`Task::to_arguments`] follow. It passes its standard input to [`serve`].
    pub arguments: Vec<std::ffi::OsString>,
    /// Called when the holder runs and all files are open, before this process parses anything: it gives up what it does not need, and
    /// returns a warning if it cannot.
    pub before_parsing: Option<fn() -> Option<String>>,
}

/// The VM that a holder is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// In a VMM.
    Vm {
        /// The process of the VMM.
        pid: u32,
        /// By which backend.
        backend: Backend,
    },
    /// A domain of Xen.
    Domain {
        /// Its number.
        id: u32,
        /// An unknown version of Xen is taken for the newest known one.
        force: bool,
    },
}

fn system(action: &str, error: std::io::Error) -> GuestError {
    GuestError::System { action: action.to_owned(), error }
}

#[cfg(test)]
mod tests;
