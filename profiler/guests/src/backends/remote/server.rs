//! The process that holds a VM.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use glass_profiler_core::event::Event;
use glass_profiler_core::model::Losses;

use super::messages::{LENGTH_BYTES, Report, Request, event_bytes, join};
use super::{Subject, system};
use crate::backends::Backend;
use crate::backends::access::VmAccess;
use crate::backends::gdbstub::QemuVm;
use crate::backends::kvm::KvmVm;
use crate::backends::paced::Paced;
use crate::backends::xen::XenDomain;
use crate::bytes::MESSAGE_BYTES_MAX;
use crate::error::GuestError;
use crate::find::domains;
use crate::find::{self, Found};
use crate::sys::{AWAKE_PERIOD, Packets, Received, cpu_time_ns, is_quiet, leave_session, stay_awake};
use crate::systems::linux::Replan;
use crate::{Counts, Flow, Guest, Source};

/// How long is waited for a request before the VM's signals are looked after.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// How long samples are collected before they are sent and requests are looked for: some samples of each vCPU, within these bounds. Each time wakes
/// this process and the reader.
const ROUND_MIN: Duration = Duration::from_millis(20);
const ROUND_MAX: Duration = Duration::from_secs(1);
const SAMPLES_OF_ROUND: u32 = 4;
/// The same while all vCPUs sleep: a request may wait for that long.
const QUIET_ROUND: Duration = Duration::from_secs(1);
/// How often the reader gets the counts while there are no samples: each time wakes it. While all vCPUs sleep it gets their samples as rarely.
const COUNTS_PERIOD: Duration = Duration::from_secs(1);
const QUIET_COUNTS_PERIOD: Duration = Duration::from_secs(5);
/// The longest time between two moves of the timers that keep this process awake: it holds a VM that is sampled rarely for a small part of that.
const AWAKE_PERIOD_MAX: Duration = Duration::from_millis(50);
/// Small messages share packets up to this size.
const PACKET_BYTES: usize = 16 << 10;
/// What may wait for room in the socket, in bytes.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// What a holder is started for. It comes from the reader's command line, before that has read anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The VM.
    pub subject: Subject,
    /// Samples per second and vCPU.
    pub rate_hz: u32,
    /// By KVM, also sample what the VMM does for a vCPU.
    pub with_vmm: bool,
    /// The vCPUs to sample, all if empty.
    pub vcpus: Vec<u32>,
}

impl Task {
    /// As words of a command line.
    pub fn to_arguments(&self) -> Vec<String> {
        let (kind, number) = match self.subject {
            Subject::Vm { pid, backend: Backend::Kvm } if self.with_vmm => ("kvm-and-vmm", pid),
            Subject::Vm { pid, backend: Backend::Kvm } => ("kvm", pid),
            Subject::Vm { pid, backend: Backend::Gdbstub | Backend::Monitor } => ("gdbstub", pid),
            Subject::Domain { id, force: false } => ("xen", id),
            Subject::Domain { id, force: true } => ("xen-of-any-version", id),
        };
        let numbers = [number, self.rate_hz].into_iter().chain(self.vcpus.iter().copied());
        [kind.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())).collect()
    }

    /// The opposite; `None` if the words are others.
    pub fn of_arguments(words: &[String]) -> Option<Task> {
        let (kind, numbers) = words.split_first()?;
        let numbers: Vec<u32> = numbers.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let (number, rate_hz, vcpus) = match numbers[..] {
            [number, rate_hz, ref vcpus @ ..] => (number, rate_hz, vcpus.to_vec()),
            _ => return None,
        };
        let subject = match kind.as_str() {
            "kvm" | "kvm-and-vmm" => Subject::Vm { pid: number, backend: Backend::Kvm },
            "gdbstub" => Subject::Vm { pid: number, backend: Backend::Gdbstub },
            "xen" => Subject::Domain { id: number, force: false },
            "xen-of-any-version" => Subject::Domain { id: number, force: true },
            _ => return None,
        };
        Some(Task { subject, rate_hz, with_vmm: kind == "kvm-and-vmm", vcpus })
    }
}

