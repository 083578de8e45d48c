//! One image on every machine: mmio and PCI, microvm and q35, little memory and more than fits below 4 GiB. `cargo xtask test --long`
//! boots each one more often.

use crate::buses::{MACHINES, MMIO, PCI, QEMU_FIRMWARE};
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::say;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::qemu::Qemu;
use glass_tests::qmp::Qmp;
use glass_tests::queue::{Options, Queue, World, answer};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_worlds!(kvm Kvm: every_machine_runs_the_queue within 1800; all_memory_is_used within 300; power_button_ends_a_service within 300; memory_is_new_once within 300;
    an_interrupt_at_a_random_moment_leaves_no_card_deaf within 1800;);
glass_tests::in_worlds!(tcg Tcg: every_machine_runs_the_queue within 1800; all_memory_is_used within 300; power_button_ends_a_service within 300;
    memory_is_new_once within 300;);

const MEMORY_MIB: [u32; 2] = [32, 6144];
const LIMIT: Duration = Duration::from_secs(240);

fn every_machine_runs_the_queue(world: World) {
    let boots = if programs::is_long() { 10 } else { 1 };
    for machine in MACHINES {
        for memory_mib in MEMORY_MIB {
            for _ in 0..boots {
                let folder = Folder::new("boots").unwrap();
                let options =
                    Options { disk_size: "64M".into(), memory_mib, vm: machine.to_vec(), ..Options::default() };
                let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
                // Through the network card, onto the disk and back.
                let content = Content { seed: memory_mib.into(), length_bytes: 3_000_001 };
                let response = queue.put(content).unwrap();
                assert_eq!(response.status(), 200, "{machine:?} {memory_mib} MiB: {}", response.text());
                queue.take(content).unwrap();
                // Of its devices, none was refused.
                let output = queue.output();
                assert!(!output.contains("virtio device"), "{machine:?} {memory_mib} MiB: {output}");
            }
        }
    }
}

fn faults(world: World, folder: &Folder, options: &[&str]) -> Option<Process> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let (glass, image) = (programs::built("glass")?, programs::image("faults")?);
    let mut command = Command::new(glass);
    command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]).args(options);
    Some(Process::spawn(&mut command, &folder.file("log")).unwrap())
}

/// A VM of 6 GiB hands out nearly all of it, most of it at addresses above 4 GiB on one machine and the rest on the other.
fn all_memory_is_used(world: World) {
    for machine in MACHINES {
        let folder = Folder::new("memory").unwrap();
        let options = [machine, &["--memory", "6G", "--", "large-memory"]].concat();
        let Some(mut process) = faults(world, &folder, &options) else { return };
        let status = process.wait(LIMIT).expect("it ends");
        let output = process.output();
        assert!(status.success(), "{machine:?}: {output}");
        let (mib, last) = output.split_once(" MiB are usable, up to 0x").expect("it prints what it has");
        let mib: u32 = mib.lines().last().and_then(|line| line.parse().ok()).expect("a number");
        let last = u64::from_str_radix(last.lines().next().unwrap_or_default(), 16).expect("an address");
        assert!(mib > 5900 && last > 6 << 30, "{machine:?}: {output}");
    }
}

/// Memory of a VM is new at its first start only. A reset keeps what is in it, so the image zeroes what it allocates then; firmware of QEMU's
/// may have used it before.
fn memory_is_new_once(world: World) {
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    for (machine, states) in [(PCI, ["new", "of unknown contents"]), (QEMU_FIRMWARE, ["of unknown contents"; 2])] {
        let folder = Folder::new("reset").unwrap();
        let port = free_port().unwrap();
        let mut run = Command::new(&glass);
        run.arg("run").arg(&image).args(["--accel", &world.to_string(), "--memory", "32", "--log", "debug"]);
        run.args(["--port", &format!("{port}:8080")]).args(machine);
        // `glass run` ends QEMU at a reset.
        let options = ["-action", "reboot=reset"].map(str::to_owned);
        let mut vm = Qemu::start(&mut run, &[], &options, &folder).unwrap();
        let mut monitor = Qmp::connect(&folder.file("monitor")).unwrap();
        for starts in 1..=2 {
            let begun = Instant::now();
            while vm.process.output().matches("hello listens").count() < starts {
                assert!(begun.elapsed() < LIMIT && vm.process.ended().is_none(), "{}", vm.process.output());
                std::thread::sleep(Duration::from_millis(10));
            }
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            assert!(answer(address, LIMIT).is_some(), "{machine:?}: {}", vm.process.output());
            let output = vm.process.output();
            let found: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once("memory is ")?.1)).collect();
            assert_eq!(found, states[..starts], "{machine:?}: {output}");
            if starts == 1 {
                monitor.execute("system_reset", json!({})).unwrap();
            }
        }
    }
}

