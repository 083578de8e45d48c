//! Samples a guest that is not ours: Debian's kernel, of which nothing is known but a map of its symbols.

mod changed;
mod in_ram;
mod kernel;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::event::Event;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::image::Image;
use glass_profiler_core::images::{Images, Names};
use glass_profiler_core::model::{StackEnd, State};
use glass_profiler_core::symbols::Symbols;
use glass_profiler_core::unwind::{AddressSpace, StackMemory, UnwindCache};
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::paced::Paced;
use glass_profiler_guests::{Flow, GuestError, Source, SymbolFile, VmSettings, is_boot_image};
use glass_tests::linux::{self, Stack};
use glass_tests::programs::skip;
use kernel::Linux;

const SAMPLES: usize = 500;
const RATE_HZ: u32 = 500;
const PATIENCE: Duration = Duration::from_secs(240);

/// Functions, the tables of those and of a module, as the kernel lists them for root.
const MAP: &str = "/busybox insmod /module.ko
/busybox grep -E ' [tTwW] |orc_unwind|linux_banner' /proc/kallsyms
";
/// Reads, writes and a loop in a process.
const LOAD: &str = "echo DONE
while :; do
    /busybox dd if=/dev/zero of=/dev/null bs=512 count=20000 2>/dev/null
    i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done
done
";

struct Seen {
    /// Names, innermost first, why the stack ended, and whether the core waited.
    stacks: Vec<(Vec<String>, StackEnd, State)>,
}

impl Seen {
    fn take(linux: &Linux, settings: VmSettings) -> Result<Seen, GuestError> {
        let guest = QemuVm::attach(&linux.vm(), settings)?;
        let mut source = Paced::new(guest, RATE_HZ);
        let (mut images, mut samples) = (Images::default(), Vec::new());
        let mut warnings = Vec::new();
        let mut sink = |event| match event {
            event @ (Event::Guest(_) | Event::Space { .. } | Event::Place { .. }) => images.learn(&event, &mut NoFiles),
            Event::Sample(sample) => samples.push(sample),
            Event::Warning(text) => warnings.push(text),
            _ => {}
        };
        source.announce(&mut sink)?;
        let start = Instant::now();
        loop {
            assert_eq!(
                source.collect(Duration::from_millis(100), &mut |event| {
                    if let Event::Sample(sample) = event {
                        samples.push(sample);
                    }
                })?,
                Flow::More
            );
            if samples.len() >= SAMPLES {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{} samples", samples.len());
        }
        source.detach(&mut |_| ())?;
        assert!(warnings.is_empty(), "{warnings:?}");
        let mut names: BTreeMap<u32, Names> = BTreeMap::new();
        let mut stacks = Vec::new();
        for sample in &samples {
            let chain = images.unwind(sample);
            let mut functions = Vec::new();
            for call in &chain.calls {
                let Some(image) = call.image else {
                    functions.push(format!("{:#x}", call.address));
                    continue;
                };
                let known = names.entry(image).or_insert_with(|| images.names(image, &mut NoFiles).unwrap());
                functions.push(known.locate(call.address).pop().map_or("?".to_owned(), |found| found.function));
            }
            stacks.push((functions, chain.end, sample.state));
        }
        Ok(Seen { stacks })
    }

    fn check(&self) {
        let stacks = self.stacks.iter().map(|(functions, end, _)| Stack {
            functions: functions.clone(),
            broken: (*end != StackEnd::Complete).then(|| format!("{end:?}")),
            weight: 1,
        });
        linux::check(&stacks.collect::<Vec<_>>());
    }
}

fn settings(map: &Path) -> VmSettings {
    VmSettings { files_only: true, ..VmSettings::new(16 << 10, map.to_owned()) }
}

/// What the guest has printed of its symbols.
fn map_of(linux: &Linux) -> String {
    let is_symbol =
        |line: &&str| line.len() > 19 && line.as_bytes()[16] == b' ' && u64::from_str_radix(&line[..16], 16).is_ok();
    linux.serial().lines().filter(is_symbol).map(|line| format!("{line}\n")).collect()
}

#[test]
fn kernel_stacks_of_a_linux_by_its_map_alone() {
    let kernel = match kernel::fetch() {
        Ok(kernel) => kernel,
        Err(reason) => return skip(&format!("Debian's kernel cannot be had: {reason}")),
    };
    let script = format!("{MAP}{LOAD}");
    let Some(linux) = Linux::boot(&kernel, "fixed", "nokaslr", 1, &script) else {
        return skip("there is no qemu-system-x86_64");
    };
    let text = map_of(&linux);
    let lines = text.lines().filter(|line| !line.ends_with(']'));
    let system_map: String = lines.map(|line| format!("{line}\n")).collect();
    let (with_modules, map) = (linux.folder.file("kallsyms"), linux.folder.file("System.map"));
    std::fs::write(&with_modules, &text).unwrap();
    std::fs::write(&map, &system_map).unwrap();
    Seen::take(&linux, settings(&map)).unwrap().check();

    // Modules are images of their own.
    let guest = QemuVm::attach(&linux.vm(), settings(&with_modules)).unwrap();
    let mut placed = Vec::new();
    Paced::new(guest, RATE_HZ)
        .announce(&mut |event| {
            if let Event::Place { program, .. } = event {
                placed.push(program.name.clone());
            }
        })
        .unwrap();
    assert!(placed[0].ends_with("kallsyms") && placed.iter().any(|name| name == "dummy"), "{placed:?}");
    // The module itself, where the kernel has put it, has functions where the kernel has them.
    let known: Vec<(u64, &str)> = text
        .lines()
        .filter(|line| line.ends_with("[dummy]"))
        .filter_map(|line| {
            let (address, rest) = line.split_once(' ')?;
            Some((u64::from_str_radix(address, 16).ok()?, rest.get(2..)?.split('\t').next()?))
        })
        .collect();
    let base = known.iter().map(|(address, _)| *address).min().unwrap() & !0xfff;
    let module = SymbolFile { path: kernel.module.clone(), address: Some(base), is_right: false };
    let both = VmSettings { symbols: vec![map.clone().into(), module], ..settings(&map) };
    drop(QemuVm::attach(&linux.vm(), both).unwrap());
    let bytes = std::fs::read(&kernel.module).unwrap();
    let names = Symbols::parse(&bytes).unwrap();
    let image = Arc::new(Image::parse(&bytes, &[]).unwrap());
    for (address, name) in known {
        let found = names.locate(address - base).pop();
        assert!(found.is_some(), "{name} is at {address:#x}, {:#x} in the module", address - base);
        // Where a function begins, its return address is on top of the stack.
        let mut space = AddressSpace::default();
        space.add(base..base + 0x10_0000, base, 0, image.clone());
        let registers = Registers::new(address, 0x1000, 0);
        let top = (0x1000, [address + 1, 0].map(u64::to_le_bytes).concat());
        let chain = space.unwind(&mut UnwindCache::default(), &registers.into(), StackMemory(&[top]));
        assert_eq!(chain.calls.get(1).map(|call| call.address), Some(address - base), "{name}");
    }
    let wrong = SymbolFile { path: map.clone(), address: Some(0xffff_ffff_9000_0000), is_right: false };
    let refused = QemuVm::attach(&linux.vm(), VmSettings { symbols: vec![wrong], ..settings(&map) });
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("not at the load address"), "{error}");
    drop(linux);

