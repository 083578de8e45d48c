//! Vsock of a process as a unix socket, with clients on threads that use the standard library.

use glass_api::{Listener, Net, NetError, Platform, Port, Spawn, Stream, VsockAddress};
use glass_platform_linux::{LinuxPlatform, Options};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A name for a socket that no other test has, removed at the end.
struct Name(PathBuf);

impl Name {
    fn new(name: &str) -> Name {
        Name(std::env::temp_dir().join(format!("glass-vsock-{name}-{}", std::process::id())))
    }

    fn platform(&self) -> LinuxPlatform {
        LinuxPlatform::new(&Options::parse(["--vsock".into(), self.0.clone().into()]).unwrap()).unwrap()
    }

    /// Connects and writes `line`.
    fn connect(&self, line: &str) -> UnixStream {
        let mut client = UnixStream::connect(&self.0).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client.write_all(line.as_bytes()).unwrap();
        client
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Echoes everything on vsock port 80 until `count` clients have ended.
fn echo(name: &Name, count: usize) -> thread::JoinHandle<()> {
    let name = Name(name.0.clone());
    thread::spawn(move || {
        let platform = name.platform();
        let handle = platform.clone();
        let serve = async move {
            let mut listener = handle.net().listen(Port::Vsock(80)).await.unwrap();
            assert_eq!(listener.port(), Port::Vsock(80));
            assert_eq!(handle.net().listen(Port::Vsock(80)).await.err(), Some(NetError::PortInUse(Port::Vsock(80))));
            let mut clients = Vec::new();
            for _ in 0..count {
                let mut stream = listener.accept().await.unwrap();
                let task = async move {
                    let mut part = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut part).await {
                        stream.write_all(&part[..count]).await.unwrap();
                    }
                    stream.close().await.unwrap();
                };
                clients.push(handle.spawn("client", task).unwrap());
            }
            for client in clients {
                client.await.unwrap();
            }
        };
        platform.run(serve).unwrap();
    })
}

fn wait_for(name: &Name) {
    let end = std::time::Instant::now() + LIMIT;
    while UnixStream::connect(&name.0).is_err() {
        assert!(std::time::Instant::now() < end, "the service does not listen");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn clients_name_their_port_and_others_are_closed() {
    let name = Name::new("named");
    // What a process that was killed has left.
    drop(UnixListener::bind(&name.0).unwrap());
    let service = echo(&name, 2);
    wait_for(&name);
    // Clients that never name a port keep no other one waiting.
    let silent: Vec<UnixStream> = (0..10).map(|_| name.connect("CONN")).collect();
    for line in ["CONNECT 81\n", "CONNECT +80\n", "CONNECT \n", "80\n", "\n", "CONNECT 99999999999\n", "CONNECT 80\r\n"]
    {
        let mut answer = Vec::new();
        let _ = name.connect(line).read_to_end(&mut answer);
        assert_eq!(answer, b"", "{line:?}");
    }
    for _ in 0..2 {
        // Its data is right behind its first line.
        let mut client = name.connect("CONNECT 80\nhello");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let (ok, echoed) = answer.split_once('\n').unwrap();
        assert!(ok.starts_with("OK ") && echoed == "hello", "{answer:?}");
    }
    service.join().unwrap();
    drop(silent);
}

#[test]
fn a_second_process_cannot_take_the_socket() {
    let name = Name::new("second");
    let service = echo(&name, 1);
    wait_for(&name);
    let platform = name.platform();
    let handle = platform.clone();
    let refused = platform.run(async move { handle.net().listen(Port::Vsock(80)).await.err() }).unwrap();
    assert!(refused.is_some());
    let mut client = name.connect("CONNECT 80\nx");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    service.join().unwrap();
}

#[test]
fn a_service_connects_to_a_port_of_its_host() {
    let name = Name::new("connects");
    let host = Name(PathBuf::from(format!("{}_7", name.0.display())));
    let listener = UnixListener::bind(&host.0).unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        received
    });
    let platform = name.platform();
    let handle = platform.clone();
    let run = async move {
        let remote = |port| VsockAddress { cid: VsockAddress::HOST, port };
        assert_eq!(handle.net().connect_to(remote(8).into()).await.err(), Some(NetError::Reset));
        let mut stream = handle.net().connect_to(remote(7).into()).await.unwrap();
        assert_eq!(stream.peer(), remote(7).into());
        stream.write_all(b"from the service").await.unwrap();
        stream.close().await.unwrap();
    };
    platform.run(run).unwrap();
    assert_eq!(peer.join().unwrap(), "from the service");
}
