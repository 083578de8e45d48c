//! `--vsock`: the VM's socket device, which a helper on the host serves, and TCP ports that lead to its ports.

use super::Args;
use super::escape::escape;
use super::helpers::{Helper, Role, find};
use super::options::{Guest, Port};
use crate::console::say;
use anyhow::{Context, Result};
use glass_profiler_guests::find::registry;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = "vhost-device-vsock";
const ROLE: Role = Role { name: PROGRAM, serves: "vsock", is_vital: false };
/// The VM's context identifier. Each VM has a helper of its own, so all have the same one.
const CID: u32 = 3;
/// Bytes that the helper keeps for a connection whose VM does not read.
const BUFFER_BYTES: usize = 256 << 10;
/// Connections that are forwarded at once; more are refused.
const FORWARDED_MAX: usize = 256;
/// How long the VM may take to accept a connection that is forwarded.
const ACCEPT_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer of the helper, `OK 4294967295` and a line end.
const ANSWER_BYTES_MAX: usize = 16;

/// Whether the VM has a socket device.
pub(super) fn is_wanted(args: &Args) -> bool {
    args.vsock.is_some() || forwarded(&args.port).next().is_some()
}

/// The ports that are forwarded to vsock.
fn forwarded(ports: &[Port]) -> impl Iterator<Item = (u16, u32)> + '_ {
    ports.iter().filter_map(|port| match port.guest {
        Guest::Vsock(guest) => Some((port.host, guest)),
        Guest::Tcp(_) => None,
    })
}

/// The unix socket for clients on the host.
fn clients(args: &Args, folder: &Path) -> PathBuf {
    args.vsock.clone().flatten().unwrap_or(folder.join("vsock"))
}

/// The socket between QEMU and the helper.
fn device(folder: &Path) -> PathBuf {
    folder.join("vsock-device")
}

/// QEMU's options; `kind` names the device on its bus.
pub(super) fn arguments(folder: &Path, kind: &str) -> [String; 4] {
    let socket = escape(&device(folder));
    let device = format!("{kind},chardev=vsock");
    ["-chardev".to_owned(), format!("socket,id=vsock,path={socket}"), "-device".to_owned(), device]
}

/// Starts what the VM's socket device needs, if it has one, and forwards ports to it until the returned value is dropped.
pub(super) fn start(args: &Args, folder: &Path) -> Result<Option<Helper>> {
    if !is_wanted(args) {
        return Ok(None);
    }
    let cargo = std::env::home_dir().map(|home| home.join(".cargo/bin"));
    let program = find(PROGRAM, &Vec::from_iter(cargo))
        .with_context(|| format!("there is no {PROGRAM}, which --vsock needs: `cargo install --locked {PROGRAM}`"))?;
    let (socket, clients) = (device(folder), clients(args, folder));
    let arguments = [
        format!("--guest-cid={CID}"),
        format!("--socket={}", socket.display()),
        format!("--uds-path={}", clients.display()),
        format!("--tx-buffer-size={BUFFER_BYTES}"),
    ];
    let helper = Helper::start(ROLE, &program, &arguments, &socket, folder.join("vsock.log"))?;
    say!("glass: {} leads to the VM's vsock: write `CONNECT PORT` and a line end, then read `OK`", clients.display());
    for (host, guest) in forwarded(&args.port) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, host));
        let listener = listener.with_context(|| format!("cannot listen on port {host} of 127.0.0.1"))?;
        say!("glass: 127.0.0.1:{host} leads to vsock port {guest} of the VM");
        let clients = clients.clone();
        thread::spawn(move || forward(&listener, &clients, guest));
    }
    Ok(Some(helper))
}

/// What `glass ps` shows of it.
pub(super) fn link(args: &Args, folder: &Path) -> Option<registry::Vsock> {
    let link = || {
        let socket = clients(args, folder);
        let socket = std::path::absolute(&socket).unwrap_or(socket);
        registry::Vsock { cid: CID, socket, ports: forwarded(&args.port).collect() }
    };
    is_wanted(args).then(link)
}

/// Forwards connections of a port for as long as we live.
fn forward(listener: &TcpListener, clients: &Path, port: u32) {
    let count = Arc::new(AtomicUsize::new(0));
    for client in listener.incoming().flatten() {
        if count.fetch_add(1, Ordering::Relaxed) >= FORWARDED_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (count, clients) = (count.clone(), clients.to_owned());
        thread::spawn(move || {
            // An error ends the connection, which is all that can be done.
            let _ = connect(&clients, port).and_then(|vm| join(&client, &vm));
            count.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// A connection to a vsock port of the VM.
fn connect(clients: &Path, port: u32) -> io::Result<UnixStream> {
    let mut vm = UnixStream::connect(clients)?;
    vm.write_all(format!("CONNECT {port}\n").as_bytes())?;
    vm.set_read_timeout(Some(ACCEPT_LIMIT))?;
    for _ in 0..ANSWER_BYTES_MAX {
        let mut byte = [0];
        vm.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            vm.set_read_timeout(None)?;
            return Ok(vm);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Copies both ways until both have ended.
fn join(client: &TcpStream, vm: &UnixStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let copied = io::copy(&mut &*client, &mut &*vm);
            // If this fails, so did the connection.
            let _ = vm.shutdown(if copied.is_ok() { Shutdown::Write } else { Shutdown::Both });
        });
        let copied = io::copy(&mut &*vm, &mut &*client);
        let _ = client.shutdown(if copied.is_ok() { Shutdown::Write } else { Shutdown::Both });
    });
    Ok(())
}
