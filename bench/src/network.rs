//! `network`: TCP and UDP between a client on the host and `bench-tcp` or `bench-udp` as a VM behind a TAP device, beside the same as a process
//! behind a pair of Ethernet devices (veth), and in a Linux guest that is emulated as ours is. All devices are in network namespaces that the
//! benchmark makes.

mod flood;
mod loss;
mod relay;

use crate::Part;
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::peers::linux::{self, Contents, LinuxGuest};
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Turns of each contestant.
const ROUNDS: usize = 7;
/// Bytes of one transfer: a process or a VM under KVM, and an emulated VM. The first part of each is not timed.
const BYTES: u64 = 2 << 30;
const BYTES_TCG: u64 = 512 << 20;
const BYTES_SHORT: u64 = 4 << 20;
const WARM_UP_BYTES: u64 = 32 << 20;
/// Round trips of a turn, after some that are not counted.
const ROUND_TRIPS: usize = 2000;
const ROUND_TRIPS_SHORT: usize = 50;
const WARM_UP_TRIPS: usize = 100;
const ECHO_BYTES: usize = 64;
const PIECE_BYTES: usize = 256 << 10;
const PORT: u16 = 8090;
const UDP_PORT: u16 = 8091;
/// Datagrams of a turn: of a process or a VM under KVM, and of an emulated VM.
const DATAGRAMS: u64 = 200_000;
const DATAGRAMS_TCG: u64 = 50_000;
const DATAGRAMS_SHORT: u64 = 2000;
const DATAGRAM_BYTES: usize = 1400;
/// Room for received datagrams in the client's socket.
const RECEIVE_BYTES: usize = 16 << 20;
/// Datagrams that have not arrived after so long are lost.
const LOST_AFTER: Duration = Duration::from_millis(300);
/// A service that does not answer for so long has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// The parts, by name.
pub const PARTS: [Part; 6] =
    [("tcp", tcp), ("udp", udp), ("offloads", offloads), ("vmms", vmms), ("flood", flood::flood), ("loss", loss::loss)];

/// What the device of a VM lacks, by the name of the figures.
const LACKS: [(&str, &str); 5] = [
    ("all", ""),
    ("without_merged_buffers", ",mrg_rxbuf=off"),
    ("without_received_segments", ",guest_tso4=off,guest_tso6=off"),
    ("without_sent_segments", ",host_tso4=off,host_tso6=off"),
    ("without_any", ",csum=off,guest_csum=off,guest_tso4=off,guest_tso6=off,host_tso4=off,host_tso6=off,mrg_rxbuf=off"),
];

/// QEMU, and our own VMM, which is compared with it.
pub(crate) const VMMS: [&str; 2] = ["qemu", "own"];

/// A running service, and what was measured of it.
struct Contestant<'n> {
    name: String,
    address: SocketAddr,
    bytes: u64,
    /// Where the client is.
    near: &'n Namespace,
    // Ended before the namespaces go, and before the folder with the sockets of a VM.
    _running: Running,
    _devices: Vec<Process>,
    _sockets: Option<Folder>,
    out: Vec<f64>,
    /// As `out`, but the service does not write what it sends.
    untouched: Vec<f64>,
    r#in: Vec<f64>,
    /// As `in`, but the service drops what it receives without a copy.
    skipped: Vec<f64>,
    echo: Vec<f64>,
}

/// What ends with the contestant.
#[expect(dead_code, reason = "they are kept for their end only")]
enum Running {
    Process(Process),
    Guest(LinuxGuest),
}

