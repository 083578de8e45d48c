//! The host's disk is full: uploads are refused, no accepted item is lost, and the queue continues by itself when
//! there is space again.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World, command};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_full_host_disk_is_an_answer_and_no_end within 180;
}

/// The small file system at first, and then.
const SMALL: &str = "4M";
const LARGE: &str = "64M";
const ITEM_BYTES: u64 = 256 << 10;

/// A file system in memory, unmounted with its owner.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` after printing why there is none.
    fn mount(folder: &Path) -> Option<Tmpfs> {
        if mount(&[&format!("size={SMALL}")], folder) {
            return Some(Tmpfs(folder.to_owned()));
        }
        programs::skip("only root can mount a small file system, and not in every container");
        None
    }

    fn grow(&self) {
        assert!(mount(&["remount", &format!("size={LARGE}")], &self.0));
    }
}

fn mount(options: &[&str], folder: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &options.join(","), "tmpfs"]).arg(folder);
    command.output().is_ok_and(|output| output.status.success())
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: the log of a queue that is just ending may still be open.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn item(seed: u64) -> Content {
    Content { seed, length_bytes: ITEM_BYTES }
}

pub fn a_full_host_disk_is_an_answer_and_no_end(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("full").unwrap();
    let Some(tmpfs) = Tmpfs::mount(folder.path()) else { return };
    // The image is larger than its file system.
    let options = Options { disk_size: "32M".into(), ..Options::default() };
    let Some(mut queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    let mut accepted = Vec::new();
    let refused = loop {
        let seed = accepted.len() as u64;
        let response = queue.put(item(seed)).expect("the queue answers");
        match response.status() {
            200 => accepted.push(seed),
            _ => break response,
        }
        assert!(accepted.len() < 100, "a file system of {SMALL} takes everything");
    };
    assert!([500, 507].contains(&refused.status()), "{}: {}", refused.status(), refused.text());
    assert_eq!(queue.connect().unwrap().request("GET", "/healthz").unwrap().status(), 200);
    assert!(queue.is_running(), "{}", queue.output());
    tmpfs.grow();
    for seed in 1000..1010 {
        let response = queue.put(item(seed)).unwrap();
        assert_eq!(response.status(), 200, "there is space again, and: {}", response.text());
        accepted.push(seed);
    }
    queue.kill();
    let queue = Queue::start(world, &folder.file("queue.img"), &options).unwrap().expect("it started before");
    for seed in accepted {
        queue.take(item(seed)).unwrap();
    }
    let empty = queue.connect().unwrap().request("GET", "/downloader?wait=0").unwrap();
    assert_eq!(empty.status(), 204, "an item that was refused is in the queue");
}

/// A QEMU that stops at an error of the disk, as it does by default, in the place of the one that `glass run` starts.
fn stopping_qemu(folder: &Folder) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let qemu = std::env::split_paths(&path).map(|bin| bin.join("qemu-system-x86_64")).find(|file| file.is_file());
    let qemu = qemu.expect("QEMU is on the path");
    let bin = folder.file("bin");
    std::fs::create_dir(&bin).unwrap();
    let text = format!("#!/bin/bash\nexec {} \"${{@//werror=report/werror=stop}}\"\n", qemu.display());
    let script = folder.write("bin/qemu-system-x86_64", text.as_bytes()).unwrap();
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path))).unwrap()
}

#[test]
fn a_vm_that_qemu_has_stopped_is_reported_in_one_sentence() {
    within(Duration::from_secs(600), || {
        if let Some(reason) = World::Tcg.obstacle() {
            return programs::skip(reason);
        }
        let (folder, disks) = (Folder::new("stopped").unwrap(), Folder::new("small").unwrap());
        let Some(_tmpfs) = Tmpfs::mount(disks.path()) else { return };
        let port = free_port().unwrap();
        let options = Options { disk_size: "32M".into(), ..Options::default() };
        let Some(mut command) = command(World::Tcg, &disks.file("queue.img"), port, &options) else { return };
        let mut process = Process::spawn(command.env("PATH", stopping_qemu(&folder)), &folder.file("log")).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut seed = 0;
        let begun = Instant::now();
        while !process.output().contains("QEMU has stopped the VM (io-error)") {
            assert!(process.ended().is_none() && begun.elapsed() < Duration::from_secs(100), "{}", process.output());
            // It does not answer before it runs, nor after it was stopped.
            let client = Client::connect_within(address, Duration::from_secs(2));
            let _ = client.and_then(|mut client| client.put("/uploader", ITEM_BYTES, &mut item(seed).reader()));
            seed += 1;
        }
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(process.output().matches("QEMU has stopped").count(), 1, "{}", process.output());
    });
}
