//! What a slice of a track can be, and what there is to say about one: the vocabulary that page and file share.

use glass_profiler_core::trace::model::{BlockKind, Direction, Operation};
use serde::Serialize;

/// How much a slice weighs where many share a pixel: a track shows from below what was strong, then what was middle,
/// then what was faint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    Strong,
    Middle,
    Faint,
}

/// A kind of slice. Its number in [`KINDS`] is what a file holds.
#[derive(Debug, Serialize)]
pub struct KindInfo {
    /// What a reader calls it.
    pub label: &'static str,
    pub weight: Weight,
    /// `name` for a colour by the slice's name, else a colour of `trace_colours.js`.
    pub colour: &'static str,
}

const fn kind(label: &'static str, weight: Weight, colour: &'static str) -> KindInfo {
    KindInfo { label, weight, colour }
}

pub const TASK_ON_CORE: u8 = 0;
pub const SPIN: u8 = 1;
pub const IDLE: u8 = 2;
pub const RUN: u8 = 3;
pub const READY: u8 = 4;
const WAIT: u8 = 5;
const REQUEST: u8 = 14;
pub const FAILED: u8 = 20;
pub const SPAN: u8 = 21;
pub const CALL: u8 = 22;
const SEGMENT: u8 = 23;
const MESSAGE: u8 = 26;
pub const INTERRUPT: u8 = 32;
pub const KICK: u8 = 33;
pub const OPEN: u8 = 34;
pub const SWITCH: u8 = 35;

pub const KINDS: &[KindInfo] = &[
    kind("poll", Weight::Strong, "name"),
    kind("spinning", Weight::Middle, "spinning"),
    kind("idle", Weight::Faint, "idle"),
    kind("running", Weight::Strong, "running"),
    kind("runnable", Weight::Middle, "ready"),
    kind("waiting", Weight::Faint, "wait"),
    kind("waiting for a timer", Weight::Faint, "waitTimer"),
    kind("waiting for a task", Weight::Faint, "waitNotify"),
    kind("waiting for I/O", Weight::Faint, "waitRequest"),
    kind("waiting to receive", Weight::Faint, "waitReceive"),
    kind("waiting to send", Weight::Faint, "waitSend"),
    kind("waiting for a connection", Weight::Faint, "waitAccept"),
    kind("waiting for a resource", Weight::Faint, "waitResource"),
    kind("yielded", Weight::Faint, "wait"),
    kind("request", Weight::Strong, "other"),
    kind("read", Weight::Strong, "read"),
    kind("write", Weight::Strong, "write"),
    kind("flush", Weight::Strong, "flush"),
    kind("transmit", Weight::Strong, "transmit"),
    kind("receive", Weight::Strong, "receive"),
    kind("failed request", Weight::Strong, "failed"),
    kind("span", Weight::Strong, "name"),
    kind("call", Weight::Strong, "name"),
    kind("segment received", Weight::Strong, "receive"),
    kind("segment sent", Weight::Strong, "transmit"),
    kind("segment retransmitted", Weight::Strong, "failed"),
    kind("message", Weight::Strong, "other"),
    kind("error", Weight::Strong, "failed"),
    kind("warning", Weight::Strong, "warning"),
    kind("info", Weight::Strong, "running"),
    kind("debug", Weight::Strong, "other"),
    kind("trace", Weight::Strong, "other"),
    kind("interrupt", Weight::Strong, "interrupt"),
    kind("notify", Weight::Strong, "other"),
    kind("open connection", Weight::Faint, "waitAccept"),
    kind("trace on/off", Weight::Strong, "warning"),
];

pub fn wait(kind: BlockKind) -> u8 {
    WAIT + kind as u8
}

pub fn operation(operation: Operation) -> u8 {
    REQUEST + operation as u8
}

pub fn segment(direction: Direction) -> u8 {
    SEGMENT
        + match direction {
            Direction::In => 0,
            Direction::Out => 1,
            Direction::Again => 2,
        }
}

/// By level, from 1 (error) to 5 (trace); 0 for one that is neither.
pub fn message(level: u8) -> u8 {
    MESSAGE + if level <= 5 { level } else { 0 }
}

/// How the page reads a column of numbers.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Show {
    Count,
    /// One that is not counted, but a name: a port.
    Number,
    Bytes,
    /// Index of a name, 0 for none.
    Name,
    /// Index of a task and one, 0 for none. Without a label it is for the page itself.
    Task,
    /// Number of a track and one, 0 for none: what it did then is what is meant.
    Row,
    /// As `Row`; the next column has the time.
    Link,
    /// Zigzag nanoseconds after the slice's start.
    LinkTime,
    /// One of these, the first of which is not shown.
    Choice(&'static [&'static str]),
    /// Bits with these names.
    Flags(&'static [&'static str]),
}

/// A number that each slice of a type of track has.
#[derive(Debug, Serialize)]
pub struct Column {
    pub label: &'static str,
    pub show: Show,
}

