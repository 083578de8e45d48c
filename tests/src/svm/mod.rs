//! The lab: a machine with an ordinary KVM, for hosts that have none. QEMU emulates a processor with SVM and nested paging, on which
//! Debian's kernel with its KVM runs our images and Linux guests; their ring 0 is a real one. Its files are this machine's own, so
//! programs that were built here run there.
//!
//! It shows whether things work, and not how long they take on hardware.

mod image;

use crate::emulated::Machine;
use crate::folder::Folder;
use crate::limit::say;
use crate::programs;
use anyhow::{Context, Result, ensure};
use image::Image;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// It boots in 9 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(360);
const READY: &str = "KVM READY";
const RAM_MIB: u32 = 2048;
/// What a shell in the lab has.
const FUNCTIONS: &str = include_str!("lab.sh");
const FUNCTIONS_FILE: &str = "lab.sh";
/// Where programs are looked for, behind those that were built.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running lab. Dropping it ends it.
#[derive(Debug)]
pub struct Lab {
    /// The machine.
    pub machine: Machine,
}

/// The processor that is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// Page tables have four levels.
    FourLevels,
    /// They may have five. The kernel of the machine ended once with them in a panic of QEMU 7.2's making.
    FiveLevels,
}

/// What a lab is made of.
#[derive(Debug)]
pub struct Parts(Image);

impl Parts {
    /// The error is the reason why this machine cannot have them.
    pub fn get() -> Result<Parts> {
        ensure!(programs::has_qemu(), "qemu-system-x86_64 is not installed");
        Ok(Parts(image::get().context("Debian's packages cannot be had")?))
    }
}

impl Lab {
    /// Boots; the programs in `programs` are found by their names.
    pub fn boot(parts: &Parts, programs: &Path, processor: Processor) -> Result<Lab> {
        let shared = Folder::new("lab")?;
        write_functions(&shared, &parts.0, &[("PATH", format!("{}:{PATH}", programs.display()).as_ref())])?;
        let mut qemu = qemu(&parts.0, shared.path(), processor, "");
        qemu.args(["-serial", "stdio"]);
        let start = Instant::now();
        let mut machine = Machine::boot(&mut qemu, shared, READY, BOOT_PATIENCE)?;
        machine.fails_by_stall = true;
        say(&format!("lab: ready after {:.1} s", start.elapsed().as_secs_f64()));
        Ok(Lab { machine })
    }

    /// The folder that it shares with this machine, by the same path in both.
    pub fn folder(&self) -> &Path {
        self.machine.folder()
    }

    /// A file in that folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.machine.shared.file(name)
    }

    /// What is in a file of that folder so far.
    pub fn text(&self, name: &str) -> String {
        std::fs::read(self.file(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""))
            .unwrap_or_default()
    }

    /// Runs a script of bash, with the functions of `lab.sh`; it is an error if one of its commands fails.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<String> {
        let functions = self.file(FUNCTIONS_FILE);
        self.machine.expect(&format!("set -e\n. {}\n{script}", functions.display()), limit)
    }

    /// Waits until a file in the shared folder contains a text.
    pub fn wait_for_text(&mut self, name: &str, text: &str, limit: Duration) -> Result<()> {
        let file = self.file(name);
        let has_text =
            |_: &Machine| std::fs::read(&file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text));
        let waited = self.machine.wait_until(&format!("{name} contains {text:?}"), limit, has_text);
        waited.with_context(|| format!("{name}:\n{}", self.text(name)))
    }
}

/// Runs a lab on this terminal, with a shell at its prompt, until the shell ends. The programs in `programs` are found by their names;
/// `queue` is the image of the upload queue.
pub fn prompt(parts: &Parts, programs: &Path, queue: &Path) -> Result<ExitStatus> {
    let shared = Folder::new("lab")?;
    // The serial line does not know it.
    let size = Command::new("stty").arg("size").stdin(Stdio::inherit()).output();
    let size = size.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let terminal = match size.split_whitespace().collect::<Vec<_>>()[..] {
        [rows, columns] => format!("rows {rows} cols {columns}"),
        _ => String::new(),
    };
    let term = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
    let path = format!("{}:{PATH}", programs.display());
    let variables: [(&str, &OsStr); 4] =
        [("PATH", path.as_ref()), ("TERM", term.as_ref()), ("terminal", terminal.as_ref()), ("queue", queue.as_ref())];
    write_functions(&shared, &parts.0, &variables)?;
    let mut qemu = qemu(&parts.0, shared.path(), Processor::FourLevels, " lab.prompt");
    // Ctrl-C is for the shell; Ctrl-A X ends QEMU.
    qemu.args(["-serial", "mon:stdio"]);
    qemu.status().context("cannot start QEMU")
}

/// Writes the functions of a shell, and before them these variables.
fn write_functions(shared: &Folder, image: &Image, variables: &[(&str, &OsStr)]) -> Result<()> {
    let own: [(&str, &OsStr); 2] = [("image", image.folder.as_os_str()), ("shared", shared.path().as_os_str())];
    let mut text = String::new();
    for (name, value) in own.iter().chain(variables) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}='{}'", value.to_string_lossy().replace('\'', r"'\''"));
    }
    shared.write(FUNCTIONS_FILE, (text + FUNCTIONS).as_bytes()).map(drop)
}

/// The machine without its console: two CPUs, because Linux guests take three times as long on one.
fn qemu(image: &Image, shared: &Path, processor: Processor, words: &str) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    let processor = match processor {
        Processor::FourLevels => "max,la57=off",
        Processor::FiveLevels => "max",
    };
    qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", processor, "-smp", "2"]);
    qemu.args(["-m", &RAM_MIB.to_string(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.files);
    // Whatever goes wrong in its kernel is a panic, which is printed and ends it. The TSC of an emulated machine seems unstable to a kernel.
    let line = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable clocksource=tsc";
    qemu.arg("-append").arg(format!("{line} lab.shared={}{words}", shared.display()));
    qemu.args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]);
    qemu.arg("-virtfs").arg(format!("local,path={},mount_tag=host,security_model=none", shared.display()));
    qemu
}
