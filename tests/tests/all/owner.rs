//! One writer of an image at a time, whichever program opens it, and no accepted item is lost.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::{self, Process};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World, command};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(480);
/// Items in the queue before a second program tries to open it, and as many after.
const ITEMS: u64 = 5;

fn item(seed: u64) -> Content {
    Content { seed, length_bytes: 50_000 }
}

/// The process that has the disk of `queue`.
fn owner(queue: &Queue, world: World) -> u32 {
    let service = queue.service_pid().unwrap();
    let glass = process::parent(service).unwrap();
    let is_disk = |pid: &u32| process::name(*pid).is_some_and(|name| name == "glass");
    match world {
        World::Kvm => process::descendants(glass).into_iter().find(is_disk).unwrap_or(service),
        _ => service,
    }
}

/// Starts a queue in `second` on the disk of `queue`, which must be refused in one sentence that names the process `pid`.
fn assert_refused(pid: u32, second: World, disk: &Path, folder: &Folder) {
    let port = free_port().unwrap();
    let Some(mut command) = command(second, disk, port, &Options::default()) else { return };
    let mut process = Process::spawn(&mut command, &folder.file("second.log")).unwrap();
    let status = process.wait(Duration::from_secs(240));
    let said = process.output();
    assert!(status.is_some_and(|status| !status.success()), "a second {second} runs on the same image: {said}");
    let refusals: Vec<&str> = said.lines().filter(|line| !line.starts_with("glass: booting")).collect();
    let is_named = refusals.len() == 1 && refusals[0].contains(&format!("is in use by process {pid}: stop that"));
    assert!(is_named, "process {pid} is not named in one sentence: {said}");
}

