//! Digests of RFC 9530: what an upload must have, and what a download is sent with.

use crate::common::site::{Client, Reply, Site, content};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256, Sha512};

const MIB: u64 = 1 << 20;

fn sha_256(data: &[u8]) -> String {
    format!("sha-256=:{}:", BASE64_STANDARD.encode(Sha256::digest(data)))
}

fn sha_512(data: &[u8]) -> String {
    format!("sha-512=:{}:", BASE64_STANDARD.encode(Sha512::digest(data)))
}

/// Uploads `data` with these fields, each with its line end.
async fn put_with(client: &Client, fields: &str, data: &[u8]) -> Reply {
    let head = format!("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n{fields}\r\n", data.len());
    client.ask([head.as_bytes(), data].concat()).await
}

/// The same as chunks, with fields after the body.
async fn put_chunks(client: &Client, fields: &str, data: &[u8], trailers: &str) -> Reply {
    let head = format!("PUT /uploader HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n{fields}\r\n");
    let mut request = head.into_bytes();
    for chunk in data.chunks(10_000) {
        request.extend(format!("{:x}\r\n", chunk.len()).bytes().chain(chunk.iter().copied()).chain(*b"\r\n"));
    }
    request.extend(format!("0\r\n{trailers}\r\n").bytes());
    client.ask(request).await
}

#[test]
fn an_upload_has_the_digests_that_it_announces_or_is_not_stored() {
    let mut site = Site::new(60, 4 * MIB, &[]);
    let free = site.figure("bytes free");
    site.run(async |client| {
        for length in [0, 1, 4096, 131_072, 131_073, 700_000] {
            let data = content(length as u64, length);
            let (right, wrong) = ([sha_256(&data), sha_512(&data)], [sha_256(b"x"), sha_512(b"x")]);
            for name in ["Content-Digest", "repr-digest"] {
                for wrong in &wrong {
                    // One wrong digest among right ones is enough.
                    let fields = format!("{name}: {}\r\nRepr-Digest: md5=:aaaa:, {wrong}\r\n", right[0]);
                    let reply = put_with(&client, &fields, &data).await;
                    assert_eq!(reply.status, 400, "{reply:?}");
                    assert!(reply.text().contains("is not stored: send it again"), "{reply:?}");
                }
                let reply = put_with(&client, &format!("{name}: {}, {}\r\n", right[0], right[1]), &data).await;
                assert_eq!(reply.status, 200, "{length} bytes: {reply:?}");
                let item = client.get().await;
                assert!(item.body == data, "{length} bytes");
                assert_eq!(client.delete(&item).await.status, 200);
            }
        }
        assert_eq!(client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 204);
    });
    assert_eq!(site.figure("bytes free"), free);
}

#[test]
fn a_digest_may_follow_the_body() {
    let mut site = Site::new(61, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 300_000);
        let announced = "Trailer: x, Content-Digest\r\n";
        let trailer = |digest: &str| format!("Content-Digest: {digest}\r\n");
        for (fields, digest, status) in [
            (announced, sha_256(&data), 200),
            (announced, sha_512(&data), 200),
            (announced, sha_256(b"x"), 400),
            (announced, "sha-256=:AAAA:".into(), 400),
            ("", sha_256(&data), 400),
        ] {
            let reply = put_chunks(&client, fields, &data, &trailer(&digest)).await;
            assert_eq!(reply.status, status, "{fields} {digest}: {reply:?}");
        }
        // An announcement that is not kept is no digest.
        assert_eq!(put_chunks(&client, announced, &data, "").await.status, 200);
        for _ in 0..3 {
            let item = client.get().await;
            assert!(item.body == data);
            client.delete(&item).await;
        }
        assert_eq!(client.ask("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n\r\n").await.status, 204);
    });
}

#[test]
fn what_the_head_shows_is_answered_before_the_body() {
    let mut site = Site::new(62, 4 * MIB, &[]);
    site.run(async |client| {
        for (digest, reason) in
            [("sha-256=abc", "is malformed"), ("md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", "send one of them, or none")]
        {
            let mut peer = client.connect().await;
            let head = format!("Content-Length: 5\r\nContent-Digest: {digest}\r\nExpect: 100-continue\r\n");
            peer.send(format!("PUT /uploader HTTP/1.1\r\nHost: q\r\n{head}\r\n")).await;
            let reply = peer.reply().await;
            assert_eq!((reply.status, reply.text().contains(reason)), (400, true), "{reply:?}");
            assert!(peer.ends().await);
        }
    });
}

#[test]
fn a_download_has_the_digests_that_it_wants() {
    let mut site = Site::new(63, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 300_000);
        assert_eq!(client.put(&data).await.status, 200);
        let get = async |fields: &str| client.ask(format!("GET /downloader HTTP/1.1\r\nHost: q\r\n{fields}\r\n")).await;
        let tag = get("").await.header("ETag").unwrap().to_owned();
        let part = format!("If-Range: {tag}\r\nRange: bytes=100-200000\r\n");
        let (whole, cut) = (&data[..], &data[100..200_001]);
        for (wanted, content, repr) in [
            ("", None, None),
            ("Want-Repr-Digest: sha-256=1\r\n", None, Some(sha_256(whole))),
            ("Want-Repr-Digest: sha-256=3, md5=9, sha-512=4\r\n", None, Some(sha_512(whole))),
            ("Want-Content-Digest: sha-256=0, sha-512=11\r\n", None, None),
            (
                "Want-Content-Digest: sha-256=1\r\nWant-Repr-Digest: sha-512=1\r\n",
                Some(sha_256(cut)),
                Some(sha_512(whole)),
            ),
        ] {
            let reply = get(&format!("{wanted}{part}")).await;
            assert_eq!((reply.status, reply.body == cut), (206, true));
            assert_eq!(reply.header("Content-Digest"), content.as_deref(), "{wanted}");
            assert_eq!(reply.header("Repr-Digest"), repr.as_deref(), "{wanted}");
        }
        let reply = get("Want-Content-Digest: sha-256=1\r\n").await;
        assert_eq!(reply.header("Content-Digest"), Some(&*sha_256(whole)));
        assert!(reply.body == data);
    });
}
