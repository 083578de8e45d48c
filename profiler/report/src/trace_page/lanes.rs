//! Makes the lanes of a trace in the order of their numbers: cores and tasks here, the others in `things`.

use glass_profile::trace::model::{BlockKind, Cause, Wait, WakeSource};

use super::book::Book;
use super::kinds::{self, *};
use super::lane::Lane;
use super::pack::{Class, Piece, varint, zigzag};
use super::plan::call_level;
use super::things::{self, Functions, level_name};

/// Entries of a piece of wakes.
const WAKES_OF_PIECE: usize = 16_384;

pub fn all(book: &mut Book) {
    book.group("Cores", cores);
    book.group("Tasks", tasks);
    book.group("Devices", things::devices);
    book.group("TCP connections", things::connections);
    book.group("Spans", things::spans);
    book.group("Functions", things::calls);
    book.group("Counters", things::counters);
    book.group("Messages", things::messages);
    book.group("Tracing", things::switches);
    assert_eq!(book.lanes.len() as u32, book.plan.lanes, "lanes are made as they were planned");
}

/// Indices of a table by a number from 0 to `count`, in their order.
pub struct ByNumber {
    starts: Vec<u32>,
    indices: Vec<u32>,
}

impl ByNumber {
    pub fn new(count: usize, numbers: impl Iterator<Item = Option<u32>> + Clone) -> ByNumber {
        let mut starts = vec![0_u32; count + 1];
        let known = |number: Option<u32>| number.filter(|&number| (number as usize) < count);
        numbers.clone().filter_map(known).for_each(|number| starts[number as usize + 1] += 1);
        (0..count).for_each(|number| starts[number + 1] += starts[number]);
        let mut indices = vec![0; starts[count] as usize];
        let mut next = starts.clone();
        for (index, number) in numbers.enumerate() {
            if let Some(number) = known(number) {
                indices[next[number as usize] as usize] = index as u32;
                next[number as usize] += 1;
            }
        }
        ByNumber { starts, indices }
    }

    pub fn of(&self, number: usize) -> &[u32] {
        &self.indices[self.starts[number] as usize..self.starts[number + 1] as usize]
    }
}

pub fn cut(is_cut: bool, other: bool) -> u64 {
    u64::from(is_cut) | u64::from(other) << 1
}

