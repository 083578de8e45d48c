//! The service as its clients see it, over a simulated network and disk.

use crate::common::site::{Site, content, put_head, put_request};
use core::time::Duration;
use glasshouse::sync::Notify;
use glasshouse::{Clock, Spawn, Stream};

const MIB: u64 = 1 << 20;

#[test]
fn every_row_of_the_table_of_answers() {
    let mut site = Site::new(1, MIB + (10 << 12), &["--max-item-bytes", "1000000"]);
    let big_header = format!("GET / HTTP/1.1\r\nHost: q\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let long_line = format!("GET /{} HTTP/1.1\r\nHost: q\r\n\r\n", "x".repeat(9_000));
    let rows: Vec<(String, u16, &str)> = [
        ("POST /uploader", "Content-Length: 1\r\n", 405, "Use PUT, not POST\n"),
        ("GET /uploader", "", 405, "Method not supported\n"),
        ("DELETE /uploader", "", 405, "Method not supported\n"),
        ("BREW /uploader", "", 405, "Method not supported\n"),
        ("PUT /uploader", "", 411, "Missing Content-Length\n"),
        ("PUT /uploader", "Transfer-Encoding: gzip, chunked\r\n", 411, "Missing Content-Length\n"),
        ("PUT /uploader", "Content-Length: 1000001\r\n", 413, "An item may have 1000000 bytes at most\n"),
        ("PUT /uploader", "Content-Length: 18446744073709551615\r\n", 413, "An item may have 1000000 bytes at most\n"),
        ("PUT /uploader", "Content-Length: 99999999999999999999\r\n", 400, "Content-Length is not a number"),
        ("PUT /uploader", "Content-Length: -5\r\n", 400, "Content-Length is not a number"),
        ("PUT /uploader", "Content-Length: 0x10\r\n", 400, "Content-Length is not a number"),
        ("PUT /uploader", "Content-Length: 1_000\r\n", 400, "Content-Length is not a number"),
        ("PUT /uploader", "Content-Range: bytes 5-9/10\r\nContent-Length: 5\r\n", 400, "without Content-Range\n"),
        (
            "PUT /uploader",
            "Content-Range: bytes 0-9/10\r\nExpect: 100-continue\r\nContent-Length: 10\r\n",
            400,
            "whole item",
        ),
        ("PUT /uploader", "Content-Type: Multipart/byteranges; boundary=x\r\nContent-Length: 5\r\n", 400, "whole item"),
        ("PUT /uploader", "Content-Encoding: gzip\r\nContent-Length: 5\r\n", 415, "without Content-Encoding"),
        (
            "PUT /uploader",
            "Content-Encoding: identity\r\nContent-Encoding: br\r\nTransfer-Encoding: chunked\r\n",
            415,
            "not kept",
        ),
        ("PUT /uploader", "If-Match: \"1-0\"\r\nContent-Length: 5\r\n", 412, "without If-Match\n"),
        ("PUT /uploader", "Content-Length: 5\r\nContent-Length: 5\r\n", 400, "two fields Content-Length"),
        ("PUT /downloader", "Content-Length: 5\r\n", 405, "Method not supported\n"),
        ("POST /downloader", "", 405, "Method not supported\n"),
        ("HEAD /downloader", "", 405, ""),
        ("OPTIONS /downloader", "", 405, "Method not supported\n"),
        ("DELETE /downloader", "", 428, "the header If-Match and the ETag of the answer; the queue is empty now\n"),
        ("DELETE /downloader", "If-Match: \"1-0\"\r\n", 412, "The queue is empty\n"),
        ("GET /downloader?wait=0", "", 204, ""),
        ("GET /downloader?wait=1", "", 204, ""),
        ("GET /downloader?wait=soon", "", 400, "wait takes a number of seconds\n"),
        ("GET /downloader?wait=", "", 400, "wait takes a number of seconds\n"),
        ("GET /downloader/", "", 404, "Bad path '/downloader/'\n"),
        ("GET /Uploader", "", 404, "Bad path '/Uploader'\n"),
        ("PUT /nowhere", "Content-Length: 5\r\n", 404, "Bad path '/nowhere'\n"),
        ("GET /healthz", "", 200, "ok\n"),
        ("HEAD /healthz", "", 200, ""),
        ("GET /readyz", "", 200, "ready\n"),
        ("HEAD /readyz", "", 200, ""),
        ("PUT /readyz", "Content-Length: 0\r\n", 405, "Method not supported\n"),
        ("PUT /healthz", "Content-Length: 0\r\n", 405, "Method not supported\n"),
        ("GET /", "", 200, "items: 0 of "),
        ("DELETE /", "", 405, "Method not supported\n"),
    ]
    .into_iter()
    .map(|(start, fields, status, text)| (format!("{start} HTTP/1.1\r\nHost: q\r\n{fields}\r\n"), status, text))
    .chain([
        (big_header, 431, "head is longer"),
        (long_line, 414, "request line is longer"),
        ("GET / HTTP/2.0\r\nHost: q\r\n\r\n".to_owned(), 505, "HTTP/1.1"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400, "bad request"),
        ("hello\r\n\r\n".to_owned(), 400, "bad request"),
        ("GET / HTTP/1.1\r\nHost: q\r\nExpect: miracles\r\n\r\n".to_owned(), 417, "100-continue"),
    ])
    .collect();
    for (request, status, text) in rows {
        let sent = request.clone();
        let reply = site.run(async |client| client.ask(sent).await);
        assert_eq!(reply.status, status, "{request:.60}: {reply:?}");
        let is_head = request.starts_with("HEAD");
        assert!(
            if text.is_empty() || is_head { reply.cut == is_head } else { reply.text().contains(text) },
            "{request:.60}: {reply:?}"
        );
        assert_eq!(reply.header("Allow").is_some(), status == 405, "{request:.60}: {reply:?}");
        if status == 405 {
            let allow = if request.contains("/uploader") {
                "PUT"
            } else if request.contains("/downloader") {
                "GET, DELETE"
            } else {
                "GET, HEAD"
            };
            assert_eq!(reply.header("Allow"), Some(allow));
        }
    }
    assert_eq!(site.server.task_count(), 4, "serve, commit, expiry and the last connection that lingers");
}

#[test]
fn a_queue_for_two_on_one_connection_each() {
    let mut site = Site::new(2, 4 * MIB, &[]);
    site.run(async |client| {
        let (mut up, mut down) = (client.connect().await, client.connect().await);
        for tag in 0..30 {
            let data = content(tag, (tag * tag * 300) as usize);
            up.send(put_request(&data)).await;
            let reply = up.reply().await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "Accepted\n"));
            down.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            let reply = down.reply().await;
            assert_eq!(reply.status, 200);
            assert!(reply.body == data, "item {tag}");
            let tag = reply.header("ETag").unwrap().to_owned();
            assert!(tag.starts_with('"') && tag.ends_with('"'));
            // That this connection has received the item does not matter: it may be a proxy's.
            down.send("DELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            let reply = down.reply().await;
            assert_eq!((reply.status, reply.header("ETag")), (428, Some(&*tag)));
            assert!(reply.text().contains(&format!("If-Match: {tag}")), "{reply:?}");
            down.send(format!("DELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: \"x\"\r\nIf-Match: {tag}\r\n\r\n"))
                .await;
            assert_eq!(down.reply().await.text(), "OK\n");
        }
    });
    assert_eq!(site.figure("items"), "0 of 252");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut site = Site::new(3, MIB, &[]);
    site.run(async |client| {
        let mut peer = client.connect().await;
        let mut all = Vec::new();
        for tag in 0..5 {
            all.extend(put_request(&content(tag, 10_000)));
        }
        for _ in 0..5 {
            all.extend_from_slice(
                b"GET /downloader HTTP/1.1\r\nHost: q\r\n\r\nDELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: *\r\n\r\n",
            );
        }
        all.extend_from_slice(b"GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n");
        peer.send(&all).await;
        for _ in 0..5 {
            assert_eq!(peer.reply().await.text(), "Accepted\n");
        }
        for tag in 0..5 {
            assert!(peer.reply().await.body == content(tag, 10_000));
            assert_eq!(peer.reply().await.text(), "OK\n");
        }
        assert_eq!(peer.reply().await.status, 204);
        assert!(peer.ends().await);
    });
}

