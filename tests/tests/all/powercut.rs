//! `glass powercut`: the power of a VM with the upload queue is cut in its log, 30 times; nothing that was acknowledged is lost, and without flushes
//! something is.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{World, answer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// States that are tried. Those of a long run are opened by the queue as a process, which is quicker than a boot.
const STATES: u64 = 30;
const STATES_LONG: u64 = 10_000;
/// The control must be found within so many.
const CONTROL_STATES: u64 = 20;
/// Uploads that are recorded.
const ITEMS: u64 = 60;
const ITEMS_LONG: u64 = 150;
const START_LIMIT: Duration = Duration::from_secs(240);

/// Runs `glass powercut` on a log of the queue.
fn powercut(glass: &Path, folder: &Folder, boot: &str, port: u16, options: &[&str]) -> Output {
    let got = "got --wait 40s --take --acks";
    let check = format!("'{}' powercut {got} acks http://127.0.0.1:{port}/downloader?wait=0", glass.display());
    let mut command = Command::new(glass);
    command.current_dir(folder.path()).args(["powercut", "writes.log", "--base", "base.img", "--folder", "states"]);
    command.args(["--boot", boot, "--check", &check]).args(options);
    command.output().expect("glass runs")
}

fn the_queue_keeps_what_it_acknowledged(world: World, options: &[&str]) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
    let Some(process) = programs::built("upload-queue") else { return };
    let folder = Folder::new("powercut").unwrap();
    for name in ["base.img", "disk.img"] {
        std::fs::File::create(folder.file(name)).and_then(|file| file.set_len(64 << 20)).unwrap();
    }
    let port = free_port().unwrap();
    let service = |disk: &str| {
        let options = options.join(" ");
        let (glass, image) = (glass.display(), image.display());
        format!("exec '{glass}' run '{image}' --accel {world} {options} --memory 32M --port {port}:8080 --disk {disk}")
    };
    let mut recorded = Command::new("sh");
    recorded.current_dir(folder.path()).args(["-c", &service("disk.img --record-writes writes.log")]);
    let mut queue = Process::spawn(&mut recorded, &folder.file("log")).unwrap();
    let end = Instant::now() + START_LIMIT;
    while answer(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Duration::from_secs(2)).is_none() {
        assert!(queue.ended().is_none() && Instant::now() < end, "{}", queue.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    let items = if programs::is_long() { ITEMS_LONG } else { ITEMS }.to_string();
    let url = format!("http://127.0.0.1:{port}/uploader");
    let put = Command::new(&glass)
        .current_dir(folder.path())
        .args(["powercut", "put", &url, "--acks", "acks", "--items", &items, "--bytes-max", "20K", "--time", "40s"])
        .output()
        .unwrap();
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    queue.kill();

    let boot = match programs::is_long() {
        true => format!("exec '{}' --disk \"$GLASS_IMAGE\" -- --port {port}", process.display()),
        false => service("\"$GLASS_IMAGE\""),
    };
    let states = if programs::is_long() { STATES_LONG } else { STATES }.to_string();
    let done = powercut(&glass, &folder, &boot, port, &["--states", &states, "--resume", "tested"]);
    let report = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{report}");
    assert!(report.contains(&format!("{states} different states tested")), "{report}");
    assert!(report.contains("none lost what was acknowledged"), "{report}");
    say(report.trim());

    // Again: nothing is tested twice.
    let again = powercut(&glass, &folder, "exit 1", port, &["--states", &states, "--resume", "tested"]);
    let report = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && report.contains(&format!("{states} states were tested before")), "{report}");

    // The same log, as if the disk had ignored the flushes.
    let states = CONTROL_STATES.to_string();
    let options = ["--ignore-flushes", "--states", &states, "--reductions", "4", "--output", "result.html"];
    let control = powercut(&glass, &folder, &boot, port, &options);
    let report = String::from_utf8_lossy(&control.stderr);
    assert_eq!(control.status.code(), Some(1), "{report}");
    assert!(report.contains("acknowledged, and lost") && report.contains("power cut"), "{report}");
    say(report.lines().last().unwrap_or_default());
    let page = std::fs::read_to_string(folder.file("result.html")).unwrap();
    assert!(page.contains("acknowledged, and lost") && page.contains("<svg"), "{page}");
}

#[test]
fn kvm() {
    let limit = if programs::is_long() { 7200 } else { 240 };
    within(Duration::from_secs(limit), || the_queue_keeps_what_it_acknowledged(World::Kvm, &[]));
}