fn cores(book: &mut Book) {
    let trace = book.trace;
    let count = trace.cores.len();
    let polls = ByNumber::new(count, trace.polls.iter().map(|poll| Some(poll.core)));
    let spins = ByNumber::new(count, trace.spins.iter().map(|spin| Some(spin.core)));
    let idles = ByNumber::new(count, trace.idles.iter().map(|idle| Some(idle.interval.core)));
    let visits = ByNumber::new(count, trace.span_visits.iter().map(|visit| Some(visit.interval.core)));
    let interrupts = ByNumber::new(count, trace.interrupts.iter().map(|interrupt| Some(interrupt.core)));
    let idle_names = ["idle", "idle until a deadline", "idle until a device", "idle until another core"]
        .map(|name| book.names.of(name));
    let spin_name = book.names.of("looks for work");
    for (index, core) in trace.cores.iter().enumerate() {
        let mut lane = Lane::new(CORE);
        for &poll in polls.of(index) {
            let poll = &trace.polls[poll as usize];
            let name = trace.tasks.get(poll.task as usize).map_or(0, |task| task.name);
            let name = book.names.id(trace, name);
            let columns = [book.plan.task_link(Some(poll.task)), cut(poll.is_cut, poll.is_last), 0];
            lane.push(book.range(poll.start_ns, poll.end_ns), TASK_ON_CORE, name, &columns);
        }
        for &spin in spins.of(index) {
            let spin = &trace.spins[spin as usize];
            lane.push(book.range(spin.start_ns, spin.end_ns), SPIN, spin_name, &[0, 0, 0]);
        }
        for &idle in idles.of(index) {
            let idle = &trace.idles[idle as usize];
            let name = idle_names[match idle.source {
                WakeSource::Other => 0,
                WakeSource::Timer => 1,
                WakeSource::Device => 2,
                WakeSource::Core => 3,
            }];
            let device = u64::from(book.names.id(trace, idle.device));
            lane.push(book.range(idle.interval.start_ns, idle.interval.end_ns), IDLE, name, &[0, 0, device]);
        }
        book.add(CORE, &core.name, None, lane);
        let (first, levels) = book.plan.visits[index];
        for level in 0..levels {
            let mut lane = Lane::new(CORE);
            for &visit in visits.of(index).iter().filter(|visit| book.plan.visit[**visit as usize] == first + level) {
                let visit = &trace.span_visits[visit as usize];
                let name = trace.spans.get(visit.span as usize).map_or(0, |span| span.name);
                let name = book.names.id(trace, name);
                let range = book.range(visit.interval.start_ns, visit.interval.end_ns);
                lane.push(range, SPAN, name, &[book.plan.task_link(visit.task), 0, 0]);
            }
            let name = level_name(&format!("{} in spans", core.name), level);
            book.add(CORE, &name, (level > 0).then_some(first), lane);
        }
        if book.plan.interrupts[index].is_some() {
            let mut lane = Lane::new(INTERRUPTS);
            let timer = book.names.of("timer");
            for &interrupt in interrupts.of(index) {
                let interrupt = &trace.interrupts[interrupt as usize];
                let name = if interrupt.device == 0 { timer } else { book.names.id(trace, interrupt.device) };
                let at = book.time(interrupt.time_ns);
                lane.push((at, at), INTERRUPT, name, &[interrupt.vector]);
            }
            book.add(INTERRUPTS, &format!("{} interrupts", core.name), None, lane);
        }
    }
}

/// What a wait is for, as a name.
fn wait_name(book: &mut Book, wait: &Wait) -> (u8, u32, u64) {
    let trace = book.trace;
    let reasons = trace.reasons_of(wait);
    let Some(ended_by) = trace.reason_of(wait) else {
        return (kinds::wait(BlockKind::Other), book.names.of("waits"), 0);
    };
    let mut text = String::new();
    // More than a few say no more.
    for reason in reasons.iter().take(4) {
        let (word, name) = (kinds::wait_word(reason.kind), trace.name(reason.name));
        if !text.is_empty() {
            text.push_str(" or ");
        }
        text.push_str(word);
        if !word.is_empty() && !name.is_empty() && word != name {
            text.push_str(": ");
        }
        if word != name {
            text.push_str(name);
        }
    }
    if reasons.len() > 4 {
        text.push_str(" or …");
    }
    let kind = kinds::wait(ended_by.kind);
    let name = book.names.of(if text.is_empty() { "waits" } else { &text });
    (kind, name, ended_by.object)
}

