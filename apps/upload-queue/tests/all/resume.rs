//! Uploads that are interrupted and continued, over HTTP: tus 1.0 and the IETF's draft, on a simulated machine.

use crate::common::site::{Client, Peer, Reply, Site, content};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, LinkConfig, SimBlock, for_seeds};
use glasshouse::Clock;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
const TUS: &str = "Tus-Resumable: 1.0.0\r\n";
const OFFSET: &str = "Content-Type: application/offset+octet-stream\r\n";
const PARTIAL: &str = "Content-Type: application/partial-upload\r\n";

/// A request with these fields, each with its line end.
fn request(start: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{start} HTTP/1.1\r\nHost: q\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

async fn ask(client: &Client, start: &str, fields: &str, body: &[u8]) -> Reply {
    last(client.connect().await, request(start, fields, body)).await
}

/// The answer after interim ones.
async fn last(mut peer: Peer, request: Vec<u8>) -> Reply {
    peer.send(request).await;
    loop {
        let reply = peer.reply().await;
        if reply.status >= 200 {
            return reply;
        }
    }
}

/// The path of a new upload of tus.
async fn create(client: &Client, length: usize, fields: &str) -> String {
    let reply = ask(client, "POST /uploader", &format!("{TUS}Upload-Length: {length}\r\n{fields}"), b"").await;
    assert_eq!((reply.status, reply.header("Tus-Resumable")), (201, Some("1.0.0")), "{reply:?}");
    reply.header("Location").unwrap().to_owned()
}

async fn patch(client: &Client, path: &str, offset: usize, fields: &str, body: &[u8]) -> Reply {
    ask(client, &format!("PATCH {path}"), &format!("{TUS}{OFFSET}Upload-Offset: {offset}\r\n{fields}"), body).await
}

async fn head(client: &Client, path: &str) -> Reply {
    client.ask(format!("HEAD {path} HTTP/1.1\r\nHost: q\r\n{TUS}\r\n")).await
}

fn offset(reply: &Reply) -> usize {
    reply.header("Upload-Offset").unwrap_or_else(|| panic!("{reply:?}")).parse().unwrap()
}

async fn is_empty(client: &Client) -> bool {
    client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await.status == 204
}

/// The oldest item, which is removed.
async fn take(client: &Client) -> Vec<u8> {
    let item = client.get().await;
    assert_eq!((item.status, client.delete(&item).await.status), (200, 200));
    item.body
}

#[test]
fn tus_continues_after_an_interruption_and_a_repeated_end_makes_no_second_item() {
    let mut site = Site::new(80, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 500_001);
        let path = create(&client, data.len(), "Upload-Metadata: filename d29ybGQ=\r\n").await;
        assert_eq!(offset(&patch(&client, &path, 0, "", &data[..100_000]).await), 100_000);
        // The connection ends before the whole part was sent.
        let mut peer = client.connect().await;
        let rest =
            request(&format!("PATCH {path}"), &format!("{TUS}{OFFSET}Upload-Offset: 100000\r\n"), &data[100_000..]);
        peer.send(&rest[..150_000]).await;
        client.node.sleep(Duration::from_secs(1)).await;
        drop(peer);
        let reply = head(&client, &path).await;
        let stored = offset(&reply);
        assert!(reply.status == 200 && stored > 240_000 && stored < 250_000, "{reply:?}");
        assert_eq!((reply.header("Upload-Length"), reply.header("Cache-Control")), (Some("500001"), Some("no-store")));
        assert_eq!(reply.header("Upload-Metadata"), Some("filename d29ybGQ="));
        assert!(reply.header("Upload-Expires").unwrap().ends_with(" GMT"));
        assert!(is_empty(&client).await);
        let reply = patch(&client, &path, stored, "", &data[stored..]).await;
        assert_eq!((reply.status, offset(&reply)), (204, 500_001), "{reply:?}");
        // The answer may have been lost: tusd makes another item then (tusd#1364).
        let reply = head(&client, &path).await;
        assert_eq!((reply.status, offset(&reply)), (200, 500_001));
        assert_eq!(patch(&client, &path, stored, "", &data[stored..]).await.status, 409);
        let reply = patch(&client, &path, 500_001, "", b"").await;
        assert_eq!((reply.status, offset(&reply)), (204, 500_001));
        assert_eq!(ask(&client, &format!("DELETE {path}"), TUS, b"").await.status, 409);
        assert!(take(&client).await == data && is_empty(&client).await);
    });
    assert_eq!(site.figure("items"), "0 of 252");
}

