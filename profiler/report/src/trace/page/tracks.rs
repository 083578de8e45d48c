//! Makes the tracks of a trace in the order of their numbers: cores and tasks here, the others in `things`.

use glass_profiler_core::trace::model::{BlockKind, Cause, Reason, Wait, WakeSource};

use super::book::Book;
use super::kinds::{self, *};
use super::pack::{Class, Piece, varint, zigzag};
use super::plan::call_level;
use super::things::{self, Functions, level_name};
use super::track::Track;
use glass_profiler_core::words::resource;

/// Entries of a piece of wakes.
const WAKES_OF_PIECE: usize = 16_384;
/// Things that one task waits for at a time and that a page names.
const REASONS_SHOWN: usize = 4;

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
    assert_eq!(book.tracks.len() as u32, book.plan.tracks, "tracks are made as they were planned");
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
    let spin_name = book.names.of("spinning");
    for (index, core) in trace.cores.iter().enumerate() {
        let mut track = Track::new(CORE);
        for &poll in polls.of(index) {
            let poll = &trace.polls[poll as usize];
            let name = trace.tasks.get(poll.task as usize).map_or(0, |task| task.name);
            let name = book.names.id(trace, name);
            let columns = [book.plan.task_index(Some(poll.task)), cut(poll.is_cut, poll.is_last), 0, 0, 0];
            track.push(book.range(poll.start_ns, poll.end_ns), TASK_ON_CORE, name, &columns);
        }
        for &spin in spins.of(index) {
            let spin = &trace.spins[spin as usize];
            track.push(book.range(spin.start_ns, spin.end_ns), SPIN, spin_name, &[0; 5]);
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
            track.push(book.range(idle.interval.start_ns, idle.interval.end_ns), IDLE, name, &[0, 0, device, 0, 0]);
        }
        book.add(CORE, &core.name, None, track);
        let (first, levels) = book.plan.visits[index];
        for level in 0..levels {
            let mut track = Track::new(CORE);
            for &visit in visits.of(index).iter().filter(|visit| book.plan.visit[**visit as usize] == first + level) {
                let visit = &trace.span_visits[visit as usize];
                let name = trace.spans.get(visit.span as usize).map_or(0, |span| span.name);
                let name = book.names.id(trace, name);
                let range = book.range(visit.interval.start_ns, visit.interval.end_ns);
                let span = trace.spans.get(visit.span as usize).zip(book.plan.span.get(visit.span as usize));
                let link = span.map_or((0, 0), |(span, track)| {
                    (u64::from(*track) + 1, zigzag(book.time(span.start_ns) as i64 - range.0 as i64))
                });
                track.push(range, SPAN, name, &[book.plan.task_index(visit.task), 0, 0, link.0, link.1]);
            }
            let name = level_name(&format!("{} active spans", core.name), level);
            book.add_again(CORE, &name, (level > 0).then_some(first), track);
        }
        if book.plan.interrupts[index].is_some() {
            let mut track = Track::new(INTERRUPTS);
            let timer = book.names.of("timer");
            for &interrupt in interrupts.of(index) {
                let interrupt = &trace.interrupts[interrupt as usize];
                let name = if interrupt.device == 0 { timer } else { book.names.id(trace, interrupt.device) };
                let at = book.time(interrupt.time_ns);
                track.push((at, at), INTERRUPT, name, &[interrupt.vector]);
            }
            book.add(INTERRUPTS, &format!("{} interrupts", core.name), None, track);
        }
    }
}

/// What ended a wait, as kind, name and ID; and, where the task waited for several things, all of them as a name.
fn wait_name(book: &mut Book, wait: &Wait) -> (u8, u32, u64, u32) {
    let trace = book.trace;
    let reasons = trace.reasons_of(wait);
    let Some(ended_by) = trace.reason_of(wait) else {
        return (kinds::wait(BlockKind::Other), book.names.of(&resource(BlockKind::Other, "")), 0, 0);
    };
    let text = |reason: &Reason| resource(reason.kind, trace.name(reason.name));
    let all = match reasons.len() {
        0 | 1 => 0,
        count => {
            let mut all = reasons.iter().take(REASONS_SHOWN).map(text).collect::<Vec<_>>().join(", ");
            all.push_str(if count > REASONS_SHOWN { ", …" } else { "" });
            book.names.of(&all)
        }
    };
    (kinds::wait(ended_by.kind), book.names.of(&text(ended_by)), ended_by.object, all)
}

