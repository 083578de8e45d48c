//! The interface of the upload queue on every platform: uploads can be downloaded in order, and each
//! wrong request has its own answer.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::process::Command;
use std::time::Duration;

glass_tests::in_every_world! {
    items_come_out_whole_and_in_order within 180;
    a_foreign_client_uploads_and_downloads within 180;
    each_wrong_request_has_its_answer within 180;
    digests_are_verified_and_a_part_is_sent within 180;
    a_download_waits_for_an_upload within 180;
    items_survive_a_restart within 240;
    a_full_disk_is_told_and_drains within 180;
}

fn start(world: World, folder: &Folder) -> Option<Queue> {
    Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap()
}

pub fn items_come_out_whole_and_in_order(world: World) {
    let folder = Folder::new("order").unwrap();
    let Some(queue) = start(world, &folder) else { return };
    let sizes = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65_536, 1_000_003, 8 << 20];
    let items: Vec<Content> =
        sizes.iter().zip(1..).map(|(&length_bytes, seed)| Content { seed, length_bytes }).collect();
    for item in &items {
        let response = queue.put(*item).unwrap();
        assert_eq!(response.status(), 200, "PUT of {} bytes: {}", item.length_bytes, response.text());
    }
    for item in &items {
        queue.get(*item).unwrap();
        queue.take(*item).expect("until it is deleted, the same item comes again");
    }
}

