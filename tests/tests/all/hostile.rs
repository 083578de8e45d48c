//! Requests that are wrong, slow, cut or random: each gets a 4xx or a closed connection, and
//! afterwards the queue works and has as much room as before.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::net::Ipv4Addr;
use std::time::Duration;

glass_tests::in_every_world! {
    malformed_requests_are_refused within 240;
    random_bytes_do_no_harm within 600;
    clients_that_vanish_leave_no_trace within 240;
    slow_clients_do_not_hold_up_others within 240;
    one_client_that_announces_and_stalls_shuts_nobody_out within 240;
}

/// The size of the items that fill the disk.
const ITEM_BYTES: u64 = 1 << 20;

fn start(world: World, folder: &Folder) -> Option<Queue> {
    let options = Options { disk_size: "16M".into(), ..Options::default() };
    Queue::start(world, &folder.file("queue.img"), &options).unwrap()
}

/// How many items fit on the disk of an empty queue, which is empty again afterwards.
fn free_bytes(queue: &Queue) -> u64 {
    let item = |seed| Content { seed, length_bytes: ITEM_BYTES };
    let mut count = 0;
    while queue.put(item(count)).expect("the queue answers").status() == 200 {
        count += 1;
        assert!(count < 100, "a disk of 16 MiB is never full");
    }
    for seed in 0..count {
        queue.take(item(seed)).unwrap();
    }
    count
}

