//! A VMM of our own that runs the same bare guest by KVM: `programs/vmm.c`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::image::Image;
use glass_profiler_guests::VmSettings;
use glass_profiler_guests::find::{self, Found, Vm};
use glass_profiler_guests::memory::{Physical, Ram};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

use super::{ONE_AT_A_TIME, PATIENCE, build};

/// More rounds a second than a host can do that emulates ring 0.
const EMULATED_ROUNDS_PER_SEC_MAX: u64 = 3_000;

/// A command for the VMM.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    ShrinkRam = 1,
    EndSecondVcpu = 2,
    Exec = 3,
    Pause = 4,
    Continue = 5,
}

/// What the VMM counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub sent: u64,
    pub received: u64,
    pub swallowed: u64,
    /// Times that `KVM_RUN` returned `EINTR` to it.
    pub interrupted: u64,
}

pub struct Vmm {
    _turn: MutexGuard<'static, ()>,
    folder: Folder,
    pub elf: PathBuf,
    pub child: Child,
    pub rounds_are_long: bool,
    ram: Ram,
    rounds: u64,
}

impl Vmm {
    /// Starts one; `None` after printing why the test is skipped.
    pub fn start(name: &str, options: &[&str]) -> Option<Vmm> {
        Vmm::start_with(name, &[], options)
    }

    /// Starts one whose guest is built with more flags.
    pub fn start_with(name: &str, flags: &[&str], options: &[&str]) -> Option<Vmm> {
        if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            skip(&format!("/dev/kvm cannot be used ({error})"));
            return None;
        }
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::new(name).unwrap();
        let usual = ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-DUNIT=40"];
        let elf = build(folder.path(), "guest.elf", &[&usual, flags].concat())?;
        let program = folder.file("vmm");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/vmm.c");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
        let built = cc.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let mut command = Command::new(&program);
        command.arg(&elf).arg(folder.file("status")).args(options).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let image = Image::parse(&std::fs::read(&elf).unwrap(), &["rounds"]).unwrap();
        let rounds = image.symbol("rounds").unwrap();
        let mut vmm = Vmm { _turn: turn, folder, elf, child, rounds_are_long: false, ram: Ram::default(), rounds };
        vmm.wait_for("it is ready", |vmm| vmm.word(0) == 1);
        let cores = options.iter().find_map(|option| option.strip_prefix("vcpus=")?.parse().ok()).unwrap_or(1);
        let candidates = Ram::candidates(vmm.child.id(), Architecture::X86_64).unwrap();
        vmm.wait_for("the guest counts", |vmm| {
            // Whichever of its memory is RAM: there the counters grow.
            candidates.iter().any(|ram| (0..cores).all(|core| count(ram, vmm.rounds + core * 8) > 2))
        });
        let is_ram = |ram: &Ram| (0..cores).all(|core| count(ram, rounds + core * 8) > 2);
        vmm.ram = candidates.into_iter().find(is_ram).unwrap();
        let before = vmm.rounds(0);
        std::thread::sleep(Duration::from_millis(100));
        vmm.rounds_are_long = (vmm.rounds(0) - before) * 10 < EMULATED_ROUNDS_PER_SEC_MAX;
        Some(vmm)
    }

    pub fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&mut Vmm) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "timed out waiting until {what}: {:?}", self.seen());
            assert!(self.child.try_wait().unwrap().is_none(), "the VMM ended");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn word(&self, index: u64) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        let file = std::fs::File::open(self.folder.file("status"));
        let read = file.and_then(|file| file.read_exact_at(&mut bytes, index * 8));
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    pub fn seen(&self) -> Seen {
        Seen { sent: self.word(1), received: self.word(2), swallowed: self.word(3), interrupted: self.word(4) }
    }

    pub fn order(&self, order: Order) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(self.folder.file("status")).unwrap();
        file.write_all_at(&(order as u64).to_le_bytes(), 5 * 8).unwrap();
    }

    /// Whether the last order is carried out.
    pub fn has_done(&self, order: Order) -> bool {
        self.word(6) == order as u64
    }

    /// Words of the guest's memory, by the symbol of the first.
    pub fn words(&self, symbol: &str, words: u64) -> Vec<u64> {
        let image = Image::parse(&std::fs::read(&self.elf).unwrap(), &[symbol]).unwrap();
        let address = image.symbol(symbol).unwrap();
        (0..words).map(|word| count(&self.ram, address + word * 8)).collect()
    }

    /// A core's counter: it grows while the core runs.
    pub fn rounds(&self, core: u64) -> u64 {
        count(&self.ram, self.rounds + core * 8)
    }

    pub fn assert_runs(&self, moment: &str) {
        let (start, before) = (Instant::now(), self.rounds(0));
        while self.rounds(0) < before + 10 {
            assert!(start.elapsed() < PATIENCE, "the guest stands still {moment}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn vm(&self) -> Vm {
        match find::by_pid(self.child.id()).unwrap() {
            Found::Vm(vm) => vm,
            Found::Process => panic!("the VMM is not recognised"),
        }
    }

    pub fn settings(&self) -> VmSettings {
        VmSettings::new(2048, self.elf.clone())
    }

    /// The thread of a vCPU.
    pub fn thread(&self, vcpu: u32) -> PathBuf {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let is_it = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == format!("vcpu {vcpu}"))
        };
        tasks.map(|entry| entry.unwrap().path()).find(is_it).unwrap()
    }
}

fn count(ram: &Ram, address: u64) -> u64 {
    let mut bytes = [0; 8];
    if ram.read(address, &mut bytes) { u64::from_le_bytes(bytes) } else { 0 }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
