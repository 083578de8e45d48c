//! Bodies far larger than the memory of the VM that they pass through. `cargo xtask test --long`
//! uses 1 GiB, an ordinary run less.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::{Client, Response};
use glass_tests::limit::say;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

glass_tests::in_every_world! {
    a_body_may_be_larger_than_memory within 900;
    many_large_bodies_at_once within 900;
}

const MIB: u64 = 1 << 20;
/// Clients at once.
const CLIENTS: u64 = 8;

fn start(world: World, folder: &Folder, disk_mib: u64) -> Option<Queue> {
    let options = Options { disk_size: format!("{disk_mib}M"), memory_mib: 32, ..Options::default() };
    Queue::start(world, &folder.file("queue.img"), &options).unwrap()
}

pub fn a_body_may_be_larger_than_memory(world: World) {
    let folder = Folder::new("large").unwrap();
    let length_mib = if programs::is_long() { 1024 } else { 64 };
    let Some(queue) = start(world, &folder, length_mib + 64) else { return };
    let content = Content { seed: 1, length_bytes: length_mib * MIB };
    let begin = Instant::now();
    let response = queue.put(content).unwrap();
    assert_eq!(response.status(), 200, "{}", response.text());
    let up = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let etag = queue.get(content).unwrap();
    let down = begin.elapsed().as_secs_f64();
    queue.delete(&etag).unwrap();
    say(&format!("memory {world}: {length_mib} MiB up in {up:.1} s, down in {down:.1} s with 32 MiB of memory"));
}

/// Uploads, again if the connection was reset. QEMU's port forwarding listens with a backlog of one,
/// so of several clients that connect at the same moment the kernel resets some, after a second and
/// without the guest ever seeing them. An item that arrived twice would be found below.
fn put_past_the_forwarder(address: SocketAddr, content: Content) -> Response {
    const ATTEMPTS_MAX: u32 = 8;
    for _ in 0..ATTEMPTS_MAX {
        let mut client = Client::connect(address).unwrap();
        match client.put("/uploader", content.length_bytes, &mut content.reader()) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            result => return result.unwrap(),
        }
    }
    panic!("each of {ATTEMPTS_MAX} connections was reset");
}

fn many_large_bodies_at_once(world: World) {
    many_bodies_at_once(world, if programs::is_long() { 64 } else { 8 });
}

pub fn many_bodies_at_once(world: World, length_mib: u64) {
    let folder = Folder::new("many").unwrap();
    let Some(queue) = start(world, &folder, CLIENTS * length_mib + 64) else { return };
    let address = queue.address;
    let content = move |seed| Content { seed, length_bytes: length_mib * MIB };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            std::thread::spawn(move || {
                let response = put_past_the_forwarder(address, content(seed));
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
        let response = queue.connect().unwrap().get_into("/downloader", &mut body).unwrap();
        let found = left.iter().position(|seed| body == content(*seed).bytes());
        left.remove(found.expect("an item is none of those that were uploaded"));
        queue.delete(response.etag()).unwrap();
    }
    // The queue is empty: another item is the first.
    let last = Content { seed: 99, length_bytes: 9 };
    assert_eq!(queue.put(last).unwrap().status(), 200);
    queue.get(last).unwrap();
}
