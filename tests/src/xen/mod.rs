//! A machine with Xen, a dom0 and small guests, in QEMU's emulation: boots once for all tests, in some 10 s.
//!
//! It shows whether things work on the Xen that Debian ships, and not how long they take on hardware; times
//! compare with each other at most.

pub mod domains;
pub mod guests;
mod image;

use crate::folder::Folder;
use crate::limit::say;
use crate::process::Process;
use crate::programs;
use crate::qmp::Qmp;
use anyhow::{Context, Result, bail, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

pub use guests::Guest;

/// Where dom0 has the folder that it shares with this machine.
pub const SHARED: &str = "/mnt";

/// Xen with dom0 boots in 8 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);
/// RAM of the machine, and dom0's part of it.
const RAM_MIB: u32 = 1024;
const DOM0_MIB: u32 = 448;

/// A running machine. Dropping it ends it.
#[derive(Debug)]
pub struct World {
    process: Process,
    console: ChildStdin,
    shared: Folder,
    image: image::Image,
    /// If it has a card.
    monitor: Option<Qmp>,
    scripts: u32,
    /// Queues that were started.
    queues: u32,
}

/// What a script has printed, and with which code it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// 0 if it succeeded.
    pub code: i32,
    /// Both streams.
    pub output: String,
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
        let (process, console) = Process::spawn_with_input(&mut qemu, &shared.file("console.log"))?;
        let monitor = has_card.then(|| Qmp::connect(&monitor)).transpose()?;
        let mut world = World { process, console, shared, image, monitor, scripts: 0, queues: 0 };
        world.wait_until("dom0 is ready", BOOT_PATIENCE, |world| world.process.output().contains("DOM0 READY"))?;
        let boot = begin.elapsed() - made;
        say(&format!("Xen: image after {:.1} s, dom0 ready {:.1} s later", made.as_secs_f64(), boot.as_secs_f64()));
        Ok(world)
    }

    fn wait_until(&mut self, what: &str, limit: Duration, mut condition: impl FnMut(&World) -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !condition(self) {
            if let Some(status) = self.process.ended() {
                bail!("QEMU ended ({status}) before {what}:\n{}", last_lines(&self.process.output(), 30));
            }
            ensure!(
                Instant::now() < deadline,
                "{} s have passed, but not until {what}:\n{}",
                limit.as_secs(),
                last_lines(&self.process.output(), 30)
            );
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The folder that dom0 has as [`SHARED`].
    pub fn folder(&self) -> &Path {
        self.shared.path()
    }

    /// Puts a copy of a file into the folder.
    pub fn bring(&self, file: &Path) -> Result<PathBuf> {
        let copy = self.shared.file(&file.file_name().unwrap_or_default().to_string_lossy());
        std::fs::copy(file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(copy)
    }

    /// Runs a script of the shell in dom0, as root.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Done> {
        self.scripts += 1;
        let number = self.scripts;
        self.shared.write(&format!("{number}.sh"), script.as_bytes())?;
        writeln!(self.console, "{number}").context("the console of dom0 is closed")?;
        let code = self.shared.file(&format!("{number}.code"));
        self.wait_until(&format!("dom0 has run {script:?}"), limit, |_| code.exists())?;
        let read = |path: PathBuf| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let output = read(self.shared.file(&format!("{number}.out")))?;
        let code = read(code)?.trim().parse().context("a code that is no number")?;
        Ok(Done { code, output })
    }

    /// The same; it is an error if the script fails.
    pub fn expect(&mut self, script: &str, limit: Duration) -> Result<String> {
        let Done { code, output } = self.run(script, limit)?;
        ensure!(code == 0, "{script:?} failed in dom0 with {code}:\n{output}");
        Ok(output)
    }

    /// Builds a guest and starts it as a domain; it runs when this returns.
    pub fn start(&mut self, guest: &Guest) -> Result<()> {
        guest.build(self.shared.path())?;
        self.shared.write(&format!("{}.cfg", guest.name), guest.configuration(SHARED).as_bytes())?;
        self.expect(&format!("xl create -q {SHARED}/{}.cfg", guest.name), Duration::from_secs(60)).map(drop)
    }

    /// Ends a domain.
    pub fn destroy(&mut self, name: &str) -> Result<()> {
        self.expect(&format!("xl destroy {name}"), Duration::from_secs(60)).map(drop)
    }

    /// Powers the machine off.
    pub fn power_off(mut self) -> Result<()> {
        self.shared.write("off.sh", b"poweroff -f")?;
        writeln!(self.console, "off").context("the console of dom0 is closed")?;
        let ended = self.process.wait(Duration::from_secs(60));
        ensure!(ended.is_some(), "the machine does not power off:\n{}", last_lines(&self.process.output(), 30));
        Ok(())
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
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
