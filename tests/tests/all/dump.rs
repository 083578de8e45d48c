//! `glass dump`: the file has the VM's memory where the VM has it, and registers by which stacks are found; it is what QEMU itself would
//! write; a dump that fails leaves what was there, and the VM runs on however `glass` ends.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::{self, Process};
use glass_tests::programs::{self, skip};
use glass_tests::qemu::Qemu;
use glass_tests::qmp::Qmp;
use glass_tests::stacks::{self, Track};
use glass_tests::vmm::{Vmm, marks};
use object::Endianness::Little;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::process::Signal;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(480);
/// What the guest prints again and again.
const ROUNDS: &str = " rounds until ";

/// An ELF core: what it has of RAM, and its notes.
struct Core {
    file: File,
    /// Address, bytes and place.
    pieces: Vec<(u64, u64, u64)>,
    /// Owner and content.
    notes: Vec<(String, Vec<u8>)>,
}

impl Core {
    fn open(path: &Path) -> Core {
        let file = File::open(path).unwrap();
        let mut head = vec![0; 64 << 10];
        let read = file.read_at(&mut head, 0).unwrap();
        let head = &head[..read];
        let header = FileHeader64::<object::Endianness>::parse(head).unwrap();
        let segments = header.program_headers(Little, head).unwrap();
        let loads = segments.iter().filter(|segment| segment.p_type(Little) == PT_LOAD);
        let piece = |segment: &object::elf::ProgramHeader64<object::Endianness>| {
            let (offset, bytes) = segment.file_range(Little);
            (segment.p_paddr(Little), bytes, offset)
        };
        let pieces = loads.map(piece).collect();
        let mut found = segments[0].notes(Little, head).unwrap().unwrap();
        let mut notes = Vec::new();
        while let Some(note) = found.next().unwrap() {
            notes.push((String::from_utf8(note.name().to_vec()).unwrap(), note.desc().to_vec()));
        }
        Core { file, pieces, notes }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.pieces.iter().any(|(start, bytes, offset)| {
            let is_inside = *start <= address && address + into.len() as u64 <= start + bytes;
            is_inside && self.file.read_exact_at(into, offset + (address - start)).is_ok()
        })
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    fn of_owner(&self, owner: &str) -> Vec<&[u8]> {
        self.notes.iter().filter(|(name, _)| name == owner).map(|(_, content)| &content[..]).collect()
    }
}

/// `glass dump` of a process; what it prints.
fn dump(glass: &Path, pid: u32, options: &[&str], output: &Path) -> String {
    let mut command = Command::new(glass);
    command.args(["dump", "--pid", &pid.to_string()]).args(options).arg("--output").arg(output);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "glass dump: {said}");
    said
}

/// The stacks that `glass record` finds in a dump.
fn stacks_in(glass: &Path, dump: &Path, image: &Path, folder: &Folder) -> Vec<Track> {
    let (recording, export) = (folder.file("recording"), folder.file("stacks.json"));
    let mut command = Command::new(glass);
    command.args(["record", "--post-mortem"]).arg(dump).arg("--symbols").arg(image).arg("--output").arg(&recording);
    let done = command.output().unwrap();
    assert!(done.status.success(), "glass record: {}", String::from_utf8_lossy(&done.stderr));
    let mut command = Command::new(glass);
    command.arg("export").arg(&recording).args(["--format", "speedscope", "--states", "all", "--output"]).arg(&export);
    assert!(command.output().unwrap().status.success());
    stacks::parse(&fs::read_to_string(export).unwrap()).unwrap()
}

/// Dumps of a guest that runs, until one finds it computing.
const DUMPS_MAX: usize = 5;

fn assert_whole(tracks: &[Track], what: &str) {
    assert!(!tracks.is_empty(), "{what}");
    for track in tracks {
        let broken: Vec<_> = track.known().filter_map(|piece| piece.broken.as_ref()).collect();
        assert!(broken.is_empty(), "{what}, {}: {broken:?}", track.name);
    }
    assert!(is_busy(tracks), "{what}: {tracks:?}");
}

/// Whether the first processor computed. At a random moment it may be in a driver.
fn is_busy(tracks: &[Track]) -> bool {
    tracks[0].known().any(|piece| piece.functions.iter().any(|name| name.contains("busy::")))
}

