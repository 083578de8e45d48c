//! A VM and its host in one recording: what its VMM, and what runs beside that, does while the VM is sampled.
//!
//! | what | from |
//! |---|---|
//! | the guest, and the VMM's stack while a vCPU's thread is outside of `KVM_RUN` | one stop of that thread (`kvm`) |
//! | exits that KVM handles in the kernel | samples of the same thread by the kernel's CPU clock, merged by time |
//! | the other threads of the VMM, its parent if that is `glass run`, and what that has started (`glass tap`, `glass disk`) | samples by the CPU clock, as of any process |
//!
//! The kernel samples a vCPU's thread at other times than we stop it. So a sample of the guest gets the kernel's functions of the sample that is nearest to
//! it, if KVM handled an exit then, and the distance between the two: over many samples the shares are those of the kernel's samples, while the guest's
//! function below is the one that ran at about that time. The kernel's samples during our own stops are left out.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use glass_profiler_core::arch::Registers;
use glass_profiler_core::event::{Event, RawSample, Segment};
use glass_profiler_core::guest::{Guest, GuestId, Mode, Process as GuestProcess, ProcessId, SpaceId};
use glass_profiler_core::model::State;

use crate::backends::kvm::is_run;
use crate::backends::kvm::vmm::VMM_SPACE;
use crate::backends::process::{Process, ProcessSettings};
use crate::backends::remote::Launcher;
use crate::error::GuestError;
use crate::files::{OpenedFiles, Opener};
use crate::proc::parent;
use crate::{Counts, Flow, Source};

/// Samples per second of a vCPU, and of the CPU time of each thread of the host: one rate, so that their samples count for the same time. The kernel's
/// nearest sample of a vCPU is half a millisecond away on average.
pub(crate) const DEFAULT_RATE_HZ: u32 = 499;
/// How much of their stacks is copied.
const STACK_BYTES: u32 = 28 << 10;
/// How often the kernel's buffers are emptied.
const ROUND: Duration = Duration::from_millis(20);
/// A sample of the kernel's that is further away is not merged.
const APART_NS_MAX: u64 = 5_000_000;
/// What a stop for a sample costs a thread after it: to be resumed, and to enter the guest again. The kernel's samples in it are of us.
const AFTER_STOP_NS: u64 = 60_000;
/// Rounds after which the kernel's samples of a moment are certainly there.
const ROUNDS: usize = 2;
/// The numbers of guests, address spaces and tracks of the host are so much higher than in a recording of its processes alone, where they begin with 0.
const GUESTS: u32 = 1;
const SPACES: u32 = 2;
const TRACKS: u32 = 1 << 10;
/// The number of register rsi, which has the request of an `ioctl` (System V ABI for AMD64, figure 3.36).
const RSI: usize = 4;

/// What is sampled of the host, before the VM is attached to: it takes rights that this process may give up then.
pub(crate) struct Host {
    processes: Process,
    opener: Option<Opener>,
    vmm: u32,
}

impl Host {
    /// Opens what is needed to sample the processes around a VMM.
    pub(crate) fn open(vmm: u32, rate_hz: u32, launcher: Option<&Launcher>) -> Result<Host, GuestError> {
        let opener = launcher.filter(|launcher| launcher.before_parsing.is_some());
        let opener = opener.map(|launcher| Opener::start(&launcher.program, &launcher.arguments)).transpose()?;
        let settings = ProcessSettings { rate_hz, stack_bytes: STACK_BYTES };
        Ok(Host { processes: Process::attach(root(vmm), settings)?, opener, vmm })
    }

    /// With the VM, whose vCPUs these threads run: their numbers and thread IDs.
    pub(crate) fn join(
        self,
        vm: Box<dyn Source>,
        vcpus: impl Iterator<Item = (u32, u32)>,
        opened: OpenedFiles,
    ) -> (Hosted, OpenedFiles) {
        let Host { processes, opener, vmm } = self;
        let opened = opener.into_iter().fold(opened, OpenedFiles::and_by);
        let vcpus = vcpus.map(|(vcpu, thread)| (thread, Merged { vcpu, seen: VecDeque::new() })).collect();
        let hosted = Hosted {
            vm,
            processes,
            vmm,
            vmm_guest: None,
            vmm_space: None,
            vcpus,
            threads: HashMap::new(),
            held: VecDeque::new(),
            merged: 0,
        };
        (hosted, opened)
    }
}

/// The process whose descendants are sampled: the VMM, or `glass run`, which has started it and its helpers.
fn root(vmm: u32) -> u32 {
    let is_ours = |pid: &u32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_ascii_end() == b"glass");
    parent(vmm).filter(is_ours).unwrap_or(vmm)
}

/// The kernel's samples of a vCPU's thread.
struct Merged {
    vcpu: u32,
    /// Their times, and the kernel's calls where KVM handled an exit.
    seen: VecDeque<(u64, Option<Segment>)>,
}

