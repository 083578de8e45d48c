//! Ctrl-C, SIGTERM and SIGHUP: the first is passed on to the service, which may finish what it has begun; a second one
//! ends it at once.
//!
//! A service runs in a process group of its own, so a terminal sends its Ctrl-C to us alone.

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::console::say;

/// Requests the end of a service in a VM: the byte of a terminal's Ctrl-C on its console (`platform/vm/src/run.rs`).
const INTERRUPT: u8 = 3;
/// What a shell makes of the end by Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;

/// Passes signals on as long as the process lives. Clones share it.
#[derive(Clone)]
pub(super) struct Signals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    service: Mutex<Option<Service>>,
    /// What is done before the service is requested to end.
    before_end: Mutex<Option<BeforeEnd>>,
    /// Signals that came while a service ran.
    count: AtomicUsize,
}

/// Is given the number of the service's process.
type BeforeEnd = Box<dyn FnOnce(u32) + Send>;

struct Service {
    pid: u32,
    process: OwnedFd,
    /// The console's input of a VM.
    console: Option<ChildStdin>,
}

impl Service {
    fn ask(&mut self) {
        // An error means that the service has ended already.
        let _ = match &mut self.console {
            Some(console) => console.write_all(&[INTERRUPT]).and_then(|()| console.flush()),
            None => pidfd_send_signal(&self.process, Signal::TERM).map_err(Into::into),
        };
    }
}

impl Signals {
    /// Handles signals from here on. Without a service one ends us, as it does without a handler.
    pub(super) fn watch() -> Result<Signals> {
        let signals = Signals { shared: Arc::default() };
        let (mut reader, writer) = UnixStream::pair().context("cannot watch for Ctrl-C")?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let writer = writer.try_clone().context("cannot watch for Ctrl-C")?;
            low_level::pipe::register(signal, writer).context("cannot watch for Ctrl-C")?;
        }
        // A limit of file sizes (ulimit -f) is then an error like a full disk instead of our death.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("cannot watch for signals")?;
        let shared = signals.shared.clone();
        std::thread::spawn(move || {
            let mut byte = [0];
            while reader.read_exact(&mut byte).is_ok() {
                shared.pass_on();
            }
        });
        Ok(signals)
    }

    /// Makes a command that is ready for [`Signals::serve`].
    pub(super) fn prepare(command: &mut Command, is_vm: bool) {
        command.process_group(0).stdin(if is_vm { Stdio::piped() } else { Stdio::inherit() });
    }

    /// From here on signals are for the service in `child`, until the returned value is dropped.
    pub(super) fn serve(&self, child: &mut Child) -> Result<Serving> {
        let pid = Pid::from_child(child);
        let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot open the process that was started")?;
        *self.shared.service() = Some(Service { pid: child.id(), process, console: child.stdin.take() });
        Ok(Serving { shared: self.shared.clone() })
    }

    /// At the first signal `act` is called, before the service is requested to end.
    pub(super) fn before_end(&self, act: impl FnOnce(u32) + Send + 'static) {
        *self.shared.before_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Whether a signal came while a service ran.
    pub(super) fn is_asked(&self) -> bool {
        self.shared.count.load(Ordering::Relaxed) > 0
    }
}

impl Shared {
    fn service(&self) -> MutexGuard<'_, Option<Service>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self) {
        let mut service = self.service();
        let Some(service) = &mut *service else { std::process::exit(INTERRUPTED.into()) };
        match self.count.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let before_end = self.before_end.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(act) = before_end {
                    act(service.pid);
                }
                say!("glass: requested the end of the service; Ctrl-C once more ends it at once");
                service.ask();
            }
            // An error means that it has ended already.
            _ => _ = pidfd_send_signal(&service.process, Signal::KILL),
        }
    }
}

/// Signals are for a service until this is dropped.
pub(super) struct Serving {
    shared: Arc<Shared>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        *self.shared.service() = None;
    }
}