/// Waits until the guest has printed more.
fn assert_runs(output: impl Fn() -> String, what: &str) {
    let (start, before) = (Instant::now(), output().matches(ROUNDS).count());
    while output().matches(ROUNDS).count() < before + 2 {
        assert!(start.elapsed() < LIMIT, "the guest stands still {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn only_root_may_trace() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        skip("only root may trace any process, and see KVM's memory slots");
    }
    is_root
}

/// A VM of KVM with a guest that computes, and `glass`.
fn start(layout: &str, memory_mib: u64) -> Option<(Vmm, PathBuf, PathBuf)> {
    if !only_root_may_trace() {
        return None;
    }
    let (image, glass) = (programs::image("busy")?, programs::built("glass")?);
    let mut vmm = Vmm::start(layout, memory_mib, 2, Some(&image)).unwrap()?;
    vmm.wait_for(ROUNDS);
    Some((vmm, image, glass))
}

fn check_layout(layout: &'static str, memory_mib: u64, adds: bool) {
    within(LIMIT * 2, move || {
        let Some((mut vmm, image, glass)) = start(layout, memory_mib) else { return };
        if adds {
            vmm.add_memory().unwrap();
        }
        let folder = Folder::new("dump").unwrap();
        for options in [&[][..], &["--live"]] {
            let what = format!("{layout} {options:?}");
            let file = folder.file("core");
            let said = dump(&glass, vmm.pid(), options, &file);
            assert_eq!(said.contains("may be torn"), !options.is_empty(), "{said}");
            assert_eq!(said.contains("is not known"), !Path::new("/sys/kernel/btf/vmlinux").exists(), "{said}");
            assert_runs(|| vmm.output(), &what);
            let core = Core::open(&file);
            let mut ranges = vmm.ram();
            ranges.sort_unstable();
            if !said.contains("is not known") {
                let bytes: u64 = ranges.iter().map(|range| range.1).sum();
                assert_eq!(core.pieces.iter().map(|piece| piece.1).sum::<u64>(), bytes, "{what}");
                // The guest's own memory is at the start of the first range, and it may have written there.
                let (mut count, mut kept) = (0, 0);
                for (address, word) in marks(&ranges) {
                    let found = core.word(address).unwrap_or_else(|| panic!("{what}: no RAM at {address:#x}"));
                    (count, kept) = (count + 1, kept + usize::from(found == word));
                }
                assert!(count > 30 && kept * 10 >= count * 9, "{what}: {kept} of {count} marks");
                let end = ranges.last().map(|(start, bytes)| start + bytes).unwrap();
                assert_eq!((core.word(end), core.word(0xf000_0000)), (None, None), "{what}: holes are no RAM");
            }
            let used = fs::metadata(&file).unwrap();
            assert!(used.blocks() * 512 < 128 << 20, "{what}: zeros take {} KiB", used.blocks() / 2);
            assert_eq!((core.of_owner("CORE").len(), core.of_owner("QEMU").len()), (2, 2), "{what}");
            assert_whole(&stacks_in(&glass, &file, &image, &folder), &what);
        }
    });
}

#[test]
fn firecracker() {
    check_layout("firecracker", 3584, false);
}

#[test]
fn cloud_hypervisor() {
    check_layout("cloud-hypervisor", 128, true);
}

#[test]
fn libkrun() {
    check_layout("libkrun", 96, false);
}

/// A VM of QEMU without KVM, with a monitor.
fn start_qemu(folder: &Folder, accel: &str) -> Option<(Qemu, Qmp, PathBuf)> {
    let (image, glass) = (programs::image("busy")?, programs::built("glass")?);
    let mut run = Command::new(&glass);
    run.arg("run").arg(&image).args(["--accel", accel, "--memory", "64", "--cores", "2"]);
    let socket = folder.file("qmp");
    let options = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())];
    let mut vm = Qemu::start(&mut run, &[], &options, folder).unwrap();
    vm.process.wait_for_text(ROUNDS, LIMIT, || {});
    Some((vm, Qmp::connect(&socket).unwrap(), glass))
}

/// All words of a note of QEMU but the flags of segments, the places of tables and CR2, of which a gdbstub sends not all.
fn words_of(state: &[u8]) -> Vec<u64> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| state[at + index]));
    let selectors = (0..6).map(|segment| word(152 + segment * 24) & 0xffff);
    let bases = [3, 4].map(|segment| word(152 + segment * 24 + 16));
    (8..144).step_by(8).map(word).chain(selectors).chain(bases).chain([word(392), word(416), word(424)]).collect()
}

