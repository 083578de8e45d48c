//! Files of a FAT file system on a disk.

use crate::site::{Site, content};
use core::time::Duration;
use glass_platform_sim::{DiskConfig, NodeConfig, SimBlock, World};
use glasshouse::fat::Fat;
use glasshouse::{Buf, File, Files, Open, Platform};

const LIMIT: Duration = Duration::from_secs(240);

/// A disk with some files.
fn disk() -> SimBlock {
    let disk = SimBlock::new(1, DiskConfig::default());
    let mut world = World::new(1);
    let node = world.node("author", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
    let own = node.clone();
    let write = async move {
        let files = Fat::format(own.block(0).unwrap(), own).await.unwrap();
        files.create_dir("docs").await.unwrap();
        for (path, bytes) in [
            ("index.html", b"<h1>home</h1>".to_vec()),
            ("docs/a large file.bin", content(1, 300_000)),
            ("docs/small.txt", content(2, 1000)),
        ] {
            let file = files.open(path, Open::CreateNew).await.unwrap();
            file.write(0, Buf::copy_of(&bytes).unwrap()).await.0.unwrap();
        }
        files.sync().await.unwrap();
    };
    world.complete(&node, LIMIT, write).unwrap();
    disk.restart(2)
}

#[test]
fn files_on_a_disk_are_served_like_others() {
    let mut site = Site::on_disk(1, disk(), &["--list"]);
    assert_eq!(site.get("/").body, b"<h1>home</h1>");
    let large = site.get("/docs/a%20large%20file.bin");
    assert!(large.status == 200 && large.body == content(1, 300_000));
    let part = site.request("GET", "/docs/a%20large%20file.bin", "Range: bytes=100-70000\r\n");
    assert!(part.status == 206 && part.body == content(1, 300_000)[100..=70_000]);
    let tag = large.field("ETag").expect("the files are old").to_owned();
    let fields = format!("If-None-Match: {tag}\r\n");
    assert_eq!(site.request("GET", "/docs/a%20large%20file.bin", &fields).status, 304);
    let listing = String::from_utf8(site.get("/docs/").body).unwrap();
    assert!(listing.contains("a large file.bin") && listing.contains("small.txt"), "{listing}");
    for (target, status) in [("/docs", 301), ("/docs/missing", 404), ("/docs/small.txt/x", 404), ("/../secret", 400)] {
        assert_eq!(site.get(target).status, status, "{target}");
    }
}

#[test]
fn a_cached_file_on_a_disk_costs_no_request_to_it() {
    let disk = disk();
    let mut site = Site::on_disk(1, disk.clone(), &["--cache", "1M"]);
    assert!(site.get("/docs/small.txt").body == content(2, 1000));
    let reads = disk.counters().reads;
    for _ in 0..3 {
        assert!(site.get("/docs/small.txt").body == content(2, 1000));
    }
    assert_eq!(disk.counters().reads, reads);
}

#[test]
fn a_disk_without_files_is_refused_in_one_sentence() {
    for (disks, text) in [
        (vec![], "there is no disk: give one with --disk FILE before the --"),
        (
            vec![SimBlock::new(1, DiskConfig::default())],
            "the files on the disk cannot be served: the disk has no FAT file system: make one with mkfs.fat on the whole disk, without partitions",
        ),
    ] {
        let mut world = World::new(1);
        let node = world.node("server", NodeConfig { disks, args: vec!["--disk".to_owned()], ..NodeConfig::default() });
        let own = node.clone();
        let ended = world.complete(&node, LIMIT, async move { web_server::serve(own).await.unwrap_err().to_string() });
        assert_eq!(ended.unwrap(), text);
    }
}