/// Room for an item may be freed a moment after its connection ended: waits for it, with a limit.
fn assert_free_bytes(queue: &mut Queue, before: u64) {
    assert!(queue.is_running(), "the queue ended:\n{}", queue.output());
    let mut after = free_bytes(queue);
    for _ in 0..20 {
        if after == before {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
        after = free_bytes(queue);
    }
    assert_eq!(after, before, "items of 1 MiB that fit afterwards, and before");
    let output = queue.output();
    assert!(!output.contains("panicked"), "the queue panicked:\n{output}");
}

/// Sends `bytes` and the end of the stream; returns the status of the answer, 0 for a closed connection.
fn attack(queue: &Queue, bytes: &[u8]) -> u16 {
    let mut client = queue.connect().expect("the queue accepts connections");
    // The server may close before everything is sent; only its answer counts.
    let _ = client.send(bytes);
    let _ = client.finish_sending();
    match client.head() {
        Ok(head) => head.status,
        Err(error) => {
            let timed_out = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            assert!(!timed_out, "no answer to {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
            0
        }
    }
}

pub fn malformed_requests_are_refused(world: World) {
    let folder = Folder::new("malformed").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let before = free_bytes(&queue);
    let long = "a".repeat(100_000);
    let put = |headers: &str| format!("PUT /uploader HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n");
    let requests = [
        put("Content-Length: -1"),
        put("Content-Length: +5"),
        put("Content-Length: 1_000"),
        put("Content-Length: 0x10"),
        put("Content-Length: 5 5"),
        put("Content-Length:"),
        put("Content-Length: 5, 6"),
        put("Content-Length: 18446744073709551615"),
        put("Content-Length: 18446744073709551616"),
        put("Content-Length: 9223372036854775807"),
        put("Content-Length: 5\r\nContent-Length: 6"),
        put("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        put("Transfer-Encoding: gzip, chunked"),
        put(&format!("X: {long}")),
        put(&"X: y\r\n".repeat(5000)),
        put("No colon here"),
        put(": no name"),
        put("Space : before colon"),
        put(" Folded: line"),
        put("Nul: \0"),
        put("Expect: the-impossible\r\nContent-Length: 5"),
        format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("{long} / HTTP/1.1\r\nHost: x\r\n\r\n"),
        "GET / HTTP/9.9\r\nHost: x\r\n\r\n".into(),
        "GET / HTTP/1.1\nHost: x\n".into(),
        "GET  /  HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        "GET /downloader/../uploader HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        "GET /%00%ff HTTP/1.1\r\nHost: x\r\n\r\n".into(),
        "\r\n\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}".into(),
    ];
    for request in &requests {
        let status = attack(&queue, request.as_bytes());
        let shown = &request[..request.len().min(120)];
        assert!(status == 0 || (400..500).contains(&status) || [501, 505].contains(&status), "{status} for {shown:?}");
    }
    assert_free_bytes(&mut queue, before);
}

pub fn random_bytes_do_no_harm(world: World) {
    let folder = Folder::new("random").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let before = free_bytes(&queue);
    let count = programs::number("GLASS_RANDOM_STRINGS", if programs::is_long() { 10_000 } else { 300 });
    let seed = programs::number("GLASS_SEED", u64::from(std::process::id()));
    say(&format!("random strings {world}: seed {seed}, {count} strings"));
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..count {
        let bytes = random_request(&mut random);
        let status = attack(&queue, &bytes);
        assert!(status < 500 || [501, 505].contains(&status), "{status} for string {number} of seed {seed}");
        // Strings that happen to be valid requests must not fill the queue.
        if status == 200 {
            let removed = queue.connect().and_then(|mut client| client.request_if_match("DELETE", "/downloader", "*"));
            assert!([200, 412].contains(&removed.unwrap().status()));
        }
    }
    drain(&queue);
    assert_free_bytes(&mut queue, before);
}

/// Empties the queue up to an item of our own.
fn drain(queue: &Queue) {
    let last = Content { seed: 0x1a57, length_bytes: 77 };
    assert_eq!(queue.put(last).unwrap().status(), 200);
    for _ in 0..1000 {
        let mut body = Vec::new();
        let response = queue.connect().unwrap().get_into("/downloader", &mut body).unwrap();
        queue.delete(response.etag()).unwrap();
        if body == last.bytes() {
            return;
        }
    }
    panic!("the queue does not become empty");
}

/// Pure noise, or a request with some bytes changed, cut or doubled.
fn random_request(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut noise = vec![0; random.usize(..400)];
    random.fill(&mut noise);
    let templates: [&[u8]; 4] = [
        b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"PUT /uploader HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 70\r\n\r\n",
        b"DELETE /downloader HTTP/1.1\r\nHost: x\r\nIf-Match: *\r\nConnection: close\r\n\r\n",
        b"POST /nothing HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    let Some(template) = templates.get(random.usize(..5)) else { return noise };
    let mut bytes = template.to_vec();
    for _ in 0..=random.u8(..4) {
        let at = random.usize(..bytes.len().max(1));
        match random.u8(..4) {
            0 if !bytes.is_empty() => bytes[at] = random.u8(..),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, noise.iter().copied())),
            _ => drop(bytes.splice(at..at, template.iter().copied())),
        }
    }
    bytes
}

pub fn clients_that_vanish_leave_no_trace(world: World) {
    let folder = Folder::new("vanish").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let before = free_bytes(&queue);
    for round in 0..10u64 {
        // During a head, an upload, a download's wait and a download.
        let partial = Content { seed: round, length_bytes: 300_000 }.bytes();
        let mut uploading = queue.connect().unwrap();
        uploading.send(b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n").unwrap();
        let _ = uploading.send(&partial);
        let mut in_head = queue.connect().unwrap();
        in_head.send(b"PUT /uploader HT").unwrap();
        let mut waiting = queue.connect().unwrap();
        waiting.send(b"GET /downloader HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        drop((uploading, in_head, waiting));

        let item = Content { seed: 100 + round, length_bytes: 3 << 20 };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        let mut downloading = queue.connect().unwrap();
        downloading.send(b"GET /downloader HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(downloading.head().unwrap().status, 200);
        drop(downloading);
        queue.take(item).unwrap();
    }
    assert_free_bytes(&mut queue, before);
}

pub fn slow_clients_do_not_hold_up_others(world: World) {
    let folder = Folder::new("slow").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let before = free_bytes(&queue);
    let mut slow: Vec<Client> = (0..8).map(|_| queue.connect().unwrap()).collect();
    for (number, client) in slow.iter_mut().enumerate() {
        let head: &[u8] = b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
        // Half of them stop inside the head, half at the first byte of the body.
        client.send(if number % 2 == 0 { &head[..30] } else { head }).unwrap();
    }
    for round in 0..5 {
        let item = Content { seed: round, length_bytes: 100_000 };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        queue.take(item).unwrap();
        for client in &mut slow {
            let _ = client.send(b"x");
        }
    }
    // The server, not only the client, ends a head that never ends.
    let client = &mut slow[0];
    client.set_patience(Duration::from_secs(240)).unwrap();
    match client.head() {
        Ok(head) => assert_eq!(head.status, 408),
        Err(error) => assert!(
            !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
            "the server waits for a head forever"
        ),
    }
    drop(slow);
    assert_free_bytes(&mut queue, before);
}

/// From the same address as all others, which is the harder case: the first announces all space, the others stall.
pub fn one_client_that_announces_and_stalls_shuts_nobody_out(world: World) {
    let folder = Folder::new("greedy").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let before = free_bytes(&queue);
    let mut stalled = Vec::new();
    for number in 0..8 {
        let mut client = queue.connect().unwrap();
        let bytes = if number == 0 { before * ITEM_BYTES } else { 1000 };
        client
            .send(format!("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: {bytes}\r\n\r\nsome").as_bytes())
            .unwrap();
        stalled.push(client);
    }
    for seed in 0..before / 2 {
        let response = queue.put(Content { seed, length_bytes: ITEM_BYTES }).unwrap();
        assert_eq!(response.status(), 200, "item {seed}: {}", response.text());
    }
    for seed in 0..before / 2 {
        queue.take(Content { seed, length_bytes: ITEM_BYTES }).unwrap();
    }
    drop(stalled);
    assert_free_bytes(&mut queue, before);
}

/// One address takes all places that it can get and stalls; another one gets places immediately, for uploads and downloads.
#[test]
fn one_address_that_stalls_leaves_places_for_another() {
    within(Duration::from_secs(600), || {
        let folder = Folder::new("address").unwrap();
        let Some(mut queue) = start(World::Process, &folder) else { return };
        let item = |seed| Content { seed, length_bytes: ITEM_BYTES };
        assert_eq!(queue.put(item(0)).unwrap().status(), 200);
        let mut stalled = Vec::new();
        for number in 0..40 {
            let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), queue.address).unwrap();
            let request: &[u8] = if number % 2 == 0 {
                b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome"
            } else {
                b"GET /downloader HTTP/1.1\r\nHost: x\r\n\r\n"
            };
            client.send(request).unwrap();
            stalled.push(client);
        }
        for seed in 1..6 {
            // Behind all the others that wait for a place it would be refused.
            let response = queue.put(item(seed)).unwrap();
            assert_eq!(response.status(), 200, "item {seed}: {}", response.text());
            queue.take(item(seed - 1)).unwrap();
        }
        assert!(queue.is_running(), "{}", queue.output());
    });
}
