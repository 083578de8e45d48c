//! `tls`: full handshakes a second, handshakes that continue a session, and MiB a second of one connection, of `bench-tls` as a process and as a VM, beside nginx.
//!
//! All get the same clients: rustls that checks no certificate, so that a client costs less than a server; TLS 1.3, X25519, AES-128-GCM, a certificate with ECDSA
//! P-256. Rates of data are counted in records as they arrive, without decryption, after one response has been checked.

pub(crate) mod client;

use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::peers::nginx::Nginx;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, ensure};
use client::{configuration, connect, handshakes};
use glass_tests::folder::Folder;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind, Stream};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const DURATION: Duration = Duration::from_millis(1500);
const DURATION_SHORT: Duration = Duration::from_millis(200);
const PORT: u16 = 8443;
/// The body that is downloaded, and how often it is requested on a connection.
const BODY_BYTES: u64 = 64 << 20;
const REQUESTS: usize = 400;
/// A response that is checked.
const CHECKED_BYTES: u64 = 100_000;

/// A server: its name, address, and what it has measured in a turn.
struct Contestant {
    name: &'static str,
    address: SocketAddr,
}

/// Full handshakes a second, those that continue a session, and MiB a second.
type Rates = [f64; 3];
const FIGURES: [(&str, &str); 3] = [("handshakes_s", "1/s"), ("resumptions_s", "1/s"), ("get_mib_s", "MiB/s")];

pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = netns::obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let folder = Folder::new("bench-tls")?;
    let (near, far, far_address) = Namespace::pair()?;
    let [share, site] = ["share", "site"].map(|name| folder.file(name));
    for folder in [&share, &site] {
        std::fs::create_dir(folder)?;
    }
    let data = programs::root().join("lib/tls/tests/data");
    let [chain, key] =
        [("server.pem", "chain.pem"), ("server.key", "key.pem")].map(|(from, to)| (data.join(from), share.join(to)));
    for (from, to) in [&chain, &key] {
        std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    for bytes in [BODY_BYTES, CHECKED_BYTES] {
        std::fs::write(site.join(bytes.to_string()), vec![b'g'; bytes as usize])?;
    }
    let mut contestants = vec![Contestant { name: "process", address: (far_address, PORT).into() }];
    let mut processes = vec![process(&far, &share, &folder)?];
    for world in outcome.available([World::Kvm]) {
        let (process, address) = vm(world, &near, &share, &folder)?;
        processes.push(process);
        contestants.push(Contestant { name: "kvm", address });
    }
    let nginx = Nginx::serve_tls(&far, &near, (far_address, PORT + 1).into(), &site, &chain.1, &key.1)?;
    match &nginx {
        Some(nginx) => contestants.push(Contestant { name: "nginx", address: nginx.address }),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    let config = Arc::new(configuration(Resumption::disabled())?);
    for contestant in &contestants {
        near.inside(|| wait(contestant.address, &config))
            .with_context(|| format!("{} does not answer", contestant.name))?;
    }
    let duration = run.size(DURATION, DURATION_SHORT);
    let measure = |index: usize| {
        let address = contestants[index].address;
        near.inside(|| {
            let full = handshakes(address, || Ok(config.clone()), HandshakeKind::Full, duration)?;
            // Each client has tickets of its own.
            let own = || Ok(Arc::new(configuration(Resumption::in_memory_sessions(8))?));
            let resumed = handshakes(address, own, HandshakeKind::Resumed, duration)?;
            Ok([full, resumed, download(address, &config, duration)?])
        })
        .with_context(|| format!("{} failed", contestants[index].name))
    };
    in_turn(outcome, contestants.len(), ROUNDS, run, measure, |outcome, results| add(outcome, &contestants, results))?;
    outcome
        .note("resumptions: each connection waits for the ticket that the next one uses; X25519 again, no certificate");
    outcome.note("full handshakes of 4 clients at once, each with a connection over veth or TAP; clients and server share two cores, so each rate includes what a client costs");
    outcome.note("nginx: Debian's, one process, OpenSSL, TLS 1.3, X25519, the same certificate, without a cache of sessions; a file of 64 MiB in the page cache, 400 pipelined requests of one connection; ours makes its body");
    Ok(())
}

fn add(outcome: &mut Outcome, contestants: &[Contestant], results: &[Vec<Rates>]) {
    for (number, (name, unit)) in FIGURES.into_iter().enumerate() {
        let of = |index: usize| results[index].iter().map(|rates| rates[number]).collect::<Vec<f64>>();
        let nginx = contestants.iter().position(|contestant| contestant.name == "nginx");
        let peer = nginx.and_then(|index| Summary::of(&of(index))).map(|summary| ("nginx", summary.median));
        for (index, contestant) in contestants.iter().enumerate() {
            let figure = Figure::of(&format!("tls.{}.{name}", contestant.name), unit, &of(index));
            outcome.add(figure.map(|figure| figure.beside(peer.filter(|_| Some(index) != nginx))));
        }
    }
}

fn process(far: &Namespace, share: &Path, folder: &Folder) -> Result<Process> {
    let mut command = far.command(programs::built("bench-tls").context("bench-tls is not built")?);
    command.args(["--bind", "0.0.0.0", "--share"]).arg(share).args(["--", "--port", &PORT.to_string()]);
    Process::spawn(&mut command, &folder.file("process.log"))
}

fn vm(world: World, near: &Namespace, share: &Path, folder: &Folder) -> Result<(Process, SocketAddr)> {
    let [host, guest] = [1, 2].map(|number| Ipv4Addr::new(10, 77, 1, number));
    near.tap("tap1", host)?;
    let mut command = near.command(programs::built("glass").context("glass is not built")?);
    command.arg("run").arg(programs::image("bench-tls").context("the image of bench-tls is not built")?);
    command.args(["--accel", &world.to_string(), "--memory", "128"]);
    command.args(["--net", "tap=tap1", "--ip", &format!("{guest}/{}", netns::PREFIX_BITS)]);
    command.arg(format!("--share={}:ro", share.display())).args(["--", "--port", &PORT.to_string()]);
    Ok((Process::spawn(&mut command, &folder.file("vm.log"))?, (guest, PORT).into()))
}

/// Waits until a server listens, and checks a response.
fn wait(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let (mut stream, mut tls) = loop {
        match connect(address, config) {
            Ok(connected) => break connected,
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let mut stream = Stream::new(&mut tls, &mut stream);
    write!(stream, "GET /{CHECKED_BYTES} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    // A server that ends without `close_notify` is an error here.
    stream.read_to_end(&mut response)?;
    let body = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|end| &response[end + 4..]);
    ensure!(
        response.starts_with(b"HTTP/1.1 200 "),
        "the answer is {}",
        String::from_utf8_lossy(&response[..20.min(response.len())])
    );
    let is_whole = body.is_some_and(|body| body.len() as u64 == CHECKED_BYTES && body.iter().all(|byte| *byte == b'g'));
    ensure!(is_whole, "the body is another one");
    Ok(())
}

/// MiB a second of records that one connection receives.
fn download(address: SocketAddr, config: &Arc<ClientConfig>, duration: Duration) -> Result<f64> {
    let (mut stream, mut tls) = connect(address, config)?;
    let request = format!("GET /{BODY_BYTES} HTTP/1.1\r\nHost: server.test\r\n\r\n");
    tls.writer().write_all(request.repeat(REQUESTS).as_bytes())?;
    while tls.wants_write() {
        tls.write_tls(&mut stream)?;
    }
    let mut buffer = vec![0; 1 << 20];
    let (begin, mut bytes) = (Instant::now(), 0);
    while begin.elapsed() < duration {
        let count = stream.read(&mut buffer).context("cannot read records")?;
        ensure!(count > 0, "the server closed the connection");
        bytes += count;
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64() / f64::from(1 << 20))
}
