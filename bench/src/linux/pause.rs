//! What a task costs a sample: how much longer a vCPU is paused if its task, and the stack of its process, are copied too.
//!
//! A Linux does not boot under each KVM, but a VM can continue where an emulated guest was stopped. Its vCPU jumps to itself there, so each sample is of
//! the same place: in a process, or in a system call of one.

use super::ram::Ram;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::arch::x86_64::paging::Paging;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::model::Sample;
use glass_profiler_core::recording::{self, Recording};
use glass_tests::folder::Folder;
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::vmm::Vmm;
use glass_tests::{process::Process, programs};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MEMORY_MIB: u32 = 512;
/// Rounds, and samples of each kind in one.
const ROUNDS: usize = 9;
const SAMPLES: u64 = 300;
const SAMPLES_SHORT: u64 = 50;
const RATE: &str = "499";
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the guest is stopped until it is where it is wanted.
const ATTEMPTS: usize = 100;
/// How often it is stopped there until a sample has what it is to have.
const STOPS_MAX: usize = 10;
/// `jmp` to itself.
const JUMP: [u8; 2] = [0xeb, 0xfe];

/// Where a vCPU is.
struct Place {
    /// In names of figures.
    name: &'static str,
    /// What runs in the guest.
    program: &'static str,
    /// The privilege of the code.
    ring: u64,
}

const PLACES: [Place; 2] = [
    Place { name: "", program: "with-fp", ring: 3 },
    Place { name: "in_call.", program: "dd if=/dev/zero of=/dev/null bs=1M", ring: 0 },
];

/// How the VMM has its memory, in names of figures, and for the VMM: as a file that is mapped here too, as QEMU's memfd is, or for itself.
const LAYOUTS: [(&str, &str); 2] = [("", "plain"), ("private.", "firecracker")];

/// Measures at each place.
pub(super) fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let parts = match Parts::get(Release::Bookworm61) {
        Ok(parts) => parts,
        Err(reason) => {
            outcome.skip(format!("no Linux {}: {reason:#}", Release::Bookworm61));
            return Ok(());
        }
    };
    for (index, place) in PLACES.iter().enumerate() {
        let Some(stopped) = stopped(&parts, place)? else {
            outcome.skip("KVM cannot be used");
            return Ok(());
        };
        let run = run.part(index, PLACES.len());
        for (index, (name, layout)) in LAYOUTS.iter().enumerate() {
            let vmm = stopped.run(layout)?.context("KVM cannot be used any more")?;
            at_place(outcome, &run.part(index, LAYOUTS.len()), &format!("linux.{name}{}", place.name), &vmm)?;
        }
    }
    outcome.note(format!(
        "sample_extra: a VM by KVM with one vCPU, {RATE} stops a second: a bare one, a sample with its task, and one without, in turn; of each round the median difference of two that follow each other; in_call: in a system call, which has two stacks; private: the VMM's memory is no file, and each read a system call"
    ));
    Ok(())
}

/// Samples of one VM with its task and without, in turn.
fn at_place(outcome: &mut Outcome, run: &Run, name: &str, vmm: &Vmm) -> Result<()> {
    let mut rounds = Rounds::default();
    let samples = run.size(SAMPLES, SAMPLES_SHORT);
    for _ in run.rounds(ROUNDS) {
        let times = pauses(vmm, samples)?;
        let of = |name: &str| times.get(name).map_or(&[][..], Vec::as_slice);
        let (with, without) = (of("sample"), of("without"));
        let extra: Vec<f64> = with.iter().zip(without).map(|(with, without)| with - without).collect();
        let median = |times: &[f64]| Summary::of(times).map(|of| of.median).context("the VM has ended");
        rounds.extra.push(median(&extra)?);
        rounds.with.push(median(with)?);
        rounds.without.push(median(without)?);
        // On a loaded machine most of them wait for a CPU, which is no part of a sample's pause.
        rounds.floor.extend(Summary::of(of("floor")).map(|of| of.low));
        rounds.attach_stops.extend(of("attach_stops"));
        rounds.cpu.extend(of("cpu"));
        run.so_far(outcome, |so_far| rounds.add_to(so_far, name));
    }
    rounds.add_to(outcome, name);
    Ok(())
}

/// The median of each round: how much longer a pause is with a task than the next one without, and the two pauses; the 10th percentile of stops in
/// which nothing is read; microseconds.
#[derive(Default)]
struct Rounds {
    extra: Vec<f64>,
    with: Vec<f64>,
    without: Vec<f64>,
    floor: Vec<f64>,
    attach_stops: Vec<f64>,
    /// Our own time for one stop, of the three kinds in turn.
    cpu: Vec<f64>,
}

