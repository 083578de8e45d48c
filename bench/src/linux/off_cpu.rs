//! `glass record --off-cpu`: how many stacks of threads that wait are whole, what reading them costs this machine and the guest, and whether their
//! states are as the guest's scheduler counts them.

use super::percent;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::linux::waits::Wait;
use glass_profiler_core::model::{Profile, StackEnd, State};
use glass_profiler_core::recording::{self, Recording};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::process::{self, Process};
use glass_tests::programs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Servers without clients, of five threads each, whose main thread looks at its timers ten times a second.
const SERVERS: u32 = 20;
const RATE: &str = "50";
/// After which programs have been read.
const START: Duration = Duration::from_secs(3);
/// Rounds with and without a recording.
const ROUNDS: usize = 7;
/// What the guest does meanwhile, some seconds long under TCG.
const WORK: &str = "dd if=/dev/zero of=/dev/null bs=64k count=30000 2>/dev/null";
/// What the threads of the servers wait for by the guest's own lists (`/proc/PID/task/TID/wchan`): functions of Linux 6.1.
const WAITS: [(&str, Wait); 2] = [("do_epoll_wait", Wait::Events), ("futex_wait_queue", Wait::Lock)];
/// How often the guest reads its lists.
const LISTS: u64 = 40;
/// Processes that compute on the two vCPUs, and how long they are recorded.
const HOGS: u32 = 4;
const SHARE_SECONDS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(120);
const FILE: &str = "off-cpu.glass";
/// A shell without unwind tables, of which no stack is whole.
const WITHOUT_TABLES: [&str; 3] = ["sh", "sleep", "dd"];

/// Measures one guest.
pub(super) fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let parts = match Parts::get(Release::Bookworm61) {
        Ok(parts) => parts,
        Err(reason) => {
            outcome.skip(format!("no Linux {}: {reason:#}", Release::Bookworm61));
            return Ok(());
        }
    };
    let mut guest = Guest::boot(&parts, &Settings::new(Release::Bookworm61))?;
    let servers = format!(
        "ifconfig lo up; for i in $(seq {SERVERS}); do redis-server --save '' --port $((7000 + i)) --dir /tmp >/dev/null 2>&1 & done; sleep 5"
    );
    guest.expect(&servers, PATIENCE)?;
    let mut rounds = Rounds::default();
    for _ in run.rounds(ROUNDS) {
        rounds.without.push(work(&mut guest)?);
        let recorder = Recorder::start(&parts, &guest)?;
        let (begin, cpu_before) = (Instant::now(), recorder.cpu_s()?);
        rounds.with.push(work(&mut guest)?);
        let cpu = recorder.cpu_s()? - cpu_before;
        rounds.cpu.push(cpu * 100.0 / begin.elapsed().as_secs_f64());
        rounds.count(&recorder.end()?.profile);
        run.so_far(outcome, |so_far| rounds.add_to(so_far));
    }
    rounds.add_to(outcome);
    waits(outcome, run, &parts, &mut guest)?;
    shares(outcome, run, &parts, &mut guest)?;
    outcome.note(format!(
        "off_cpu: all threads of an emulated guest at {RATE} Hz, {SERVERS} servers of five threads without clients; whole_percent: of the stacks of threads that wait, without those of a shell that has no unwind tables, with the files of the guest's root; host_cpu_percent: of one core, without the start; guest_loss_percent: how much longer a copy of {WORK:?} takes, in turn with one that is not recorded; wait_share_error: of the servers' threads, the share of samples that wait for events, and for a lock, beside that by wchan in the guest, read {LISTS} times meanwhile; share_error: of {HOGS} processes that compute on two vCPUs, the share of the time on a CPU by samples beside that by the guest's scheduler"
    ));
    Ok(())
}

/// Compares what the servers' threads wait for.
fn waits(outcome: &mut Outcome, run: &Run, parts: &Parts, guest: &mut Guest) -> Result<()> {
    let recorder = Recorder::start(parts, guest)?;
    let lists = run.size(LISTS, 5);
    let text = guest.expect(
        &format!("F=; for p in $(pidof redis-server); do F=\"$F $(echo /proc/$p/task/*/wchan)\"; done; for i in $(seq {lists}); do grep -h . $F; sleep 0.1; done | sort | uniq -c; echo pids $(pidof redis-server)"),
        PATIENCE,
    )?;
    let profile = recorder.end()?.profile;
    let (mut counts, mut pids): (Vec<(usize, &str)>, Vec<u32>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match line.trim().split_once(' ') {
            Some(("pids", all)) => pids = all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
            Some((count, function)) => counts.extend(count.parse().ok().map(|count: usize| (count, function))),
            None => {}
        }
    }
    let all = counts.iter().map(|(count, _)| count).sum();
    ensure!(pids.len() == SERVERS as usize && all > 0, "the guest has not {SERVERS} servers: {text}");
    let errors = WAITS.map(|(function, wait)| {
        let counted = counts.iter().filter(|(_, name)| *name == function).map(|(count, _)| count).sum();
        (share(&profile, &pids, wait) - percent(counted, all)).abs()
    });
    outcome.add(Figure::of("linux.off_cpu.wait_share_error_points", "points", &errors));
    Ok(())
}

