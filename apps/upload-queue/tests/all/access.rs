//! Tokens: who may do what, until when, and how much.

use crate::common::site::{Client, Reply, Site, content};
use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, Faults, NodeConfig, SimBlock, SimFiles, for_seeds};
use glasshouse::{Clock, Stream};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-000123456789abcdef";
const CAROL: &str = "carol-0123456789abcdef";

fn line(role: &str, name: &str, token: &str, limits: &str) -> String {
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{role} {name} {hash} {limits}\n")
}

fn three(limits: &str) -> String {
    line("uploader", "alice", ALICE, limits) + &line("consumer", "bob", BOB, "") + &line("admin", "carol", CAROL, "")
}

fn site(seed: u64, tokens: &str) -> (Site, SimFiles) {
    let files = SimFiles::new(seed);
    files.put("tokens", tokens.as_bytes());
    let disk = SimBlock::new(seed, DiskConfig { size_bytes: 4 << 20, ..DiskConfig::default() });
    (with_disk(seed, disk, files.clone()), files)
}

fn with_disk(seed: u64, disk: SimBlock, files: SimFiles) -> Site {
    let args = ["--tokens", "tokens"].map(String::from).to_vec();
    Site::with_config(seed, NodeConfig { disks: vec![disk], files: Some(files), args, ..NodeConfig::default() })
}

