//! How much slower a service is while it is traced: the queue and a TCP sender, as a process and
//! as a VM, in five alternating modes.

use super::service::Running;
use crate::block::Body;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::plot::Group;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::process::{self, Process};
use glass_tests::programs::{self, Variant};
use glass_tests::queue::World;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Rounds; each mode runs once in a round.
const ROUNDS: usize = 11;
/// Transfers of a turn. The modes without tracing alternate for each transfer: they differ much less than
/// two transfers do, so many transfers are needed.
fn transfers(world: World) -> usize {
    if world == World::Process { 8 } else { 2 }
}

/// Size of a transfer, up and down for the queue.
const QUEUE_MIB: u64 = 32;
const TCP_MIB: u64 = 96;
const MIB_SHORT: u64 = 1;
/// From the start of `glass trace` until it traces, however busy the machine is.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// Without an answer for so long, the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mode: the build, and the groups that are traced.
struct Mode {
    label: &'static str,
    figure: &'static str,
    variant: Variant,
    trace: &'static [&'static str],
}

const MODES: [Mode; 5] = [
    Mode { label: "absent", figure: "absent", variant: Variant::WithoutTrace, trace: &[] },
    Mode { label: "off", figure: "off", variant: Variant::Usual, trace: &[] },
    Mode { label: "tasks+devices", figure: "tasks", variant: Variant::Usual, trace: &["--groups", "tasks,devices"] },
    Mode { label: "sleds off", figure: "sleds_off", variant: Variant::Functions, trace: &[] },
    Mode {
        label: "functions",
        figure: "functions",
        variant: Variant::Functions,
        trace: &["--groups", "tasks,devices,functions", "--functions", "*"],
    },
];

/// The services that are measured.
const SERVICES: [&str; 2] = ["queue", "tcp"];

/// Adds the figures and returns the bars.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<Vec<Group>> {
    let worlds: Vec<World> =
        [World::Process, World::Kvm].into_iter().filter(|world| world.obstacle().is_none()).collect();
    if !worlds.contains(&World::Kvm) {
        outcome.note("throughput on KVM left out: /dev/kvm cannot be opened");
    }
    let mut groups = Vec::new();
    let steps = worlds.len() * SERVICES.len();
    for world in worlds {
        for service in SERVICES {
            let speeds = speeds(world, service, &run.part(groups.len(), steps))?;
            groups.push(add_figures(outcome, world, service, &speeds));
            run.figures(outcome);
        }
    }
    outcome.note(format!(
        "throughput: {ROUNDS} rounds of {} transfers as a process and {} on KVM, each mode in turn, one client on loopback; queue {QUEUE_MIB} MiB up and down again, TCP sender {TCP_MIB} MiB; \
         loss: each transfer against its neighbour of the build without trace events; `glass trace` records meanwhile and shares the host's two cores",
        transfers(World::Process),
        transfers(World::Kvm)
    ));
    Ok(groups)
}

/// The result of a turn: MiB per second, and milliseconds of the service's CPU time for each MiB.
#[derive(Clone, Copy)]
struct Speed {
    mib_s: f64,
    cpu_ms_mib: f64,
}

/// Speeds of all rounds, by mode.
fn speeds(world: World, service: &str, run: &Run) -> Result<Vec<Vec<Speed>>> {
    let folder = Folder::new("bench-tracing")?;
    let mut running: Vec<Running> = Vec::new();
    for variant in [Variant::WithoutTrace, Variant::Usual, Variant::Functions] {
        running.push(Running::start(world, service, variant, run, &folder)?);
    }
    let of_mode = |mode: &Mode| {
        let found = running.iter().find(|running| running.variant == mode.variant);
        found.context("no service of this variant runs")
    };
    let (quiet, traced): (Vec<usize>, Vec<usize>) = (0..MODES.len()).partition(|index| MODES[*index].trace.is_empty());
    let mut speeds = vec![Vec::new(); MODES.len()];
    // One round to warm up, which is not counted.
    for round in std::iter::once(0).chain(run.rounds(ROUNDS).map(|round| round + 1)) {
        let failed = |index: usize| format!("{service} ({world}), {}, round {round}", MODES[index].label);
        let mut measured = vec![Vec::new(); MODES.len()];
        for transfer in 0..run.size(transfers(world), 1) {
            for index in turn(quiet.len(), transfer).map(|place| quiet[place]) {
                let speed = one_transfer(of_mode(&MODES[index])?, service, run).with_context(|| failed(index))?;
                measured[index].push(speed);
            }
        }
        for index in turn(traced.len(), round).map(|place| traced[place]) {
            let mode = &MODES[index];
            measured[index] =
                traced_turn(of_mode(mode)?, mode, world, service, run, &folder).with_context(|| failed(index))?;
        }
        if round > 0 {
            speeds.iter_mut().zip(measured).for_each(|(all, measured)| all.extend(measured));
        }
    }
    Ok(speeds)
}

/// The transfers of a turn while `glass trace` records.
fn traced_turn(
    running: &Running,
    mode: &Mode,
    world: World,
    service: &str,
    run: &Run,
    folder: &Folder,
) -> Result<Vec<Speed>> {
    // A short run has no build of the sender whose functions can be traced.
    let groups = if run.is_short() && service == "tcp" { &["--groups", "tasks"] } else { mode.trace };
    let mut tracer = trace(running.pid(), groups, folder)?;
    let transfers = run.size(transfers(world), 1);
    let speeds = (0..transfers).map(|_| one_transfer(running, service, run)).collect();
    if !tracer.interrupt(PATIENCE) {
        bail!("glass trace: {}", trace_log(&tracer));
    }
    speeds
}

