//! A console that is drained slowly: 30 reads in each 200 ms, as the console daemon of Xen does.
//! The trace shows a staircase, and for each gap what the service waits for. Of what `glass run` prints no line is lost.

use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::qemu;
use glass_tests::queue::World;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_slow_console_shows_a_staircase_and_its_cause within 120;
    each_line_is_printed_to_a_reader_that_pauses within 120;
}

/// Reads in a row, as wake-ups of the daemon.
const WAKE_UPS: usize = 30;
/// Bytes of a wake-up: the size of Xen's ring.
const WAKE_UP_BYTES: usize = 2048;
/// Period of the wake-ups.
const PERIOD: Duration = Duration::from_millis(200);
/// Capacity of the pipe between the service and its reader.
const PIPE_BYTES: usize = 4096;
/// How long the trace is.
const SECONDS: &str = "3";
/// More lines than are read in this time.
const LINES: &str = "10000000";
/// As long as a line of a terminal.
const LINE_BYTES: &str = "80";
/// Gaps that are seen in that time, at the least.
const GAPS_MIN: usize = 8;
/// The resource that the service waits for.
const CAUSE: &str = "console: no room until the host reads";

fn a_slow_console_shows_a_staircase_and_its_cause(world: World) {
    let Some(reason) = world.obstacle() else { return staircase(world) };
    programs::skip(reason);
}

/// QEMU drops what its standard output does not take at once, so `glass run` has to take all.
fn each_line_is_printed_to_a_reader_that_pauses(world: World) {
    const LINES: &str = "300000";
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let (Some(mut command), Some(image)) = (
        programs::built(if world == World::Process { "bench-console" } else { "glass" }).map(Command::new),
        programs::image("bench-console"),
    ) else {
        return;
    };
    if world != World::Process {
        command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
    }
    let child = command.args(["--", "--lines", LINES]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    // By then the service has printed more than a pipe can hold.
    sleep(Duration::from_secs(1));
    let lines: Vec<String> = output.lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success());
    let missing = lines.windows(2).find(|pair| {
        let numbers = [&pair[0], &pair[1]].map(|line| line.trim().parse::<u64>());
        matches!(numbers, [Ok(one), Ok(next)] if next != 0 && next != one + 1)
    });
    assert_eq!(missing, None, "of {} lines", lines.len());
    // With those to warm up, without the first one, and with the result.
    assert_eq!(lines.len(), 1_000 + 300_000);
}

fn staircase(world: World) {
    let folder = Folder::new("console").unwrap();
    let Some(glass) = programs::built("glass") else { return };
    let pipe = folder.file("console");
    let Some((mut command, image)) = service(world, &folder, &pipe) else { return };
    let ends = make_pipe(&pipe);
    let reader = File::open(pipe.with_extension("out")).unwrap();
    let output = ends[1].try_clone().unwrap();
    let process = Process::spawn_with_output(&mut command, output.into(), &folder.file("service.log")).unwrap();
    drop(command);
    let drain = std::thread::spawn(move || drain(reader));

    let file = folder.file("console.pftrace");
    // By then QEMU has opened the pipe, too.
    sleep(Duration::from_secs(1));
    // Then only the service has the writing end open, so that the reader ends with it.
    drop(ends);
    let mut trace = Command::new(&glass);
    trace.args(["trace", "--pid", &process.pid().to_string(), "--duration", SECONDS, "--output"]).arg(&file);
    trace.args(image.iter().flat_map(|image| ["--symbols", image]));
    run(&mut trace);
    let mut report = Command::new(&glass);
    report.arg("report").arg(&file).args(["--text", "--view", "events", "--event", "lines written"]);
    let text = run(&mut report);
    let gaps = gaps(&text);
    let stairs = gaps.iter().filter(|gap| gap.milliseconds >= 120.0 && gap.explanation.contains(CAUSE)).count();
    assert!(stairs >= GAPS_MIN && stairs * 4 >= gaps.len() * 3, "{stairs} of {} gaps are stairs:\n{text}", gaps.len());
    drop(process);
    drain.join().unwrap();
}

/// The two named pipes that QEMU uses for one character device, both open.
fn make_pipe(path: &Path) -> [File; 2] {
    ["in", "out"].map(|extension| {
        let path = path.with_extension(extension);
        run(Command::new("mkfifo").arg(&path));
        let pipe = File::options().read(true).write(true).open(path).unwrap();
        rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES).unwrap();
        pipe
    })
}

/// The service that prints without end into the `pipe`, and its image if it is a VM.
fn service(world: World, folder: &Folder, pipe: &Path) -> Option<(Command, Option<String>)> {
    let arguments = ["--lines", LINES, "--line-bytes", LINE_BYTES];
    if world == World::Process {
        let mut command = Command::new(programs::built("bench-console")?);
        command.arg("--").args(arguments);
        return Some((command, None));
    }
    let image = programs::image("bench-console")?;
    let mut run = Command::new(programs::built("glass")?);
    run.arg("run").arg(&image).args(["--accel", &world.to_string(), "--net", "none"]);
    let mut words = qemu::command_line(&mut run, &arguments, folder).unwrap().words;
    for index in 0..words.len() {
        match words[index].as_str() {
            // QEMU drops text of the first port without a reader; text of other ports waits.
            "virtconsole,chardev=console" => words[index] = "virtserialport,chardev=slow,nr=1".into(),
            "-append" => words[index + 1] = format!("console=1 {}", words[index + 1]),
            _ => (),
        }
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("-chardev").arg(format!("pipe,id=slow,path={}", pipe.display()));
    Some((command, Some(image.display().to_string())))
}

/// Reads until the service ends.
fn drain(mut reader: File) {
    let mut buffer = [0; WAKE_UP_BYTES];
    loop {
        let begun = Instant::now();
        for _ in 0..WAKE_UPS {
            if !reader.read(&mut buffer).is_ok_and(|count| count > 0) {
                return;
            }
        }
        sleep(PERIOD.saturating_sub(begun.elapsed()));
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A gap that the report explains.
struct Gap {
    milliseconds: f64,
    explanation: String,
}

/// `a  203 ms from 0.001145 s: ...`, over several lines.
fn gaps(text: &str) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().map(str::parse), words.next(), words.next()) {
            (Some(_), Some(Ok(milliseconds)), Some("ms"), Some("from")) => {
                gaps.push(Gap { milliseconds, explanation: line.to_owned() });
            }
            _ => {
                if let Some(gap) = gaps.last_mut() {
                    gap.explanation += " ";
                    gap.explanation += line.trim();
                }
            }
        }
    }
    gaps
}
