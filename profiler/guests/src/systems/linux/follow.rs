//! A Linux guest while it is sampled: its processes, and another kernel once the guest has started again.
//!
//! Whether the kernel is still the one that was found is checked behind each batch of samples, before they are passed on: a sample of another
//! kernel gets no name of the one before.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glass_profiler_core::arch::{Architecture, Width};
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::{Mode, SpaceId};
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::model::State;
use glass_profiler_core::remarks::STARTED_AGAIN;

use super::in_ram::InRam;
use super::outside::Outside;
use super::processes::{Numbered, Processes};
use crate::error::GuestError;
use crate::memory::Machine;
use crate::systems::plan::{CopyPlan, GUEST, LinuxPlan, SPACE};
use crate::{Counts, Flow, Source};

/// How often another kernel is searched for.
const SEARCH_PERIOD: Duration = Duration::from_millis(500);
/// The same while nothing but the place of a sample makes another one probable.
const DOUBT_PERIOD: Duration = Duration::from_secs(5);
/// How often the pages of RAM are released that were read here: those of programs add up.
const RELEASE_PERIOD: Duration = Duration::from_secs(5);
/// How long is waited for a kernel's next tick.
const TICK_PATIENCE: Duration = Duration::from_millis(30);
/// Where kernels of x86-64 have their images (`Documentation/arch/x86/x86_64/mm.rst`); those of AArch64 are anywhere.
const IMAGES: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;

/// What samples can be made by another plan.
pub(crate) trait Replan {
    /// Samples from now on, or from soon on, are made by this plan.
    fn replan(&mut self, plan: CopyPlan) -> Result<(), GuestError>;
}

/// The kernel, and its processes if they are known.
enum Known {
    Processes(Box<Processes>),
    Kernel(Box<Kernel>, Numbered),
}

impl Known {
    fn of(in_ram: InRam, numbered: Numbered, outside: Outside) -> Known {
        match in_ram.processes(numbered, outside) {
            Ok(processes) => Known::Processes(Box::new(processes)),
            Err(kernel) => Known::Kernel(kernel, numbered),
        }
    }

    fn kernel(&self) -> &Kernel {
        match self {
            Known::Processes(processes) => processes.kernel(),
            Known::Kernel(kernel, _) => kernel,
        }
    }

    fn numbered(&self) -> Numbered {
        match self {
            Known::Processes(processes) => processes.numbered(),
            Known::Kernel(_, numbered) => *numbered,
        }
    }
}

/// A Linux guest that is sampled.
pub(crate) struct Followed {
    memory: Arc<dyn Machine>,
    /// What the guest's next kernel does not change.
    plan: CopyPlan,
    outside: Outside,
    known: Known,
    /// Where the kernel is.
    range: Range<u64>,
    /// The kernel's address space.
    space: SpaceId,
    ticks: u64,
    /// The address space of samples while the guest runs another kernel that is not found yet.
    unknown: Option<SpaceId>,
    last_search: Option<Instant>,
    released: Instant,
    restarts: u32,
}

impl Followed {
    /// The guest with a kernel whose code and data are in `range`.
    pub(crate) fn new(in_ram: InRam, range: Range<u64>, plan: CopyPlan, outside: Outside) -> Followed {
        let memory = in_ram.memory();
        let known = Known::of(in_ram, Numbered::KERNEL, outside.clone());
        let ticks = known.kernel().ticks(&*memory).unwrap_or(0);
        let (unknown, last_search, released, restarts) = (None, None, Instant::now(), 0);
        let space = SPACE;
        Followed { memory, plan, outside, known, range, space, ticks, unknown, last_search, released, restarts }
    }

    /// Passes on samples of the guest as it was until now.
    pub(crate) fn sample(&mut self, mut sample: RawSample, sink: &mut dyn FnMut(Event)) {
        if let Some(unknown) = self.unknown {
            sample.task = None;
            sample.segments.truncate(1);
            sample.segments.iter_mut().for_each(|segment| segment.space = unknown);
            return sink(Event::Sample(sample));
        }
        sample
            .segments
            .iter_mut()
            .filter(|segment| segment.space == SPACE)
            .for_each(|segment| segment.space = self.space);
        match &mut self.known {
            Known::Processes(processes) => processes.sample(sample, sink),
            Known::Kernel(..) => {
                sample.task = None;
                sink(Event::Sample(sample));
            }
        }
    }

    /// Whether the kernel is another one than it was, as far as that can be seen without a search.
    fn is_gone(&mut self, batch: &[Event]) -> bool {
        let ticks = self.known.kernel().ticks(&*self.memory).unwrap_or(0);
        let went_back = ticks < self.ticks;
        self.ticks = ticks;
        let starts = batch.iter().any(|event| {
            let Event::Sample(sample) = event else { return false };
            // Firmware, or what loads a kernel.
            sample
                .segments
                .first()
                .is_some_and(|segment| segment.mode == Mode::Kernel && segment.width == Width::Bits16)
        });
        went_back || starts || !self.known.kernel().is_there(&*self.memory)
    }

    /// Whether a sample is where another kernel would be.
    fn is_doubtful(&self, batch: &[Event]) -> bool {
        let is_x86_64 = self.known.kernel().paging.architecture() == Architecture::X86_64;
        batch.iter().filter(|_| is_x86_64).any(|event| {
            let Event::Sample(sample) = event else { return false };
            let ip = sample.segments.first().filter(|segment| segment.mode == Mode::Kernel);
            let ip = ip.map(|segment| segment.registers.ip());
            sample.state != State::NeverStarted
                && ip.is_some_and(|ip| IMAGES.contains(&ip) && !self.range.contains(&ip))
        })
    }

