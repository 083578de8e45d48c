//! `bench-disk` measures a disk on each platform, or prints why it cannot; and the process that serves the disk of a VM under KVM.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::{Process, parent, signal_descendants};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World, answer, command};
use rustix::process::Signal;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_disk_is_measured within 120;
    a_disk_past_the_page_cache_is_measured within 120;
    removed_items_leave_the_file within 120;
}

const LIMIT: Duration = Duration::from_secs(480);

fn run(world: World, disk: &Path, options: &[&str], arguments: &[&str]) -> Option<Output> {
    let mut command = match world {
        World::Process => Command::new(programs::built("bench-disk")?),
        World::Kvm | World::Tcg => {
            let mut command = Command::new(programs::built("glass")?);
            command.arg("run").arg(programs::image("bench-disk")?);
            command.args(["--accel", &world.to_string(), "--net", "none"]);
            command
        }
    };
    command.arg("--disk").arg(disk).args(["--disk-size", "1M"]).args(options).arg("--").args(arguments);
    Some(command.output().unwrap())
}

fn a_disk_is_measured(world: World) {
    is_measured(world, &[]);
}

fn a_disk_past_the_page_cache_is_measured(world: World) {
    match world {
        World::Process => programs::skip("a process uses the page cache"),
        World::Kvm | World::Tcg => is_measured(world, &["--disk-direct"]),
    }
}

fn is_measured(world: World, options: &[&str]) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("disk").unwrap();
    let disk = folder.file("disk.img");
    let arguments = ["--bytes", "512,64K", "--in-flight", "1,3", "--milliseconds", "20"];
    let Some(output) = run(world, &disk, options, &arguments) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let measured = |line: &str| line.find("{\"direction\"").map(|at| serde_json::from_str(line[at..].trim()).unwrap());
    let cells: Vec<Value> = text.lines().filter_map(measured).collect();
    let described: Vec<String> = cells
        .iter()
        .map(|cell| format!("{} {} {}", cell["direction"].as_str().unwrap(), cell["request_bytes"], cell["in_flight"]))
        .collect();
    let expected = ["read 512 1", "read 512 3", "read 65536 1", "read 65536 3", "write 512 1", "write 512 3"];
    assert_eq!(cells.len(), 8, "{text}");
    assert_eq!(described[..6], expected, "{text}");
    assert!(cells.iter().all(|cell| cell["requests"].as_u64() > Some(0)), "{text}");
    // The last writes cover the whole disk, or as much of it as there was time for.
    let written = std::fs::read(&disk).unwrap();
    assert!(written[..65536].iter().any(|byte| *byte != 0));
    let refused = run(world, &disk, options, &["--bytes", "100"]).unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(!refused.status.success() && text.contains("not whole sectors of 512 bytes"), "{text}");
}

/// Kills the process that serves the disk. Returns false after printing why there is none.
fn kill_disk(queue: &Queue) -> bool {
    signal_disk(queue, Signal::KILL)
}

/// The same with another signal.
fn signal_disk(queue: &Queue, signal: Signal) -> bool {
    let glass = parent(queue.service_pid().unwrap()).unwrap();
    let is_signalled = signal_descendants(glass, "glass", signal) > 0;
    if !is_signalled {
        programs::skip("this host has no io_uring: QEMU serves the disk");
    }
    is_signalled
}

