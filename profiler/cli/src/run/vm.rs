//! A service in a VM: starts what runs it, with the processes that serve its devices, and passes on what it prints and how it ends.

use super::faults::Faults;
use super::helpers::{self, Helper};
use super::options::{Network, tcp_ports};
use super::own::{self, Choice};
use super::qemu;
use super::signals::{INTERRUPTED, Signals};
use super::traced::Recording;
use super::{
    Args, FAILED, SocketFolder, devices, disk, ended_by_signal, share, shell_words, stopped, vm_console, vsock,
};
use crate::console::{self, say};
use crate::symbolizer::Symbolizer;
use anyhow::{Context, Result, bail};
use glass_formats::Exit;
use glass_profiler_guests::find::registry::{self, Registered};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// How a VM is run.
struct Plan<'a> {
    args: &'a Args,
    image: &'a Path,
    name: &'a str,
    accel: &'static str,
    is_own: bool,
    /// It is of our own VMM, and no copy.
    is_template: bool,
    folder: SocketFolder,
}

/// Runs a VM until it ends; returns the exit code of the service.
pub(super) fn run(args: &Args, image: &Path, name: &str, signals: &Signals) -> Result<u8> {
    let (accel, remark) = qemu::choose_accel(args.qemu.accel, args.target)?;
    let bus = qemu::choose_bus(args.target, args.qemu.machine, args.qemu.bus)?;
    let choice = own::choose(args, accel)?;
    if args.qemu.print_command {
        // Run by hand, it has the sockets in the current folder.
        let command = qemu::command(args, bus, image, accel, Path::new("."));
        let words: Vec<_> = command.get_args().skip(3).map(|word| word.to_string_lossy()).collect();
        console::print(&(shell_words(&words) + "\n"))?;
        for command in devices::commands(args, accel, Path::new(".")) {
            say!("glass: QEMU needs the program that serves a device of the VM: start `{command}` first");
        }
        return Ok(0);
    }
    let is_own = matches!(choice, Choice::Own);
    let plan = Plan { args, image, name, accel, is_own, is_template: is_own, folder: SocketFolder::make()? };
    let (command, helpers) = match choice {
        Choice::Own => {
            plan.announce(remark);
            (own::command(args, image, &plan.folder.0)?, Vec::new())
        }
        Choice::Qemu(because) => {
            plan.announce(remark.or(because));
            (qemu::command(args, bus, image, accel, &plan.folder.0), plan.start_helpers()?)
        }
    };
    plan.run(command, helpers, signals)
}

/// Runs copies of a VM until all have ended; returns the exit code of their services.
pub(super) fn run_copies(args: &Args, from: &Path, image: &Path, name: &str, signals: &Signals) -> Result<u8> {
    let (accel, _) = qemu::choose_accel(args.qemu.accel, args.target)?;
    if accel != "kvm" {
        bail!("a snapshot needs KVM, which this host does not have");
    }
    let plan = Plan { args, image, name, accel, is_own: true, is_template: false, folder: SocketFolder::make()? };
    let count = args.copies.count();
    let copies = if count == 1 { "a copy".to_owned() } else { format!("{count} copies") };
    let when = if args.copies.on_demand { ", each when its first client comes" } else { "" };
    say!("glass: starting {copies} of {name}{when}");
    for (host, guest) in tcp_ports(&args.port) {
        let last = host.saturating_add(count - 1);
        let hosts = if count == 1 { host.to_string() } else { format!("{host} to {last}") };
        say!("glass: 127.0.0.1:{hosts} is forwarded to port {guest} of {copies}");
    }
    if let (Network::Tap(_), Some(ip)) = (&args.net, &args.ip) {
        say!("glass: the copies have addresses from {ip} on");
    }
    plan.run(own::copies_command(args, from, &plan.folder.0)?, Vec::new(), signals)
}

