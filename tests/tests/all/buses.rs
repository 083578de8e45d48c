//! On which bus the end-to-end tests run: all of them on what `glass run` chooses by itself, which is QEMU with PCI for a VM with a user network and our
//! own VMM under KVM for one in front of a TAP device; those in the tables below over QEMU's virtio-mmio, too; and those that take [`MACHINES`] on each
//! machine. No other file names a machine or a bus.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::queue::{Options, World, on_machine};
use glass_tests::{programs, queue};
use std::time::Duration;

/// The options of `glass run` for devices on PCI.
pub const PCI: &[&str] = &["--machine", "microvm", "--bus", "pci"];
/// The options for devices in windows of memory.
pub const MMIO: &[&str] = &["--vmm", "qemu", "--machine", "microvm", "--bus", "mmio"];
/// Each machine with each bus that it has, microvm by the image's firmware and by QEMU's. Firmware of q35 takes seconds where a host emulates its
/// code.
pub const MACHINES: [&[&str]; 4] = [MMIO, PCI, QEMU_FIRMWARE, Q35];
/// The options for each version of the interrupt controller of an AArch64 machine, with each bus.
pub const AARCH64_MACHINES: [&[&str]; 4] = [
    &["--gic", "2", "--bus", "mmio"],
    &["--gic", "2", "--bus", "pci"],
    &["--gic", "3", "--bus", "mmio"],
    &["--gic", "3", "--bus", "pci"],
];
pub const QEMU_FIRMWARE: &[&str] = &["--machine", "microvm", "--qemu-firmware"];
const Q35: &[&str] = &["--machine", "q35"];

/// The tests that run by QEMU under KVM, over each bus, and over virtio-mmio without KVM, too.
macro_rules! by_qemu {
    ($($file:ident { $($test:ident within $seconds:literal;)* })*) => {
        $(mod $file {
            mod kvm { $(by_qemu!(one MMIO Kvm: $file $test $seconds);)* }
            mod kvm_pci { $(by_qemu!(one PCI Kvm: $file $test $seconds);)* }
            mod tcg { $(by_qemu!(one MMIO Tcg: $file $test $seconds);)* }
        })*
    };
    (one $machine:ident $world:ident: $file:ident $test:ident $seconds:literal) => {
        #[test]
        fn $test() {
            let test = || crate::$file::$test(glass_tests::queue::World::$world);
            super::super::run_on(super::super::$machine, $seconds, test);
        }
    };
}

by_qemu! {
    service {
        items_come_out_whole_and_in_order within 180;
        a_download_waits_for_an_upload within 180;
        items_survive_a_restart within 240;
        a_full_disk_is_told_and_drains within 180;
    }
    shutdown {
        requests_in_flight_are_finished within 180;
        a_second_signal_ends_at_once within 180;
    }
    hostile {
        clients_that_vanish_leave_no_trace within 240;
        slow_clients_do_not_hold_up_others within 240;
    }
    full {
        a_full_host_disk_is_an_answer_and_no_end within 180;
    }
}

fn run_on(machine: &'static [&'static str], seconds: u64, test: fn()) {
    within(Duration::from_secs(seconds), move || on_machine(machine, test));
}

/// QEMU's command line for a queue; `cache` gets the image's firmware.
fn words(machine: Option<&'static [&'static str]>, cache: &Folder) -> Option<Vec<String>> {
    if let Some(reason) = World::Tcg.obstacle() {
        programs::skip(reason);
        return None;
    }
    let folder = Folder::new("buses").unwrap();
    let options = Options { disk_size: "16M".into(), ..Options::default() };
    let command = || queue::command(World::Tcg, &folder.file("queue.img"), 8080, &options);
    let command = machine.map_or_else(command, |machine| on_machine(machine, command))?;
    let words: Vec<_> = command.get_args().collect();
    let (run, service) = words.split_at(words.iter().position(|word| *word == "--")?);
    let mut printed = std::process::Command::new(command.get_program());
    let output =
        printed.args(run).arg("--print-command").args(service).env("GLASS_CACHE", cache.path()).output().unwrap();
    Some(glass_tests::qemu::words(String::from_utf8(output.stdout).unwrap().trim()).unwrap())
}

#[test]
fn tests_run_over_pci_and_those_of_the_table_over_mmio() {
    let cache = Folder::new("buses-cache").unwrap();
    for (machine, kind) in [(None, "-pci,"), (Some(PCI), "-pci,"), (Some(MMIO), "-device")] {
        let Some(words) = words(machine, &cache) else { return };
        let is_device = |word: &&String| word.starts_with("virtio-") && !word.starts_with("virtio-mmio.");
        let devices: Vec<_> = words.iter().filter(is_device).collect();
        assert_eq!(devices.len(), 3, "console, disk, card: {devices:?}");
        assert!(devices.iter().all(|device| device.contains(kind)), "{machine:?}: {devices:?}");
    }
}

#[test]
fn microvm_boots_by_the_images_firmware() {
    let cache = Folder::new("buses-cache").unwrap();
    for (machine, is_ours) in [(None, true), (Some(MMIO), true), (Some(QEMU_FIRMWARE), false), (Some(Q35), false)] {
        let Some(words) = words(machine, &cache) else { return };
        let firmware =
            words.iter().position(|word| word == "-bios").map(|place| std::fs::read(&words[place + 1]).unwrap());
        assert_eq!(firmware.is_some(), is_ours, "{machine:?}: {words:?}");
        assert!(firmware.is_none_or(|bytes| bytes.len() == 64 << 10 && bytes[bytes.len() - 16] != 0), "{machine:?}");
    }
}

#[test]
fn no_other_test_names_a_machine_or_a_bus() {
    let tests = programs::root().join("tests/tests/all");
    for file in std::fs::read_dir(tests).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("buses.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for option in ["\"--bus\"", "\"--machine\""] {
                assert!(!text.contains(option), "{} has {option}: take a machine of buses.rs", path.display());
            }
        }
    }
}