impl Merged {
    /// Forgets the samples of a stop.
    fn leave_out(&mut self, stop: Range<u64>) {
        if stop.end - stop.start > AFTER_STOP_NS {
            self.seen.retain(|(time_ns, _)| !stop.contains(time_ns));
        }
    }

    /// The sample that is nearest to a time, if KVM handled an exit then. Older ones are forgotten.
    fn nearest(&mut self, time_ns: u64) -> Option<Segment> {
        while self.seen.get(1).is_some_and(|(next_ns, _)| *next_ns <= time_ns) {
            self.seen.pop_front();
        }
        let nearest = self.seen.iter().take(2).min_by_key(|(seen_ns, _)| seen_ns.abs_diff(time_ns));
        let (seen_ns, segment) = nearest.filter(|(seen_ns, _)| seen_ns.abs_diff(time_ns) <= APART_NS_MAX)?;
        // 0 is the distance of what was taken in one stop.
        segment.clone().map(|segment| Segment { apart_ns: seen_ns.abs_diff(time_ns).max(1), ..segment })
    }
}

/// A VM with what its host does for it.
pub(crate) struct Hosted {
    vm: Box<dyn Source>,
    processes: Process,
    vmm: u32,
    vmm_guest: Option<GuestId>,
    vmm_space: Option<SpaceId>,
    /// By thread.
    vcpus: HashMap<u32, Merged>,
    /// The thread of each track of the processes.
    threads: HashMap<u32, u32>,
    /// Events of the VM of the last rounds, which wait for the kernel's samples of their times.
    held: VecDeque<Vec<Event>>,
    /// Samples of the kernel's that are no samples of a track.
    merged: u64,
}

fn guest_number(guest: GuestId) -> GuestId {
    GuestId(guest.0 + GUESTS)
}

fn process_number(process: ProcessId) -> ProcessId {
    ProcessId(process.0 + GUESTS)
}

fn space_number(space: SpaceId) -> SpaceId {
    SpaceId(space.0 + SPACES)
}

/// Whether a thread was in `ioctl(KVM_RUN)`, by the registers with which it has called.
fn is_in_run(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| match (segment.mode, &segment.registers) {
        (Mode::User, Registers::X86_64(registers)) => registers.general().is_some_and(|general| is_run(general[RSI])),
        _ => false,
    })
}

impl Hosted {
    /// An event of the processes, with its numbers in this recording.
    fn of_host(&mut self, event: Event, sink: &mut dyn FnMut(Event)) {
        sink(match event {
            Event::Guest(guest) => {
                let id = guest_number(guest.id);
                if guest.kind.pid() == Some(self.vmm) {
                    self.vmm_guest = Some(id);
                }
                Event::Guest(Guest { id, ..guest })
            }
            Event::Process(process) => {
                let (id, parent) = (process_number(process.id), process.parent.map(process_number));
                Event::Process(GuestProcess { id, guest: guest_number(process.guest), parent, ..process })
            }
            Event::Space { space, guest, process, copy_of } => {
                let (space, guest) = (space_number(space), guest_number(guest));
                if self.vmm_guest == Some(guest) && self.vmm_space.is_none() {
                    self.vmm_space = Some(space);
                }
                Event::Space { space, guest, process: process.map(process_number), copy_of: copy_of.map(space_number) }
            }
            Event::SpaceEnd(space) => Event::SpaceEnd(space_number(space)),
            Event::Map { space, mapping } => Event::Map { space: space_number(space), mapping },
            Event::Place { space, range, bias, program } => {
                Event::Place { space: space_number(space), range, bias, program }
            }
            Event::Track { track, guest, id, name } => {
                let thread = id as u32;
                self.threads.insert(track, thread);
                // It is the track of its vCPU.
                if self.vcpus.contains_key(&thread) {
                    return;
                }
                Event::Track { track: track + TRACKS, guest: guest_number(guest), id, name }
            }
            Event::TrackEnd(track) => {
                self.threads.remove(&track);
                Event::TrackEnd(track + TRACKS)
            }
            Event::Sample(mut sample) => {
                let vcpu = self.threads.get(&sample.track).and_then(|thread| self.vcpus.get_mut(thread));
                if let Some(vcpu) = vcpu {
                    let handles_exit = is_in_run(&sample.segments);
                    let kernel = sample.segments.into_iter().next();
                    let kernel = kernel.filter(|segment| handles_exit && segment.mode == Mode::Kernel);
                    let kernel = kernel.map(|segment| Segment { space: space_number(segment.space), ..segment });
                    vcpu.seen.push_back((sample.time_ns, kernel));
                    self.merged += 1;
                    return;
                }
                sample.track += TRACKS;
                sample.segments.iter_mut().for_each(|segment| segment.space = space_number(segment.space));
                Event::Sample(sample)
            }
            Event::StillWaits { time_ns, tracks } => {
                let tracks = tracks.into_iter().map(|(track, wait)| (track + TRACKS, wait)).collect();
                Event::StillWaits { time_ns, tracks }
            }
            event @ (Event::Thread(_) | Event::Frozen { .. } | Event::Warning(_) | Event::Trace(_)) => event,
        });
    }

