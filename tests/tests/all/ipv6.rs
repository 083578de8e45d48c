//! The queue over IPv6: in a VM that gets its address from a router, or from its command line, and as a process.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::netns::{self, Namespace};
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::router::Router;
use glass_tests::{programs, qemu};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

glass_tests::in_every_world! {
    curl_reaches_the_queue within 180;
}

const LIMIT: Duration = Duration::from_secs(240);
const NEAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0);
/// What a VM makes of the prefix and the address of QEMU's first network card, 52:54:00:12:34:56.
const AUTOMATIC: &str = "2001:db8:77:0:5054:ff:fe12:3456";
const FIXED: &str = "2001:db8:77::2";

/// Uploads and downloads a file with curl.
fn check_with_curl(namespace: &Namespace, folder: &Folder, family: &str, host: &str) {
    let content = Content { seed: 6, length_bytes: 3_000_001 };
    std::fs::write(folder.file("sent"), content.bytes()).unwrap();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = namespace.command("curl");
        command.current_dir(folder.path()).args([family, "--globoff", "--silent", "--show-error", "--fail"]);
        command.args(["--max-time", "60"]).args(arguments).arg(format!("http://{host}:8080{path}"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "curl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    curl(&["--upload-file", "sent"], "/uploader");
    let head = curl(&["--output", "received", "--dump-header", "-"], "/downloader");
    assert!(std::fs::read(folder.file("received")).unwrap() == content.bytes(), "the file came back changed");
    let etag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("an item has a tag").trim();
    curl(&["--request", "DELETE", "--header", &format!("If-Match: {etag}")], "/downloader");
}

fn curl_reaches_the_queue(world: World) {
    if let Some(reason) = world.obstacle().or(netns::obstacle()) {
        return programs::skip(reason);
    }
    if !programs::has_curl() {
        return programs::skip("curl is not installed");
    }
    match world {
        World::Process => check_process(),
        World::Kvm | World::Tcg => {
            check_vm(world, "auto", AUTOMATIC);
            check_vm(world, &format!("{FIXED}/64"), FIXED);
        }
    }
}

fn check_process() {
    let Some(program) = programs::built("upload-queue") else { return };
    let (folder, namespace) = (Folder::new("ipv6-process").unwrap(), Namespace::new().unwrap());
    let mut command = namespace.command(program);
    command.arg("--disk").arg(folder.file("disk")).args(["--disk-size", "64M", "--bind", "::", "--", "--port", "8080"]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    process.wait_for_text("listening on", LIMIT, || ());
    check_with_curl(&namespace, &folder, "-6", "[::1]");
    check_with_curl(&namespace, &folder, "-4", "127.0.0.1");
}

/// With `--ip6 setting`, the queue is at `address`.
fn check_vm(world: World, setting: &str, address: &str) {
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
    let (folder, namespace) = (Folder::new("ipv6-vm").unwrap(), Namespace::new().unwrap());
    namespace.tap("tap0", Ipv4Addr::new(10, 77, 0, 1)).unwrap();
    namespace.add_ipv6("tap0", NEAR).unwrap();
    let _router = Router::start(&namespace, "tap0", PREFIX).unwrap();
    let mut glass = namespace.command(glass);
    glass.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "tap=tap0", "--memory", "32"]);
    glass.args(["--ip", "10.77.0.2/24", "--ip6", setting, "--disk"]).arg(folder.file("disk"));
    glass.args(["--disk-size", "64M"]);
    let line = qemu::command_line(&mut glass, &["--port", "8080"], &folder).unwrap();
    let _devices = line.start_devices(&folder).unwrap();
    let mut command = namespace.command(&line.words[0]);
    command.args(&line.words[1..]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    process.wait_for_text("listening on", LIMIT, || ());
    let line = format!("this VM has the address {AUTOMATIC}, too");
    if setting == "auto" {
        process.wait_for_text(&line, LIMIT, || ());
    }
    check_with_curl(&namespace, &folder, "-6", &format!("[{address}]"));
    // A router's advertisements do not change a static address.
    assert_eq!(process.output().contains(&line), setting == "auto", "{}", process.output());
}

/// QEMU's user-mode network is an IPv6 router, and its address is the host's `::1`.
fn check_user_network() {
    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("bench-udp")) else { return };
    let Ok(socket) = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) else {
        return programs::skip("this machine has no IPv6");
    };
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let (folder, port) = (Folder::new("ipv6-user").unwrap(), free_port().unwrap());
    let mut command = Command::new(&glass);
    command.arg("run").arg(&image).args(["--accel", "tcg", "--memory", "16", "--port", &format!("{port}:8091")]);
    let remote = format!("[fec0::2]:{}", socket.local_addr().unwrap().port());
    command.args(["--", "--to", &remote, "--count", "1000000", "--bytes", "1000"]);
    let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    // A short one comes first, unless it is lost or late: whether there is a way.
    let mut buffer = [0; 2000];
    let received = (0..3).any(|_| socket.recv(&mut buffer).expect("a datagram") == 1000);
    assert!(received, "{}", process.output());
}

#[test]
fn a_vm_in_the_user_network_reaches_the_host() {
    within(LIMIT * 2, check_user_network);
}
