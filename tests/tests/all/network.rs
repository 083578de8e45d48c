//! Services over devices of their own: a VM behind a TAP device, a process behind a pair of Ethernet devices.

use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::{Process, kill_descendants};
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use rustix::process::{Resource, Rlimit};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    bytes_come_back_whole within 180;
    datagrams_are_sent_and_counted within 180;
    idle_connections_shut_nobody_out within 180;
}

pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const LIMIT: Duration = Duration::from_secs(240);
/// Where `bench-tcp` listens.
const TCP_PORT: u16 = 8090;
/// More than all windows and buffers together.
const BYTES: usize = 16 << 20;
const DATAGRAMS: usize = 100;
const DATAGRAM_BYTES: usize = 1472;
/// Connections that do nothing: more than a service accepts.
const IDLE: usize = 1000;
/// How long /healthz may take beside them: on a quiet host it takes milliseconds.
const PROMPT: Duration = Duration::from_secs(5);

/// A service, and the namespaces that it and its client are in. Dropped in this order.
pub(crate) struct Service {
    pub process: Process,
    _devices: Vec<Process>,
    pub near: Namespace,
    _far: Namespace,
    _folder: Folder,
}

/// Starts a service at [`FAR`]; its client is at [`NEAR`]. `None` if this machine cannot.
pub(crate) fn start(world: World, app: &str) -> Option<Service> {
    start_with(world, app, Folder::new(&format!("network-{app}")).unwrap(), &[])
}

/// The same with options of `glass run`, which a process has too, and with a folder for its files.
pub(crate) fn start_with(world: World, app: &str, folder: Folder, options: &[&str]) -> Option<Service> {
    if let Some(reason) = world.obstacle().or(netns::obstacle()) {
        programs::skip(reason);
        return None;
    }
    let (near, far) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let mut devices = Vec::new();
    let mut command = match world {
        World::Process => {
            near.join(NEAR, &far, FAR).unwrap();
            let mut command = far.command(programs::built(app)?);
            command.args(["--bind", "::"]).args(options);
            command
        }
        World::Kvm | World::Tcg => {
            near.tap("tap0", NEAR).unwrap();
            let mut glass = near.command(programs::built("glass")?);
            glass.arg("run").arg(programs::image(app)?).args(["--accel", &world.to_string(), "--net", "tap=tap0"]);
            glass.args(["--ip", &format!("{FAR}/{}", netns::PREFIX_BITS)]).args(options);
            let line = qemu::command_line(&mut glass, &[], &folder).unwrap();
            devices = line.start_devices(&folder).unwrap();
            let mut command = near.command(&line.words[0]);
            command.args(&line.words[1..]);
            command
        }
    };
    let mut process = Process::spawn(&mut command, &folder.file("service.log")).unwrap();
    process.wait_for_text("listen", LIMIT, || ());
    Some(Service { process, _devices: devices, near, _far: far, _folder: folder })
}

/// Connects to `bench-tcp`. A transfer that stalls for [`LIMIT`] is an error.
pub(crate) fn connect() -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((FAR, TCP_PORT)), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn bytes_come_back_whole(world: World) {
    let Some(service) = start(world, "bench-tcp") else { return };
    let mut sent = vec![0; BYTES];
    fastrand::Rng::with_seed(1).fill(&mut sent);
    let received = service.near.inside(|| {
        let mut stream = connect()?;
        stream.write_all(b"echo\n")?;
        let mut reader = stream.try_clone()?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| stream.write_all(&sent).and_then(|()| stream.shutdown(Shutdown::Write)));
            let mut received = Vec::with_capacity(BYTES);
            reader.read_to_end(&mut received)?;
            writer.join().expect("the writer does not panic")?;
            Ok(received)
        })
    });
    let received = received.unwrap();
    assert!(received == sent, "{} bytes came back, and not the same; {}", received.len(), service.process.output());
}

