//! `fork`: copies of a VM: from the start of a program to the first byte of a copy's answer, with and without a list of the pages that copies use, beside
//! a boot of the same image; the memory of a copy; and many at once.

use crate::boot::{attempt, first_byte};
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::port::{free_port, free_ports};
use glass_tests::process::{Process, descendants};
use glass_tests::programs;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts of each kind.
const ROUNDS: usize = 100;
/// Copies of which the first requests are timed, and these requests.
const FRESH: usize = 20;
const REQUESTS: usize = 100;
/// Copies at once.
const COPIES: u16 = 1000;
const COPIES_SHORT: u16 = 4;
/// Between the start of a process that waits and its client.
const SETTLE: Duration = Duration::from_millis(20);
/// A start that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A copy of `glass run --from --on-demand`, from its client's connection on: a fork of a process that is there.
    OnDemand,
    /// `glass run --from`, as users type it.
    Run,
    /// The process of the copy alone, which `glass run` starts.
    OwnProcess,
    /// The same, without a list of pages that are made ready.
    WithoutPages,
    /// `glass run --from` without that list.
    RunWithoutPages,
    /// `glass run` of the image.
    Boot,
}

const KINDS: [Kind; 5] = [Kind::OnDemand, Kind::Run, Kind::OwnProcess, Kind::WithoutPages, Kind::Boot];

/// A VM that was halted, and what runs copies of it.
struct Template {
    glass: PathBuf,
    image: PathBuf,
    snapshot: PathBuf,
    /// The same file under another name, beside which there is no list of pages.
    without_pages: PathBuf,
    /// What the list has.
    pages_kb: usize,
}

/// Measures copies of `hello`.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if !programs::has_kvm() {
        outcome.skip("there is no KVM");
        return Ok(());
    }
    let folder = Folder::new("bench-fork")?;
    let template = Template::take(&folder)?;
    let measure = |index: usize| {
        let port = free_port()?;
        let mut command = template.command(KINDS[index], port);
        let time = match KINDS[index] {
            Kind::OnDemand => on_demand(&mut command, port, &folder),
            _ => first_byte(&mut command, port, &folder),
        };
        let time = time.with_context(|| format!("{:?}", KINDS[index]))?;
        Ok(time.as_secs_f64() * 1000.0)
    };
    in_turn(outcome, KINDS.len(), ROUNDS, run, measure, add)?;
    let measure = |index: usize| requests(&template, [Kind::OwnProcess, Kind::WithoutPages][index], &folder);
    in_turn(outcome, 2, FRESH, run, measure, add_requests)?;
    outcome.note(format!("first and next {REQUESTS} requests: to a fresh copy, one after the other, each on a connection of its own, without its start; the difference is mostly the first use of pages"));
    outcome.note(format!("without_pages: without the list of the {} kB that a copy had used until its first answer, which others make ready before they run", template.pages_kb));
    let count = run.size(COPIES, COPIES_SHORT);
    for (kind, name) in [(Kind::Run, ""), (Kind::RunWithoutPages, ".without_pages")] {
        let Many { started, memory_kb, ended } = many(&template, kind, count, &folder)?;
        outcome.add(Figure::of(&format!("boot.fork{name}.{count}_copies_s"), "s", &[started.as_secs_f64()]));
        outcome.add(Figure::of(&format!("boot.fork{name}.{count}_copies_end_s"), "s", &[ended.as_secs_f64()]));
        outcome.add(Figure::of(&format!("boot.fork{name}.memory_kb"), "kB", &memory_kb));
    }
    outcome.note("first byte: of a copy that starts on demand, from the connection of its first client; the process that it is a fork of has read the snapshot");
    outcome.note("run and own process: from the start of `glass run --from`, or of the process that it starts, to the first byte of the answer of hello; a boot of the same image beside it");
    outcome.note(format!(
        "{count} copies: until each has answered a request, and their end from Ctrl-C on; memory: what is private to the process of a copy"
    ));
    Ok(())
}

fn add(outcome: &mut Outcome, samples: &[Vec<f64>]) {
    let [on_demand, run, own_process, without_pages, boot] = samples else { return };
    let boot = Figure::of("boot.fork.boot_first_byte_ms", "ms", boot);
    let names = ["first_byte_ms", "run_first_byte_ms", "own_process_ms", "without_pages.own_process_ms"];
    for (name, samples) in names.into_iter().zip([on_demand, run, own_process, without_pages]) {
        let figure = Figure::of(&format!("boot.fork.{name}"), "ms", samples);
        outcome.add(figure.map(|figure| figure.beside(boot.as_ref().map(|boot| ("a boot", boot.value)))));
    }
    outcome.add(boot);
}