#[test]
fn tus_creates_checks_and_ends_uploads() {
    let mut site = Site::new(81, 4 * MIB, &[]);
    let free = site.figure("bytes free");
    site.run(async |client| {
        let reply = client.ask("OPTIONS /uploader HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!(
            (reply.status, reply.header("Tus-Version"), reply.header("Tus-Checksum-Algorithm")),
            (204, Some("1.0.0"), Some("sha1,sha256,sha512"))
        );
        assert_eq!(reply.header("Accept-Patch"), Some("application/partial-upload"));
        for (start, fields, status) in [
            ("POST /uploader", "Tus-Resumable: 0.2.2\r\nUpload-Length: 5\r\n", 412),
            ("POST /uploader", "Tus-Resumable: 1.0.0\r\n", 400),
            ("POST /uploader", "Tus-Resumable: 1.0.0\r\nUpload-Length: -5\r\n", 400),
            ("POST /uploader", "Tus-Resumable: 1.0.0\r\nUpload-Length: 5\r\nUpload-Defer-Length: 1\r\n", 400),
            ("POST /uploader", "Tus-Resumable: 1.0.0\r\nUpload-Length: 99999999\r\n", 413),
            ("HEAD /uploads/00112233445566778899aabbccddeeff", TUS, 404),
            ("PATCH /uploads/x", TUS, 404),
        ] {
            let reply = ask(&client, start, fields, b"").await;
            assert_eq!(reply.status, status, "{start} {fields}: {reply:?}");
            assert!(status == 404 || reply.header("Tus-Resumable") == Some("1.0.0"), "{reply:?}");
        }
        let path = create(&client, 10, "").await;
        for (offset, fields, status) in
            [(1, "", 409), (0, "Upload-Checksum: sha1 AAAA\r\n", 400), (0, "Upload-Checksum: md5 AAAA\r\n", 400)]
        {
            assert_eq!(patch(&client, &path, offset, fields, b"01234").await.status, status, "{fields}");
        }
        let without_type =
            ask(&client, &format!("PATCH {path}"), &format!("{TUS}Upload-Offset: 0\r\n"), b"01234").await;
        assert_eq!(without_type.status, 415);
        // The checksum of "01234" by coreutils' sha1sum.
        let right = "Upload-Checksum: sha1 EZBKTot39iQuLSiHBQI62tAKkxA=\r\n";
        let wrong = patch(&client, &path, 0, right, b"01235").await;
        assert_eq!((wrong.status, offset(&head(&client, &path).await)), (460, 0), "{wrong:?}");
        assert_eq!(patch(&client, &path, 0, right, b"01234").await.status, 204);
        assert_eq!(patch(&client, &path, 5, "", b"567890").await.status, 400, "more than its length");
        let by_post = format!("{TUS}{OFFSET}Upload-Offset: 5\r\nX-HTTP-Method-Override: PATCH\r\n");
        assert_eq!(ask(&client, &format!("POST {path}"), &by_post, b"56789").await.status, 204);
        assert_eq!(take(&client).await, b"0123456789");
        // With bytes at once, without bytes, and with a length that comes later.
        let both = format!("{TUS}{OFFSET}Upload-Length: 4\r\n");
        let reply = ask(&client, "POST /uploader", &both, b"four").await;
        assert_eq!((reply.status, offset(&reply), take(&client).await), (201, 4, b"four".to_vec()));
        create(&client, 0, "").await;
        assert_eq!(take(&client).await, b"");
        let reply = ask(&client, "POST /uploader", &format!("{TUS}Upload-Defer-Length: 1\r\n"), b"").await;
        let path = reply.header("Location").unwrap().to_owned();
        assert_eq!(patch(&client, &path, 0, "", b"abc").await.status, 204);
        assert_eq!(head(&client, &path).await.header("Upload-Defer-Length"), Some("1"));
        assert_eq!(patch(&client, &path, 3, "Upload-Length: 6\r\n", b"def").await.status, 204);
        assert_eq!(take(&client).await, b"abcdef");
        let path = create(&client, 1_000_000, "").await;
        patch(&client, &path, 0, "", &content(1, 300_000)).await;
        assert_eq!(ask(&client, &format!("DELETE {path}"), TUS, b"").await.status, 204);
        assert_eq!(head(&client, &path).await.status, 404);
        assert!(is_empty(&client).await);
    });
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn the_draft_continues_after_an_interruption() {
    let mut site = Site::new(82, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 300_000);
        let mut peer = client.connect().await;
        let whole = request("PUT /uploader", "Upload-Complete: ?1\r\nUpload-Draft-Interop-Version: 6\r\n", &data);
        peer.send(&whole[..100_000]).await;
        let supported = peer.reply().await;
        assert_eq!((supported.status, supported.header("Upload-Draft-Interop-Version")), (104, Some("6")));
        assert!(supported.header("Upload-Limit").unwrap().contains("max-size="), "{supported:?}");
        let path = supported.header("Location").unwrap().to_owned();
        client.node.sleep(Duration::from_secs(1)).await;
        drop(peer);
        let reply = client.ask(format!("HEAD {path} HTTP/1.1\r\nHost: q\r\n\r\n")).await;
        let stored = offset(&reply);
        assert!(reply.status == 204 && (99_000..100_000).contains(&stored), "{reply:?}");
        assert_eq!((reply.header("Upload-Complete"), reply.header("Upload-Length")), (Some("?0"), Some("300000")));
        let append = async |offset: usize, ends: &str, fields: &str, body: &[u8]| {
            let fields = format!("{PARTIAL}Upload-Complete: {ends}\r\nUpload-Offset: {offset}\r\n{fields}");
            ask(&client, &format!("PATCH {path}"), &fields, body).await
        };
        let reply = append(stored + 1, "?0", "", b"x").await;
        assert_eq!((reply.status, offset(&reply)), (409, stored));
        let problem = String::from_utf8(reply.body).unwrap();
        assert!(problem.contains("http-problem-types#mismatching-upload-offset"), "{problem}");
        assert!(
            problem.contains(&format!("\"expected-offset\":{stored},\"provided-offset\":{}", stored + 1)),
            "{problem}"
        );
        let reply = append(stored, "?1", "", &data[stored..299_999]).await;
        assert!(reply.status == 400 && reply.body.ends_with(b"#inconsistent-upload-length\"}\n"), "{reply:?}");
        let reply = append(stored, "?0", "", &data[stored..200_000]).await;
        assert_eq!((reply.status, offset(&reply), reply.header("Upload-Complete")), (204, 200_000, Some("?0")));
        // A digest of the whole, of which two parts are stored already.
        let digest =
            |data: &[u8]| format!("Repr-Digest: sha-256=:{}:\r\n", BASE64_STANDARD.encode(Sha256::digest(data)));
        assert_eq!(append(200_000, "?0", &digest(&data), b"").await.status, 400);
        assert_eq!(append(200_000, "?1", &digest(b"other"), &data[200_000..]).await.status, 400);
        assert!(is_empty(&client).await);
        let reply = append(200_000, "?1", &digest(&data), &data[200_000..]).await;
        assert_eq!((reply.status, reply.header("Upload-Complete"), offset(&reply)), (200, Some("?1"), 300_000));
        let reply = append(300_000, "?1", "", b"").await;
        assert!(reply.status == 400 && reply.header("Upload-Complete") == Some("?1"), "{reply:?}");
        let reply = client.ask(format!("HEAD {path} HTTP/1.1\r\nHost: q\r\n\r\n")).await;
        assert_eq!((reply.status, reply.header("Upload-Complete"), offset(&reply)), (204, Some("?1"), 300_000));
        assert!(take(&client).await == data && is_empty(&client).await);
    });
}

