//! Streamed responses with curl: whole ones, cut ones, events, and clients of HTTP/1.0, without TLS. `tls.rs` has those with it.

use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    curl_reads_streams_and_notices_a_cut_one within 180;
}

const START_LIMIT: Duration = Duration::from_secs(240);
const BYTES: usize = 500_000;

fn curl_reads_streams_and_notices_a_cut_one(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    if Command::new("curl").arg("--version").output().is_err() {
        return programs::skip("curl is not installed");
    }
    let (folder, port) = (Folder::new("http-streams").unwrap(), free_port().unwrap());
    let (program, service_port) = match world {
        World::Process => (programs::built("bench-tls").map(Command::new), port),
        _ => {
            let run = programs::built("glass").zip(programs::image("bench-tls")).map(|(glass, image)| {
                let mut command = Command::new(glass);
                command.arg("run").arg(image).args(["--accel", &world.to_string(), "--port", &format!("{port}:80")]);
                command
            });
            (run, 80)
        }
    };
    let Some(mut command) = program else { return };
    command.args(["--", "--http", &service_port.to_string()]);
    let mut server = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let end = Instant::now() + START_LIMIT;
    while !server.output().contains("bench-tls listens") {
        assert!(server.ended().is_none() && Instant::now() < end, "{world}: {}", server.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    let get = |options: &[&str], path: &str| -> Output {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60"]).args(options);
        command.arg(format!("http://127.0.0.1:{port}{path}")).output().unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    for options in [&[][..], &["--http1.0"]] {
        let whole = get(options, &format!("/stream/{BYTES}"));
        assert!(whole.status.success() && whole.stdout.len() == BYTES, "{options:?}: {} bytes", whole.stdout.len());
        let cut = get(options, &format!("/cut/{BYTES}"));
        // QEMU's own network (libslirp) closes its socket when the guest resets the connection, and a body of HTTP/1.0 has no end but that.
        let is_noticed = !cut.status.success() || (world == World::Tcg && options == ["--http1.0"]);
        assert!(is_noticed && cut.stdout.len() <= BYTES / 2, "{options:?}: {} bytes", cut.stdout.len());
    }
    let events = get(&[], "/events/3");
    let expected: String = (0..3).map(|id| format!("id: {id}\ndata: first\ndata: second\n\n:\n\n")).collect();
    assert_eq!(text(&events), expected);
    let raw = text(&get(&["--raw", "--include"], "/stream/3"));
    assert!(raw.contains("Transfer-Encoding: chunked\r\n") && raw.contains("\r\nDate: "), "{raw}");
    assert!(raw.ends_with("\r\n\r\n3\r\nggg\r\n0\r\nX-End: whole\r\n\r\n"), "{raw}");
    let old = text(&get(&["--http1.0", "--include"], "/stream/3"));
    assert!(!old.contains("Transfer-Encoding") && old.ends_with("\r\nConnection: close\r\n\r\nggg"), "{old}");
}
