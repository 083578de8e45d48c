//! A Linux process, sampled by the kernel: `perf_event_open` with the software CPU clock.
//!
//! The process is not stopped for it. A thread that waits uses no CPU time, so it is not sampled;
//! time in system calls is attributed to the caller, with the kernel's own functions where it shows them and a frame
//! `[kernel]` where it only lets us see its time.

mod kernel;
mod processes;
mod records;
mod twice;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use glass_profiler_core::event::{Event, FileIdentity, Mapping, Placement};
use glass_profiler_core::jit::is_anonymous;
use glass_profiler_core::model::Losses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::GuestError;
use crate::files::VDSO;
use crate::proc::{self, Descendant, descendants, has_ended, living, parse_maps, threads};
use crate::sys::{Held, PerfEvent, PerfSettings, RedZone, monotonic_ns, raise_descriptor_limit};
use crate::{Counts, Flow, Source};
use kernel::{Kernel, Texts};
use processes::Processes;
use records::{Record, RedZoneRecord, Sorter};

/// Buffer for each CPU, in bytes: the first that the kernel grants. The last is what it grants to
/// every user by default (`perf_event_mlock_kb`).
const RING_BYTES: [usize; 3] = [8 << 20, 2 << 20, 512 << 10];
/// All buffers together, in bytes, on a machine with many CPUs; but none is smaller than the least.
const RINGS_BYTES_MAX: usize = 64 << 20;
/// How often the buffers are emptied.
const DRAIN_PERIOD: Duration = Duration::from_millis(10);
/// Rounds of looking for threads that were started while we opened the others.
const THREAD_ROUNDS_MAX: usize = 8;
/// The largest stack copy that the kernel's record format allows, in bytes.
pub const STACK_BYTES_MAX: u32 = 65_528 / 8 * 8 - 1024;

/// How a process is sampled.
#[derive(Debug, Clone, Copy)]
pub struct ProcessSettings {
    /// Samples per second of CPU time.
    pub rate_hz: u32,
    /// How much of the stack is copied; rounded up to 8.
    pub stack_bytes: u32,
}

/// A process or several, their threads and their children.
pub struct Process {
    /// The first one.
    pid: u32,
    /// All that were named.
    pids: Vec<u32>,
    /// One of each CPU has the buffer, the others of that CPU send their records there.
    events: Vec<PerfEvent>,
    child: Option<Child>,
    /// When the command was started.
    started_ns: Option<u64>,
    sorter: Sorter,
    period_ns: u64,
    exclude_kernel: bool,
    detached: bool,
    ended_after_ns: Option<u64>,
    /// What was there when the events were open.
    seen: Seen,
    /// Each can be read once its process has ended, also by a process without a view of it.
    ends: Vec<OwnedFd>,
    /// Copies what is below stack pointers, where that is permitted.
    red_zone: Option<RedZone>,
    /// Indices of events of threads that are sampled by another one, too: these do not count.
    left_out: HashSet<usize>,
    /// Warnings that come with the first events.
    notes: Vec<String>,
}

/// Texts of `/proc` that take rights to be read.
#[derive(Debug)]
struct Seen {
    kernel: Result<Texts, String>,
    processes: Vec<SeenProcess>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { kernel: Err(String::new()), processes: Vec::new() }
    }
}

/// A process that was there before.
#[derive(Debug)]
struct SeenProcess {
    of: Descendant,
    /// The threads, with their names.
    threads: Vec<(u32, String)>,
    maps: String,
}

impl SeenProcess {
    fn read(of: Descendant) -> Result<SeenProcess, GuestError> {
        let pid = of.pid;
        let name = |tid: u32| {
            let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
            (tid, String::from_utf8_lossy(&name).trim_end().to_owned())
        };
        let threads = threads(pid)?.into_iter().map(name).collect();
        let path = format!("/proc/{}/maps", living(pid));
        let maps = fs::read(&path).map_err(|error| match is_permission(&error) {
            true => GuestError::NotPermitted {
                action: format!("read which programs process {pid} has mapped"),
                remedy: "it belongs to another user or is protected: run glass as root of the machine, or give it CAP_SYS_PTRACE"
                    .to_owned(),
            },
            false => GuestError::NoProcess(pid),
        })?;
        Ok(SeenProcess { of, threads, maps: String::from_utf8_lossy(&maps).into_owned() })
    }