#[test]
fn the_draft_begins_without_bytes_and_without_a_length_and_gives_up() {
    let mut site = Site::new(83, 64 * MIB, &[]);
    site.run(async |client| {
        let reply = ask(&client, "POST /uploader", "Upload-Complete: ?0\r\n", b"").await;
        let path = reply.header("Location").unwrap().to_owned();
        assert_eq!((reply.status, reply.header("Upload-Complete")), (201, Some("?0")), "{reply:?}");
        // In chunks, whose end is the end of the upload; with progress on the way.
        let data = content(2, 20 * MIB as usize);
        let mut peer = client.connect().await;
        let fields = format!("{PARTIAL}Upload-Complete: ?1\r\nUpload-Offset: 0\r\nTransfer-Encoding: chunked\r\n");
        peer.send(format!("PATCH {path} HTTP/1.1\r\nHost: q\r\n{fields}\r\n{:x}\r\n", data.len())).await;
        let sending = async {
            let (first, rest) = data.split_at(12 * MIB as usize);
            peer.send(first).await;
            let progress = peer.reply().await;
            assert!(
                progress.status == 104 && offset(&progress) > 0 && progress.header("Location").is_none(),
                "{progress:?}"
            );
            peer.send(rest).await;
            peer.send("\r\n0\r\n\r\n").await;
        };
        sending.await;
        let reply = loop {
            let reply = peer.reply().await;
            if reply.status >= 200 {
                break reply;
            }
        };
        assert_eq!((reply.status, offset(&reply)), (200, data.len()), "{reply:?}");
        assert!(take(&client).await == data);
        let reply = ask(&client, "PUT /uploader", "Upload-Complete: ?0\r\nUpload-Length: 100\r\n", b"some").await;
        let path = reply.header("Location").unwrap().to_owned();
        assert_eq!((reply.status, offset(&reply)), (201, 4));
        assert_eq!(ask(&client, &format!("DELETE {path}"), "", b"").await.status, 204);
        assert_eq!(ask(&client, &format!("PATCH {path}"), "", b"").await.status, 404);
        // Any other value is as if the field were not there.
        assert_eq!(ask(&client, "PUT /uploader", "Upload-Complete: 1\r\n", b"plain").await.status, 200);
        assert_eq!(take(&client).await, b"plain");
    });
}