impl<'n> Contestant<'n> {
    fn new(name: String, address: Ipv4Addr, bytes: u64, near: &'n Namespace, running: Running) -> Contestant<'n> {
        let address = SocketAddr::from((address, PORT));
        Contestant {
            name,
            address,
            bytes,
            near,
            _running: running,
            _devices: Vec::new(),
            _sockets: None,
            out: Vec::new(),
            untouched: Vec::new(),
            r#in: Vec::new(),
            skipped: Vec::new(),
            echo: Vec::new(),
        }
    }

    fn turn(&mut self, run: &Run) -> Result<()> {
        let (address, bytes) = (self.address, run.size(self.bytes, BYTES_SHORT));
        let trips = run.size(ROUND_TRIPS, ROUND_TRIPS_SHORT);
        let inside = || {
            Ok([
                receive(address, "send", bytes)?,
                receive(address, "untouched", bytes)?,
                send(address, "take", bytes)?,
                send(address, "skip", bytes)?,
                echo(address, trips)?,
            ])
        };
        let measured = self.near.inside(inside)?;
        for (samples, value) in self.columns_mut().into_iter().zip(measured) {
            samples.push(value);
        }
        Ok(())
    }

    fn columns_mut(&mut self) -> [&mut Vec<f64>; 5] {
        [&mut self.out, &mut self.untouched, &mut self.r#in, &mut self.skipped, &mut self.echo]
    }

    fn columns(&self) -> [&Vec<f64>; 5] {
        [&self.out, &self.untouched, &self.r#in, &self.skipped, &self.echo]
    }

    fn medians(&self) -> [Option<f64>; 5] {
        self.columns().map(|samples| Summary::of(samples).map(|summary| summary.median))
    }
}

/// Whether nothing can be measured here; `outcome` has the reason, and what it costs.
fn is_impossible(outcome: &mut Outcome) -> bool {
    let reason = netns::obstacle();
    if let Some(reason) = reason {
        outcome.skip(format!("{reason}; `glass run --net user` works without, at about a tenth of the speed"));
    }
    reason.is_some()
}

fn tcp(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    let folder = Folder::new("bench-network")?;
    let (near, far, far_address) = Namespace::pair()?;
    let mut contestants = Vec::new();
    let mut command = far.command(programs::built("bench-tcp").context("bench-tcp is not built")?);
    command.args(["--bind", "::"]);
    let process = Process::spawn(&mut command, &folder.file("process.log"))?;
    contestants.push(Contestant::new("native_veth".into(), far_address, BYTES, &near, Running::Process(process)));
    for (number, world) in (1..).zip(outcome.available([World::Kvm, World::Tcg])) {
        contestants.push(vm(world, number, "bench-tcp", &world.to_string(), "", &near, &folder)?);
    }
    contestants.extend(peer_of_tcg("bench-tcp", BYTES_TCG, &near, outcome, run));
    measure(outcome, &mut contestants, run, |outcome, contestants| {
        for contestant in contestants {
            for peer in peers(contestants, contestant) {
                let medians = peer.medians().map(|value| value.map(|value| (peer.name.as_str(), value)));
                add(outcome, "network", contestant, medians);
            }
        }
    })?;
    outcome.note(format!(
        "TCP between a client on the host and bench-tcp; out: from bench-tcp to the client, in: the other way, both with a copy by both programs; out_untouched: as out, but bench-tcp sends from where the data is made, and makes nothing; in_skipped: as in, but bench-tcp drops what it receives without a copy, a process by Linux's MSG_TRUNC; {} MiB a turn, {} MiB of an emulated VM, after {} MiB to warm up (out only)",
        BYTES >> 20, BYTES_TCG >> 20, WARM_UP_BYTES >> 20
    ));
    outcome.note(format!("echo: the median of {ROUND_TRIPS} round trips of {ECHO_BYTES} bytes in each turn"));
    Ok(())
}

/// Whom a contestant is compared with: an emulated VM with Linux emulated in the same way too.
fn peers<'c>(all: &'c [Contestant<'c>], one: &Contestant) -> Vec<&'c Contestant<'c>> {
    let names: &[&str] =
        if one.name == World::Tcg.to_string() { &["linux_guest", "native_veth"] } else { &["native_veth"] };
    all.iter().filter(|other| names.contains(&other.name.as_str())).collect()
}

/// Datagrams as fast as the sender can, and how many of them are received.
fn udp(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    let folder = Folder::new("bench-network")?;
    let (near, far, far_address) = Namespace::pair()?;
    let mut command = far.command(programs::built("bench-udp").context("bench-udp is not built")?);
    command.args(["--bind", "::"]);
    let process = Process::spawn(&mut command, &folder.file("process.log"))?;
    let mut contestants =
        vec![Contestant::new("native_veth".into(), far_address, DATAGRAMS, &near, Running::Process(process))];
    for (number, world) in (1..).zip(outcome.available([World::Kvm, World::Tcg])) {
        let mut vm = vm(world, number, "bench-udp", &world.to_string(), "", &near, &folder)?;
        vm.bytes = if world == World::Tcg { DATAGRAMS_TCG } else { DATAGRAMS };
        contestants.push(vm);
    }
    contestants.extend(peer_of_tcg("bench-udp", DATAGRAMS_TCG, &near, outcome, run));
    let measure = |index: usize| {
        let Contestant { name, address, bytes: count, near, .. } = &contestants[index];
        let (address, count) = (SocketAddr::from((address.ip(), UDP_PORT)), run.size(*count, DATAGRAMS_SHORT));
        let both = near.inside(|| Ok((receive_datagrams(address, count)?, send_datagrams(address, count)?)));
        both.with_context(|| name.clone())
    };
    let add = |outcome: &mut Outcome, samples: &[Vec<_>]| add_datagrams(outcome, &contestants, samples);
    in_turn(outcome, contestants.len(), ROUNDS, run, measure, add)?;
    outcome.note(format!("UDP: datagrams of {DATAGRAM_BYTES} bytes that were received, a second; udp_1400_k_s: by the client on the host, in: by bench-udp; {DATAGRAMS} a turn, {DATAGRAMS_TCG} of an emulated VM"));
    Ok(())
}

fn add_datagrams(outcome: &mut Outcome, contestants: &[Contestant], samples: &[Vec<(Datagrams, Datagrams)>]) {
    let column =
        |index: usize, of: fn(&(Datagrams, Datagrams)) -> f64| samples[index].iter().map(of).collect::<Vec<_>>();
    let median = |values: &[f64]| Summary::of(values).map_or(0.0, |summary| summary.median);
    for (index, Contestant { name, .. }) in contestants.iter().enumerate() {
        for (what, of) in [
            ("udp_1400_k_s", (|(out, _)| out.thousands_s) as fn(&(Datagrams, Datagrams)) -> f64),
            ("udp_1400_in_k_s", |(_, r#in)| r#in.thousands_s),
        ] {
            for peer in peers(contestants, &contestants[index]) {
                let of_peer = contestants.iter().position(|other| other.name == peer.name).unwrap_or(0);
                let value = median(&column(of_peer, of));
                let figure = Figure::of(&format!("network.{name}.{what}"), "k/s", &column(index, of));
                outcome.add(
                    figure.map(|figure| if of_peer == index { figure } else { figure.against(&peer.name, value) }),
                );
            }
        }
        let [out, r#in] = [median(&column(index, |(out, _)| out.lost)), median(&column(index, |(_, r#in)| r#in.lost))];
        outcome.note(format!(
            "{name}: {:.2} % of the datagrams it sent were lost, {:.2} % of those sent to it",
            out * 100.0,
            r#in * 100.0
        ));
    }
}

/// Datagrams that were received, in thousands a second, and the share of those sent that was not.
struct Datagrams {
    thousands_s: f64,
    lost: f64,
}

impl Datagrams {
    fn new(received: u64, sent: u64, time: Duration) -> Datagrams {
        Datagrams {
            thousands_s: received as f64 / 1e3 / time.as_secs_f64().max(1e-9),
            lost: 1.0 - received as f64 / sent as f64,
        }
    }
}

/// Sends a request to `bench-udp` until it is answered.
fn ask(socket: &UdpSocket, request: &str) -> Result<String> {
    let end = Instant::now() + LIMIT;
    let mut buffer = vec![0; DATAGRAM_BYTES + 1];
    socket.set_read_timeout(Some(LOST_AFTER))?;
    while Instant::now() < end {
        // Both fail as long as the service does not listen.
        if socket.send(request.as_bytes()).is_ok()
            && let Ok(count) = socket.recv(&mut buffer)
        {
            return Ok(String::from_utf8_lossy(&buffer[..count]).trim().to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{request:?} is not answered")
}

fn receive_datagrams(address: SocketAddr, count: u64) -> Result<Datagrams> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(address)?;
    // A client that does not run for a moment loses what does not fit.
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES)?;
    ask(&socket, "take")?;
    socket.send(format!("send {count} {DATAGRAM_BYTES}").as_bytes())?;
    let mut buffer = vec![0; DATAGRAM_BYTES + 1];
    let mut times = None;
    let mut received = 0;
    // The last one is not counted, but may be lost as well.
    while let Ok(DATAGRAM_BYTES) = socket.recv(&mut buffer) {
        received += 1;
        let now = Instant::now();
        times = Some((times.map_or(now, |(first, _)| first), now));
    }
    let (first, last) = times.context("nothing was received")?;
    Ok(Datagrams::new(received, count, last - first))
}

fn send_datagrams(address: SocketAddr, count: u64) -> Result<Datagrams> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(address)?;
    ask(&socket, "take")?;
    let datagram = [0; DATAGRAM_BYTES];
    for _ in 0..count {
        socket.send(&datagram)?;
    }
    std::thread::sleep(LOST_AFTER);
    let answer = ask(&socket, "report")?;
    let mut words = answer.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(received)), Some(Ok(us))) = (words.next(), words.next()) else {
        bail!("bench-udp answered {answer:?}")
    };
    Ok(Datagrams::new(received, count, Duration::from_micros(us)))
}

/// The fastest VM of this machine, with one offload less each time.
fn offloads(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    let folder = Folder::new("bench-network")?;
    let near = Namespace::new()?;
    let worlds = [World::Kvm, World::Tcg];
    let Some(world) = worlds.into_iter().find(|world| world.obstacle().is_none()) else {
        outcome.skip("qemu-system-x86_64 is not installed");
        return Ok(());
    };
    let mut contestants = Vec::new();
    for (number, (name, lacks)) in (1..).zip(LACKS) {
        contestants.push(vm(world, number, "bench-tcp", &format!("{world}.{name}"), lacks, &near, &folder)?);
    }
    measure(outcome, &mut contestants, run, |outcome, contestants| {
        add_beside_first(outcome, "offloads", contestants, "all");
    })?;
    outcome.note("the device of each VM lacks some offloads; without_any also lacks checksums");
    Ok(())
}

/// Our own VMM beside QEMU, each as `glass run` starts it, with the same program for the card.
fn vmms(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    if let Some(reason) = World::Kvm.obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let folder = Folder::new("bench-network")?;
    let near = Namespace::new()?;
    let (glass, image) = (programs::built("glass"), programs::image("bench-tcp"));
    let (glass, image) = (glass.context("glass is not built")?, image.context("the image of bench-tcp is not built")?);
    let mut contestants = Vec::new();
    for (number, vmm) in (1..).zip(VMMS) {
        let (guest, network) = tap(&near, number)?;
        let mut command = near.command(&glass);
        command.arg("run").arg(&image).args(["--accel", "kvm", "--vmm", vmm]).args(network);
        let process = Process::spawn(&mut command, &folder.file(&format!("{vmm}.log")))?;
        contestants.push(Contestant::new(vmm.to_owned(), guest, BYTES, &near, Running::Process(process)));
    }
    measure(outcome, &mut contestants, run, |outcome, contestants| {
        add_beside_first(outcome, "network.vmm", contestants, VMMS[0]);
    })?;
    outcome.note(format!("the same image by our own VMM and by QEMU with `glass tap`; {} MiB a turn", BYTES >> 20));
    Ok(())
}

/// Runs everything in turn; `add` makes figures of it.
fn measure<'n>(
    outcome: &mut Outcome,
    contestants: &mut [Contestant<'n>],
    run: &Run,
    add: impl Fn(&mut Outcome, &[Contestant<'n>]),
) -> Result<()> {
    for round in run.rounds(ROUNDS) {
        for index in turn(contestants.len(), round) {
            let contestant = &mut contestants[index];
            contestant.turn(run).with_context(|| format!("{} failed in round {round}", contestant.name))?;
        }
        run.so_far(outcome, |outcome| add(outcome, contestants));
    }
    add(outcome, contestants);
    Ok(())
}

/// All beside the first, which is shown as `first`.
fn add_beside_first(outcome: &mut Outcome, group: &str, contestants: &[Contestant], first: &str) {
    let peers = contestants[0].medians();
    for (index, contestant) in contestants.iter().enumerate() {
        add(outcome, group, contestant, peers.map(|peer| peer.filter(|_| index > 0).map(|peer| (first, peer))));
    }
}

fn add(outcome: &mut Outcome, group: &str, contestant: &Contestant, peers: [Option<(&str, f64)>; 5]) {
    let name = &contestant.name;
    let names = [
        ("tcp_out_gbit_s", "Gbit/s"),
        ("tcp_out_untouched_gbit_s", "Gbit/s"),
        ("tcp_in_gbit_s", "Gbit/s"),
        ("tcp_in_skipped_gbit_s", "Gbit/s"),
        ("echo_p50_us", "us"),
    ];
    for (((what, unit), samples), peer) in names.into_iter().zip(contestant.columns()).zip(peers) {
        let figure = Figure::of(&format!("{group}.{name}.{what}"), unit, samples);
        outcome.add(figure.map(|figure| figure.beside(peer.filter(|(peer, _)| peer != name))));
    }
}

/// Makes a TAP device. Returns the address of the VM behind it, and the options of `glass run` for both.
fn tap(near: &Namespace, number: u8) -> Result<(Ipv4Addr, [String; 4])> {
    let (name, host) = (format!("tap{number}"), Ipv4Addr::new(10, 77, number, 1));
    let guest = Ipv4Addr::new(10, 77, number, 2);
    near.tap(&name, host)?;
    let ip = format!("{guest}/{},{host}", netns::PREFIX_BITS);
    Ok((guest, ["--net".to_owned(), format!("tap={name}"), "--ip".to_owned(), ip]))
}

/// Boots `app` with a TAP device of its own, whose card has the options `lacks` of QEMU.
fn vm<'n>(
    world: World,
    number: u8,
    app: &str,
    name: &str,
    lacks: &str,
    near: &'n Namespace,
    folder: &Folder,
) -> Result<Contestant<'n>> {
    let sockets = Folder::new(&format!("bench-network-{number}"))?;
    let (guest, network) = tap(near, number)?;
    let mut glass = near.command(programs::built("glass").context("glass is not built")?);
    let image = programs::image(app).with_context(|| format!("the image of {app} is not built"))?;
    glass.arg("run").arg(image).args(["--accel", &world.to_string()]).args(network);
    let line = qemu::command_line(&mut glass, &[], &sockets)?;
    let devices = line.start_devices(&sockets)?;
    let (program, words) = line.words.split_first().context("an empty command line")?;
    let mut command = near.command(program);
    let is_card = |word: &str| word.starts_with("virtio-net-");
    command.args(words.iter().map(|word| if is_card(word) { format!("{word}{lacks}") } else { word.clone() }));
    let process = Process::spawn(&mut command, &folder.file(&format!("{name}.log")))?;
    let bytes = if world == World::Tcg { BYTES_TCG } else { BYTES };
    let contestant = Contestant::new(name.into(), guest, bytes, near, Running::Process(process));
    Ok(Contestant { _devices: devices, _sockets: Some(sockets), ..contestant })
}

/// The Linux guest, where there can be one and QEMU emulates ours; otherwise a note has the reason.
fn peer_of_tcg<'n>(
    app: &str,
    bytes: u64,
    near: &'n Namespace,
    outcome: &mut Outcome,
    run: &Run,
) -> Option<Contestant<'n>> {
    if World::Tcg.obstacle().is_some() {
        return None;
    }
    let guest = match linux::obstacle(run) {
        None => linux_guest(app, near).map_err(|error| format!("{error:#}")),
        Some(reason) => Err(reason.to_owned()),
    };
    match guest {
        Ok((guest, address)) => {
            Some(Contestant::new("linux_guest".into(), address, bytes, near, Running::Guest(guest)))
        }
        Err(reason) => {
            outcome.note(format!("linux_guest skipped: {reason}"));
            None
        }
    }
}

/// Boots Linux with `app` as a process without shared libraries, behind a TAP device of its own. Returns it with its address.
fn linux_guest(app: &str, near: &Namespace) -> Result<(LinuxGuest, Ipv4Addr)> {
    let [host, address] = [1, 2].map(|host| Ipv4Addr::new(10, 77, 9, host));
    near.tap("tap9", host)?;
    let mut glass = near.command(programs::built("glass").context("glass is not built")?);
    glass.arg("run").arg(programs::image(app).with_context(|| format!("the image of {app} is not built"))?);
    glass.args(linux::MACHINE).args(["--net", "tap=tap9"]);
    let program =
        programs::built_static(app, true).with_context(|| format!("{app} is not built for the Linux guest"))?;
    let contents = Contents { programs: &[], files: vec![(app, std::fs::read(program)?)] };
    let mut guest = LinuxGuest::start(Some(near), &mut glass, &contents, &[], &str::to_owned)?;
    guest.run(&format!("ip addr add {address}/{} dev eth0 && ip link set eth0 up", netns::PREFIX_BITS), LIMIT)?;
    guest.run(&format!("/{app} > /tmp/log 2>&1 &"), LIMIT)?;
    Ok((guest, address))
}

/// A connection with the client's request; waits until the service listens.
fn connect(address: SocketAddr, request: &str) -> Result<TcpStream> {
    let end = Instant::now() + LIMIT;
    let mut stream = loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > end => {
                return Err(error).with_context(|| format!("{address} does not answer"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn gbit_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64()
}

/// Receives `bytes` as `request` requires, and what is received before them to warm up; returns Gbit/s.
fn receive(address: SocketAddr, request: &str, bytes: u64) -> Result<f64> {
    let mut stream = connect(address, &format!("{request} {}\n", WARM_UP_BYTES + bytes))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut received = 0;
    let mut start = None;
    loop {
        let count = stream.read(&mut buffer)?;
        received += count as u64;
        if received >= WARM_UP_BYTES && start.is_none() {
            start = Some((Instant::now(), received));
        }
        if count == 0 {
            break;
        }
    }
    ensure!(received == WARM_UP_BYTES + bytes, "{received} bytes of {} were received", WARM_UP_BYTES + bytes);
    let (start, before) = start.context("nothing was received")?;
    Ok(gbit_s(received - before, start.elapsed()))
}

/// Sends `bytes`, until the service has received all of them as `request` requires; returns Gbit/s.
fn send(address: SocketAddr, request: &str, bytes: u64) -> Result<f64> {
    let mut stream = connect(address, &format!("{request}\n"))?;
    let buffer = vec![b'g'; PIECE_BYTES];
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 {
        left -= stream.write(&buffer[..left.min(PIECE_BYTES as u64) as usize])? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(line.trim().parse() == Ok(bytes), "bench-tcp received {line:?} of {bytes} bytes");
    Ok(gbit_s(bytes, start.elapsed()))
}

/// The median round trip in microseconds.
fn echo(address: SocketAddr, trips: usize) -> Result<f64> {
    let mut stream = connect(address, "echo\n")?;
    let mut times = Vec::with_capacity(trips);
    let (sent, mut received) = ([b'g'; ECHO_BYTES], [0; ECHO_BYTES]);
    for trip in 0..WARM_UP_TRIPS + trips {
        let start = Instant::now();
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        if trip >= WARM_UP_TRIPS {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(Summary::of(&times).context("there are round trips")?.median)
}