/// Compares the time on a CPU of processes that compute.
fn shares(outcome: &mut Outcome, run: &Run, parts: &Parts, guest: &mut Guest) -> Result<()> {
    let hogs = format!("for i in $(seq {HOGS}); do without-fp >/dev/null 2>&1 & done; sleep 1");
    guest.expect(&hogs, PATIENCE)?;
    let recorder = Recorder::start(parts, guest)?;
    let before = schedstats(guest)?;
    std::thread::sleep(Duration::from_secs(run.size(SHARE_SECONDS, 3)));
    let after = schedstats(guest)?;
    let profile = recorder.end()?.profile;
    let mut errors = Vec::new();
    for ((pid, ran_before, waited_before), (_, ran, waited)) in before.into_iter().zip(after) {
        let (ran, waited) = (ran - ran_before, waited - waited_before);
        errors.push((share(&profile, &[pid], Wait::OnCpu) - ran * 100.0 / (ran + waited)).abs());
    }
    outcome.add(Figure::of("linux.off_cpu.share_error_points", "points", &errors));
    Ok(())
}

/// A recording that runs.
struct Recorder {
    process: Process,
    file: PathBuf,
}

impl Recorder {
    /// Starts one, and returns when the start has passed.
    fn start(parts: &Parts, guest: &Guest) -> Result<Recorder> {
        let mut command = Command::new(programs::built("glass").context("glass is not built")?);
        command.args(["record", "--off-cpu", "--rate", RATE, "--pid", &guest.pid().to_string(), "--guest-root"]);
        let file = guest.folder().file(FILE);
        command.arg(&parts.root.files).arg("--output").arg(&file);
        let process = Process::spawn(&mut command, &guest.folder().file("off-cpu.log"))?;
        std::thread::sleep(START);
        Ok(Recorder { process, file })
    }

    /// Its CPU time until now.
    fn cpu_s(&self) -> Result<f64> {
        let time = process::cpu_time(self.process.pid());
        Ok(time.with_context(|| format!("glass record has ended: {}", self.process.output()))?.as_secs_f64())
    }

    /// Ends it.
    fn end(mut self) -> Result<Recording> {
        ensure!(self.process.interrupt(PATIENCE), "glass record does not end: {}", self.process.output());
        Ok(recording::open(&std::fs::read(&self.file)?, &mut NoFiles)?)
    }
}

/// What the rounds gave.
#[derive(Default)]
struct Rounds {
    /// Percent of a core.
    cpu: Vec<f64>,
    /// Seconds that the guest's work took.
    with: Vec<f64>,
    without: Vec<f64>,
    /// Stacks of threads that wait, and those of them that are whole.
    stacks: usize,
    whole: usize,
    samples: u64,
    lost: u64,
}

impl Rounds {
    fn count(&mut self, profile: &Profile) {
        self.samples += profile.cost.samples_wanted;
        self.lost += profile.cost.samples_lost;
        for sample in profile.samples.iter().filter(|sample| sample.state == State::Waiting) {
            let thread = sample.thread.and_then(|thread| profile.threads.get(thread as usize));
            if thread.is_none_or(|thread| WITHOUT_TABLES.contains(&thread.name.as_str())) {
                continue;
            }
            self.stacks += 1;
            let end = profile.stacks.get(sample.stack as usize).map(|stack| stack.end);
            self.whole += usize::from(end == Some(StackEnd::Complete));
        }
    }

    fn add_to(&self, outcome: &mut Outcome) {
        let losses: Vec<f64> =
            self.with.iter().zip(&self.without).map(|(with, without)| (with / without - 1.0) * 100.0).collect();
        let figure =
            |what: &str, unit: &str, values: &[f64]| Figure::of(&format!("linux.off_cpu.{what}"), unit, values);
        outcome.add(figure("whole_percent", "%", &[percent(self.whole, self.stacks)]));
        outcome.add(figure("stacks", "stacks", &[self.stacks as f64]));
        outcome.add(figure("lost_percent", "%", &[self.lost as f64 * 100.0 / self.samples.max(1) as f64]));
        outcome.add(figure("host_cpu_percent", "%", &self.cpu));
        outcome.add(figure("guest_loss_percent", "%", &losses));
        outcome.add(figure("guest_work_s", "s", &self.with).map(|figure| {
            figure.against("without a recording", Figure::of("", "s", &self.without).map_or(0.0, |figure| figure.value))
        }));
    }
}

/// Does the guest's work; seconds.
fn work(guest: &mut Guest) -> Result<f64> {
    let begin = Instant::now();
    guest.expect(WORK, PATIENCE)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Of each process that computes: its ID, nanoseconds on a CPU, and those waiting for one (`/proc/PID/schedstat`).
fn schedstats(guest: &mut Guest) -> Result<Vec<(u32, f64, f64)>> {
    let text =
        guest.expect("for pid in $(pidof without-fp); do echo $pid $(cat /proc/$pid/schedstat); done", PATIENCE)?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let all: Vec<_> = text.lines().filter_map(line).collect();
    ensure!(all.len() == HOGS as usize, "the guest has not {HOGS} processes that compute: {text}");
    Ok(all)
}

/// The share of the samples of some processes in which a thread waited for something, or was on a CPU, in percent.
fn share(profile: &Profile, pids: &[u32], wait: Wait) -> f64 {
    let is_of = |thread: u32| {
        let thread = profile.threads.get(thread as usize);
        let process = thread.and_then(|thread| profile.processes.iter().find(|process| process.id == thread.process));
        process.is_some_and(|process| pids.contains(&process.pid))
    };
    let waits = |stack: u32| {
        let innermost = profile.stacks.get(stack as usize).and_then(|stack| stack.frames.last());
        let frame = innermost.and_then(|frame| profile.frames.get(*frame as usize));
        frame.is_some_and(|frame| frame.function == wait.frame())
    };
    let (mut waiting, mut all) = (0, 0);
    for sample in profile.samples.iter().filter(|sample| sample.thread.is_some_and(is_of)) {
        all += 1;
        waiting += usize::from(waits(sample.stack));
    }
    percent(waiting, all)
}
