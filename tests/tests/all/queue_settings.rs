//! The upload queue with its settings in a file, and its access log, as a process and as a VM.

use crate::tls::{is_installed, with_files};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::queue::World;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    requests_are_logged_by_the_settings_of_a_file within 300;
}

const START_LIMIT: Duration = Duration::from_secs(240);

pub fn requests_are_logged_by_the_settings_of_a_file(world: World) {
    if !is_installed("curl", "--version") {
        return;
    }
    for log in ["access.log", "-"] {
        let (share, port) = (Folder::new("queue-settings").unwrap(), free_port().unwrap());
        // A process listens on the port itself, a VM has one of its own.
        let own_port = if world == World::Process { port } else { 8080 };
        let settings = format!("port = {own_port}\naccess-log = \"{log}\" # where\nmax-item-bytes = 1000\n");
        fs::write(share.file("queue.toml"), settings).unwrap();
        let disk = format!("--disk={}", share.file("queue.img").display());
        let forward = format!("--port={port}:8080");
        let mut options = vec![&*disk, "--disk-size=64M"];
        if world != World::Process {
            options.push(&forward);
        }
        let service = ["--config", "queue.toml"];
        let Some(mut command) = with_files("upload-queue", world, &share, &options, &service) else { return };
        let mut queue = Process::spawn(&mut command, &share.file("log")).unwrap();
        queue.wait_for_text("upload-queue: listening", START_LIMIT, || {});
        let put = |bytes: usize| {
            let output = Command::new("curl")
                .args(["--silent", "--max-time", "60", "--output", "/dev/null", "--write-out", "%{http_code}"])
                .args(["--user-agent", "a test", "--request", "PUT", "--data", &"x".repeat(bytes)])
                .arg(format!("http://127.0.0.1:{port}/uploader"))
                .output()
                .unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert_eq!([put(1000), put(1001)], ["200", "413"], "{}", queue.output());
        let text = || if log == "-" { queue.output() } else { fs::read_to_string(share.file(log)).unwrap_or_default() };
        let end = Instant::now() + START_LIMIT;
        let lines = loop {
            let text = text();
            let lines: Vec<serde_json::Value> = text
                .lines()
                .filter(|line| line.starts_with('{'))
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            if lines.len() == 2 {
                break lines;
            }
            assert!(Instant::now() < end, "{world}, {log}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        };
        for (line, (status, received)) in lines.iter().zip([(200, 1000), (413, 0)]) {
            let found = (&line["method"], &line["path"], &line["status"], &line["received"], &line["agent"]);
            assert_eq!(found, (&"PUT".into(), &"/uploader".into(), &status.into(), &received.into(), &"a test".into()));
        }
    }
}
