//! The upload queue over its own TLS with programs of others: wget, whose TLS is GnuTLS; and sslscan and OpenSSL, which look for older versions
//! and for each cipher.

use crate::queue_tls::Queue;
use crate::tls::{data, is_installed};
use glass_tests::content::Content;
use glass_tests::queue::World;
use std::fs;
use std::process::{Command, Output, Stdio};

glass_tests::in_worlds!(process Process: wget_uploads_and_downloads within 240; only_tls_1_3_is_there within 300;);
glass_tests::in_worlds!(kvm Kvm: wget_uploads_and_downloads within 240; only_tls_1_3_is_there within 300;);

const DISK: &str = "--disk-size=64M";
/// The ciphers of TLS 1.3 that the queue has, by their names in OpenSSL.
const OFFERED: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// The others of TLS 1.3.
const NOT_OFFERED: [&str; 2] = ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub fn wget_uploads_and_downloads(world: World) {
    if !is_installed("wget", "--version") {
        return;
    }
    let Some(queue) = Queue::start(world, &[DISK], &[]) else { return };
    let run = |path: &str, arguments: &[&str]| {
        let mut command = Command::new("wget");
        command.args(["--no-verbose", "--server-response", "--tries=1", "--timeout=60", "--ca-certificate"]);
        command.arg(data("root.pem")).args(arguments);
        command.arg(format!("https://localhost:{}{path}", queue.port)).output().unwrap()
    };
    let wget = |path: &str, arguments: &[&str]| {
        let output = run(path, arguments);
        assert!(output.status.success(), "wget {arguments:?}: {}{}", text(&output), queue.process.output());
        text(&output)
    };
    let items = [1, 2].map(|seed| Content { seed, length_bytes: 5_000_000 }.bytes());
    let (sent, got) = (queue.share.file("sent"), queue.share.file("got"));
    let [body, into] = [&sent, &got].map(|path| path.to_str().unwrap());
    let take = |expected: &[u8]| {
        wget("/downloader", &["--output-document", into]);
        assert!(fs::read(&got).unwrap() == expected);
        wget("/downloader", &["--method=DELETE", "--header=If-Match: *", "--output-document=-"]);
    };
    for item in &items {
        fs::write(&sent, item).unwrap();
        wget("/uploader", &["--method=PUT", "--body-file", body, "--output-document=-"]);
    }
    take(&items[0]);
    // A part of the first item must not be joined with the second one, which is the oldest by now.
    fs::write(&got, &items[0][..1_000_000]).unwrap();
    let joined = run("/downloader", &["--continue", "--output-document", into]);
    assert!(!joined.status.success() && text(&joined).contains("HTTP/1.1 428 "), "{}", text(&joined));
    assert!(fs::read(&got).unwrap() == items[0][..1_000_000]);
    take(&items[1]);
    assert!(wget("/downloader?wait=0", &["--output-document=-"]).contains("HTTP/1.1 204 "));
}

pub fn only_tls_1_3_is_there(world: World) {
    let Some(queue) = Queue::start(world, &[DISK], &[]) else { return };
    let target = format!("localhost:{}", queue.port);
    if is_installed("sslscan", "--version") {
        let output = Command::new("sslscan").args(["--no-colour", &target]).output().unwrap();
        let scan = text(&output);
        for version in ["SSLv2", "SSLv3", "TLSv1.0", "TLSv1.1", "TLSv1.2"] {
            let line = scan.lines().find(|line| line.starts_with(&format!("{version} ")));
            assert!(line.is_some_and(|line| line.ends_with("disabled")), "{version}: {scan}");
        }
        let ciphers: Vec<_> =
            scan.lines().filter(|line| line.starts_with("Preferred ") || line.starts_with("Accepted ")).collect();
        let is_offered = |line: &&str| OFFERED.iter().any(|cipher| line.contains(cipher)) && line.contains("TLSv1.3");
        assert!(ciphers.len() == OFFERED.len() && ciphers.iter().all(is_offered), "{scan}");
    }
    if !is_installed("openssl", "version") {
        return;
    }
    let connect = |options: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &target, "-servername", "localhost", "-verify_return_error", "-CAfile"]);
        command.arg(data("root.pem")).args(options).stdin(Stdio::null()).output().unwrap()
    };
    for cipher in OFFERED {
        let output = connect(&["-tls1_3", "-ciphersuites", cipher]);
        let said = text(&output);
        let is_right =
            said.contains(&format!("New, TLSv1.3, Cipher is {cipher}")) && said.contains("Verify return code: 0");
        assert!(output.status.success() && is_right, "{said}");
    }
    for cipher in NOT_OFFERED {
        let output = connect(&["-tls1_3", "-ciphersuites", cipher]);
        assert!(
            !output.status.success() && text(&output).contains("alert handshake failure"),
            "{cipher}: {}",
            text(&output)
        );
    }
    // Each cipher that OpenSSL has for older versions. The queue refuses the version, which OpenSSL has offered.
    let list =
        Command::new("openssl").args(["ciphers", "-s", "-tls1_2", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let ciphers: Vec<_> = list.trim().split(':').collect();
    assert!(ciphers.len() > 20, "{list}");
    for cipher in ciphers {
        let output = connect(&["-tls1_2", "-cipher", &format!("{cipher}:@SECLEVEL=0")]);
        assert!(
            !output.status.success() && text(&output).contains("alert protocol version"),
            "{cipher}: {}",
            text(&output)
        );
    }
}
