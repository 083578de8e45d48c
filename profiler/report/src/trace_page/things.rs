//! Lanes of what tasks use and say: devices, connections, spans, functions, counters, messages.

use std::net::Ipv4Addr;

use glass_profile::trace::model::{Call, Direction, Function, GROUPS, Trace};
use glass_profile::trace::path::{Index, path_task};

use super::book::Book;
use super::kinds::{self, *};
use super::lane::{Lane, write_counter};
use super::lanes::{ByNumber, cut};
use super::pack::zigzag;
use super::plan::call_level;

/// Lanes of a device that are shown at first; those of more requests at a time are opened by a click.
const LEVELS_SHOWN: u32 = 6;

pub fn devices(book: &mut Book) {
    let trace = book.trace;
    let first = book.lanes.len() as u32;
    // Lanes of kicks lie between those of two devices.
    let end = book.plan.device.last().map_or(first, |&(from, count)| from + count);
    let lanes = ByNumber::new((end - first) as usize, book.plan.request.iter().map(|lane| lane.checked_sub(first)));
    let kicks = ByNumber::new(trace.devices.len(), trace.kicks.iter().map(|kick| Some(kick.device)));
    let kick_name = book.names.of("notify");
    let words = ["request", "read", "write", "flush", "transmit", "receive"].map(|word| book.names.of(word));
    for (index, device) in trace.devices.iter().enumerate() {
        let (from, count) = book.plan.device[index];
        let name = printable_or(trace, device.name, "device");
        for level in 0..count {
            let mut lane = Lane::new(DEVICE);
            for &request in lanes.of((from - first + level) as usize) {
                let request = &trace.requests[request as usize];
                let kind = if request.has_failed { FAILED } else { kinds::operation(request.operation) };
                let columns = [
                    request.number,
                    u64::from(request.bytes),
                    u64::from(request.depth),
                    book.plan.task_index(request.task),
                    u64::from(request.has_failed)
                        | u64::from(request.complete_ns.is_none()) << 1
                        | u64::from(request.complete_ns.is_some() && request.latency_ns().is_none()) << 2,
                ];
                let range = book.range(request.submit_ns, trace.request_end_ns(request));
                lane.push(range, kind, words[request.operation as usize], &columns);
            }
            let parent = (level >= LEVELS_SHOWN).then_some(from);
            book.add(DEVICE, &level_name(&name, level), parent, lane);
        }
        if book.plan.kicks[index].is_some() {
            let mut lane = Lane::new(KICKS);
            for &kick in kicks.of(index) {
                let kick = &trace.kicks[kick as usize];
                let at = book.time(kick.time_ns);
                let columns = [book.plan.core_link(kick.core), book.plan.task_index(kick.task)];
                lane.push((at, at), KICK, kick_name, &columns);
            }
            book.add(KICKS, &format!("{name} notify"), None, lane);
        }
    }
}

/// Rows of one track: the first has its name, the others their depth, from 2 on.
pub fn level_name(name: &str, level: u32) -> String {
    if level == 0 { name.to_string() } else { format!("{name} · depth {}", level + 1) }
}

fn printable_or(trace: &Trace, name: u32, other: &str) -> String {
    match trace.name(name) {
        "" => other.to_string(),
        name => name.to_string(),
    }
}