    /// A sample of a vCPU, with what the host did at its time.
    fn of_vcpu(&mut self, mut sample: RawSample) -> RawSample {
        for segment in &mut sample.segments {
            if segment.space == VMM_SPACE {
                segment.space = self.vmm_space.unwrap_or(VMM_SPACE);
            }
        }
        let vcpu = of_track(&mut self.vcpus, sample.track);
        if let Some(kernel) = vcpu.and_then(|vcpu| vcpu.nearest(sample.time_ns))
            && matches!(sample.state, State::Running | State::Spinning)
        {
            sample.segments.insert(0, kernel);
        }
        sample
    }

    /// Forgets the kernel's samples of our own stops.
    fn leave_out_stops(&mut self) {
        for event in self.held.iter().flatten() {
            if let Event::Sample(sample) = event
                && let Some(vcpu) = of_track(&mut self.vcpus, sample.track)
            {
                vcpu.leave_out(sample.time_ns..sample.time_ns.saturating_add(sample.frozen_ns + AFTER_STOP_NS));
            }
        }
    }

    /// Passes on what the VM delivered, except in the last rounds.
    fn release(&mut self, rounds_left: usize, sink: &mut dyn FnMut(Event)) {
        self.leave_out_stops();
        while self.held.len() > rounds_left {
            for event in self.held.pop_front().unwrap_or_default() {
                sink(match event {
                    Event::Sample(sample) => Event::Sample(self.of_vcpu(sample)),
                    other => other,
                });
            }
        }
    }

    fn collect_host(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let mut events = Vec::new();
        self.processes.collect(Duration::ZERO, &mut |event| events.push(event))?;
        self.all_of_host(events, sink);
        Ok(())
    }

    fn all_of_host(&mut self, events: Vec<Event>, sink: &mut dyn FnMut(Event)) {
        events.into_iter().for_each(|event| self.of_host(event, sink));
    }
}

/// The vCPU of a track.
fn of_track(vcpus: &mut HashMap<u32, Merged>, track: u32) -> Option<&mut Merged> {
    vcpus.values_mut().find(|vcpu| vcpu.vcpu == track)
}

impl Source for Hosted {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        // The VM first: it is what the user selected.
        self.vm.announce(sink)?;
        let mut events = Vec::new();
        self.processes.announce(&mut |event| events.push(event))?;
        self.all_of_host(events, sink);
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let start = Instant::now();
        loop {
            let mut round = Vec::new();
            let left = wait.saturating_sub(start.elapsed());
            let flow = self.vm.collect(left.min(ROUND), &mut |event| round.push(event));
            self.held.push_back(round);
            self.collect_host(sink)?;
            self.release(ROUNDS, sink);
            if flow? == Flow::Ended {
                return Ok(Flow::Ended);
            }
            if start.elapsed() >= wait {
                return Ok(Flow::More);
            }
        }
    }

    fn counts(&self) -> Counts {
        let (vm, host) = (self.vm.counts(), self.processes.counts());
        let delivered = vm.delivered + host.delivered.saturating_sub(self.merged);
        Counts { delivered, losses: vm.losses + host.losses, ..vm }
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let mut last = Vec::new();
        let detached = self.vm.detach(&mut |event| last.push(event));
        self.held.push_back(last);
        let mut events = Vec::new();
        let host = self.processes.detach(&mut |event| events.push(event));
        self.all_of_host(events, sink);
        self.release(0, sink);
        detached.and(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_sample_of_the_kernel_is_merged() {
        let kernel = |space| Some(Segment { space: SpaceId(space), mode: Mode::Kernel, ..Default::default() });
        let seen = [(1_000_000, kernel(1)), (2_000_000, None), (3_000_000, kernel(3)), (90_000_000, kernel(4))];
        let mut merged = Merged { vcpu: 0, seen: seen.into() };
        let mut at = |time_ns| merged.nearest(time_ns).map(|segment| (segment.space.0, segment.apart_ns));
        assert_eq!(at(900_000), Some((1, 100_000)));
        assert_eq!(at(1_000_000), Some((1, 1)));
        assert_eq!(at(1_400_000), Some((1, 400_000)));
        // The guest ran.
        assert_eq!(at(1_600_000), None);
        assert_eq!(at(2_900_000), Some((3, 100_000)));
        // It slept for long.
        assert_eq!(at(40_000_000), None);
        assert_eq!(at(89_000_000), Some((4, 1_000_000)));
    }

    #[test]
    fn samples_of_our_own_stops_are_left_out() {
        let seen = [(1_000, None), (2_000, None), (90_000, None)];
        let mut merged = Merged { vcpu: 0, seen: seen.into() };
        // A sample that was no stop.
        merged.leave_out(1_000..1_000 + AFTER_STOP_NS);
        assert_eq!(merged.seen.len(), 3);
        merged.leave_out(1_500..1_500 + 20_000 + AFTER_STOP_NS);
        assert_eq!(merged.seen.iter().map(|(time_ns, _)| *time_ns).collect::<Vec<_>>(), [1_000, 90_000]);
    }
}
