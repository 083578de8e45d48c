//! The options of `glass run` that are QEMU's alone: how it runs guest code, and which machine it makes. What our own VMM understands as well is in
//! `run.rs`.

/// Options for QEMU.
#[derive(clap::Args)]
#[command(next_help_heading = "QEMU")]
pub(super) struct QemuOptions {
    /// How QEMU runs guest code; `auto` takes KVM where /dev/kvm can be opened.
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub(super) accel: Accel,
    /// Which of QEMU's machines: `microvm`, which starts faster, or `q35`, a PC. An AArch64 machine is `virt`.
    #[arg(long, value_enum, default_value_t = Machine::Microvm)]
    pub(super) machine: Machine,
    /// Bus of the devices of QEMU's VM [default: pci]; `mmio` (not of q35) boots some milliseconds faster and has lower throughput. Our own VMM
    /// has `mmio`.
    #[arg(long, value_enum)]
    pub(super) bus: Option<Bus>,
    /// Boot by QEMU's firmware; without this option microvm boots by the image's, which takes less time.
    #[arg(long)]
    pub(super) qemu_firmware: bool,
    /// Version of the interrupt controller of an AArch64 machine.
    #[arg(long, value_name = "2|3", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=3))]
    pub(super) gic: u8,
    /// Print QEMU's command line and do not run it.
    #[arg(long)]
    pub(super) print_command: bool,
}

/// How guest code runs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accel {
    Auto,
    Kvm,
    Tcg,
}

/// Which of QEMU's machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Machine {
    Microvm,
    Q35,
}

/// Where the VM's devices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Bus {
    Mmio,
    Pci,
}
