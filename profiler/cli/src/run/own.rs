//! Our own VMM in place of QEMU: for which VMs, and the command that starts it.

use super::options::{Network, Vmm, tcp_ports};
use super::qemu_options::{Bus, Machine};
use super::{Args, qemu};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs a VM.
pub(super) enum Choice {
    Own,
    /// QEMU, and why our own VMM does not, if that is of interest.
    Qemu(Option<String>),
}

/// Chooses what runs a VM with `accel`.
pub(super) fn choose(args: &Args, accel: &str) -> Result<Choice> {
    Ok(match (args.vmm, obstacle(args, accel)) {
        (Vmm::Qemu, _) => Choice::Qemu(None),
        (_, None) => Choice::Own,
        (Vmm::Own, Some(obstacle)) => bail!("our own VMM cannot run this VM: {obstacle}; use --vmm qemu, or auto"),
        // Without KVM there is a remark already.
        (Vmm::Auto, Some(obstacle)) => Choice::Qemu((accel == "kvm").then(|| format!("by QEMU, because {obstacle}"))),
    })
}

/// What our own VMM lacks for this VM.
fn obstacle(args: &Args, accel: &str) -> Option<String> {
    let is_user = args.net == Network::User;
    let lacks = [
        (accel != "kvm", "it needs KVM"),
        (args.qemu.print_command, "--print-command prints the command line of QEMU"),
        (args.qemu.machine != Machine::Microvm, "--machine is one of QEMU's"),
        (args.qemu.bus == Some(Bus::Pci), "it has no PCI"),
        (args.qemu.qemu_firmware, "it has no firmware"),
        (args.vsock.is_some(), "it has no vsock"),
        (args.share.is_some(), "it has no shared directories"),
        (is_user && args.ip.as_deref() == Some("dhcp"), "its user network has no DHCP"),
        (is_user && args.ip6.as_deref().is_some_and(|ip6| ip6 != "off"), "its user network has no IPv6"),
        (args.cores > u32::from(glass_vmm::CORES_MAX), "it does not have so many cores"),
        (
            args.disk.is_some() && !glass_devices::has_io_uring(),
            "its disk needs io_uring, which this host does not have",
        ),
    ];
    lacks.into_iter().find(|(lacks, _)| *lacks).map(|(_, why)| why.to_owned())
}

/// Where our own VMM listens for requests for a snapshot.
pub(super) fn snapshots(folder: &Path) -> PathBuf {
    folder.join("snapshots")
}

/// Where page faults of a copy are received.
pub(super) fn faults(folder: &Path) -> PathBuf {
    folder.join("faults")
}

fn vmm() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the program glass")?;
    let mut command = Command::new(program);
    command.arg("vmm").args(["--parent", &std::process::id().to_string()]);
    Ok(command)
}

/// The command that runs copies of a VM, with its sockets in `folder`.
pub(super) fn copies_command(args: &Args, from: &Path, folder: &Path) -> Result<Command> {
    let mut command = vmm()?;
    command.arg("--from").arg(from).args(["--copies", &args.copies.count().to_string()]);
    command.args(args.copies.record_pages.then_some("--record-pages"));
    if args.copies.faults {
        command.arg("--faults").arg(faults(folder));
    }
    command.args(args.copies.on_demand.then_some("--on-demand"));
    if let Network::Tap(name) = &args.net {
        command.args(["--tap", name]);
        command.args(args.ip.iter().flat_map(|ip| ["--ip", ip]));
    }
    add_disk(&mut command, args);
    add_ports(&mut command, args);
    Ok(command)
}

fn add_disk(command: &mut Command, args: &Args) {
    if let Some(disk) = &args.disk {
        command.arg("--disk").arg(disk);
        command.args(args.disk_direct.then_some("--disk-direct"));
    }
}

fn add_ports(command: &mut Command, args: &Args) {
    command.args(tcp_ports(&args.port).flat_map(|(host, guest)| ["--port".to_owned(), format!("{host}:{guest}")]));
}

/// The command that runs the VM by our own VMM, with its sockets in `folder`.
pub(super) fn command(args: &Args, image: &Path, folder: &Path) -> Result<Command> {
    let mut command = vmm()?;
    command.arg(image).args(["--memory", &args.memory.to_string(), "--cores", &args.cores.to_string()]);
    command.args(["--command-line", &qemu::kernel_command_line(args)]);
    command.arg("--snapshots").arg(snapshots(folder));
    add_disk(&mut command, args);
    command.args(args.files_disk.iter().flat_map(|disk| ["--files-disk".as_ref(), disk.as_os_str()]));
    if let (Some(_), Some(log)) = (&args.disk, &args.record_writes) {
        command.arg("--record-writes").arg(log).args(["--record-limit", &args.record_limit.to_string()]);
    }
    match &args.net {
        Network::None => {}
        Network::Tap(name) => _ = command.args(["--tap", name]),
        Network::User => {
            command.arg("--user-network");
            add_ports(&mut command, args);
        }
    }
    Ok(command)
}