fn wait_for_output(queue: &Queue, words: &str) {
    let begin = Instant::now();
    while !queue.output().contains(words) {
        assert!(begin.elapsed() < LIMIT / 2, "no {words:?}: {}", queue.output());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A host whose disk hangs: uploads are answered, and the disk is used again once it answers.
#[test]
fn a_disk_that_hangs_is_an_answer_and_no_wait_without_end_by_kvm() {
    within(LIMIT, || {
        let folder = Folder::new("disk-hangs").unwrap();
        let options = Options { vm: vec!["--vmm", "qemu", "--disk-timeout", "1"], ..Options::default() };
        let Some(queue) = Queue::start(World::Kvm, &folder.file("queue.img"), &options).unwrap() else { return };
        let item = |seed| Content { seed, length_bytes: 100_000 };
        assert_eq!(queue.put(item(1)).unwrap().status(), 200);
        if !signal_disk(&queue, Signal::STOP) {
            return;
        }
        // The first waits for the disk, the others do not.
        for _ in 0..3 {
            let refused = queue.put(item(2)).unwrap();
            assert!(refused.status() >= 500 && refused.text().contains("has not answered a request for 1 s"));
        }
        wait_for_output(&queue, "disk 0 has not answered a request for 1 s");
        assert!(signal_disk(&queue, Signal::CONT));
        wait_for_output(&queue, "disk 0 answers again");
        assert_eq!(queue.put(item(3)).unwrap().status(), 200);
        queue.take(item(1)).unwrap();
        queue.take(item(3)).unwrap();
    });
}

/// A VM without its disk is no use.
#[test]
fn a_vm_ends_with_its_disk_by_kvm() {
    within(LIMIT, || {
        let folder = Folder::new("disk-lost").unwrap();
        let options = Options { vm: vec!["--vmm", "qemu"], ..Options::default() };
        let Some(mut queue) = Queue::start(World::Kvm, &folder.file("queue.img"), &options).unwrap() else { return };
        if !kill_disk(&queue) {
            return;
        }
        let begin = Instant::now();
        while queue.is_running() {
            assert!(begin.elapsed() < LIMIT / 2, "{}", queue.output());
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = queue.output();
        assert!(
            text.contains("glass disk has ended") && text.contains("the VM is ended, because it has no disk"),
            "{text}"
        );
    });
}

/// With `--restart` the VM and the process of its disk start again, and no accepted item is lost.
#[test]
fn a_disk_that_ends_starts_again_with_the_vm_by_kvm() {
    within(LIMIT, || {
        let folder = Folder::new("disk-end").unwrap();
        let options = Options { vm: vec!["--vmm", "qemu", "--restart"], ..Options::default() };
        let Some(queue) = Queue::start(World::Kvm, &folder.file("queue.img"), &options).unwrap() else { return };
        let item = |seed| Content { seed, length_bytes: 100_000 };
        for seed in 0..5 {
            assert_eq!(queue.put(item(seed)).unwrap().status(), 200);
        }
        let vm = queue.service_pid().unwrap();
        if !kill_disk(&queue) {
            return;
        }
        // It waits for the disk, is ended, and starts again.
        let begin = Instant::now();
        while queue.service_pid().map_or(true, |pid| pid == vm)
            || answer(queue.address, Duration::from_secs(2)).is_none()
        {
            assert!(begin.elapsed() < LIMIT / 2, "{}", queue.output());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(queue.output().contains("glass disk has ended"), "{}", queue.output());
        for seed in 0..5 {
            queue.take(item(seed)).unwrap();
        }
    });
}

/// With `--discard` the space of removed items is free on the host again.
fn removed_items_leave_the_file(world: World) {
    let folder = Folder::new("discard").unwrap();
    let disk = folder.file("queue.img");
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let port = free_port().unwrap();
    let options = Options { disk_size: "64M".into(), ..Options::default() };
    let Some(mut command) = command(world, &disk, port, &options) else { return };
    let mut process = Process::spawn(command.arg("--discard"), &folder.file("log")).unwrap();
    process.wait_for_text("listening on", LIMIT, || ());
    let used_bytes = || std::fs::metadata(&disk).unwrap().blocks() * 512;
    let item = Content { seed: 1, length_bytes: 10 << 20 };
    let mut client = Client::connect_within((Ipv4Addr::LOCALHOST, port).into(), LIMIT).unwrap();
    assert_eq!(client.put("/uploader", item.length_bytes, &mut item.reader()).unwrap().status(), 200);
    let full_bytes = used_bytes();
    assert!(full_bytes >= item.length_bytes, "{full_bytes}");
    let mut client = Client::connect_within((Ipv4Addr::LOCALHOST, port).into(), LIMIT).unwrap();
    assert_eq!(client.request_if_match("DELETE", "/downloader", "*").unwrap().status(), 200);
    let empty_bytes = used_bytes();
    assert!(empty_bytes + item.length_bytes <= full_bytes + (1 << 20), "{full_bytes} bytes, then {empty_bytes}");
}
