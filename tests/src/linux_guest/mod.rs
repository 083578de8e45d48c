//! Linux guests with truth: VMs of stock kernels from 5.10 to the newest, in QEMU's emulation, with programs in them, and beside each what
//! its kernel reports of itself. Readers of a guest's RAM are tested against both.
//!
//! A guest's RAM is a memory file of its QEMU, whose pid is known; its root is an ext4 file system on a disk of its own.

mod built;
mod debian;
mod root;
mod tools;
pub mod truth;

pub use debian::{Kernel, Release};
pub use root::Root;
pub use tools::tools;

use crate::emulated::{Done, PANIC};
use crate::folder::Folder;
use crate::limit::say;
use crate::process::{Process, cpu_time};
use crate::programs;
use crate::qmp::Qmp;
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};
use truth::Truth;

/// It boots in 10 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(480);
const READY: &str = "GUEST READY";
/// How long the programs and the truth may take.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(5);
/// The longest line that a terminal passes on.
const LINE_MAX: usize = 4000;
/// Bytes of the disk that takes the truth. It is sparse.
const TRUTH_BYTES: u64 = 256 << 20;
/// The kernel's words: all messages of blocked tasks fit into its log, and the clock stays what it is on a quiet host. On a loaded one Linux gives up the
/// time stamp counter, for a clock that interrupts count, and the times of short tasks are equal then.
const WORDS: &str = "quiet loglevel=1 panic=-1 log_buf_len=1M tsc=reliable rdinit=/init";
/// QEMU's programs, their options for the machine, and the names of its serial port: of x86-64, with five and with four levels of page tables, and of
/// AArch64, where codes of pointers are computed by a shorter algorithm than Arm's, which TCG would take most of its time for.
const MACHINES: [(&str, &str, &str, &str); 3] = [
    ("qemu-system-x86_64", "q35", "max", "ttyS0"),
    ("qemu-system-x86_64", "q35", "max,la57=off", "ttyS0"),
    ("qemu-system-aarch64", "virt,gic-version=3", "max,pauth-impdef=on", "ttyAMA0"),
];

/// How a guest is booted.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which kernel.
    pub release: Release,
    /// Whether the processor has page tables of five levels. (Debian's 5.10 is built for four.)
    pub five_levels: bool,
    /// Whether the page tables of processes lack the kernel (KPTI).
    pub isolation: bool,
    /// MiB of RAM.
    pub memory_mib: u32,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// More words for the kernel.
    pub words: String,
    /// A disk to mount at `/tools`, which is only read.
    pub tools: Option<PathBuf>,
    /// More options of QEMU.
    pub options: Vec<String>,
}

impl Settings {
    /// One GiB, two vCPUs, five levels, and page tables as the kernel chooses.
    pub fn new(release: Release) -> Settings {
        Settings {
            release,
            five_levels: true,
            isolation: false,
            memory_mib: 1024,
            vcpus: 2,
            words: String::new(),
            tools: None,
            options: Vec::new(),
        }
    }

    /// A guest with the kernel of [`Parts::without_types`]: page tables of four levels, which processes have isolated.
    pub fn without_types() -> Settings {
        Settings { isolation: true, five_levels: false, ..Settings::new(Release::Bookworm61) }
    }

    /// The guests of the long tests: the other releases than bookworm's, and that with isolated page tables of four levels.
    pub fn others() -> Vec<Settings> {
        let isolated = Settings { isolation: true, five_levels: false, ..Settings::new(Release::Bookworm61) };
        let releases = Release::ALL.into_iter().filter(|release| *release != Release::Bookworm61);
        releases.map(Settings::new).chain([isolated]).collect()
    }
}

/// What guests of a release are made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The kernel.
    pub kernel: Kernel,
    /// The disks.
    pub root: Root,
}

impl Parts {
    /// The error is the reason why this machine cannot have them.
    pub fn get(release: Release) -> Result<Parts> {
        match release.is_aarch64() {
            true => ensure!(programs::has_qemu_for_aarch64(), "qemu-system-aarch64 is not installed"),
            false => ensure!(programs::has_qemu(), "qemu-system-x86_64 is not installed"),
        }
        Parts::of(release.kernel()?)
    }

    /// Those with a kernel like Firecracker's, Linux 6.1: it describes no types and has symbols of functions alone.
    pub fn without_types() -> Result<Parts> {
        ensure!(programs::has_qemu(), "qemu-system-x86_64 is not installed");
        Parts::of(built::kernel()?)
    }

    fn of(kernel: Kernel) -> Result<Parts> {
        let root = Root::get(kernel.release).context("the root of Linux guests cannot be made")?;
        Ok(Parts { kernel, root })
    }
}

/// A running guest. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    process: Process,
    console: ChildStdin,
    folder: Folder,
    commands: u32,
}

