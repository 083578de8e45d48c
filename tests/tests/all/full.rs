//! The host's disk is full: uploads are refused, nothing that was accepted is lost, and the queue goes on by itself when
//! there is space again.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::path::{Path, PathBuf};
use std::process::Command;

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
    /// `None` after saying why there is none.
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

fn a_full_host_disk_is_an_answer_and_no_end(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("full").unwrap();
    let Some(tmpfs) = Tmpfs::mount(folder.path()) else { return };
    // The image is larger than the file system that it lies on.
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
        queue.get(item(seed)).unwrap();
        queue.delete().unwrap();
    }
    let empty = queue.connect().unwrap().request("GET", "/downloader?wait=0").unwrap();
    assert_eq!(empty.status(), 204, "an item that was refused is in the queue");
}
