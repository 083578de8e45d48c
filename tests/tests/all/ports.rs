//! A port that is forwarded to one on which the service does not listen: the console has the command that would be right.

use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

glass_tests::in_worlds!(kvm Kvm: a_client_of_another_port_is_reported within 120;);
glass_tests::in_worlds!(tcg Tcg: a_client_of_another_port_is_reported within 120;);

const LIMIT: Duration = Duration::from_secs(240);

fn a_client_of_another_port_is_reported(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("ports").unwrap();
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("hello")) else { return };
    let port = free_port().unwrap();
    let mut command = Command::new(glass);
    command.arg("run").arg(image).args(["--accel", &world.to_string(), "--port", &format!("{port}:8080")]);
    command.args(["--", "--port", "8081"]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    process.wait_for_text("listens on", LIMIT, || ());
    // QEMU accepts the connection and forwards it to the guest's port.
    process.wait_for_text(
        "a client wants to reach port 8080, but the service listens on port 8081: forward that one (glass run --port 8080:8081)",
        LIMIT,
        || drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port))),
    );
}
