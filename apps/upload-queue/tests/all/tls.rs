//! The service over TLS, on simulated machines.

use crate::common::site::{Site, content};
use core::time::Duration;
use glass_platform_sim::{DiskConfig, LinkConfig, Node, NodeConfig, SimBlock, SimFiles};
use glasshouse::tls::{Client, ClientOptions, Roots, TlsStream};
use glasshouse::{Clock, Net, Platform, Stream};

type Connection = TlsStream<<<Node as Platform>::Net as Net>::Stream, Node>;

const IDENTITY: &[&str] = &["--tls-chain", "chain.pem", "--tls-key", "key.pem"];

/// A file of the tests of lib/tls.
fn data(file: &str) -> Vec<u8> {
    let path = format!("{}/../../lib/tls/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn put_identity(files: &SimFiles, name: &str) {
    files.put("chain.pem", &data(&format!("{name}.pem")));
    files.put("key.pem", &data(&format!("{name}.key")));
}

fn site(seed: u64, files: Option<SimFiles>, link: LinkConfig, args: &[&str]) -> Site {
    let disk = SimBlock::new(seed, DiskConfig { size_bytes: 4 << 20, ..DiskConfig::default() });
    let args = args.iter().map(|arg| arg.to_string()).collect();
    Site::with_config(seed, NodeConfig { disks: vec![disk], files, args, link, ..NodeConfig::default() })
}

async fn connect(node: &Node, remote: core::net::SocketAddr) -> Connection {
    let options = ClientOptions { protocols: vec!["http/1.1".into()], ..ClientOptions::default() };
    let client = Client::new(node, Roots::from_pem(&data("root.pem")).unwrap(), options).unwrap();
    let mut stream = client.connect(node.net().connect(remote).await.unwrap(), "server.test").unwrap();
    stream.handshake().await.unwrap();
    stream
}

/// The whole answer to a request that closes the connection.
async fn ask(stream: &mut Connection, head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let request = format!("{head} HTTP/1.1\r\nHost: q\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let (mut answer, mut buf) = (Vec::new(), vec![0; 70_000]);
    loop {
        match stream.read(&mut buf).await.unwrap() {
            0 => return answer,
            count => answer.extend_from_slice(&buf[..count]),
        }
    }
}

#[test]
fn items_cross_a_bad_network_whole_and_who_has_no_tls_gets_nothing() {
    let files = SimFiles::new(1);
    put_identity(&files, "server");
    let link = LinkConfig { loss_per_million: 20_000, ..LinkConfig::default() };
    let mut site = site(80, Some(files), link, IDENTITY);
    site.run(async |client| {
        for (tag, length) in [0, 1, 20_000, 700_000].into_iter().enumerate() {
            let data = content(tag as u64, length);
            let put = ask(&mut connect(&client.node, client.remote).await, "PUT /uploader", &data).await;
            assert!(put.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&put));
            let got = ask(&mut connect(&client.node, client.remote).await, "GET /downloader", b"").await;
            assert!(got.ends_with(&data) && got.starts_with(b"HTTP/1.1 200 OK"), "{length}");
            let removal = "DELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: *\r\nConnection: close\r\n\r\n";
            let mut stream = connect(&client.node, client.remote).await;
            stream.write_all(removal.as_bytes()).await.unwrap();
            let mut buf = [0; 15];
            assert_eq!(stream.read(&mut buf).await, Ok(15));
            assert_eq!(&buf, b"HTTP/1.1 200 OK");
        }
        let mut plain = client.connect().await;
        plain.send("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await;
        let mut answer = [0; 100];
        // An alert of TLS, or nothing.
        let count = plain.stream.read(&mut answer).await.unwrap_or(0);
        assert!(!answer[..count].starts_with(b"HTTP"), "{:?}", &answer[..count]);
    });
    assert!(!site.server.console().iter().any(|line| line.contains("warning: there is no TLS")));
}

#[test]
fn certificates_change_without_a_restart_and_wrong_ones_change_nothing() {
    let files = SimFiles::new(2);
    put_identity(&files, "server");
    let mut site = site(81, Some(files.clone()), LinkConfig::default(), IDENTITY);
    let console = site.server.clone();
    site.run(async move |client| {
        let first = connect(&client.node, client.remote).await.peer_certificates();
        files.put("chain.pem", &data("renewed.pem"));
        client.node.sleep(Duration::from_secs(5)).await;
        // The key is still the old one.
        assert_eq!(connect(&client.node, client.remote).await.peer_certificates(), first);
        files.put("key.pem", &data("renewed.key"));
        client.node.sleep(Duration::from_secs(5)).await;
        let second = connect(&client.node, client.remote).await.peer_certificates();
        assert!(first != second);
        files.put("chain.pem", b"nothing");
        client.node.sleep(Duration::from_secs(60)).await;
        assert_eq!(connect(&client.node, client.remote).await.peer_certificates(), second);
    });
    let lines = console.console();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("new certificates are used"), count("the certificates of before are used")), (1, 2), "{lines:?}");
}

#[test]
fn a_start_without_tls_warns_and_one_with_wrong_files_fails() {
    let warned = |site: &Site| site.server.console().iter().any(|line| line.contains("warning: there is no TLS"));
    assert!(warned(&site(82, None, LinkConfig::default(), &[])));
    assert!(!warned(&site(82, None, LinkConfig::default(), &["--port", "vsock:80"])));
    let ended = |files| site(83, files, LinkConfig::default(), IDENTITY).server.console().last().unwrap().clone();
    assert!(ended(None).contains("start with --share DIRECTORY"), "{}", ended(None));
    let files = SimFiles::new(3);
    assert!(ended(Some(files.clone())).contains("cannot be used: chain.pem: "), "{}", ended(Some(files.clone())));
    files.put("chain.pem", &data("server.pem"));
    files.put("key.pem", &data("renewed.key"));
    assert!(ended(Some(files.clone())).contains("cannot be used: "), "{}", ended(Some(files)));
}
