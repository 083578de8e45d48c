//! The images of AArch64: those tests of services in emulated VMs that show what depends on the processor, and what only its machine has.
//! `cargo xtask test --only aarch64` runs them alone.

use crate::buses::AARCH64_MACHINES;
use crate::faults::{ENDINGS, Ending};
use crate::{cores, crash, faults, hostile, linux_tasks, oracle, record, service, shutdown, trace};
use glass_tests::content::Content;
use glass_tests::fat;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::linux_guest::{Release, Settings};
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::qemu::Qemu;
use glass_tests::queue::{Options, Queue, World, answer, on_machine};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a loaded machine may take for a boot.
const LIMIT: Duration = Duration::from_secs(480);

/// Tests of other files, by the service on a machine of [`AARCH64_MACHINES`].
macro_rules! same_tests {
    ($($machine:literal $file:ident $test:ident within $seconds:literal;)*) => {
        $(#[test]
        fn $test() {
            on(AARCH64_MACHINES[$machine], $seconds, || $file::$test(World::Tcg));
        })*
    };
}

same_tests! {
    3 service items_come_out_whole_and_in_order within 300;
    0 service a_foreign_client_uploads_and_downloads within 300;
    1 service a_download_waits_for_an_upload within 300;
    2 service items_survive_a_restart within 300;
    3 shutdown requests_in_flight_are_finished within 300;
    3 hostile clients_that_vanish_leave_no_trace within 300;
    3 cores lines_that_are_lost_are_counted within 300;
    3 cores the_queue_does_not_mind_more_cores within 300;
    3 record a_recording_names_what_the_queue_does within 300;
    3 oracle compare within 300;
    2 trace a_trace_tells_all_and_the_queue_goes_on within 300;
    1 trace a_run_is_traced_from_its_first_instruction within 300;
}

/// Debian's kernel for AArch64 and its processes, with nothing but the pid of their QEMU: tasks, stacks and samples.
#[test]
fn a_linux_shows_its_processes() {
    within(Duration::from_secs(600), || linux_tasks::check(&Settings::new(Release::BookwormArm61)));
}

fn on(machine: &'static [&'static str], seconds: u64, test: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(seconds), move || programs::on_aarch64(|| on_machine(machine, test)));
}

/// `kill -9` during uploads.
#[test]
fn nothing_acknowledged_is_lost() {
    let rounds = if programs::is_long() { 20 } else { 3 };
    on(AARCH64_MACHINES[3], 600, move || crash::nothing_acknowledged_is_lost(World::Tcg, rounds));
}

/// Each version of the interrupt controller on each bus, with one core and with four, in 64 MiB.
#[test]
fn every_machine_runs_the_queue() {
    for machine in AARCH64_MACHINES {
        on(machine, 600, move || {
            for count in ["1", "4"] {
                let folder = Folder::new("boots").unwrap();
                let options = Options {
                    disk_size: "64M".into(),
                    memory_mib: 64,
                    vm: vec!["--cores", count],
                    ..Options::default()
                };
                let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &options).unwrap() else {
                    return;
                };
                let content = Content { seed: 5, length_bytes: 3_000_001 };
                let response = queue.put(content).unwrap();
                assert_eq!(response.status(), 200, "{machine:?}, {count} cores: {}", response.text());
                queue.take(content).unwrap();
                // Of its devices and cores, none was refused.
                let output = queue.output();
                let is_whole = !output.contains("virtio device") && !output.contains("did not start");
                assert!(is_whole && !output.contains("cannot be started"), "{machine:?}, {count} cores: {output}");
            }
        });
    }
}

