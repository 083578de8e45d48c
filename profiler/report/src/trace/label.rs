//! Names of what is in a trace, as sentences use them: safe to print, in backquotes where they are the guest's own words.

use glass_profiler_core::trace::model::{BlockKind, Cause, NameId, Operation, Trace};
use glass_profiler_core::trace::path::Topic;

use glass_profiler_core::names::printable;
use glass_profiler_core::words::{operation as operation_word, resource};

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

/// What a task waits for, by kind and name.
pub(super) fn reason(trace: &Trace, kind: BlockKind, name: NameId) -> String {
    resource(kind, trace.name(name))
}

/// What ends waits, in a few words.
pub(super) fn cause(trace: &Trace, cause: Cause) -> String {
    match cause {
        Cause::Unknown => "unknown".into(),
        Cause::Task(index) => {
            format!("task {}", printable(trace.tasks.get(index as usize).map_or("", |task| trace.name(task.name))))
        }
        Cause::Request(index) => match trace.requests.get(index as usize) {
            Some(request) => device(trace, request.device, request.operation),
            None => "a device request".into(),
        },
        Cause::Segment(_) => "segments".into(),
        Cause::Timer => "timers".into(),
        Cause::Interrupt(_) => "interrupts".into(),
    }
}

/// A device and an operation: "disk 0 write".
pub(super) fn device(trace: &Trace, device: u32, operation: Operation) -> String {
    let name = trace.devices.get(device as usize).map_or("", |device| trace.name(device.name));
    format!("{} {}", printable(name), operation_word(operation))
}

/// What parts of paths are about. The page's `path.js` has the same words.
pub(super) fn topic(trace: &Trace, topic: Topic) -> String {
    match topic {
        Topic::Run(name) => format!("{} running", printable(trace.name(name))),
        Topic::Core => "running outside of any task".into(),
        Topic::Ready => "runnable".into(),
        Topic::Device(index, operation) => device(trace, index, Operation::from_number(operation)),
        Topic::Network => "peer".into(),
        Topic::Timer(name) => reason(trace, BlockKind::Timer, name),
        Topic::Wait(kind, name) => reason(trace, BlockKind::from_number(kind), name),
        Topic::Unknown => "unknown".into(),
    }
}

/// "0.142 s", "3.10 ms": with three digits.
pub(super) use glass_profiler_core::format::duration;

/// A moment since the start of the recording, the clock of samples and of the page: `1.234567 s`.
pub(super) fn moment(time_ns: u64) -> String {
    format!("{:.6} s", time_ns as f64 / 1e9)
}
