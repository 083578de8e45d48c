//! The access log: a line for each request, without what gives a right.

use crate::common::site::{Client, Reply, Site, content};
use core::time::Duration;
use glass_platform_sim::{DiskConfig, NodeConfig, SimBlock, SimFiles};
use glasshouse::Clock;
use serde_json::Value;
use sha2::{Digest, Sha256};

const TOKEN: &str = "alice-0123456789abcdef";

fn site(seed: u64, files: &SimFiles, args: &[&str]) -> Site {
    let disk = SimBlock::new(seed, DiskConfig { size_bytes: 4 << 20, ..DiskConfig::default() });
    let args = args.iter().map(|arg| arg.to_string()).collect();
    Site::with_config(seed, NodeConfig { disks: vec![disk], files: Some(files.clone()), args, ..NodeConfig::default() })
}

/// The lines of a log, each as JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn file(files: &SimFiles, path: &str) -> Vec<Value> {
    lines(&String::from_utf8(files.get(path).unwrap_or_default()).unwrap())
}

async fn ask(client: &Client, head: &str, body: &[u8]) -> Reply {
    client.ask([head.replace('\n', "\r\n").as_bytes(), b"\r\n\r\n", body].concat()).await
}

/// Longer than the pause between two writes.
async fn pause(client: &Client) {
    client.node.sleep(Duration::from_secs(1)).await;
}

