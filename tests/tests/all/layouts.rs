//! Stacks of guests whose memory is laid out as different VMMs do it: all are whole, also where KVM does not show its memory slots. Where there are several
//! ranges below the hole, the guest's page tables and the stack of its second core are not in the first.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::process::Process;
use glass_tests::programs::{self, skip};
use glass_tests::stacks::{self, State, Track};
use glass_tests::vmm::Vmm;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(480);

/// Without these a process may run no BPF program, so it does not see the slots; root may still trace.
const WITHOUT_BPF: [&str; 4] = ["--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-bpf,-perfmon,-sys_admin"];

fn record(vmm: &Vmm, image: &Path, glass: &Path, rights: &[&str]) -> (Vec<Track>, String) {
    let folder = Folder::new("layouts").unwrap();
    let (recording, export) = (folder.file("recording"), folder.file("stacks.json"));
    let mut command = match rights {
        [] => Command::new(glass),
        rights => {
            let mut command = Command::new("setpriv");
            command.args(rights).arg(glass);
            command
        }
    };
    command.args(["record", "--pid", &vmm.pid().to_string(), "--backend", "kvm", "--rate", "199", "--duration", "2"]);
    command.arg("--symbols").arg(image).arg("--output").arg(&recording);
    let mut recorder = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let status = recorder.wait(LIMIT);
    let said = recorder.output();
    assert!(status.is_some_and(|status| status.success()), "glass record: {said}\n{}", vmm.output());
    let mut command = Command::new(glass);
    command.arg("export").arg(&recording).args(["--format", "speedscope", "--states", "all", "--output"]).arg(&export);
    assert!(command.output().unwrap().status.success());
    (stacks::parse(&std::fs::read_to_string(export).unwrap()).unwrap(), said)
}

fn assert_whole(tracks: &[Track], what: &str) {
    assert_eq!(tracks.len(), 2, "{what}");
    for track in tracks {
        let known: Vec<_> = track.known().collect();
        let broken = known.iter().filter_map(|piece| piece.broken.as_ref()).collect::<Vec<_>>();
        assert!(broken.is_empty(), "{what}, {}: {} of {} pieces: {broken:?}", track.name, broken.len(), known.len());
        let has_stack = known.iter().any(|piece| piece.functions.len() > 1);
        assert!(
            has_stack,
            "{what}, {}: no stack in {} pieces: {:?}",
            track.name,
            track.pieces.len(),
            track.pieces.first()
        );
    }
    let has = |track: &Track, name: &str| {
        track.known().any(|piece| piece.functions.iter().any(|function| function.contains(name)))
    };
    assert!(["busy::heavy", "busy::medium"].iter().all(|name| has(&tracks[0], name)), "{what}");
    assert!(tracks[1].percent_in(State::Idle) > 50.0, "{what}: the second core has nothing to do");
}

/// What `glass` prints if it does not know all memory.
const UNKNOWN: &str = "has some of its RAM is not known";

/// `is_shown`: the guest's page tables and stacks show where all memory is.
fn check(layout: &'static str, memory_mib: u64, adds: bool, is_shown: bool) {
    within(LIMIT * 3, move || {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        if !is_root {
            return skip("only root may trace any process, and see KVM's memory slots");
        }
        let (Some(image), Some(glass)) = (programs::image("busy"), programs::built("glass")) else { return };
        let Some(mut vmm) = Vmm::start(layout, memory_mib, 2, Some(&image)).unwrap() else { return };
        vmm.wait_for(" rounds until ");
        if adds {
            vmm.add_memory().unwrap();
        }
        let (tracks, said) = record(&vmm, &image, &glass, &[]);
        assert_whole(&tracks, layout);
        if Path::new("/sys/kernel/btf/vmlinux").exists() {
            assert!(!said.contains(UNKNOWN), "{layout}: {said}");
        }
        let can_drop = Command::new("setpriv").args(WITHOUT_BPF).arg("true").stderr(Stdio::null()).status();
        if !can_drop.is_ok_and(|status| status.success()) {
            return skip("there is no setpriv");
        }
        let (tracks, said) = record(&vmm, &image, &glass, &WITHOUT_BPF);
        let stacks = said.lines().find(|line| line.contains("broken")).unwrap_or_default();
        say(&format!("{layout} without BPF:{}", stacks.trim_start_matches("  stacks")));
        assert_whole(&tracks, &format!("{layout} without BPF"));
        assert_eq!(said.contains(UNKNOWN), !is_shown, "{layout} without BPF: {said}");
    });
}

#[test]
fn firecracker() {
    check("firecracker", 3584, false, false);
}

#[test]
fn cloud_hypervisor() {
    check("cloud-hypervisor", 3584, true, false);
}

#[test]
fn libkrun() {
    check("libkrun", 96, false, true);
}