    fn announce(&self, processes: &mut Processes, sink: &mut dyn FnMut(Event)) {
        let space = processes.found(self.of.pid, self.of.parent, sink);
        for (tid, name) in &self.threads {
            processes.name(self.of.pid, *tid, name.clone(), sink);
        }
        for line in parse_maps(&self.maps).into_iter().filter(|line| line.executable && has_code(&line.path)) {
            let mapping = Mapping {
                start: line.start,
                end: line.end,
                path: line.path,
                placement: Placement::FileOffset(line.offset),
                file: Some(FileIdentity { device: line.device, inode: line.inode }),
            };
            sink(Event::Map { space, mapping });
        }
    }
}

/// Reads texts and records as the kernel makes them, for tests with synthetic ones: `/proc/PID/maps`, `/proc/kallsyms`, the list
/// of CPUs, and the records of a buffer, one after the other.
#[doc(hidden)]
pub fn read_kernels_words(text: &str, records: &[u8], sink: &mut dyn FnMut(Event)) -> usize {
    let mut sorter = Sorter::default();
    if let Ok(kernel) = Kernel::parse(text.as_bytes(), None) {
        sorter.processes.place_kernel(7, kernel, sink);
    }
    let mut rest = records;
    while let Some(size) = rest.get(6..8).map(|size| usize::from(u16::from_le_bytes([size[0], size[1]])))
        && let Some((record, after)) = rest.split_at_checked(size.max(8))
    {
        if let Some(record) = Record::parse(record) {
            sorter.push(record);
        }
        rest = after;
    }
    sorter.deliver(false, sink);
    sorter.deliver(true, sink);
    parse_maps(text).len() + parse_cpus(text).len()
}

/// Whether a mapping is of a file, of the kernel's shared object, or of what a process generates, so that its code has
/// names.
fn has_code(path: &str) -> bool {
    path.starts_with('/') || path == VDSO || is_anonymous(path)
}

fn system(action: &str) -> impl FnOnce(io::Error) -> GuestError + '_ {
    move |error| GuestError::System { action: action.to_owned(), error }
}

fn is_permission(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Sizes of a CPU's buffer that are tried, largest first, so that all together stay bounded.
fn ring_sizes(cpus: usize) -> impl Iterator<Item = usize> {
    let least = RING_BYTES[RING_BYTES.len() - 1];
    RING_BYTES.into_iter().filter(move |bytes| *bytes <= least || bytes * cpus <= RINGS_BYTES_MAX)
}

fn not_permitted(pid: u32) -> GuestError {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let remedy = match paranoid.trim().parse::<i32>() {
        Ok(level) if level > 2 => format!(
            "kernel.perf_event_paranoid is {level}; permit it for your own processes with `sysctl kernel.perf_event_paranoid=2`, or run glass as root or with CAP_PERFMON"
        ),
        _ if proc::owner(pid).is_some_and(proc::is_us) => "it is your own, so a security filter forbids perf_event_open: allow it in the container's seccomp profile, or run glass outside of the container".to_owned(),
        _ => "it belongs to another user or is protected: run glass as root, or give it CAP_PERFMON and CAP_SYS_PTRACE (setcap cap_perfmon,cap_sys_ptrace+ep on its file)".to_owned(),
    };
    GuestError::NotPermitted { action: format!("sample process {pid}"), remedy }
}

fn too_many(pid: u32, cpus: usize) -> GuestError {
    let threads = threads(pid).map_or(0, |threads| threads.len());
    GuestError::Unsupported(format!(
        "process {pid} has {threads} threads, which takes {} open files on {cpus} CPUs, and glass may not open so many: raise its limit (`ulimit -Hn`, as root `prlimit --nofile`)",
        threads * cpus
    ))
}

/// The CPUs that are online: numbers like `0-3,8`.
fn cpus() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".to_owned());
    parse_cpus(&list)
}

