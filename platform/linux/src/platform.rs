//! The pieces put together, and the loop.

use crate::console::Lines;
use crate::cores::LinuxCore;
use crate::disk::{Disk, DiskError};
use crate::files::HostFiles;
use crate::host::Host;
use crate::names::Names;
use crate::net::HostNet;
use crate::options::{Options, ShareOption};
use crate::trace::Rate;
use crate::vsock::Hybrid;
use crate::workers::Workers;
use crate::{log, memory, signals};
use glass_api::{Console, MemoryUse, Platform};
use glass_lib_executor::sync::Latch;
use glass_lib_trace::Name;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// What a task waits for until the service is to end.
static SHUTDOWN: Name = Name::new("shutdown");

/// A Linux process as a service's world. Clones are handles to the same one.
#[derive(Clone)]
pub struct LinuxPlatform {
    host: Rc<Host>,
}

/// Why a process cannot become a platform.
#[derive(Debug)]
pub enum StartError {
    /// A disk cannot be used.
    Disk(DiskError),
    /// A directory cannot be used.
    Share(PathBuf, io::Error),
    /// The host lacks a descriptor, a thread or memory.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StartError::Disk(error) => write!(f, "{error}"),
            StartError::Share(path, error) => {
                write!(f, "the directory {} cannot be used: {error}: name one that exists", path.display())
            }
            StartError::Host(error) => write!(f, "the host lacks what a service needs: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl LinuxPlatform {
    /// Opens the disks and prepares everything else.
    pub fn new(options: &Options) -> Result<LinuxPlatform, StartError> {
        let host = |error| StartError::Host(error);
        let workers = Workers::new("disk");
        let disks = options.disks.iter().enumerate();
        let disks = disks.map(|(index, disk)| Disk::open(index, disk, workers.clone()).map_err(StartError::Disk));
        let disks = disks.collect::<Result<_, _>>()?;
        let open = |share: &ShareOption| {
            let opened = HostFiles::open(&share.path, share.is_read_only, workers.clone());
            opened.map_err(|error| StartError::Share(share.path.clone(), error))
        };
        let files = options.share.as_ref().map(open).transpose()?;
        let lines = Arc::new(Lines::new(io::stdout()).map_err(host)?);
        let rate = Rate::begin();
        log::start(options.log, rate.origin(), &lines);
        let core = LinuxCore::first(options.cores, rate.origin(), lines).map_err(host)?;
        Ok(LinuxPlatform {
            host: Rc::new(Host {
                core,
                bind: options.bind,
                hybrid: options.vsock.clone().map(Hybrid::new),
                rate,
                args: options.service_args.clone(),
                disks,
                files,
                names: Names::new(),
                shutdown: Latch::named(&SHUTDOWN),
                watches_signals: Cell::new(false),
            }),
        })
    }

    /// Runs `task`, and the tasks that it spawns, until it ends; the others are left where they are.
    /// Fails when the host's events cannot be waited for.
    pub fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> io::Result<T> {
        let outcome = Rc::new(RefCell::new(None));
        let result = outcome.clone();
        let main = async move {
            let output = task.await;
            *result.borrow_mut() = Some(output);
        };
        let Host { core, .. } = &*self.host;
        core.executor().spawn("main", main).map_err(io::Error::other)?;
        core.run_until(&*self.host, || outcome.borrow_mut().take())
    }

    /// Waits a moment until the console's lines are written, and removes the socket of vsock.
    pub(crate) fn end(&self) {
        self.host.core.lines().drain();
        if let Some(hybrid) = &self.host.hybrid {
            hybrid.remove();
        }
    }
}

impl Platform for LinuxPlatform {
    type Block = Disk;
    type Files = HostFiles;
    type Net = HostNet;

    fn args(&self) -> &[String] {
        &self.host.args
    }

    fn block(&self, index: usize) -> Option<Disk> {
        self.host.disks.get(index).cloned()
    }

    fn files(&self) -> Option<HostFiles> {
        self.host.files.clone()
    }

    fn net(&self) -> HostNet {
        HostNet { host: self.host.clone() }
    }

    fn shutdown(&self) -> impl Future<Output = ()> + 'static {
        if !self.host.watches_signals.replace(true)
            && let Err(error) = signals::watch(&self.host.core, self.host.shutdown.clone())
        {
            self.print(format_args!("signals end this process at once: they cannot be watched: {error}"));
        }
        self.host.shutdown.wait()
    }

    fn memory(&self) -> MemoryUse {
        memory::of_this_process()
    }
}

glass_lib_cores::forward_to_core!(LinuxPlatform, LinuxCore, |platform| &platform.host.core);
