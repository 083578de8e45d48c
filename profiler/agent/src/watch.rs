//! The VMs of the host, and the recorder of each: a process of its own, which ends with each recording.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use glass_profiler_core::names::safe_chars;
use glass_profiler_core::remarks::{PAUSED, STARTED_AGAIN};
use glass_profiler_guests::find::{self, Vm, started};

use crate::budget::{self, Limits, Plan, Price};
use crate::config::Config;
use crate::glass::{Glass, Info, Wanted, last_line};
use crate::segments::{Segment, safe_name};
use crate::state::{State, VmState};

/// VMs that are recorded at most.
const VMS_MAX: usize = 1024;
/// How often VMs are listed.
const LIST_PERIOD: Duration = Duration::from_secs(3);
/// How often a process is inspected for a VM when it is new; and after how many lists all are, as an old one may start a VM.
const EARLY_LISTS: u32 = 3;
const LISTS_PER_FULL: u32 = 10;
/// The first recording of a VM takes so long, so that the page has it soon; and up to so much more, by its process ID: recordings of VMs that were found
/// together do not end together.
const FIRST: Duration = Duration::from_secs(10);
const FIRST_SPREAD: u32 = 10;
/// A recorder that has not ended by itself so long after its time is killed; its VM continues.
const OVERTIME: Duration = Duration::from_secs(30);
/// How long a VM whose recorder has failed is left alone: at first, and at most.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// Below this part of the permitted pressure a rate that was lowered doubles again.
const RELIEF: f64 = 0.75;
/// A VM sleeps if code ran in at most one of so many samples of its last recording.
const ASLEEP_PART: u64 = 100;
/// How often a VM that slept is looked at, and the part of that time for which it has to run to be awake.
const WAKE_PERIOD: Duration = Duration::from_secs(3);
const AWAKE_PART: u32 = 10;
/// A rate changes only by more than this part, or to that of the configuration.
const RATE_PART: u32 = 4;
/// Recordings are shorter than this only if the VM ends, and show no price.
const PRICED_MIN: Duration = Duration::from_secs(1);
/// The unit of times in `/proc/PID/stat` (proc(5)), the same on each machine (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);
/// A VMM uses no more CPU time than this, in ticks, while its VM is paused.
const TICKS_STILL: u64 = 1;

/// A recording that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Where it is.
    pub file: PathBuf,
    /// What it is, without its size.
    pub segment: Segment,
    /// What is in it.
    pub info: Info,
    /// The VM's own name.
    pub name: String,
    /// How long the VM was not recorded before it.
    pub gap: Duration,
    /// The CPU time of its recorder, from its start to its end, with the processes that it has started.
    pub cpu: Duration,
}

/// A recorder at work.
#[derive(Debug)]
struct Recorder {
    child: Child,
    file: PathBuf,
    log: PathBuf,
    since: Instant,
    /// It gets no more than this.
    limit: Duration,
    /// [`cpu_ticks`] of its VM when it was started.
    ticks: u64,
    /// If its recording is to be longer because the VM sleeps: when it was looked at last, and its ticks then.
    checked: Option<(Instant, u64)>,
}

/// A VM.
#[derive(Debug)]
struct Watched {
    name: String,
    rate_hz: u32,
    /// How many times as long as others its recordings are.
    stretch: u32,
    /// No higher rate, on a host that has too much to do.
    rate_max_hz: u32,
    /// What its last recording has cost.
    price: Option<Price>,
    /// It slept nearly all the time of its last recording.
    is_asleep: bool,
    recorder: Option<Recorder>,
    /// When the last recording ended, or the VM was first seen.
    free_since: Instant,
    /// Not before this.
    next: Instant,
    patience: Duration,
    /// [`cpu_ticks`] of a VM that is paused or stopped, of which a recorder has failed: it is recorded once it continues.
    still: Option<u64>,
    /// It was paused in its last recording.
    was_paused: bool,
    /// It has a recording.
    is_recorded: bool,
}

