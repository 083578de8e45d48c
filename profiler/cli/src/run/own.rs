//! Our own VMM in place of QEMU: for which VMs, and the command that starts it.

use super::options::{Bus, Machine, Network, Vmm, tcp_ports};
use super::{Args, qemu};
use anyhow::{Context, Result, bail};
use glass_devices::UserNetwork;
use std::path::Path;
use std::process::Command;

/// What runs a VM.
pub(super) struct Choice {
    pub(super) is_own: bool,
    /// Why it is not the one that would start sooner, if that is of interest.
    pub(super) remark: Option<String>,
}

/// Chooses what runs a VM with `accel`.
pub(super) fn choose(args: &Args, accel: &str) -> Result<Choice> {
    let obstacle = obstacle(args, accel);
    match (args.vmm, obstacle) {
        (Vmm::Qemu, _) => Ok(Choice { is_own: false, remark: None }),
        // Connections through the passt of Debian 12 may stall for half a minute under load (decision 44).
        (Vmm::Auto, None) if args.net == Network::User => {
            let remark = "by QEMU, because our own VMM's user network may stall (--vmm own boots sooner)".to_owned();
            Ok(Choice { is_own: false, remark: Some(remark) })
        }
        (_, None) => Ok(Choice { is_own: true, remark: None }),
        (Vmm::Own, Some(obstacle)) => bail!("our own VMM cannot run this VM: {obstacle}; use --vmm qemu, or auto"),
        // Without KVM there is a remark already.
        (Vmm::Auto, Some(obstacle)) => {
            let remark = (accel == "kvm").then(|| format!("by QEMU, because {obstacle}"));
            Ok(Choice { is_own: false, remark })
        }
    }
}

/// What our own VMM lacks for this VM.
fn obstacle(args: &Args, accel: &str) -> Option<String> {
    let lacks = [
        (accel != "kvm", "it needs KVM"),
        (args.print_command, "--print-command prints the command line of QEMU"),
        (args.machine != Machine::Microvm, "--machine is one of QEMU's"),
        (args.bus == Some(Bus::Pci), "it has no PCI"),
        (args.qemu_firmware, "it has no firmware"),
        (args.vsock.is_some(), "it has no vsock"),
        (args.share.is_some(), "it has no shared directories"),
        (
            args.net == Network::User && user_network(args).is_none(),
            "its user network needs passt: `apt-get install passt`",
        ),
        (args.cores > u32::from(glass_vmm::CORES_MAX), "it does not have so many cores"),
        (
            args.disk.is_some() && !glass_devices::has_io_uring(),
            "its disk needs io_uring, which this host does not have",
        ),
    ];
    lacks.into_iter().find(|(lacks, _)| *lacks).map(|(_, why)| why.to_owned())
}

/// The network of an ordinary user, if it is installed.
fn user_network(args: &Args) -> Option<UserNetwork> {
    UserNetwork::find(tcp_ports(&args.port).collect())
}

/// The command that runs the VM.
pub(super) fn command(args: &Args, image: &Path) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the program glass")?;
    let mut command = Command::new(program);
    command.arg("vmm").arg(image).args(["--memory", &args.memory.to_string(), "--cores", &args.cores.to_string()]);
    command.args(["--parent", &std::process::id().to_string()]);
    command.args(["--command-line", &qemu::kernel_command_line(args)]);
    if let Some(disk) = &args.disk {
        command.arg("--disk").arg(disk);
        command.args(args.disk_direct.then_some("--disk-direct"));
    }
    match &args.net {
        Network::None => {}
        Network::Tap(name) => _ = command.args(["--tap", name]),
        Network::User => {
            let UserNetwork { program, ports } = user_network(args).context("passt is not there any more")?;
            command.arg("--passt").arg(program);
            command.args(ports.iter().flat_map(|(host, guest)| ["--port".to_owned(), format!("{host}:{guest}")]));
        }
    }
    Ok(command)
}