/// Holds a VM for the process at the other end of `socket`, until that wants no more or is gone. For a process of its own, whose
/// standard input the socket is: it leaves the terminal's session, ignores signals, and the kernel releases what it holds when it ends.
/// Returns whether the VM was sampled, or else the reader did not want it; `None` if it could not be attached to: the reader has given up no rights
/// then, and may try another way.
///
/// # Errors
/// `socket` is none that a reader has made, or the process cannot be kept awake. What is wrong with the VM is reported to the reader.
pub fn serve(socket: OwnedFd, task: &Task) -> io::Result<Option<bool>> {
    if !Packets::is_one(&socket) {
        return Err(io::Error::other("standard input is no socket of glass, which starts this by itself"));
    }
    leave_session(c"glass-holder");
    stay_awake(awake_period(task.rate_hz))?;
    let link = Link::new(Packets::of(socket));
    Ok(match task.subject {
        Subject::Vm { pid, backend } => match find_vm(pid) {
            Ok(vm) if backend == Backend::Kvm => {
                let seized = KvmVm::seize(vm.pid, &task.vcpus).map(KvmVm::with_parent_elsewhere);
                let seized = seized.map(|seized| if task.with_vmm { seized.with_the_vmm(vm.pid) } else { seized });
                link.hold(seized, task.rate_hz)
            }
            Ok(vm) => link.hold(QemuVm::find(&vm, &task.vcpus), task.rate_hz),
            Err(error) => link.refuse(&error),
        },
        Subject::Domain { id, force } => {
            let domain = domains::find(&id.to_string(), force);
            let attached = domain.and_then(|domain| XenDomain::open(&domain, &task.vcpus, force));
            link.hold(attached, task.rate_hz)
        }
    })
}

fn find_vm(pid: u32) -> Result<find::Vm, GuestError> {
    match find::by_pid(pid)? {
        Found::Vm(vm) => Ok(vm),
        Found::Process => Err(GuestError::NoVcpu(pid)),
    }
}

/// What the reader wants.
enum FromReader {
    Request(Request),
    /// Nothing yet.
    Nothing,
    /// It is gone, or has sent what it never sends.
    Gone,
}

/// The way to the reader. Reports wait here while the socket has no room.
pub(super) struct Link {
    packets: Packets,
    /// Packets.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// Samples that found no room.
    dropped: u64,
    is_gone: bool,
    room: Vec<u8>,
}

impl Link {
    pub(super) fn new(packets: Packets) -> Link {
        let room = vec![0; MESSAGE_BYTES_MAX];
        Link { packets, waiting: VecDeque::new(), waiting_bytes: 0, dropped: 0, is_gone: false, room }
    }

    fn next(&mut self) -> FromReader {
        match self.packets.receive(&mut self.room) {
            _ if self.is_gone => FromReader::Gone,
            Ok(Received::Nothing) => FromReader::Nothing,
            Ok(Received::Message(bytes)) => {
                Request::parse(&self.room[..bytes]).map_or(FromReader::Gone, FromReader::Request)
            }
            Ok(Received::End) | Err(_) => FromReader::Gone,
        }
    }

    /// Sends what waits, as far as there is room.
    fn flush(&mut self) {
        while let Some(message) = self.waiting.front() {
            match self.packets.send(message) {
                Ok(true) => {
                    self.waiting_bytes -= message.len();
                    self.waiting.pop_front();
                }
                Ok(false) => return,
                Err(_) => {
                    self.is_gone = true;
                    return;
                }
            }
        }
    }

    fn queue(&mut self, message: &[u8]) {
        let bytes = LENGTH_BYTES + message.len();
        self.waiting_bytes += bytes;
        match self.waiting.back_mut().filter(|packet| packet.len() + bytes <= PACKET_BYTES) {
            Some(packet) => join(packet, message),
            None => {
                let mut packet = Vec::with_capacity(bytes);
                join(&mut packet, message);
                self.waiting.push_back(packet);
            }
        }
    }

