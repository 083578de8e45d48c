//! A bare guest with known shares in a real QEMU, and a judge of its samples.

pub mod gdb;
pub mod vmm;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::durations::Durations;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample};
use glass_profiler_core::guest::{GuestId, SpaceId};
use glass_profiler_core::image::Image;
use glass_profiler_core::images::Images;
use glass_profiler_core::model::{StackEnd, State};
use glass_profiler_core::symbols::Symbols;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::paced::Paced;
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::find::{self, Found, Vm};
use glass_profiler_guests::memory::{Physical, RamFile};
use glass_profiler_guests::{Flow, Guest, GuestError, KnownVm, Source, VmSettings};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

pub const QEMU: &str = "qemu-system-x86_64";
/// Time until the guest has started, and limit of all other waits.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Guests never sleep, so one at a time has a core for itself.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub struct Fixture {
    _turn: MutexGuard<'static, ()>,
    pub folder: Folder,
    pub elf: PathBuf,
    pub qemu: Child,
    /// A round takes longer than the time between samples, so that a repeated round is no evidence.
    pub rounds_are_long: bool,
    ram: Option<RamFile>,
    rounds: u64,
}

/// Whether full sizes and counts are requested.
pub fn is_long() -> bool {
    std::env::var_os("GLASS_TESTS_LONG").is_some()
}

/// Attaches to a guest through QEMU's gdbstub.
pub fn attach_stub(fixture: &Fixture) -> Result<KnownVm<QemuVm>, GuestError> {
    QemuVm::attach(&fixture.vm(), VmSettings::new(2048, fixture.elf.clone()))
}

/// The part of a test of kills that is killed: samples the guest of another process.
pub fn sample_stub_until_killed() {
    let Ok(pid) = std::env::var("GLASS_TEST_QEMU") else { return };
    let Found::Vm(vm) = find::by_pid(pid.parse().unwrap()).unwrap() else { panic!("no VM") };
    let symbols = vm.elf.clone().unwrap();
    let mut guest = QemuVm::attach(&vm, VmSettings::new(2048, symbols)).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && guest.sample_all().unwrap().is_some() {}
}

