//! What parses a process's files has no rights: another process of glass opens them, also those that are mapped later, in another root, or
//! where only root may look.

use crate::record::load_until;
use crate::suspended::{assert_jailed, assert_walls, holder_of, wait_until};
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::{self, Process, Signal};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(480);
const PATIENCE: Duration = Duration::from_secs(240);
/// It needs no library, so it runs in any root.
const BURNING: &str = "static __attribute__((noinline)) void burns_here(void) { for (volatile long i = 0; i < 100000; i++); }\n\
    void _start(void) { for (;;) burns_here(); }\n";

/// Builds the program `burning` in a folder that only its owner may enter; false without a compiler.
fn build(folder: &Path) -> bool {
    fs::create_dir_all(folder).unwrap();
    let (source, program) = (folder.join("burning.c"), folder.join("burning"));
    fs::write(&source, BURNING).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", "-static", "-nostdlib", "-o"]).arg(program).arg(source);
    let is_built = cc.status().is_ok_and(|status| status.success());
    fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    is_built
}

/// Waits until it samples, then for its end; meanwhile it must have a jail.
fn run_jailed(command: &mut Command, folder: &Folder, begins: &str) -> String {
    let mut glass = Process::spawn(command, &folder.file("glass.log")).unwrap();
    if begins.is_empty() {
        // A table has no text before its end.
        let is_jailed = || {
            let status = fs::read_to_string(format!("/proc/{}/status", glass.pid())).unwrap_or_default();
            status.contains("Seccomp:\t2")
        };
        wait_until("it enters no jail", is_jailed);
    } else {
        glass.wait_for_text(begins, PATIENCE, || ());
    }
    assert_jailed(glass.pid(), holder_of(glass.pid()));
    let status = glass.wait(PATIENCE);
    assert!(status.is_some_and(|status| status.success()), "{}", glass.output());
    glass.output()
}

fn assert_named(glass: &Path, recording: &Path) {
    let report = Command::new(glass).args(["report", "--text", "--top", "50"]).arg(recording).output().unwrap();
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(report.status.success() && text.contains("burns_here"), "{text}");
    assert!(!text.contains("has no jail") && !text.contains("does not answer"), "{text}");
}

#[test]
fn what_reads_a_process_is_jailed() {
    let Some(glass) = programs::built("glass") else { return };
    within(LIMIT, move || {
        let folder = Folder::new("jailed-process").unwrap();
        let (root, recording) = (folder.file("root"), folder.file("recording"));
        if !build(&root) {
            return programs::skip("there is no compiler");
        }
        let mut unshare = Command::new("unshare");
        unshare.arg("--mount").arg("--root").arg(&root).arg("/burning");
        let mut burning = Process::spawn(&mut unshare, &folder.file("burning.log")).unwrap();
        let runs = |burning: &mut Process| {
            let name = process::name(burning.pid());
            name.as_deref() == Some("burning") || burning.ended().is_some()
        };
        wait_until("the program does not start", || runs(&mut burning));
        if burning.ended().is_some() {
            return programs::skip("a root of its own needs the right to make one");
        }
        let pid = burning.pid().to_string();
        let mut record = Command::new(&glass);
        record.args(["record", "--duration", "2", "--pid", &pid, "--output"]).arg(&recording);
        run_jailed(&mut record, &folder, "sampling");
        assert_named(&glass, &recording);
        let mut top = Command::new(&glass);
        top.args(["top", "--once", "--duration", "2", "--pid", &pid]);
        let table = run_jailed(&mut top, &folder, "");
        assert!(table.contains("burns_here"), "{table}");
        process::send(burning.pid(), Signal::KILL);
        // What a command starts is mapped when the reader has no rights any more.
        let line = format!("{} & sleep 2; kill $!", root.join("burning").display());
        let mut record = Command::new(&glass);
        record.arg("record").arg("--output").arg(&recording).args(["--", "sh", "-c", &line]);
        run_jailed(&mut record, &folder, "sampling");
        assert_named(&glass, &recording);
        // A command that outlives the recording continues, and glass prints that: "glass: burning (process 7) continues to run".
        let mut record = Command::new(&glass);
        record.args(["record", "--duration", "1", "--output"]).arg(&recording).arg("--").arg(root.join("burning"));
        let said = run_jailed(&mut record, &folder, "sampling");
        let line = said.lines().find(|line| line.contains("continues to run")).unwrap_or_else(|| panic!("{said}"));
        let pid = line.split_once("(process ").and_then(|(_, rest)| rest.split(')').next()?.parse().ok());
        process::send(pid.expect("it has a number"), Signal::KILL);
    });
}

/// What reads the trace in a guest's memory has no rights either, whether the guest is a process or a VM.
#[test]
fn what_reads_a_trace_is_jailed() {
    let Some(glass) = programs::built("glass") else { return };
    within(LIMIT, move || {
        for world in [World::Process, World::Tcg] {
            let folder = Folder::new("jailed-trace").unwrap();
            let Some(queue) = Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap() else {
                continue;
            };
            let (pid, recording) = (queue.service_pid().unwrap().to_string(), folder.file("recording"));
            let recording = recording.to_str().unwrap();
            for (words, expected) in [
                (&["trace", "--output", recording][..], "events"),
                (&["record", "--trace", "--output", recording], "events"),
                (&["tail"], "events shown"),
                (&["top", "--tasks", "--once"], "main #1"),
            ] {
                let mut command = Command::new(&glass);
                command.args(words).args(["--pid", &pid, "--duration", "2"]);
                let mut reader = Process::spawn(&mut command, &folder.file("glass.log")).unwrap();
                let status = || fs::read_to_string(format!("/proc/{}/status", reader.pid())).unwrap_or_default();
                wait_until("it enters no jail", || status().contains("Seccomp:\t2"));
                let walls = assert_walls(reader.pid());
                assert!(!walls.contains("Uid:\t0\t") || !rustix::process::geteuid().is_root(), "{walls}");
                load_until(&queue, 20_000, || reader.wait(Duration::ZERO).is_some());
                let is_right = reader.ended().is_some_and(|status| status.success());
                assert!(is_right && reader.output().contains(expected), "{words:?} {world}: {}", reader.output());
            }
        }
    });
}
