//! Interprets the events that were copied from a guest.
//!
//! One pass over the events of all rings in the order of their times. Each group of events has a module
//! that tracks the open intervals; where events are missing, the open intervals of their core are cut.

mod calls;
mod clock;
mod cores;
mod devices;
mod merge;
mod mpi;
mod names;
mod net;
mod spans;
mod tasks;
mod warnings;

use std::collections::{BTreeMap, HashMap};

use glass_formats::trace::{Event, Group, Kind, WakeSource};

use self::calls::Calls;
use self::clock::Clock;
use self::cores::Cores;
use self::devices::{Devices, RequestEvent};
use self::merge::Merged;
use self::mpi::Mpi;
use self::names::{Names, Role};
use self::net::Net;
use self::spans::Spans;
use self::tasks::Tasks;
use self::warnings::Findings;
use super::model::{Cause, Core, Counter, Direction, Interrupt, Interval, Kick, Loss, NameId, Switch, Trace};
use super::raw::RawTrace;

/// Numbers of kinds that have an entry in the table; all known ones are below.
const KINDS: usize = 128;
/// Longest trace, some 52 days; later events are moved to its end. So sums over many intervals do not
/// overflow.
const RANGE_MAX_NS: u64 = 1 << 52;
/// Maximum of different unknown kinds that are listed.
const UNKNOWN_KINDS_MAX: usize = 16;

/// Time and place of an event.
#[derive(Debug, Clone, Copy)]
struct At {
    time_ns: u64,
    core: u32,
}

/// Builds the tables of a trace. Takes time and memory in proportion to the events: some 0.2 µs and 60 bytes for each.
pub fn build(raw: &RawTrace) -> Trace {
    let clock = Clock::new(&raw.clock, merge::first_ticks(raw));
    let mut builder = Builder::new(raw, &clock);
    let oddities = merge::merge(raw, &clock, |merged| builder.event(merged));
    builder.finish(raw, &clock, oddities.backwards)
}

struct Builder<'a> {
    trace: Trace,
    clock: &'a Clock,
    names: Names,
    /// The earliest event, if it is before the recording's start.
    shift_ns: i64,
    kinds: [Option<Kind>; KINDS],
    tasks: Tasks,
    cores: Cores,
    devices: Devices,
    net: Net,
    spans: Spans,
    mpi: Mpi,
    calls: Calls<'a>,
    counters: HashMap<NameId, u32>,
    has_begun: Vec<bool>,
    findings: Findings,
    groups: u32,
}