/// Of copies with and without a list of pages.
fn add_requests(outcome: &mut Outcome, samples: &[Vec<[f64; 2]>]) {
    for (name, samples) in ["", ".without_pages"].into_iter().zip(samples) {
        let of = |name: String, index: usize| {
            Figure::of(&name, "ms", &samples.iter().map(|times| times[index]).collect::<Vec<_>>())
        };
        let next = of(format!("boot.fork{name}.next_100_requests_ms"), 1);
        let first = of(format!("boot.fork{name}.first_100_requests_ms"), 0);
        outcome.add(first.map(|figure| figure.beside(next.as_ref().map(|next| ("the next 100", next.value)))));
        outcome.add(next);
    }
}

impl Template {
    fn take(folder: &Folder) -> Result<Template> {
        let glass = programs::built("glass").context("glass is not built")?;
        let built = programs::image("hello").context("hello is not built")?;
        // A name of its own, by which `glass snapshot` finds it.
        let name = format!("bench-fork-{}", std::process::id());
        let image = folder.file(&name);
        std::os::unix::fs::symlink(&built, &image)?;
        let (snapshot, without_pages) = (folder.file("snapshot"), folder.file("without-pages"));
        let mut template = Template { glass, image, snapshot, without_pages, pages_kb: 0 };
        let port = free_port()?;
        let mut vm = Process::spawn(&mut template.command(Kind::Boot, port), &folder.file("template.log"))?;
        let end = Instant::now() + LIMIT;
        while attempt(address(port), end).is_none() {
            ensure!(vm.ended().is_none() && Instant::now() < end, "no answer: {}", vm.output());
        }
        let taken = Command::new(&template.glass).args(["snapshot", &name, "-o"]).arg(&template.snapshot).output()?;
        ensure!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        fs::hard_link(&template.snapshot, &template.without_pages)?;
        template.pages_kb = template.record_pages(folder)?;
        Ok(template)
    }

    /// Writes the list of the pages that a copy uses until its first answer; returns how many kB they are.
    fn record_pages(&self, folder: &Folder) -> Result<usize> {
        let port = free_port()?;
        let mut command = self.command(Kind::Run, port);
        let mut copy = Process::spawn(command.arg("--record-pages"), &folder.file("record.log"))?;
        let end = Instant::now() + LIMIT;
        while attempt(address(port), end).is_none() {
            ensure!(copy.ended().is_none() && Instant::now() < end, "no answer: {}", copy.output());
        }
        ensure!(copy.interrupt(LIMIT), "the copy does not end: {}", copy.output());
        let output = copy.output();
        let kb = output.split_once(" pages, ").and_then(|(_, rest)| rest.split_once(" kB")?.0.parse().ok());
        kb.with_context(|| format!("no pages were recorded: {output}"))
    }