#[test]
fn a_request_that_continues_an_upload_ends_the_one_before() {
    let mut site = Site::new(84, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 200_000);
        let path = create(&client, data.len(), "").await;
        let part = request(&format!("PATCH {path}"), &format!("{TUS}{OFFSET}Upload-Offset: 0\r\n"), &data);
        let mut stalled = client.connect().await;
        stalled.send(&part[..100_000]).await;
        client.node.sleep(Duration::from_secs(1)).await;
        // Its client has lost it, and the server does not know yet.
        let stored = offset(&head(&client, &path).await);
        assert!((99_000..100_000).contains(&stored), "{stored}");
        let reply = stalled.reply().await;
        assert_eq!((reply.status, offset(&reply)), (409, stored), "{reply:?}");
        assert_eq!(patch(&client, &path, stored, "", &data[stored..]).await.status, 204);
        assert!(take(&client).await == data);
    });
}

#[test]
fn what_the_head_of_a_request_shows_is_answered_before_its_bytes_are_sent() {
    let mut site = Site::new(85, 4 * MIB, &[]);
    site.run(async |client| {
        let path = create(&client, 10, "").await;
        for (offset, statuses) in [(3, &[409][..]), (0, &[100, 204])] {
            let fields =
                format!("{TUS}{OFFSET}Upload-Offset: {offset}\r\nExpect: 100-continue\r\nContent-Length: 10\r\n");
            let mut peer = client.connect().await;
            peer.send(format!("PATCH {path} HTTP/1.1\r\nHost: q\r\n{fields}\r\n")).await;
            for status in statuses {
                assert_eq!(peer.reply().await.status, *status, "{offset}");
                peer.send("0123456789").await;
            }
        }
        assert_eq!(take(&client).await, b"0123456789");
        // With too little room for it, too.
        let fields = "Upload-Complete: ?1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n";
        let mut peer = client.connect().await;
        peer.send(format!("PUT /uploader HTTP/1.1\r\nHost: q\r\n{fields}\r\n")).await;
        assert_eq!(peer.reply().await.status, 413);
    });
}

#[test]
fn an_upload_expires_a_day_after_its_last_request() {
    let mut site = Site::new(86, 4 * MIB, &[]);
    let hour = Duration::from_secs(3600);
    let path = site.run(async |client| create(&client, 10, "").await);
    site.world.run_for(20 * hour).unwrap();
    let known = path.clone();
    site.run(async move |client| assert_eq!(patch(&client, &known, 0, "", b"0123").await.status, 204));
    site.world.run_for(20 * hour).unwrap();
    let known = path.clone();
    site.run(async move |client| assert_eq!(offset(&head(&client, &known).await), 4));
    site.world.run_for(5 * hour).unwrap();
    site.run(async move |client| assert_eq!(head(&client, &path).await.status, 404));
    let free = site.figure("bytes free");
    let (left, all) = free.split_once(" of ").unwrap();
    assert_eq!(left, all);
}