impl Rounds {
    fn add_to(&self, outcome: &mut Outcome, name: &str) {
        let figure = |what: &str, times| Figure::of(&format!("{name}{what}"), "us", times);
        let floor_us = Summary::of(&self.floor).map_or(0.0, |floor| floor.median);
        outcome.add(figure("sample_extra_us", &self.extra));
        outcome.add(figure("sample_cpu_us", &self.cpu));
        outcome.add(Figure::of(&format!("{name}attach_stops_kvm"), "stops", &self.attach_stops));
        for (what, times) in [("sample_pause_us", &self.with), ("sample_pause_without_task_us", &self.without)] {
            outcome.add(figure(what, times).map(|figure| figure.against("a bare stop, 10 %", floor_us)));
        }
    }
}

/// Records the VM.
fn record(vmm: &Vmm, folder: &Folder) -> Result<Recording> {
    let file = folder.file("pause.glass");
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.args(["record", "--backend", "kvm", "--duration", "1", "--pid", &vmm.pid().to_string(), "--output"]);
    let mut process = Process::spawn(command.arg(&file), &folder.file("record.log"))?;
    let status = process.wait(PATIENCE);
    let status = status.with_context(|| format!("glass record does not end: {}", process.output()))?;
    ensure!(status.success(), "glass record: {}", process.output());
    Ok(recording::open(&std::fs::read(&file)?, &mut NoFiles)?)
}

/// Whether each sample is of a task, with the stacks that it has at that place.
fn check(recording: &Recording, place: &Place) -> Result<()> {
    let profile = &recording.profile;
    let segments = |sample: &Sample| {
        let list = sample.segments.and_then(|list| profile.segments.get(list as usize));
        list.map_or(1, Vec::len)
    };
    let expected = if place.ring == 0 { 2 } else { 1 };
    let whole = profile.samples.iter().filter(|sample| sample.thread.is_some() && segments(sample) == expected).count();
    let all = profile.samples.len();
    ensure!(all > 0 && whole == all, "of {all} samples {whole} have a task and {expected} stacks");
    Ok(())
}

/// So many stops of each kind, by its name, in microseconds.
fn pauses(vmm: &Vmm, samples: u64) -> Result<BTreeMap<String, Vec<f64>>> {
    let program = programs::built("examples/pauses").context("the example `pauses` is not built")?;
    let output = Command::new(program).args(["tasks", &vmm.pid().to_string(), &samples.to_string(), RATE]).output()?;
    ensure!(output.status.success(), "pauses: {}", String::from_utf8_lossy(&output.stderr));
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let (name, value) = line.split_once(' ').context("the example `pauses` prints something else")?;
        times.entry(name.to_owned()).or_default().push(value.parse()?);
    }
    Ok(times)
}

/// A guest that was stopped where its samples are what they are to be. `None` after printing why KVM cannot be used.
fn stopped(parts: &Parts, place: &Place) -> Result<Option<Stopped>> {
    let usual = Settings::new(Release::Bookworm61);
    let mut guest = Guest::boot(parts, &Settings { five_levels: false, vcpus: 1, memory_mib: MEMORY_MIB, ..usual })?;
    guest.expect(&format!("{} >/dev/null 2>&1 & sleep 1", place.program), PATIENCE)?;
    for attempt in 1.. {
        let stopped = Stopped::of(&guest, place)?;
        let Some(vmm) = stopped.run(LAYOUTS[0].1)? else { return Ok(None) };
        // It may have been in an interrupt.
        match check(&record(&vmm, &stopped.folder)?, place) {
            Err(error) if attempt == STOPS_MAX => return Err(error),
            Err(_) => guest.resume()?,
            Ok(()) => return Ok(Some(stopped)),
        }
    }
    Ok(None)
}

/// A guest that was stopped, in files.
struct Stopped {
    folder: Folder,
    ram: PathBuf,
    registers: PathBuf,
}

impl Stopped {
    /// Stops a guest with one vCPU and page tables of four levels where it is wanted. There it jumps to itself.
    fn of(guest: &Guest, place: &Place) -> Result<Stopped> {
        let registers = stop(guest, place)?;
        let folder = Folder::new("linux-stopped")?;
        let ram = Ram::of(guest.pid())?;
        let stopped = Stopped {
            ram: folder.file("ram"),
            registers: folder.write("registers", lines(&registers).as_bytes())?,
            folder,
        };
        ram.copy(&stopped.ram)?;
        jump(&ram, &registers, &stopped.ram)?;
        Ok(stopped)
    }

    /// Continues it by KVM.
    fn run(&self, layout: &str) -> Result<Option<Vmm>> {
        Vmm::continue_from(layout, MEMORY_MIB.into(), &self.ram, &self.registers)
    }
}

