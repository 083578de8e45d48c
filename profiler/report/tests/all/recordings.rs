//! Recordings of earlier versions of the format, made by the `glass` of that time: they open, and their text is as it
//! was then. The recordings are never written anew; the text is, with `GLASS_GOLDEN=write`, where reports change.

use crate::support::profiles::compare_golden;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::recording::{Recording, open};
use glass_profiler_core::trace;

const ROWS: usize = 20;
const BYTES_MAX: usize = 20 << 10;

fn recording(version: u32, name: &str) -> Recording {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let bytes = std::fs::read(folder.join(format!("version-{version}/{name}.pftrace"))).expect("there is a recording");
    assert!(bytes.len() <= BYTES_MAX, "{name} has {} bytes", bytes.len());
    let recording = open(&bytes, &mut NoFiles).expect("it opens");
    assert_eq!(recording.version, version);
    recording
}

fn check(version: u32, name: &str) {
    let recording = recording(version, name);
    compare_golden(&format!("version-{version}-{name}.txt"), &glass_profiler_report::text(&recording.profile, ROWS));
}

#[test]
fn version_1_of_a_process() {
    check(1, "process");
}

#[test]
fn version_1_of_a_process_cut_off() {
    check(1, "cut");
}

#[test]
fn version_1_of_a_vm_by_kvm() {
    check(1, "kvm");
}

#[test]
fn version_1_of_a_vm_by_its_gdbstub() {
    check(1, "gdbstub");
}

#[test]
fn version_2_of_a_process() {
    check(2, "process");
}

#[test]
fn version_2_of_a_vm_by_kvm() {
    check(2, "kvm");
}

#[test]
fn version_1_of_a_trace() {
    let recording = recording(1, "trace");
    let trace = trace::build(&recording.trace);
    compare_golden("version-1-trace.txt", &glass_profiler_report::trace::summary(&trace));
}