fn parse_cpus(list: &str) -> Vec<u32> {
    const CPUS_MAX: usize = 4096;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().take(CPUS_MAX).collect()
}

impl Process {
    /// Attaches to a running process, and to those that it has started, directly or not. What they start from now on is sampled, too.
    pub fn attach(pid: u32, settings: ProcessSettings) -> Result<Process, GuestError> {
        Process::attach_all(&[pid], settings)
    }

    /// The same for several processes, until the last of them ends. The first one is the main one of a recording.
    pub fn attach_all(pids: &[u32], settings: ProcessSettings) -> Result<Process, GuestError> {
        let pid = *pids.first().ok_or_else(|| GuestError::NotFound("no process is named".to_owned()))?;
        pids.iter().try_for_each(|pid| threads(*pid).map(|_| ()))?;
        raise_descriptor_limit();
        let mut process = Process { pids: pids.to_vec(), ..Process::new(pid, settings) };
        process.open_all(settings)?;
        if process.events.is_empty() {
            return Err(GuestError::NoProcess(pid));
        }
        for event in &process.events {
            event.enable().map_err(system("start sampling"))?;
        }
        process.look()?;
        Ok(process)
    }

    /// Samples all threads of the process and of its descendants.
    fn open_all(&mut self, settings: ProcessSettings) -> Result<(), GuestError> {
        let cpus = cpus();
        let mut seen = HashSet::new();
        let mut left_out = 0;
        for round in 0..THREAD_ROUNDS_MAX {
            let mut new = Vec::new();
            for of in descendants(&self.pids) {
                match threads(of.pid) {
                    Ok(threads) => new.extend(threads.into_iter().map(|tid| (of.pid, tid))),
                    Err(error) if self.pids.contains(&of.pid) && round == 0 => return Err(error),
                    Err(_) => {}
                }
            }
            new.retain(|(_, tid)| seen.insert(*tid));
            if new.is_empty() {
                break;
            }
            for (pid, tid) in new {
                let first = self.events.len();
                match self.open(pid, tid, &cpus, settings, false) {
                    Err(GuestError::NotPermitted { .. }) if !self.pids.contains(&pid) => left_out += 1,
                    result => result?,
                }
                let events = cpus.iter().copied().zip(first..self.events.len());
                for (cpu, index) in events {
                    let id = self.events[index].id().map_err(system("identify a perf event"))?;
                    self.sorter.twice.opened(id, tid, cpu, (round > 0).then_some(index));
                }
            }
        }
        if left_out > 0 {
            self.notes.push(format!(
                "{left_out} threads of processes that process {} has started are not sampled: they belong to other users (run glass as root, or with CAP_PERFMON and CAP_SYS_PTRACE)",
                self.pid
            ));
        }
        Ok(())
    }

