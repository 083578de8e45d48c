//! A machine with Xen, a dom0 and small guests, in QEMU's emulation: boots once for all tests, in some 10 s.
//!
//! It shows whether things work on the Xen that Debian ships, and not how long they take on hardware; times
//! compare with each other at most.

pub mod domains;
pub mod guests;
mod image;

use crate::emulated::Machine;
use crate::folder::Folder;
use crate::limit::say;
use crate::programs;
use crate::qmp::Qmp;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use crate::emulated::Done;
pub use guests::Guest;

/// Where dom0 has the folder that it shares with this machine.
pub const SHARED: &str = "/mnt";

/// Xen with dom0 boots in 8 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(720);
/// RAM of the machine, and dom0's part of it.
const RAM_MIB: u32 = 1024;
const DOM0_MIB: u32 = 448;

/// A running machine. Dropping it ends it.
#[derive(Debug)]
pub struct World {
    machine: Machine,
    image: image::Image,
    /// If it has a card.
    monitor: Option<Qmp>,
    /// Queues that were started.
    queues: u32,
}

impl World {
    /// Boots; the error has the reason why this machine cannot.
    pub fn boot() -> Result<World> {
        World::boot_with(false)
    }

    /// Boots with a card of the machine's own, on one network with those of domains: the host reaches them ([`World::start_queue`]).
    pub fn boot_with_card() -> Result<World> {
        World::boot_with(true)
    }

    fn boot_with(has_card: bool) -> Result<World> {
        ensure!(programs::has_qemu(), "qemu-system-x86_64 is not installed");
        let begin = Instant::now();
        let image = image::get().context("Xen's packages cannot be had")?;
        let made = begin.elapsed();
        let shared = Folder::new("xen")?;
        let mut qemu = qemu(&image, shared.path());
        let monitor = shared.file("monitor");
        if has_card {
            qemu.args(["-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile="]);
            qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())]);
        }
        let machine = Machine::boot(&mut qemu, shared, "DOM0 READY", BOOT_PATIENCE)?;
        let monitor = has_card.then(|| Qmp::connect(&monitor)).transpose()?;
        let boot = begin.elapsed() - made;
        say(&format!("Xen: image after {:.1} s, dom0 ready {:.1} s later", made.as_secs_f64(), boot.as_secs_f64()));
        Ok(World { machine, image, monitor, queues: 0 })
    }

    /// The folder that dom0 has as [`SHARED`].
    pub fn folder(&self) -> &Path {
        self.machine.folder()
    }

    /// Puts a copy of a file into the folder.
    pub fn bring(&self, file: &Path) -> Result<PathBuf> {
        self.machine.bring(file)
    }

    /// Runs a script of the shell in dom0, as root.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Done> {
        self.machine.run(script, limit)
    }

    /// The same; it is an error if the script fails.
    pub fn expect(&mut self, script: &str, limit: Duration) -> Result<String> {
        self.machine.expect(script, limit)
    }

    /// Builds a guest and starts it as a domain; it runs when this returns.
    pub fn start(&mut self, guest: &Guest) -> Result<()> {
        guest.build(self.machine.shared.path())?;
        self.machine.shared.write(&format!("{}.cfg", guest.name), guest.configuration(SHARED).as_bytes())?;
        self.expect(&format!("xl create -q {SHARED}/{}.cfg", guest.name), Duration::from_secs(240)).map(drop)
    }

    /// Ends a domain.
    pub fn destroy(&mut self, name: &str) -> Result<()> {
        self.expect(&format!("xl destroy {name}"), Duration::from_secs(240)).map(drop)
    }

    /// Powers the machine off.
    pub fn power_off(self) -> Result<()> {
        self.machine.power_off()
    }
}

/// The machine: one CPU, because Xen on two would wait for the one that this machine does not run just now.
fn qemu(image: &image::Image, shared: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // With SMAP the kernel of dom0 does not start in QEMU 7.2. The cache of translated code is kept small: it is memory.
    qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=96", "-cpu", "max,-smap", "-smp", "1"]);
    qemu.args(["-m", &RAM_MIB.to_string(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.args(["-serial", "stdio"]).arg("-kernel").arg(&image.xen);
    // Without eager-fpu Xen restores floating-point registers at their first use, which QEMU 7.2's TCG loses once a domain has
    // run as a VM: programs of dom0 crashed in most runs.
    let memory = format!("dom0_mem={DOM0_MIB}M,max:{DOM0_MIB}M");
    let options = "console=com1 com1=115200,8n1 loglvl=info guest_loglvl=info noreboot bootscrub=0 dom0_max_vcpus=1 spec-ctrl=eager-fpu";
    qemu.args(["-append", &format!("{options} {memory}")]);
    // The TSC of an emulated machine seems unstable to the kernel, and other clocks cost a hypercall.
    let kernel = "console=hvc0 quiet mitigations=off panic=1 tsc=reliable clocksource=tsc";
    qemu.arg("-initrd").arg(format!("{} {kernel},{}", image.kernel.display(), image.files.display()));
    qemu.arg("-virtfs").arg(format!("local,path={},mount_tag=host,security_model=none", shared.display()));
    qemu
}
