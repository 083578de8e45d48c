//! `boot`: from the start of QEMU to the first byte of an HTTP answer, in turn with a lower bound: the
//! same QEMU with the same devices and image, which never runs the guest and quits immediately.

use crate::figure::Figure;
use crate::outcome::{Outcome, Progress, in_turn};
use crate::statistics::Summary;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::qemu;
use glass_tests::queue::{self, Options, World};
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

/// Measures the accelerators of this machine.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let folder = Folder::new("bench-boot")?;
    let worlds = outcome.available([World::Tcg, World::Kvm]);
    let samples = in_turn(worlds.len() * 2, ROUNDS, progress, |kind| {
        let world = worlds[kind / 2];
        let words = qemu_words(world, &folder)?;
        let time = if kind % 2 == 0 { first_byte(&words, &folder) } else { start_and_quit(&words) };
        Ok(time.with_context(|| world.to_string())?.as_secs_f64() * 1000.0)
    })?;
    for (index, world) in worlds.iter().enumerate() {
        let (boots, floor) = (&samples[index * 2], &samples[index * 2 + 1]);
        let floor_median = Summary::of(floor).context("there was a round")?.median;
        let figure = Figure::of(&format!("boot.{world}.first_byte_ms"), "ms", boots);
        outcome.add(figure.map(|figure| figure.against("start and quit of QEMU", floor_median)));
        outcome.add(Figure::of(&format!("boot.{world}.qemu_start_and_quit_ms"), "ms", floor));
    }
    outcome.note("the disk is new in each boot, so its formatting counts; network: QEMU's own (user)");
    Ok(outcome)
}

/// QEMU's command line for a fresh disk and port, as `glass run` would use it, without the debug socket.
fn qemu_words(world: World, folder: &Folder) -> Result<Words> {
    let disk = folder.file("boot.img");
    let file = std::fs::File::create(&disk).context("cannot make a disk")?;
    file.set_len(64 << 20).context("cannot size a disk")?;
    let port = free_port()?;
    let options = Options { disk_size: "64M".into(), memory_mib: 64, program: None, ..Options::default() };
    let mut command = queue::command(world, &disk, port, &options).context("glass or the image is not built")?;
    let split = command.get_args().position(|word| word == "--").context("there are service arguments")?;
    let words: Vec<_> = command.get_args().map(|word| word.to_owned()).collect();
    command = Command::new(command.get_program());
    let output = command.args(&words[..split]).arg("--print-command").args(&words[split..]).output()?;
    if !output.status.success() {
        bail!("glass run --print-command: {}", String::from_utf8_lossy(&output.stderr));
    }
    let line = String::from_utf8(output.stdout).context("a command line that is not UTF-8")?;
    Ok(Words { words: without_debugger(qemu::words(line.trim())?), port })
}

struct Words {
    words: Vec<String>,
    port: u16,
}

/// Removes the sockets of the profiler and of `glass run`: each would be another file in the folder of the benchmark.
fn without_debugger(words: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let value = words.peek().map_or("", |value| value.as_str());
        let is_socket = value.ends_with("id=gdb") || value.ends_with("id=monitor");
        if word == "-gdb" || word == "-mon" || (word == "-chardev" && is_socket) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept
}

/// Boots the image until the service answers.
fn first_byte(words: &Words, folder: &Folder) -> Result<Duration> {
    let (program, arguments) = words.words.split_first().context("an empty command line")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let begin = Instant::now();
    let mut qemu = Process::spawn(&mut command, &folder.file("qemu.log"))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, words.port));
    loop {
        if let Some(time) = attempt(address, begin) {
            return Ok(time);
        }
        if qemu.ended().is_some() || begin.elapsed() > BOOT_LIMIT {
            bail!("no answer: {}", qemu.output());
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
fn start_and_quit(words: &Words) -> Result<Duration> {
    let (program, arguments) = words.words.split_first().context("an empty command line")?;
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
    let mut child = child.with_context(|| format!("cannot start {}", Path::new(program).display()))?;
    child.stdin.take().context("QEMU has no input")?.write_all(b"quit\n")?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("QEMU failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debugger_is_left_out() {
        let words = ["q", "-chardev", "socket,path=x,id=gdb", "-gdb", "chardev:gdb", "-chardev", "stdio,id=c"];
        let words = words.map(str::to_owned).to_vec();
        assert_eq!(without_debugger(words), ["q", "-chardev", "stdio,id=c"]);
    }
}
