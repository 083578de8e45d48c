//! `glass` without a reader, without disk space, and where a file would be lost.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};

use crate::common::{Folder, complaint, glass, recording};

/// Every way to print a page of text; `FILE` is a recording.
const PRINTING: [&[&str]; 7] = [
    &["report", "--text", "FILE"],
    &["info", "FILE"],
    &["info", "--json", "FILE"],
    &["diff", "--text", "FILE", "FILE"],
    &["export", "-f", "folded", "-o", "-", "FILE"],
    &["completions", "zsh"],
    &["ps"],
];

fn command(arguments: &[&str], file: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glass"));
    command.args(arguments.iter().map(|argument| if *argument == "FILE" { file } else { argument }));
    command
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = Folder::new("closed");
    let file = folder.write("a.pftrace", &recording());
    for arguments in PRINTING {
        // No end to read from: the first write fails.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments, &file).stdout(writer.try_clone().unwrap()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked"), "{arguments:?}: {} {said}", output.status);
        // Nor is one whose error output is closed.
        let status = command(arguments, &file).stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert!(status.success(), "{arguments:?}: {status}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command(&["report", "/no/such/file"], "").stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_full_disk_is_told_and_costs_no_file() {
    let folder = Folder::new("full");
    let file = folder.write("a.pftrace", &recording());
    for arguments in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(arguments, &file).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.lines().last().unwrap().starts_with("glass: cannot write to standard output: "), "{said}");
    }
    for arguments in [&["report", "FILE"][..], &["diff", "FILE", "FILE"], &["export", "-f", "svg", "FILE"]] {
        let output = command(arguments, &file).args(["-o", "/dev/full"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("cannot write /dev/full"), "{arguments:?}: {said}");
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device(), "{arguments:?} removed a device");
    }
}

#[test]
fn a_recording_is_not_written_over() {
    let folder = Folder::new("over");
    let file = folder.write("a.pftrace", &recording());
    for arguments in [&["report", &file][..], &["diff", &file, &file], &["export", "-f", "svg", &file]] {
        let said = complaint(&[arguments, &["-o", &file]].concat());
        assert!(said.contains("is the recording itself"), "{said}");
    }
    assert!(complaint(&["import", &file, "-o", &file]).contains("is the trace itself"));
    assert_eq!(fs::read(&file).unwrap(), recording());
    // A failure leaves nothing of itself behind.
    assert!(glass(&["report", &file, "-o", &folder.file("page.html")]).status.success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_is_no_file_is_told() {
    for command in [&["report"][..], &["info"], &["export", "-f", "svg"]] {
        let said = complaint(&[command, &["/dev/zero"]].concat());
        assert!(said.contains("/dev/zero") && said.contains("is a device"), "{said}");
    }
    assert!(complaint(&["report", "/"]).contains("directory"));
}

#[test]
fn a_guest_that_cannot_be_meant_is_told() {
    for command in ["record", "top", "trace", "tail"] {
        assert!(complaint(&[command]).contains("no target is named: give --pid"));
    }
    // A part of the kernel has no program.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        let said = complaint(&["record", "--pid", "2", "--duration", "1", "-o", "/dev/null"]);
        assert!(said.contains("process 2") && (said.contains("runs no program") || said.contains("permit")), "{said}");
    }
    // A process that is not a VM, but named like one.
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    let said = complaint(&["record", "--name", name.trim_end(), "-o", "/dev/null"]);
    assert!(said.contains("give --pid"), "{said}");
    let own = std::process::id().to_string();
    let said = complaint(&["record", "--pid", &own, "--symbols", "/no/such/file", "-o", "/dev/null"]);
    assert!(said.contains("leave out --symbols"), "{said}");
    let wrong = glass(&["record", "--pid", "me"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("not the number of a process"));
    assert!(complaint(&["tail", "--pid", "1", "--groups", ""]).contains("names no group"));
}