/// Each connection from its start to its end, with its segments as marks.
pub fn connections(book: &mut Book) {
    let trace = book.trace;
    let first = book.lanes.len() as u32;
    let lane_of = |connection: u32| book.plan.connection.get(connection as usize).map(|lane| lane - first);
    let count = book.plan.connection_lanes.len();
    let all = ByNumber::new(count, (0..trace.connections.len() as u32).map(lane_of));
    let of_connection = trace.segments.iter().map(|segment| Some(segment.connection));
    let segments = ByNumber::new(trace.connections.len(), of_connection);
    let words = ["received", "sent", "retransmitted"].map(|word| book.names.of(word));
    let open = ["open", "open before the trace"].map(|word| book.names.of(word));
    for index in 0..count {
        let mut lane = Lane::new(CONNECTION);
        for &connection in all.of(index) {
            let of = &trace.connections[connection as usize];
            let numbers = [u64::from(of.number), u64::from(of.remote_port)];
            let mut since = book.time(of.known_ns);
            let [known, before] = open;
            let opened = |lane: &mut Lane, from: u64, to: u64| {
                if to > from {
                    let name = if of.start_ns.is_none() { before } else { known };
                    let remarks = u64::from(of.start_ns.is_none()) | u64::from(of.end_ns.is_none()) << 1;
                    lane.push((from, to), OPEN, name, &[numbers[0], numbers[1], 0, 0, 0, 0, 0, 0, remarks]);
                }
            };
            for &segment in segments.of(connection as usize) {
                let segment = &trace.segments[segment as usize];
                let columns = [
                    numbers[0],
                    numbers[1],
                    u64::from(segment.bytes),
                    u64::from(segment.flags & 63),
                    u64::from(segment.sequence),
                    u64::from(segment.acknowledgement),
                    u64::from(segment.window),
                    book.plan.core_link(segment.core),
                    0,
                ];
                let at = book.time(segment.time_ns);
                opened(&mut lane, since, at);
                since = since.max(at);
                let kind = kinds::segment(segment.direction);
                lane.push((at, at), kind, words[(kind - kinds::segment(Direction::In)) as usize], &columns);
            }
            opened(&mut lane, since, book.time(trace.connection_end_ns(of)));
        }
        let shared = &book.plan.connection_lanes[index];
        let of = &trace.connections[shared.first as usize];
        let name = match (of.remote, shared.count) {
            (0, 1) => format!("connection {}", of.number),
            (0, count) => format!("connections ×{count}"),
            (remote, 1) => format!("{}:{} → :{}", Ipv4Addr::from(remote), of.remote_port, of.local_port),
            (remote, count) => format!("{} → :{} ×{count}", Ipv4Addr::from(remote), of.local_port),
        };
        book.add(CONNECTION, &name, None, lane);
    }
}

pub fn spans(book: &mut Book) {
    let trace = book.trace;
    let (first, count) = book.plan.span_lanes;
    let lanes = ByNumber::new(count as usize, book.plan.span.iter().map(|lane| lane.checked_sub(first)));
    let index = Index::new(trace);
    for level in 0..count {
        let mut lane = Lane::new(SPAN_LANE);
        for &of in lanes.of(level as usize) {
            let span = &trace.spans[of as usize];
            let parent = span.parent.and_then(|parent| {
                Some((*book.plan.span.get(parent as usize)?, trace.spans.get(parent as usize)?.start_ns))
            });
            let link = parent.map_or((0, 0), |(lane, at)| {
                (u64::from(lane) + 1, zigzag(book.time(at) as i64 - book.time(span.start_ns) as i64))
            });
            let columns = [
                span.number,
                u64::from(span.level),
                link.0,
                link.1,
                book.plan.task_index(span.task),
                book.plan.task_index(path_task(trace, &index, of)),
                u64::from(span.end_ns.is_none()) | u64::from(span.begin_is_lost) << 1,
            ];
            let name = book.names.id(trace, span.name);
            lane.push(book.range(span.start_ns, trace.span_end_ns(span)), SPAN, name, &columns);
            lane.text(book.fields(&span.fields));
        }
        book.add(SPAN_LANE, &level_name("spans", level), None, lane);
    }
}

/// Names and places of the functions.
pub struct Functions {
    names: Vec<u32>,
    places: Vec<u32>,
}

impl Functions {
    pub fn new(book: &mut Book) -> Functions {
        let functions = &book.trace.functions;
        let names = functions.iter().map(|function| book.names.of(&function.name)).collect();
        let place = |function: &Function| match (&function.file, function.line) {
            (Some(file), Some(line)) => book.names.of(&format!("{file}:{line}")),
            (Some(file), None) => book.names.of(file),
            (None, _) => 0,
        };
        Functions { names, places: functions.iter().map(place).collect() }
    }