/// What all VMs of the host may take, and do.
#[derive(Debug, Clone)]
struct Host {
    cpus: usize,
    /// The number of VMs, and the prices of others that are known.
    vms: usize,
    others: Vec<Price>,
    /// See [`pressure_percent`].
    pressure: f64,
}

/// All VMs.
#[derive(Debug)]
pub struct Watch {
    glass: Glass,
    work: PathBuf,
    /// By the process, and when it was started: another one may get its number.
    vms: BTreeMap<(u32, u64), Watched>,
    listed: Option<Instant>,
    /// How many lists there were, and how many of them each process was in.
    lists: u32,
    seen: BTreeMap<u32, u32>,
    number: u64,
}

impl Watch {
    /// None yet. Recordings that are not finished are in `work`, which is emptied.
    pub fn new(glass: Glass, work: PathBuf) -> std::io::Result<Watch> {
        // Of an agent that was killed.
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work)?;
        Ok(Watch { glass, work, vms: BTreeMap::new(), listed: None, lists: 0, seen: BTreeMap::new(), number: 0 })
    }

    /// One round: VMs that are new or have ended, recorders that have ended, and new ones. Returns what is whole.
    pub fn round(&mut self, config: &Config, state: &State) -> Vec<Finished> {
        if self.listed.is_none_or(|listed| listed.elapsed() >= LIST_PERIOD) {
            self.listed = Some(Instant::now());
            self.list(config, state);
        }
        let mut finished = Vec::new();
        let keys: Vec<(u32, u64)> = self.vms.keys().copied().collect();
        for key in keys {
            finished.extend(self.follow(key, config, state));
        }
        finished
    }

    /// Ends all recorders, and returns what they have recorded.
    pub fn stop(&mut self, config: &Config, state: &State) -> Vec<Finished> {
        for watched in self.vms.values_mut() {
            watched.next = Instant::now() + PATIENCE_MAX;
            if let Some(recorder) = &watched.recorder {
                interrupt(&recorder.child);
            }
        }
        let begun = Instant::now();
        let mut finished = Vec::new();
        while self.vms.values().any(|watched| watched.recorder.is_some()) {
            for key in self.vms.keys().copied().collect::<Vec<_>>() {
                if begun.elapsed() > OVERTIME
                    && let Some(recorder) = self.vms.get_mut(&key).and_then(|watched| watched.recorder.as_mut())
                {
                    let _ = recorder.child.kill();
                }
                finished.extend(self.follow(key, config, state));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        finished
    }

    /// Inspects all processes at the next list: others are wanted.
    pub fn inspect_all(&mut self) {
        self.seen.clear();
    }

    fn list(&mut self, config: &Config, state: &State) {
        let is_full = self.lists.is_multiple_of(LISTS_PER_FULL);
        self.lists = self.lists.wrapping_add(1);
        // Inspecting a process takes tens of system calls, and a host has thousands of them.
        let before = std::mem::take(&mut self.seen);
        let is_due = |lists: u32| is_full || lists < EARLY_LISTS;
        let listing = find::list_among(|pid| {
            let lists = before.get(&pid).copied().unwrap_or(0);
            self.seen.insert(pid, lists.saturating_add(1));
            is_due(lists)
        });
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return state.remark(&format!("cannot list VMs: {error}")),
        };
        let selected: Vec<Vm> = listing.vms.into_iter().filter(|vm| config.selects(&vm.name)).collect();
        // Those that were not inspected are what they were, unless another process has the number.
        let is_same = |(pid, start): &(u32, u64)| started(*pid) == Some(*start);
        let was_left_out = |pid: &u32| before.get(pid).is_some_and(|lists| !is_due(*lists));
        let known: Vec<(u32, u64)> = self.vms.keys().copied().filter(|(pid, _)| was_left_out(pid)).collect();
        let (mut running, replaced): (Vec<_>, Vec<_>) = known.into_iter().partition(is_same);
        replaced.iter().for_each(|(pid, _)| _ = self.seen.remove(pid));
        for vm in selected {
            let Some(started) = started(vm.pid) else { continue };
            let key = (vm.pid, started);
            if !self.vms.contains_key(&key) && self.vms.len() >= VMS_MAX {
                continue;
            }
            running.push(key);
            let name: String = safe_chars(&vm.name).collect();
            let now = Instant::now();
            let watched = self.vms.entry(key).or_insert_with(|| Watched::new(name.clone(), config.rate_hz, now));
            let rate_hz = watched.rate_hz;
            let mut known = state.lock();
            let shown = known.vms.entry(vm.pid).or_default();
            *shown = VmState { name, vmm: vm.vmm, accel: vm.accel, rate_hz, problem: shown.problem.take() };
        }
        // What has ended is forgotten when its last recording is finished.
        self.vms.retain(|key, watched| watched.recorder.is_some() || running.contains(key));
        let mut known = state.lock();
        known.vms.retain(|pid, _| self.vms.keys().any(|key| key.0 == *pid));
        for ((pid, _), watched) in &mut self.vms {
            watched.rate_hz = watched.rate_hz.min(config.rate_hz);
            if let Some(shown) = known.vms.get_mut(pid) {
                shown.rate_hz = watched.rate_hz;
            }
        }
    }

    /// The host of a VM.
    fn host_of(&self, key: (u32, u64)) -> Host {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let others = self.vms.iter().filter(|(other, _)| **other != key).filter_map(|(_, watched)| watched.price);
        Host { cpus, vms: self.vms.len(), others: others.collect(), pressure: pressure_percent() }
    }

    /// What became of a VM's recorder; starts the next one.
    fn follow(&mut self, key: (u32, u64), config: &Config, state: &State) -> Option<Finished> {
        let watched = self.vms.get_mut(&key)?;
        let mut finished = None;
        if let Some(recorder) = &mut watched.recorder {
            if recorder.since.elapsed() > recorder.limit {
                let _ = recorder.child.kill();
            }
            if recorder.has_woken(key.0, config.segment()) {
                interrupt(&recorder.child);
            }
            if !has_ended(&recorder.child) {
                return None;
            }
            // Waiting for a child adds its time to that of all that were waited for.
            let before = ticks_of_children();
            let status = recorder.child.wait();
            let recorder = watched.recorder.take()?;
            let cpu = TICK * (ticks_of_children() - before) as u32;
            let gap = recorder.since.saturating_duration_since(watched.free_since);
            watched.free_since = Instant::now();
            let log = fs::read_to_string(&recorder.log).unwrap_or_default();
            let result = match status {
                Ok(status) if status.success() => self.glass.info(&recorder.file).map_err(|error| format!("{error:#}")),
                Ok(_) if started(key.0) != Some(key.1) => Err(String::new()),
                Ok(_) => Err(last_line(&log)),
                Err(error) => Err(error.to_string()),
            };
            let _ = fs::remove_file(&recorder.log);
            match result {
                Ok(info) => {
                    (watched.patience, watched.is_recorded) = (PATIENCE_MIN, true);
                    set_problem(state, key.0, None);
                    let start_ms = info.start_unix_ns / 1_000_000;
                    let segment = Segment {
                        vm: safe_name(&watched.name),
                        start_ms,
                        duration_ms: info.duration_ns / 1_000_000,
                        pid: key.0,
                        samples: info.samples,
                        busy: info.busy(),
                        bytes: 0,
                    };
                    let name = watched.name.clone();
                    finished = Some(Finished { file: recorder.file, segment, info, name, gap, cpu });
                }
                Err(reason) => {
                    let _ = fs::remove_file(&recorder.file);
                    watched.next = Instant::now() + watched.patience;
                    let ticks = cpu_ticks(key.0);
                    watched.still = (ticks <= recorder.ticks + TICKS_STILL).then_some(ticks);
                    // A VM that ends while its recorder attaches is no failure.
                    if !reason.is_empty() {
                        state.lock().counts.failures += 1;
                        if watched.patience == PATIENCE_MIN {
                            state.remark(&format!("{} (process {}) is not recorded: {reason}", watched.name, key.0));
                        }
                        set_problem(state, key.0, Some(reason));
                    }
                    watched.patience = (watched.patience * 2).min(PATIENCE_MAX);
                }
            }
        }
        if let Some(Finished { info, cpu, .. }) = &finished {
            let host = self.host_of(key);
            let watched = self.vms.get_mut(&key)?;
            watched.adapt(info, *cpu, config, &host, state);
            watched.report_changes(key.0, info, state);
        }
        let watched = self.vms.get_mut(&key)?;
        if watched.still.is_some_and(|ticks| cpu_ticks(key.0) > ticks + TICKS_STILL) {
            (watched.still, watched.next, watched.patience) = (None, Instant::now(), PATIENCE_MIN);
        }
        if Instant::now() >= watched.next && started(key.0) == Some(key.1) {
            let (file, log) =
                (self.work.join(format!("{}.pftrace", self.number)), self.work.join(format!("{}.log", self.number)));
            self.number += 1;
            let time = match watched.is_recorded {
                true if watched.is_asleep => config.segment() * watched.stretch.max(budget::STRETCH_IDLE),
                true => config.segment() * watched.stretch,
                false => config.segment().min(FIRST + Duration::from_secs(u64::from(key.0 % FIRST_SPREAD))),
            };
            let wanted =
                Wanted { rate_hz: watched.rate_hz, time, names: config.process_names, spans: config.wants_spans() };
            match self.glass.record(key.0, &wanted, (&file, &log)) {
                Ok(child) => {
                    let (since, limit, ticks) = (Instant::now(), time + OVERTIME, cpu_ticks(key.0));
                    let checked = (watched.is_recorded && watched.is_asleep).then_some((since, ticks));
                    watched.recorder = Some(Recorder { child, file, log, since, limit, ticks, checked });
                    watched.still = None;
                }
                Err(error) => {
                    watched.next = Instant::now() + PATIENCE_MAX;
                    state.remark(&format!("cannot start a recorder: {error}"));
                }
            }
        }
        finished
    }
}

