//! The command as a person uses it: what it records, and what it says when it cannot.

use std::path::PathBuf;
use std::process::{Command, Output};

fn glass(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_glass")).args(arguments).output().unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("glass-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The one sentence on standard error of a run that must fail.
fn complaint(arguments: &[&str]) -> String {
    let output = glass(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn a_command_is_recorded_and_reported() {
    let folder = Folder::new("command");
    let (recording, page) = (folder.file("a.pftrace"), folder.file("a.html"));
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let output = glass(&["record", "--rate", "1000", "--output", &recording, "--", "sh", "-c", script]);
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && text.contains("not permitted") {
        return eprintln!("skipped: {text}");
    }
    assert!(output.status.success(), "{text}");
    for word in ["wanted", "taken", "lost", "late", "broken", "CPU time"] {
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
    assert!(String::from_utf8_lossy(&cut.stderr).contains("cut off"), "{cut:?}");
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
