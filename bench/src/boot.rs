//! `boot`: from the start of `glass run IMAGE` to the first byte of an HTTP answer, in turn with a lower bound: QEMU alone with the same
//! devices and image, which never runs the guest and quits immediately.

use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::queue::{self, Options, World};
use glass_tests::{programs, qemu};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
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

/// What is timed.
const KINDS: [Kind; 3] = [Kind::Hello, Kind::Queue, Kind::StartAndQuit];

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// The smallest service, which has no disk.
    Hello,
    /// The queue, with a new disk.
    Queue,
    /// QEMU alone, as for the smallest service.
    StartAndQuit,
}

/// Measures the accelerators of this machine.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-boot")?;
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    let measure = |index: usize| {
        let (world, kind) = (worlds[index / KINDS.len()], KINDS[index % KINDS.len()]);
        let time = measure(world, kind, &folder).with_context(|| format!("{world}, {kind:?}"))?;
        Ok(time.as_secs_f64() * 1000.0)
    };
    let add = |outcome: &mut Outcome, samples: &[Vec<f64>]| {
        for (world, samples) in worlds.iter().zip(samples.chunks(KINDS.len())) {
            add(outcome, *world, samples);
        }
    };
    in_turn(outcome, worlds.len() * KINDS.len(), ROUNDS, run, measure, add)?;
    outcome.note("first_byte: from the start of `glass run` to the first byte of the answer; network: QEMU's own (user); the queue's disk is new in each boot, so its formatting counts");
    outcome.note("start_and_quit: QEMU as `glass run` starts it for hello, which quits before the guest runs; a figure of the VM under KVM has no world in its name");
    Ok(())
}

/// Figures of one accelerator; `samples` by kind.
fn add(outcome: &mut Outcome, world: World, samples: &[Vec<f64>]) {
    let prefix = if world == World::Kvm { "boot.qemu".to_owned() } else { format!("boot.qemu.{world}") };
    let floor = samples.last().and_then(|floor| Summary::of(floor)).map(|summary| summary.median);
    for (name, samples) in ["hello_first_byte_ms", "queue_first_byte_ms", "start_and_quit_ms"].iter().zip(samples) {
        let figure = Figure::of(&format!("{prefix}.{name}"), "ms", samples);
        outcome.add(figure.map(|figure| match floor.filter(|_| name.ends_with("first_byte_ms")) {
            Some(floor) => figure.against("start and quit of QEMU", floor),
            None => figure,
        }));
    }
}

fn measure(world: World, kind: Kind, folder: &Folder) -> Result<Duration> {
    let port = free_port()?;
    match kind {
        Kind::Hello => first_byte(&mut hello(world, port)?, port, folder),
        Kind::Queue => {
            let disk = folder.file("boot.img");
            if disk.exists() {
                std::fs::remove_file(&disk).context("cannot remove the disk of the last boot")?;
            }
            let options = Options { disk_size: "64M".into(), memory_mib: 64, ..Options::default() };
            let mut command = queue::command(world, &disk, port, &options).context("the queue is not built")?;
            first_byte(&mut command, port, folder)
        }
        Kind::StartAndQuit => {
            let words = qemu::command_line(&mut glass_run(world, port)?, &[], folder)?.words;
            start_and_quit(&words)
        }
    }
}

/// `glass run` of the smallest service, without the service's arguments.
fn glass_run(world: World, port: u16) -> Result<Command> {
    let mut command = Command::new(programs::built("glass").context("glass is not built")?);
    command.arg("run").arg(programs::image("hello").context("the image of hello is not built")?);
    command.args(["--accel", &world.to_string(), "--memory", "64", "--port", &format!("{port}:8080")]);
    Ok(command)
}

fn hello(world: World, port: u16) -> Result<Command> {
    let mut command = glass_run(world, port)?;
    command.args(["--", "--port", "8080"]);
    Ok(command)
}

/// Boots the image until the service answers.
fn first_byte(glass_run: &mut Command, port: u16, folder: &Folder) -> Result<Duration> {
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
fn attempt(address: SocketAddr, begin: Instant) -> Option<Duration> {
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
    fn boots_stand_beside_qemu_alone() {
        let mut outcome = Outcome::default();
        let samples = [vec![30.0], vec![40.0], vec![20.0]];
        add(&mut outcome, World::Kvm, &samples);
        add(&mut outcome, World::Tcg, &samples);
        let figures: Vec<_> = outcome.figures.iter().map(|figure| (figure.figure.as_str(), figure.ratio)).collect();
        assert_eq!(
            figures[..3],
            [
                ("boot.qemu.hello_first_byte_ms", Some(1.5)),
                ("boot.qemu.queue_first_byte_ms", Some(2.0)),
                ("boot.qemu.start_and_quit_ms", None),
            ]
        );
        assert_eq!(figures[4].0, "boot.qemu.tcg.queue_first_byte_ms");
    }
}
