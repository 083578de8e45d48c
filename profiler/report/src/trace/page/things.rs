//! Tracks of what tasks use and say: devices, connections, spans, functions, counters, messages.

use std::net::Ipv4Addr;

use glass_profiler_core::trace::model::{Direction, Function, GROUPS, Trace};
use glass_profiler_core::trace::path::{Index, path_task};

use super::book::Book;
use super::kinds::{self, *};
use super::pack::zigzag;
use super::track::{Track, write_counter};
use super::tracks::{ByNumber, cut};

/// Tracks of a device that are shown at first; those of more requests at a time are opened by a click.
const LEVELS_SHOWN: u32 = 6;

pub fn devices(book: &mut Book) {
    let trace = book.trace;
    let first = book.tracks.len() as u32;
    // Tracks of kicks lie between those of two devices.
    let end = book.plan.device.last().map_or(first, |&(from, count)| from + count);
    let tracks = ByNumber::new((end - first) as usize, book.plan.request.iter().map(|track| track.checked_sub(first)));
    let kicks = ByNumber::new(trace.devices.len(), trace.kicks.iter().map(|kick| Some(kick.device)));
    let kick_name = book.names.of("notify");
    let words = ["request", "read", "write", "flush", "transmit", "receive"].map(|word| book.names.of(word));
    for (index, device) in trace.devices.iter().enumerate() {
        let (from, count) = book.plan.device[index];
        let name = printable_or(trace, device.name, "device");
        for level in 0..count {
            let mut track = Track::new(DEVICE);
            for &request in tracks.of((from - first + level) as usize) {
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
                track.push(range, kind, words[request.operation as usize], &columns);
            }
            let parent = (level >= LEVELS_SHOWN).then_some(from);
            book.add(DEVICE, &level_name(&name, level), parent, track);
        }
        if book.plan.kicks[index].is_some() {
            let mut track = Track::new(KICKS);
            for &kick in kicks.of(index) {
                let kick = &trace.kicks[kick as usize];
                let at = book.time(kick.time_ns);
                let columns = [book.plan.core_link(kick.core), book.plan.task_index(kick.task)];
                track.push((at, at), KICK, kick_name, &columns);
            }
            book.add(KICKS, &format!("{name} notify"), None, track);
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
    let first = book.tracks.len() as u32;
    let track_of = |connection: u32| book.plan.connection.get(connection as usize).map(|track| track - first);
    let count = book.plan.connection_tracks.len();
    let all = ByNumber::new(count, (0..trace.connections.len() as u32).map(track_of));
    let of_connection = trace.segments.iter().map(|segment| Some(segment.connection));
    let segments = ByNumber::new(trace.connections.len(), of_connection);
    let words = ["received", "sent", "retransmitted"].map(|word| book.names.of(word));
    let open = ["open", "open before the trace"].map(|word| book.names.of(word));
    for index in 0..count {
        let mut track = Track::new(CONNECTION);
        for &connection in all.of(index) {
            let of = &trace.connections[connection as usize];
            let numbers = [u64::from(of.number), u64::from(of.remote_port)];
            let mut since = book.time(of.known_ns);
            let [known, before] = open;
            let opened = |track: &mut Track, from: u64, to: u64| {
                if to > from {
                    let name = if of.start_ns.is_none() { before } else { known };
                    let remarks = u64::from(of.start_ns.is_none()) | u64::from(of.end_ns.is_none()) << 1;
                    track.push((from, to), OPEN, name, &[numbers[0], numbers[1], 0, 0, 0, 0, 0, 0, remarks]);
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
                opened(&mut track, since, at);
                since = since.max(at);
                let kind = kinds::segment(segment.direction);
                track.push((at, at), kind, words[(kind - kinds::segment(Direction::In)) as usize], &columns);
            }
            opened(&mut track, since, book.time(trace.connection_end_ns(of)));
        }
        let shared = &book.plan.connection_tracks[index];
        let of = &trace.connections[shared.first as usize];
        let name = match (of.remote, shared.count) {
            (0, 1) => format!("connection {}", of.number),
            (0, count) => format!("connections ×{count}"),
            (remote, 1) => format!("{}:{} → :{}", Ipv4Addr::from(remote), of.remote_port, of.local_port),
            (remote, count) => format!("{} → :{} ×{count}", Ipv4Addr::from(remote), of.local_port),
        };
        book.add(CONNECTION, &name, None, track);
    }
}

pub fn spans(book: &mut Book) {
    let trace = book.trace;
    let (first, count) = book.plan.span_tracks;
    let tracks = ByNumber::new(count as usize, book.plan.span.iter().map(|track| track.checked_sub(first)));
    let index = Index::new(trace);
    for level in 0..count {
        let mut track = Track::new(SPAN_TRACK);
        for &of in tracks.of(level as usize) {
            let span = &trace.spans[of as usize];
            let parent = span.parent.and_then(|parent| {
                Some((*book.plan.span.get(parent as usize)?, trace.spans.get(parent as usize)?.start_ns))
            });
            let link = parent.map_or((0, 0), |(track, at)| {
                (u64::from(track) + 1, zigzag(book.time(at) as i64 - book.time(span.start_ns) as i64))
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
            track.push(book.range(span.start_ns, trace.span_end_ns(span)), SPAN, name, &columns);
            track.text(book.fields(&span.fields));
        }
        book.add(SPAN_TRACK, &level_name("spans", level), None, track);
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

    /// Those of some calls that are on the track `number`; `track_of` returns the track of any.
    pub fn track(&self, book: &Book, number: u32, calls: &[u32], track_of: impl Fn(u32) -> Option<u32>) -> Track {
        let trace = book.trace;
        let mut track = Track::new(CALLS);
        for &index in calls.iter().filter(|index| track_of(**index) == Some(number)) {
            let call = &trace.calls[index as usize];
            let link = call.parent.and_then(|parent| {
                let caller = trace.calls.get(parent as usize)?;
                let at = book.time(caller.start_ns) as i64 - book.time(call.start_ns) as i64;
                Some((u64::from(track_of(parent)?) + 1, zigzag(at)))
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
            track.push(book.range(call.start_ns, call.end_ns), CALL, of(&self.names), &columns);
        }
        track
    }
}

pub fn calls(book: &mut Book) {
    let trace = book.trace;
    let functions = Functions::new(book);
    let calls = ByNumber::new(trace.cores.len(), trace.calls.iter().map(|call| Some(call.core)));
    for (index, core) in trace.cores.iter().enumerate() {
        let (first, count) = book.plan.calls[index];
        for level in 0..count {
            let track =
                functions.track(book, first + level, calls.of(index), |call| book.plan.track_of_call(trace, call));
            book.add(CALLS, &level_name(&core.name, level), None, track);
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
    let mut track = Track::new(MESSAGES);
    for message in &trace.messages {
        let at = book.time(message.time_ns);
        let span = message
            .span
            .and_then(|span| Some((*book.plan.span.get(span as usize)?, trace.spans.get(span as usize)?.start_ns)));
        let link =
            span.map_or((0, 0), |(track, start)| (u64::from(track) + 1, zigzag(book.time(start) as i64 - at as i64)));
        let columns = [book.plan.core_link(message.core), book.plan.task_index(message.task), link.0, link.1];
        let name = book.names.id(trace, message.place);
        track.push((at, at), kinds::message(message.level), name, &columns);
        let fields = book.fields(&message.fields);
        let text: String =
            message.text.split('\n').map(glass_profiler_core::names::printable).collect::<Vec<_>>().join("\n");
        let text = if message.text.is_empty() { String::new() } else { text };
        track.text(if fields.is_empty() { text } else { format!("{text}\n{fields}") });
    }
    book.add(MESSAGES, "messages", None, track);
}

/// What was traced from when on: it explains why tracks are empty.
pub fn switches(book: &mut Book) {
    let trace = book.trace;
    if trace.switches.is_empty() {
        return;
    }
    let mut track = Track::new(SWITCHES);
    for switch in &trace.switches {
        let on: Vec<&str> =
            GROUPS.iter().filter(|(group, _)| switch.groups & *group as u32 != 0).map(|(_, name)| *name).collect();
        let name = if on.is_empty() { "off".to_string() } else { format!("on: {}", on.join(", ")) };
        let name = book.names.of(&name);
        let at = book.time(switch.time_ns);
        track.push((at, at), SWITCH, name, &[book.plan.core_link(switch.core)]);
    }
    book.add(SWITCHES, "trace on/off", None, track);
}