#[test]
fn uploads_of_unknown_length_arrive_whole() {
    let mut site = Site::new(28, 4 * MIB, &["--max-item-bytes", "1000000"]);
    let free = site.figure("bytes free");
    let head = "PUT /uploader HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\n";
    site.run(async move |client| {
        for (tag, length) in [0, 1, 4096, 131_072, 200_001, 1_000_000, 1_000_001].into_iter().enumerate() {
            let data = content(tag as u64, length);
            let mut peer = client.connect().await;
            peer.send(head).await;
            for chunk in data.chunks(30_000) {
                peer.send(format!("{:x}\r\n", chunk.len())).await;
                peer.send(chunk).await;
                peer.send("\r\n").await;
            }
            peer.send("0\r\nSome: trailer\r\n\r\n").await;
            let reply = peer.try_reply().await.unwrap_or_else(|| panic!("no answer to {length} bytes"));
            if length > 1_000_000 {
                assert_eq!((reply.status, reply.text().as_str()), (413, "An item may have 1000000 bytes at most\n"));
                continue;
            }
            assert_eq!(reply.status, 200, "{length}: {reply:?}");
            // The connection continues after the body.
            peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
            let reply = peer.try_reply().await.unwrap_or_else(|| panic!("no item of {length} bytes: {reply:?}"));
            assert!(reply.body == data, "{length}");
            client.delete(&reply).await;
        }
        let mut cut = client.connect().await;
        cut.send(head).await;
        cut.send("5\r\nhello\r\n").await;
        cut.stream.close().await.unwrap();
        assert_eq!(cut.reply().await.status, 400);
        let bad = client.ask(format!("{head}+5\r\nhello\r\n0\r\n\r\n")).await;
        assert_eq!(bad.status, 400, "{bad:?}");
    });
    assert_eq!(site.figure("items"), "0 of 252");
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn a_full_disk_is_told_before_the_body() {
    let mut site = Site::new(4, MIB, &[]);
    let free = site.figure("bytes free");
    let reply = site.run(async |client| client.put(&content(1, 800_000)).await);
    assert_eq!(reply.status, 200);
    // A client that does not wait for the answer gets it nevertheless.
    let reply = site.run(async |client| client.put(&content(2, 900_000)).await);
    assert_eq!((reply.status, reply.text().as_str()), (507, "Disk full\n"));
    // A client that waits for 100 Continue does not send the body at all.
    site.run(async |client| {
        let mut peer = client.connect().await;
        peer.send("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 900000\r\nExpect: 100-continue\r\n\r\n").await;
        assert_eq!(peer.reply().await.status, 507);
        assert!(peer.ends().await);
        let mut peer = client.connect().await;
        peer.send("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n").await;
        assert_eq!(peer.reply().await.status, 100);
        peer.send("hello").await;
        assert_eq!(peer.reply().await.status, 200);
        for _ in 0..2 {
            client.delete(&client.get().await).await;
        }
    });
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn a_full_index_is_told_with_its_bound() {
    let mut site = Site::new(6, MIB, &[]);
    site.run(async |client| {
        for number in 0..63 {
            assert_eq!(client.put(&content(number, 1)).await.status, 200);
        }
        let reply = client.put(&content(63, 1)).await;
        let text = "The queue has 63 items, including open uploads, and its index has no room for more\n";
        assert_eq!((reply.status, reply.text().as_str()), (507, text));
        client.delete(&client.get().await).await;
        assert_eq!(client.put(&content(63, 1)).await.status, 200);
    });
}

#[test]
fn a_short_body_is_told_and_leaves_nothing() {
    let mut site = Site::new(5, MIB, &[]);
    let free = site.figure("bytes free");
    let reply = site.run(async |client| {
        let mut peer = client.connect().await;
        peer.send(put_head(500_000)).await;
        peer.send(content(1, 300_000)).await;
        peer.stream.close().await.unwrap();
        peer.reply().await
    });
    assert_eq!(reply.status, 400);
    assert_eq!(reply.text(), "Upload has wrong size: Content-Length is 500000 but got 300000\n");
    assert_eq!(site.figure("bytes free"), free);
    assert_eq!(site.figure("items"), "0 of 63");
}

#[test]
fn a_delete_during_a_download_leaves_the_body_whole() {
    // The body is longer than what the buffers of both ends take.
    let mut site = Site::new(11, 32 * MIB, &[]);
    let free = site.figure("bytes free");
    let data = content(1, 24_000_000);
    let expected = data.clone();
    site.run(async move |client| {
        assert_eq!(client.put(&data).await.status, 200);
        let mut reader = client.connect().await;
        reader.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
        client.node.sleep(Duration::from_millis(500)).await;
        assert_eq!(client.delete_matching("*").await.status, 200);
        assert_eq!(client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 204);
        // Its space is not used again yet.
        assert_eq!(client.put(&content(2, 16_000_000)).await.status, 507);
        assert_eq!(client.put(&content(3, 4_000_000)).await.status, 200);
        let reply = reader.reply().await;
        assert!(!reply.cut && reply.body == expected);
        assert_eq!(client.put(&content(2, 16_000_000)).await.status, 200);
        for _ in 0..2 {
            client.delete(&client.get().await).await;
        }
    });
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn two_consumers_with_if_match_never_remove_each_others_item() {
    let mut site = Site::new(12, 4 * MIB, &[]);
    site.run(async |client| {
        for tag in 0..20u64 {
            assert_eq!(client.put(&tag.to_le_bytes()).await.status, 200);
        }
        let (done, removed) = (Notify::new(), std::rc::Rc::new(std::cell::RefCell::new(Vec::new())));
        let running = std::rc::Rc::new(std::cell::Cell::new(2));
        for consumer in 0..2u64 {
            let node = client.node.clone();
            let (client, done, removed, running) = (client.clone(), done.clone(), removed.clone(), running.clone());
            let work = async move {
                loop {
                    let reply = client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await;
                    if reply.status == 204 {
                        break;
                    }
                    client.node.sleep(Duration::from_millis(3 + consumer * 4)).await;
                    let etag = reply.header("ETag").unwrap();
                    let request = format!("DELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: \"no\", {etag}\r\n\r\n");
                    match client.ask(request).await.status {
                        200 => removed.borrow_mut().push(reply.body),
                        412 => {}
                        other => panic!("{other}"),
                    }
                }
                running.set(running.get() - 1);
                done.notify_all();
            };
            node.spawn("consumer", work).unwrap();
        }
        while running.get() > 0 {
            done.notified().await;
        }
        let expected: Vec<Vec<u8>> = (0..20u64).map(|tag| tag.to_le_bytes().to_vec()).collect();
        assert_eq!(*removed.borrow(), expected);
    });
}

#[test]
fn a_damaged_item_is_cut_and_named_on_the_console() {
    let disk_of = |site: &Site| site.disk.image();
    let mut site = Site::new(13, 4 * MIB, &[]);
    let data = content(1, 1_000_000);
    let sent = data.clone();
    site.run(async move |client| assert_eq!(client.put(&sent).await.status, 200));
    let mut image = disk_of(&site);
    let start = image.windows(16).position(|window| window == &data[..16]).unwrap();
    image[start + 700_000] ^= 1;
    let disk = glass_platform_sim::SimBlock::with_image(13, Default::default(), image);
    let mut site = Site::with_disk(14, disk, Default::default(), &[]);
    let reply = site.run(async |client| client.get().await);
    assert!(reply.cut && reply.body.len() < data.len());
    assert_eq!(reply.header("Content-Length"), Some("1000000"));
    let console = site.server.console();
    assert!(console.last().unwrap().contains("a download was cut: item 1 is damaged"), "{console:?}");
    // The damage of a small item is found before a byte of it is sent.
    site.run(async |client| {
        client.delete_matching("*").await;
        assert_eq!(client.put(b"small").await.status, 200);
    });
    let mut image = disk_of(&site);
    let start = image.windows(5).position(|window| window == b"small").unwrap();
    image[start] ^= 1;
    let disk = glass_platform_sim::SimBlock::with_image(13, Default::default(), image);
    let mut site = Site::with_disk(15, disk, Default::default(), &[]);
    let reply = site.run(async |client| client.get().await);
    assert_eq!((reply.status, reply.cut), (500, false));
    let line = site.server.console().last().unwrap().clone();
    assert_eq!(line, format!("upload-queue: {}", reply.text().trim_end()));
    // What the client can do something about is not the operator's concern.
    assert_eq!(site.run(async |client| client.put(&content(2, 4 * MIB as usize - 19 * 4096)).await.status), 507);
    assert_eq!(site.server.console().last(), Some(&line));
}

#[test]
fn a_start_says_what_is_on_the_disk() {
    let mut site = Site::new(17, MIB, &[]);
    assert_eq!(site.run(async |client| client.put(&content(1, 5000)).await.status), 200);
    let site = Site::with_disk(18, site.disk.restart(18), Default::default(), &[]);
    let console = site.server.console();
    assert_eq!(console[0], "upload-queue: 1 items recovered at commit 2");
    // Of 256 blocks, one is the superblock and twelve are the index.
    assert_eq!(console[1], format!("upload-queue: 8192 bytes used, {} bytes free", (256 - 13 - 2) * 4096));
}

#[test]
fn what_stops_the_service_is_said_in_one_sentence() {
    let ended = |args: &[&str], disk_bytes| Site::new(16, disk_bytes, args).server.console().last().unwrap().clone();
    assert_eq!(
        ended(&["--prot"], MIB),
        "ended: --prot: there is no such argument (arguments: [--config FILE] [--store nats://HOST:PORT/NAME] [--port PORT]... [--max-item-bytes NUMBER] [--format] [--grow] [--discard] [--scrub DAYS] [--delete-by-connection] [--tls-chain FILE [--tls-key FILE]] [--tokens FILE] [--tries NUMBER] [--access-log FILE] [--cors-origin ORIGIN]...)"
    );
    assert_eq!(ended(&[], 8192), "ended: the disk has 8192 bytes, and a queue needs at least 57344");
}
