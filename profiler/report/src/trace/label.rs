//! Names of what is in a trace, as sentences use them: safe to print, in backquotes where they are the guest's own words.

use glass_profile::trace::model::{BlockKind, Cause, NameId, Operation, Reason, Trace};
use glass_profile::trace::path::Topic;

use crate::names::printable;
use crate::words::{operation as operation_word, wait as wait_phrase};

/// A name of the guest in backquotes.
pub(super) fn quoted(trace: &Trace, name: NameId) -> String {
    format!("`{}`", printable(trace.name(name)))
}

/// A task's name and number: "connection #17".
pub(super) fn task(trace: &Trace, task: u32) -> String {
    let Some(task) = trace.tasks.get(task as usize) else { return "a task".into() };
    let name = trace.name(task.name);
    match name == format!("task {}", task.number) || name.is_empty() {
        true => format!("task {}", task.number),
        false => format!("{} #{}", printable(name), task.number),
    }
}

/// What a task waits for, by kind and name: the guest's own words, or ours where it has none.
pub(super) fn reason(trace: &Trace, kind: BlockKind, name: NameId) -> String {
    match trace.name(name) {
        "" => wait_phrase(kind, ""),
        _ => quoted(trace, name),
    }
}

/// All reasons of a wait, any of which ends it.
pub(super) fn reasons(trace: &Trace, reasons: &[Reason]) -> String {
    match reasons {
        [] => "something that it did not name".into(),
        [one] => reason(trace, one.kind, one.name),
        [one, two] => format!("{} or {}", reason(trace, one.kind, one.name), reason(trace, two.kind, two.name)),
        [one, rest @ ..] => format!("{} or any of {} more", reason(trace, one.kind, one.name), rest.len()),
    }
}

/// Who ends waits, in a few words.
pub(super) fn cause(trace: &Trace, cause: Cause) -> String {
    match cause {
        Cause::Unknown => "unknown".into(),
        Cause::Task(index) => {
            format!("task {}", printable(trace.tasks.get(index as usize).map_or("", |task| trace.name(task.name))))
        }
        Cause::Request(index) => match trace.requests.get(index as usize) {
            Some(request) => device(trace, request.device, request.operation),
            None => "a request".into(),
        },
        Cause::Segment(_) => "segments".into(),
        Cause::Timer => "deadlines".into(),
        Cause::Interrupt(_) => "interrupts".into(),
    }
}

/// A device and what it is asked for: "disk 0 write".
pub(super) fn device(trace: &Trace, device: u32, operation: Operation) -> String {
    let name = trace.devices.get(device as usize).map_or("", |device| trace.name(device.name));
    format!("{} {}", printable(name), operation_word(operation))
}

/// What parts of paths are about.
pub(super) fn topic(trace: &Trace, topic: Topic) -> String {
    match topic {
        Topic::Run(name) => format!("running {}", quoted(trace, name)),
        Topic::Core => "running outside of any task".into(),
        Topic::Ready => "ready, waiting for a core".into(),
        Topic::Device(index, operation) => {
            let name = trace.devices.get(index as usize).map_or(0, |device| device.name);
            format!("{} ({})", quoted(trace, name), operation_word(Operation::from_number(operation)))
        }
        Topic::Network => "the other side of the connection".into(),
        Topic::Timer(name) if trace.name(name).is_empty() => "a deadline".into(),
        Topic::Timer(name) => format!("the deadline of {}", quoted(trace, name)),
        Topic::Wait(kind, name) => reason(trace, BlockKind::from_number(kind), name),
        Topic::Unknown => "what the trace does not tell".into(),
    }
}

/// "0.142 s", "3.10 ms": with three digits.
pub(super) use crate::format::duration;

/// A moment since the begin of the trace: `1.234567 s`.
pub(super) fn moment(trace: &Trace, time_ns: u64) -> String {
    format!("{:.6} s", time_ns.saturating_sub(trace.start_ns) as f64 / 1e9)
}
