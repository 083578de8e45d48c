//! What `network loss` measures on: a VM and a Linux process behind the same end of a relay, and a Linux client at the other one. All are
//! in network namespaces of their own.

use super::sender::Sender;
use super::{Direction, Far};
use crate::network::relay::link::{Conditions, Counts};
use crate::network::relay::{BothCounts, Relay};
use crate::network::{PIECE_BYTES, PORT, connect};
use crate::sys;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use rustix::net::sockopt::{set_socket_linger, set_tcp_congestion};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Of the VMs.
const VMS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 3), Ipv4Addr::new(10, 77, 0, 4)];
/// The TAP devices of the relay, and those of the VMs.
const RELAY_TAP: &str = "relay0";
const VM_TAPS: [&str; 2] = ["tap0", "tap1"];
/// More than any transfer has time for; `bench-tcp` accepts no larger number.
const SEND_BYTES: u64 = 1 << 40;
/// Where the process sends; everything else is done by `bench-tcp`.
const SENDER_PORT: u16 = PORT + 2;
/// How long a call may block before the time is checked.
const BLOCKED_MAX: Duration = Duration::from_millis(20);
/// After a transfer its connection is reset over a good wire; that takes less than this.
const RESET_TIME: Duration = Duration::from_millis(200);

/// The namespaces with what runs in them.
pub struct Bed {
    // Ended before the namespaces go.
    _processes: Vec<Process>,
    _sender: Sender,
    relay: Relay,
    near: Namespace,
    vms: Vec<Vm>,
    far: Namespace,
    _linux: Namespace,
}

/// A VM. All have the same MAC address, so one at a time is at the bridge.
#[derive(Debug, Clone, Copy)]
struct Vm {
    algorithm: &'static str,
    address: Ipv4Addr,
    tap: &'static str,
}

/// The result of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Megabytes (10^6) that arrived in a second.
    pub mb_s: f64,
    /// Segments with data, or most of them: of the direction of the transfer.
    pub counts: Counts,
}