fn tasks(book: &mut Book) {
    let trace = book.trace;
    let track_of = |task: u32| book.plan.task_place.get(task as usize).copied();
    let count = book.plan.task_tracks.len();
    let polls = ByNumber::new(count, trace.polls.iter().map(|poll| track_of(poll.task)));
    let waits = ByNumber::new(count, trace.waits.iter().map(|wait| track_of(wait.task)));
    let calls = ByNumber::new(count, trace.calls.iter().map(|call| call.task.and_then(track_of)));
    let functions = Functions::new(book);
    let ready = book.names.of("runnable");
    let core_names: Vec<u32> = trace.cores.iter().map(|core| book.names.of(&core.name)).collect();
    for index in 0..count {
        let mut track = Track::new(TASK);
        for &poll in polls.of(index) {
            let poll = &trace.polls[poll as usize];
            let task = book.plan.task_index(Some(poll.task));
            let columns = [task, book.plan.core_link(poll.core), cut(poll.is_cut, poll.is_last), 0, 0, 0, 0, 0, 0];
            let name = core_names.get(poll.core as usize).copied().unwrap_or(0);
            track.push(book.range(poll.start_ns, poll.end_ns), RUN, name, &columns);
        }
        for &wait in waits.of(index) {
            let wait = &trace.waits[wait as usize];
            let task = book.plan.task_index(Some(wait.task));
            let (kind, name, object, all) = wait_name(book, wait);
            let woken_ns = wait.woken_ns.map_or(wait.end_ns, |woken| woken.clamp(wait.start_ns, wait.end_ns));
            let wake = wait.wake.and_then(|wake| trace.wakes.get(wake as usize));
            let (cause, waker) = wake.map_or((0, None), |wake| match wake.cause {
                Cause::Unknown => (0, None),
                Cause::Task(task) => (1, Some(task)),
                Cause::Request(_) => (2, None),
                Cause::Segment(_) => (3, None),
                Cause::Timer => (4, None),
                Cause::Interrupt(_) => (5, None),
            });
            let waker = book.plan.task_index(waker);
            let by = wait.wake.and_then(|wake| book.plan.cause(trace, wake));
            let mut push = |(from, to): (u64, u64), kind: u8, name: u32, [object, all]: [u64; 2]| {
                let link = by.map_or((0, 0), |(track, at)| {
                    (u64::from(track) + 1, zigzag(book.time(at) as i64 - book.time(from) as i64))
                });
                let columns = [task, 0, cut(wait.is_cut, false), object, link.0, link.1, cause, waker, all];
                track.push(book.range(from, to), kind, name, &columns);
            };
            if woken_ns > wait.start_ns || wait.woken_ns.is_none() {
                push((wait.start_ns, woken_ns), kind, name, [object, u64::from(all)]);
            }
            if wait.woken_ns.is_some() {
                push((woken_ns, wait.end_ns), READY, ready, [0, 0]);
            }
        }
        let (shared, depth) = book.plan.task_tracks[index].clone();
        let task = &trace.tasks[shared.first as usize];
        let name = match trace.name(task.name) {
            "" => "task",
            name => name,
        };
        let name =
            if shared.count > 1 { format!("{name} ×{}", shared.count) } else { format!("{name} #{}", task.number) };
        let number = book.tracks.len() as u32;
        book.add(TASK, &name, None, track);
        for level in 0..depth {
            let track = functions.track(book, number + 1 + level, calls.of(index), |call| {
                let call = trace.calls.get(call as usize)?;
                Some(book.plan.task.get(call.task? as usize)? + 1 + call_level(call.depth) as u32)
            });
            book.add_again(CALLS, &level_name(&format!("{name} calls"), level), Some(number), track);
        }
    }
}

/// Arrows: when, from which track (and one; 0 for none), to which.
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
            let from = book.plan.cause(trace, wake).map_or(0, |(track, _)| u64::from(track) + 1);
            rows.push((before, from, book.plan.task_track_link(trace.wakes[wake as usize].task)));
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

/// Arrows from rank to rank: when the message was received, how long before that it was sent, from which track (and one), to which.
pub fn mpi_messages(book: &mut Book) -> Vec<Piece> {
    let trace = book.trace;
    let track = |book: &Book, call: u32| {
        let visit = trace.mpi_calls.get(call as usize)?.visit;
        book.plan.visit.get(visit as usize).map(|track| u64::from(*track) + 1)
    };
    let mut pieces = Vec::new();
    for messages in trace.mpi_messages.chunks(WAKES_OF_PIECE) {
        let mut rows: Vec<[u64; 4]> = messages
            .iter()
            .filter_map(|message| {
                let (sent, received) = (book.time(message.sent_ns), book.time(message.received_ns));
                Some([received, received.saturating_sub(sent), track(book, message.from)?, track(book, message.to)?])
            })
            .collect();
        rows.sort_unstable();
        let (Some(first), Some(last)) = (rows.first().map(|row| row[0]), rows.last().map(|row| row[0])) else {
            continue;
        };
        pieces.push(book.packer.add(Class::Detail, rows.len(), (first, last), |bytes| {
            let mut at = first;
            for row in &rows {
                varint(bytes, row[0] - at);
                at = row[0];
            }
            (1..4).for_each(|column| rows.iter().for_each(|row| varint(bytes, row[column])));
        }));
    }
    pieces
}

/// The tasks in the order of their indices: name, number, track, parent and one, start and one; 0 for what is not known.
pub fn task_table(book: &mut Book) -> Vec<Piece> {
    let trace = book.trace;
    if trace.tasks.is_empty() {
        return Vec::new();
    }
    let names: Vec<u32> = trace.tasks.iter().map(|task| book.names.id(trace, task.name)).collect();
    let Book { plan, packer, trace, duration_ns, .. } = book;
    let time = |ns: u64| ns.saturating_sub(trace.start_ns).min(*duration_ns);
    let piece = packer.add(Class::Detail, trace.tasks.len(), (0, 0), |bytes| {
        names.iter().for_each(|&name| varint(bytes, u64::from(name)));
        trace.tasks.iter().for_each(|task| varint(bytes, u64::from(task.number)));
        plan.task.iter().for_each(|&track| varint(bytes, u64::from(track)));
        trace.tasks.iter().for_each(|task| varint(bytes, task.parent.map_or(0, |parent| u64::from(parent) + 1)));
        trace.tasks.iter().for_each(|task| varint(bytes, task.spawned_ns.map_or(0, |ns| time(ns) + 1)));
    });
    vec![piece]
}