impl Guest {
    /// Boots, and waits until the console takes commands. No program runs yet. Under TCG a processor may execute a half of what the kernel
    /// patches, of which it panics (7.2, once in some twenty boots): then it boots again, once.
    pub fn boot(parts: &Parts, settings: &Settings) -> Result<Guest> {
        match Guest::boot_once(parts, settings) {
            Err(error) if format!("{error:#}").contains("Oops: int3") => {
                say("the kernel of the guest has executed a breakpoint of its own: it boots again");
                Guest::boot_once(parts, settings)
            }
            result => result,
        }
    }

    fn boot_once(parts: &Parts, settings: &Settings) -> Result<Guest> {
        let folder = Folder::new("linux-guest")?;
        std::fs::write(folder.file("first-files"), parts.root.first_files(&parts.kernel)?)?;
        File::create(folder.file("truth.img"))?.set_len(TRUTH_BYTES)?;
        // Copies of their own, without the holes' bytes.
        for (image, name) in [(&parts.root.image, "root.img"), (&parts.root.frozen, "frozen.img")] {
            let copied = Command::new("cp").arg("--sparse=always").arg(image).arg(folder.file(name)).status();
            ensure!(copied.is_ok_and(|status| status.success()), "cannot copy {}", image.display());
        }
        let start = Instant::now();
        let mut qemu = qemu(parts, settings, &folder);
        let (process, console) = Process::spawn_with_input(&mut qemu, &folder.file("console.log"))?;
        let mut guest = Guest { process, console, folder, commands: 0 };
        guest.wait_for(READY, BOOT_PATIENCE)?;
        let version = &parts.kernel.version;
        say(&format!("linux guest {version}: ready after {:.1} s", start.elapsed().as_secs_f64()));
        Ok(guest)
    }

    /// The pid of its QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What its console has printed.
    pub fn output(&self) -> String {
        self.process.output().replace('\r', "")
    }

    /// The folder with its files: `root.img`, its disk; `gdb`, the socket of QEMU's gdbstub; `qmp`, one of its monitor for others than the lab.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs a script of the shell, one line, as root.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Done> {
        ensure!(script.len() < LINE_MAX && !script.contains('\n'), "{script:?} is not one line of a terminal");
        self.commands += 1;
        let number = self.commands;
        writeln!(self.console, "{number} {script}").context("the console of the guest is closed")?;
        let end = format!("\n[{number} ended ");
        let output = self.wait_for(&end, limit).with_context(|| format!("while it runs {script:?}"))?;
        parse_done(&output, number).with_context(|| format!("the console prints nonsense:\n{output}"))
    }

    /// The same; it is an error if the script fails.
    pub fn expect(&mut self, script: &str, limit: Duration) -> Result<String> {
        let Done { code, output } = self.run(script, limit)?;
        ensure!(code == 0, "{script:?} failed in the guest with {code}:\n{output}");
        Ok(output)
    }

    /// Starts the programs, and waits until three tasks are blocked.
    pub fn start_programs(&mut self) -> Result<()> {
        self.expect("start", PATIENCE).map(drop)
    }

    /// Starts processes that call the kernel all the time, in many ways; they do not end. Processes come and go from then on.
    pub fn start_calls(&mut self) -> Result<()> {
        // Each kind of work that ends reports it.
        self.expect("calls >/tmp/calls 2>&1 && sleep 2 && ! grep . /tmp/calls", PATIENCE).map(drop)
    }

    /// Collects the truth and stops the VM right after it, so that little of it is out of date. [`resume`](Guest::resume) lets it run again.
    pub fn collect(&mut self) -> Result<Truth> {
        Truth::read(&self.collect_into(&self.folder.file("truth"))?)
    }

    /// The same, as the files that it is made of: a new folder with them.
    pub fn collect_into(&mut self, folder: &Path) -> Result<PathBuf> {
        self.expect("collect /dev/truth", PATIENCE)?;
        self.pause()?;
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder)?;
        let tar = Command::new("tar").arg("-xf").arg(self.folder.file("truth.img")).arg("-C").arg(folder).output()?;
        ensure!(tar.status.success(), "no archive: {}", String::from_utf8_lossy(&tar.stderr));
        Ok(folder.to_owned())
    }

    /// Stops all vCPUs by QEMU's monitor.
    pub fn pause(&self) -> Result<()> {
        self.monitor()?.execute("stop", json!({})).map(drop)
    }

    /// Lets them run.
    pub fn resume(&self) -> Result<()> {
        self.monitor()?.execute("cont", json!({})).map(drop)
    }

    /// Starts the guest again, as its reset button does; it runs none of the programs then, and the kernel is elsewhere in memory. `restarted` is
    /// called when it has just been reset.
    pub fn restart(&mut self, restarted: impl FnOnce()) -> Result<()> {
        let ready = self.output().matches(READY).count();
        let mut monitor = self.monitor()?;
        // The lab's guests end with their QEMU otherwise.
        monitor.execute("set-action", json!({ "reboot": "reset" }))?;
        monitor.execute("system_reset", json!({}))?;
        restarted();
        drop(monitor);
        self.wait_until(READY, BOOT_PATIENCE, |output| output.matches(READY).count() > ready).map(drop)
    }

    /// Writes all of its RAM to a file, an ELF core with a segment for each range of physical addresses.
    pub fn dump(&self, file: &Path) -> Result<()> {
        let protocol = format!("file:{}", file.display());
        self.monitor()?.execute("dump-guest-memory", json!({ "paging": false, "protocol": protocol })).map(drop)
    }

    /// The registers of all vCPUs, as QEMU's monitor prints them.
    pub fn registers(&self) -> Result<String> {
        let printed =
            self.monitor()?.execute("human-monitor-command", json!({ "command-line": "info registers -a" }))?;
        Ok(printed.as_str().context("no text")?.replace('\r', ""))
    }

    /// A connection to its monitor; there may be one at a time. The other one, `qmp` in its folder, is free.
    pub fn monitor(&self) -> Result<Qmp> {
        Qmp::connect(&self.folder.file("lab-qmp"))
    }

    /// Waits until its console has printed a text; returns all that it has printed.
    fn wait_for(&mut self, text: &str, limit: Duration) -> Result<String> {
        self.wait_until(text, limit, |output| output.contains(text))
    }

    /// The same for any condition; `what` is for a message.
    fn wait_until(&mut self, what: &str, limit: Duration, is_met: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.process.ended();
            let output = self.output();
            if is_met(&output) && output.ends_with('\n') {
                return Ok(output);
            }
            let reason = match (output.lines().find(|line| line.contains(PANIC)), ended) {
                (Some(line), _) => format!("the kernel of the guest panics: {line}"),
                (None, Some(status)) => format!("QEMU has ended ({status})"),
                (None, None) if Instant::now() > deadline => {
                    let computed = cpu_time(self.process.pid()).unwrap_or_default();
                    format!(
                        "{} s have passed, in which QEMU has computed for {} s",
                        limit.as_secs(),
                        computed.as_secs()
                    )
                }
                (None, None) => {
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            // In the first line: a summary shows no other.
            let last = output.lines().last().unwrap_or_default();
            bail!("{reason}, before the guest printed {what:?}; its last line is {last:?}; all of them:\n{output}");
        }
    }
}