impl<'a> Builder<'a> {
    fn new(raw: &'a RawTrace, clock: &'a Clock) -> Builder<'a> {
        let cores = raw.rings.len();
        let first_ns = first_ns(raw, clock);
        let shift_ns = first_ns.unwrap_or(0).min(0);
        let start_ns = first_ns.map_or(0, |first| first.wrapping_sub(shift_ns) as u64);
        let core = |(index, ring): (usize, &super::raw::RawRing)| Core {
            name: if ring.name.is_empty() { format!("core {index}") } else { ring.name.clone() },
        };
        let trace = Trace {
            start_ns,
            end_ns: start_ns,
            shift_ns: shift_ns.unsigned_abs(),
            cores: raw.rings.iter().enumerate().map(core).collect(),
            event_count: raw.event_count(),
            ..Trace::default()
        };
        Builder {
            trace,
            clock,
            names: Names::new(&raw.names, raw.names_lost),
            shift_ns,
            kinds: std::array::from_fn(|number| Kind::from_number(number as u16)),
            tasks: Tasks::new(cores),
            cores: Cores::new(cores),
            devices: Devices::default(),
            net: Net::default(),
            spans: Spans::new(cores),
            mpi: Mpi::new(cores),
            calls: Calls::new(cores, &raw.functions),
            counters: HashMap::new(),
            has_begun: vec![false; cores],
            findings: Findings::default(),
            groups: u32::MAX,
        }
    }

    fn event(&mut self, merged: Merged) {
        // No event is before the first, so the difference is not negative.
        let latest_ns = self.trace.start_ns.saturating_add(RANGE_MAX_NS);
        let time_ns = (merged.time_ns.wrapping_sub(self.shift_ns) as u64).min(latest_ns);
        let at = At { time_ns, core: merged.ring };
        self.trace.end_ns = time_ns;
        if merged.missing > 0 {
            let from_ns = (merged.previous_ns.wrapping_sub(self.shift_ns) as u64).min(time_ns);
            self.lose(at, from_ns, merged.missing);
        } else if !self.has_begun[at.core as usize] {
            self.tasks.begin_core(at);
            self.calls.cut(at.core, time_ns, time_ns, &mut self.trace);
        }
        self.has_begun[at.core as usize] = true;
        let event = merged.event;
        match self.kinds.get(event.kind as usize).copied().flatten() {
            Some(kind) => self.known(at, kind, event),
            None => self.unknown(event.kind),
        }
    }

    fn unknown(&mut self, kind: u16) {
        self.findings.unknown += 1;
        let kinds: &mut BTreeMap<u16, u64> = &mut self.findings.unknown_kinds;
        if kinds.len() < UNKNOWN_KINDS_MAX || kinds.contains_key(&kind) {
            *kinds.entry(kind).or_default() += 1;
        }
    }

    /// Events of a core are missing before this moment.
    fn lose(&mut self, at: At, from_ns: u64, events: u64) {
        let trace = &mut self.trace;
        let interval = Interval { core: at.core, start_ns: from_ns, end_ns: at.time_ns };
        trace.losses.push(Loss { interval, events });
        self.tasks.cut(at.core, from_ns, at.time_ns, trace);
        self.cores.cut(at.core, from_ns, trace);
        self.spans.cut(at.core, from_ns, trace);
        self.mpi.cut(at.core, from_ns, trace);
        self.calls.cut(at.core, from_ns, at.time_ns, trace);
    }

    fn known(&mut self, at: At, kind: Kind, event: Event) {
        let trace = &mut self.trace;
        let Event { detail, a, b, c, .. } = event;
        match kind {
            Kind::TaskSpawn => {
                let (name, parent) = (b as u32, (b >> 32) as u32);
                self.tasks.spawn(at, (a, name, parent), detail == 1, &mut self.names, trace);
            }
            Kind::PollBegin => {
                self.calls.poll_begin(at, trace);
                self.spans.leave_all(at.core, at.time_ns, trace);
                self.tasks.poll_begin(at, a, b as u32, &mut self.names, trace);
                self.cores.set_cause(at.core, Cause::Unknown);
            }
            Kind::PollEnd => {
                self.calls.poll_end(at, trace);
                self.spans.leave_all(at.core, at.time_ns, trace);
                self.tasks.poll_end(at, a, detail, trace);
            }
            Kind::Block => {
                let name = self.names.id(a, Role::Other);
                self.tasks.block(at, detail, name, b);
            }
            Kind::Wake => {
                let cause = match self.tasks.current(at.core, trace) {
                    Some(task) => Cause::Task(task),
                    None => self.cores.cause(at.core),
                };
                self.tasks.wake(at, a, cause, trace);
            }
            Kind::IdleBegin => self.cores.idle_begin(at, trace),
            Kind::IdleEnd => {
                let device = self.names.id(a, Role::Other);
                self.cores.idle_end(at, WakeSource::from_number(detail), device, trace);
            }
            Kind::Interrupt => {
                let device = self.names.id(a, Role::Other);
                self.cores.set_cause(at.core, Cause::Interrupt(trace.interrupts.len() as u32));
                trace.interrupts.push(Interrupt { time_ns: at.time_ns, core: at.core, device, vector: b });
            }
            Kind::SpinBegin => self.cores.spin_begin(at, trace),
            Kind::SpinEnd => self.cores.spin_end(at, trace),
            Kind::TimersFire => self.cores.set_cause(at.core, Cause::Timer),
            Kind::Submit | Kind::Complete => self.request(at, kind, event),
            Kind::Kick => {
                let device = self.names.id(a, Role::Device);
                let device = self.devices.device(device, trace);
                let task = self.tasks.current(at.core, trace);
                let took_ns = (b > 0).then(|| self.clock.duration_ns(event.ticks, b));
                trace.kicks.push(Kick { time_ns: at.time_ns, took_ns, core: at.core, device, task });
            }
            Kind::SegmentIn => {
                let segment = self.net.segment(at, Direction::In, (a, detail), (b, c), trace);
                self.cores.set_cause(at.core, Cause::Segment(segment));
            }
            Kind::SegmentOut => drop(self.net.segment(at, Direction::Out, (a, detail), (b, c), trace)),
            Kind::Retransmit => drop(self.net.segment(at, Direction::Again, (a, detail), (b, c), trace)),
            Kind::Connection => self.net.event(at, a, detail, b, c, trace),
            Kind::Counter => self.counter(at, a, b as i64, detail == 1),
            Kind::Groups => self.groups(at, b as u32),
            Kind::MpiCall => self.mpi.call(at, event, &mut self.names, trace),
            Kind::MpiReturn => self.mpi.returns(at, trace),
            Kind::MpiAbout => self.mpi.about(at, event, &mut self.names, trace),
            Kind::MpiSent => self.mpi.sent(at, event),
            Kind::MpiReceived => self.mpi.received(at, event, trace),
            Kind::FunctionEnter => {
                let task = self.tasks.current(at.core, trace);
                self.calls.enter(at, a, task, trace);
            }
            Kind::FunctionExit | Kind::FunctionTailExit => {
                let task = self.tasks.current(at.core, trace);
                self.calls.exit(at, a, kind == Kind::FunctionTailExit, task, trace);
            }
            _ => self.span(at, kind, event),
        }
    }

    fn request(&mut self, at: At, kind: Kind, event: Event) {
        let trace = &mut self.trace;
        let device = self.names.id(event.a, Role::Device);
        let request = RequestEvent { device, number: event.b, detail: event.detail, size: event.c };
        if kind == Kind::Submit {
            let task = self.tasks.current(at.core, trace);
            self.devices.submit(at, request, task, trace);
        } else {
            let request = self.devices.complete(at, request, trace);
            self.cores.set_cause(at.core, Cause::Request(request));
        }
    }

    fn counter(&mut self, at: At, name: u32, value: i64, is_gauge: bool) {
        let name = self.names.id(name, Role::Counter);
        let counters = &mut self.trace.counters;
        let index = *self.counters.entry(name).or_insert_with(|| {
            counters.push(Counter { name, is_gauge, points: Vec::new() });
            counters.len() as u32 - 1
        });
        counters[index as usize].points.push((at.time_ns, value));
    }

    fn span(&mut self, at: At, kind: Kind, event: Event) {
        let trace = &mut self.trace;
        let Event { detail, a, b, c, .. } = event;
        let task = self.tasks.current(at.core, trace);
        match kind {
            Kind::SpanBegin => {
                let name = self.names.id(a, Role::Span(b));
                self.spans.begin(at, (b, name), (c, detail), task, trace);
            }
            Kind::SpanEnter => self.spans.enter(at, b, task, &mut self.names, trace),
            Kind::SpanExit => self.spans.exit(at, b, trace),
            Kind::SpanEnd => self.spans.end(at, b, &mut self.names, trace),
            Kind::Message => {
                let place = self.names.id(a, Role::Other);
                self.spans.message(at, (place, detail), (b, c), task, trace);
            }
            Kind::Field => {
                let name = self.names.id(a, Role::Other);
                self.spans.field(at, (name, detail), (b, c), &mut self.names, trace);
            }
            Kind::Text => self.spans.text(at, detail, (a, b, c), trace),
            _ => {}
        }
    }

    /// Groups were switched: the ends of open intervals in groups that are off now are not recorded.
    fn groups(&mut self, at: At, groups: u32) {
        let gone = |group: Group| self.groups & group as u32 != 0 && groups & group as u32 == 0;
        let (tasks, cores, devices) = (gone(Group::Tasks), gone(Group::Cores), gone(Group::Devices));
        let functions = (self.groups ^ groups) & Group::Functions as u32 != 0;
        self.groups = groups;
        self.trace.switches.push(Switch { time_ns: at.time_ns, core: at.core, groups });
        if tasks {
            self.tasks.stop(at.time_ns, &mut self.trace);
        }
        if cores {
            self.cores.stop(at.time_ns, &mut self.trace);
        }
        if devices {
            self.devices.stop();
        }
        if functions || tasks {
            self.calls.stop(at.time_ns, !tasks, &mut self.trace);
        }
    }

    fn finish(mut self, raw: &RawTrace, clock: &Clock, backwards: Vec<u64>) -> Trace {
        let trace = &mut self.trace;
        if let Some(last) = raw.clock.last().filter(|_| raw.clock.len() > 1 && trace.event_count > 0) {
            // There may have been no events for a while.
            let last_ns = clock.time_ns(last.ticks, &mut 0).saturating_sub(self.shift_ns);
            let last_ns = u64::try_from(last_ns).unwrap_or(0).min(trace.start_ns.saturating_add(RANGE_MAX_NS));
            trace.end_ns = trace.end_ns.max(last_ns);
        }
        let end_ns = trace.end_ns;
        self.findings.open_polls = self.tasks.finish(trace);
        self.cores.stop(end_ns, trace);
        self.findings.open_requests = self.devices.finish(&self.names.texts, trace);
        self.findings.open_spans = self.mpi.finish(trace) + self.spans.finish(trace);
        self.findings.open_calls = self.calls.finish(trace);
        self.findings.misplaced = self.tasks.misplaced;
        self.findings.calls = (self.calls.unmatched_exits, self.calls.unmatched_entries, self.calls.nameless);
        self.findings.is_off = self.groups == 0;
        self.findings.backwards = backwards;
        trace.counters.sort_by(|a, b| self.names.texts[a.name as usize].cmp(&self.names.texts[b.name as usize]));
        trace.losses.sort_by_key(|loss| loss.interval.start_ns);
        trace.names = self.names.texts;
        trace.warnings = clock.warning.iter().cloned().collect();
        let warnings = self.findings.sentences(raw, trace);
        trace.warnings.extend(warnings);
        self.trace
    }
}

/// The time of the earliest event.
fn first_ns(raw: &RawTrace, clock: &Clock) -> Option<i64> {
    let firsts = raw.rings.iter().filter_map(|ring| ring.chunks.iter().find_map(|chunk| chunk.events.first()));
    firsts.map(|words| clock.time_ns(words[0], &mut 0)).min()
}
