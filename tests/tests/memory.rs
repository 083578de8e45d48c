//! Bodies far larger than the memory of the VM that they pass through. `cargo xtask test --long`
//! takes 1 GiB, an ordinary run less.
#![forbid(unsafe_code)]

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::say;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::time::Instant;

glass_tests::in_every_world! {
    a_body_may_be_larger_than_memory within 900;
    many_large_bodies_at_once within 900;
}

const MIB: u64 = 1 << 20;
/// Clients at once.
const CLIENTS: u64 = 8;

fn start(world: World, folder: &Folder, disk_mib: u64) -> Option<Queue> {
    let options = Options { disk_size: format!("{disk_mib}M"), memory_mib: 32 };
    Queue::start(world, &folder.file("queue.img"), &options).unwrap()
}

fn a_body_may_be_larger_than_memory(world: World) {
    let folder = Folder::new("large").unwrap();
    let length_mib = if programs::is_long() { 1024 } else { 64 };
    let Some(queue) = start(world, &folder, length_mib + 64) else { return };
    let content = Content { seed: 1, length_bytes: length_mib * MIB };
    let begin = Instant::now();
    let response = queue.put(content).unwrap();
    assert_eq!(response.status(), 200, "{}", response.text());
    let up = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    queue.get(content).unwrap();
    let down = begin.elapsed().as_secs_f64();
    queue.delete().unwrap();
    say(&format!("memory {world}: {length_mib} MiB up in {up:.1} s, down in {down:.1} s with 32 MiB of memory"));
}

fn many_large_bodies_at_once(world: World) {
    let folder = Folder::new("many").unwrap();
    let length_mib = if programs::is_long() { 64 } else { 8 };
    let Some(queue) = start(world, &folder, CLIENTS * length_mib + 64) else { return };
    let address = queue.address;
    let content = move |seed| Content { seed, length_bytes: length_mib * MIB };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut client = Client::connect(address).unwrap();
                let response = client.put("/uploader", length_mib * MIB, &mut content(seed).reader()).unwrap();
                assert_eq!(response.status(), 200, "{}", response.text());
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let mut left: Vec<u64> = (0..CLIENTS).collect();
    while !left.is_empty() {
        let mut body = Vec::new();
        queue.connect().unwrap().get_into("/downloader", &mut body).unwrap();
        let found = left.iter().position(|seed| body == content(*seed).bytes());
        left.remove(found.expect("an item is none of those that were uploaded"));
        queue.delete().unwrap();
    }
}