    // The kernel is elsewhere with each boot, and one core has nothing to do.
    let script = format!("/busybox grep ' _text$' /proc/kallsyms\n{LOAD}");
    let linux = Linux::boot(&kernel, "moved", "", 2, &script).unwrap();
    let map = linux.folder.file("System.map");
    std::fs::write(&map, &system_map).unwrap();
    let moved = map_of(&linux);
    assert!(!system_map.contains(moved.trim_end()), "the kernel did not move: {moved}");
    let seen = Seen::take(&linux, settings(&map)).unwrap();
    seen.check();
    let idle: Vec<_> = seen.stacks.iter().filter(|(.., state)| *state == State::Idle).collect();
    assert!(idle.len() * 5 >= seen.stacks.len(), "{} of {} samples are idle", idle.len(), seen.stacks.len());
    assert!(idle.iter().all(|(functions, ..)| functions.iter().any(|name| name == "do_idle")), "{:?}", idle[0]);

    // A map without the kernel's landmarks is refused with what to do.
    std::fs::write(&map, system_map.replace(" asm_exc_divide_error\n", " other\n")).unwrap();
    let error = QemuVm::attach(&linux.vm(), settings(&map)).err().unwrap().to_string();
    assert!(error.contains("once it has booted") && error.contains("--load-address"), "{error}");

    // Without any symbols addresses are recorded, and a sentence advises what to give.
    let vm = linux.vm();
    assert!(is_boot_image(vm.elf.as_ref().unwrap()));
    let nameless = VmSettings { symbols: Vec::new(), boot_image: vm.elf.clone(), ..settings(&map) };
    let mut source = Paced::new(QemuVm::attach(&vm, nameless).unwrap(), RATE_HZ);
    let mut warnings = Vec::new();
    source
        .announce(&mut |event| {
            if let Event::Warning(text) = event {
                warnings.push(text)
            }
        })
        .unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("System.map") && warnings[0].contains("--symbols"),
        "{warnings:?}"
    );
    let (mut samples, start) = (0, Instant::now());
    while samples < 20 {
        source
            .collect(Duration::from_millis(100), &mut |event| samples += u32::from(matches!(event, Event::Sample(_))))
            .unwrap();
        assert!(start.elapsed() < PATIENCE, "{samples} samples");
    }
}

/// The landmarks of the kernel, and whether it isolates page tables.
const LANDMARKS: &str = "/busybox grep -o -w -m 1 pti /proc/cpuinfo
/busybox grep -E ' (_text|_end|start_kernel|entry_SYSCALL_64|asm_exc_divide_error|linux_banner|__.*_orc_unwind(_ip)?)$' /proc/kallsyms
echo DONE
while :; do :; done
";

/// The page tables of a process lack the kernel, and the one core is almost always in a process: such a guest was refused (2026-11-25).
#[test]
fn a_linux_with_page_table_isolation_that_computes() {
    let kernel = match kernel::fetch() {
        Ok(kernel) => kernel,
        Err(reason) => return skip(&format!("Debian's kernel cannot be had: {reason}")),
    };
    let Some(linux) = Linux::boot(&kernel, "isolated", "pti=on", 1, LANDMARKS) else {
        return skip("there is no qemu-system-x86_64");
    };
    assert!(linux.serial().lines().any(|line| line == "pti"), "{}", linux.serial());
    let map = linux.folder.file("System.map");
    std::fs::write(&map, map_of(&linux)).unwrap();
    for attempt in 0..5 {
        let guest = QemuVm::attach(&linux.vm(), settings(&map));
        let mut source = Paced::new(guest.unwrap_or_else(|error| panic!("attempt {attempt}: {error}")), RATE_HZ);
        let mut warnings = Vec::new();
        source
            .announce(&mut |event| warnings.extend(Some(event).filter(|event| matches!(event, Event::Warning(_)))))
            .unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        source.detach(&mut |_| ()).unwrap();
    }
}