    fn report(&mut self, report: &Report) {
        self.queue(&report.to_bytes());
        self.flush();
    }

    /// A sample that finds no room is dropped. What is no sample is rare, and needed.
    fn event(&mut self, event: &Event) {
        let Some(message) = event_bytes(event) else { return };
        let is_sample = matches!(event, Event::Sample(_));
        if is_sample && (self.is_gone || self.waiting_bytes + message.len() > WAITING_BYTES_MAX) {
            self.dropped += 1;
            return;
        }
        self.queue(&message);
    }

    fn counts(&mut self, counts: Counts) {
        let queue_full = counts.losses.queue_full + self.dropped;
        let losses = Losses { queue_full, ..counts.losses };
        let delivered = counts.delivered - self.dropped;
        // Of those that wait only the last would matter, and they are not many: a sample follows the next.
        if self.waiting_bytes < WAITING_BYTES_MAX {
            let counts = Counts { delivered, losses, late: counts.late.min(delivered), helpers_cpu_ns: cpu_time_ns() };
            self.queue(&Report::Counts(counts).to_bytes());
        }
    }

    /// Sends all that waits. For when nothing is held: it may take as long as the reader is stopped.
    fn finish(mut self) {
        self.flush();
        while !self.waiting.is_empty() && !self.is_gone {
            self.packets.wait(true, Duration::from_secs(1));
            // Once the reader is gone there is always room, and then an error.
            self.flush();
        }
    }

    fn refuse(mut self, error: &GuestError) -> Option<bool> {
        self.report(&Report::failed(error));
        self.finish();
        None
    }

    /// Serves a VM that was attached to; whether it was sampled, as [`serve`] returns it.
    pub(super) fn hold<V: VmAccess + Guest>(mut self, attached: Result<V, GuestError>, rate_hz: u32) -> Option<bool> {
        let mut vm = match attached {
            Ok(vm) => vm,
            Err(error) => return self.refuse(&error),
        };
        self.report(&attached_to(&vm, None));
        if !self.set_up(&mut vm) {
            vm.give_up();
            drop(vm);
            self.report(&Report::Detached);
            self.finish();
            return Some(false);
        }
        let mut source = Paced::new(vm, rate_hz);
        let ended = self.sample(&mut source, round(rate_hz));
        if let Err(error) = &ended {
            self.report(&Report::failed(error));
        }
        let detached = source.detach(&mut |event| self.event(&event));
        self.counts(source.counts());
        if let (Ok(()), Err(error)) = (&ended, &detached) {
            self.report(&Report::failed(error));
        }
        // Whatever is still traced is released now.
        drop(source);
        self.report(&Report::Detached);
        self.finish();
        Some(true)
    }

    /// Answers requests until sampling starts; false if it does not.
    fn set_up(&mut self, vm: &mut impl VmAccess) -> bool {
        loop {
            self.packets.wait(!self.waiting.is_empty(), LOOK_AFTER);
            self.flush();
            // Signals of the VMM's threads are passed on.
            if vm.wait(Duration::ZERO).is_err() {
                return false;
            }
            let request = match self.next() {
                FromReader::Nothing => continue,
                FromReader::Gone | FromReader::Request(Request::Detach) => return false,
                FromReader::Request(Request::Start) => return true,
                FromReader::Request(request) => request,
            };
            let report = answer(vm, request).unwrap_or_else(|error| Report::failed(&error));
            self.report(&report);
        }
    }