/// A core that halts for a request is woken by the card's interrupt, and not only by the timer by which it looks for requests of the host.
#[test]
fn interrupts_of_devices_arrive() {
    const REQUESTS: usize = 10;
    /// What QEMU writes of each interrupt that a core acknowledges, by version of the controller; and the numbers that are not a device's: two that
    /// cores send, the timer's, none.
    const EVENTS: [&str; 2] = ["gic_acknowledge_irq", "gicv3_icc_iar1_read"];
    const OTHERS: [u32; 4] = [0, 1, 27, 1023];
    for machine in AARCH64_MACHINES {
        on(machine, 300, move || {
            if let Some(reason) = World::Tcg.obstacle() {
                return programs::skip(reason);
            }
            let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
            let folder = Folder::new("acknowledged").unwrap();
            let port = free_port().unwrap();
            let mut run = Command::new(glass);
            run.arg("run").arg(image).args(machine).args(["--port", &format!("{port}:8080")]);
            let log = folder.file("events").display().to_string();
            let options = ["-trace", EVENTS[0], "-trace", EVENTS[1], "-D", &log].map(str::to_owned);
            let vm = Qemu::start(&mut run, &[], &options, &folder).unwrap();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            wait_for(address, &vm.process);
            for _ in 0..REQUESTS {
                // Longer than a core spins.
                std::thread::sleep(Duration::from_millis(20));
                assert!(answer(address, LIMIT).is_some(), "{machine:?}: {}", vm.process.output());
            }
            let events = std::fs::read_to_string(&log).unwrap();
            let number = |line: &str| {
                let last = line.split_whitespace().last()?;
                last.strip_prefix("0x").map_or(last.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok())
            };
            let of_devices = events.lines().filter(|line| EVENTS.iter().any(|event| line.contains(event)));
            let count = of_devices.filter_map(number).filter(|number| !OTHERS.contains(number)).count();
            assert!(count >= REQUESTS, "{machine:?}: of {REQUESTS} requests {count} interrupts: {events}");
        });
    }
}

/// Each core takes messages, frees memory of another, sleeps and is woken, by both versions of the interrupt controller.
#[test]
fn cores_work_for_each_other() {
    for machine in [AARCH64_MACHINES[0], AARCH64_MACHINES[2]] {
        on(machine, 300, move || {
            let options = [&["--cores", "4"], machine].concat();
            let Some((output, code)) = cores::faults(World::Tcg, &options, "cores") else { return };
            assert_eq!(code, Some(0), "{machine:?}: {output}");
            assert!(output.contains("cores=4 cancelled=true none=true back=Some(0)"), "{machine:?}: {output}");
        });
    }
}

/// The crash of one core stops the others, also one that never gives way.
#[test]
fn a_crash_shows_all_cores() {
    for machine in [AARCH64_MACHINES[0], AARCH64_MACHINES[2]] {
        on(machine, 300, move || cores::crashes_show_all_cores(World::Tcg, machine));
    }
}

/// The same ends as on x86-64, with the registers of this processor: guard pages, code that cannot be written, data that cannot be run.
#[test]
fn every_ending_has_its_report() {
    on(&[], 600, || {
        if let Some(reason) = World::Tcg.obstacle() {
            return programs::skip(reason);
        }
        let of_this_processor = |ending: &Ending| match ending.fault {
            "null" => Ending { words: &["read of unmapped address 0x8", "read_null", "pc ", "x29 "], ..*ending },
            "privileged" => Ending { words: &["invalid instruction", "privileged_instruction"], ..*ending },
            _ => *ending,
        };
        faults::check_all("tcg", ENDINGS.iter().map(of_this_processor));
    });
}

/// Files of a FAT file system on a disk.
#[test]
fn the_web_server_serves_a_disk() {
    on(AARCH64_MACHINES[3], 300, || {
        if let Some(reason) = World::Tcg.obstacle() {
            return programs::skip(reason);
        }
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("web-server")) else { return };
        let folder = Folder::new("web").unwrap();
        let page = Content { seed: 3, length_bytes: 300_001 }.bytes();
        let (file, disk) = (folder.write("page.bin", &page).unwrap(), folder.file("disk"));
        if !fat::make(&disk, &[file]).unwrap() {
            return programs::skip(fat::NOT_INSTALLED);
        }
        let port = free_port().unwrap();
        let mut command = Command::new(glass);
        command.arg("run").arg(image).args(["--port", &format!("{port}:8080")]).arg("--disk").arg(&disk);
        command.args(["--", "--port", "8080", "--disk"]);
        let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        wait_for(address, &process);
        let mut received = Vec::new();
        let response = Client::connect(address).unwrap().get_into("/page.bin", &mut received).unwrap();
        assert_eq!(response.status(), 200, "{}", process.output());
        assert!(received == page, "the file came changed");
    });
}

fn wait_for(address: SocketAddr, process: &Process) {
    let end = Instant::now() + LIMIT;
    while answer(address, Duration::from_millis(500)).is_none() {
        assert!(Instant::now() < end, "{}", process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
}