/// What a command has printed, and its code.
fn parse_done(output: &str, number: u32) -> Option<Done> {
    let (_, after) = output.split_once(&format!("[{number} started]\n"))?;
    let (printed, code) = after.split_once(&format!("\n[{number} ended "))?;
    Some(Done { code: code.split_once(']')?.0.parse().ok()?, output: printed.to_owned() })
}

fn qemu(parts: &Parts, settings: &Settings, folder: &Folder) -> Command {
    let is_aarch64 = settings.release.is_aarch64();
    let machine = if is_aarch64 { 2 } else { usize::from(!settings.five_levels) };
    let (program, machine, processor, console) = MACHINES[machine];
    let mut qemu = Command::new(program);
    let memory = settings.memory_mib;
    qemu.args(["-machine", &format!("{machine},memory-backend=ram"), "-accel", "tcg,thread=multi"]);
    qemu.args(["-object", &format!("memory-backend-memfd,id=ram,size={memory}M,share=on"), "-m", &memory.to_string()]);
    qemu.args(["-smp", &settings.vcpus.to_string(), "-cpu", processor]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    qemu.arg("-kernel").arg(&parts.kernel.image).arg("-initrd").arg(folder.file("first-files"));
    let isolation = match (settings.isolation, is_aarch64) {
        (true, true) => " kpti=on",
        (true, false) => " pti=on",
        (false, _) => "",
    };
    qemu.arg("-append").arg(format!("console={console} {WORDS}{isolation} {}", settings.words));
    let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.file(name).display());
    qemu.args(["-qmp", &socket("qmp"), "-qmp", &socket("lab-qmp"), "-gdb", &socket("gdb")]);
    for name in ["root", "truth", "frozen"] {
        let image = folder.file(&format!("{name}.img"));
        qemu.arg("-drive").arg(format!("if=none,id={name},format=raw,file={}", image.display()));
        qemu.arg("-device").arg(format!("virtio-blk-pci,drive={name},serial={name}"));
    }
    if let Some(tools) = &settings.tools {
        qemu.arg("-drive").arg(format!("if=none,id=tools,format=raw,readonly=on,file={}", tools.display()));
        qemu.args(["-device", "virtio-blk-pci,drive=tools,serial=tools"]);
    }
    qemu.args(&settings.options);
    qemu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_own_output_and_code() {
        let output = "GUEST READY\n[1 started]\nx\n\n[1 ended 0]\n[2 started]\nno line\n[2 ended 3]\n[3 started]\n";
        assert_eq!(parse_done(output, 1), Some(Done { code: 0, output: "x\n".to_owned() }));
        assert_eq!(parse_done(output, 2), Some(Done { code: 3, output: "no line".to_owned() }));
        assert_eq!(parse_done(output, 3), None);
    }
}
