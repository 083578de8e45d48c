//! A VM that traces from its first instruction: the trace in its RAM after its end, and the events in its crash report.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::Process;
use glass_tests::programs;
use object::{Object, ObjectSymbol};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A boot takes well under a second; a loaded machine gets many.
const LIMIT: Duration = Duration::from_secs(240);
const MEMORY_MIB: &str = "16";

// Offsets and numbers of docs/formats/trace.md.
const TICKS_PER_SECOND: u64 = 16;
const ORIGIN_TICKS: u64 = 24;
const NAMES_USED: u64 = 144;
const RINGS: u64 = 256;
const NAMES: u64 = 4096;
const NAME_BYTES: u64 = 64;
const EVENT_BYTES: u64 = 32;
const POLL_BEGIN: u16 = 2;
const SPAN_BEGIN: u16 = 72;
const SPAN_END: u16 = 75;
const GROUPS: u16 = 112;

/// A VM that has ended.
struct Ended {
    _folder: Folder,
    exit_code: Option<i32>,
    output: String,
    image: PathBuf,
    ram: File,
}

/// Runs the image `faults` with `command_line`; its RAM is a file.
fn run(command_line: &str) -> Option<Ended> {
    run_with(command_line, &[])
}

/// The same with more options for QEMU.
fn run_with(command_line: &str, options: &[&str]) -> Option<Ended> {
    let image = programs::image("faults")?;
    if !programs::has_qemu() {
        programs::skip("qemu-system-x86_64 is not installed");
        return None;
    }
    let folder = Folder::new("trace-vm").expect("a temporary folder");
    let ram = folder.file("ram");
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-M", "microvm,pit=on,rtc=off,memory-backend=ram", "-accel", "tcg", "-cpu", "max", "-m", MEMORY_MIB]);
    command.arg("-object");
    command.arg(format!("memory-backend-file,id=ram,size={MEMORY_MIB}M,share=on,mem-path={}", ram.display()));
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    command
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-append", command_line, "-kernel"])
        .arg(&image)
        .args(options);
    let mut process = Process::spawn(&mut command, &folder.file("log")).expect("QEMU starts");
    let status = process.wait(LIMIT).unwrap_or_else(|| panic!("it does not end:\n{}", process.output()));
    let (output, ram) = (process.output(), File::open(ram).expect("QEMU has made the file"));
    Some(Ended { _folder: folder, exit_code: status.code(), output, image, ram })
}

/// A ring's event.
#[derive(Debug)]
struct Event {
    ticks: u64,
    kind: u16,
    name: String,
    b: u64,
}

impl Ended {
    fn u64(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.ram.read_exact_at(&mut bytes, address).expect("the RAM has the configured size");
        u64::from_le_bytes(bytes)
    }

    /// Address of the control pages.
    fn control(&self) -> u64 {
        let bytes = fs::read(&self.image).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok("GLASS_TRACE"));
        symbol.expect("the image has the pages").address()
    }

    fn name(&self, number: u64) -> String {
        let address = self.control() + NAMES + NAME_BYTES * number;
        let mut bytes = vec![0; (self.u64(address) & 0xffff) as usize];
        self.ram.read_exact_at(&mut bytes, address + 2).unwrap();
        String::from_utf8(bytes).expect("names are UTF-8")
    }

    /// The events of core 0, none of which may be overwritten.
    fn events(&self) -> Vec<Event> {
        let ring = self.control() + RINGS;
        let (head, address, capacity) = (self.u64(ring), self.u64(ring + 8), self.u64(ring + 16));
        assert_eq!(capacity, 8192, "16 MiB of memory have a ring of 256 KiB");
        assert!(head < capacity, "{head} events");
        assert_eq!(self.name(self.u64(ring + 24) & 0xffff_ffff), "core 0");
        let names_used = self.u64(self.control() + NAMES_USED) & 0xffff_ffff;
        (0..head)
            .map(|number| {
                let at = address + EVENT_BYTES * number;
                let word = self.u64(at + 8);
                let name = if word >> 32 < names_used { self.name(word >> 32) } else { String::new() };
                Event { ticks: self.u64(at), kind: word as u16, name, b: self.u64(at + 16) }
            })
            .collect()
    }
}

#[test]
fn a_crash_leaves_the_trace_of_everything_before() {
    within(LIMIT, || {
        let Some(vm) = run("trace=spans,tasks,cores -- panic") else { return };
        assert_eq!(vm.exit_code, Some(37), "{}", vm.output);
        let (panic, last) = vm.output.split_once("last events of the trace:").expect("the report shows them");
        assert!(panic.contains("PANIC at"), "{panic}");
        assert!(last.trim_end().ends_with("task 1 main runs"), "{last}");
        assert_eq!(last.trim().lines().count(), 12, "{last}");

        let events = vm.events();
        assert!(events.is_sorted_by_key(|event| event.ticks));
        let (origin, rate) = (vm.u64(vm.control() + ORIGIN_TICKS), vm.u64(vm.control() + TICKS_PER_SECOND));
        let first_s = (events[0].ticks - origin) as f64 / rate as f64;
        assert!((0.0..30.0).contains(&first_s), "the first event comes {first_s} s after the entry");
        assert_eq!((events[0].kind, events[0].b), (GROUPS, 1 | 2 | 32));
        let steps = steps(&events);
        assert_eq!(steps.first(), Some(&"boot: heap"));
        assert!(
            steps.contains(&"boot: devices") && !steps.iter().any(|step| step.contains("secondary cores")),
            "{steps:?}"
        );
        assert_eq!(events.iter().filter(|event| event.kind == SPAN_END).count(), steps.len());
        assert_eq!(events.last().map(|event| event.kind), Some(POLL_BEGIN));
    });
}

fn steps(events: &[Event]) -> Vec<&str> {
    events.iter().filter(|event| event.kind == SPAN_BEGIN).map(|event| event.name.as_str()).collect()
}

/// QEMU 7.2 (TCG) may lose what a core writes to its local APIC while another one gives devices their addresses.
#[test]
fn secondary_cores_start_when_devices_have_their_addresses() {
    within(LIMIT, || {
        let Some(vm) = run_with("trace=spans -- ok", &["-smp", "2"]) else { return };
        assert_eq!(vm.exit_code, Some(33), "{}", vm.output);
        let events = vm.events();
        let steps = steps(&events);
        let place = |step: &str| steps.iter().position(|found| *found == step);
        let places = ["boot: search for devices", "boot: start of secondary cores", "boot: devices"].map(place);
        assert!(places[0].is_some() && places.is_sorted(), "{steps:?}");
    });
}

#[test]
fn a_word_that_is_no_group_is_named_and_changes_nothing() {
    within(LIMIT, || {
        let Some(vm) = run("trace=cores,disks -- ok") else { return };
        assert_eq!(vm.exit_code, Some(33), "{}", vm.output);
        assert!(vm.output.contains("`disks` in the command line's `trace=` is no group of events"), "{}", vm.output);
        assert_eq!(vm.events().len(), 0);
    });
}

#[test]
fn nothing_is_traced_that_nobody_asked_for() {
    within(LIMIT, || {
        let Some(vm) = run("-- panic") else { return };
        assert_eq!(vm.exit_code, Some(37), "{}", vm.output);
        assert!(!vm.output.contains("last events"), "{}", vm.output);
        assert_eq!(vm.events().len(), 0);
    });
}