async fn ask(client: &Client, start: &str, token: &str, fields: &str, body: &[u8]) -> Reply {
    let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let length = if start.starts_with("PUT") { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    let head = format!("{start} HTTP/1.1\r\nHost: q\r\n{authorization}{length}{fields}\r\n");
    client.ask([head.as_bytes(), body].concat()).await
}

async fn put(client: &Client, token: &str, body: &[u8]) -> Reply {
    ask(client, "PUT /uploader", token, "", body).await
}

async fn remove(client: &Client) -> u16 {
    ask(client, "DELETE /downloader", BOB, "If-Match: *\r\n", b"").await.status
}

#[test]
fn each_role_may_do_its_own_and_no_more() {
    let (mut site, _) = site(90, &three(""));
    site.run(async |client| {
        for (start, fields, statuses) in [
            // Without a token, with an unknown one, and those of the uploader, the consumer and the admin.
            ("PUT /uploader", "", [401, 401, 200, 403, 200]),
            ("POST /uploader", "", [401, 401, 405, 403, 405]),
            ("GET /downloader?wait=0", "", [401, 401, 403, 200, 200]),
            ("DELETE /downloader", "", [401, 401, 403, 428, 428]),
            ("DELETE /downloader", "If-Match: \"x\"\r\n", [401, 401, 403, 412, 412]),
            ("GET /", "", [401, 401, 403, 403, 200]),
            ("GET /metrics", "", [401, 401, 403, 403, 200]),
            ("GET /status", "", [401, 401, 403, 403, 200]),
            ("GET /items", "", [401, 401, 403, 200, 200]),
            ("POST /leases", "", [401, 401, 403, 200, 200]),
            ("DELETE /leases/9", "", [401, 401, 403, 404, 404]),
            ("HEAD /uploads/00112233445566778899aabbccddeeff", "", [401, 401, 404, 403, 404]),
            ("GET /healthz", "", [200; 5]),
            ("GET /readyz", "", [200; 5]),
            ("GET /nothing", "", [404; 5]),
        ] {
            for (token, status) in ["", "dave-0123456789abcdef", ALICE, BOB, CAROL].into_iter().zip(statuses) {
                let reply = ask(&client, start, token, fields, b"").await;
                assert_eq!(reply.status, status, "{start} by {token:?}: {reply:?}");
                let challenge =
                    reply.header("WWW-Authenticate").is_some_and(|field| field.starts_with("Bearer realm="));
                assert_eq!(challenge, status == 401, "{reply:?}");
            }
        }
        for field in ["Basic YWxpY2U6eA==", "Bearer", "Bearer ", ALICE, "bearer alice-0123456789abcde", "Bearer \u{fe}"]
        {
            let reply = ask(&client, "PUT /uploader", "", &format!("Authorization: {field}\r\n"), b"").await;
            assert_eq!(reply.status, 401, "{field}");
        }
        let reply = ask(&client, "PUT /uploader", "", &format!("authorization: bEARER  {ALICE} \r\n"), b"").await;
        assert_eq!(reply.status, 200);
    });
}

#[test]
fn a_path_with_a_token_is_a_right_and_any_other_is_no_path() {
    let (mut site, _) = site(91, &three(""));
    site.run(async |client| {
        let (up, down) = (format!("/uploader/!{ALICE}"), format!("/downloader/!{BOB}"));
        assert_eq!(ask(&client, &format!("PUT {up}"), "", "", b"x").await.status, 200);
        assert_eq!(ask(&client, &format!("GET {down}?wait=0"), "", "", b"").await.text(), "x");
        // The token of the path counts, whatever the field has.
        assert_eq!(ask(&client, &format!("PUT /uploader/!{BOB}"), ALICE, "", b"x").await.status, 403);
        for path in [format!("{up}x"), format!("/uploader/{ALICE}"), "/uploader/!".into(), format!("/x/!{ALICE}")] {
            let reply = ask(&client, &format!("PUT {path}"), "", "", b"x").await;
            assert_eq!(reply.status, 404, "{path}");
        }
        assert_eq!(ask(&client, &format!("DELETE {down}"), "", "If-Match: *\r\n", b"").await.status, 200);
    });
    // A queue without tokens has no such paths.
    let mut open = Site::new(91, 1 << 20, &[]);
    let path = format!("PUT /uploader/!{ALICE}");
    assert_eq!(open.run(async move |client| ask(&client, &path, "", "", b"x").await.status), 404);
}

#[test]
fn a_token_is_refused_before_the_body() {
    let (mut site, _) = site(92, &three("bytes=100"));
    site.run(async |client| {
        for (fields, status) in
            [("", 401), ("Authorization: Bearer bob-000123456789abcdef\r\n", 403), (&auth(ALICE), 507)]
        {
            let mut peer = client.connect().await;
            let head = "PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 101\r\nExpect: 100-continue\r\n";
            peer.send(format!("{head}{fields}\r\n")).await;
            assert_eq!(peer.reply().await.status, status);
            assert!(peer.ends().await);
        }
    });
}

fn auth(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn tokens_change_without_a_restart_and_a_wrong_file_changes_nothing() {
    let (mut site, files) = site(93, &three(""));
    let console = site.server.clone();
    site.run(async move |client| {
        let pause = async || client.node.sleep(Duration::from_secs(5)).await;
        // An upload that has begun is finished.
        let mut open = client.connect().await;
        open.send(format!("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 2\r\n{}\r\n1", auth(ALICE))).await;
        pause().await;
        files.put("tokens", line("uploader", "dave", BOB, "").as_bytes());
        pause().await;
        assert_eq!(put(&client, ALICE, b"x").await.status, 401);
        assert_eq!(put(&client, BOB, b"x").await.status, 200);
        open.send("2").await;
        assert_eq!(open.reply().await.status, 200);
        files.put("tokens", b"uploader dave");
        pause().await;
        assert_eq!(put(&client, BOB, b"x").await.status, 200);
        files.remove("tokens");
        pause().await;
        assert_eq!(put(&client, BOB, b"x").await.status, 200);
        files.put("tokens", b"");
        pause().await;
        assert_eq!(put(&client, BOB, b"x").await.status, 401);
    });
    let lines = console.console();
    for expected in [
        "3 tokens are valid",
        "1 tokens are valid now",
        "before are valid: tokens, line 1: ",
        "before are valid: tokens: there is no",
    ] {
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("there are no tokens")), "{lines:?}");
}

#[test]
fn a_start_without_tokens_warns_and_one_with_a_wrong_file_fails() {
    let open = Site::new(94, 1 << 20, &[]);
    assert!(open.server.console().iter().any(|line| line.contains("warning: there are no tokens")));
    let ended = |text: &str| site(94, text).0.server.console().last().unwrap().clone();
    assert!(ended("admin").starts_with("ended: the tokens cannot be used: tokens, line 1: "), "{}", ended("admin"));
    let large = "#".repeat(300_000);
    assert!(ended(&large).contains("more than 262144 bytes"), "{}", ended(&large));
    let none = Site::new(94, 1 << 20, &["--tokens", "tokens"]).server.console().last().unwrap().clone();
    assert!(none.contains("start with --share DIRECTORY"), "{none}");
}

#[test]
fn a_rate_makes_an_uploader_wait_and_no_other() {
    let tokens = three("rate=1K") + &line("uploader", "erin", "erin-0123456789abcdef0", "rate=1K");
    let (mut site, _) = site(95, &tokens);
    site.run(async |client| {
        assert_eq!(put(&client, ALICE, &content(1, 61_000)).await.status, 200);
        assert_eq!(put(&client, ALICE, &content(2, 10_000)).await.status, 200);
        let refused = put(&client, ALICE, b"x").await;
        let pause: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
        assert_eq!((refused.status, (5..=10).contains(&pause)), (429, true), "{refused:?}");
        assert_eq!(put(&client, "erin-0123456789abcdef0", b"x").await.status, 200);
        assert_eq!(put(&client, CAROL, b"x").await.status, 200);
        client.node.sleep(Duration::from_secs(pause)).await;
        assert_eq!(put(&client, ALICE, b"x").await.status, 200);
    });
}

#[test]
fn a_restart_forgets_who_has_uploaded() {
    let (mut before, files) = site(96, &three("bytes=1000"));
    before.run(async |client| {
        assert_eq!(put(&client, ALICE, &content(1, 600)).await.status, 200);
        assert_eq!(put(&client, ALICE, &content(2, 600)).await.status, 507);
    });
    let mut after = with_disk(97, before.disk.restart(97), files);
    after.run(async |client| {
        assert_eq!(put(&client, ALICE, &content(2, 600)).await.status, 200);
        assert_eq!(put(&client, ALICE, &content(2, 600)).await.status, 507);
        assert_eq!((remove(&client).await, remove(&client).await), (200, 200));
    });
}

/// What an uploader may have in the random runs.
const QUOTA_BYTES: u64 = 300_000;
/// Where the index is on the disk, and a part of the data.
const INDEX: core::ops::Range<u64> = 0..1 << 16;

/// Whatever happens to uploads, what they count for their uploader comes back when they and their items are gone.
#[test]
fn a_quota_is_exact_whatever_happens() {
    let mut all_statuses = BTreeSet::new();
    for_seeds(0..30, |seed| {
        let (mut site, _) = site(seed, &three(&format!("bytes={QUOTA_BYTES}")));
        let disk = site.disk.clone();
        let statuses = site.run(async move |client| {
            let mut chance = Chance::new(seed);
            let mut statuses = BTreeSet::new();
            for step in 0..40 {
                let data = content(step, chance.below(120_000) as usize);
                let status = match chance.below(6) {
                    0 => remove(&client).await,
                    1 => {
                        let digest = "Content-Digest: sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:\r\n";
                        ask(&client, "PUT /uploader", ALICE, digest, &data).await.status
                    }
                    2 => {
                        let mut peer = client.connect().await;
                        let head = format!(
                            "PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 120000\r\n{}\r\n",
                            auth(ALICE)
                        );
                        peer.send(head).await;
                        peer.send(&data).await;
                        let _ = peer.stream.close().await;
                        peer.reply().await.status
                    }
                    3 => {
                        let head = "PUT /uploader HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n";
                        let mut request = format!("{head}{}\r\n{:x}\r\n", auth(ALICE), data.len().max(1)).into_bytes();
                        request.extend(if data.is_empty() { &b"x"[..] } else { &data });
                        client.ask([&request[..], b"\r\n0\r\n\r\n"].concat()).await.status
                    }
                    4 => {
                        disk.set_faults(Faults { write_ranges: vec![INDEX], ..Faults::default() });
                        let status = put(&client, ALICE, &data).await.status;
                        disk.set_faults(Faults::default());
                        status
                    }
                    _ => put(&client, ALICE, &data).await.status,
                };
                statuses.insert(status);
            }
            while remove(&client).await == 200 {}
            // A commit without changes frees what failed ones have left.
            assert_eq!(put(&client, CAROL, b"x").await.status, 200);
            assert_eq!(remove(&client).await, 200);
            assert_eq!(put(&client, ALICE, &content(0, QUOTA_BYTES as usize + 1)).await.status, 507);
            assert_eq!(put(&client, ALICE, &content(0, QUOTA_BYTES as usize)).await.status, 200);
            statuses
        });
        all_statuses.extend(statuses);
    });
    // Of a wrong digest, of nothing to remove, of a disk that fails, and of the quota.
    assert!([200, 400, 412, 500, 507].iter().all(|status| all_statuses.contains(status)), "{all_statuses:?}");
}