    /// Starts a command and samples it from its first instruction on.
    pub fn spawn(command: Command, settings: ProcessSettings) -> Result<Process, GuestError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error| GuestError::Command { program: program.clone(), error };
        let held = Held::start(command).map_err(failed)?;
        let mut process = Process::new(held.pid(), settings);
        process.open(held.pid(), held.pid(), &cpus(), settings, true)?;
        process.started_ns = Some(monotonic_ns());
        process.child = Some(held.release().map_err(failed)?);
        process.look()?;
        Ok(process)
    }

    fn new(pid: u32, settings: ProcessSettings) -> Process {
        Process {
            pid,
            pids: vec![pid],
            events: Vec::new(),
            child: None,
            started_ns: None,
            sorter: Sorter::default(),
            period_ns: 1_000_000_000 / u64::from(settings.rate_hz.max(1)),
            exclude_kernel: false,
            detached: false,
            ended_after_ns: None,
            seen: Seen::default(),
            ends: Vec::new(),
            red_zone: None,
            left_out: HashSet::new(),
            notes: Vec::new(),
        }
    }

    /// Reads what is there already. Events are open by now, so nothing that comes after it is missed. From here on this process needs no
    /// rights, except to open files.
    fn look(&mut self) -> Result<(), GuestError> {
        self.seen.kernel = match self.exclude_kernel {
            true => Err("time in the kernel is not sampled: permit it with `sysctl kernel.perf_event_paranoid=1`, or run glass as root or with CAP_PERFMON".to_owned()),
            false => Texts::read(),
        };
        if self.child.is_some() {
            // Its records are complete, from exec on.
            return Ok(());
        }
        let pids = self.pids.iter().filter_map(|pid| i32::try_from(*pid).ok().and_then(Pid::from_raw));
        self.ends = pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect();
        for of in descendants(&self.pids) {
            match SeenProcess::read(of) {
                Ok(process) => self.seen.processes.push(process),
                Err(error) if self.pids.contains(&of.pid) => return Err(error),
                // It has ended meanwhile, or is not sampled.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// A warning that comes with the first events.
    pub fn warn(&mut self, warning: Option<String>) {
        self.notes.extend(warning);
    }

    /// Opens the events of a thread, one a CPU. A thread that has ended meanwhile is no error.
    fn open(
        &mut self,
        pid: u32,
        tid: u32,
        cpus: &[u32],
        settings: ProcessSettings,
        enable_on_exec: bool,
    ) -> Result<(), GuestError> {
        let first = self.events.is_empty();
        if first {
            // Without it some functions have no callers.
            self.red_zone = RedZone::open(cpus).ok();
        }
        for (index, cpu) in cpus.iter().enumerate() {
            let mut perf = PerfSettings {
                tid,
                cpu: *cpu,
                period_ns: self.period_ns,
                stack_bytes: settings.stack_bytes.div_ceil(8).saturating_mul(8).min(STACK_BYTES_MAX),
                exclude_kernel: self.exclude_kernel,
                enable_on_exec,
            };
            let mut opened = PerfEvent::open(&perf);
            if !self.exclude_kernel && opened.as_ref().is_err_and(is_permission) {
                self.exclude_kernel = true;
                perf.exclude_kernel = true;
                opened = PerfEvent::open(&perf);
            }
            let mut event = match opened {
                Ok(event) => event,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) if is_permission(&error) => return Err(not_permitted(pid)),
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => return Err(too_many(pid, cpus.len())),
                Err(error) => return Err(system("open a perf event")(error)),
            };
            if first {
                let grants = ring_sizes(cpus.len()).map(|bytes| event.make_ring(bytes));
                let mut last = Err(io::Error::other("no size was tried"));
                for grant in grants {
                    last = grant;
                    if last.is_ok() {
                        break;
                    }
                }
                last.map_err(system("map a perf buffer (see kernel.perf_event_mlock_kb)"))?;
            } else {
                event.share_ring(&self.events[index]).map_err(system("share a perf buffer"))?;
            }
            if let Some(red_zone) = &self.red_zone
                && red_zone.copies_for(&event).is_err()
            {
                self.red_zone = None;
            }
            self.events.push(event);
        }
        Ok(())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Empties the buffers, which the first events have.
    fn read_records(&mut self) {
        if let Some(red_zone) = &self.red_zone {
            red_zone.drain(|bytes| {
                if let Some(record) = RedZoneRecord::parse(bytes) {
                    self.sorter.push_red_zone(record);
                }
            });
        }
        for event in self.events.iter().take_while(|event| event.has_ring()) {
            event.drain(|bytes| {
                if let Some(record) = Record::parse(bytes) {
                    self.sorter.push(record);
                }
            });
        }
        for index in self.sorter.twice.found() {
            // The thread has inherited another.
            let _ = self.events[index].disable();
            self.left_out.insert(index);
        }
    }

    fn drain(&mut self, everything: bool, sink: &mut dyn FnMut(Event)) {
        self.read_records();
        self.sorter.deliver(everything, sink);
    }

    fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            // Without a view of all of them: an old kernel, or one of them ended before.
            None if self.ends.len() < self.pids.len() => self.pids.iter().all(|pid| has_ended(living(*pid))),
            None => self
                .ends
                .iter()
                .all(|end| poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)),
        }
    }
}

