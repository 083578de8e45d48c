//! `boot`: from the start of `glass run IMAGE` to the first byte of an HTTP answer, by our own VMM and by QEMU, in turn with a lower bound for the
//! latter, QEMU alone with the same devices and image, which never runs the guest and quits immediately, and with the service as a process. QEMU for AArch64
//! runs images for that processor, where they are built.

use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Boots of each kind.
const ROUNDS: usize = 20;
/// A boot that takes longer has failed.
const BOOT_LIMIT: Duration = Duration::from_secs(30);
/// How long one connection waits for its answer. QEMU accepts it before the guest does and keeps its first segment until the guest's
/// network card works, so the first one is usually answered. Each new attempt would be a dead connection that the booting guest answers
/// first: with a limit of 8 ms these took 20 ms of a boot with TCG.
const ATTEMPT: Duration = Duration::from_millis(500);

/// What runs the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// Our own VMM.
    Own,
    /// QEMU, under KVM or without.
    Qemu(World),
    /// QEMU for AArch64.
    Aarch64,
    /// No VM.
    Process,
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The smallest service, which has no disk.
    Hello,
    /// The queue, with a new disk.
    Queue,
    /// QEMU alone, as for the smallest service.
    StartAndQuit,
}

impl Runner {
    /// What it is timed with.
    fn kinds(self) -> &'static [Kind] {
        match self {
            Runner::Own => &[Kind::Hello, Kind::Queue],
            Runner::Qemu(_) | Runner::Aarch64 => &[Kind::Hello, Kind::Queue, Kind::StartAndQuit],
            Runner::Process => &[Kind::Hello],
        }
    }

    /// The start of its figures' names.
    fn prefix(self) -> String {
        match self {
            Runner::Own => "boot.own".to_owned(),
            Runner::Qemu(World::Kvm) => "boot.qemu".to_owned(),
            Runner::Qemu(world) => format!("boot.qemu.{world}"),
            Runner::Aarch64 => "boot.qemu.aarch64".to_owned(),
            Runner::Process => "boot.process".to_owned(),
        }
    }

    /// The options of `glass run` for it.
    fn options(self) -> Vec<&'static str> {
        match self {
            Runner::Own => vec!["--accel", "kvm", "--vmm", "own"],
            Runner::Qemu(World::Tcg) | Runner::Aarch64 => vec!["--accel", "tcg", "--vmm", "qemu"],
            Runner::Qemu(_) => vec!["--accel", "kvm", "--vmm", "qemu"],
            Runner::Process => vec!["--platform", "linux"],
        }
    }
}

impl Kind {
    fn figure(self) -> &'static str {
        match self {
            Kind::Hello => "hello_first_byte_ms",
            Kind::Queue => "queue_first_byte_ms",
            Kind::StartAndQuit => "start_and_quit_ms",
        }
    }
}

/// Measures the accelerators of this machine.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-boot")?;
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    let own = worlds.contains(&World::Kvm).then_some(Runner::Own);
    let aarch64 = has_aarch64().then_some(Runner::Aarch64);
    if aarch64.is_none() {
        outcome.note("AArch64 skipped: there is no qemu-system-aarch64, or no image for it");
    }
    let runners = own.into_iter().chain(worlds.into_iter().map(Runner::Qemu)).chain(aarch64).chain([Runner::Process]);
    let cases: Vec<(Runner, Kind)> =
        runners.flat_map(|runner| runner.kinds().iter().map(move |kind| (runner, *kind))).collect();
    let measure = |index: usize| {
        let (runner, kind) = cases[index];
        let time = measure(runner, kind, &folder).with_context(|| format!("{runner:?}, {kind:?}"))?;
        Ok(time.as_secs_f64() * 1000.0)
    };
    in_turn(outcome, cases.len(), ROUNDS, run, measure, |outcome, samples| add(outcome, &cases, samples))?;
    outcome.note("first_byte: from the start of `glass run` to the first byte of the answer; network: the default one (user), each VMM's own; the queue's disk is new in each boot, so its formatting counts");
    outcome.note("start_and_quit: QEMU as `glass run` starts it for hello, which quits before the guest runs; a figure of the VM under KVM has no world in its name");
    Ok(())
}

/// Whether images for AArch64 are built and can be run.
fn has_aarch64() -> bool {
    let is_built = |service: &&str| programs::image(service).is_some();
    programs::on_aarch64(|| programs::has_qemu() && ["hello", "upload-queue"].iter().all(is_built))
}

/// Figures of all cases; `samples` by case.
fn add(outcome: &mut Outcome, cases: &[(Runner, Kind)], samples: &[Vec<f64>]) {
    let median = |wanted: (Runner, Kind)| {
        let (_, samples) = cases.iter().zip(samples).find(|(case, _)| **case == wanted)?;
        Summary::of(samples).map(|summary| summary.median)
    };
    for ((runner, kind), samples) in cases.iter().copied().zip(samples) {
        let peer = match (runner, kind) {
            (Runner::Own, kind) => median((Runner::Qemu(World::Kvm), kind)).map(|median| ("QEMU", median)),
            (Runner::Qemu(_) | Runner::Aarch64, Kind::Hello | Kind::Queue) => {
                median((runner, Kind::StartAndQuit)).map(|median| ("start and quit of QEMU", median))
            }
            _ => None,
        };
        let figure = Figure::of(&format!("{}.{}", runner.prefix(), kind.figure()), "ms", samples);
        outcome.add(figure.map(|figure| figure.beside(peer)));
    }
}

