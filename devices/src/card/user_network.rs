//! The network of an ordinary user's VM: passt, a program that makes sockets of the host of the VM's connections (<https://passt.top>).

use super::Stream;
use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The addresses of QEMU's own user network, which are on command lines of images: the VM, the gateway, by which it also reaches the host, and the
/// name server.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PREFIX_BITS: u8 = 24;
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Room for frames to the VM. The host gives less to an ordinary user (`net.core.wmem_max`).
const SOCKET_BYTES: usize = 8 << 20;

/// What a user network is started with.
#[derive(Debug, Clone)]
pub struct UserNetwork {
    /// The program passt.
    pub program: PathBuf,
    /// TCP ports of 127.0.0.1, and the VM's ports to which they lead.
    pub ports: Vec<(u16, u16)>,
}

impl UserNetwork {
    /// The network of this host; `None` if passt is not installed.
    pub fn find(ports: Vec<(u16, u16)>) -> Option<UserNetwork> {
        let path = env::var_os("PATH").unwrap_or_default();
        let program = env::split_paths(&path).map(|folder| folder.join("passt")).find(|path| path.is_file())?;
        Some(UserNetwork { program, ports })
    }

    /// Starts it, for a card with this address. It ends when the stream is closed.
    pub fn start(&self, address: [u8; 6]) -> Result<Stream> {
        let messages = File::from(memfd_create("messages", MemfdFlags::CLOEXEC).context("there is no memory")?);
        let copy = messages.try_clone().context("there are no descriptors")?;
        let (socket, send_bytes) = self.spawn(address, copy.into())?;
        Stream::new(socket, address, send_bytes, Some(messages))
    }

    /// Starts it; returns the other end of its socket, and how much room that has for frames to the VM.
    fn spawn(&self, address: [u8; 6], messages: Stdio) -> Result<(UnixStream, usize)> {
        let (mut ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        // passt loses a frame for which there is no room in its socket, and waits seconds for the VM's stack to notice.
        let _ = set_socket_send_buffer_size(&theirs, SOCKET_BYTES);
        let send_bytes = socket_send_buffer_size(&theirs).unwrap_or(0);
        // Before there is a connection: passt sends to the address that it has seen last.
        let frame = announcement(address);
        let frame = [&(frame.len() as u32).to_be_bytes()[..], &frame].concat();
        ours.write_all(&frame).context("cannot use the network's socket")?;
        let mut command = Command::new(&self.program);
        command.args(self.arguments(has_route())).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(messages);
        command.spawn().with_context(|| format!("cannot run {}", self.program.display()))?;
        Ok((ours, send_bytes))
    }

    /// Its arguments, with the socket as its standard input. `has_route`: the host has a way to other hosts, whose interface it takes.
    fn arguments(&self, has_route: bool) -> Vec<String> {
        let mut words: Vec<String> = ["--foreground", "--quiet", "--stderr", "--fd", "0"].map(str::to_owned).into();
        let addresses = [
            ("--address", ADDRESS.to_string()),
            ("--netmask", PREFIX_BITS.to_string()),
            ("--gateway", GATEWAY.to_string()),
            // Queries to it are forwarded to the host's name server.
            ("--dns-forward", NAME_SERVER.to_string()),
        ];
        words.extend(addresses.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        if !has_route {
            words.extend(["--interface", "lo", "--ipv4-only"].map(str::to_owned));
        }
        for (host, guest) in &self.ports {
            words.extend(["--tcp-ports".to_owned(), format!("{}/{host}:{guest}", Ipv4Addr::LOCALHOST)]);
        }
        words
    }
}

/// Whether the host has a default route: a line of the kernel's table with a destination of zero.
fn has_route() -> bool {
    let table = fs::read_to_string("/proc/net/route").unwrap_or_default();
    table.lines().any(|line| line.split_ascii_whitespace().nth(1) == Some("00000000"))
}

/// A request of ARP (RFC 5227, section 2.3) by which a card announces its address.
fn announcement(card: [u8; 6]) -> Vec<u8> {
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let ip = ADDRESS.octets();
    [&[0xff; 6][..], &card, &[8, 6], &REQUEST, &card, &ip, &[0; 6], &ip].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_addresses_reach_passt() {
        let network = UserNetwork { program: "passt".into(), ports: vec![(8080, 80), (1, 2)] };
        let words = network.arguments(true).join(" ");
        assert!(words.contains("--fd 0 --address 10.0.2.15 --netmask 24 --gateway 10.0.2.2"), "{words}");
        assert!(words.ends_with("--tcp-ports 127.0.0.1/8080:80 --tcp-ports 127.0.0.1/1:2"), "{words}");
        assert!(network.arguments(false).join(" ").contains("--interface lo --ipv4-only"));
    }

    #[test]
    fn an_announcement_is_a_frame_to_all() {
        let frame = announcement([2, 0, 0, 0, 0, 9]);
        assert_eq!((frame.len(), &frame[..14]), (42, &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 6][..]));
        assert_eq!((&frame[28..32], &frame[38..]), (&[10, 0, 2, 15][..], &[10, 0, 2, 15][..]));
    }
}