pub fn build(folder: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let elf = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args([
        "-O2",
        "-g",
        "-ffreestanding",
        "-fno-pic",
        "-mno-red-zone",
        "-fno-stack-protector",
        "-fcf-protection=none",
    ]);
    cc.args(["-fno-optimize-sibling-calls", "-mgeneral-regs-only", "-nostdlib", "-static", "-no-pie"]);
    cc.args(["-Wl,--build-id=sha1", "-Wl,-z,max-page-size=4096", "-Wl,--no-eh-frame-hdr", "-Wl,-z,noexecstack"]);
    // The code comes from the assembler's input or is found by its folder.
    cc.arg("-I").arg(&programs);
    cc.args(flags).arg("-T").arg(programs.join("guest.ld"));
    cc.args(["-x", "assembler"]).arg(programs.join("guest_boot.s")).args(["-x", "c"]).arg(programs.join("guest.c"));
    let Ok(result) = cc.arg("-o").arg(&elf).output() else {
        skip("there is no C compiler (cc)");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(elf)
}

impl Fixture {
    /// A guest whose QEMU has a gdbstub.
    pub fn start(accel: &[&str], name: &str, flags: &[&str], memfd: bool, vcpus: u32) -> Option<Fixture> {
        Fixture::start_with(accel, name, flags, memfd, vcpus, |qemu, folder| {
            qemu.arg("-gdb").arg(format!("unix:{},server=on,wait=off", folder.join("gdb").display()));
        })
    }

    /// A guest under KVM, whose rounds take some milliseconds where ring 0 is emulated. Skipped where
    /// `/dev/kvm` cannot be used.
    pub fn start_kvm(name: &str, flags: &[&str], vcpus: u32) -> Option<Fixture> {
        /// This host may emulate ring 0 and offer no MSR_ARCH_CAPABILITIES.
        const KVM: &[&str] = &["-accel", "kvm", "-cpu", "host,-arch-capabilities"];
        /// Iterations of the guest's loop for a weight of one where ring 0 is emulated, at some 0.6 us an
        /// instruction.
        const FEW: &str = "-DUNIT=40";
        /// More rounds a second than emulation can do.
        const EMULATED_ROUNDS_PER_SEC_MAX: u64 = 3_000;
        if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            skip(&format!("/dev/kvm cannot be used ({error})"));
            return None;
        }
        let mut emulated = Fixture::start(KVM, name, &[flags, &[FEW]].concat(), true, vcpus)?;
        let before = emulated.rounds();
        std::thread::sleep(Duration::from_millis(100));
        if (emulated.rounds() - before) * 10 < EMULATED_ROUNDS_PER_SEC_MAX {
            emulated.rounds_are_long = true;
            return Some(emulated);
        }
        drop(emulated);
        Fixture::start(KVM, name, flags, true, vcpus)
    }

    /// A guest whose QEMU gets more options; sockets go to its folder.
    pub fn start_with(
        accel: &[&str],
        name: &str,
        flags: &[&str],
        memfd: bool,
        vcpus: u32,
        add: impl FnOnce(&mut Command, &Path),
    ) -> Option<Fixture> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::new(name).unwrap();
        let elf = build(folder.path(), "guest.elf", flags)?;
        let mut qemu = Command::new(QEMU);
        qemu.args(accel).args(["-m", "32", "-smp", &vcpus.to_string()]);
        if memfd {
            qemu.args(["-M", "microvm,memory-backend=ram"]);
            qemu.args(["-object", "memory-backend-memfd,id=ram,size=32M,share=on"]);
        } else {
            qemu.args(["-M", "microvm"]);
        }
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        add(&mut qemu, folder.path());
        let child = qemu.arg("-kernel").arg(&elf).stdin(Stdio::null()).spawn();
        let Ok(child) = child else {
            skip(&format!("there is no {QEMU}"));
            return None;
        };
        let image = Image::parse(&std::fs::read(&elf).unwrap(), &["rounds"]).unwrap();
        let rounds = image.symbol("rounds").unwrap();
        let mut fixture = Fixture { _turn: turn, folder, elf, qemu: child, rounds_are_long: false, ram: None, rounds };
        fixture.wait_for(|fixture| ["gdb", "monitor"].iter().any(|socket| fixture.folder.file(socket).exists()));
        if memfd {
            fixture.wait_for(|fixture| {
                fixture.ram = RamFile::open(fixture.qemu.id()).unwrap();
                fixture.ram.is_some()
            });
            fixture.wait_for(|fixture| fixture.rounds() > 10);
        }
        Some(fixture)
    }

    /// Finds the RAM of a guest that was started without a memfd of the usual size, and waits until it counts.
    pub fn wait_until_it_counts(&mut self) {
        self.wait_for(|fixture| {
            let candidates = RamFile::candidates(fixture.qemu.id(), Architecture::X86_64).unwrap();
            candidates.into_iter().any(|ram| {
                fixture.ram = Some(ram);
                let mut bytes = [0; 8];
                let is_read = fixture.ram.as_ref().is_some_and(|ram| ram.read(fixture.rounds, &mut bytes));
                is_read && (10..1 << 40).contains(&u64::from_le_bytes(bytes))
            })
        });
    }

    pub fn wait_for(&mut self, mut condition: impl FnMut(&mut Fixture) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "QEMU does not start");
            assert!(self.qemu.try_wait().unwrap().is_none(), "QEMU ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The counter of the guest's first core: it grows while the guest runs.
    pub fn rounds(&self) -> u64 {
        self.rounds_of(0)
    }

    /// The counter of a core.
    pub fn rounds_of(&self, core: u64) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.ram.as_ref().unwrap().read(self.rounds + 8 * core, &mut bytes));
        u64::from_le_bytes(bytes)
    }

    pub fn assert_runs(&self, moment: &str) {
        let (start, before) = (Instant::now(), self.rounds());
        while self.rounds() < before + 10 {
            assert!(start.elapsed() < PATIENCE, "the guest stands still {moment}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills profilers of this guest, see [`assert_survives_kills`].
    pub fn assert_survives_kills(&self, profiler: &str) {
        assert_survives_kills(self.qemu.id(), &self.elf, profiler, |moment| self.assert_runs(moment));
    }

    pub fn vm(&self) -> Vm {
        match find::by_pid(self.qemu.id()).unwrap() {
            Found::Vm(vm) => vm,
            Found::Process => panic!("QEMU is not recognised"),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Kills 20 profilers of a guest (200 in a long run), each the ignored test `profiler` of this program, at
/// random moments from before it attaches until long after; the guest has to run on each time.
pub fn assert_survives_kills(vmm: u32, elf: &Path, profiler: &str, assert_runs: impl Fn(&str)) {
    let kills = if is_long() { 200 } else { 20 };
    let seed = match std::env::var("GLASS_TEST_SEED") {
        Ok(text) => text.parse().expect("GLASS_TEST_SEED is a number"),
        Err(_) => glass_profiler_guests::read_clocks().monotonic_ns,
    };
    eprintln!("seed {seed}: set GLASS_TEST_SEED to it to have the same moments again");
    let mut random = seed | 1;
    for round in 0..kills {
        let mut profiler = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", profiler, "--ignored"])
            .env("GLASS_TEST_QEMU", vmm.to_string())
            .env("GLASS_TEST_ELF", elf)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(2_000 + random % 100_000));
        profiler.kill().unwrap();
        profiler.wait().unwrap();
        assert_runs(&format!("after kill {round}, seed {seed}"));
    }
}

/// Unwinds samples of the guest and checks them against what it is known to do.
pub struct Judge {
    images: Images,
    /// The guest's program, until a sample contains its process.
    unmapped: Option<Mapping>,
    symbols: Symbols,
    pub counts: [u32; 4],
    /// Samples in a round of the guest that the sample before had seen already: the host let the
    /// guest wait in between, so they are no second look at it and do not count for the shares.
    repeated: u32,
    counts_repeated: bool,
    last_round: Option<u64>,
    /// The cores whose marks were found, a bit each.
    pub cores: u8,
    /// Samples in the smallest function.
    pub leaves: u32,
    torn: u32,
    broken: u32,
    wrong: Vec<Vec<String>>,
}

impl Judge {
    pub fn new(elf: &Path, counts_repeated: bool) -> Judge {
        let bytes = std::fs::read(elf).unwrap();
        let symbols = Symbols::parse(&bytes).unwrap();
        let range = Image::parse(&bytes, &[]).unwrap().linked_range();
        let path = elf.display().to_string();
        let unmapped =
            Some(Mapping { start: range.start, end: range.end, path, placement: Placement::AsLinked, file: None });
        Judge {
            images: Images::default(),
            unmapped,
            symbols,
            counts: [0; 4],
            repeated: 0,
            counts_repeated,
            last_round: None,
            cores: 0,
            leaves: 0,
            torn: 0,
            broken: 0,
            wrong: Vec::new(),
        }
    }

    pub fn judge(&mut self, sample: &RawSample) {
        if let Some(mapping) = self.unmapped.take() {
            let (space, guest) = (SpaceId(0), GuestId(0));
            for event in [Event::Space { space, guest, process: None, copy_of: None }, Event::Map { space, mapping }] {
                self.images.learn(&event, &mut HostFiles::default());
            }
        }
        let chain = self.images.unwind(sample);
        let name = |address| self.symbols.locate(address).pop().map_or("?".to_owned(), |location| location.function);
        let names: Vec<String> = chain.calls.iter().map(|call| name(call.address)).collect();
        self.broken += u32::from(chain.end != StackEnd::Complete);
        let mut names = names;
        if names.first().is_some_and(|name| name == "leaf") {
            names.remove(0);
            self.leaves += 1;
        }
        let expected = ["run", "a", "b", "c"];
        let depth = names.len();
        if depth == 0 || depth > 4 || !names.iter().rev().eq(expected[..depth].iter()) {
            self.wrong.push(names);
            return;
        }
        // The innermost function may not have written its mark yet; the others have.
        let stack =
            sample.segments.last().and_then(|segment| segment.stack.first()).map_or(&[][..], |(_, bytes)| bytes);
        let marks = stack.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let marks: Vec<u64> = marks.filter(|word| word >> 44 == 0xc0ded).collect();
        let round = marks.iter().map(|word| word & 0xff_ffff_ffff).max();
        marks.iter().for_each(|word| self.cores |= 1 << (word >> 38 & 3));
        if round.is_some() && round == self.last_round && !self.counts_repeated {
            self.repeated += 1;
        } else {
            self.counts[depth - 1] += 1;
        }
        self.last_round = round;
        let callers = (1..depth as u64 - u64::from(depth > 1)).filter_map(|function| {
            marks.iter().find(|word| *word >> 40 & 0xf == function).map(|word| word & 0xff_ffff_ffff)
        });
        let rounds: Vec<u64> = callers.collect();
        let missing = depth >= 3 && rounds.len() != depth - 2;
        self.torn += u32::from(missing || rounds.windows(2).any(|pair| pair[0] != pair[1]));
    }

    /// How many stacks were torn, and how many were broken or impossible.
    pub fn bad(&self) -> (u32, u32) {
        (self.torn, self.broken + self.wrong.len() as u32)
    }

    /// No stack is torn, broken or one that cannot be.
    pub fn assert_whole(&self) {
        assert!(self.wrong.is_empty(), "{} wrong chains, the first: {:?}", self.wrong.len(), self.wrong[0]);
        assert_eq!((self.torn, self.broken), (0, 0));
    }

    pub fn check(&self, samples: u32) {
        self.assert_whole();
        let total: u32 = self.counts.iter().sum();
        assert_eq!(total + self.repeated, samples);
        for (count, share) in self.counts[1..].iter().zip([0.1, 0.3, 0.6]) {
            let (total, count) = (f64::from(total), f64::from(*count));
            // TCG stops at the ends of blocks, which costs the first of each function's loop a little.
            let tolerance = 5.0 * (total * share * (1.0 - share)).sqrt() + 0.01 * total;
            assert!((count - total * share).abs() < tolerance, "{:?} of {total}", self.counts);
        }
    }
}

/// Takes samples at a rate and checks all of them.
pub fn take(fixture: &Fixture, guest: impl Guest, rate_hz: u32, samples: usize) -> (Judge, Durations) {
    let (mut judges, pauses) = take_of(&fixture.elf, fixture.rounds_are_long, guest, rate_hz, samples);
    (judges.remove(&0).unwrap(), pauses)
}

/// The same of a guest that runs `elf`, with a judge for each vCPU.
pub fn take_of(
    elf: &Path,
    rounds_are_long: bool,
    guest: impl Guest,
    rate_hz: u32,
    samples: usize,
) -> (BTreeMap<u32, Judge>, Durations) {
    let (judges, pauses) = judge_all(elf, rounds_are_long, guest, rate_hz, samples);
    let check = |(track, (judge, count)): (u32, (Judge, u32))| {
        judge.check(count);
        (track, judge)
    };
    (judges.into_iter().map(check).collect(), pauses)
}

/// Takes samples of a guest with more cores than this machine may have, and returns the cores whose marks each track
/// has, a bit each. A core that waits for a CPU is seen at the same place again, so shares are not judged.
pub fn cores_of(elf: &Path, guest: impl Guest, samples: usize) -> Vec<(u32, u8)> {
    let (judges, _) = judge_all(elf, true, guest, 997, samples);
    let cores = |(track, (judge, _)): (u32, (Judge, u32))| {
        judge.assert_whole();
        (track, judge.cores)
    };
    judges.into_iter().map(cores).collect()
}

fn judge_all(
    elf: &Path,
    rounds_are_long: bool,
    guest: impl Guest,
    rate_hz: u32,
    samples: usize,
) -> (BTreeMap<u32, (Judge, u32)>, Durations) {
    let mut source = Paced::new(guest, rate_hz);
    let mut judges: BTreeMap<u32, (Judge, u32)> = BTreeMap::new();
    let mut pauses = Durations::default();
    let mut taken = 0;
    let mut sink = |event| {
        if let Event::Sample(sample) = event {
            // On a busy host the thread waits for a CPU, at any place of the guest.
            assert!(matches!(sample.state, State::Running | State::Stolen | State::InVmm), "{:?}", sample.state);
            pauses.add(sample.frozen_ns);
            let (judge, count) = judges.entry(sample.track).or_insert_with(|| (Judge::new(elf, rounds_are_long), 0));
            judge.judge(&sample);
            *count += 1;
            taken += 1;
        }
        taken
    };
    source.announce(&mut |event| _ = sink(event)).unwrap();
    let (start, mut taken) = (Instant::now(), 0);
    while taken < samples {
        assert!(start.elapsed() < PATIENCE * if is_long() { 20 } else { 2 }, "{taken} samples");
        let flow = source.collect(Duration::from_millis(100), &mut |event| taken = sink(event));
        assert_eq!(flow.unwrap(), Flow::More);
    }
    let counts = source.counts();
    // Moments are random: what the rate calls for is what was taken and lost only about.
    assert_eq!(counts.delivered, taken as u64, "{counts:?}");
    source.detach(&mut |_| ()).unwrap();
    (judges, pauses)
}
