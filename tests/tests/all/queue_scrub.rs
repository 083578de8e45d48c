//! A queue whose disk was made larger and was damaged on the host: it uses all of it, and finds the damage by itself.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_larger_and_damaged_disk within 300;
}

const LIMIT: Duration = Duration::from_secs(480);
const MIB: u64 = 1 << 20;

pub fn a_larger_and_damaged_disk(world: World) {
    let Some(glass) = programs::built("glass") else { return };
    let folder = Folder::new("queue-scrub").unwrap();
    let disk = folder.file("queue.img");
    let small = Options { disk_size: "8M".into(), ..Options::default() };
    let Some(mut queue) = Queue::start(world, &disk, &small).unwrap() else { return };
    let contents =
        [(1, 1_000_000), (2, 3_000_000), (3, 5000)].map(|(seed, length_bytes)| Content { seed, length_bytes });
    for content in contents {
        assert_eq!(queue.put(content).unwrap().status(), 200);
    }
    let large = Content { seed: 4, length_bytes: 9_000_000 };
    assert_eq!(queue.put(large).unwrap().status(), 413, "more than the disk has");
    queue.kill();

    // A byte of the second item, and 24 MiB more.
    let bytes = fs::read(&disk).unwrap();
    let start = &contents[1].bytes()[..4096];
    let at = (0..bytes.len()).step_by(4096).find(|at| bytes[*at..].starts_with(start)).expect("it is on the disk");
    let file = OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&[bytes[at + 2_000_000] ^ 1], at as u64 + 2_000_000).unwrap();
    file.set_len(32 * MIB).unwrap();

    let service = vec!["--grow", "--scrub=1"];
    let grown = Options { disk_size: "32M".into(), service, ..Options::default() };
    let queue = Queue::start(world, &disk, &grown).unwrap().unwrap();
    assert_eq!(queue.put(large).unwrap().status(), 200);
    let end = Instant::now() + LIMIT;
    let metrics = loop {
        let metrics = queue.connect().unwrap().request("GET", "/metrics").unwrap().text();
        if metrics.contains("\nglass_queue_scrub_passes_total 1\n") {
            break metrics;
        }
        assert!(Instant::now() < end, "{}: {metrics}", queue.output());
        std::thread::sleep(Duration::from_millis(200));
    };
    for line in ["glass_queue_items_damaged 1", "glass_queue_damage_found_total 1", "glass_queue_ready 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let output = queue.output();
    assert!(output.contains("upload-queue: the queue has grown by 25165824 bytes"), "{output}");
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("scrub: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains("upload-queue: scrub: item 2 is damaged: its checksum"), "{output}");
    queue.take(contents[0]).unwrap();
    assert!(queue.get(contents[1]).is_err(), "a damaged item was delivered whole");
    queue.delete("*").unwrap();
    queue.take(contents[2]).unwrap();
    queue.take(large).unwrap();
    drop(queue);
    let output = Command::new(glass).args(["queue", "fsck"]).arg(&disk).output().unwrap();
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && found.contains("0 of at most"), "{found}");
}