pub fn a_foreign_client_uploads_and_downloads(world: World) {
    if !programs::has_curl() {
        return programs::skip("curl is not installed");
    }
    let folder = Folder::new("curl").unwrap();
    let Some(queue) = start(world, &folder) else { return };
    let content = Content { seed: 11, length_bytes: 5_000_001 };
    std::fs::write(folder.file("sent"), content.bytes()).unwrap();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command.current_dir(folder.path()).args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
        let output = command.args(arguments).arg(format!("http://{}{path}", queue.address)).output().unwrap();
        assert!(output.status.success(), "curl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    curl(&["--upload-file", "sent"], "/uploader");
    // Each run of curl is a new connection: the request names the item by its tag.
    let head = curl(&["--output", "received", "--dump-header", "-"], "/downloader");
    let head = String::from_utf8(head).unwrap();
    let etag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("an item has a tag").trim();
    curl(&["--request", "DELETE", "--header", &format!("If-Match: {etag}")], "/downloader");
    assert!(std::fs::read(folder.file("received")).unwrap() == content.bytes(), "the file came back changed");
    // A body of unknown length.
    std::fs::copy(folder.file("sent"), folder.file("pipe")).unwrap();
    let mut unknown = Command::new("sh");
    let line =
        format!("cat pipe | curl --silent --show-error --fail --upload-file - http://{}/uploader", queue.address);
    let output = unknown.current_dir(folder.path()).args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    queue.take(content).unwrap();
    // A connection that received an item may be a proxy's: without a tag nothing is removed.
    curl(&["--upload-file", "sent"], "/uploader");
    let mut client = queue.connect().unwrap();
    let item = client.request("GET", "/downloader").unwrap();
    let refused = client.request("DELETE", "/downloader").unwrap();
    assert_eq!((refused.status(), refused.etag()), (428, item.etag()), "{}", refused.text());
    // A part of a file is no item.
    let mut command = Command::new("curl");
    let arguments =
        ["--silent", "--continue-at", "5", "--upload-file", "sent", "--output", "-", "--write-out", "%{http_code}"];
    let url = format!("http://{}/uploader", queue.address);
    let output = command.current_dir(folder.path()).args(arguments).arg(url).output().unwrap();
    assert!(output.stdout.ends_with(b"400"), "{}", String::from_utf8_lossy(&output.stdout));
    queue.take(content).unwrap();
    let empty = queue.connect().unwrap().request("GET", "/downloader?wait=0").unwrap();
    assert_eq!(empty.status(), 204);
}

/// The SHA-256 and the SHA-512 of `abc`, as FIPS 180-4 has them.
const SHA_256: &str = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
const SHA_512: &str =
    "sha-512=:3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==:";

pub fn digests_are_verified_and_a_part_is_sent(world: World) {
    let folder = Folder::new("digests").unwrap();
    let Some(queue) = start(world, &folder) else { return };
    let ask = |head: &str, body: &str| {
        let mut client = queue.connect().unwrap();
        client.send(format!("{head}Host: x\r\n\r\n{body}").as_bytes()).unwrap();
        client.response("GET").unwrap()
    };
    let put = |digest: &str, body: &str| {
        let head = format!("PUT /uploader HTTP/1.1\r\nContent-Length: {}\r\nContent-Digest: {digest}\r\n", body.len());
        ask(&head, body)
    };
    for digest in [SHA_256, SHA_512, &format!("{SHA_256}, {SHA_512}")] {
        let refused = put(digest, "abd");
        assert_eq!(refused.status(), 400, "{}", refused.text());
        assert_eq!(refused.head.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(ask("GET /downloader?wait=0 HTTP/1.1\r\n", "").status(), 204, "what was refused is not there");
    assert_eq!(put(&format!("{SHA_256}, {SHA_512}"), "abc").status(), 200);
    let whole =
        ask("GET /downloader HTTP/1.1\r\nWant-Repr-Digest: sha-512=1\r\nWant-Content-Digest: sha-256=1\r\n", "");
    let digests = ["content-digest", "repr-digest"].map(|name| whole.head.header(name));
    assert_eq!((whole.status(), digests, &*whole.text()), (200, [Some(SHA_256), Some(SHA_512)], "abc"));
    assert!(whole.head.header("date").is_some_and(|date| date.ends_with(" GMT")), "{:?}", whole.head);
    let range = format!("GET /downloader HTTP/1.1\r\nRange: bytes=1-\r\nIf-Range: {}\r\n", whole.etag());
    let part = ask(&range, "");
    assert_eq!((part.status(), part.head.header("content-range"), &*part.text()), (206, Some("bytes 1-2/3"), "bc"));
}

pub fn each_wrong_request_has_its_answer(world: World) {
    let folder = Folder::new("statuses").unwrap();
    let Some(queue) = start(world, &folder) else { return };
    let beyond_the_disk = format!("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1u64 << 40);
    // The request, the valid statuses, and the required content of the header Allow.
    let cases: &[(&str, &[u16], &[&str])] = &[
        ("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", &[404], &[]),
        ("GET /uploader/ HTTP/1.1\r\nHost: x\r\n\r\n", &[404], &[]),
        ("POST /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", &[405], &["PUT"]),
        ("DELETE /uploader HTTP/1.1\r\nHost: x\r\n\r\n", &[405], &["PUT"]),
        ("PUT /downloader HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", &[405], &["GET", "DELETE"]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\n\r\n", &[411], &[]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", &[411, 501], &[]),
        (&beyond_the_disk, &[413], &[]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", &[400], &[]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n", &[400], &[]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", &[400, 413], &[]),
        ("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", &[400], &[]),
        ("GET /downloader\r\n\r\n", &[400, 505], &[]),
        ("nonsense\r\n\r\n", &[400], &[]),
    ];
    for (request, statuses, allow) in cases {
        let mut client = queue.connect().unwrap();
        client.send(request.as_bytes()).unwrap();
        let response = client.response("GET").unwrap_or_else(|error| panic!("{request:?}: {error}"));
        assert!(statuses.contains(&response.status()), "{request:?} was answered {}", response.status());
        assert!(!response.body.is_empty(), "{request:?} was answered without a reason");
        let allowed = response.head.header("allow").unwrap_or_default();
        for method in *allow {
            assert!(allowed.split(',').any(|name| name.trim() == *method), "{request:?}: Allow is {allowed:?}");
        }
    }
    // A body that ends early is the client's mistake, and nothing of it is stored.
    let mut client = queue.connect().unwrap();
    client.send(b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.response("PUT").unwrap().status(), 400);
    let item = Content { seed: 5, length_bytes: 100 };
    assert_eq!(queue.put(item).unwrap().status(), 200);
    queue.get(item).unwrap();
}

pub fn a_download_waits_for_an_upload(world: World) {
    let folder = Folder::new("poll").unwrap();
    let Some(queue) = start(world, &folder) else { return };
    let item = Content { seed: 3, length_bytes: 70_000 };
    // This client requests an item first and disconnects: the item must not be lost.
    let mut gone = queue.connect().unwrap();
    gone.send(b"GET /downloader HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    drop(gone);
    let address = queue.address;
    let waiting = std::thread::spawn(move || {
        let mut checker = item.checker();
        let response = Client::connect(address).unwrap().get_into("/downloader", &mut checker).unwrap();
        (response.status(), checker.verdict())
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(!waiting.is_finished(), "the download did not wait");
    assert_eq!(queue.put(item).unwrap().status(), 200);
    assert_eq!(waiting.join().unwrap(), (200, Ok(())));
    queue.take(item).unwrap();
}

pub fn items_survive_a_restart(world: World) {
    let folder = Folder::new("restart").unwrap();
    let Some(mut queue) = start(world, &folder) else { return };
    let items: Vec<Content> = (1..=5).map(|seed| Content { seed, length_bytes: seed * 33_333 }).collect();
    for item in &items {
        assert_eq!(queue.put(*item).unwrap().status(), 200);
    }
    queue.take(items[0]).unwrap();
    queue.kill();
    let Some(queue) = start(world, &folder) else { panic!("it started a moment ago") };
    for item in &items[1..] {
        queue.take(*item).unwrap();
    }
}

pub fn a_full_disk_is_told_and_drains(world: World) {
    let folder = Folder::new("full").unwrap();
    let options = Options { disk_size: "16M".into(), ..Options::default() };
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    let item = |seed| Content { seed, length_bytes: 1 << 20 };
    let mut stored = 0;
    let refusal = loop {
        let response = queue.put(item(stored)).unwrap();
        if response.status() != 200 {
            break response;
        }
        stored += 1;
        assert!(stored < 20, "20 MiB fit on a disk of 16");
    };
    assert_eq!(refusal.status(), 507, "{}", refusal.text());
    assert!(stored >= 13, "only {stored} items of 1 MiB fit on a disk of 16 MiB");
    for seed in 0..stored {
        queue.take(item(seed)).unwrap();
    }
    assert_eq!(queue.put(item(99)).unwrap().status(), 200, "there is room again");
    queue.get(item(99)).unwrap();
}
