//! The upload queue over TLS, as a process and as a VM, with curl.

use crate::tls::{data, is_installed, with_options};
use glass_tests::fat;
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(240);

glass_tests::in_every_world! {
    strangers_get_nothing_and_others_what_they_may within 300;
}
glass_tests::in_worlds!(kvm_only Kvm: its_files_may_be_on_a_second_disk within 300;);
glass_tests::in_worlds!(tcg_only Tcg: its_files_may_be_on_a_second_disk within 300;);

const UPLOADER: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const UPLOADER_HASH: &str = "3ba3f5f43b92602683c19aee62a20342b084dd5971ddd33808d81a328879a547";
const CONSUMER: &str = "cccccccccccccccccccccccccccccccc";
const CONSUMER_HASH: &str = "cd93782b7fb95559de14f738b65988af85d41dc1565f7c7d1ed2d035665b519c";

/// A queue with TLS, and its folder.
pub struct Queue {
    pub process: Process,
    pub port: u16,
    pub share: Folder,
}

impl Queue {
    /// A queue with options of `glass run` and arguments of its own; `None` after printing why it cannot run here.
    pub fn start(world: World, options: &[&str], arguments: &[&str]) -> Option<Queue> {
        let share = Queue::folder();
        let directory = format!("--share={}", share.path().display());
        Queue::start_in(share, world, &[&[&*directory], options].concat(), arguments)
    }

    /// The same with its files on a disk, for a VM.
    pub fn start_with_disk(world: World, options: &[&str], arguments: &[&str]) -> Option<Queue> {
        let share = Queue::folder();
        let disk = share.file("files.img");
        if !fat::make(&disk, &["chain.pem", "key.pem", "tokens"].map(|name| share.file(name))).unwrap() {
            programs::skip(fat::NOT_INSTALLED);
            return None;
        }
        let disk = format!("--files-disk={}", disk.display());
        Queue::start_in(share, world, &[&[&*disk], options].concat(), arguments)
    }

    /// The files.
    fn folder() -> Folder {
        let share = Folder::new("queue-tls").unwrap();
        fs::copy(data("server.pem"), share.file("chain.pem")).unwrap();
        fs::copy(data("server.key"), share.file("key.pem")).unwrap();
        let tokens = format!("uploader alice {UPLOADER_HASH} bytes=4M\nconsumer bob {CONSUMER_HASH}\n");
        fs::write(share.file("tokens"), tokens).unwrap();
        share
    }

    fn start_in(share: Folder, world: World, options: &[&str], arguments: &[&str]) -> Option<Queue> {
        let port = free_port().unwrap();
        let disk = format!("--disk={}", share.file("queue.img").display());
        let (forward, own_port) = (format!("{port}:8080"), port.to_string());
        let (mut options, mut service) = ([&[&*disk], options].concat(), vec!["--port"]);
        if world == World::Process {
            service.push(&own_port);
        } else {
            options.extend(["--port", &forward]);
            service.push("8080");
        }
        service.extend(["--tls-chain", "chain.pem", "--tls-key", "key.pem"]);
        service.extend(arguments);
        let mut command = with_options("upload-queue", world, &options, &service)?;
        let mut process = Process::spawn(&mut command, &share.file("log")).unwrap();
        let end = Instant::now() + START_LIMIT;
        while !process.output().contains("upload-queue: listening") {
            assert!(process.ended().is_none() && Instant::now() < end, "{world}: {}", process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Queue { process, port, share })
    }

    /// The status of the answer to curl, and its body.
    fn curl(&self, path: &str, arguments: &[&str]) -> (u16, Vec<u8>) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "%{stderr}%{http_code}"]);
        command.arg("--cacert").arg(data("root.pem")).args(arguments);
        let output = command.arg(format!("https://localhost:{}{path}", self.port)).output().unwrap();
        let status = String::from_utf8_lossy(&output.stderr).into_owned();
        let status =
            status.parse().unwrap_or_else(|_| panic!("curl {arguments:?}: {status}: {}", self.process.output()));
        (status, output.stdout)
    }
}

pub fn strangers_get_nothing_and_others_what_they_may(world: World) {
    if !is_installed("curl", "--version") {
        return;
    }
    let Some(queue) = Queue::start(world, &["--disk-size=64M"], &["--tokens", "tokens"]) else { return };
    let (sent, file) = (vec![7; 3_000_000], queue.share.file("sent"));
    fs::write(&file, &sent).unwrap();
    let upload = ["--upload-file", file.to_str().unwrap()];
    let of = |token| ["--oauth2-bearer", token];
    let upload_of = |token| [&upload[..], &of(token)].concat();
    assert_eq!(queue.curl("/uploader", &upload).0, 401);
    assert_eq!(queue.curl("/uploader", &upload_of(CONSUMER)).0, 403);
    assert_eq!(queue.curl("/uploader", &upload_of(UPLOADER)).0, 200);
    assert_eq!(queue.curl(&format!("/uploader/!{UPLOADER}"), &upload).0, 507, "its quota has room for one");
    let (status, received) = queue.curl("/downloader", &of(CONSUMER));
    assert!(status == 200 && received == sent, "{status}: {} bytes", received.len());
    let remove = ["--request", "DELETE", "--header", "If-Match: *"];
    assert_eq!(queue.curl("/downloader", &[&remove[..], &of(UPLOADER)].concat()).0, 403);
    assert_eq!(queue.curl(&format!("/downloader/!{CONSUMER}"), &remove).0, 200);
    // Its token is revoked while the queue runs.
    fs::write(queue.share.file("tokens"), format!("admin carol {CONSUMER_HASH}\n")).unwrap();
    let end = Instant::now() + START_LIMIT;
    while queue.curl("/uploader", &upload_of(UPLOADER)).0 != 401 {
        assert!(Instant::now() < end, "{}", queue.process.output());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(queue.curl("/", &of(CONSUMER)).0, 200);
    // Without TLS there is no answer.
    let mut plain = Command::new("curl");
    let plain = plain
        .args(["--silent", "--max-time", "60"])
        .arg(format!("http://localhost:{}/healthz", queue.port))
        .output()
        .unwrap();
    assert!(!plain.status.success() && plain.stdout.is_empty(), "{plain:?}");
    assert!(!queue.process.output().contains("warning: there is no TLS"), "{}", queue.process.output());
}

pub fn its_files_may_be_on_a_second_disk(world: World) {
    if !is_installed("curl", "--version") {
        return;
    }
    let options = [&["--disk-size=64M"][..], if world == World::Kvm { &["--vmm=own"] } else { &[] }].concat();
    let Some(queue) = Queue::start_with_disk(world, &options, &["--tokens", "tokens"]) else { return };
    let (sent, file) = (vec![9; 300_000], queue.share.file("sent"));
    fs::write(&file, &sent).unwrap();
    let upload = ["--upload-file", file.to_str().unwrap()];
    assert_eq!(queue.curl("/uploader", &upload).0, 401);
    assert_eq!(queue.curl("/uploader", &[&upload[..], &["--oauth2-bearer", UPLOADER]].concat()).0, 200);
    let (status, received) = queue.curl("/downloader", &["--oauth2-bearer", CONSUMER]);
    assert!(status == 200 && received == sent, "{status}: {} bytes", received.len());
}
