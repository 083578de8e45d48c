//! `glass queue`: the disk of an upload queue, from outside.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

mod process {
    use super::*;

    #[test]
    fn a_disk_is_checked_listed_and_exported() {
        glass_tests::limit::within(Duration::from_secs(600), super::checked_listed_and_exported);
    }
}

/// Bytes of a block.
const BLOCK_BYTES: usize = 4096;

fn glass(program: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(program).arg("queue").args(arguments).output().unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    (output, String::from_utf8_lossy(&said).into_owned())
}

fn checked_listed_and_exported() {
    let Some(program) = programs::built("glass") else { return };
    let folder = Folder::new("queue-disk").unwrap();
    let disk = folder.file("queue.img");
    let Some(mut queue) = Queue::start(World::Process, &disk, &Options::default()).unwrap() else { return };
    let contents = [(1, 3_000_000), (2, 0), (3, 5000)].map(|(seed, length_bytes)| Content { seed, length_bytes });
    for content in contents {
        assert_eq!(queue.put(content).unwrap().status(), 200);
    }
    // An upload that can be resumed, of which there is a part, and one that has become an item.
    for (length, body) in [("10", "four"), ("3", "ten")] {
        let head = format!(
            "POST /uploader HTTP/1.1\r\nHost: q\r\nTus-Resumable: 1.0.0\r\nUpload-Length: {length}\r\n\
             Content-Type: application/offset+octet-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = queue.connect().unwrap();
        connection.send(head.as_bytes()).unwrap();
        let response = connection.response("POST").unwrap();
        assert_eq!(response.status(), 201, "{}", response.text());
    }
    let image = disk.display().to_string();
    let pid = queue.service_pid().unwrap();
    for command in [&["fsck", &image][..], &["ls", &image], &["get", &image, "1", "-o", "-"]] {
        let (output, said) = glass(&program, command);
        assert!(!output.status.success() && said.contains(&format!("is in use by process {pid}")), "{said}");
    }
    queue.kill();
    let (output, said) = glass(&program, &["fsck", &image]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("4 of at most 16128 items, 1 uploads in progress"), "{said}");
    assert!(said.ends_with("queue.img: nothing is wrong\n"), "{said}");
    let (output, said) = glass(&program, &["ls", "--json", &image]);
    assert!(output.status.success(), "{said}");
    for (id, bytes) in [(1, 3_000_000), (2, 0), (3, 5000), (4, 3)] {
        assert!(said.contains(&format!("\"bytes\": {bytes},\n      \"id\": {id},")), "{said}");
    }
    let (_, said) = glass(&program, &["ls", &image]);
    assert!(said.contains("           3              5000  "), "{said}");
    assert!(said.ends_with("1 uploads in progress, with 4 bytes\n"), "{said}");

    // One item, into a file and to standard output.
    let item = folder.file("item").display().to_string();
    let (output, said) = glass(&program, &["get", &image, "1", "-o", &item]);
    assert!(output.status.success(), "{said}");
    let (output, _) = glass(&program, &["get", &image, "3", "-o", "-"]);
    for (content, bytes) in [(contents[0], fs::read(&item).unwrap()), (contents[2], output.stdout)] {
        let mut checker = content.checker();
        std::io::Write::write_all(&mut checker, &bytes).unwrap();
        checker.verdict().unwrap();
    }
    let (_, said) = glass(&program, &["get", &image, "9", "-o", &item]);
    assert!(said.contains("there is no item 9 in"), "{said}");
    let (_, said) = glass(&program, &["get", &image, "3", "-o", &image]);
    assert!(said.contains("is the disk itself"), "{said}");

    // All of them, of which one is damaged.
    let mut bytes = fs::read(&disk).unwrap();
    let start = &contents[2].bytes()[..BLOCK_BYTES];
    let item_3 = (0..bytes.len()).step_by(BLOCK_BYTES).find(|at| bytes[*at..].starts_with(start));
    bytes[item_3.expect("the item is on the disk") + 100] ^= 1;
    fs::write(&disk, &bytes).unwrap();
    let (output, said) = glass(&program, &["fsck", &image]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("item 3: its data is damaged") && said.ends_with("queue.img: 1 fault\n"), "{said}");
    let all = folder.file("all");
    let (output, said) = glass(&program, &["export", &image, &all.display().to_string()]);
    assert!(output.status.code() == Some(1) && said.contains("3 of 4 items are in"), "{said}");
    let mut names: Vec<_> = fs::read_dir(&all).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["item-0000000001", "item-0000000002", "item-0000000004", "manifest.json"]);
    assert_eq!(fs::read(all.join("item-0000000004")).unwrap(), b"ten");
    let manifest = fs::read_to_string(all.join("manifest.json")).unwrap();
    // SHA-256 of nothing, and of "ten".
    assert!(manifest.contains("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "{manifest}");
    assert!(manifest.contains("e4432baa90819aaef51d2a7f8e148bf7e679610f3173752fabb4dcb2d0f418d3"), "{manifest}");
    assert!(manifest.contains("\"fault\": \"its data is damaged"), "{manifest}");
    let (_, said) = glass(&program, &["export", &image, &all.display().to_string()]);
    assert!(said.contains("is not empty: name another one"), "{said}");
    let (output, said) = glass(&program, &["get", &image, "3", "--damaged", "-o", &item]);
    assert!(!output.status.success() && fs::metadata(&item).unwrap().len() == 5000, "{said}");

    // A disk that was cut, and what is none.
    let short = folder.file("short.img");
    fs::write(&short, &bytes[..bytes.len() / 2]).unwrap();
    let (output, said) = glass(&program, &["fsck", &short.display().to_string()]);
    assert!(output.status.code() == Some(1) && said.contains("bytes of its disk, and this one has"), "{said}");
    let (output, said) = glass(&program, &["fsck", "/dev/zero"]);
    assert!(output.status.code() == Some(1) && said.contains("neither a file nor a block device"), "{said}");
}
