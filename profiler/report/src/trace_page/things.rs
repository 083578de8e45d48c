//! Lanes of what tasks use and say: devices, connections, spans, functions, counters, messages.

use std::net::Ipv4Addr;

use glass_profile::trace::model::{Direction, Trace};

use super::book::Book;
use super::kinds::{self, *};
use super::lane::{Lane, write_counter};
use super::lanes::{ByNumber, cut, whole};
use super::pack::zigzag;
use super::plan::call_level;

pub fn devices(book: &mut Book) {
    let trace = book.trace;
    let first = book.lanes.len() as u32;
    let last: u32 = book.plan.device.iter().map(|&(_, count)| count).sum();
    let lanes = ByNumber::new(last as usize, book.plan.request.iter().map(|lane| lane.checked_sub(first)));
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
                    book.plan.task_link(request.task),
                    u64::from(request.has_failed) | u64::from(request.complete_ns.is_none()) << 1,
                ];
                let range = book.range(request.submit_ns, request.complete_ns.unwrap_or(trace.end_ns));
                lane.push(range, kind, words[request.operation as usize], &columns);
            }
            let label = if level == 0 { name.clone() } else { String::new() };
            book.add(DEVICE, &label_or(&label, &name, level), whole(book), lane);
        }
    }
}

/// Lanes of one stack: the first has the name, the others count.
fn label_or(label: &str, name: &str, level: u32) -> String {
    if label.is_empty() { format!("{name} · {}", level + 1) } else { label.to_string() }
}

fn printable_or(trace: &Trace, name: u32, other: &str) -> String {
    match trace.name(name) {
        "" => other.to_string(),
        name => name.to_string(),
    }
}

pub fn connections(book: &mut Book) {
    let trace = book.trace;
    let first = book.lanes.len() as u32;
    let lane_of = |connection: u32| book.plan.connection.get(connection as usize).map(|lane| lane - first);
    let count = book.plan.connection_lanes.len();
    let segments = ByNumber::new(count, trace.segments.iter().map(|segment| lane_of(segment.connection)));
    let words = ["in", "out", "out again"].map(|word| book.names.of(word));
    for index in 0..count {
        let mut lane = Lane::new(CONNECTION);
        for &segment in segments.of(index) {
            let segment = &trace.segments[segment as usize];
            let of = &trace.connections[segment.connection as usize];
            let columns = [
                u64::from(of.number),
                u64::from(of.remote_port),
                u64::from(segment.bytes),
                u64::from(segment.flags & 63),
                u64::from(segment.sequence),
                u64::from(segment.acknowledgement),
                u64::from(segment.window),
                book.plan.core_link(segment.core),
            ];
            let at = book.time(segment.time_ns);
            let kind = kinds::segment(segment.direction);
            lane.push((at, at), kind, words[(kind - kinds::segment(Direction::In)) as usize], &columns);
        }
        let shared = &book.plan.connection_lanes[index];
        let of = &trace.connections[shared.first as usize];
        let name = match (of.remote, shared.count) {
            (0, 1) => format!("connection {}", of.number),
            (0, count) => format!("connections ×{count}"),
            (remote, 1) => format!("{}:{} → :{}", Ipv4Addr::from(remote), of.remote_port, of.local_port),
            (remote, count) => format!("{} → :{} ×{count}", Ipv4Addr::from(remote), of.local_port),
        };
        let range = match shared.count {
            1 => book.range(of.start_ns.unwrap_or(trace.start_ns), of.end_ns.unwrap_or(trace.end_ns)),
            _ => whole(book),
        };
        book.add(CONNECTION, &name, range, lane);
    }
}

pub fn spans(book: &mut Book) {
    let trace = book.trace;
    let (first, count) = book.plan.span_lanes;
    let lanes = ByNumber::new(count as usize, book.plan.span.iter().map(|lane| lane.checked_sub(first)));
    for level in 0..count {
        let mut lane = Lane::new(SPAN_LANE);
        for &index in lanes.of(level as usize) {
            let span = &trace.spans[index as usize];
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
                book.plan.task_link(span.task),
                u64::from(span.end_ns.is_none()),
            ];
            let name = book.names.id(trace, span.name);
            lane.push(book.range(span.start_ns, span.end_ns.unwrap_or(trace.end_ns)), SPAN, name, &columns);
            lane.text(book.fields(&span.fields));
        }
        book.add(
            SPAN_LANE,
            &if level == 0 { "spans".into() } else { format!("spans · {}", level + 1) },
            whole(book),
            lane,
        );
    }
}

pub fn calls(book: &mut Book) {
    let trace = book.trace;
    let names: Vec<u32> = trace.functions.iter().map(|function| book.names.of(&function.name)).collect();
    let places: Vec<u32> = trace
        .functions
        .iter()
        .map(|function| match (&function.file, function.line) {
            (Some(file), Some(line)) => book.names.of(&format!("{file}:{line}")),
            (Some(file), None) => book.names.of(file),
            (None, _) => 0,
        })
        .collect();
    let first = book.lanes.len() as u32;
    let count: u32 = book.plan.calls.iter().map(|&(_, count)| count).sum();
    let lane_of = |core: u32, depth: u32| {
        book.plan.calls.get(core as usize).map(|&(start, _)| start - first + call_level(depth) as u32)
    };
    let lanes = ByNumber::new(count as usize, trace.calls.iter().map(|call| lane_of(call.core, call.depth)));
    for (index, core) in trace.cores.iter().enumerate() {
        let (start, levels) = book.plan.calls[index];
        for level in 0..levels {
            let mut lane = Lane::new(CALLS);
            for &call in lanes.of((start - first + level) as usize) {
                let call = &trace.calls[call as usize];
                let caller = call.parent.and_then(|parent| trace.calls.get(parent as usize));
                let link = caller.and_then(|caller| {
                    let (of_core, _) = book.plan.calls.get(caller.core as usize)?;
                    let lane = of_core + call_level(caller.depth) as u32;
                    let at = book.time(caller.start_ns) as i64 - book.time(call.start_ns) as i64;
                    Some((u64::from(lane) + 1, zigzag(at)))
                });
                let (link, at) = link.unwrap_or((0, 0));
                let function = call.function as usize;
                let columns = [
                    book.plan.task_link(call.task),
                    link,
                    at,
                    cut(call.is_cut, call.is_tail),
                    u64::from(places.get(function).copied().unwrap_or(0)),
                ];
                let name = names.get(function).copied().unwrap_or(0);
                lane.push(book.range(call.start_ns, call.end_ns), CALL, name, &columns);
            }
            book.add(CALLS, &label_or(if level == 0 { &core.name } else { "" }, &core.name, level), whole(book), lane);
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
        book.entry(COUNTER, &printable_or(trace, counter.name, "counter"), whole(book), written);
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
        let columns = [book.plan.core_link(message.core), book.plan.task_link(message.task), link.0, link.1];
        let name = book.names.id(trace, message.place);
        lane.push((at, at), kinds::message(message.level), name, &columns);
        let fields = book.fields(&message.fields);
        let text: String = message.text.split('\n').map(crate::names::printable).collect::<Vec<_>>().join("\n");
        let text = if message.text.is_empty() { String::new() } else { text };
        lane.text(if fields.is_empty() { text } else { format!("{text}\n{fields}") });
    }
    book.add(MESSAGES, "messages", whole(book), lane);
}
