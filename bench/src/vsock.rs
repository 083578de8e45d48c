//! `vsock`: round trips and throughput between a client on the host and `bench-tcp` in a VM over vsock, beside the same program in a VM with
//! Linux, and an echo by a thread over a unix socket, which is as fast as it can be.

use crate::figure::Figure;
use crate::load::Place;
use crate::outcome::{Outcome, in_turn};
use crate::peers::helpers::{self, Helper};
use crate::peers::linux::{self, Contents, LinuxGuest};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, vsock};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Turns of each contestant.
const ROUNDS: usize = 5;
const PORT: u32 = 8090;
/// Sizes of a message, by the name of the figure.
const SIZES: [(&str, usize); 4] = [("64", 64), ("8k", 8 << 10), ("16k", 16 << 10), ("64k", 64 << 10)];
/// Round trips of a turn, after some that are not counted.
const ROUND_TRIPS: usize = 1000;
const ROUND_TRIPS_SHORT: usize = 20;
const WARM_UP_TRIPS: usize = 50;
/// Bytes of one transfer: under KVM and on the host, and of an emulated VM.
const BYTES: u64 = 1 << 30;
const BYTES_TCG: u64 = 64 << 20;
const BYTES_SHORT: u64 = 1 << 20;
const PIECE_BYTES: usize = 256 << 10;
/// A service that does not listen for so long has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// A running service.
struct Contestant {
    name: String,
    place: Place,
    bytes: u64,
    _running: Running,
}

/// What ends with the contestant.
#[expect(dead_code, reason = "they are kept for their end only")]
enum Running {
    Process(Process),
    Guest(LinuxGuest, Helper),
    Thread,
}

/// The results of a turn: round trips in microseconds by size, and Gbit/s.
struct Turn {
    round_trips: [f64; SIZES.len()],
    out: f64,
    r#in: f64,
}

/// Measures; contestants that this machine lacks are left out with a note.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-vsock")?;
    if let Err(error) = vsock::built() {
        outcome.skip(format!("vhost-device-vsock cannot be built: {error:#}"));
        return Ok(());
    }
    let mut contestants = vec![echo_thread(&folder)?];
    for world in outcome.available([World::Kvm, World::Tcg]) {
        contestants.push(vm(world, &folder)?);
    }
    let guest = match linux::obstacle(run) {
        None => linux_guest(&folder).map_err(|error| format!("{error:#}")),
        Some(reason) => Err(reason.to_owned()),
    };
    match guest {
        Ok(guest) => contestants.push(guest),
        Err(reason) => outcome.note(format!("linux_guest skipped: {reason}")),
    }
    let measure = |index: usize| contestants[index].turn(run).with_context(|| contestants[index].name.clone());
    in_turn(outcome, contestants.len(), ROUNDS, run, measure, |outcome, results| add(outcome, &contestants, results))?;
    outcome.note(format!("a client on the host and bench-tcp; the median of {ROUND_TRIPS} round trips on one connection; out: from the VM to the client, {} MiB, {} MiB of an emulated VM", BYTES >> 20, BYTES_TCG >> 20));
    outcome.note("VMs behind vhost-device-vsock 0.3.0, whose unix socket the client uses; linux_guest: the same bench-tcp as a process in a VM with Debian's kernel (QEMU's q35, TCG); af_unix: an echo by a thread over a unix socket, without any VM");
    Ok(())
}

