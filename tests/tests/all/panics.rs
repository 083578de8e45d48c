//! A handler that panics: a process answers it with 500 or a reset and continues, a VM ends with a crash report and starts again.

use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_handler_that_panics_is_answered_or_the_vm_starts_again within 180;
}

/// How long a loaded machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(240);

/// The status and text of the response to a GET of `path`, or `None` if the connection ended before its end.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut client = Client::connect_within(address, PATIENCE).ok()?;
    client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
    let response = client.response("GET").ok()?;
    Some((response.status(), response.text()))
}

fn wait_until_it_answers(process: &mut Process, address: SocketAddr) {
    let end = Instant::now() + PATIENCE;
    while get(address, "/").is_none() {
        assert!(process.ended().is_none() && Instant::now() < end, "{}", process.output());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn a_handler_that_panics_is_answered_or_the_vm_starts_again(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let Some(glass) = programs::built("glass") else { return };
    let (folder, port) = (Folder::new("panics").unwrap(), free_port().unwrap());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut command = Command::new(&glass);
    command.arg("run");
    let recording = folder.file("panics.pftrace");
    match world {
        World::Process => {
            let Some(program) = programs::beside("faults") else { return };
            command.arg(program).args(["--platform", "linux", "--trace", "--output"]).arg(&recording);
            command.args(["--", "handlers", &port.to_string()]);
        }
        _ => {
            let Some(image) = programs::image("faults") else { return };
            command.arg(image).args(["--accel", &world.to_string(), "--restart", "--port", &format!("{port}:80")]);
            command.args(["--", "handlers", "80"]);
        }
    }
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    wait_until_it_answers(&mut process, address);
    match world {
        World::Process => check_process(process, address, &glass, &recording),
        _ => check_vm(process, address),
    }
}

/// The other connection is open meanwhile, and continues.
fn check_process(mut process: Process, address: SocketAddr, glass: &Path, recording: &Path) {
    let mut other = Client::connect_within(address, PATIENCE).unwrap();
    for _ in 0..2 {
        assert_eq!(get(address, "/panic"), Some((500, "the service failed at this request\n".to_owned())));
        assert_eq!(get(address, "/half"), None);
        other.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(other.response("GET").unwrap().text(), "fine\n");
    }
    assert!(process.interrupt(PATIENCE), "{}", process.output());
    let output = process.output();
    for path in ["/panic", "/half"] {
        assert_eq!(output.matches(&format!("on purpose, for {path}")).count(), 2, "{output}");
    }
    assert_eq!(output.matches("WARN panic: the task connection has panicked at ").count(), 4, "{output}");
    let report =
        Command::new(glass).arg("report").arg(recording).args(["--text", "--view", "summary"]).output().unwrap();
    let summary = String::from_utf8_lossy(&report.stdout);
    let counted = summary.lines().find_map(|line| line.trim_start().strip_prefix("panics contained"));
    // How many values, the first one, the last one.
    let figures: Vec<&str> = counted.unwrap_or_default().split_whitespace().take(3).collect();
    assert_eq!(figures, ["4", "1", "4"], "{summary}");
}

fn check_vm(mut process: Process, address: SocketAddr) {
    assert_eq!(get(address, "/panic"), None);
    process.wait_for_text("it starts again in", PATIENCE, || ());
    wait_until_it_answers(&mut process, address);
    let output = process.output();
    for words in ["PANIC at apps/faults/src/handlers.rs:", "on purpose, for /panic", "exit code 101"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}
