//! Samples a bare guest with known shares in a real QEMU (TCG) through its gdbstub.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glass_guests::find::{self, Found, Vm};
use glass_guests::gdbstub::{QemuVm, VmSettings};
use glass_guests::memory::{Physical, RamFile};
use glass_guests::paced::Paced;
use glass_guests::{Flow, Guest, GuestError, Source};
use glass_profile::durations::Durations;
use glass_profile::event::{Event, RawSample};
use glass_profile::image::Image;
use glass_profile::model::{StackEnd, State};
use glass_profile::symbols::Symbols;
use glass_profile::unwind::{AddressSpace, UnwindCache};

const QEMU: &str = "qemu-system-x86_64";
/// Time until the guest has started, and for anything that it is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Guests never sleep, so one at a time has a core for itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Fixture {
    _turn: MutexGuard<'static, ()>,
    folder: PathBuf,
    elf: PathBuf,
    qemu: Child,
    ram: Option<RamFile>,
    rounds: u64,
}

fn build(folder: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
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
    cc.args(flags).arg("-T").arg(programs.join("guest.ld"));
    cc.args(["-x", "assembler"]).arg(programs.join("guest_boot.s")).args(["-x", "c"]).arg(programs.join("guest.c"));
    let Ok(result) = cc.arg("-o").arg(&elf).output() else {
        eprintln!("skipped: there is no C compiler (cc)");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(elf)
}

impl Fixture {
    fn start(name: &str, flags: &[&str], memfd: bool, vcpus: u32) -> Option<Fixture> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = std::env::temp_dir().join(format!("glass-gdbstub-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let elf = build(&folder, "guest.elf", flags)?;
        let mut qemu = Command::new(QEMU);
        qemu.args(["-accel", "tcg", "-cpu", "max", "-m", "32", "-smp", &vcpus.to_string()]);
        if memfd {
            qemu.args(["-M", "microvm,memory-backend=ram"]);
            qemu.args(["-object", "memory-backend-memfd,id=ram,size=32M,share=on"]);
        } else {
            qemu.args(["-M", "microvm"]);
        }
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        qemu.arg("-gdb").arg(format!("unix:{},server=on,wait=off", folder.join("gdb").display()));
        let child = qemu.arg("-kernel").arg(&elf).stdin(Stdio::null()).spawn();
        let Ok(child) = child else {
            eprintln!("skipped: there is no {QEMU}");
            return None;
        };
        let image = Image::parse(&std::fs::read(&elf).unwrap(), &["rounds"]).unwrap();
        let rounds = image.symbol("rounds").unwrap();
        let mut fixture = Fixture { _turn: turn, folder, elf, qemu: child, ram: None, rounds };
        fixture.wait_for(|fixture| fixture.folder.join("gdb").exists());
        if memfd {
            fixture.wait_for(|fixture| {
                fixture.ram = RamFile::open(fixture.qemu.id()).unwrap();
                fixture.ram.is_some()
            });
            fixture.wait_for(|fixture| fixture.rounds() > 10);
        }
        Some(fixture)
    }

    fn wait_for(&mut self, mut condition: impl FnMut(&mut Fixture) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "QEMU does not start");
            assert!(self.qemu.try_wait().unwrap().is_none(), "QEMU ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The guest's counter: it grows while the guest runs.
    fn rounds(&self) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.ram.as_ref().unwrap().read(self.rounds, &mut bytes));
        u64::from_le_bytes(bytes)
    }

    fn assert_runs(&self, moment: &str) {
        let (start, before) = (Instant::now(), self.rounds());
        while self.rounds() < before + 10 {
            assert!(start.elapsed() < PATIENCE, "the guest stands still {moment}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn vm(&self) -> Vm {
        match find::by_pid(self.qemu.id()).unwrap() {
            Found::Vm(vm) => vm,
            Found::Process => panic!("QEMU is not recognised"),
        }
    }

    fn attach(&self) -> Result<QemuVm, GuestError> {
        QemuVm::attach(&self.vm(), VmSettings { stack_bytes: 2048, symbols: self.elf.clone() })
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Unwinds samples of the guest and checks them against what it is known to do.
struct Judge {
    space: AddressSpace,
    symbols: Symbols,
    cache: UnwindCache,
    counts: [u32; 4],
    /// Samples in a round of the guest that the sample before had seen already: the host let the
    /// guest wait in between, so they are no second look at it and do not count for the shares.
    repeated: u32,
    last_round: Option<u64>,
    torn: u32,
    broken: u32,
    wrong: Vec<Vec<String>>,
}

impl Judge {
    fn new(elf: &Path) -> Judge {
        let bytes = std::fs::read(elf).unwrap();
        let image = Arc::new(Image::parse(&bytes, &[]).unwrap());
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image);
        let symbols = Symbols::parse(&bytes).unwrap();
        Judge {
            space,
            symbols,
            cache: UnwindCache::default(),
            counts: [0; 4],
            repeated: 0,
            last_round: None,
            torn: 0,
            broken: 0,
            wrong: Vec::new(),
        }
    }

    fn judge(&mut self, sample: &RawSample) {
        let chain = self.space.unwind(&mut self.cache, sample.registers, &sample.stack);
        let name = |address| self.symbols.locate(address).pop().map_or("?".to_owned(), |location| location.function);
        let names: Vec<String> = chain.calls.iter().map(|call| name(call.address)).collect();
        self.broken += u32::from(chain.end != StackEnd::Complete);
        let expected = ["run", "a", "b", "c"];
        let depth = names.len();
        if depth == 0 || depth > 4 || !names.iter().rev().eq(expected[..depth].iter()) {
            self.wrong.push(names);
            return;
        }
        // The innermost function may not have written its mark yet; the others have.
        let marks = sample.stack.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let marks: Vec<u64> = marks.filter(|word| word >> 44 == 0xc0ded).collect();
        let round = marks.iter().map(|word| word & 0xff_ffff_ffff).max();
        if round.is_some() && round == self.last_round {
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

    fn check(&self, samples: u32) {
        assert!(self.wrong.is_empty(), "{} wrong chains, the first: {:?}", self.wrong.len(), self.wrong[0]);
        assert_eq!((self.torn, self.broken), (0, 0));
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

fn take(fixture: &Fixture, samples: usize) -> (Judge, Durations) {
    let mut source = Paced::new(fixture.attach().unwrap(), 1500);
    let mut judge = Judge::new(&fixture.elf);
    let mut pauses = Durations::default();
    let mut taken = 0;
    source.announce(&mut |_| ()).unwrap();
    let start = Instant::now();
    while taken < samples {
        assert!(start.elapsed() < PATIENCE * 2, "{taken} samples");
        let mut sink = |event| {
            if let Event::Sample(sample) = event {
                assert_eq!(sample.state, State::Running);
                pauses.add(sample.pause_ns);
                judge.judge(&sample);
                taken += 1;
            }
        };
        assert_eq!(source.collect(Duration::from_millis(100), &mut sink).unwrap(), Flow::More);
    }
    let counts = source.counts();
    assert_eq!(counts.wanted - counts.lost, taken as u64);
    source.detach(&mut |_| ()).unwrap();
    judge.check(taken as u32);
    (judge, pauses)
}

#[test]
fn whole_stacks_and_true_shares_with_frame_pointers() {
    let Some(fixture) =
        Fixture::start("pointers", &["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"], true, 1)
    else {
        return;
    };
    let (judge, pauses) = take(&fixture, 1000);
    eprintln!("run, a, b, c: {:?}; pause {:?}", judge.counts, pauses.distribution());
    fixture.assert_runs("after detaching");
}

#[test]
fn whole_stacks_and_true_shares_with_tables_only() {
    let Some(fixture) = Fixture::start("tables", &["-fomit-frame-pointer", "-fasynchronous-unwind-tables"], true, 1)
    else {
        return;
    };
    take(&fixture, 1000);
    // A second time: the first has left nothing behind.
    take(&fixture, 100);
    fixture.assert_runs("after detaching");
}

#[test]
fn without_a_memfd_memory_comes_through_the_socket() {
    let Some(fixture) = Fixture::start("socket", &["-fno-omit-frame-pointer"], false, 1) else { return };
    std::thread::sleep(Duration::from_secs(1));
    let (_, pauses) = take(&fixture, 200);
    eprintln!("pause {:?}", pauses.distribution());
}

#[test]
fn a_core_that_never_started_is_idle() {
    let Some(fixture) = Fixture::start("cores", &["-fno-omit-frame-pointer"], true, 2) else { return };
    let mut guest = fixture.attach().unwrap();
    let mut names = Vec::new();
    let mut sink = |event| {
        if let Event::Track { track, name, .. } = event {
            names.push((track, name));
        }
    };
    guest.announce(&mut sink).unwrap();
    assert_eq!(names, [(0, "vcpu 0".to_owned()), (1, "vcpu 1".to_owned())]);
    let states = guest.sample().unwrap().unwrap().into_iter().map(|event| match event {
        Event::Sample(sample) => (sample.track, sample.state),
        other => panic!("{other:?}"),
    });
    assert_eq!(states.collect::<Vec<_>>(), [(0, State::Running), (1, State::Idle)]);
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

#[test]
fn the_wrong_file_is_refused_and_the_guest_runs_on() {
    let Some(fixture) = Fixture::start("wrong", &["-fno-omit-frame-pointer"], true, 1) else { return };
    let attach = |symbols: PathBuf| {
        let error = QemuVm::attach(&fixture.vm(), VmSettings { stack_bytes: 2048, symbols }).err().unwrap().to_string();
        fixture.assert_runs("after a refusal");
        error
    };
    let other = build(&fixture.folder, "other.elf", &["-fno-omit-frame-pointer", "-DOTHER", "-O1"]).unwrap();
    let error = attach(other);
    assert!(error.contains("another build id"), "{error}");
    let without_id = build(&fixture.folder, "no-id.elf", &["-O1", "-Wl,--build-id=none"]).unwrap();
    let error = attach(without_id);
    assert!(error.contains("the code in its memory differs"), "{error}");
    let stripped = build(&fixture.folder, "stripped.elf", &["-fno-omit-frame-pointer", "-s"]).unwrap();
    let error = attach(stripped);
    assert!(error.contains("stripped"), "{error}");
    let error = attach(fixture.folder.join("missing.elf"));
    assert!(error.contains("missing.elf"), "{error}");
}

#[test]
fn a_guest_that_ends_is_no_error() {
    let Some(mut fixture) = Fixture::start("ends", &["-fno-omit-frame-pointer"], true, 1) else { return };
    let mut guest = fixture.attach().unwrap();
    assert!(guest.sample().unwrap().is_some());
    fixture.qemu.kill().unwrap();
    fixture.qemu.wait().unwrap();
    assert!(guest.sample().unwrap().is_none());
    guest.detach().unwrap();
    let error = find::by_pid(fixture.qemu.id()).unwrap_err();
    assert!(matches!(error, GuestError::NoProcess(_)));
}

/// Not a test of its own: what `a_killed_profiler_leaves_the_guest_running` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    let Ok(pid) = std::env::var("GLASS_TEST_QEMU") else { return };
    let Found::Vm(vm) = find::by_pid(pid.parse().unwrap()).unwrap() else { panic!("no VM") };
    let symbols = vm.elf.clone().unwrap();
    let mut guest = QemuVm::attach(&vm, VmSettings { stack_bytes: 2048, symbols }).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && guest.sample().unwrap().is_some() {}
}

#[test]
fn a_killed_profiler_leaves_the_guest_running() {
    let Some(fixture) = Fixture::start("killed", &["-fno-omit-frame-pointer"], true, 1) else { return };
    const KILLS: u64 = 20;
    for round in 0..KILLS {
        let mut profiler = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sample_until_killed", "--ignored"])
            .env("GLASS_TEST_QEMU", fixture.qemu.id().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before it connects until long after; primes, so that no moment is hit twice.
        std::thread::sleep(Duration::from_millis(5 + round * 13 % 97));
        profiler.kill().unwrap();
        profiler.wait().unwrap();
        fixture.assert_runs(&format!("after kill {round}"));
    }
    // Nobody holds the connection any more.
    let start = Instant::now();
    while let Err(error) = take_one(&fixture) {
        assert!(start.elapsed() < PATIENCE, "{error}");
    }
}

fn take_one(fixture: &Fixture) -> Result<(), GuestError> {
    let mut guest = fixture.attach()?;
    guest.sample()?;
    guest.detach()
}