/// Waits for the end of an owner: a VM ends a moment after the `glass` that was killed.
fn wait_for_end(owner: u32) {
    let begun = Instant::now();
    while Path::new("/proc").join(owner.to_string()).exists() {
        assert!(begun.elapsed() < Duration::from_secs(240), "process {owner} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A queue in `first` keeps its image and all items although a queue in `second` is started on it.
fn keeps_its_image(first: World, second: World) {
    if let Some(reason) = first.obstacle().or(second.obstacle()) {
        return programs::skip(reason);
    }
    let folder = Folder::new("owner").unwrap();
    let disk = folder.file("queue.img");
    let Some(mut queue) = Queue::start(first, &disk, &Options::default()).unwrap() else { return };
    for seed in 0..ITEMS {
        assert_eq!(queue.put(item(seed)).unwrap().status(), 200);
    }
    let owner = owner(&queue, first);
    assert_refused(owner, second, &disk, &folder);
    for seed in ITEMS..2 * ITEMS {
        assert_eq!(queue.put(item(seed)).unwrap().status(), 200);
    }
    // The lock dies with its owner, however that ends, and the other program finds everything.
    queue.kill();
    wait_for_end(owner);
    let queue = Queue::start(second, &disk, &Options::default()).unwrap().expect("both platforms are available");
    for seed in 0..2 * ITEMS {
        queue.take(item(seed)).unwrap();
    }
}

#[test]
fn a_process_keeps_its_image_from_a_process() {
    within(LIMIT, || keeps_its_image(World::Process, World::Process));
}

#[test]
fn a_process_keeps_its_image_from_a_vm() {
    within(LIMIT, || keeps_its_image(World::Process, World::Tcg));
}

#[test]
fn a_process_keeps_its_image_from_a_vm_by_kvm() {
    within(LIMIT, || keeps_its_image(World::Process, World::Kvm));
}

#[test]
fn a_vm_by_kvm_keeps_its_image_from_a_process() {
    within(LIMIT, || keeps_its_image(World::Kvm, World::Process));
}

#[test]
fn a_vm_keeps_its_image_from_a_process() {
    within(LIMIT, || keeps_its_image(World::Tcg, World::Process));
}

#[test]
fn a_vm_keeps_its_image_from_a_vm() {
    within(LIMIT, || keeps_its_image(World::Tcg, World::Tcg));
}

/// A block device over a file, removed with its owner.
struct Loop(String);

impl Loop {
    /// `None` after printing why there is none.
    fn new(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            programs::skip("losetup cannot create a block device here: it needs root and the loop driver");
            return None;
        };
        Some(Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

#[test]
fn a_block_device_has_one_writer() {
    within(LIMIT, || {
        let folder = Folder::new("device").unwrap();
        let file = folder.file("file");
        std::fs::File::create(&file).unwrap().set_len(256 << 20).unwrap();
        let Some(device) = Loop::new(&file) else { return };
        // Logs are written beside a disk, and not into /dev.
        let disk = folder.file("queue.img");
        std::os::unix::fs::symlink(&device.0, &disk).unwrap();
        for (first, second) in [
            (World::Process, World::Process),
            (World::Process, World::Tcg),
            (World::Tcg, World::Process),
            (World::Process, World::Kvm),
            (World::Kvm, World::Process),
        ] {
            if let Some(reason) = first.obstacle().or(second.obstacle()) {
                programs::skip(reason);
                continue;
            }
            let Some(queue) = Queue::start(first, &disk, &Options::default()).unwrap() else { return };
            let owner = owner(&queue, first);
            assert_refused(owner, second, &disk, &folder);
            assert_eq!(queue.put(item(1)).unwrap().status(), 200);
            queue.take(item(1)).unwrap();
            drop(queue);
            wait_for_end(owner);
        }
    });
}

/// Checks that the folder of the disk was synced, by the calls that `strace` wrote into `log`.
fn assert_folder_synced(folder: &Folder, log: &Path) {
    let calls = std::fs::read_to_string(log).unwrap();
    let wanted = format!("<{}>) = 0", folder.path().display());
    let is_synced = calls.lines().any(|line| line.contains("fsync(") && line.contains(&wanted));
    assert!(is_synced, "the folder of a new disk is not synced: {calls}");
}

/// A power cut after the first accepted item must not take the name of its image away.
#[test]
fn the_name_of_a_new_image_is_durable() {
    within(LIMIT, || {
        if !Command::new("strace").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return programs::skip("strace is not installed");
        }
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        let Some(service) = programs::built("upload-queue") else { return };
        let folder = Folder::new("durable").unwrap();
        let log = folder.file("calls");
        let traced = |program: &Path| {
            let mut command = Command::new("strace");
            command.args(["-f", "-y", "-e", "trace=fsync", "-o"]).arg(&log).arg("--").arg(program);
            command
        };
        let mut run = traced(&glass);
        run.arg("run").arg(image).args(["--accel", "tcg", "--print-command", "--disk-size", "1M", "--disk"]);
        let mut process = Process::spawn(run.arg(folder.file("vm.img")), &folder.file("log")).unwrap();
        assert!(process.wait(LIMIT).is_some_and(|status| status.success()), "{}", process.output());
        assert_folder_synced(&folder, &log);
        // Its argument is wrong, so that it ends by itself.
        let mut run = traced(&service);
        run.arg("--disk").arg(folder.file("process.img")).args(["--disk-size", "1M", "--", "--no-such-argument"]);
        let mut process = Process::spawn(&mut run, &folder.file("log")).unwrap();
        assert!(process.wait(LIMIT).is_some(), "{}", process.output());
        assert_folder_synced(&folder, &log);
    });
}

/// How QEMU would read the disk, with the QEMU that `path` leads to.
fn aio(glass: &Path, image: &Path, disk: &Path, path: &str) -> String {
    let mut run = Command::new(glass);
    run.arg("run").arg(image).args(["--accel", "tcg", "--print-command", "--disk-size", "1M", "--disk"]).arg(disk);
    let output = run.env("PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.split([',', ' ']).find_map(|word| word.strip_prefix("aio="));
    found.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

#[test]
fn a_disk_is_read_by_io_uring_where_qemu_has_it() {
    within(LIMIT, || {
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        let folder = Folder::new("aio").unwrap();
        let disk = folder.file("disk.img");
        // A QEMU that is a script has no library.
        folder.write("qemu-system-x86_64", b"#!/bin/sh\n").unwrap();
        let path = std::env::var("PATH").unwrap();
        assert_eq!(aio(&glass, &image, &disk, &format!("{}:{path}", folder.path().display())), "threads");
        let is_disabled =
            std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|text| text.trim() != "0");
        let libraries = Command::new("sh").args(["-c", "ldd $(command -v qemu-system-x86_64)"]).output().unwrap();
        if is_disabled || !String::from_utf8_lossy(&libraries.stdout).contains("liburing") {
            return programs::skip("QEMU or this kernel has no io_uring");
        }
        assert_eq!(aio(&glass, &image, &disk, &path), "io_uring");
    });
}