    fn command(&self, kind: Kind, port: u16) -> Command {
        let mut command = Command::new(&self.glass);
        match kind {
            Kind::OnDemand => _ = command.arg("run").arg("--from").arg(&self.snapshot).arg("--on-demand"),
            Kind::Run => _ = command.arg("run").arg("--from").arg(&self.snapshot),
            Kind::RunWithoutPages => _ = command.arg("run").arg("--from").arg(&self.without_pages),
            Kind::OwnProcess => _ = command.arg("vmm").arg("--from").arg(&self.snapshot),
            Kind::WithoutPages => _ = command.arg("vmm").arg("--from").arg(&self.without_pages),
            Kind::Boot => _ = command.arg("run").arg(&self.image).args(["--vmm", "own"]),
        }
        command.args(["--port", &format!("{port}:8080")]);
        command
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The time of a client of a copy that starts for it.
fn on_demand(glass_run: &mut Command, port: u16, folder: &Folder) -> Result<Duration> {
    let mut process = Process::spawn(glass_run, &folder.file("on-demand.log"))?;
    let end = Instant::now() + LIMIT;
    while !listens(&fs::read_to_string("/proc/net/tcp")?, port) {
        ensure!(process.ended().is_none() && Instant::now() < end, "nothing listens: {}", process.output());
        std::thread::sleep(Duration::from_millis(1));
    }
    // What the start has left to do is not the copy's.
    std::thread::sleep(SETTLE);
    attempt(address(port), Instant::now()).with_context(|| format!("no answer: {}", process.output()))
}

/// Whether a socket of 127.0.0.1 listens at a port, by the text of `/proc/net/tcp` (proc(5)).
fn listens(table: &str, port: u16) -> bool {
    let own = format!("0100007F:{port:04X}");
    let mut sockets = table.lines().map(|line| line.split_whitespace());
    sockets.any(|mut words| words.nth(1) == Some(&own) && words.nth(1) == Some("0A"))
}

/// Milliseconds of the first requests to a copy that has just started, and of as many after them.
fn requests(template: &Template, kind: Kind, folder: &Folder) -> Result<[f64; 2]> {
    let port = free_port()?;
    let mut copy = Process::spawn(&mut template.command(kind, port), &folder.file("copy.log"))?;
    let start = Instant::now();
    let mut begun = None;
    let mut times = [0.0; 2];
    for time in &mut times {
        let mut left = REQUESTS;
        while left > 0 {
            let before = Instant::now();
            match attempt(address(port), before) {
                Some(_) => {
                    begun.get_or_insert(before);
                    left -= 1;
                }
                None => ensure!(copy.ended().is_none() && start.elapsed() < LIMIT, "no answer: {}", copy.output()),
            }
        }
        let now = Instant::now();
        *time = (now - begun.replace(now).unwrap_or(now)).as_secs_f64() * 1000.0;
    }
    Ok(times)
}

/// Many copies at once.
struct Many {
    /// Until all have answered.
    started: Duration,
    /// Of each.
    memory_kb: Vec<f64>,
    /// From the request to end until all have.
    ended: Duration,
}

fn many(template: &Template, kind: Kind, count: u16, folder: &Folder) -> Result<Many> {
    let first = free_ports(count)?;
    let start = Instant::now();
    let mut command = template.command(kind, first);
    command.args(["--copies", &count.to_string()]);
    let mut copies = Process::spawn(&mut command, &folder.file("copies.log"))?;
    for port in first..first + count {
        while attempt(address(port), start).is_none() {
            if copies.ended().is_some() || start.elapsed() > LIMIT {
                bail!("the copy at port {port} does not answer: {}", copies.output());
            }
        }
    }
    let started = start.elapsed();
    let is_copy =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| threads(&stat) > Some(1));
    let pids = descendants(copies.pid()).into_iter().filter(is_copy);
    let memory_kb = pids.filter_map(|pid| private_kb(Path::new(&format!("/proc/{pid}/smaps_rollup")))).collect();
    let end = Instant::now();
    ensure!(copies.interrupt(LIMIT), "the copies do not end: {}", copies.output());
    Ok(Many { started, memory_kb, ended: end.elapsed() })
}

/// The number of threads in the text of `/proc/PID/stat` (proc(5), field 20).
fn threads(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(17)?.parse().ok()
}

/// What is private to a process, in the text of `/proc/PID/smaps_rollup`.
fn private_kb(path: &Path) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
    let sum: u64 = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
    Some(sum as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stand_beside_a_boot() {
        let mut outcome = Outcome::default();
        add(&mut outcome, &[vec![2.0], vec![4.0], vec![3.0], vec![5.0], vec![8.0]]);
        let figures: Vec<_> = outcome.figures.iter().map(|figure| (figure.figure.as_str(), figure.ratio)).collect();
        let expected = [
            ("first_byte_ms", Some(0.25)),
            ("run_first_byte_ms", Some(0.5)),
            ("own_process_ms", Some(0.375)),
            ("without_pages.own_process_ms", Some(0.625)),
            ("boot_first_byte_ms", None),
        ];
        assert_eq!(
            figures,
            expected
                .map(|(name, ratio)| (["boot.fork.", name].concat(), ratio))
                .each_ref()
                .map(|(name, ratio)| (name.as_str(), *ratio))
        );
    }

    #[test]
    fn first_requests_stand_beside_the_next_ones() {
        let mut outcome = Outcome::default();
        add_requests(&mut outcome, &[vec![[12.0, 10.0]], vec![[20.0, 10.0]]]);
        let ratios: Vec<_> = outcome.figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [Some(1.2), None, Some(2.0), None]);
        assert_eq!(outcome.figures[2].figure, "boot.fork.without_pages.first_100_requests_ms");
    }

    #[test]
    fn a_listener_is_found_by_its_port() {
        let table = "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:1F90 00000000:0000 0A 0:0\n   1: 0100007F:1F91 0100007F:9999 01 0:0\n";
        assert_eq!([0x1f90, 0x1f91, 0x1f92].map(|port| listens(table, port)), [true, false, false]);
    }

    #[test]
    fn threads_are_counted_behind_any_name() {
        assert_eq!(threads("7 (a) b) S 1 7 7 0 -1 4 1 0 0 0 0 0 0 0 20 0 3 0 9"), Some(3));
        assert_eq!(threads("7 (a"), None);
    }
}