/// Stops the guest where it is wanted; its registers.
fn stop(guest: &Guest, place: &Place) -> Result<BTreeMap<String, u64>> {
    for _ in 0..ATTEMPTS {
        guest.pause()?;
        let registers = registers(&guest.registers()?);
        if registers.get("cpl") == Some(&place.ring) {
            return Ok(registers);
        }
        guest.resume()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("{} is never in ring {}", place.program, place.ring)
}

/// Writes a jump to itself where the vCPU continues.
fn jump(ram: &Ram, registers: &BTreeMap<String, u64>, copy: &Path) -> Result<()> {
    let get = |name: &str| registers.get(name).copied().with_context(|| format!("QEMU prints no {name}"));
    let paging = Paging { cr0: get("cr0")?, cr3: get("cr3")?, cr4: get("cr4")?, efer: Some(get("efer")?) };
    let rip = get("rip")?;
    let physical = |address| Space::new(ram, paging).physical(address).context("the vCPU's code is not in RAM");
    let file = File::options().write(true).open(copy)?;
    for (byte, address) in JUMP.iter().zip(rip..) {
        file.write_all_at(&[*byte], physical(address)?)?;
    }
    Ok(())
}

/// The registers that QEMU's `info registers` prints, by their names in small letters; of a segment or a table its base.
fn registers(printed: &str) -> BTreeMap<String, u64> {
    const GENERAL: [&str; 16] =
        ["RAX", "RBX", "RCX", "RDX", "RSI", "RDI", "RBP", "RSP", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"];
    const SYSTEM: [&str; 7] = ["RIP", "RFL", "CPL", "CR0", "CR3", "CR4", "EFER"];
    let mut found = BTreeMap::new();
    let number = |text: &str| u64::from_str_radix(text.split_whitespace().next()?, 16).ok();
    // "R8 =1 R9 =2" has blanks within.
    let text = printed.replace(" =", "=");
    for name in GENERAL.iter().chain(&SYSTEM) {
        let value = text.split_whitespace().find_map(|word| number(word.strip_prefix(name)?.strip_prefix('=')?));
        let name = if *name == "RFL" { "rflags".to_owned() } else { name.to_lowercase() };
        found.extend(value.map(|value| (name, value)));
    }
    for name in ["CS", "SS", "FS", "GS", "TR", "GDT", "IDT"] {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let Some(line) = line else { continue };
        let is_table = name.ends_with("DT");
        let base = line.split_whitespace().nth(usize::from(!is_table)).and_then(number);
        found.extend(base.map(|base| (format!("{}_base", name.to_lowercase()), base)));
        found.extend(number(line).filter(|_| !is_table).map(|selector| (name.to_lowercase(), selector)));
    }
    found
}

/// As the VMM reads them.
fn lines(registers: &BTreeMap<String, u64>) -> String {
    registers.iter().map(|(name, value)| format!("{name} {value:x}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_those_that_qemu_prints() {
        let printed = "\nCPU#0\nRAX=00000000000070bd RBX=0000000000401030\nR8 =0000000000020000 R9 =0000000000000009 R10=00000000000000a0\n\
            RIP=00000000004010b8 RFL=00000287 [--S--PC] CPL=3 II=0\nES =0000 0000000000000000 00000000 00000000\n\
            CS =0033 0000000000000000 ffffffff 00affb00 DPL=3 CS64 [-RA]\nFS =0000 0000000000403138 00000000 00000000\n\
            TR =0040 fffffe0000003000 00004087 00008900 DPL=0 TSS64-avl\nGDT=     fffffe0000001000 0000007f\n\
            CR0=80050033 CR2=00000000004ad150 CR3=0000000001bd1000 CR4=00750eb0\nEFER=0000000000000d01\n";
        let found = registers(printed);
        let get = |name: &str| found.get(name).copied();
        assert_eq!([get("rax"), get("r8"), get("r9"), get("r10")], [Some(0x70bd), Some(0x2_0000), Some(9), Some(0xa0)]);
        assert_eq!([get("rip"), get("rflags"), get("cpl")], [Some(0x40_10b8), Some(0x287), Some(3)]);
        assert_eq!([get("cs"), get("fs_base"), get("tr")], [Some(0x33), Some(0x40_3138), Some(0x40)]);
        assert_eq!([get("gdt_base"), get("tr_base")], [Some(0xffff_fe00_0000_1000), Some(0xffff_fe00_0000_3000)]);
        assert_eq!([get("cr3"), get("cr4"), get("efer")], [Some(0x1bd_1000), Some(0x75_0eb0), Some(0xd01)]);
        assert_eq!(get("idt_base"), None);
        assert!(lines(&found).contains("rip 4010b8\n"));
    }
}