fn tasks(book: &mut Book) {
    let trace = book.trace;
    let lane_of = |task: u32| book.plan.task_place.get(task as usize).copied();
    let count = book.plan.task_lanes.len();
    let polls = ByNumber::new(count, trace.polls.iter().map(|poll| lane_of(poll.task)));
    let waits = ByNumber::new(count, trace.waits.iter().map(|wait| lane_of(wait.task)));
    let calls = ByNumber::new(count, trace.calls.iter().map(|call| call.task.and_then(lane_of)));
    let functions = Functions::new(book);
    let ready = book.names.of("ready");
    let causes = ["", "a task", "a request", "a segment", "a deadline", "an interrupt"].map(|name| book.names.of(name));
    let core_names: Vec<u32> = trace.cores.iter().map(|core| book.names.of(&core.name)).collect();
    for index in 0..count {
        let mut lane = Lane::new(TASK);
        for &poll in polls.of(index) {
            let poll = &trace.polls[poll as usize];
            let number = u64::from(trace.tasks[poll.task as usize].number);
            let columns = [number, book.plan.core_link(poll.core), cut(poll.is_cut, poll.is_last), 0, 0, 0, 0];
            let name = core_names.get(poll.core as usize).copied().unwrap_or(0);
            lane.push(book.range(poll.start_ns, poll.end_ns), RUN, name, &columns);
        }
        for &wait in waits.of(index) {
            let wait = &trace.waits[wait as usize];
            let number = u64::from(trace.tasks[wait.task as usize].number);
            let (kind, name, object) = wait_name(book, wait);
            let woken_ns = wait.woken_ns.map_or(wait.end_ns, |woken| woken.clamp(wait.start_ns, wait.end_ns));
            let cause = wait.wake.and_then(|wake| trace.wakes.get(wake as usize)).map_or(0, |wake| match wake.cause {
                Cause::Unknown => 0,
                Cause::Task(_) => 1,
                Cause::Request(_) => 2,
                Cause::Segment(_) => 3,
                Cause::Timer => 4,
                Cause::Interrupt(_) => 5,
            });
            let by = wait.wake.and_then(|wake| book.plan.cause(trace, wake));
            let mut push = |(from, to): (u64, u64), kind: u8, name: u32, object: u64| {
                let link = by.map_or((0, 0), |(lane, at)| {
                    (u64::from(lane) + 1, zigzag(book.time(at) as i64 - book.time(from) as i64))
                });
                let columns = [number, 0, cut(wait.is_cut, false), object, link.0, link.1, u64::from(causes[cause])];
                lane.push(book.range(from, to), kind, name, &columns);
            };
            if woken_ns > wait.start_ns || wait.woken_ns.is_none() {
                push((wait.start_ns, woken_ns), kind, name, object);
            }
            if wait.woken_ns.is_some() {
                push((woken_ns, wait.end_ns), READY, ready, 0);
            }
        }
        let (shared, depth) = book.plan.task_lanes[index].clone();
        let task = &trace.tasks[shared.first as usize];
        let name = match trace.name(task.name) {
            "" => "task",
            name => name,
        };
        let name =
            if shared.count > 1 { format!("{name} ×{}", shared.count) } else { format!("{name} #{}", task.number) };
        let number = book.lanes.len() as u32;
        book.add(TASK, &name, None, lane);
        for level in 0..depth {
            let lane = functions.lane(book, level, calls.of(index), |call| {
                Some(book.plan.task.get(call.task? as usize)? + 1 + call_level(call.depth) as u32)
            });
            book.add(CALLS, &format!("{name} calls · {}", level + 1), Some(number), lane);
        }
    }
}

/// Arrows: when, from which lane (and one; 0 for none), to which.
pub fn wakes(book: &mut Book) -> Vec<Piece> {
    let trace = book.trace;
    let mut pieces = Vec::new();
    let numbers: Vec<u32> = (0..trace.wakes.len() as u32).collect();
    let mut before = 0;
    for wakes in numbers.chunks(WAKES_OF_PIECE) {
        let times: Vec<u64> = wakes.iter().map(|&wake| book.time(trace.wakes[wake as usize].time_ns)).collect();
        let first = times[0].max(before);
        let mut rows = Vec::with_capacity(wakes.len());
        for (&wake, &time) in wakes.iter().zip(&times) {
            // Times that go backwards would be a fault of the trace's maker; the arrows then start together.
            before = before.max(time);
            let from = book.plan.cause(trace, wake).map_or(0, |(lane, _)| u64::from(lane) + 1);
            rows.push((before, from, book.plan.task_link(Some(trace.wakes[wake as usize].task))));
        }
        pieces.push(book.packer.add(Class::Detail, rows.len(), (first, before), |bytes| {
            let mut at = first;
            for &(time, ..) in &rows {
                varint(bytes, time - at);
                at = time;
            }
            rows.iter().for_each(|&(_, from, _)| varint(bytes, from));
            rows.iter().for_each(|&(.., to)| varint(bytes, to));
        }));
    }
    pieces
}
