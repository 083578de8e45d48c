//! How a VM ends: each end has an exit code and, after a failure, one crash report with names and lines.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::Process;
use glass_tests::programs;
use std::process::Command;
use std::time::Duration;

/// A boot and a report take well under a second; a loaded machine gets many.
const LIMIT: Duration = Duration::from_secs(240);

/// The expected output of one end.
#[derive(Clone, Copy)]
pub struct Ending {
    /// The argument of the image `faults`.
    pub fault: &'static str,
    pub exit_code: i32,
    /// All of these are printed.
    pub words: &'static [&'static str],
}

pub const ENDINGS: &[Ending] = &[
    Ending { fault: "ok", exit_code: 0, words: &[] },
    Ending { fault: "check-memory-functions", exit_code: 0, words: &[] },
    Ending { fault: "error", exit_code: 1, words: &["error: this service always fails"] },
    Ending {
        fault: "panic",
        exit_code: 101,
        words: &[
            "PANIC at apps/faults/src/main.rs:",
            "on purpose, number 1",
            "task main",
            "  #0 0x",
            "rust_begin_unwind",
            "faults::serve",
            "main.rs:",
        ],
    },
    Ending { fault: "bounds", exit_code: 101, words: &["index out of bounds", "past_the_end", "wrong.rs:"] },
    Ending { fault: "memory", exit_code: 101, words: &["memory allocation of 100000 bytes failed", "all_memory"] },
    Ending { fault: "stack", exit_code: 102, words: &["stack overflow", "wrong::recurse", "times more"] },
    Ending { fault: "null", exit_code: 102, words: &["read of unmapped address 0x8", "read_null", "rip ", "r15 "] },
    Ending { fault: "write-code", exit_code: 102, words: &["write to protected address", "write_code"] },
    Ending { fault: "run-data", exit_code: 102, words: &["execution of protected address"] },
    Ending { fault: "invalid", exit_code: 102, words: &["invalid instruction", "invalid_instruction"] },
    Ending { fault: "privileged", exit_code: 102, words: &["general protection fault", "privileged_instruction"] },
];

pub fn check_all(accel: &str, endings: impl IntoIterator<Item = Ending>) {
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("faults")) else { return };
    let folder = Folder::new("faults").expect("a temporary folder");
    for ending in endings {
        let mut command = Command::new(&glass);
        command.arg("run").arg(&image).args(["--accel", accel, "--memory", "16", "--net", "none", "--", ending.fault]);
        let mut process = Process::spawn(&mut command, &folder.path().join(ending.fault)).expect("glass starts");
        let status =
            process.wait(LIMIT).unwrap_or_else(|| panic!("{} does not end:\n{}", ending.fault, process.output()));
        let output = process.output();
        assert_eq!(status.code(), Some(ending.exit_code), "{} on {accel}:\n{output}", ending.fault);
        for word in ending.words {
            assert!(output.contains(word), "{} on {accel} does not print `{word}`:\n{output}", ending.fault);
        }
    }
}

#[test]
fn every_ending_has_its_report_on_tcg() {
    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    within(LIMIT * 2, || check_all("tcg", ENDINGS.iter().copied()));
}

#[test]
fn every_ending_has_its_report_on_kvm() {
    if !programs::has_kvm() {
        return programs::skip("there is no usable /dev/kvm");
    }
    within(LIMIT * 2, || check_all("kvm", ENDINGS.iter().copied()));
}
