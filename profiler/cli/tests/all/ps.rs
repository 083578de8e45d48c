//! `glass ps` and `glass record --post-mortem` as a person uses them.

use crate::common::glass;

#[test]
fn vms_are_listed_in_lines_that_fit_a_screen() {
    let output = glass(&["ps"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("    PID  NAME") || text.starts_with("no VM found"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || !line.contains(' ')), "{text}");
}

#[test]
fn scripts_get_json() {
    let output = glass(&["ps", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["vms"].is_array() && value["processes_not_seen"].is_u64(), "{value}");
}

#[test]
fn a_file_that_is_no_dump_is_refused_in_one_sentence() {
    let refuse = |arguments: &[&str]| {
        let output = glass(&[&["record", "--output", "/dev/null", "--post-mortem"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let own = env!("CARGO_BIN_EXE_glass");
    assert!(refuse(&["/no/such/dump"]).contains("/no/such/dump"));
    let missing = refuse(&["/no/such/dump", "--symbols", own]);
    assert!(missing.contains("/no/such/dump") && missing.lines().count() == 1, "{missing}");
    let other = refuse(&[own, "--symbols", own]);
    assert!(other.contains("is no ELF core of a VM") && other.lines().count() == 1, "{other}");
    assert!(refuse(&[own, "--pid", "1"]).contains("cannot be used with"));
}