fn datagrams_are_sent_and_counted(world: World) {
    let Some(mut service) = start(world, "bench-udp") else { return };
    service
        .near
        .inside(|| {
            let socket = UdpSocket::bind((NEAR, 0))?;
            socket.connect((FAR, 8091))?;
            socket.set_read_timeout(Some(LIMIT))?;
            let mut buffer = [0; 2000];
            // A real network may lose what is sent as fast as possible, so each datagram waits for an answer, or the count.
            socket.send(b"take")?;
            let count = socket.recv(&mut buffer)?;
            assert_eq!(&buffer[..count], b"ready\n");
            for number in 1..=DATAGRAMS {
                socket.send(&[0; DATAGRAM_BYTES])?;
                socket.send(b"report")?;
                let count = socket.recv(&mut buffer)?;
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                assert!(text.starts_with(&format!("taken {number} ")), "{text}");
            }
            socket.send(b"send 20 1000")?;
            for number in 0..20u64 {
                let count = socket.recv(&mut buffer)?;
                assert_eq!((count, &buffer[8..16]), (1000, &number.to_le_bytes()[..]));
            }
            let count = socket.recv(&mut buffer)?;
            assert!(buffer[..count].starts_with(b"sent 20 "));
            socket.send(b"nonsense")?;
            let count = socket.recv(&mut buffer)?;
            assert!(buffer[..count].starts_with(b"send `send COUNT BYTES`"));
            Ok(())
        })
        .unwrap();
    let line = "\"direction\": \"taken\", \"datagrams\": 100, \"bytes\": 147200";
    // A line is lost when the host has not read the last 64: on a busy one QEMU does that late.
    let report_again = || {
        let report = || Ok(UdpSocket::bind((NEAR, 0))?.send_to(b"report", (FAR, 8091))?);
        service.near.inside(report).unwrap();
    };
    service.process.wait_for_text(line, LIMIT, report_again);
}

/// Half of them send nothing, half start a request and never end it.
fn idle_connections_shut_nobody_out(world: World) {
    let folder = Folder::new("network-idle").unwrap();
    let disk = folder.file("disk").display().to_string();
    let options = ["--disk", &disk, "--disk-size", "64M"];
    let Some(mut service) = start_with(world, "upload-queue", folder, &options) else { return };
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let took = service
        .near
        .inside(|| {
            let address = SocketAddr::from((FAR, 8080));
            let mut idle = Vec::new();
            for number in 0..IDLE {
                let mut client = Client::connect_within(address, LIMIT)?;
                if number % 2 == 0 {
                    // The server may have ended it already.
                    let _ = client.send(b"PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Le");
                }
                idle.push(client);
            }
            let begin = Instant::now();
            let response = Client::connect_within(address, LIMIT)?.request("GET", "/healthz")?;
            assert_eq!(response.status(), 200);
            Ok(begin.elapsed())
        })
        .unwrap();
    assert!(took < PROMPT, "/healthz took {took:?} beside {IDLE} connections");
    assert!(service.process.ended().is_none(), "{}", service.process.output());
}

/// A VM that cannot be reached is no use, as one without its disk.
#[test]
fn a_vm_ends_with_its_card_by_kvm() {
    within(LIMIT * 2, || {
        if let Some(reason) = World::Kvm.obstacle().or(netns::obstacle()) {
            return programs::skip(reason);
        }
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("bench-tcp")) else { return };
        let (folder, near) = (Folder::new("network-card-lost").unwrap(), Namespace::new().unwrap());
        near.tap("tap0", NEAR).unwrap();
        let mut command = near.command(glass);
        command.arg("run").arg(image).args(["--accel", "kvm", "--vmm", "qemu", "--net", "tap=tap0"]);
        command.args(["--ip", &format!("{FAR}/{}", netns::PREFIX_BITS)]);
        let mut run = Process::spawn(&mut command, &folder.file("log")).unwrap();
        run.wait_for_text("listens on", LIMIT, || ());
        assert!(kill_descendants(run.pid(), "glass") > 0, "a process serves the card: {}", run.output());
        let status = run.wait(LIMIT).expect("the VM ends");
        let text = run.output();
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(
            text.contains("glass tap has ended") && text.contains("the VM is ended, because it has no network"),
            "{text}"
        );
    });
}

/// With `--restart` the VM and the process of its card start again.
#[test]
fn a_card_that_ends_starts_again_with_the_vm_by_kvm() {
    within(LIMIT * 2, || {
        if let Some(reason) = World::Kvm.obstacle().or(netns::obstacle()) {
            return programs::skip(reason);
        }
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("bench-tcp")) else { return };
        let (folder, near) = (Folder::new("network-card").unwrap(), Namespace::new().unwrap());
        near.tap("tap0", NEAR).unwrap();
        let mut command = near.command(glass);
        command.arg("run").arg(image).args(["--accel", "kvm", "--vmm", "qemu", "--net", "tap=tap0", "--restart"]);
        command.args(["--ip", &format!("{FAR}/{}", netns::PREFIX_BITS)]);
        let mut run = Process::spawn(&mut command, &folder.file("log")).unwrap();
        run.wait_for_text("listens on", LIMIT, || ());
        assert!(kill_descendants(run.pid(), "glass") > 0, "a process serves the card: {}", run.output());
        let end = Instant::now() + LIMIT;
        while run.output().matches("listens on").count() < 2 {
            assert!(Instant::now() < end && run.ended().is_none(), "{}", run.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(run.output().contains("glass tap has ended"), "{}", run.output());
        let echoed = near.inside(|| {
            let mut stream = connect()?;
            stream.write_all(b"echo\nback")?;
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        });
        assert_eq!(echoed.unwrap(), *b"back");
    });
}
