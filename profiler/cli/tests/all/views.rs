//! Views of a recording of host and guest on the command line.

use crate::common::host_and_guest::recording;
use crate::common::{Folder, complaint, glass};

fn stdout(arguments: &[&str]) -> String {
    let output = glass(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reports_and_exports_have_the_view_that_is_requested() {
    let folder = Folder::new("views");
    let file = folder.write("host.pftrace", &recording(true));
    let text = |view: &[&str]| stdout(&[&["report", &file, "--text"], view].concat());
    assert_eq!(text(&[]), text(&["--view", "guest"]));
    for (view, samples, has, has_not) in [
        ("guest", 115, " kick ", " kvm_run "),
        ("host", 170, " kvm_run ", " kick "),
        ("merged", 170, " kvm_run ", "[guest] "),
    ] {
        let text = text(&["--view", view]);
        assert!(text.contains(&format!("100 % = {samples} samples, running or in the VMM")), "{text}");
        let functions = text.split("Hottest functions").nth(1).unwrap();
        assert!(functions.contains(has) && !functions.contains(has_not), "{view}\n{text}");
    }
    let page = folder.file("report.html");
    stdout(&["report", &file, "--view", "merged", "-o", &page]);
    assert!(std::fs::read_to_string(&page).unwrap().contains("value=\"merged\" checked"));

    let folded = |view: &[&str]| stdout(&[&["export", &file, "-f", "folded", "-o", "-"], view].concat());
    assert!(
        !folded(&[]).contains("kvm_run")
            && folded(&["--view", "merged"]).contains("kick_[g];sys_ioctl_[k];kvm_run_[k] 20")
    );
    assert!(folded(&["--view", "host"]).contains("[guest] 55"));
    let out = folder.file("flame.svg");
    for (view, states, samples) in
        [("guest", "running", 115), ("guest", "all", 135), ("merged", "running", 170), ("host", "all", 290)]
    {
        let said = glass(&["export", &file, "-f", "svg", "-o", &out, "--view", view, "--states", states]);
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains(&format!("{samples} samples in ")), "{view} {states}: {said}");
    }
    // Two recordings, of which one has no host: compared by what both have, nothing has changed.
    let guest_only = folder.write("guest.pftrace", &recording(false));
    let difference = stdout(&["diff", &guest_only, &file, "--text"]);
    assert!(difference.contains("100 % = 115 (A) and 115 (B)") && !difference.contains("Only in"), "{difference}");
    let difference = stdout(&["diff", &guest_only, &file, "--text", "--view", "merged"]);
    assert!(difference.contains("100 % = 115 (A) and 170 (B)") && difference.contains("Only in B"), "{difference}");
}

#[test]
fn a_view_of_a_trace_is_a_text() {
    let folder = Folder::new("views-of-traces");
    let file = folder.write("host.pftrace", &recording(true));
    assert!(complaint(&["report", &file, "--view", "waits"]).contains("--view waits is a text: give --text, too"));
    assert!(complaint(&["report", &file, "--text", "--view", "waits"]).contains("holds samples only"));
}

#[test]
fn info_lists_the_tracks_of_both() {
    let folder = Folder::new("views-info");
    let file = folder.write("host.pftrace", &recording(true));
    let text = stdout(&["info", &file]);
    assert!(
        text.contains("Tracks of the guest and of the host")
            && text.contains("  qemu 70")
            && text.contains("34.8 % in the VMM"),
        "{text}"
    );
}
