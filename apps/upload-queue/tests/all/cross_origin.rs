//! Requests from pages of other origins.

use crate::common::site::{Reply, Site};
use core::time::Duration;
use glass_platform_sim::{DiskConfig, NodeConfig, SimBlock, SimFiles};
use glasshouse::Clock;

const PREFLIGHT: &str =
    "Access-Control-Request-Method: PATCH\r\nAccess-Control-Request-Headers: authorization,upload-offset\r\n";

fn allowed(reply: &Reply) -> Option<&str> {
    reply.header("Access-Control-Allow-Origin")
}

#[test]
fn pages_of_allowed_origins_may_read_answers_and_others_may_not() {
    let files = SimFiles::new(140);
    // No token of it is presented.
    files.put("tokens", b"");
    files.put("queue.toml", b"tokens = \"tokens\"\ncors-origin = [\"https://a.example\", \"http://b.example:3000\"]\n");
    let disk = SimBlock::new(140, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
    let args = vec!["--config=queue.toml".to_owned()];
    let config = NodeConfig { disks: vec![disk], files: Some(files.clone()), args, ..NodeConfig::default() };
    let mut site = Site::with_config(140, config);
    site.run(async move |client| {
        let ask = async |start: &str, origin: &str, fields: &str| {
            let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
            client.ask(format!("{start} HTTP/1.1\r\nHost: q\r\n{origin}{fields}\r\n")).await
        };
        for origin in ["https://a.example", "http://b.example:3000"] {
            let reply = ask("OPTIONS /uploader", origin, PREFLIGHT).await;
            assert_eq!((reply.status, allowed(&reply), reply.header("Vary")), (204, Some(origin), Some("Origin")));
            assert!(reply.header("Access-Control-Allow-Methods").unwrap().split(", ").any(|method| method == "PATCH"));
            let fields = reply.header("Access-Control-Allow-Headers").unwrap().to_ascii_lowercase();
            assert!(
                ["authorization", "upload-offset", "tus-resumable"].iter().all(|name| fields.contains(name)),
                "{fields}"
            );
            assert_eq!(
                (reply.header("Tus-Version"), reply.header("Access-Control-Max-Age")),
                (Some("1.0.0"), Some("86400"))
            );
            let reply = ask("OPTIONS /downloader", origin, PREFLIGHT).await;
            assert_eq!((reply.status, allowed(&reply), reply.header("Tus-Version")), (204, Some(origin), None));
            // Also an answer that refuses, so that the page learns why.
            let reply = ask("PUT /uploader", origin, "Content-Length: 0\r\n").await;
            assert_eq!((reply.status, allowed(&reply)), (401, Some(origin)));
            let exposed = reply.header("Access-Control-Expose-Headers").unwrap();
            assert!(["Location", "ETag", "Upload-Offset"].iter().all(|name| exposed.split(", ").any(|it| it == *name)));
            let reply = ask("GET /healthz", origin, "").await;
            assert_eq!((reply.status, allowed(&reply)), (200, Some(origin)));
        }
        for origin in
            ["", "https://b.example", "http://a.example", "https://a.example.evil", "null", "https://a.example, *"]
        {
            let reply = ask("OPTIONS /uploader", origin, PREFLIGHT).await;
            assert_eq!((reply.status, allowed(&reply)), (401, None), "{origin}");
            let reply = ask("GET /healthz", origin, "").await;
            assert_eq!((reply.status, allowed(&reply), reply.header("Vary")), (200, None, None), "{origin}");
        }
        // OPTIONS of tus is no preflight, and needs its token.
        let reply = ask("OPTIONS /uploader", "https://a.example", "").await;
        assert_eq!((reply.status, allowed(&reply)), (401, Some("https://a.example")));
        files.put("queue.toml", b"tokens = \"tokens\"\ncors-origin = \"*\"\n");
        client.node.sleep(Duration::from_secs(5)).await;
        let reply = ask("OPTIONS /uploads/00112233445566778899aabbccddeeff", "https://c.example", PREFLIGHT).await;
        assert_eq!((reply.status, allowed(&reply), reply.header("Vary")), (204, Some("*"), None));
    });
    // Off by default.
    let mut site = Site::new(141, 1 << 20, &[]);
    site.run(async |client| {
        let reply = client
            .ask(format!("OPTIONS /uploader HTTP/1.1\r\nHost: q\r\nOrigin: https://a.example\r\n{PREFLIGHT}\r\n"))
            .await;
        assert_eq!((reply.status, allowed(&reply)), (204, None));
    });
}
