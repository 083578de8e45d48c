//! The status page.

use crate::common::site::{Site, content, put_head};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use core::time::Duration;
use glasshouse::Clock;
use sha2::{Digest, Sha256};

const MIB: u64 = 1 << 20;

#[test]
fn the_page_shows_items_space_and_uploads_as_they_progress() {
    let mut site = Site::new(110, 4 * MIB, &[]);
    site.run(async |client| {
        let page = async || client.ask("GET /status HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert!(page().await.text().contains("<p>There are none.</p>"));
        assert_eq!(client.put(&content(1, 5000)).await.status, 200);
        let head = "POST /uploader HTTP/1.1\r\nHost: q\r\nUpload-Complete: ?0\r\nUpload-Length: 4096\r\nContent-Length: 1024\r\n\r\n";
        let begun = [head.as_bytes(), &[7; 1024]].concat();
        let mut peer = client.connect().await;
        peer.send(begun).await;
        assert_eq!((peer.reply().await.status, peer.reply().await.status), (104, 201));
        let mut slow = client.connect().await;
        slow.send(put_head(100_000)).await;
        slow.send(vec![1; 51_200]).await;
        client.node.sleep(Duration::from_secs(1)).await;
        let reply = page().await;
        let text = reply.text();
        for part in [
            "<dt>in the queue<dd>1 of 252",
            "<td>any client<td>is received<td><progress aria-label='upload of any client' max=100000 value=51200></progress><td>50.0 KiB of 97.6 KiB",
            "<td>any client<td>can be resumed<td><progress aria-label='upload of any client' max=4096 value=1024></progress><td>1.0 KiB of 4.0 KiB",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Its script is the only one that a browser runs.
        let (_, script) = text.split_once("<script>").unwrap();
        let hash = BASE64_STANDARD.encode(Sha256::digest(script.split_once("</script>").unwrap().0));
        let policy = reply.header("Content-Security-Policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && policy.contains(&format!("script-src 'sha256-{hash}'; ")), "{policy}");
        assert!(!text.contains("http:") && !text.contains("https:"), "{text}");
        slow.send(vec![1; 48_800]).await;
        assert_eq!(slow.reply().await.status, 200);
        let text = page().await.text();
        assert!(text.contains("<dd>2 of 252") && !text.contains("is received"), "{text}");
        let reply = client.ask("POST /status HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!((reply.status, reply.header("Allow")), (405, Some("GET, HEAD")));
    });
}