impl Bed {
    /// Boots a VM for each congestion control, as a user does, and starts the same service as a process.
    pub fn new(world: World, algorithms: &[&'static str], folder: &Folder) -> Result<Bed> {
        let (near, far, linux) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        near.tap(RELAY_TAP, NEAR)?;
        far.bridge(&[RELAY_TAP, VM_TAPS[0], VM_TAPS[1]])?;
        linux.join_bridge(LINUX, &far)?;
        for namespace in [&near, &linux] {
            // A connection would start with what an earlier one has seen under other conditions.
            namespace.set("ipv4/tcp_no_metrics_save", "1")?;
        }
        let relay = Relay::attach((&near, RELAY_TAP), (&far, RELAY_TAP))?;
        let mut processes = Vec::new();
        let vms = algorithms.iter().zip(VMS.into_iter().zip(VM_TAPS));
        let vms: Vec<Vm> = vms.map(|(algorithm, (address, tap))| Vm { algorithm, address, tap }).collect();
        for Vm { algorithm, address, tap } in &vms {
            let mut glass = far.command(programs::built("glass").context("glass is not built")?);
            glass.arg("run").arg(programs::image("bench-tcp").context("the image of bench-tcp is not built")?);
            glass.args(["--accel", &world.to_string(), "--net", &format!("tap={tap}"), "--congestion", algorithm]);
            glass.args(["--ip", &format!("{address}/{}", netns::PREFIX_BITS)]);
            processes.push(Process::spawn(&mut glass, &folder.file(&format!("{algorithm}.log")))?);
        }
        let mut command = linux.command(programs::built("bench-tcp").context("bench-tcp is not built")?);
        command.args(["--bind", "::"]);
        processes.push(Process::spawn(&mut command, &folder.file("process.log"))?);
        let _sender = Sender::start(&linux, SocketAddr::from((LINUX, SENDER_PORT)))?;
        let bed = Bed { _processes: processes, _sender, relay, near, vms, far, _linux: linux };
        bed.settle(|| {
            let vms = bed.vms.iter().map(|vm| (Far::Vm, vm.algorithm));
            for (far, algorithm) in vms.chain([(Far::Linux, "")]) {
                let address = bed.plug(far, algorithm)?;
                bed.near.inside(|| connect((address, PORT).into(), "echo\n"))?;
            }
            Ok(())
        })?;
        Ok(bed)
    }

    /// Puts the VM with this congestion control at the bridge, if that is the far end, and returns its address, or that of the process.
    fn plug(&self, far: Far, algorithm: &str) -> Result<Ipv4Addr> {
        let mut address = LINUX;
        for vm in self.vms.iter().filter(|_| far == Far::Vm) {
            let is_meant = vm.algorithm == algorithm;
            self.far.plug(vm.tap, is_meant)?;
            address = if is_meant { vm.address } else { address };
        }
        Ok(address)
    }

    /// A transfer of this duration. `algorithm` is the congestion control of the sender; a VM also receives from the same of Linux.
    pub fn transfer(
        &self,
        conditions: &Conditions,
        seed: u64,
        (direction, far, algorithm): (Direction, Far, &str),
        time: Duration,
    ) -> Result<Transfer> {
        let address = self.plug(far, algorithm)?;
        let work = || match direction {
            Direction::Out => self.near.inside(|| receive(address, algorithm, time)),
            Direction::In => self.near.inside(|| send(address, algorithm, time)),
        };
        let ((mb_s, stream), BothCounts { to_far, to_near }) = self.relay.during(conditions, seed, work)?;
        self.reset(vec![stream])?;
        Ok(Transfer { mb_s, counts: if direction == Direction::Out { to_near } else { to_far } })
    }

    /// Two connections of the VM and one of the Linux process send at the same time; returns the megabytes a second of each.
    pub fn compete(&self, conditions: &Conditions, seed: u64, algorithm: &str, time: Duration) -> Result<[f64; 3]> {
        let vm = self.plug(Far::Vm, algorithm)?;
        let senders = [vm, vm, LINUX];
        let work = || {
            std::thread::scope(|scope| {
                let near = &self.near;
                let threads = senders.map(|far| scope.spawn(move || near.inside(|| receive(far, algorithm, time))));
                threads.into_iter().map(|thread| thread.join().expect("receiving does not panic")).collect()
            })
        };
        let (results, _): (Vec<(f64, TcpStream)>, _) = self.relay.during(conditions, seed, work)?;
        let (rates, streams): (Vec<f64>, Vec<TcpStream>) = results.into_iter().unzip();
        self.reset(streams)?;
        rates.try_into().ok().context("there are three senders")
    }

    /// Resets connections, so that they disturb no later one.
    fn reset(&self, streams: Vec<TcpStream>) -> Result<()> {
        self.settle(|| {
            for stream in streams {
                set_socket_linger(&stream, Some(Duration::ZERO))?;
            }
            Ok(())
        })
    }

    /// Over a good wire.
    fn settle(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let work = || {
            work()?;
            std::thread::sleep(RESET_TIME);
            Ok(())
        };
        self.relay.during(&Conditions::default(), 0, work).map(|_| ())
    }
}

/// Receives for this time; returns megabytes a second, and the connection.
fn receive(address: Ipv4Addr, algorithm: &str, time: Duration) -> Result<(f64, TcpStream)> {
    let mut stream = match address {
        LINUX => connect((address, SENDER_PORT).into(), &format!("{algorithm}\n"))?,
        _ => connect((address, PORT).into(), &format!("send {SEND_BYTES}\n"))?,
    };
    stream.set_read_timeout(Some(BLOCKED_MAX))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let (start, mut received) = (Instant::now(), 0);
    while start.elapsed() < time {
        match stream.read(&mut buffer) {
            Ok(0) => bail!("{address} closed the connection"),
            Ok(count) => received += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((mb_s(received, start.elapsed()), stream))
}

/// Sends for this time; returns the megabytes a second that were acknowledged, and the connection.
fn send(address: Ipv4Addr, algorithm: &str, time: Duration) -> Result<(f64, TcpStream)> {
    let mut stream = connect((address, PORT).into(), "")?;
    set_tcp_congestion(&stream, algorithm).with_context(|| format!("Linux has no {algorithm}"))?;
    stream.write_all(b"take\n")?;
    stream.set_write_timeout(Some(BLOCKED_MAX))?;
    let buffer = vec![b'g'; PIECE_BYTES];
    let (start, mut written) = (Instant::now(), 0);
    while start.elapsed() < time {
        match stream.write(&buffer) {
            Ok(count) => written += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let acknowledged = written.saturating_sub(sys::unacknowledged_bytes(&stream)?);
    Ok((mb_s(acknowledged, start.elapsed()), stream))
}

fn mb_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}