#[test]
fn each_request_has_a_line_that_shows_no_token() {
    let files = SimFiles::new(120);
    let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
    files.put("tokens", format!("uploader alice {hash}\n").as_bytes());
    let mut site = site(120, &files, &["--tokens=tokens", "--access-log", "access.log"]);
    site.run(async |client| {
        let head = format!(
            "PUT /uploader HTTP/1.1\nHost: q\nAuthorization: Bearer {TOKEN}\nUser-Agent: a \"b\"\\\u{9b}\u{fc}\nContent-Length: 5000"
        );
        assert_eq!(ask(&client, &head, &content(1, 5000)).await.status, 200);
        let head = format!("POST /uploader/!{TOKEN} HTTP/1.1\nHost: q\nUpload-Complete: ?0\nContent-Length: 3");
        let begun = ask(&client, &head, b"abc").await;
        let path = begun.header("Location").unwrap().to_owned();
        // The answer 104 comes first.
        assert_eq!((begun.status, path.len()), (104, "/uploads/".len() + 32 + 2 + TOKEN.len()));
        assert_eq!(ask(&client, &format!("HEAD {path} HTTP/1.1\nHost: q"), b"").await.status, 204);
        assert_eq!(ask(&client, &format!("GET /downloader?token={TOKEN} HTTP/1.1\nHost: q"), b"").await.status, 401);
        assert_eq!(ask(&client, &format!("GET /downloader HTTP/1.1\nHost: q\nAuthorization: Bearer {TOKEN}"), b"").await.status, 403);
        // A client that is gone before the end.
        let mut peer = client.connect().await;
        peer.send("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 5\r\n").await;
        peer.send(format!("Authorization: Bearer {TOKEN}\r\n\r\nab")).await;
        pause(&client).await;
        drop(peer);
        pause(&client).await;
    });
    let found = file(&files, "access.log");
    let text = String::from_utf8(files.get("access.log").unwrap()).unwrap();
    assert!(!text.contains("0123456789abcdef"), "{text}");
    assert!(!text.contains(|character: char| character.is_control() && character != '\n'), "{text:?}");
    let members =
        |line: &Value, names: &[&str]| names.iter().map(|name| line[*name].to_string()).collect::<Vec<_>>().join(" ");
    let shown: Vec<String> =
        found.iter().map(|line| members(line, &["role", "name", "method", "path", "status", "received"])).collect();
    assert_eq!(
        shown,
        [
            r#""uploader" "alice" "PUT" "/uploader" 200 5000"#,
            r#""uploader" "alice" "POST" "/uploader/-" 201 3"#,
            r#""uploader" "alice" "HEAD" "/uploads/-/-" 204 0"#,
            r#"null null "GET" "/downloader" 401 0"#,
            r#""uploader" "alice" "GET" "/downloader" 403 0"#,
            r#""uploader" "alice" "PUT" "/uploader" null 2"#,
        ]
    );
    assert_eq!((found[0]["agent"].as_str(), &found[1]["agent"]), (Some("a \"b\"\\\u{9b}\u{fc}"), &Value::Null));
    assert!(found[0]["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.len() == 24), "{:?}", found[0]);
    assert!(found[0]["client"].as_str().is_some_and(|client| client.parse::<core::net::SocketAddr>().is_ok()));
    assert!(found.iter().all(|line| line["ms"].is_f64()) && found[3]["sent"].as_u64() > Some(50), "{found:?}");
}

#[test]
fn a_log_that_is_rotated_or_cut_goes_on() {
    let files = SimFiles::new(121);
    files.put("access.log", b"{\"before\":1}\n");
    let mut site = site(121, &files, &["--access-log=access.log"]);
    let shared = files.clone();
    site.run(async move |client| {
        let request = async || {
            assert_eq!(ask(&client, "GET /healthz HTTP/1.1\nHost: q", b"").await.status, 200);
            pause(&client).await;
        };
        request().await;
        assert_eq!(file(&shared, "access.log").len(), 2);
        shared.move_file("access.log", "access.log.1");
        request().await;
        assert_eq!((file(&shared, "access.log").len(), file(&shared, "access.log.1").len()), (1, 2));
        shared.overwrite("access.log", b"");
        request().await;
        assert_eq!(file(&shared, "access.log").len(), 1);
        // What could not be written is counted.
        shared.fail_every(Some(1));
        request().await;
        request().await;
        shared.fail_every(None);
        request().await;
        let found = file(&shared, "access.log");
        assert_eq!(found.iter().filter_map(|line| line["dropped"].as_u64()).sum::<u64>(), 2, "{found:?}");
        assert_eq!(found.iter().filter(|line| line["path"] == "/healthz").count(), 2, "{found:?}");
        let metrics = ask(&client, "GET /metrics HTTP/1.1\nHost: q", b"").await.text();
        assert!(metrics.contains("\nglass_queue_log_dropped_total 2\n"), "{metrics}");
    });
    let console = site.server.console();
    let complaints =
        console.iter().filter(|line| line.contains("the access log cannot be written: access.log: ")).count();
    assert_eq!(complaints, 1, "{console:?}");
}

#[test]
fn the_console_gets_the_log_and_its_last_lines() {
    let mut site = Site::new(122, 1 << 20, &["--access-log=-"]);
    site.run(async |client| {
        for _ in 0..3 {
            assert_eq!(client.put(b"x").await.status, 200);
        }
    });
    site.server.shut_down();
    let node = site.server.clone();
    site.world
        .run_until(Duration::from_secs(60), || node.console().iter().any(|line| line.ends_with(": ended")))
        .unwrap();
    let console = site.server.console();
    let logged: Vec<Value> = console.iter().filter(|line| line.starts_with('{')).flat_map(|line| lines(line)).collect();
    assert_eq!(logged.iter().filter(|line| line["path"] == "/uploader").count(), 3, "{console:?}");
    assert!(Site::new(122, 1 << 20, &[]).server.console().iter().all(|line| !line.starts_with('{')));
}

#[test]
fn a_flood_costs_lines_and_no_memory() {
    let files = SimFiles::new(123);
    let mut site = site(123, &files, &["--access-log=access.log"]);
    site.run(async |client| {
        let mut peer = client.connect().await;
        let requests = "GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n".repeat(3000);
        peer.send(requests).await;
        for _ in 0..3000 {
            assert_eq!(peer.reply().await.status, 200);
        }
        pause(&client).await;
    });
    let found = file(&files, "access.log");
    let dropped: u64 = found.iter().filter_map(|line| line["dropped"].as_u64()).sum();
    let logged = found.iter().filter(|line| line["path"] == "/healthz").count() as u64;
    assert!(dropped > 0 && logged + dropped == 3000, "{logged} and {dropped}");
}

#[test]
fn a_log_that_cannot_be_opened_ends_the_start() {
    let none = Site::new(124, 1 << 20, &["--access-log=access.log"]).server.console().last().unwrap().clone();
    assert!(none.contains("the access log cannot be written: start with --share DIRECTORY"), "{none}");
    let files = SimFiles::new(124);
    let wrong = site(124, &files, &["--access-log=no/such/file"]).server.console().last().unwrap().clone();
    assert!(wrong.contains("the access log cannot be written: no/such/file: there is no such file"), "{wrong}");
}
