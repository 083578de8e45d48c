//! A running upload queue, as a process, as a VM or as a domain of Xen.

use crate::content::Content;
use crate::http::{Client, Response};
use crate::port::free_port;
use crate::process::{self, Process};
use crate::programs;
use crate::xen;
use anyhow::{Context, Result, bail, ensure};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The platform of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// A Linux process.
    Process,
    /// A VM on KVM.
    Kvm,
    /// A VM that QEMU emulates.
    Tcg,
}

/// Every platform.
pub const WORLDS: [World; 3] = [World::Process, World::Kvm, World::Tcg];

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            World::Process => "process",
            World::Kvm => "kvm",
            World::Tcg => "tcg",
        })
    }
}

impl World {
    /// Why it is not available on this machine; `None` if it is.
    pub fn obstacle(self) -> Option<&'static str> {
        match self {
            World::Process => None,
            _ if !programs::has_qemu() => Some("QEMU is not installed"),
            World::Kvm if !programs::has_kvm() => Some("/dev/kvm cannot be opened"),
            _ => None,
        }
    }
}

/// How long a start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);

/// The options of a queue.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of a new disk, in the form of `--disk-size`.
    pub disk_size: String,
    /// Memory of a VM in MiB.
    pub memory_mib: u32,
    /// Program or image of the queue; the one that was built for all tests if it is `None`.
    pub program: Option<PathBuf>,
    /// Further options of `glass run`, for a VM.
    pub vm: Vec<&'static str>,
    /// Further arguments of the queue, of a process or a VM.
    pub service: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options { disk_size: "256M".into(), memory_mib: 32, program: None, vm: Vec::new(), service: Vec::new() }
    }
}

/// A queue that answers requests. Dropping it ends it.
#[derive(Debug)]
pub struct Queue {
    runner: Runner,
    /// Its address.
    pub address: SocketAddr,
    world: World,
}

#[derive(Debug)]
enum Runner {
    Process(Process),
    Domain(Domain),
}

/// The domain `service` of a machine with Xen. Dropping it destroys the domain.
#[derive(Debug)]
struct Domain(Arc<Mutex<xen::World>>);

impl Domain {
    fn machine(&self) -> MutexGuard<'_, xen::World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy(&mut self) {
        // If that fails, the next queue on this machine cannot start, and reports it.
        let _ = self.machine().destroy_queue();
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Runner {
    /// How it ended, if it has.
    fn ended(&mut self) -> Option<String> {
        match self {
            Runner::Process(process) => process.ended().map(|status| status.to_string()),
            Runner::Domain(domain) => match domain.machine().has_service() {
                Ok(true) => None,
                Ok(false) => Some("the end of the domain".into()),
                Err(error) => Some(format!("{error:#}")),
            },
        }
    }
}

thread_local! {
    /// Where the queues that this thread starts are domains.
    static XEN: RefCell<Option<Arc<Mutex<xen::World>>>> = const { RefCell::new(None) };
    /// Options of `glass run` for the VMs that this thread starts.
    static MACHINE: Cell<&'static [&'static str]> = const { Cell::new(&[]) };
}

/// Runs `test` with the machine of its VMs chosen by these options of `glass run`. They hold for [`command`] on this thread.
pub fn on_machine<T>(options: &'static [&'static str], test: impl FnOnce() -> T) -> T {
    let before = MACHINE.replace(options);
    let result = test();
    MACHINE.set(before);
    result
}

/// Runs `test`, whose [`Queue::start`] on this thread starts a domain on a machine that was booted with a card and has the image of the queue,
/// instead of a VM.
pub fn in_domains<T>(machine: &Arc<Mutex<xen::World>>, test: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            XEN.take();
        }
    }
    XEN.replace(Some(machine.clone()));
    let _end = End;
    test()
}

/// The command that runs a queue on `disk` and makes it answer on `port` of this machine; `None`
/// when something is not built.
pub fn command(world: World, disk: &Path, port: u16, options: &Options) -> Option<Command> {
    let mut command;
    if world == World::Process {
        command = Command::new(options.program.clone().or_else(|| programs::built("upload-queue"))?);
        command.arg("--disk").arg(disk).args(["--disk-size", &options.disk_size, "--bind", "127.0.0.1"]);
        command.args(["--", "--port", &port.to_string()]);
    } else {
        command = Command::new(programs::built("glass")?);
        let memory = options.memory_mib.to_string();
        command.arg("run").arg(options.program.clone().or_else(|| programs::image("upload-queue"))?);
        command.args(["--accel", &world.to_string(), "--memory", &memory]).args(&options.vm);
        command.args(MACHINE.get());
        command.arg("--disk").arg(disk).args(["--disk-size", &options.disk_size]);
        command.args(["--port", &format!("{port}:8080"), "--", "--port", "8080"]);
    }
    command.args(&options.service);
    Some(command)
}

