//! Parts of sentences: what a task waits for, what is requested from a device, flags of a segment.

use glass_formats::trace::{BlockKind, Kind, Operation};

use crate::format::duration;
use crate::names::printable;

/// Bits of a TCP header and their names.
const FLAGS: [(u16, &str); 5] = [(1, "FIN"), (2, "SYN"), (4, "RST"), (8, "PSH"), (16, "ACK")];

/// What a task waits for, without what distinguishes this wait from others of its kind: "the disk", "a timer".
pub fn wait(kind: BlockKind, name: &str) -> String {
    let named = |text: &str| match name {
        "" => text.to_owned(),
        name => format!("{text} ({})", printable(name)),
    };
    match kind {
        BlockKind::Timer => named("a timer"),
        BlockKind::Notify => named("another task"),
        BlockKind::Request => named("a device"),
        BlockKind::Receive => named("bytes to come"),
        BlockKind::Send => named("room to send"),
        BlockKind::Accept => named("a new connection"),
        BlockKind::Resource => named("a resource"),
        BlockKind::Yield => named("its next turn"),
        BlockKind::Other if name.is_empty() => "something".to_owned(),
        BlockKind::Other => printable(name),
    }
}

/// The resource that a task waits for, by its own name where it has one: `disk 0 I/O`, `wait on "change to commit"`, `timer "tick"`.
pub fn resource(kind: BlockKind, name: &str) -> String {
    let word = match kind {
        BlockKind::Timer => "timer",
        BlockKind::Notify => "notify",
        BlockKind::Request => "request",
        BlockKind::Receive => "receive",
        BlockKind::Send => "send",
        BlockKind::Accept => "accept",
        BlockKind::Resource => "resource",
        BlockKind::Yield => "yield",
        BlockKind::Other => "",
    };
    // A platform that has no better name gives the kind.
    let name = if name == word { String::new() } else { printable(name) };
    match (kind, name.as_str()) {
        (BlockKind::Notify, "") => "wait on another task".to_owned(),
        (BlockKind::Notify, name) => format!("wait on \"{name}\""),
        (BlockKind::Request, "") => "device I/O".to_owned(),
        (BlockKind::Request, name) => format!("{name} I/O"),
        (BlockKind::Other, "") => "unnamed wait".to_owned(),
        (BlockKind::Other | BlockKind::Resource, name) if !name.is_empty() => name.to_owned(),
        (_, "") => word.to_owned(),
        (_, name) => format!("{word} \"{name}\""),
    }
}

/// What distinguishes a wait from others of its kind: "request 17", "connection 3"; empty if nothing does.
pub fn wait_object(kind: BlockKind, object: u64) -> String {
    match kind {
        BlockKind::Timer => format!("until {} of the guest's clock", duration(object)),
        BlockKind::Request => format!("request {object}"),
        BlockKind::Receive | BlockKind::Send => format!("connection {object}"),
        BlockKind::Accept => format!("port {object}"),
        // A larger one is an address, which does not help a reader.
        BlockKind::Notify | BlockKind::Resource | BlockKind::Other if (1..=u64::from(u32::MAX)).contains(&object) => {
            format!("number {object}")
        }
        BlockKind::Notify | BlockKind::Resource | BlockKind::Other | BlockKind::Yield => String::new(),
    }
}

/// What is requested from a device.
pub fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Other => "request",
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Flush => "flush",
        Operation::Transmit => "transmit",
        Operation::Receive => "receive",
    }
}

/// Flags of a segment: "SYN ACK", empty if there are none.
pub fn flags(bits: u16) -> String {
    let names: Vec<&str> = FLAGS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    names.join(" ")
}

/// A kind by the name that users give it: "poll_begin".
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::TaskSpawn => "task_spawn",
        Kind::PollBegin => "poll_begin",
        Kind::PollEnd => "poll_end",
        Kind::Block => "block",
        Kind::Wake => "wake",
        Kind::IdleBegin => "idle_begin",
        Kind::IdleEnd => "idle_end",
        Kind::Interrupt => "interrupt",
        Kind::SpinBegin => "spin_begin",
        Kind::SpinEnd => "spin_end",
        Kind::TimersFire => "timers_fire",
        Kind::Submit => "submit",
        Kind::Complete => "complete",
        Kind::Kick => "kick",
        Kind::SegmentIn => "segment_in",
        Kind::SegmentOut => "segment_out",
        Kind::Retransmit => "retransmit",
        Kind::Connection => "connection",
        Kind::Counter => "counter",
        Kind::SpanBegin => "span_begin",
        Kind::SpanEnter => "span_enter",
        Kind::SpanExit => "span_exit",
        Kind::SpanEnd => "span_end",
        Kind::Message => "message",
        Kind::Field => "field",
        Kind::Text => "text",
        Kind::MpiCall => "mpi_call",
        Kind::MpiReturn => "mpi_return",
        Kind::MpiAbout => "mpi_about",
        Kind::MpiSent => "mpi_sent",
        Kind::MpiReceived => "mpi_received",
        Kind::FunctionEnter => "function_enter",
        Kind::FunctionExit => "function_exit",
        Kind::FunctionTailExit => "function_tail_exit",
        Kind::Groups => "groups",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_distinguished() {
        assert_eq!(wait(BlockKind::Request, "disk"), "a device (disk)");
        assert_eq!(wait(BlockKind::Other, ""), "something");
        assert_eq!(resource(BlockKind::Request, "disk 0"), "disk 0 I/O");
        assert_eq!(resource(BlockKind::Notify, "change to commit"), "wait on \"change to commit\"");
        assert_eq!(resource(BlockKind::Timer, "timer"), "timer");
        assert_eq!(resource(BlockKind::Resource, "index"), "index");
        assert_eq!(wait(BlockKind::Other, "a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(wait_object(BlockKind::Accept, 8080), "port 8080");
        assert_eq!(wait_object(BlockKind::Notify, 0), "");
        assert_eq!(wait_object(BlockKind::Notify, 93_963_558_893_296), "");
        assert_eq!(wait_object(BlockKind::Resource, 3), "number 3");
        assert_eq!(wait_object(BlockKind::Timer, 1_500_000_000), "until 1.50 s of the guest's clock");
    }

    #[test]
    fn flags_are_those_of_the_header() {
        assert_eq!(flags(0x12), "SYN ACK");
        assert_eq!(flags(0), "");
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = Kind::ALL.into_iter().map(kind_name).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