/// A type of track.
#[derive(Debug, Serialize)]
pub struct Type {
    /// What the page calls a slice in a list of matches.
    pub label: &'static str,
    pub columns: &'static [Column],
    /// Each slice has a text besides.
    pub has_text: bool,
}

const fn column(label: &'static str, show: Show) -> Column {
    Column { label, show }
}

const CUT: Show = Show::Flags(&["its start or end is missing", "the task's last poll"]);

/// What ends waits, by number; `path.js` of the page refers to these numbers.
pub const CAUSES: &[&str] = &["", "a task", "a device request", "a segment", "a timer", "an interrupt"];

const LEVELS: &[&str] = &["", "error", "warn", "info", "debug", "trace"];

pub const CORE: usize = 0;
pub const TASK: usize = 1;
pub const DEVICE: usize = 2;
pub const CONNECTION: usize = 3;
pub const SPAN_TRACK: usize = 4;
pub const CALLS: usize = 5;
pub const COUNTER: usize = 6;
pub const MESSAGES: usize = 7;
pub const INTERRUPTS: usize = 8;
pub const KICKS: usize = 9;
pub const SWITCHES: usize = 10;

pub const TYPES: &[Type] = &[
    Type {
        label: "core",
        columns: &[
            column("Task", Show::Task),
            column("Remarks", CUT),
            column("Device", Show::Name),
            column("Span", Show::Link),
            column("", Show::LinkTime),
        ],
        has_text: false,
    },
    Type {
        label: "task",
        columns: &[
            column("Task", Show::Task),
            column("Core", Show::Row),
            column("Remarks", CUT),
            column("Resource ID", Show::Number),
            column("Woken by", Show::Link),
            column("", Show::LinkTime),
            column("Cause", Show::Choice(CAUSES)),
            column("", Show::Task),
            column("Any of", Show::Name),
        ],
        has_text: false,
    },
    Type {
        label: "request",
        columns: &[
            column("ID", Show::Number),
            column("Bytes", Show::Bytes),
            column("In flight", Show::Count),
            column("Submitted by", Show::Task),
            column(
                "Remarks",
                Show::Flags(&["failed", "its completion is not in the trace", "its submission is not in the trace"]),
            ),
        ],
        has_text: false,
    },
    Type {
        label: "segment",
        columns: &[
            column("Connection", Show::Number),
            column("Peer port", Show::Number),
            column("Payload", Show::Bytes),
            column("Flags", Show::Flags(&["FIN", "SYN", "RST", "PSH", "ACK", "URG"])),
            column("Sequence", Show::Number),
            column("Acknowledgement", Show::Number),
            column("Window", Show::Bytes),
            column("Core", Show::Row),
            column("Remarks", Show::Flags(&["open before the trace", "its end is not in the trace"])),
        ],
        has_text: false,
    },
    Type {
        label: "span",
        columns: &[
            column("ID", Show::Number),
            column("Level", Show::Choice(LEVELS)),
            column("Parent", Show::Link),
            column("", Show::LinkTime),
            column("Task", Show::Task),
            column("", Show::Task),
            column("Remarks", Show::Flags(&["its end is not in the trace", "its start is not in the trace"])),
        ],
        has_text: true,
    },
    Type {
        label: "call",
        columns: &[
            column("Task", Show::Task),
            column("Core", Show::Row),
            column("Caller", Show::Link),
            column("", Show::LinkTime),
            column("Remarks", Show::Flags(&["its start or end is missing", "ended by a tail call"])),
            column("Place", Show::Name),
        ],
        has_text: false,
    },
    Type { label: "counter", columns: &[], has_text: false },
    Type {
        label: "message",
        columns: &[
            column("Core", Show::Row),
            column("Task", Show::Task),
            column("Span", Show::Link),
            column("", Show::LinkTime),
        ],
        has_text: true,
    },
    Type { label: "interrupt", columns: &[column("Vector", Show::Number)], has_text: false },
    Type { label: "notify", columns: &[column("Core", Show::Row), column("Task", Show::Task)], has_text: false },
    Type { label: "switch", columns: &[column("Core", Show::Row)], has_text: false },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kinds_are_places_in_the_table() {
        assert_eq!(KINDS[wait(BlockKind::Yield) as usize].label, "yielded");
        assert_eq!(KINDS[operation(Operation::Receive) as usize].label, "receive");
        assert_eq!(KINDS[segment(Direction::Again) as usize].label, "segment retransmitted");
        assert_eq!(KINDS[message(1) as usize].label, "error");
        assert_eq!(KINDS[message(200) as usize].label, "message");
        assert_eq!(KINDS[INTERRUPT as usize].label, "interrupt");
        assert_eq!(KINDS[FAILED as usize].label, "failed request");
        assert_eq!(KINDS[SWITCH as usize].label, "trace on/off");
        assert_eq!(TYPES[SWITCHES].label, "switch");
    }
}