    /// Samples until the reader wants no more.
    fn sample(&mut self, source: &mut (impl Source + Replan), round: Duration) -> Result<(), GuestError> {
        source.announce(&mut |event| self.event(&event))?;
        let mut counted = None;
        loop {
            let (is_quiet, has_samples) = (is_quiet(), !self.waiting.is_empty());
            let period = if is_quiet { QUIET_COUNTS_PERIOD } else { COUNTS_PERIOD };
            if has_samples && !is_quiet || counted.is_none_or(|counted: Instant| counted.elapsed() >= period) {
                counted = Some(Instant::now());
                self.counts(source.counts());
                self.flush();
            }
            match self.next() {
                FromReader::Nothing => {}
                // The guest has started again.
                FromReader::Request(Request::Plan(plan)) => {
                    source.replan(plan)?;
                    self.report(&Report::Done);
                }
                // Nothing else is requested any more.
                FromReader::Gone | FromReader::Request(_) => return Ok(()),
            }
            if source.collect(if is_quiet { QUIET_ROUND } else { round }, &mut |event| self.event(&event))?
                == Flow::Ended
            {
                self.report(&Report::GuestEnded);
                return Ok(());
            }
        }
    }
}

/// How long samples of this rate are collected before they are sent.
fn round(rate_hz: u32) -> Duration {
    (Duration::from_secs(1) * SAMPLES_OF_ROUND / rate_hz.max(1)).clamp(ROUND_MIN, ROUND_MAX)
}

/// How often the timers that keep this process awake are moved on: each time wakes it, as each sample does.
fn awake_period(rate_hz: u32) -> Duration {
    (Duration::from_secs(1) / rate_hz.max(1)).clamp(AWAKE_PERIOD, AWAKE_PERIOD_MAX)
}

fn attached_to(vm: &impl VmAccess, started_ns: Option<u64>) -> Report {
    Report::Attached { vcpus: vm.vcpus(), threads: vm.threads(), memories: vm.memories(), started_ns }
}

fn answer(vm: &mut impl VmAccess, request: Request) -> Result<Report, GuestError> {
    let is_there = |vcpu: usize| vcpu < vm.vcpus().len();
    match request {
        Request::Begin => vm.begin().map(|started_ns| attached_to(vm, started_ns)),
        Request::State { vcpu } if is_there(vcpu) => Ok(Report::State(vm.state(vcpu)?)),
        Request::Read { view, address, bytes } if is_there(view.vcpu) => {
            let mut found = vec![0; bytes];
            let count = vm.read(view, address, &mut found)?;
            found.truncate(count);
            Ok(Report::Bytes(found))
        }
        Request::ChooseMemory { memory } => vm.choose_memory(memory).map(|()| Report::Done),
        Request::Plan(plan) => vm.set_plan(plan).map(|()| Report::Done),
        _ => Err(system("serve the reader of a VM", io::Error::other("it sent a request out of its order"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_low_rate_are_long() {
        assert_eq!([0, 1, 19, 79, 199, 997].map(|rate| round(rate).as_millis()), [1000, 1000, 210, 50, 20, 20]);
        assert_eq!([0, 19, 50, 997].map(|rate| awake_period(rate).as_millis()), [50, 50, 20, 10]);
    }

    #[test]
    fn a_task_survives_the_command_line() {
        let of = |subject| Task { subject, rate_hz: 997, with_vmm: false, vcpus: vec![0, 3] };
        let tasks = [
            of(Subject::Vm { pid: 7, backend: Backend::Kvm }),
            Task { with_vmm: true, ..of(Subject::Vm { pid: 7, backend: Backend::Kvm }) },
            of(Subject::Vm { pid: 7, backend: Backend::Gdbstub }),
            of(Subject::Domain { id: 3, force: true }),
            Task { vcpus: Vec::new(), ..of(Subject::Domain { id: 3, force: false }) },
        ];
        for task in tasks {
            assert_eq!(Task::of_arguments(&task.to_arguments()), Some(task));
        }
        for words in [&["kvm"][..], &["kvm", "1"], &["kvm", "1", "x"], &["other", "1", "2"], &[]] {
            assert_eq!(Task::of_arguments(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()), None);
        }
    }
}
