//! The VMM of `tests/vmm`, whose guest's memory is laid out as other VMMs do it.

use crate::folder::Folder;
use crate::process::Process;
use crate::programs;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::time::Duration;

/// How long it may take for anything.
const LIMIT: Duration = Duration::from_secs(240);

/// A running one; it ends with this.
#[derive(Debug)]
pub struct Vmm {
    input: ChildStdin,
    process: Process,
    _folder: Folder,
}

/// A range of physical addresses with RAM.
pub type Range = (u64, u64);

impl Vmm {
    /// Starts one with a layout, MiB of memory and vCPUs; without an image these never run. `None` after printing why it cannot be used.
    pub fn start(layout: &str, memory_mib: u64, vcpus: u32, image: Option<&Path>) -> Result<Option<Vmm>> {
        Vmm::start_with(|command| {
            command.args(["--layout", layout, "--memory", &memory_mib.to_string(), "--vcpus", &vcpus.to_string()]);
            command.args(image);
        })
    }

    /// Starts one with a layout that continues with what another VMM had: RAM from the physical address 0 on, and the registers of one vCPU, as lines of a name
    /// and a hexadecimal number. `None` after printing why it cannot be used.
    pub fn continue_from(layout: &str, memory_mib: u64, ram: &Path, registers: &Path) -> Result<Option<Vmm>> {
        Vmm::start_with(|command| {
            command
                .args(["--layout", layout, "--memory", &memory_mib.to_string(), "--ram"])
                .arg(ram)
                .arg("--registers")
                .arg(registers);
        })
    }

    fn start_with(options: impl FnOnce(&mut Command)) -> Result<Option<Vmm>> {
        if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            programs::skip(&format!("/dev/kvm cannot be used ({error})"));
            return Ok(None);
        }
        let Some(program) = programs::beside("glass-tests-vmm") else { return Ok(None) };
        let folder = Folder::new("vmm")?;
        let mut command = Command::new(program);
        options(&mut command);
        let (process, input) = Process::spawn_with_input(&mut command, &folder.file("log"))?;
        let mut vmm = Vmm { input, process, _folder: folder };
        vmm.wait_for("\nready\n");
        Ok(Some(vmm))
    }

    /// Waits for something that it or its guest prints.
    pub fn wait_for(&mut self, text: &str) {
        self.process.wait_for_text(text, LIMIT, || {});
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Adds memory while the VM runs.
    pub fn add_memory(&mut self) -> Result<()> {
        self.input.write_all(b"add\n").context("the VMM has ended")?;
        self.wait_for("\nadded\n");
        Ok(())
    }

    /// Where the guest has RAM: first address and bytes of each range.
    pub fn ram(&self) -> Vec<Range> {
        let output = self.process.output();
        let range = |line: &str| {
            let (address, bytes) = line.strip_prefix("ram ")?.split_once(' ')?;
            Some((u64::from_str_radix(address, 16).ok()?, u64::from_str_radix(bytes, 16).ok()?))
        };
        output.lines().filter_map(range).collect()
    }

    /// What it has printed, and its guest.
    pub fn output(&self) -> String {
        self.process.output()
    }
}

/// The addresses at which it has written a word before its guest ran, and the words.
pub fn marks(ram: &[Range]) -> impl Iterator<Item = (u64, u64)> {
    const EVERY: u64 = 2 << 20;
    let at = |(start, bytes): &Range| (*start..start + bytes).step_by(EVERY as usize).map(|at| at + EVERY - 8);
    ram.iter().flat_map(at).map(|address| (address, address ^ 0x5a5a_1234_5678_a5a5))
}
