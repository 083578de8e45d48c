//! The command as a user runs it: its recordings, and its errors.

use crate::common::{Folder, complaint, glass};
use glass_tests::programs::skip;
use std::process::{Command, Output};

#[test]
fn a_command_is_recorded_and_reported() {
    let folder = Folder::new("command");
    let (recording, page) = (folder.file("a.pftrace"), folder.file("a.html"));
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let output = glass(&["record", "--rate", "1000", "--output", &recording, "--", "sh", "-c", script]);
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && text.contains("not permitted") {
        return skip(&text);
    }
    assert!(output.status.success(), "{text}");
    for word in ["expected", "collected", "lost", "late", "broken", "CPU time"] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    let table = glass(&["report", &recording, "--text"]);
    assert!(table.status.success());
    assert!(String::from_utf8_lossy(&table.stdout).contains("sh (process"), "{table:?}");
    assert!(glass(&["report", &recording, "--output", &page]).status.success());
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));

    // A cut recording gives a report and a warning.
    let bytes = std::fs::read(&recording).unwrap();
    std::fs::write(&recording, &bytes[..bytes.len() - 5]).unwrap();
    let cut = glass(&["report", &recording, "--text"]);
    assert!(cut.status.success());
    assert!(String::from_utf8_lossy(&cut.stdout).contains("cut off"), "{cut:?}");
    assert_eq!(String::from_utf8_lossy(&cut.stderr), "", "once is enough");
}

/// The clock was started half a second after the command, which then used more CPU time than there was (2026-11-27).
#[test]
fn the_time_of_a_command_counts_from_its_start() {
    let folder = Folder::new("start");
    let recording = folder.file("a.pftrace");
    let output = glass(&[
        "record",
        "--output",
        &recording,
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 9000 ]; do i=$((i+1)); done; sleep 0.7",
    ]);
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && text.contains("not permitted") {
        return skip(&text);
    }
    assert!(output.status.success(), "{text}");
    let info = glass(&["info", "--json", &recording]);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert!(info["duration_ns"].as_u64().unwrap() >= 700_000_000, "{info}");
}

/// A shell loop that takes a while.
const BUSY: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";

#[test]
fn a_recording_that_cannot_begin_costs_no_earlier_one() {
    let folder = Folder::new("kept");
    let (old, new) = (folder.file("old"), folder.file("new"));
    std::fs::write(&old, "precious").unwrap();
    for output in [&old, &new] {
        complaint(&["record", "--output", output, "--pid", "4194305"]);
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    assert!(!std::path::Path::new(&new).exists());
}

/// Runs `glass record` of a busy shell through a shell that prepares something; `None` if this machine
/// does not let us sample.
fn record_busy(prepare: &str, output: &str) -> Option<Output> {
    let script = format!(
        "{prepare}; exec {} record --rate 5000 --output {output} -- sh -c '{BUSY}'",
        env!("CARGO_BIN_EXE_glass")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("not permitted") {
        skip(&text);
        return None;
    }
    Some(output)
}

#[test]
fn a_full_disk_is_told_and_what_was_recorded_stays() {
    let folder = Folder::new("full");
    let recording = folder.file("cut.pftrace");
    // In blocks of 512 bytes. If it is not handled, the limit's signal kills.
    let Some(limited) = record_busy("ulimit -f 16", &recording) else { return };
    let text = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(
        last.contains("cannot write") && last.contains("cut.pftrace") && last.contains("can be reported"),
        "{text}"
    );
    assert_eq!(std::fs::metadata(&recording).unwrap().len(), 8192);
    let table = glass(&["report", &recording, "--text"]);
    assert!(table.status.success(), "{table:?}");
    assert!(String::from_utf8_lossy(&table.stdout).contains("cut off"), "{table:?}");

    let Some(full) = record_busy("true", "/dev/full") else { return };
    let text = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write /dev/full") && text.contains("No space left"), "{text}");
}

#[test]
fn without_a_terminal_there_is_no_progress_line() {
    let folder = Folder::new("quiet");
    let Some(output) = record_busy("true", &folder.file("a.pftrace")) else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.is_empty(), "{text}");
    assert!(!text.contains('\r') && !text.contains('\x1b'), "{text}");
    assert_eq!(text.lines().count(), 6, "what is sampled, and a summary: {text}");
}

/// Sends a signal to a process by the shell's own command.
fn send(signal: &str, pid: u32) {
    Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap();
}

#[test]
fn ctrl_c_ends_a_recording_well_and_so_do_two() {
    for signals in 1..=2 {
        let folder = Folder::new(&format!("interrupt-{signals}"));
        let recording = folder.file("a.pftrace");
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_glass"))
            .args(["record", "--pid", &busy.id().to_string(), "--output", &recording])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // What it writes first comes after it listens to signals.
        let begun = std::time::Instant::now();
        let has_begun = || std::fs::metadata(&recording).is_ok_and(|file| file.len() > 0);
        while !has_begun() && recorder.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(240), "it does not begin to record");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        (0..signals).for_each(|_| send("INT", recorder.id()));
        let status = recorder.wait().unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut recorder.stderr.take().unwrap(), &mut text).unwrap();
        let still_runs = busy.try_wait().unwrap().is_none();
        busy.kill().unwrap();
        busy.wait().unwrap();
        if text.contains("not permitted") {
            return skip(&text);
        }
        // The second may arrive after the detach; then it ends the recorder immediately.
        let codes: &[i32] = if signals == 1 { &[0] } else { &[0, 130] };
        assert!(status.code().is_some_and(|code| codes.contains(&code)), "{status}: {text}");
        assert!(still_runs);
        let table = glass(&["report", &recording, "--text"]);
        assert!(table.status.success(), "{table:?}");
        assert!(String::from_utf8_lossy(&table.stdout).contains("running"), "{table:?}");
    }
}

#[test]
fn what_cannot_be_done_is_said_in_one_sentence() {
    let folder = Folder::new("errors");
    let out = folder.file("x.pftrace");
    let record = |arguments: &[&str]| complaint(&[&["record", "--output", &out], arguments].concat());
    assert!(record(&[]).contains("give --pid"));
    assert!(record(&["--pid", "4194305"]).contains("no process 4194305"));
    assert!(record(&["--name", "no-such-vm"]).contains("no VM with the name no-such-vm"));
    assert!(record(&["--", "/no/such/program"]).contains("/no/such/program"));
    assert!(complaint(&["report", "/no/such/file"]).contains("/no/such/file"));
    std::fs::write(&out, "no recording").unwrap();
    assert!(complaint(&["report", &out, "--text"]).contains("is not a recording"));
    let unwritable = complaint(&["record", "--output", "/no/such/folder/x", "--", "true"]);
    assert!(unwritable.contains("cannot write /no/such/folder/x"), "{unwritable}");
    for wrong in [["--rate", "0"], ["--rate", "-5"], ["--duration", "0"], ["--duration", "x"], ["--stack-bytes", "9"]] {
        let output = glass(&[&["record"][..], &wrong, &["--", "true"]].concat());
        assert!(!output.status.success(), "{wrong:?}");
    }
}