impl Recorder {
    /// Whether the VM, which slept, works, and the recording is as long as that of others. True once.
    fn has_woken(&mut self, pid: u32, segment: Duration) -> bool {
        let Some((checked, before)) = self.checked else { return false };
        if checked.elapsed() < WAKE_PERIOD {
            return false;
        }
        let ticks = cpu_ticks(pid);
        let ran = TICK * ticks.saturating_sub(before).min(u64::from(u32::MAX)) as u32;
        let has_woken = self.since.elapsed() >= segment && ran * AWAKE_PART > checked.elapsed();
        self.checked = (!has_woken).then_some((Instant::now(), ticks));
        has_woken
    }
}

impl Watched {
    /// One that was found now.
    fn new(name: String, rate_hz: u32, now: Instant) -> Watched {
        Watched {
            name,
            rate_hz,
            stretch: 1,
            rate_max_hz: rate_hz,
            price: None,
            is_asleep: false,
            recorder: None,
            free_since: now,
            next: now,
            patience: PATIENCE_MIN,
            still: None,
            was_paused: false,
            is_recorded: false,
        }
    }

    /// Remarks on what happened to the VM in a recording: a pause only when it starts, and when it is over.
    fn report_changes(&mut self, pid: u32, info: &Info, state: &State) {
        let remark = |text: &str| state.remark(&format!("{} (process {pid}): {text}", self.name));
        let starts_with = |start: &'static str| info.warnings.iter().find(move |warning| warning.starts_with(start));
        if let Some(warning) = starts_with(STARTED_AGAIN) {
            remark(warning);
        }
        match (self.was_paused, starts_with(PAUSED)) {
            (false, Some(warning)) => remark(warning),
            (true, None) => remark("the VM runs again after a pause"),
            _ => {}
        }
        self.was_paused = starts_with(PAUSED).is_some();
    }

