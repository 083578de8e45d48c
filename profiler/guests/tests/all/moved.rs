//! A kernel that runs at other addresses than in its file. The test's guest stays where it is, and all addresses in a copy of its
//! file are changed, which has the same effect.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Fixture, PATIENCE};
use glass_profiler_core::event::Event;
use glass_profiler_core::images::Images;
use glass_profiler_core::model::StackEnd;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::kvm::KvmVm;
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::{Guest, VmSettings, read_clocks};
use glass_tests::programs::skip;

const FLAGS: [&str; 2] = ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"];
/// The file is linked for addresses so far above those where the guest runs.
const ABOVE: u64 = 0x4000_0000;

/// How the guest is sampled by that file; `None` if there is no objcopy.
fn settings(fixture: &Fixture) -> Option<VmSettings> {
    let moved: PathBuf = fixture.folder.file("moved.elf");
    let objcopy = Command::new("objcopy")
        .args(["--change-addresses", &format!("{ABOVE:#x}")])
        .arg(&fixture.elf)
        .arg(&moved)
        .status();
    if !objcopy.is_ok_and(|status| status.success()) {
        skip("there is no objcopy that changes addresses");
        return None;
    }
    Some(VmSettings::new(2048, moved))
}

/// Nine stacks of ten were broken, with names for none (Nanos, 2026-11-22).
fn expect_found(mut guest: impl Guest) {
    let mut images = Images::default();
    let mut files = HostFiles::default();
    let mut biases = Vec::new();
    guest
        .announce(&mut |event| {
            if let Event::Place { bias, .. } = &event {
                biases.push(*bias);
            }
            images.learn(&event, &mut files);
        })
        .unwrap();
    assert_eq!(biases, [0u64.wrapping_sub(ABOVE)]);
    let (mut names, mut samples, start) = (BTreeSet::new(), 0, Instant::now());
    while samples < 50 {
        assert!(start.elapsed() < PATIENCE, "{samples} samples");
        guest.rest(read_clocks().monotonic_ns + Duration::from_millis(1).as_nanos() as u64).unwrap();
        for sample in guest.sample_all().unwrap().into_iter().flatten() {
            let stack = images.unwind(&sample);
            assert_eq!(stack.end, StackEnd::Complete, "{stack:?}");
            for call in stack.calls {
                let of_image = images.names(call.image.unwrap(), &mut files).unwrap();
                names.insert(of_image.locate(call.address).pop().unwrap().function);
            }
            samples += 1;
        }
    }
    guest.detach().unwrap();
    assert!(["a", "b", "c", "run"].iter().all(|name| names.contains(*name)), "{names:?}");
}

#[test]
fn a_kernel_that_moved_itself_is_found_by_its_code_under_kvm() {
    let Some(fixture) = Fixture::start_kvm("moved-kvm", &FLAGS, 1) else { return };
    let Some(settings) = settings(&fixture) else { return };
    expect_found(KvmVm::attach(&fixture.vm(), settings).unwrap());
    fixture.assert_runs("after detaching");
}

#[test]
fn a_kernel_that_moved_itself_is_found_by_its_code_through_a_gdbstub() {
    let Some(fixture) = Fixture::start(&["-accel", "tcg", "-cpu", "max"], "moved-stub", &FLAGS, true, 1) else {
        return;
    };
    let Some(settings) = settings(&fixture) else { return };
    expect_found(QemuVm::attach(&fixture.vm(), settings).unwrap());
    fixture.assert_runs("after detaching");
}
