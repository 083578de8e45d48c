//! Random bytes of a VM: on a CPU without a source of entropy, only a VM with an entropy device starts its service.

use crate::buses::{MMIO, PCI};
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::programs;
use glass_tests::qemu::Qemu;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// Boots `hello` on a CPU without RDRAND and RDSEED, with `devices` besides its own.
fn boot(machine: &[&str], devices: &[&str], folder: &Folder) -> Option<Qemu> {
    if !programs::has_qemu() {
        programs::skip("qemu-system-x86_64 is not installed");
        return None;
    }
    let (glass, image) = (programs::built("glass")?, programs::image("hello")?);
    let mut run = Command::new(glass);
    run.arg("run").arg(image).args(["--accel", "tcg", "--memory", "32"]).args(machine);
    // Of two CPUs QEMU takes the last.
    let options: Vec<String> = ["-cpu", "qemu64"].iter().chain(devices).map(|word| word.to_string()).collect();
    Some(Qemu::start(&mut run, &[], &options, folder).unwrap())
}

#[test]
fn no_service_starts_without_entropy() {
    within(LIMIT, || {
        let folder = Folder::new("entropy").unwrap();
        let Some(mut vm) = boot(PCI, &[], &folder) else { return };
        let status = vm.process.wait(LIMIT).expect("it ends by itself");
        let output = vm.process.output();
        assert!(
            output.contains("error: there is no entropy: give the VM a CPU with an instruction for random words"),
            "{output}"
        );
        // The guest's exit code for an error, as QEMU's device returns it.
        assert_eq!(status.code(), Some(35), "{output}");
    });
}

#[test]
fn an_entropy_device_is_enough() {
    within(LIMIT * 2, || {
        for (machine, device) in [(PCI, "virtio-rng-pci,disable-legacy=on"), (MMIO, "virtio-rng-device")] {
            let folder = Folder::new("entropy").unwrap();
            let Some(mut vm) = boot(machine, &["-device", device], &folder) else { return };
            let begun = Instant::now();
            while !vm.process.output().contains("hello listens") {
                let ended = vm.process.ended();
                assert!(begun.elapsed() < LIMIT && ended.is_none(), "{machine:?}: {}", vm.process.output());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}