impl Source for Process {
    fn started_ns(&self) -> Option<u64> {
        self.started_ns
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.notes.drain(..).for_each(|text| sink(Event::Warning(text)));
        self.sorter.processes.space(self.pid, sink);
        let Seen { kernel, processes } = std::mem::take(&mut self.seen);
        match kernel.and_then(|texts| Kernel::of(&texts)) {
            Ok(kernel) => self.sorter.processes.place_kernel(self.pid, kernel, sink),
            Err(sentence) => sink(Event::Warning(sentence)),
        }
        processes.iter().for_each(|process| process.announce(&mut self.sorter.processes, sink));
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let until = Instant::now() + wait;
        loop {
            let ended = self.has_ended();
            self.drain(ended, sink);
            if ended {
                return Ok(Flow::Ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Flow::More);
            }
            std::thread::sleep(left.min(DRAIN_PERIOD));
        }
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok()?
    }

    /// Expected is the CPU time that the kernel counted, in periods.
    fn counts(&self) -> Counts {
        let counted_ns = self.ended_after_ns.unwrap_or_else(|| self.counted_ns());
        let (delivered, records) = (self.sorter.samples(), self.sorter.lost());
        // Without a view into the kernel, the time there is counted, but no samples are expected.
        let expected = if self.exclude_kernel { delivered + records } else { counted_ns / self.period_ns };
        let missing = expected.saturating_sub(delivered);
        // The kernel counts the records that its buffer had no room for, of whatever kind: those that are no missing samples are
        // changes of processes.
        let ring_full = missing.min(records);
        let rest = missing - ring_full;
        let (throttled, overdue) = if self.sorter.throttled() > 0 { (rest, 0) } else { (0, rest) };
        let losses = Losses { ring_full, throttled, overdue, unknown: records - ring_full, ..Losses::default() };
        Counts { delivered, losses, ..Counts::default() }
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        if !self.detached {
            self.detached = true;
            for event in &self.events {
                // A thread that has ended cannot be disabled; there is nothing to do then.
                let _ = event.disable();
            }
            self.ended_after_ns = Some(self.counted_ns());
            self.drain(true, sink);
            let throttled = self.sorter.throttled();
            let Losses { unknown, .. } = self.counts().losses;
            if unknown > 0 {
                sink(Event::Warning(format!(
                    "{unknown} records of the kernel were lost that were no samples: mappings, starts or names of processes, so names may be missing (a lower --rate leaves more room)"
                )));
            }
            if throttled > 0 {
                let text = format!(
                    "the kernel throttled sampling {throttled} times (kernel.perf_event_max_sample_rate, kernel.perf_cpu_time_max_percent)"
                );
                sink(Event::Warning(text));
            }
        }
        Ok(())
    }
}

impl Process {
    fn counted_ns(&self) -> u64 {
        let events = self.events.iter().enumerate().filter(|(index, _)| !self.left_out.contains(index));
        events.filter_map(|(_, event)| event.count().ok()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_with_and_without_a_path() {
        let text = "55d0-55e0 r-xp 00001000 fe:01 1234   /usr/bin/a b (deleted)\n\
                    7000-8000 rw-p 00000000 00:00 0 \nnonsense\n\
                    7ffd0000-7ffd2000 r-xp 00000000 00:00 0                          [vdso]\n";
        let lines = parse_maps(text);
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].start, lines[0].offset, lines[0].path.as_str()), (0x55d0, 0x1000, "/usr/bin/a b"));
        assert!(lines[0].executable && !lines[1].executable);
        assert_eq!(lines[1].path, "");
        assert_eq!(lines[2].path, "[vdso]");
    }

    #[test]
    fn buffers_are_bounded_on_large_machines() {
        assert_eq!(ring_sizes(2).collect::<Vec<_>>(), RING_BYTES);
        assert_eq!(ring_sizes(8).next(), Some(8 << 20));
        assert_eq!(ring_sizes(9).next(), Some(2 << 20));
        assert_eq!(ring_sizes(256).collect::<Vec<_>>(), [512 << 10]);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus(""), [0u32; 0]);
    }
}