/// One life of the service, which ends with a power cut while a client sends the rest of an upload in parts. Returns the last offset that was
/// acknowledged, and whether the end was.
fn live(seed: u64, disk: SimBlock, path: Rc<Cell<Option<String>>>, data: Vec<u8>) -> (usize, bool) {
    let mut site = Site::with_disk(seed, disk, LinkConfig::bad(), &[]);
    let acknowledged = Rc::new(Cell::new((0, false)));
    let mut chance = Chance::new(seed);
    site.disk.cut_at_operation(site.disk.operations() + 5 + chance.below(60));
    let (client, known) = (site.client(), acknowledged.clone());
    site.client.run("uploader", async move {
        let place = match path.take() {
            Some(place) => place,
            None => {
                let Some(reply) =
                    try_ask(&client, "POST /uploader", &format!("{TUS}Upload-Length: {}\r\n", data.len()), b"").await
                else {
                    return;
                };
                reply.header("Location").unwrap().to_owned()
            }
        };
        path.set(Some(place.clone()));
        let Some(reply) = try_ask(&client, &format!("HEAD {place}"), TUS, b"").await else { return };
        let mut at = offset(&reply);
        known.set((at, at == data.len()));
        while at < data.len() {
            let end = data.len().min(at + 1 + chance.below(60_000) as usize);
            let fields = format!("{TUS}{OFFSET}Upload-Offset: {at}\r\n");
            let Some(reply) = try_ask(&client, &format!("PATCH {place}"), &fields, &data[at..end]).await else {
                return;
            };
            assert_eq!((reply.status, offset(&reply)), (204, end));
            at = end;
            known.set((at, at == data.len()));
        }
    });
    let (server, client) = (site.server.clone(), site.client.clone());
    site.world.run_until(Duration::from_secs(600), || !server.is_alive() || client.task_count() == 0).unwrap();
    site.server.power_off();
    acknowledged.get()
}

async fn try_ask(client: &Client, start: &str, fields: &str, body: &[u8]) -> Option<Reply> {
    let mut peer = client.connect().await;
    peer.send(request(start, fields, body)).await;
    peer.try_reply().await
}

#[test]
fn an_acknowledged_offset_survives_power_cuts_and_an_upload_becomes_one_item() {
    let mut cut_short = 0;
    for_seeds(0..40, |seed| {
        let config = DiskConfig {
            size_bytes: MIB,
            sector_bytes: if seed % 2 == 0 { 512 } else { 4096 },
            ..DiskConfig::default()
        };
        let mut disk = SimBlock::new(seed, config);
        let data = content(seed, 250_000 + seed as usize * 999);
        let path = Rc::new(Cell::new(None));
        for life in 0..3 {
            let (at, is_complete) = live(seed * 10 + life, disk.clone(), path.clone(), data.clone());
            disk = disk.restart(seed + life);
            let mut site = Site::with_disk(seed, disk.clone(), LinkConfig::default(), &[]);
            let Some(place) = path.take() else { continue };
            let known = place.clone();
            let found = site.run(async move |client| head(&client, &known).await);
            assert!(found.status == 200 && offset(&found) >= at, "seed {seed}: {found:?} after {at}");
            assert!(!is_complete || offset(&found) == data.len(), "seed {seed}");
            cut_short += u64::from(!is_complete);
            path.set(Some(place));
            site.server.power_off();
            disk = disk.restart(seed + life + 100);
        }
        // The end, if it was not reached: one item in any case.
        let Some(place) = path.take() else { return };
        let mut site = Site::with_disk(seed, disk, LinkConfig::default(), &[]);
        site.run(async move |client| {
            let at = offset(&head(&client, &place).await);
            if at < data.len() {
                assert_eq!(patch(&client, &place, at, "", &data[at..]).await.status, 204);
            }
            assert!(take(&client).await == data && is_empty(&client).await, "seed {seed}");
        });
    });
    assert!(cut_short > 20 || std::env::var_os("GLASS_SIM_SEED").is_some(), "only {cut_short} lives were cut short");
}