fn measure(runner: Runner, kind: Kind, folder: &Folder) -> Result<Duration> {
    let port = free_port()?;
    match kind {
        Kind::Hello => first_byte(&mut hello(runner, port)?, port, folder),
        Kind::Queue => {
            let disk = folder.file("boot.img");
            if disk.exists() {
                std::fs::remove_file(&disk).context("cannot remove the disk of the last boot")?;
            }
            first_byte(&mut queue(runner, port, &disk)?, port, folder)
        }
        Kind::StartAndQuit => {
            let words = qemu::command_line(&mut glass_run(runner, port)?, &[], folder)?.words;
            start_and_quit(&words)
        }
    }
}

/// `glass run` of a service.
fn command(runner: Runner, service: &str) -> Result<Command> {
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    let program = match runner {
        Runner::Process => programs::built(service),
        Runner::Aarch64 => programs::on_aarch64(|| programs::image(service)),
        Runner::Own | Runner::Qemu(_) => programs::image(service),
    };
    command.arg("run").arg(program.with_context(|| format!("{service} is not built"))?).args(runner.options());
    Ok(command)
}

/// `glass run` of the smallest service, without the service's arguments.
fn glass_run(runner: Runner, port: u16) -> Result<Command> {
    let mut command = command(runner, "hello")?;
    if runner != Runner::Process {
        command.args(["--memory", "64", "--port", &format!("{port}:8080")]);
    }
    Ok(command)
}

fn hello(runner: Runner, port: u16) -> Result<Command> {
    let mut command = glass_run(runner, port)?;
    let port = if runner == Runner::Process { port } else { 8080 };
    command.args(["--", "--port", &port.to_string()]);
    Ok(command)
}

fn queue(runner: Runner, port: u16, disk: &Path) -> Result<Command> {
    let mut command = command(runner, "upload-queue")?;
    command.args(["--memory", "64", "--port", &format!("{port}:8080")]);
    command.arg("--disk").arg(disk).args(["--disk-size", "64M", "--", "--port", "8080"]);
    Ok(command)
}

/// Boots the image until the service answers.
pub fn first_byte(glass_run: &mut Command, port: u16, folder: &Folder) -> Result<Duration> {
    let begin = Instant::now();
    let mut process = Process::spawn(glass_run, &folder.file("boot.log"))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    loop {
        if let Some(time) = attempt(address, begin) {
            return Ok(time);
        }
        if process.ended().is_some() || begin.elapsed() > BOOT_LIMIT {
            bail!("no answer: {}", process.output());
        }
    }
}

/// One connection, one request; the time at which its answer started, if it arrived.
pub fn attempt(address: SocketAddr, begin: Instant) -> Option<Duration> {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, ATTEMPT) else {
        std::thread::sleep(Duration::from_millis(1));
        return None;
    };
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(ATTEMPT)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: boot\r\n\r\n").ok()?;
    let mut first = [0; 1];
    match stream.read(&mut first) {
        Ok(1) => Some(begin.elapsed()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        // Refused by a guest that is up but does not listen yet.
        _ => {
            std::thread::sleep(Duration::from_millis(1));
            None
        }
    }
}

/// Starts QEMU with the guest stopped and lets it quit.
fn start_and_quit(words: &[String]) -> Result<Duration> {
    let (program, arguments) = words.split_first().context("an empty command line")?;
    let mut command = Command::new(program);
    // Only one device of QEMU can have standard input: the monitor gets it instead of the console.
    let console_to_nowhere = |word: &String| match word.strip_prefix("stdio,id=console") {
        Some(rest) => format!("null,id=console{}", rest.replace(",signal=on", "")),
        None => word.clone(),
    };
    command.args(arguments.iter().map(console_to_nowhere));
    command.args(["-S", "-chardev", "stdio,id=quit", "-mon", "chardev=quit"]);
    let begin = Instant::now();
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start {program}"))?;
    child.stdin.take().context("QEMU has no input")?.write_all(b"quit\n")?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "QEMU failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_stand_beside_qemu() {
        let mut outcome = Outcome::default();
        let qemu = [World::Kvm, World::Tcg].map(Runner::Qemu);
        let runners = [Runner::Own].into_iter().chain(qemu).chain([Runner::Aarch64, Runner::Process]);
        let cases: Vec<_> = runners.flat_map(|runner| runner.kinds().iter().map(move |kind| (runner, *kind))).collect();
        let times = [6.0, 8.0, 30.0, 40.0, 20.0, 30.0, 50.0, 25.0, 60.0, 90.0, 30.0, 3.0];
        let samples: Vec<Vec<f64>> = times.map(|ms| vec![ms]).into();
        add(&mut outcome, &cases, &samples);
        let figures: Vec<_> = outcome.figures.iter().map(|figure| (figure.figure.as_str(), figure.ratio)).collect();
        assert_eq!(
            figures,
            [
                ("boot.own.hello_first_byte_ms", Some(0.2)),
                ("boot.own.queue_first_byte_ms", Some(0.2)),
                ("boot.qemu.hello_first_byte_ms", Some(1.5)),
                ("boot.qemu.queue_first_byte_ms", Some(2.0)),
                ("boot.qemu.start_and_quit_ms", None),
                ("boot.qemu.tcg.hello_first_byte_ms", Some(1.2)),
                ("boot.qemu.tcg.queue_first_byte_ms", Some(2.0)),
                ("boot.qemu.tcg.start_and_quit_ms", None),
                ("boot.qemu.aarch64.hello_first_byte_ms", Some(2.0)),
                ("boot.qemu.aarch64.queue_first_byte_ms", Some(3.0)),
                ("boot.qemu.aarch64.start_and_quit_ms", None),
                ("boot.process.hello_first_byte_ms", None),
            ]
        );
    }
}