fn add(outcome: &mut Outcome, contestants: &[Contestant], results: &[Vec<Turn>]) {
    let named = |name: &str| contestants.iter().position(|contestant| contestant.name == name);
    for (contestant, turns) in contestants.iter().zip(results) {
        let peer = match contestant.name.as_str() {
            "kvm" => named("af_unix"),
            "tcg" => named("linux_guest").or(named("af_unix")),
            _ => None,
        };
        let mut add = |what: String, unit: &str, value: &dyn Fn(&Turn) -> f64| {
            let samples = |turns: &[Turn]| turns.iter().map(value).collect::<Vec<f64>>();
            let figure = Figure::of(&format!("vsock.{}.{what}", contestant.name), unit, &samples(turns));
            let median = peer.and_then(|peer| {
                Some((contestants[peer].name.as_str(), Summary::of(&samples(&results[peer]))?.median))
            });
            outcome.add(figure.map(|figure| figure.beside(median)));
        };
        for (index, (size, _)) in SIZES.iter().enumerate() {
            add(format!("rtt_{size}_us"), "us", &|turn| turn.round_trips[index]);
        }
        add("out_gbit_s".into(), "Gbit/s", &|turn| turn.out);
        add("in_gbit_s".into(), "Gbit/s", &|turn| turn.r#in);
    }
}

impl Contestant {
    fn turn(&self, run: &Run) -> Result<Turn> {
        let (trips, transferred) = (run.size(ROUND_TRIPS, ROUND_TRIPS_SHORT), run.size(self.bytes, BYTES_SHORT));
        let mut round_trips = [0.0; SIZES.len()];
        for ((_, bytes), median) in SIZES.iter().zip(&mut round_trips) {
            *median = self.round_trip(*bytes, trips)?;
        }
        Ok(Turn { round_trips, out: self.receive(transferred)?, r#in: self.send(transferred)? })
    }

    fn connect(&self, request: &str) -> Result<TcpStream> {
        let mut stream = self.place.connect().context("cannot connect")?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// The median in microseconds.
    fn round_trip(&self, bytes: usize, trips: usize) -> Result<f64> {
        let mut stream = self.connect("echo\n")?;
        let (sent, mut received) = (vec![b'g'; bytes], vec![0; bytes]);
        let mut times = Vec::with_capacity(trips);
        for trip in 0..WARM_UP_TRIPS + trips {
            let start = Instant::now();
            stream.write_all(&sent)?;
            stream.read_exact(&mut received)?;
            if trip >= WARM_UP_TRIPS {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        ensure!(received == sent, "other bytes were sent back");
        Ok(Summary::of(&times).context("there are round trips")?.median)
    }

    /// Receives everything; returns Gbit/s.
    fn receive(&self, bytes: u64) -> Result<f64> {
        let mut stream = self.connect(&format!("send {}\n", bytes))?;
        let mut buffer = vec![0; PIECE_BYTES];
        let (start, mut received) = (Instant::now(), 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                count => received += count as u64,
            }
        }
        ensure!(received == bytes, "{received} bytes of {} were received", bytes);
        Ok(gbit_s(received, start.elapsed()))
    }

    /// Sends everything, until the service has received it; returns Gbit/s.
    fn send(&self, bytes: u64) -> Result<f64> {
        // By number: vhost-device-vsock 0.3.0 passes the end of one half on as the end of both.
        let mut stream = self.connect(&format!("take {}\n", bytes))?;
        let buffer = vec![b'g'; PIECE_BYTES];
        let (start, mut left) = (Instant::now(), bytes);
        while left > 0 {
            left -= stream.write(&buffer[..left.min(PIECE_BYTES as u64) as usize])? as u64;
        }
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        ensure!(line.trim().parse() == Ok(bytes), "bench-tcp received {line:?} of {} bytes", bytes);
        Ok(gbit_s(bytes, start.elapsed()))
    }
}

fn gbit_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e9 / time.as_secs_f64()
}

/// Boots `bench-tcp` with vsock alone.
fn vm(world: World, folder: &Folder) -> Result<Contestant> {
    let helper = vsock::built()?;
    let socket = folder.file(&format!("{world}.vsock"));
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.env("PATH", vsock::path_with(helper));
    command.arg("run").arg(programs::image("bench-tcp").context("the image of bench-tcp is not built")?);
    command.args(["--accel", &world.to_string(), "--net", "none"]).arg(format!("--vsock={}", socket.display()));
    command.args(["--", "--port", &format!("vsock:{PORT}")]);
    let mut process = Process::spawn(&mut command, &folder.file(&format!("{world}.log")))?;
    let end = Instant::now() + LIMIT;
    while !process.output().contains("listens on") {
        if process.ended().is_some() || Instant::now() > end {
            bail!("bench-tcp does not start on {world}: {}", process.output());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let bytes = if world == World::Tcg { BYTES_TCG } else { BYTES };
    Ok(Contestant {
        name: world.to_string(),
        place: Place::Vsock(socket, PORT),
        bytes,
        _running: Running::Process(process),
    })
}

/// Boots Linux with `bench-tcp` as a process without shared libraries.
fn linux_guest(folder: &Folder) -> Result<Contestant> {
    let clients = folder.file("linux.vsock");
    let helper = helpers::vsock(&clients, folder)?;
    let mut glass = Command::new(programs::built("glass").context("glass is not built")?);
    glass.arg("run").arg(programs::image("bench-tcp").context("the image of bench-tcp is not built")?);
    glass.args(linux::MACHINE).args(["--net", "none", "--vsock"]);
    let program = programs::built_static("bench-tcp", true).context("bench-tcp is not built for the Linux guest")?;
    let contents = Contents { programs: &[], files: vec![("bench-tcp", std::fs::read(program)?)] };
    let mut guest =
        LinuxGuest::start(None, &mut glass, &contents, &[("vsock", helper.socket.clone())], &str::to_owned)?;
    guest.run(&format!("/bench-tcp -- --port vsock:{PORT} > /tmp/log 2>&1 &"), LIMIT)?;
    guest.run(
        "for i in $(seq 200); do grep -q 'listens on' /tmp/log && break; sleep 0.1; done; grep 'listens on' /tmp/log",
        LIMIT,
    )?;
    let place = Place::Vsock(clients, PORT);
    Ok(Contestant { name: "linux_guest".into(), place, bytes: BYTES_TCG, _running: Running::Guest(guest, helper) })
}

/// A thread that does what `bench-tcp` does, on a unix socket with the same handshake.
fn echo_thread(folder: &Folder) -> Result<Contestant> {
    let path: PathBuf = folder.file("af_unix");
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that fails reports that itself.
            thread::spawn(move || answer(stream));
        }
    });
    Ok(Contestant { name: "af_unix".into(), place: Place::Vsock(path, PORT), bytes: BYTES, _running: Running::Thread })
}

fn answer(stream: std::os::unix::net::UnixStream) -> Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(PIECE_BYTES, stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    writer.write_all(b"OK 1\n")?;
    line.clear();
    reader.read_line(&mut line)?;
    let mut buffer = vec![b'g'; PIECE_BYTES];
    if let Some(bytes) = line.strip_prefix("send ") {
        let mut left: u64 = bytes.trim().parse()?;
        while left > 0 {
            left -= writer.write(&buffer[..left.min(PIECE_BYTES as u64) as usize])? as u64;
        }
        return Ok(());
    }
    let wanted: Option<u64> = line.strip_prefix("take ").map(|number| number.trim().parse()).transpose()?;
    let mut received = 0;
    while wanted.is_none_or(|wanted| received < wanted) {
        match reader.read(&mut buffer)? {
            0 => break,
            count if wanted.is_none() => writer.write_all(&buffer[..count])?,
            count => received += count as u64,
        }
    }
    Ok(writeln!(writer, "{received}")?)
}
