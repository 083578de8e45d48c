//! Our own VMM in place of QEMU: for which VMs, and the command that starts it.

use super::options::{Network, Vmm, tcp_ports};
use super::qemu_options::{Bus, Machine};
use super::{Args, qemu};
use anyhow::{Context, Result, bail};
use glass_devices::UserNetwork;
use std::path::Path;
use std::process::Command;

/// What runs a VM.
pub(super) enum Choice {
    Own(Own),
    /// QEMU, and why our own VMM does not, if that is of interest.
    Qemu(Option<String>),
}

/// Our own VMM, with what it needs of the host.
pub(super) struct Own {
    /// For `--net user`.
    user_network: Option<UserNetwork>,
}

/// Chooses what runs a VM with `accel`.
pub(super) fn choose(args: &Args, accel: &str) -> Result<Choice> {
    let user_network =
        (args.net == Network::User).then(|| UserNetwork::find(tcp_ports(&args.port).collect())).flatten();
    let obstacle = obstacle(args, accel, user_network.is_some());
    Ok(match (args.vmm, obstacle) {
        (Vmm::Qemu, _) => Choice::Qemu(None),
        // Connections through the passt of Debian 12 may stall for half a minute under load (decision 44).
        (Vmm::Auto, None) if args.net == Network::User => Choice::Qemu(Some(
            "by QEMU, because our own VMM's user network may stall (--vmm own boots sooner)".to_owned(),
        )),
        (_, None) => Choice::Own(Own { user_network }),
        (Vmm::Own, Some(obstacle)) => bail!("our own VMM cannot run this VM: {obstacle}; use --vmm qemu, or auto"),
        // Without KVM there is a remark already.
        (Vmm::Auto, Some(obstacle)) => Choice::Qemu((accel == "kvm").then(|| format!("by QEMU, because {obstacle}"))),
    })
}

/// What our own VMM lacks for this VM.
fn obstacle(args: &Args, accel: &str, has_user_network: bool) -> Option<String> {
    let lacks = [
        (accel != "kvm", "it needs KVM"),
        (args.qemu.print_command, "--print-command prints the command line of QEMU"),
        (args.qemu.machine != Machine::Microvm, "--machine is one of QEMU's"),
        (args.qemu.bus == Some(Bus::Pci), "it has no PCI"),
        (args.qemu.qemu_firmware, "it has no firmware"),
        (args.vsock.is_some(), "it has no vsock"),
        (args.share.is_some(), "it has no shared directories"),
        (args.net == Network::User && !has_user_network, "its user network needs passt: `apt-get install passt`"),
        (args.cores > u32::from(glass_vmm::CORES_MAX), "it does not have so many cores"),
        (
            args.disk.is_some() && !glass_devices::has_io_uring(),
            "its disk needs io_uring, which this host does not have",
        ),
    ];
    lacks.into_iter().find(|(lacks, _)| *lacks).map(|(_, why)| why.to_owned())
}

impl Own {
    /// The command that runs the VM.
    pub(super) fn command(&self, args: &Args, image: &Path) -> Result<Command> {
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
                let UserNetwork { program, ports } =
                    self.user_network.as_ref().expect("without it QEMU was chosen, or nothing");
                command.arg("--passt").arg(program);
                command.args(ports.iter().flat_map(|(host, guest)| ["--port".to_owned(), format!("{host}:{guest}")]));
            }
        }
        Ok(command)
    }
}
