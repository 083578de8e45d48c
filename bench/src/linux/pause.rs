//! What a task costs a sample: how much longer a vCPU is paused if its task, and the stack of its process, are copied too.
//!
//! A Linux does not boot under each KVM, but a VM can continue where an emulated guest was stopped. Its vCPU jumps to itself there, so each sample is of
//! the same place: in a process, or in a system call of one. It is recorded by what its RAM has, and by a map of its kernel alone, which has no tasks,
//! in turn.

use super::ram::Ram;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::arch::x86_64::paging::Paging;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::model::Sample;
use glass_profiler_core::recording::{self, Recording};
use glass_tests::folder::Folder;
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::vmm::Vmm;
use glass_tests::{process::Process, programs};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MEMORY_MIB: u32 = 512;
/// Pairs of recordings, and their length.
const PAIRS: usize = 9;
const SECONDS: u64 = 4;
const SECONDS_SHORT: u64 = 1;
const RATE: &str = "499";
/// Bare stops beside each pair.
const STOPS: u64 = 1000;
const STOPS_SHORT: u64 = 50;
/// What a recording may take beside its length.
const AROUND: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the guest is stopped until it is where it is wanted.
const ATTEMPTS: usize = 100;
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
        let stopped = Stopped::boot(&parts, place)?;
        let Some(vmm) = Vmm::continue_from(MEMORY_MIB.into(), &stopped.ram, &stopped.registers)? else {
            outcome.skip("KVM cannot be used");
            return Ok(());
        };
        at_place(outcome, &run.part(index, PLACES.len()), place, &stopped, &vmm)?;
    }
    outcome.note(format!(
        "sample_extra: a VM by KVM with one vCPU, {RATE} samples per second, recorded by its RAM and by a map of its kernel in turn: the difference of the median pauses of each pair"
    ));
    Ok(())
}

/// Pairs of recordings of one VM.
fn at_place(outcome: &mut Outcome, run: &Run, place: &Place, stopped: &Stopped, vmm: &Vmm) -> Result<()> {
    let (mut extra, mut with, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let (seconds, stops) = (run.size(SECONDS, SECONDS_SHORT), run.size(STOPS, STOPS_SHORT));
    for round in run.rounds(PAIRS) {
        let by_ram: &[&str] = &[];
        let map = stopped.map.to_string_lossy().into_owned();
        let address = format!("{:#x}", stopped.text);
        let by_map = ["--symbols", &map, "--load-address", &address];
        let one = |arguments: &[&str]| record(vmm, &stopped.folder, seconds, arguments);
        // Each is the first in turn.
        let (of_ram, of_map) = match round % 2 {
            0 => (one(by_ram)?, one(&by_map)?),
            _ => {
                let of_map = one(&by_map)?;
                (one(by_ram)?, of_map)
            }
        };
        check(&of_ram, &of_map, place)?;
        let pause_us = |recording: &Recording| recording.profile.cost.pause.median_ns as f64 / 1e3;
        extra.push(pause_us(&of_ram) - pause_us(&of_map));
        with.push(pause_us(&of_ram));
        floors.extend(floor(vmm, stops)?);
    }
    let floor_us = Figure::of("", "us", &floors).map_or(0.0, |figure| figure.value);
    let name = |what: &str| format!("linux.{}{what}", place.name);
    outcome.add(Figure::of(&name("sample_extra_us"), "us", &extra));
    let pause = Figure::of(&name("sample_pause_us"), "us", &with);
    outcome.add(pause.map(|figure| figure.against("a bare stop", floor_us)));
    Ok(())
}

/// Records the VM.
fn record(vmm: &Vmm, folder: &Folder, seconds: u64, arguments: &[&str]) -> Result<Recording> {
    let file = folder.file("pause.glass");
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.args(["record", "--pid", &vmm.pid().to_string(), "--rate", RATE, "--backend", "kvm"]).args(arguments);
    command.args(["--duration", &seconds.to_string(), "--output"]).arg(&file);
    let mut process = Process::spawn(&mut command, &folder.file("record.log"))?;
    let status = process.wait(Duration::from_secs(seconds) + AROUND);
    let status = status.with_context(|| format!("glass record does not end: {}", process.output()))?;
    ensure!(status.success(), "glass record: {}", process.output());
    Ok(recording::open(&std::fs::read(&file)?, &mut NoFiles)?)
}

/// What is copied in one kind of recording, and not in the other one.
fn check(of_ram: &Recording, of_map: &Recording, place: &Place) -> Result<()> {
    let segments = |recording: &Recording, sample: &Sample| {
        let list = sample.segments.and_then(|list| recording.profile.segments.get(list as usize));
        list.map_or(1, Vec::len)
    };
    let expected = if place.ring == 0 { 2 } else { 1 };
    let is_whole = |sample: &&Sample| sample.thread.is_some() && segments(of_ram, sample) == expected;
    let samples = &of_ram.profile.samples;
    let whole = samples.iter().filter(is_whole).count();
    ensure!(
        !samples.is_empty() && whole == samples.len(),
        "of {} samples by RAM {whole} have a task and {expected} stacks",
        samples.len()
    );
    let others = &of_map.profile.samples;
    let with_thread = others.iter().filter(|sample| sample.thread.is_some()).count();
    ensure!(!others.is_empty() && with_thread == 0, "{with_thread} of {} samples by a map have a task", others.len());
    Ok(())
}

/// Stops without a sample, in microseconds.
fn floor(vmm: &Vmm, stops: u64) -> Result<Vec<f64>> {
    let program = programs::built("examples/pauses").context("the example `pauses` is not built")?;
    let output = Command::new(program).args(["stops", &vmm.pid().to_string(), &stops.to_string(), RATE]).output()?;
    ensure!(output.status.success(), "stops: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    text.lines().filter_map(|line| line.strip_prefix("floor ")).map(|value| Ok(value.parse()?)).collect()
}

/// A guest that was stopped, in files.
struct Stopped {
    folder: Folder,
    ram: PathBuf,
    registers: PathBuf,
    /// The symbols of its kernel, and its first address.
    map: PathBuf,
    text: u64,
}

impl Stopped {
    /// Boots a guest with one vCPU and page tables of four levels, and stops it where it is wanted. There it jumps to itself.
    fn boot(parts: &Parts, place: &Place) -> Result<Stopped> {
        let usual = Settings::new(Release::Bookworm61);
        let mut guest =
            Guest::boot(parts, &Settings { five_levels: false, vcpus: 1, memory_mib: MEMORY_MIB, ..usual })?;
        guest.expect(&format!("{} >/dev/null 2>&1 & sleep 1", place.program), PATIENCE)?;
        let registers = stop(&guest, place)?;
        let folder = Folder::new("linux-stopped")?;
        let ram = Ram::of(guest.pid())?;
        let kernel = Kernel::find(&ram, &ram.ranges()).context("there is no kernel in the RAM of the guest")?;
        let mut map = String::new();
        for symbol in kernel.symbols.symbols().filter(|symbol| symbol.address >= kernel.text) {
            writeln!(map, "{:016x} {} {}", symbol.address, char::from(symbol.kind), symbol.name)?;
        }
        let stopped = Stopped {
            ram: folder.file("ram"),
            registers: folder.write("registers", lines(&registers).as_bytes())?,
            map: folder.write("kallsyms", map.as_bytes())?,
            text: kernel.text,
            folder,
        };
        ram.copy(&stopped.ram)?;
        jump(&ram, &registers, &stopped.ram)?;
        Ok(stopped)
    }
}

/// Stops a guest where it is wanted; its registers.
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