#[test]
fn it_is_what_qemu_would_write() {
    within(LIMIT * 2, || {
        let folder = Folder::new("dump-qemu").unwrap();
        let Some((vm, mut monitor, glass)) = start_qemu(&folder, "tcg") else { return };
        let (ours, theirs) = (folder.file("ours"), folder.file("theirs"));
        let running = || {
            let said = dump(&glass, vm.process.pid(), &[], &ours);
            assert!(said.contains("the guest stood for"), "{said}");
            assert_runs(|| vm.process.output(), "after a dump");
            stacks_in(&glass, &ours, &vm.image, &folder)
        };
        let first = running();
        let tracks = (1..DUMPS_MAX).fold(first, |last, _| if is_busy(&last) { last } else { running() });
        assert_whole(&tracks, "by the gdbstub");
        // Nothing changes between the two dumps of a VM that its owner has paused.
        monitor.execute("stop", json!({})).unwrap();
        let said = dump(&glass, vm.process.pid(), &[], &ours);
        assert!(said.contains("the guest was paused, and still is"), "{said}");
        assert_eq!(monitor.execute("query-status", json!({})).unwrap()["status"], "paused");
        let file = format!("file:{}", theirs.display());
        monitor.execute("dump-guest-memory", json!({ "paging": false, "protocol": file })).unwrap();
        let (ours, theirs) = (Core::open(&ours), Core::open(&theirs));
        let states = |core: &Core| core.of_owner("QEMU").into_iter().map(words_of).collect::<Vec<_>>();
        assert_eq!(states(&ours), states(&theirs));
        let statuses =
            |core: &Core| core.of_owner("CORE").into_iter().map(|note| note[112..232].to_vec()).collect::<Vec<_>>();
        assert_eq!(statuses(&ours), statuses(&theirs));
        let mut compared = 0;
        for (start, bytes, _) in &theirs.pieces {
            for address in (*start..start + bytes).step_by(4096) {
                let (mut one, mut other) = ([0; 4096], [0; 4096]);
                if ours.read(address, &mut one) {
                    assert!(theirs.read(address, &mut other) && one == other, "at {address:#x}");
                    compared += 1;
                }
            }
        }
        assert!(compared * 4096 >= 63 << 20, "{compared} pages");
    });
}

#[test]
fn one_that_fails_leaves_what_was_there() {
    within(LIMIT, || {
        let folder = Folder::new("dump-full").unwrap();
        let Some((vmm, _, glass)) = start("plain", 64) else { return };
        let file = folder.file("core");
        fs::write(&file, "earlier").unwrap();
        // As a full disk does, and a limit that QEMU would die of.
        let script = format!("ulimit -f 16; exec {} dump --pid {} -o {}", glass.display(), vmm.pid(), file.display());
        let failed = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(!failed.status.success() && said.contains("File too large"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "earlier");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a part was left behind");
        assert_runs(|| vmm.output(), "after a dump that failed");
        let refused = Command::new(&glass).args(["dump", "--pid", &std::process::id().to_string()]).output().unwrap();
        assert!(String::from_utf8_lossy(&refused.stderr).contains("is not a VM"));
    });
}

#[test]
fn the_vm_runs_however_glass_ends() {
    within(LIMIT * 3, || {
        let folder = Folder::new("dump-killed").unwrap();
        let Some((vmm, _, glass)) = start("firecracker", 3584) else { return };
        let file = folder.file("core");
        for (index, delay_ms) in [1, 40, 60, 80, 100, 120, 140, 160, 200].into_iter().enumerate() {
            let mut command = Command::new(&glass);
            command.args(["dump", "--pid", &vmm.pid().to_string()]).arg("-o").arg(&file);
            let mut dumping = Process::spawn(&mut command, &folder.file("log")).unwrap();
            std::thread::sleep(Duration::from_millis(delay_ms));
            match index % 3 {
                0 => dumping.kill(),
                1 => drop(process::signal_descendants(dumping.pid(), "glass", Signal::KILL)),
                _ => process::send(dumping.pid(), Signal::INT),
            }
            assert!(dumping.wait(LIMIT).is_some(), "it does not end: {}", dumping.output());
            assert_runs(|| vmm.output(), &format!("after {delay_ms} ms"));
        }
        dump(&glass, vmm.pid(), &[], &file);
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name != "core" && name != "log").count(), 0, "a part was left behind");
    });
}

/// A guest that never runs has no registers that could be read; QEMU without KVM may have no socket by which it could be stopped.
#[test]
fn ram_alone_of_a_vm_that_cannot_be_stopped() {
    within(LIMIT, || {
        let folder = Folder::new("dump-ram").unwrap();
        if !only_root_may_trace() {
            return;
        }
        let Some(glass) = programs::built("glass") else { return };
        let Some(vmm) = Vmm::start("cloud-hypervisor", 128, 1, None).unwrap() else { return };
        let file = folder.file("core");
        let mut command = Command::new(&glass);
        command.args(["dump", "--pid", &vmm.pid().to_string()]).arg("--output").arg(&file);
        let refused = command.output().unwrap();
        assert!(!refused.status.success() && !file.exists());
        let said = dump(&glass, vmm.pid(), &["--live"], &file);
        assert!(said.contains("no vCPU can be stopped"), "{said}");
        let core = Core::open(&file);
        let ranges = vmm.ram();
        assert!(core.notes.is_empty());
        // Without the kernel's own list the first range is all that is certain.
        let known = if said.contains("is not known") { &ranges[..1] } else { &ranges[..] };
        assert!(marks(known).all(|(address, word)| core.word(address) == Some(word)), "{said}");
    });
}