impl Queue {
    /// Starts a queue on `disk`, which is created if it does not exist, with its log beside it, and waits
    /// until it answers. `None` after printing why it cannot run here.
    pub fn start(world: World, disk: &Path, options: &Options) -> Result<Option<Queue>> {
        if let Some(reason) = world.obstacle() {
            programs::skip(reason);
            return Ok(None);
        }
        let (runner, address) = if let Some(machine) = XEN.with_borrow(Option::clone) {
            let has_none = options.program.is_none() && options.vm.is_empty() && options.service.is_empty();
            ensure!(has_none, "a domain has no options of `glass run`");
            let domain = Domain(machine);
            let address = domain.machine().start_queue(disk, &options.disk_size, options.memory_mib)?;
            (Runner::Domain(domain), address)
        } else {
            let port = free_port()?;
            let Some(mut command) = command(world, disk, port, options) else { return Ok(None) };
            let process = Process::spawn(&mut command, &log_path(disk))?;
            (Runner::Process(process), SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let mut queue = Queue { runner, address, world };
        queue.wait_until_it_answers()?;
        Ok(Some(queue))
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        // QEMU accepts a connection before its guest can, and the guest may never receive it. So the
        // first attempts have a short limit, and later ones the time that a busy machine needs.
        let mut patience = Duration::from_millis(30);
        while answer(self.address, patience).is_none() {
            patience = (patience * 5 / 4).min(Duration::from_secs(2));
            if let Some(end) = self.runner.ended() {
                bail!("the queue ({}) ended with {end}:\n{}", self.world, self.output());
            }
            if Instant::now() > deadline {
                bail!("the queue ({}) did not answer in time:\n{}", self.world, self.output());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The pid of the process that runs the service: QEMU's, or the service's own.
    pub fn service_pid(&self) -> Result<u32> {
        match &self.runner {
            Runner::Process(process) => service_pid(self.world, process),
            Runner::Domain(_) => bail!("a domain has no process"),
        }
    }

    /// Ends it immediately, as a power cut would: SIGKILL to QEMU or the process, and to `glass`; or the destruction of the domain.
    pub fn kill(&mut self) {
        match &mut self.runner {
            Runner::Process(process) => process.kill(),
            Runner::Domain(domain) => domain.destroy(),
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.runner.ended().is_none()
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        match &self.runner {
            Runner::Process(process) => process.output(),
            Runner::Domain(domain) => domain.machine().log_of_service().unwrap_or_default(),
        }
    }

    /// A new connection.
    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    /// Uploads `content` over a new connection.
    pub fn put(&self, content: Content) -> io::Result<Response> {
        self.connect()?.put("/uploader", content.length_bytes, &mut content.reader())
    }

    /// Downloads the first item over a new connection, compares it with `content` and returns its entity tag.
    pub fn get(&self, content: Content) -> Result<String> {
        let mut checker = content.checker();
        let response = self.connect()?.get_into("/downloader", &mut checker)?;
        if response.status() != 200 {
            bail!("GET was answered {}: {}", response.status(), response.text());
        }
        checker.verdict().map_err(anyhow::Error::msg).context("the downloaded item is wrong")?;
        Ok(response.etag().to_owned())
    }

    /// [`Queue::get`], then [`Queue::delete`].
    pub fn take(&self, content: Content) -> Result<()> {
        self.delete(&self.get(content)?)
    }

    /// Removes the item with this entity tag, which must be the oldest.
    pub fn delete(&self, etag: &str) -> Result<()> {
        let response = self.connect()?.request_if_match("DELETE", "/downloader", etag)?;
        if response.status() != 200 {
            bail!("DELETE was answered {}: {}", response.status(), response.text());
        }
        Ok(())
    }
}

/// The pid of the service that `process` was started for: QEMU's, or its own.
pub fn service_pid(world: World, process: &Process) -> Result<u32> {
    let own = process.pid();
    if world == World::Process {
        return Ok(own);
    }
    let descendants = process::descendants(own);
    let is = |pid: u32, start: &str| process::name(pid).is_some_and(|name| name.starts_with(start));
    let qemu = descendants.iter().copied().chain([own]).find(|pid| is(*pid, "qemu-system"));
    // Beside QEMU these are its devices.
    let own_vmm = || descendants.iter().copied().find(|pid| is(*pid, "glass"));
    qemu.or_else(own_vmm).context("no VMM runs under `glass run`")
}

fn log_path(disk: &Path) -> PathBuf {
    disk.with_extension("log")
}

/// Requests a path that no service has, over a new connection; returns the status if there is an answer.
pub fn answer(address: SocketAddr, patience: Duration) -> Option<u16> {
    let mut client = Client::connect_within(address, patience).ok()?;
    client.request("GET", "/is-it-up").ok().map(|response| response.status())
}