    /// Those of some calls that are on a level; `lane_of` returns the lane of another one.
    pub fn lane(&self, book: &Book, level: u32, calls: &[u32], lane_of: impl Fn(&Call) -> Option<u32>) -> Lane {
        let trace = book.trace;
        let mut lane = Lane::new(CALLS);
        for &call in calls {
            let call = &trace.calls[call as usize];
            if call_level(call.depth) as u32 != level {
                continue;
            }
            let caller = call.parent.and_then(|parent| trace.calls.get(parent as usize));
            let link = caller.and_then(|caller| {
                let at = book.time(caller.start_ns) as i64 - book.time(call.start_ns) as i64;
                Some((u64::from(lane_of(caller)?) + 1, zigzag(at)))
            });
            let (link, at) = link.unwrap_or((0, 0));
            let of = |list: &[u32]| list.get(call.function as usize).copied().unwrap_or(0);
            let columns = [
                book.plan.task_index(call.task),
                book.plan.core_link(call.core),
                link,
                at,
                cut(call.is_cut, call.is_tail),
                u64::from(of(&self.places)),
            ];
            lane.push(book.range(call.start_ns, call.end_ns), CALL, of(&self.names), &columns);
        }
        lane
    }
}

pub fn calls(book: &mut Book) {
    let trace = book.trace;
    let functions = Functions::new(book);
    let calls = ByNumber::new(trace.cores.len(), trace.calls.iter().map(|call| Some(call.core)));
    for (index, core) in trace.cores.iter().enumerate() {
        for level in 0..book.plan.calls[index].1 {
            let lane = functions.lane(book, level, calls.of(index), |call| {
                let (first, _) = book.plan.calls.get(call.core as usize)?;
                Some(first + call_level(call.depth) as u32)
            });
            book.add(CALLS, &level_name(&core.name, level), None, lane);
        }
    }
}

pub fn counters(book: &mut Book) {
    let trace = book.trace;
    for counter in &trace.counters {
        let mut points: Vec<(u64, i64)> = counter.points.iter().map(|&(at, value)| (book.time(at), value)).collect();
        points.sort_by_key(|point| point.0);
        let near = book.near();
        let written = write_counter(&points, &mut book.packer, book.duration_ns, near);
        book.entry(COUNTER, &printable_or(trace, counter.name, "counter"), None, written);
    }
}

pub fn messages(book: &mut Book) {
    let trace = book.trace;
    if trace.messages.is_empty() {
        return;
    }
    let mut lane = Lane::new(MESSAGES);
    for message in &trace.messages {
        let at = book.time(message.time_ns);
        let span = message
            .span
            .and_then(|span| Some((*book.plan.span.get(span as usize)?, trace.spans.get(span as usize)?.start_ns)));
        let link =
            span.map_or((0, 0), |(lane, start)| (u64::from(lane) + 1, zigzag(book.time(start) as i64 - at as i64)));
        let columns = [book.plan.core_link(message.core), book.plan.task_index(message.task), link.0, link.1];
        let name = book.names.id(trace, message.place);
        lane.push((at, at), kinds::message(message.level), name, &columns);
        let fields = book.fields(&message.fields);
        let text: String = message.text.split('\n').map(crate::names::printable).collect::<Vec<_>>().join("\n");
        let text = if message.text.is_empty() { String::new() } else { text };
        lane.text(if fields.is_empty() { text } else { format!("{text}\n{fields}") });
    }
    book.add(MESSAGES, "messages", None, lane);
}

/// What was traced from when on: it explains why lanes are empty.
pub fn switches(book: &mut Book) {
    let trace = book.trace;
    if trace.switches.is_empty() {
        return;
    }
    let mut lane = Lane::new(SWITCHES);
    for switch in &trace.switches {
        let on: Vec<&str> =
            GROUPS.iter().filter(|(group, _)| switch.groups & *group as u32 != 0).map(|(_, name)| *name).collect();
        let name = if on.is_empty() { "off".to_string() } else { format!("on: {}", on.join(", ")) };
        let name = book.names.of(&name);
        let at = book.time(switch.time_ns);
        lane.push((at, at), SWITCH, name, &[book.plan.core_link(switch.core)]);
    }
    book.add(SWITCHES, "trace on/off", None, lane);
}
