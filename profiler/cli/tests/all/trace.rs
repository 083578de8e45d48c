//! Errors of `glass trace`: one sentence with what to do, and no file is lost.

use crate::common::{Folder, complaint, glass};

#[test]
fn what_cannot_be_traced_is_said_in_one_sentence() {
    let folder = Folder::new("trace-errors");
    let old = folder.write("old.pftrace", b"precious");
    let trace = |arguments: &[&str]| complaint(&[&["trace", "--output", &old], arguments].concat());
    assert!(trace(&[]).contains("give --pid"));
    assert!(trace(&["--pid", "4194305"]).contains("no process 4194305"));
    assert!(trace(&["--name", "no-such-vm"]).contains("no VM with the name no-such-vm"));
    assert!(trace(&["--", "/no/such/program"]).contains("/no/such/program"));
    let own = std::process::id().to_string();
    assert!(trace(&["--pid", &own]).contains("keeps no trace"));
    assert!(trace(&["--pid", &own, "--last"]).contains("keeps no trace"));
    assert!(trace(&["--pid", &own, "--groups", ""]).contains("keeps no trace"));
    let ended = trace(&["--", "true"]);
    assert!(ended.contains("true has ended") && ended.contains("Glasshouse"), "{ended}");
    let program = std::env::current_exe().unwrap().display().to_string();
    assert!(trace(&["--post-mortem", "/no/such/file"]).contains("/no/such/file"));
    assert_eq!(std::fs::read(&old).unwrap(), b"precious", "an earlier recording is lost");
    // What parses a dump may rename nothing any more.
    let output = glass(&["trace", "--output", &old, "--post-mortem", &program]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("holds no trace") && stderr.contains("the earlier recording is"), "{stderr}");
    let text = folder.write("text", b"no dump");
    assert!(trace(&["--post-mortem", &text, "--symbols", &program]).contains("GLASS_TRACE"));
    assert_eq!(std::fs::read(format!("{old}.old")).unwrap(), b"precious", "an earlier recording is lost");
    let unwritable = complaint(&["trace", "--output", "/no/such/folder/x", "--pid", &own]);
    assert!(unwritable.contains("cannot write /no/such/folder/x"), "{unwritable}");
}

#[test]
fn groups_that_there_are_not_are_named() {
    for command in
        [&["trace", "--groups", "tasks,disks"][..], &["record", "--trace=disks"], &["run", "x", "--trace=disks"]]
    {
        let output = glass(command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{command:?}");
        assert!(text.contains("no group of events `disks`") && text.contains("devices"), "{text}");
    }
}

#[test]
fn a_program_that_keeps_no_trace_is_not_run_for_one() {
    let folder = Folder::new("trace-run");
    let output = folder.file("x.pftrace");
    let said = complaint(&["run", "/bin/true", "--platform", "linux", "--trace", "--output", &output]);
    assert!(said.contains("/bin/true") && said.contains("no symbol GLASS_TRACE"), "{said}");
    assert!(!std::path::Path::new(&output).exists());
}
