//! How a VM gets its address: from a DHCP server, or from its command line.

use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// Boots `hello` with `--ip setting`, waits until it prints that it listens on `address`, and sends a request.
fn check(setting: &str, address: &str) {
    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
    let folder = Folder::new("addresses").expect("a temporary folder");
    let port = free_port().expect("a free port");
    let mut command = Command::new(&glass);
    command.arg("run").arg(&image).args(["--accel", "tcg", "--memory", "16", "--ip", setting]);
    command.args(["--port", &format!("{port}:8080")]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).expect("glass starts");
    let line = format!("hello listens on {address} port 8080");
    let deadline = Instant::now() + LIMIT;
    while !process.output().contains(&line) {
        assert!(process.ended().is_none() && Instant::now() < deadline, "no `{line}`:\n{}", process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut client = Client::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("a connection");
    let answer = client.request("GET", "/").expect("an answer");
    assert_eq!((answer.status(), answer.text().as_str()), (200, "Hello from hello\n"));
}

/// A client that connects while the guest boots: the user network accepts it immediately, and the guest must receive
/// it when it is ready, not when the network retransmits after seconds.
fn check_early_client(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
    let folder = Folder::new("addresses").expect("a temporary folder");
    let port = free_port().expect("a free port");
    let mut command = Command::new(&glass);
    let accel = world.to_string();
    command.arg("run").arg(&image).args(["--accel", &accel, "--memory", "16", "--port", &format!("{port}:8080")]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).expect("glass starts");
    let deadline = Instant::now() + LIMIT;
    let mut client = loop {
        match Client::connect_within(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Duration::from_secs(4)) {
            Ok(client) => break client,
            Err(_) => assert!(process.ended().is_none() && Instant::now() < deadline, "{}", process.output()),
        }
    };
    // By our own VMM it may be as fast.
    let is_early = !process.output().contains("hello listens");
    assert!(is_early || world == World::Kvm, "the guest was faster than its client");
    let answer = client.request("GET", "/").expect("an answer on the first connection");
    assert_eq!(answer.status(), 200);
}

#[test]
fn a_client_that_comes_before_the_guest_is_heard() {
    within(LIMIT, || check_early_client(World::Tcg));
}

#[test]
fn a_client_that_comes_before_the_guest_is_heard_by_kvm() {
    within(LIMIT, || check_early_client(World::Kvm));
}

#[test]
fn by_dhcp() {
    within(LIMIT, || check("dhcp", "10.0.2.15"));
}

#[test]
fn from_the_command_line() {
    within(LIMIT, || check("10.0.2.15/24,10.0.2.2", "10.0.2.15"));
}