impl Plan<'_> {
    fn announce(&self, remark: Option<String>) {
        let Plan { args, name, accel, .. } = self;
        say!(
            "glass: booting {name} with {accel}, {} MiB{}{}",
            args.memory >> 20,
            if args.cores > 1 { format!(", {} cores", args.cores) } else { String::new() },
            remark.map(|r| format!("; {r}")).unwrap_or_default()
        );
        if args.net == Network::User {
            for (host, guest) in tcp_ports(&args.port) {
                say!("glass: 127.0.0.1:{host} is forwarded to port {guest} of the VM");
            }
        }
    }

    /// Starts the processes that serve devices of a VM of QEMU.
    fn start_helpers(&self) -> Result<Vec<Helper>> {
        let folder = &self.folder.0;
        let mut helpers = devices::start(self.args, self.accel, folder)?;
        helpers.extend(vsock::start(self.args, folder)?);
        helpers.extend(share::start(self.args, folder)?);
        Ok(helpers)
    }

    fn run(&self, mut command: Command, helpers: Vec<Helper>, signals: &Signals) -> Result<u8> {
        let Plan { args, image, name, accel, is_own, .. } = self;
        let recording = Recording::prepare(args, image)?;
        let faults = args.copies.faults.then(|| Faults::prepare(&args.output, &self.folder.0)).transpose()?;
        Signals::prepare(&mut command, true);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) if *is_own => bail!("cannot start glass once more ({error})"),
            Err(error) => {
                bail!("cannot run setpriv ({error}): install util-linux and {}", qemu::program(args.target).1)
            }
        };
        let serving = signals.serve(&mut child)?;
        let helpers = helpers::Watch::start(helpers, &child, args.restart)?;
        let messages = pass_messages(&mut child)?;
        let registered = self.register(&child)?;
        let _watch = (!is_own).then(|| stopped::Watch::start(&self.folder.0));
        let (status, printed) = match (recording, faults) {
            (Some(recording), _) => {
                let title = format!("{name} (VM, {})", accel.to_uppercase());
                record(&mut child, image, |child| recording.run(child, &title, true))?
            }
            (None, Some(faults)) => record(&mut child, image, |child| faults.run(child, name, image))?,
            (None, None) => watch(&mut child, image)?,
        };
        drop((registered, serving));
        let is_disk_in_use = messages.join().unwrap_or(false);
        if let (true, Some(disk)) = (is_disk_in_use, &args.disk) {
            bail!(glass_lib_lock::in_use(disk, None));
        }
        let is_ended_by_us = helpers.finish();
        let announced = match printed {
            Ok(announced) => announced,
            Err(error) => return console::printed(Err(error)).map(|()| 0),
        };
        let exit = Exit::from_qemu_status(status.code().unwrap_or(1)).or(announced);
        if is_ended_by_us && !signals.is_asked() {
            Ok(FAILED)
        } else if signals.is_asked() && exit != Some(Exit::Success) {
            Ok(INTERRUPTED)
        } else {
            self.explain(status, exit, signals)
        }
    }

    /// Announces the VM to the other commands.
    fn register(&self, child: &Child) -> Result<Registered> {
        let Plan { args, image, folder, .. } = self;
        let entry = registry::Entry {
            pid: child.id(),
            elf: fs::canonicalize(image).unwrap_or(image.to_path_buf()),
            gdb: (!self.is_own).then(|| folder.0.join("gdb")),
            name: self.name.to_owned(),
            accel: self.accel.to_owned(),
            vcpus: args.cores,
            links: registry::Links {
                vsock: vsock::link(args, &folder.0),
                share: share::link(args),
                snapshots: self.is_template.then(|| own::snapshots(&folder.0)),
                disk: args
                    .disk
                    .as_ref()
                    .filter(|_| self.is_template)
                    .map(|disk| fs::canonicalize(disk).unwrap_or_else(|_| disk.clone())),
            },
        };
        registry::register(&entry).context("cannot announce the VM to `glass record`")
    }

    /// The exit code of a VM that has ended by itself; `exit` is what its image has reported.
    fn explain(&self, status: ExitStatus, exit: Option<Exit>, signals: &Signals) -> Result<u8> {
        let (name, vmm) = (self.name, if self.is_own { "the VMM" } else { "QEMU" });
        if let Some(code) = ended_by_signal(status, &format!("{vmm} of {name}"), signals) {
            return Ok(code);
        }
        let code = status.code().unwrap_or(1);
        match exit {
            Some(Exit::Success) => Ok(0),
            Some(Exit::Error) => Ok(1),
            Some(Exit::Panic) => {
                say!("glass: {name} panicked; see the crash report above");
                Ok(101)
            }
            Some(Exit::Exception) => {
                say!("glass: {name} hit a CPU exception; see the crash report above");
                Ok(102)
            }
            None if status.success() => Ok(0),
            None if code == 127 => {
                let (program, package) = qemu::program(self.args.target);
                bail!("there is no {program}: install it with `apt-get install {package}`")
            }
            None => bail!("{vmm} ended by itself ({status}); its message is above"),
        }
    }
}

/// The exit that a VM has announced on its console, or why that cannot be printed.
type Printed = io::Result<Option<Exit>>;

/// Passes on what the VMM reports; the thread returns whether its disk is in use by another one.
fn pass_messages(child: &mut Child) -> Result<JoinHandle<bool>> {
    let errors = child.stderr.take().context("the VMM has no messages")?;
    Ok(std::thread::spawn(move || disk::pass_messages(errors)))
}

/// As [`watch`], and records the VM meanwhile by `recording`, which waits for its end.
fn record(
    child: &mut Child,
    image: &Path,
    recording: impl FnOnce(&mut Child) -> Result<ExitStatus>,
) -> Result<(ExitStatus, Printed)> {
    let output = child.stdout.take().context("the VMM has no output")?;
    let image = image.to_owned();
    let pid = Pid::from_child(child);
    let console = std::thread::spawn(move || {
        let printed = vm_console::copy(output, &Symbolizer::new(&image));
        if printed.is_err() {
            // An error means that it has ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
        printed
    });
    let status = recording(child)?;
    Ok((status, console.join().unwrap_or(Ok(None))))
}

/// Prints what the VM prints until it ends, and what came of printing. A closed standard output ends the VM, as it
/// ends other programs.
fn watch(child: &mut Child, image: &Path) -> Result<(ExitStatus, Printed)> {
    let output = child.stdout.take().context("the VMM has no output")?;
    let printed = vm_console::copy(output, &Symbolizer::new(image));
    if printed.is_err() {
        // It was running a moment ago; if it has ended since, that is as well.
        let _ = child.kill();
    }
    Ok((child.wait().context("cannot wait for the VMM")?, printed))
}