fn one_transfer(running: &Running, service: &str, run: &Run) -> Result<Speed> {
    let cpu_before = process::cpu_time(running.pid()).context("the service has ended")?;
    let (mib, seconds) = match service {
        "queue" => {
            let mib = run.size(QUEUE_MIB, MIB_SHORT);
            (2.0 * mib as f64, up_and_down(running.address, &Body::new(mib << 20))?)
        }
        _ => receive(running.address, run.size(TCP_MIB, MIB_SHORT))?,
    };
    let cpu = process::cpu_time(running.pid()).context("the service has ended")?.saturating_sub(cpu_before);
    Ok(Speed { mib_s: mib / seconds, cpu_ms_mib: cpu.as_secs_f64() * 1e3 / mib })
}

/// Starts `glass trace` on a process and waits until it traces.
pub fn trace(pid: u32, arguments: &[&str], folder: &Folder) -> Result<Process> {
    let glass = programs::built("glass").context("glass is not built")?;
    let mut command = Command::new(glass);
    command.args(["trace", "--pid", &pid.to_string()]).args(arguments);
    let file = folder.file("bench.pftrace");
    let _ = std::fs::remove_file(&file);
    command.args(["--duration", "60", "--output"]).arg(&file);
    let mut tracer = Process::spawn(&mut command, &folder.file("trace.log"))?;
    let deadline = Instant::now() + SETTLE_MAX;
    // The recording exists once the guest has its request.
    while file.metadata().map_or(0, |metadata| metadata.len()) == 0 {
        if tracer.wait(Duration::from_millis(5)).is_some() || Instant::now() > deadline {
            bail!("glass trace does not trace: {}", trace_log(&tracer));
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    Ok(tracer)
}

/// Its output.
pub fn trace_log(tracer: &Process) -> String {
    tracer.output().trim().to_owned()
}

/// Uploads, downloads and removes one item; returns the seconds of the transfers.
pub fn up_and_down(address: SocketAddr, body: &Body) -> Result<f64> {
    let mut client = Client::connect(address)?;
    let begin = Instant::now();
    let status = client.put("/uploader", body.length_bytes(), &mut body.reader())?.status();
    let mut seconds = begin.elapsed().as_secs_f64();
    if status != 200 {
        bail!("PUT was answered {status}");
    }
    let mut client = Client::connect(address)?;
    let mut checker = body.checker();
    let begin = Instant::now();
    let got = client.get_into("/downloader", &mut checker)?;
    seconds += begin.elapsed().as_secs_f64();
    let status = got.status();
    if status != 200 || !checker.is(body) {
        bail!("GET was answered {status} and returned other bytes");
    }
    let status = Client::connect(address)?.request_if_match("DELETE", "/downloader", got.etag())?.status();
    if status != 200 {
        bail!("DELETE was answered {status}");
    }
    Ok(seconds)
}

/// Requests bytes from the sender; returns the received MiB and the seconds.
fn receive(address: SocketAddr, mib: u64) -> Result<(f64, f64)> {
    let bytes = mib << 20;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("send {bytes}\n").as_bytes())?;
    let mut buffer = vec![0; 256 << 10];
    let (mut seen, begin) = (0u64, Instant::now());
    while seen < bytes {
        match stream.read(&mut buffer)? {
            0 => bail!("the sender ended after {seen} of {bytes} bytes"),
            count => seen += count as u64,
        }
    }
    Ok((mib as f64, begin.elapsed().as_secs_f64()))
}

fn add_figures(outcome: &mut Outcome, world: World, service: &str, speeds: &[Vec<Speed>]) -> Group {
    let prefix = match world {
        World::Process => format!("tracing.{service}"),
        _ => format!("tracing.{service}.{world}"),
    };
    let mut group = Group { title: format!("{service}, {world}"), unit: "MiB/s", bars: Vec::new() };
    for (mode, speeds_of) in MODES.iter().zip(speeds) {
        let mib_s: Vec<f64> = speeds_of.iter().map(|speed| speed.mib_s).collect();
        outcome.add(Figure::of(&format!("{prefix}.{}_mib_s", mode.figure), "MiB/s", &mib_s));
        group.bars.extend(Summary::of(&mib_s).map(|summary| (mode.label.to_owned(), summary)));
    }
    for (mode, speeds_of) in MODES.iter().zip(speeds).skip(1) {
        let pairs = || speeds[0].iter().zip(speeds_of);
        let losses: Vec<f64> = pairs().map(|(absent, speed)| (1.0 - speed.mib_s / absent.mib_s) * 100.0).collect();
        outcome.add(Figure::of(&format!("{prefix}.{}_loss_percent", mode.figure), "%", &losses));
        let cpu: Vec<f64> =
            pairs().map(|(absent, speed)| (speed.cpu_ms_mib / absent.cpu_ms_mib - 1.0) * 100.0).collect();
        outcome.add(Figure::of(&format!("{prefix}.{}_cpu_percent", mode.figure), "%", &cpu));
    }
    group
}
