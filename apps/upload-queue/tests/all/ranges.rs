//! Parts of items: what a client may continue, and what it must not get.

use crate::common::site::{Client, Reply, Site, content};
use glass_platform_sim::SimBlock;

const MIB: u64 = 1 << 20;

async fn get(client: &Client, fields: &str) -> Reply {
    client.ask(format!("GET /downloader?wait=0 HTTP/1.1\r\nHost: q\r\n{fields}\r\n")).await
}

#[test]
fn a_part_is_sent_of_the_item_that_the_client_has_begun() {
    let mut site = Site::new(70, 4 * MIB, &[]);
    site.run(async |client| {
        let data = content(1, 500_000);
        assert_eq!(client.put(&data).await.status, 200);
        let whole = client.get().await;
        assert_eq!(whole.header("Accept-Ranges"), Some("bytes"));
        let tag = whole.header("ETag").unwrap();
        for condition in ["If-Range", "If-Match"] {
            for (range, start, end) in [
                ("0-0", 0, 1),
                ("0-", 0, 500_000),
                ("131071-131072", 131_071, 131_073),
                ("131072-262143", 131_072, 262_144),
                ("499999-", 499_999, 500_000),
                ("-200000", 300_000, 500_000),
                ("7-9999999", 7, 500_000),
            ] {
                let reply = get(&client, &format!("{condition}: {tag}\r\nRange: bytes={range}\r\n")).await;
                assert_eq!((reply.status, reply.header("ETag")), (206, Some(tag)), "{range}: {reply:?}");
                let expected = format!("bytes {start}-{}/500000", end - 1);
                assert_eq!(reply.header("Content-Range"), Some(&*expected));
                assert!(reply.body == data[start..end], "{range}");
            }
            let reply = get(&client, &format!("{condition}: {tag}\r\nRange: bytes=500000-\r\n")).await;
            assert_eq!((reply.status, reply.header("Content-Range")), (416, Some("bytes */500000")), "{reply:?}");
        }
        // Without the name of the item the parts of two would be joined. wget joins them even if the answer is the whole item.
        for range in ["5-", "5-9", "-5"] {
            let reply = get(&client, &format!("Range: bytes={range}\r\n")).await;
            assert_eq!((reply.status, reply.body == data), (428, false), "{range}: {reply:?}");
        }
        for range in ["0-", "0-9", "-0", "9-5"] {
            let reply = get(&client, &format!("Range: bytes={range}\r\n")).await;
            assert_eq!((reply.status, reply.body == data), (200, true), "{range}");
        }
        // With the name of another one it is all of this one.
        for fields in ["If-Range: \"1-0\"\r\n", "If-Match: *\r\n", "If-Range: Sat, 28 Nov 2026 00:00:00 GMT\r\n"] {
            let reply = get(&client, &format!("{fields}Range: bytes=5-\r\n")).await;
            assert_eq!((reply.status, reply.body == data), (200, true), "{fields}");
        }
        let reply = get(&client, "If-Match: \"1-0\"\r\nRange: bytes=5-\r\n").await;
        assert_eq!((reply.status, reply.header("ETag")), (412, Some(tag)), "{reply:?}");
        client.delete(&whole).await;
        assert_eq!(get(&client, &format!("If-Match: {tag}\r\n")).await.status, 412);
        assert_eq!(get(&client, &format!("If-Range: {tag}\r\nRange: bytes=5-\r\n")).await.status, 204);
        // An item without bytes has no part.
        assert_eq!(client.put(b"").await.status, 200);
        let empty = get(&client, "").await;
        let tag = empty.header("ETag").unwrap();
        assert_eq!(get(&client, &format!("If-Range: {tag}\r\nRange: bytes=0-\r\n")).await.status, 416);
    });
}

#[test]
fn a_part_of_a_damaged_item_is_cut_wherever_the_damage_is() {
    let mut site = Site::new(71, 4 * MIB, &[]);
    let data = content(1, 900_000);
    let sent = data.clone();
    let tag = site.run(async move |client| {
        assert_eq!(client.put(&sent).await.status, 200);
        client.get().await.header("ETag").unwrap().to_owned()
    });
    for damage in [3, 400_000, 899_999] {
        let mut image = site.disk.image();
        let start = image.windows(16).position(|window| window == &data[..16]).unwrap();
        image[start + damage] ^= 1;
        let mut damaged =
            Site::with_disk(72, SimBlock::with_image(13, Default::default(), image), Default::default(), &[]);
        for range in ["0-99", "200000-500000", "600000-"] {
            let fields = format!("If-Range: {tag}\r\nRange: bytes={range}\r\n");
            let reply = damaged.run(async move |client| get(&client, &fields).await);
            // The error is the answer until a byte was sent.
            let is_refused = reply.status == 500 || (reply.status, reply.cut) == (206, true);
            assert!(is_refused, "{damage} {range}: {} with {} bytes", reply.status, reply.body.len());
        }
    }
}

#[test]
fn a_connection_that_received_a_part_removes_nothing() {
    let mut site = Site::new(73, 4 * MIB, &["--delete-by-connection"]);
    site.run(async |client| {
        assert_eq!(client.put(&content(1, 1000)).await.status, 200);
        let tag = client.get().await.header("ETag").unwrap().to_owned();
        let mut peer = client.connect().await;
        peer.send(format!("GET /downloader HTTP/1.1\r\nHost: q\r\nIf-Range: {tag}\r\nRange: bytes=5-\r\n\r\n")).await;
        assert_eq!(peer.reply().await.status, 206);
        peer.send("DELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!(peer.reply().await.status, 428);
    });
}
