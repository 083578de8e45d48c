//! Running `glass`, and a small recording to run it on.

#[path = "../../../../core/tests/all/common/host_and_guest.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
pub mod host_and_guest;
#[path = "../../../../core/tests/all/common/linux_guest.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
pub mod linux_guest;

use std::path::Path;
use std::process::{Command, Output};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::{Cost, Distribution, Losses, Origin, State};
use glass_profiler_core::recording::{Clocks, ImageId, SampleRecord, TrackRecord, Writer};
use glass_profiler_core::symbols::Location;

pub fn glass(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_glass")).args(arguments).output().unwrap()
}

/// The one sentence on standard error of a run that must fail.
pub fn complaint(arguments: &[&str]) -> String {
    let output = glass(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A folder of a test, gone with it.
pub struct Folder(glass_tests::folder::Folder);

impl Folder {
    pub fn new(name: &str) -> Folder {
        Folder(glass_tests::folder::Folder::new(&format!("cli-{name}")).unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path().join(name), bytes).unwrap();
        self.file(name)
    }
}

/// One vCPU: `main` calls `work`, twice seen running, once idle.
pub fn recording() -> Vec<u8> {
    let clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };
    let origin = Origin {
        guest: "a guest".to_owned(),
        backend: "a mechanism".to_owned(),
        start_unix_ns: clocks.realtime_ns,
        rate_hz: 1_000,
        ..Default::default()
    };
    let mut writer = Writer::start(Vec::new(), clocks, &origin).unwrap();
    let guest = GuestId(0);
    let kind = GuestKind::Vm { vmm: 7 };
    writer.guest(&Guest { id: guest, kind, name: "queue".to_owned(), architecture: Architecture::X86_64 }).unwrap();
    writer.track(&TrackRecord { number: 0, guest, id: 0, name: "vcpu 0".to_owned() }).unwrap();
    let image = ImageId { path: "/images/queue".to_owned(), build_id: vec![1, 2, 3, 4, 5] };
    let mapped = writer.image(&image, 0x1000, 0x2000).unwrap();
    let frames = [writer.frame(Some(mapped), 0x1010).unwrap(), writer.frame(Some(mapped), 0x1020).unwrap()];
    let callstack = writer.callstack(&frames).unwrap();
    // Names come first here, so that a recording that lacks its end still has them.
    let location = |function: &str, line| Location {
        function: function.to_owned(),
        file: Some("src/main.rs".to_owned()),
        line: Some(line),
        ..Location::default()
    };
    let names = [(0x1010, vec![location("main", 3)]), (0x1020, vec![location("work", 9)])];
    writer.symbols(&image, 1_000, &names).unwrap();
    for (index, state) in [State::Running, State::Running, State::Idle].into_iter().enumerate() {
        let time_ns = 1_000 + index as u64 * 1_000_000;
        writer
            .sample(&SampleRecord {
                time_ns,
                callstack: Some(callstack),
                state,
                frozen_ns: 60_000,
                ..Default::default()
            })
            .unwrap();
    }
    writer.warning("mind the gap").unwrap();
    let cost = Cost {
        samples_wanted: 4,
        samples_taken: 3,
        samples_lost: 1,
        losses: Losses { overdue: 1, ..Default::default() },
        pause: Distribution { count: 3, median_ns: 60_000, p99_ns: 60_000, max_ns: 60_000, sum_ns: 180_000 },
        ..Default::default()
    };
    writer.cost(&cost, 4_000_000, true).unwrap();
    writer.into_inner()
}
