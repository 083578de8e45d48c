//! Services over vsock: in a VM, whose socket device a helper of the host serves, and as a process with a unix socket in its place.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use glass_tests::vsock;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The helper may have to be built first.
const LIMIT: Duration = Duration::from_secs(1200);
const START_LIMIT: Duration = Duration::from_secs(240);
const PORT: u32 = 80;

/// A service that listens on vsock.
struct Service {
    process: Process,
    _folder: Folder,
    /// The unix socket for clients.
    socket: PathBuf,
}

/// Starts `name` with further options of `glass run` and of the service; `None` after printing why that is not possible here.
fn start(world: World, name: &str, glass_run: &[&str], service: &[&str]) -> Option<Service> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let folder = Folder::new("vsock").unwrap();
    let socket = folder.file("vsock");
    let option = format!("--vsock={}", socket.display());
    let mut command = Command::new(programs::built("glass")?);
    command.arg("run");
    if world == World::Process {
        command.arg(programs::built(name)?).args(["--platform", "linux"]);
    } else {
        command.env("PATH", vsock::path_with(vsock::helper()?));
        command.arg(programs::image(name)?).args(["--accel", &world.to_string()]);
        if !glass_run.contains(&"--memory") {
            command.args(["--memory", "32"]);
        }
    }
    command.arg(option).args(glass_run).arg("--").args(service);
    let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let mut started = Service { process, _folder: folder, socket };
    let end = Instant::now() + START_LIMIT;
    while !started.process.output().contains(&format!("on vsock port {PORT}")) {
        assert!(started.process.ended().is_none() && Instant::now() < end, "{world}: {}", started.process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(started)
}

fn greets(world: World) {
    // A VM without any other network.
    let options: &[&str] = if world == World::Process { &[] } else { &["--net", "none"] };
    let Some(service) = start(world, "hello", options, &["--port", "vsock:80"]) else { return };
    for _ in 0..50 {
        let mut client = Client::connect_vsock(&service.socket, PORT).unwrap();
        for _ in 0..3 {
            let answer = client.request("GET", "/").unwrap();
            assert_eq!((answer.status(), answer.text().as_str()), (200, "Hello from hello\n"));
        }
    }
    // Nothing listens there.
    assert!(Client::connect_vsock(&service.socket, PORT + 1).is_err());
    let answer = Client::connect_vsock(&service.socket, PORT).unwrap().request("GET", "/").unwrap();
    assert_eq!(answer.status(), 200);
}

#[test]
fn a_process_answers_over_a_unix_socket() {
    within(LIMIT, || greets(World::Process));
}

#[test]
fn a_vm_answers_by_kvm() {
    within(LIMIT, || greets(World::Kvm));
}

#[test]
fn a_vm_answers_by_tcg() {
    within(LIMIT, || greets(World::Tcg));
}

/// Opens, uses and closes connections, as many at once as the VM's memory permits.
fn is_used_by_many(world: World) {
    let (total, at_once, memory) = if programs::is_long() { (10_000, 500, "512") } else { (320, 32, "32") };
    let options = ["--net", "none", "--memory", memory];
    let Some(service) = start(world, "hello", &options, &["--port", "vsock:80"]) else { return };
    for round in 0..total / at_once {
        let connect = |_| Client::connect_vsock(&service.socket, PORT);
        let clients: Vec<_> = (0..at_once).map(connect).collect();
        for client in clients {
            let answer = client.and_then(|mut client| client.request("GET", "/"));
            let answer = answer.unwrap_or_else(|error| panic!("round {round}: {error}: {}", service.process.output()));
            assert_eq!((answer.status(), answer.text().as_str()), (200, "Hello from hello\n"));
        }
    }
}

#[test]
fn many_connections_by_kvm() {
    within(LIMIT, || is_used_by_many(World::Kvm));
}

#[test]
fn many_connections_by_tcg() {
    within(LIMIT, || is_used_by_many(World::Tcg));
}

/// Uploads and downloads over vsock, over a TCP port that leads to it, and over TCP.
fn serves_both(world: World) {
    let (length_bytes, disk_size) = if programs::is_long() { (1 << 30, "2G") } else { (3_000_000, "64M") };
    let disk = Folder::new("vsock-disk").unwrap();
    let image = disk.file("queue.img");
    let (forwarded, direct) = (free_port().unwrap(), free_port().unwrap());
    let ports = [format!("{forwarded}:vsock:{PORT}"), format!("{direct}:8080")];
    let options =
        ["--disk", image.to_str().unwrap(), "--disk-size", disk_size, "--port", &ports[0], "--port", &ports[1]];
    let Some(service) = start(world, "upload-queue", &options, &["--port", "8080", "--port", "vsock:80"]) else {
        return;
    };
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let vsock = || Client::connect_vsock(&service.socket, PORT).unwrap();
    let clients: [&dyn Fn() -> Client; 3] =
        [&vsock, &|| Client::connect(address(forwarded)).unwrap(), &|| Client::connect(address(direct)).unwrap()];
    for (index, client) in clients.into_iter().enumerate() {
        let content = Content { seed: index as u64, length_bytes };
        let answer = client().put("/uploader", content.length_bytes, &mut content.reader()).unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let other = clients[(index + 1) % clients.len()];
        let mut checker = content.checker();
        let answer = other().get_into("/downloader", &mut checker).unwrap();
        checker.verdict().unwrap();
        assert_eq!(other().request_if_match("DELETE", "/downloader", answer.etag()).unwrap().status(), 200);
    }
}

#[test]
fn a_queue_serves_over_both_by_kvm() {
    within(LIMIT, || serves_both(World::Kvm));
}

#[test]
fn a_queue_serves_over_both_by_tcg() {
    within(LIMIT, || serves_both(World::Tcg));
}
