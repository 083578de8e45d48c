//! A file with settings, which is read again when it changes.

use crate::common::site::Site;
use core::time::Duration;
use glass_platform_sim::{DiskConfig, NodeConfig, SimBlock, SimFiles};
use glasshouse::Clock;

fn site(seed: u64, files: &SimFiles, args: &[&str]) -> Site {
    let disk = SimBlock::new(seed, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
    let args = args.iter().map(|arg| arg.to_string()).collect();
    Site::with_config(seed, NodeConfig { disks: vec![disk], files: Some(files.clone()), args, ..NodeConfig::default() })
}

#[test]
fn settings_of_a_file_hold_and_some_change_while_the_queue_runs() {
    let files = SimFiles::new(130);
    files.put("queue.toml", b"port = 8080\nmax-item-bytes = 5\ntries = 9\n");
    let mut site = site(130, &files, &["--config=queue.toml", "--tries=1"]);
    let console = site.server.clone();
    site.run(async move |client| {
        let pause = async || client.node.sleep(Duration::from_secs(5)).await;
        assert_eq!(client.put(b"123456").await.status, 413);
        assert_eq!(client.put(b"12345").await.status, 200);
        let lease =
            async || client.ask("POST /leases?secs=1 HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\n\r\n").await.status;
        // By the argument, whatever the file has.
        assert_eq!(lease().await, 200);
        pause().await;
        assert_eq!(lease().await, 204, "it was given out once");
        let remove = async || client.ask("DELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await.status;
        assert_eq!(remove().await, 428);
        files.put("queue.toml", b"port = 8081\nmax-item-bytes = 9\ndelete-by-connection = true\n");
        pause().await;
        assert_eq!(client.put(b"123456").await.status, 413, "this one takes a restart");
        assert_eq!(client.put(b"6").await.status, 200);
        let mut peer = client.connect().await;
        peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\nDELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!((peer.reply().await.status, peer.reply().await.status), (200, 200));
        // A mistake changes nothing.
        files.put("queue.toml", b"delete-by-connection = false\nprot = 1\n");
        pause().await;
        assert_eq!(client.put(b"7").await.status, 200);
        peer.send("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\nDELETE /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await;
        assert_eq!((peer.reply().await.status, peer.reply().await.status), (200, 200));
        files.put("queue.toml", b"port = 8080\nmax-item-bytes = 5\n");
        pause().await;
        assert_eq!(remove().await, 428);
    });
    let lines = console.console();
    for expected in [
        "new settings are used; those other than tries, delete-by-connection and cors-origin after the next start",
        "the settings of before are used: queue.toml, line 2: prot: there is no such key",
        "upload-queue: new settings are used",
    ] {
        assert!(lines.iter().any(|line| line.ends_with(expected)), "{expected}: {lines:?}");
    }
}

#[test]
fn a_start_with_a_wrong_file_fails_and_names_the_line() {
    let files = SimFiles::new(131);
    files.put("queue.toml", b"# settings\nport = \"x\"\n");
    let ended = |args: &[&str]| site(131, &files, args).server.console().last().unwrap().clone();
    let expected = "ended: the settings cannot be used: queue.toml, line 2: port: a number from 0 to 65535";
    assert!(ended(&["--config", "queue.toml"]).starts_with(expected), "{}", ended(&["--config", "queue.toml"]));
    let expected = "ended: the settings cannot be used: none.toml: there is no such file or directory";
    assert_eq!(ended(&["--config=none.toml"]), expected);
    let none = Site::new(131, 1 << 20, &["--config=queue.toml"]).server.console().last().unwrap().clone();
    assert_eq!(
        none,
        "ended: the settings cannot be used: queue.toml: start with --share DIRECTORY, or --files-disk FILE, which has it"
    );
}
