//! The truth of samples: guests with known weights, in all ways to build them, through each backend. No
//! stack may be torn or broken, and the shares have to be within 5 standard deviations.

use crate::common::{Fixture, attach_stub, is_long, take};
use glass_profiler_guests::backends::kvm::KvmVm;
use glass_profiler_guests::{Guest, VmSettings};

const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];

const POINTERS: &str = "-fno-omit-frame-pointer";

/// How the guest is built: with frame pointers and nothing else; without, and tables in one section or
/// the other; and those where much time goes to a function of two instructions.
///
/// GCC would mix other instructions into the lines that set up a frame pointer. There only tables
/// show the caller, and 3 of 1500 samples lacked one function (2026-11-21); so the first has them in order.
const BUILDS: &[(&str, &[&str])] = &[
    ("pointers", &[POINTERS, "-fno-asynchronous-unwind-tables", "-g0", "-fno-schedule-insns2"]),
    ("eh-frame", &["-fomit-frame-pointer", "-fasynchronous-unwind-tables"]),
    ("debug-frame", &["-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]),
    ("pointers-leaves", &[POINTERS, "-fasynchronous-unwind-tables", "-DLEAVES"]),
    ("eh-frame-leaves", &["-fomit-frame-pointer", "-fasynchronous-unwind-tables", "-DLEAVES"]),
];

fn samples() -> usize {
    if is_long() { 10_000 } else { 1_500 }
}

fn judge(backend: &str, build: &str, fixture: &Fixture, guest: impl Guest, rate_hz: u32) {
    let (judge, pauses) = take(fixture, guest, rate_hz, samples());
    let (torn, bad) = judge.bad();
    let pause_us = pauses.distribution().median_ns / 1000;
    eprintln!(
        "{backend} {build}: torn {torn} / {}, broken or impossible {bad}; run, a, b, c: {:?}, {} in leaf; pause {pause_us} us",
        samples(),
        judge.counts,
        judge.leaves
    );
    // An emulator spends most of such a guest's time between its many small blocks.
    assert_eq!(judge.leaves > samples() as u32 / 100, build.ends_with("leaves"));
    fixture.assert_runs("after detaching");
}

fn through_the_gdbstub(index: usize) {
    let (build, flags) = BUILDS[index];
    let Some(fixture) = Fixture::start(TCG, &format!("truth-{build}"), flags, true, 1) else { return };
    judge("gdbstub", build, &fixture, attach_stub(&fixture).unwrap(), 1500);
}

fn by_kvm(index: usize) {
    let (build, flags) = BUILDS[index];
    let Some(fixture) = Fixture::start_kvm(&format!("truth-kvm-{build}"), flags, 1) else { return };
    let guest = KvmVm::attach(&fixture.vm(), VmSettings::new(2048, fixture.elf.clone())).unwrap();
    judge("kvm", build, &fixture, guest, 997);
}

#[test]
fn gdbstub_with_frame_pointers_only() {
    through_the_gdbstub(0);
}

#[test]
fn gdbstub_with_eh_frame_only() {
    through_the_gdbstub(1);
}

#[test]
fn gdbstub_with_debug_frame_only() {
    through_the_gdbstub(2);
}

#[test]
fn gdbstub_with_frame_pointers_and_leaves() {
    through_the_gdbstub(3);
}

#[test]
fn gdbstub_with_eh_frame_and_leaves() {
    through_the_gdbstub(4);
}

#[test]
fn kvm_with_frame_pointers_only() {
    by_kvm(0);
}

#[test]
fn kvm_with_eh_frame_only() {
    by_kvm(1);
}

#[test]
fn kvm_with_debug_frame_only() {
    by_kvm(2);
}

#[test]
fn kvm_with_frame_pointers_and_leaves() {
    by_kvm(3);
}

#[test]
fn kvm_with_eh_frame_and_leaves() {
    by_kvm(4);
}