    /// Searches for the kernel that runs now.
    fn search(&mut self) -> Option<InRam> {
        let period = if self.unknown.is_some() { SEARCH_PERIOD } else { DOUBT_PERIOD };
        if self.last_search.is_some_and(|last| last.elapsed() < period) {
            return None;
        }
        self.last_search = Some(Instant::now());
        let (old, has_gone) = (self.known.kernel(), self.unknown.is_some());
        let old = (old.text, old.text_physical);
        let lives = |kernel: &Kernel| {
            if (kernel.text, kernel.text_physical) == old && !has_gone {
                return false;
            }
            let Some(before) = kernel.ticks(&*self.memory) else { return false };
            std::thread::sleep(TICK_PATIENCE);
            kernel.ticks(&*self.memory).is_some_and(|ticks| ticks > before)
        };
        InRam::find_after(&self.memory, lives)
    }

    /// Announces another kernel; returns how its samples are made.
    fn change(&mut self, in_ram: InRam, sink: &mut dyn FnMut(Event)) -> Result<CopyPlan, GuestError> {
        let (program, linux, warnings) = in_ram.program()?;
        let tasks = in_ram.task_plan();
        let mut numbered = self.known.numbered();
        self.space = numbered.next_space();
        self.known = Known::of(in_ram, numbered, self.outside.clone());
        self.range = program.range();
        self.ticks = self.known.kernel().ticks(&*self.memory).unwrap_or(0);
        self.unknown = None;
        self.restarts += 1;
        sink(Event::Space { space: self.space, guest: GUEST, process: None, copy_of: None });
        for (range, bias, program) in program.programs(0, linux.orc.as_ref()) {
            sink(Event::Place { space: self.space, range, bias, program });
        }
        warnings.into_iter().for_each(|text| sink(Event::Warning(text)));
        let linux = Some(LinuxPlan { tasks, ..linux.plan() });
        Ok(CopyPlan { programs: vec![self.range.clone()], linux, ..self.plan.clone() })
    }

    /// The samples of the guest's next kernel have no name until that is found.
    fn lose(&mut self, sink: &mut dyn FnMut(Event)) {
        let mut numbered = self.known.numbered();
        let space = numbered.next_space();
        sink(Event::Space { space, guest: GUEST, process: None, copy_of: None });
        // Its number is taken.
        match &mut self.known {
            Known::Processes(processes) => processes.take_space(),
            Known::Kernel(_, of_kernel) => *of_kernel = numbered,
        }
        self.unknown = Some(space);
        self.last_search = None;
    }

    fn remark(&self) -> Option<String> {
        let processes = match &self.known {
            Known::Processes(processes) => processes.remark(),
            Known::Kernel(..) => None,
        };
        let release = self.known.kernel().release();
        let restarted = match (self.restarts, self.unknown) {
            (_, Some(_)) => Some(format!(
                "{STARTED_AGAIN}, and its kernel was not found until the end: its samples have no names since"
            )),
            (0, None) => None,
            (1, None) => Some(format!("{STARTED_AGAIN} while it was recorded, with Linux {release} since")),
            (times, None) => {
                Some(format!("{STARTED_AGAIN} {times} times while it was recorded, with Linux {release} at the end"))
            }
        };
        let remarks: Vec<String> = [restarted, processes].into_iter().flatten().collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }
}

/// A source whose samples are those of a Linux guest, if it is one.
pub(crate) struct Following<S> {
    source: S,
    followed: Option<Followed>,
}

impl<S> Following<S> {
    pub(crate) fn new(source: S, followed: Option<Followed>) -> Following<S> {
        Following { source, followed }
    }
}

impl<S: Source + Replan> Following<S> {
    /// Passes on a batch of events, once it is known of which kernel they are.
    fn pass(&mut self, batch: Vec<Event>, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let Some(followed) = &mut self.followed else {
            batch.into_iter().for_each(sink);
            return Ok(());
        };
        if followed.unknown.is_none() && followed.is_gone(&batch) {
            followed.lose(sink);
        }
        let is_doubtful = followed.unknown.is_none() && followed.is_doubtful(&batch);
        let found = if followed.unknown.is_some() || is_doubtful { followed.search() } else { None };
        if found.is_some() && followed.unknown.is_none() {
            followed.lose(sink);
        }
        for event in batch {
            match event {
                Event::Sample(sample) => followed.sample(sample, sink),
                event => sink(event),
            }
        }
        if let Some(in_ram) = found {
            let plan = followed.change(in_ram, sink)?;
            self.source.replan(plan)?;
        }
        if followed.released.elapsed() >= RELEASE_PERIOD {
            followed.released = Instant::now();
            followed.memory.release();
        }
        Ok(())
    }
}

impl<S: Source + Replan> Source for Following<S> {
    fn started_ns(&self) -> Option<u64> {
        self.source.started_ns()
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let mut first = Vec::new();
        let mut split = |event| if let Event::Sample(_) = event { first.push(event) } else { sink(event) };
        self.source.announce(&mut split)?;
        if first.is_empty() { Ok(()) } else { self.pass(first, sink) }
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        if self.followed.is_none() {
            return self.source.collect(wait, sink);
        }
        let mut batch = Vec::new();
        let flow = self.source.collect(wait, &mut |event| batch.push(event));
        self.pass(batch, sink)?;
        flow
    }

    fn counts(&self) -> Counts {
        self.source.counts()
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let mut batch = Vec::new();
        let detached = self.source.detach(&mut |event| batch.push(event));
        self.pass(batch, sink)?;
        if let Some(remark) = self.followed.as_ref().and_then(Followed::remark) {
            sink(Event::Warning(remark));
        }
        detached
    }
}