    /// How it is recorded from now on: where all recorders together would cost too much, less often, and in longer recordings; on a host that has too
    /// much to do, less often.
    fn adapt(&mut self, info: &Info, cpu: Duration, config: &Config, host: &Host, state: &State) {
        let seconds = Duration::from_nanos(info.duration_ns).as_secs_f64();
        self.is_asleep = info.busy() * ASLEEP_PART <= info.cost.samples_expected;
        if info.duration_ns >= PRICED_MIN.as_nanos() as u64 {
            let sampling = Duration::from_nanos(info.cost.sampling_cpu_ns).min(cpu);
            let fixed_s = (cpu - sampling).as_secs_f64();
            self.price = Some(Price { fixed_s, sampling_s: sampling.as_secs_f64() / seconds, rate_hz: self.rate_hz });
        }
        let pressure_max = f64::from(config.pressure_percent_max);
        let is_pressed = host.pressure > pressure_max;
        if is_pressed {
            self.rate_max_hz = (self.rate_hz / 2).max(1);
        } else if host.pressure < pressure_max * RELIEF {
            self.rate_max_hz = (self.rate_max_hz * 2).min(config.rate_hz);
        }
        let percent = config.cpu_percent_max * host.cpus as f64;
        let limits = Limits { percent, rate_hz: config.rate_hz, seconds: config.segment().as_secs_f64() };
        let prices: Vec<Price> = host.others.iter().copied().chain(self.price).collect();
        let plan = match &self.price {
            Some(price) => budget::plan(price, &prices, host.vms, &limits),
            None => Plan { rate_hz: config.rate_hz, stretch: self.stretch },
        };
        let (rate_hz, stretch) = (plan.rate_hz.min(self.rate_max_hz), plan.stretch);
        let is_full = rate_hz == config.rate_hz && rate_hz > self.rate_hz;
        let is_other = rate_hz.abs_diff(self.rate_hz) * RATE_PART > self.rate_hz.min(rate_hz);
        if !is_full && !is_other && stretch == self.stretch {
            return;
        }
        let (hz_before, seconds_before) = (self.rate_hz, (config.segment() * self.stretch).as_secs());
        (self.rate_hz, self.stretch) = (rate_hz, stretch);
        let reason = match is_pressed && rate_hz < plan.rate_hz.min(hz_before) {
            true => format!(
                "tasks of this host waited for a CPU {:.0} % of the time, {pressure_max} are permitted",
                host.pressure
            ),
            false => format!(
                "all recorders as configured would take {:.1} % of a CPU, {percent} are permitted",
                budget::wanted(&prices, &limits)
            ),
        };
        let seconds = (config.segment() * stretch).as_secs();
        state.remark(&format!(
            "{} is sampled at {rate_hz} Hz in recordings of {seconds} s, instead of {hz_before} Hz and {seconds_before} s: {reason}",
            self.name
        ));
    }
}