/// The machines that have a power button, by the monitor of QEMU.
fn power_button_ends_a_service(world: World) {
    for machine in &MACHINES[1..] {
        let folder = Folder::new("button").unwrap();
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
        if let Some(reason) = world.obstacle() {
            return programs::skip(reason);
        }
        let mut run = Command::new(glass);
        run.arg("run").arg(image).args(["--accel", &world.to_string(), "--memory", "32"]).args(*machine);
        let socket = folder.file("human");
        let options = ["-monitor".to_owned(), format!("unix:{},server=on,wait=off", socket.display())];
        let mut vm = Qemu::start(&mut run, &[], &options, &folder).unwrap();
        let begun = Instant::now();
        while !vm.process.output().contains("hello listens") {
            assert!(begun.elapsed() < LIMIT && vm.process.ended().is_none(), "{}", vm.process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        press(&socket);
        let status = vm.process.wait(LIMIT).expect("a press ends the service");
        // The guest's exit code 16, as QEMU's device for it returns it.
        assert_eq!(status.code(), Some(33), "{machine:?}: {}", vm.process.output());
    }
}

/// Changes of a link in each boot, and their longest distance: together about as long as a boot. A link that changes faster keeps the
/// guest from everything else.
const LINK_CHANGES: u64 = 40;
const LINK_INTERVAL_MAX: Duration = Duration::from_millis(10);

/// The link of the card goes down and up at random moments while the guest sets the card up; each change is an interrupt. The card must
/// receive afterwards.
fn an_interrupt_at_a_random_moment_leaves_no_card_deaf(world: World) {
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let boots = if programs::is_long() { 50 } else { 6 };
    let seed = programs::number("GLASS_SEED", u64::from(std::process::id()));
    say(&format!("interrupts at random moments, {world}: seed {seed}, {boots} boots"));
    let mut random = fastrand::Rng::with_seed(seed);
    for boot in 0..boots {
        // Of q35 nearly all of the start is its firmware's.
        let machine = MACHINES[boot % 2];
        let folder = Folder::new("interrupts").unwrap();
        let port = free_port().unwrap();
        let mut run = Command::new(&glass);
        run.arg("run").arg(&image).args(["--accel", &world.to_string(), "--memory", "32"]).args(machine);
        run.arg("--disk").arg(folder.file("queue.img")).args(["--disk-size", "16M", "--port", &format!("{port}:8080")]);
        let socket = folder.file("qmp");
        let options = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())];
        let mut vm = Qemu::start(&mut run, &["--port", "8080"], &options, &folder).unwrap();
        let mut monitor = Qmp::connect(&socket).unwrap();
        for change in 0..LINK_CHANGES {
            std::thread::sleep(Duration::from_micros(random.u64(..LINK_INTERVAL_MAX.as_micros() as u64)));
            monitor.execute("set_link", json!({ "name": "net", "up": change % 2 == 1 })).unwrap();
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let problem = || format!("boot {boot} of seed {seed} {machine:?}: {}", vm.process.output());
        let end = Instant::now() + LIMIT;
        while answer(address, Duration::from_millis(200)).is_none() {
            assert!(Instant::now() < end, "the card is deaf: {}", problem());
        }
        let item = Content { seed: boot as u64, length_bytes: 300_000 };
        let put = Client::connect(address).unwrap().put("/uploader", item.length_bytes, &mut item.reader());
        assert_eq!(put.unwrap_or_else(|error| panic!("{error}: {}", problem())).status(), 200, "{}", problem());
        // Timers wake the core too, so answers alone do not show that interrupts arrive. A line that is up falls only by an interrupt that
        // arrived; with messages there is no line.
        while machine == MMIO && monitor.is_line_up("virtio-net").unwrap() {
            assert!(Instant::now() < end, "nothing acknowledges the card's interrupt: {}", problem());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(vm.process.ended().is_none());
    }
}

/// The monitor must stay open until the command was read.
fn press(socket: &std::path::Path) {
    use std::io::{Read, Write};
    let mut monitor = std::os::unix::net::UnixStream::connect(socket).unwrap();
    monitor.set_read_timeout(Some(LIMIT)).unwrap();
    monitor.write_all(b"system_powerdown\n").unwrap();
    // The VM ends, and the monitor with it.
    let _ = monitor.read_to_end(&mut Vec::new());
}
