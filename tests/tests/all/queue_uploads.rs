//! The upload queue with clients of others that resume uploads: tus-js-client by tus 1.0 and by two revisions of the IETF's draft, and curl by the
//! text of the draft.

use crate::tls::is_installed;
use glass_tests::folder::Folder;
use glass_tests::npm;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::fs;
use std::path::Path;
use std::process::Command;

mod process {
    use super::*;

    #[test]
    fn tus_js_client_resumes_uploads() {
        glass_tests::limit::within(std::time::Duration::from_secs(300), || super::tus_js_client(World::Process));
    }

    #[test]
    fn curl_resumes_an_upload_by_the_draft() {
        glass_tests::limit::within(std::time::Duration::from_secs(600), super::curl_by_the_draft);
    }
}

mod kvm {
    use super::*;

    #[test]
    fn tus_js_client_resumes_uploads() {
        glass_tests::limit::within(std::time::Duration::from_secs(300), || super::tus_js_client(World::Kvm));
    }
}

/// Bytes that are not the same at any two places of a block.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// What curl prints with these arguments.
fn curl(queue: &Queue, path: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60"]).args(arguments);
    let output = command.arg(format!("http://{}{path}", queue.address)).output().unwrap();
    assert!(output.status.success(), "curl {arguments:?} {path}: {output:?}");
    output.stdout
}

/// The queue has this item and no other one; it is removed.
fn take_the_only_item(queue: &Queue, data: &[u8]) {
    let item = curl(queue, "/downloader?wait=0", &[]);
    assert!(item == data, "{} bytes of {}", item.len(), data.len());
    curl(queue, "/downloader", &["--fail", "--request", "DELETE", "--header", "If-Match: *"]);
    let status = curl(queue, "/downloader?wait=0", &["--write-out", "%{http_code}"]);
    assert_eq!(String::from_utf8_lossy(&status), "204", "there is a second item");
}

fn tus_js_client(world: World) {
    let list = programs::root().join("tests/tests/all/queue_uploads");
    let modules = match npm::modules(&list) {
        Ok(modules) => modules,
        Err(reason) => return programs::skip(&format!("tus-js-client: {reason:#}")),
    };
    if !is_installed("curl", "--version") {
        return;
    }
    let folder = Folder::new("queue-uploads").unwrap();
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap() else { return };
    let (data, file) = (content(5_000_123), folder.file("sent"));
    fs::write(&file, &data).unwrap();
    for protocol in ["tus-v1", "ietf-draft-05", "ietf-draft-03"] {
        let said = run_client(&list, &modules, &queue, &file, protocol);
        assert_eq!(said, "resumed\n", "{protocol}: {}", queue.output());
        take_the_only_item(&queue, &data);
    }
}

fn run_client(list: &Path, modules: &Path, queue: &Queue, file: &Path, protocol: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["90", "node"]).arg(list.join("client.cjs")).arg(modules);
    command.arg(format!("http://{}/uploader", queue.address)).arg(file).arg(protocol);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{protocol}: {output:?}: {}", queue.output());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn curl_by_the_draft() {
    if !is_installed("curl", "--version") {
        return;
    }
    let folder = Folder::new("queue-draft").unwrap();
    let started = Queue::start(World::Process, &folder.file("queue.img"), &Options::default());
    let Some(queue) = started.unwrap() else { return };
    let data = content(3_000_001);
    let part = |name: &str, bytes: &[u8]| {
        fs::write(folder.file(name), bytes).unwrap();
        format!("@{}", folder.file(name).display())
    };
    let field = |head: &[u8], name: &str| {
        let head = String::from_utf8_lossy(head).into_owned();
        let line = head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value[2..].trim().to_owned());
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    let first = part("first", &data[..1_000_000]);
    let length = format!("Upload-Length: {}", data.len());
    let begin = ["--include", "--header", "Upload-Complete: ?0", "--header", &length, "--data-binary", &first];
    let head = curl(&queue, "/uploader", &begin);
    let text = String::from_utf8_lossy(&head).into_owned();
    assert!(
        text.contains("HTTP/1.1 104 Upload Resumption Supported\r\n") && text.contains("HTTP/1.1 201 Created\r\n"),
        "{text}"
    );
    let path = field(&head, "Location");
    let head = curl(&queue, &path, &["--head"]);
    assert_eq!((field(&head, "Upload-Offset"), field(&head, "Upload-Complete")), ("1000000".into(), "?0".into()));
    let rest = part("rest", &data[1_000_000..]);
    let (kind, at) = ("Content-Type: application/partial-upload", "Upload-Offset: 1000000");
    let ends = ["--request", "PATCH", "--header", kind, "--header", at, "--header", "Upload-Complete: ?1"];
    let answer = curl(&queue, &path, &[&ends[..], &["--fail", "--data-binary", &rest]].concat());
    assert_eq!(String::from_utf8_lossy(&answer), "Accepted\n");
    assert_eq!(field(&curl(&queue, &path, &["--head"]), "Upload-Complete"), "?1");
    take_the_only_item(&queue, &data);
}
