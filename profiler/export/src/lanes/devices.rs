//! Tracks of devices, with a slice for each request, and of connections, with their segments.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::Ipv4Addr;

use glass_profiler_core::trace::model::{Connection, Direction, Value};
use glass_profiler_core::words;

use super::flows::{Place, Step, Wakes, request_arrow};
use super::nest::Rows;
use super::{Board, Lane, Mark, device_name, task_name, text};

/// Maximum of requests in flight of one device that are followed.
const IN_FLIGHT_MAX: usize = 1 << 16;

pub(super) fn draw(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    for device in 0..trace.devices.len() as u32 {
        board.describe(Lane::Device(device), || device_name(trace, device), false)?;
    }
    let wakes = Wakes::new(trace);
    submissions(board)?;
    requests(board, &wakes)?;
    notifications(board)?;
    in_flight(board)?;
    connections(board, &wakes)
}

/// On the track of the submitting task: the start of the arrow to the request.
fn submissions(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    for (index, request) in (0u32..).zip(&trace.requests) {
        let Some(task) = request.task else { continue };
        let what = words::operation(request.operation);
        let name = format!("{}: {what}", device_name(trace, request.device));
        let steps = [Step { arrow: request_arrow(index), place: Place::Begin }];
        let details = [("request", Value::Unsigned(request.number)), ("bytes", Value::Unsigned(request.bytes.into()))];
        let mark = Mark::moment(Lane::Task(task), request.submit_ns, "submit", &name);
        board.instant(&Mark { steps: &steps, details: &details, ..mark }, || task_name(trace, task))?;
    }
    Ok(())
}

fn requests(board: &mut Board<'_>, wakes: &Wakes) -> io::Result<()> {
    let trace = board.trace;
    let mut rows: Vec<Rows> = trace.devices.iter().map(|_| Rows::default()).collect();
    let mut steps = Vec::new();
    for (index, request) in (0u32..).zip(&trace.requests) {
        let Some(rows) = rows.get_mut(request.device as usize) else { continue };
        let end_ns = trace.request_end_ns(request);
        let row = rows.place(request.submit_ns, end_ns, false);
        steps.clear();
        if request.task.is_some() {
            steps.push(Step { arrow: request_arrow(index), place: Place::End });
        }
        wakes.of_request(index, &mut steps);
        let mut details = vec![
            ("request", Value::Unsigned(request.number)),
            ("bytes", Value::Unsigned(request.bytes.into())),
            ("under_way", Value::Unsigned(request.depth.into())),
        ];
        if let Some(task) = request.task {
            details.push(("task", text(task_name(trace, task))));
        }
        if request.has_failed {
            details.push(("has_failed", Value::Bool(true)));
        }
        let what = words::operation(request.operation);
        let name = match request.complete_ns {
            Some(_) => what.to_owned(),
            None => format!("{what} (completion not in the trace)"),
        };
        let lane = Lane::Requests { device: request.device, row };
        let mark = Mark::new(lane, request.submit_ns, end_ns, "request", &name);
        board.slice(&Mark { steps: &steps, details: &details, ..mark }, || "requests".to_owned())?;
    }
    Ok(())
}

/// On the track of the device: its notifications, with their costs.
fn notifications(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    for kick in &trace.kicks {
        let mut details = vec![("device", text(device_name(trace, kick.device)))];
        details.extend(kick.took_ns.map(|ns| ("took_ns", Value::Unsigned(ns))));
        let mark = Mark::moment(Lane::Device(kick.device), kick.time_ns, "notify", "notify");
        board.instant(&Mark { details: &details, ..mark }, || device_name(trace, kick.device))?;
    }
    Ok(())
}

/// The number of requests in flight of each device over time.
fn in_flight(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    for device in 0..trace.devices.len() as u32 {
        let lane = Lane::InFlight(device);
        let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        for request in trace.requests.iter().filter(|other| other.device == device) {
            let (submit_ns, end_ns) = (request.submit_ns, trace.request_end_ns(request));
            board.describe(lane, || "requests in flight".to_owned(), true)?;
            while let Some(end) = ends.peek().copied().filter(|end| end.0 <= submit_ns) {
                ends.pop();
                board.viewer.value(lane, end.0, ends.len() as i64)?;
            }
            if ends.len() < IN_FLIGHT_MAX {
                // A request that is open at the end of the trace stays in flight.
                let is_open = request.complete_ns.is_none() && end_ns == trace.end_ns;
                ends.push(Reverse(if is_open { u64::MAX } else { end_ns }));
            }
            board.viewer.value(lane, submit_ns, ends.len() as i64)?;
        }
        while let Some(end) = ends.pop().filter(|end| end.0 < u64::MAX) {
            board.viewer.value(lane, end.0, ends.len() as i64)?;
        }
    }
    Ok(())
}

fn connection_name(connection: &Connection) -> String {
    let Connection { number, remote, local_port, remote_port, .. } = *connection;
    match (remote, remote_port) {
        (0, 0) => format!("connection {number}"),
        _ => format!("connection {number}: {}:{remote_port} to port {local_port}", Ipv4Addr::from(remote)),
    }
}

fn connections(board: &mut Board<'_>, wakes: &Wakes) -> io::Result<()> {
    let trace = board.trace;
    for (index, connection) in (0u32..).zip(&trace.connections) {
        let name = connection_name(connection);
        let lane = Lane::Connection(index);
        let (start_ns, end_ns) = (connection.known_ns, trace.connection_end_ns(connection));
        board.slice(&Mark::new(lane, start_ns, end_ns, "connection", "open"), || name)?;
    }
    let mut steps = Vec::new();
    for (index, segment) in (0u32..).zip(&trace.segments) {
        steps.clear();
        wakes.of_segment(index, &mut steps);
        let direction = match segment.direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Again => "retransmitted",
        };
        let details = [
            ("bytes", Value::Unsigned(segment.bytes.into())),
            ("window", Value::Unsigned(segment.window.into())),
            ("sequence", Value::Unsigned(segment.sequence.into())),
            ("acknowledgement", Value::Unsigned(segment.acknowledgement.into())),
            ("flags", text(words::flags(segment.flags))),
        ];
        let name = if segment.bytes > 0 { direction.to_owned() } else { format!("{direction}, no data") };
        let mark = Mark::moment(Lane::Connection(segment.connection), segment.time_ns, "segment", &name);
        board.instant(&Mark { steps: &steps, details: &details, ..mark }, || "connection".to_owned())?;
    }
    Ok(())
}