/// In how many percent of the last minute some task of this host waited for a CPU (Linux' pressure stall information); 0 where the kernel has
/// none.
fn pressure_percent() -> f64 {
    fs::read_to_string("/proc/pressure/cpu").ok().as_deref().and_then(pressure_of).unwrap_or(0.0)
}

fn pressure_of(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg60="))?.parse().ok()
}

/// The CPU time that a process has used, in ticks of `/proc/PID/stat` (proc(5), fields 14 and 15); 0 if it has ended.
fn cpu_ticks(pid: u32) -> u64 {
    ticks_from(&fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default(), 14)
}

/// The CPU time of all processes of ours that have ended, and of theirs, in ticks (fields 16 and 17).
fn ticks_of_children() -> u64 {
    ticks_from(&fs::read_to_string("/proc/self/stat").unwrap_or_default(), 16)
}

/// The sum of a field and the next one, counted from 1; the third is the first behind the name.
fn ticks_from(stat: &str, field: usize) -> u64 {
    let words = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    words.skip(field - 3).take(2).filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn set_problem(state: &State, pid: u32, problem: Option<String>) {
    if let Some(vm) = state.lock().vms.get_mut(&pid) {
        vm.problem = problem;
    }
}

/// Whether a child is one that can be waited for without waiting.
fn has_ended(child: &Child) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // Where there is no such child, waiting for it fails at once.
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

/// Requests a recorder to finish.
fn interrupt(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glass::{Cost, Pauses, Traced};
    use std::cell::Cell;

    fn watched() -> Watched {
        Watched::new("web".to_owned(), 19, Instant::now())
    }

    fn info(seconds: u64) -> Info {
        Info {
            duration_ns: seconds * 1_000_000_000,
            start_unix_ns: 0,
            samples: 0,
            cost: Cost { samples_expected: 0, samples_lost: 0, sampling_cpu_ns: 0, pause: Pauses { sum_ns: 0 } },
            tracks: Vec::new(),
            trace: Traced { spans: 0 },
            warnings: Vec::new(),
        }
    }

    #[test]
    fn recorders_that_cost_too_much_and_a_busy_host_are_sampled_less_and_it_is_said() {
        let (config, state) = (Config::default(), State::default());
        let (mut watched, stretches) = (watched(), Cell::new(0));
        // Of two CPUs, 3 % of one of them. All of the price is for sampling at 19 Hz, whatever the rate.
        let other = Price { fixed_s: 0.0, sampling_s: 0.005, rate_hz: 19 };
        let mut after = |percent: u64, others: usize, pressure| {
            let host = Host { cpus: 2, vms: others + 1, others: vec![other; others], pressure };
            let mut info = info(60);
            let rate = (f64::from(watched.rate_hz) / 19.0).powf(0.8);
            info.cost.sampling_cpu_ns = (60.0 * rate * percent as f64 * 1e7) as u64;
            watched.adapt(&info, Duration::from_nanos(info.cost.sampling_cpu_ns), &config, &host, &state);
            let said = std::mem::take(&mut state.lock().remarks).pop().map(|(_, text)| text);
            stretches.set(watched.stretch);
            (watched.rate_hz, said.unwrap_or_default())
        };
        assert_eq!(after(2, 0, 0.0), (19, String::new()));
        assert_eq!(after(1, 2, 0.0), (19, String::new()));
        let (rate_hz, said) = after(2, 3, 0.0);
        assert!((5..15).contains(&rate_hz) && said.contains("would take 3.5 % of a CPU, 3 are permitted"), "{said}");
        assert!(said.contains(&format!("at {rate_hz} Hz in recordings of 60 s, instead of 19 Hz and 60 s")), "{said}");
        assert_eq!(after(2, 3, 0.0), (rate_hz, String::new()), "it is as it was planned");
        let (lower_hz, said) = after(2, 3, 91.0);
        assert!(
            lower_hz == rate_hz / 2 && said.contains("waited for a CPU 91 % of the time, 90 are permitted"),
            "{said}"
        );
        assert_eq!(after(2, 3, 70.0), (lower_hz, String::new()), "the host has not calmed down");
        assert_eq!([0; 4].map(|_| after(1, 0, 10.0).0).last(), Some(&19));
        assert_eq!(after(900, 3, 0.0).0, 1);
        assert_eq!(stretches.get(), 1);
    }

    #[test]
    fn attaching_that_costs_too_much_makes_recordings_longer() {
        let (config, state) = (Config::default(), State::default());
        let mut watched = watched();
        let host = Host { cpus: 2, vms: 1, others: Vec::new(), pressure: 0.0 };
        watched.adapt(&info(60), Duration::from_secs(6), &config, &host, &state);
        assert_eq!((watched.rate_hz, watched.stretch), (1, 4));
        let said = state.lock().remarks.pop().map(|(_, text)| text).unwrap_or_default();
        assert!(said.contains("at 1 Hz in recordings of 240 s, instead of 19 Hz and 60 s"), "{said}");
        // One that has ended at once shows nothing.
        watched.adapt(&info(0), Duration::from_secs(1), &config, &host, &state);
        assert_eq!((watched.rate_hz, watched.stretch), (1, 4));
        watched.adapt(&info(240), Duration::from_millis(100), &config, &host, &state);
        assert_eq!((watched.rate_hz, watched.stretch), (19, 1));
    }

    /// Computes until this process has used more ticks than one that is still. Returns how many it had before.
    fn compute(pid: u32) -> u64 {
        let (begun, before) = (Instant::now(), cpu_ticks(pid));
        while cpu_ticks(pid) <= before + TICKS_STILL {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        before
    }

    #[test]
    fn a_recording_of_a_vm_that_slept_ends_when_it_works() {
        let pid = std::process::id();
        let child = std::process::Command::new("true").spawn().unwrap();
        let begun = Instant::now();
        let ago = |time: Duration| begun.checked_sub(time).unwrap();
        let mut recorder = Recorder {
            child,
            file: PathBuf::new(),
            log: PathBuf::new(),
            since: ago(Duration::from_secs(70)),
            limit: OVERTIME,
            ticks: 0,
            checked: None,
        };
        let segment = Duration::from_secs(60);
        assert!(!recorder.has_woken(pid, segment), "it is as long as it is to be");
        let ran = u64::MAX;
        recorder.checked = Some((ago(WAKE_PERIOD), ran));
        assert!(!recorder.has_woken(pid, segment), "it did nothing");
        let before = compute(pid);
        recorder.checked = Some((ago(WAKE_PERIOD), before));
        assert!(!recorder.has_woken(pid, segment), "it did little");
        recorder.checked = Some((ago(WAKE_PERIOD / 300), before));
        assert!(!recorder.has_woken(pid, segment), "it was looked at just now");
        recorder.checked = Some((ago(WAKE_PERIOD), 0));
        assert!(!recorder.has_woken(pid, segment * 2), "its recording is short as yet");
        recorder.child.wait().unwrap();
    }

    #[test]
    fn a_pause_is_reported_when_it_starts_and_when_it_is_over() {
        let state = State::default();
        let mut watched = watched();
        let mut after = |warnings: &[&str]| {
            let warnings = warnings.iter().map(|text| (*text).to_owned()).collect();
            watched.report_changes(7, &Info { warnings, ..info(60) }, &state);
            let remarks = std::mem::take(&mut state.lock().remarks);
            remarks.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        let paused = "the VM was paused by its owner at 9 samples of each vCPU";
        let started = "the guest started again while it was recorded, with Linux 6.1 since";
        assert_eq!(after(&["this host is overloaded"]), [""; 0]);
        assert_eq!(after(&[paused]), [format!("web (process 7): {paused}")]);
        assert_eq!(after(&[paused]), [""; 0]);
        assert_eq!(after(&[]), ["web (process 7): the VM runs again after a pause"]);
        for _ in 0..2 {
            assert_eq!(after(&[started]), [format!("web (process 7): {started}")]);
        }
    }

    #[test]
    fn pressure_is_that_of_the_last_minute() {
        let text = "some avg10=9.00 avg60=12.34 avg300=5.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((pressure_of(text), pressure_of("")), (Some(12.34), None));
        assert!((0.0..=100.0).contains(&pressure_percent()));
    }

    #[test]
    fn fields_of_a_process_are_counted_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 1 2 3 4 50 60 700 800 20 0";
        assert_eq!((ticks_from(stat, 14), ticks_from(stat, 16), ticks_from("7 (a", 14)), (110, 1500, 0));
    }

    #[test]
    fn a_child_that_has_ended_can_be_waited_for_later() {
        let begun = Instant::now();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(!has_ended(&child));
        drop(child.stdin.take());
        while !has_ended(&child) {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        assert!(child.wait().unwrap().success());
        assert!(has_ended(&child), "there is none any more");
    }

    #[test]
    fn a_process_that_computes_uses_ticks() {
        let pid = std::process::id();
        let before = compute(pid);
        assert!(cpu_ticks(pid) > before + TICKS_STILL);
    }
}
