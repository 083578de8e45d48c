//! The events of a trace: the meaning of each kind, and its group.

use super::EVENT_WORDS;

/// Request numbers from here on mark unrequested completions, such as received frames: [`Kind::Complete`].
pub const UNREQUESTED_MIN: u64 = 1 << 63;

/// The numbers of the spans of a VMM, which writes the exits of its VM's cores as spans. Those of a service are outside.
pub const VMM_SPANS: core::ops::Range<u64> = 1 << 62..1 << 63;

/// The name of the field of a span with its place in a trace across services: `TRACE-SPAN-CALLER` in 32, 16 and 16 hexadecimal digits, the last
/// zero where there is no caller (W3C Trace Context).
pub const TRACE_CONTEXT: &str = "trace_context";

/// A set of kinds that is switched on and off together: a bit of [`super::Control::groups`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Group {
    /// Tasks: spawn, polls, waits, wake-ups.
    Tasks = 1,
    /// Cores: idle, spinning, interrupts, timers.
    Cores = 1 << 1,
    /// Requests to devices, from submission to completion.
    Devices = 1 << 2,
    /// TCP segments and connections.
    Net = 1 << 3,
    /// Counters and gauges.
    Counters = 1 << 4,
    /// Spans and messages of the `tracing` macros.
    Spans = 1 << 5,
    /// Entry and exit of functions, in an image built for it.
    Functions = 1 << 6,
    /// Calls of MPI, and messages between ranks.
    Mpi = 1 << 7,
}

/// Every group with its name on the command line.
pub const GROUPS: [(Group, &str); 8] = [
    (Group::Tasks, "tasks"),
    (Group::Cores, "cores"),
    (Group::Devices, "devices"),
    (Group::Net, "net"),
    (Group::Counters, "counters"),
    (Group::Spans, "spans"),
    (Group::Functions, "functions"),
    (Group::Mpi, "mpi"),
];

impl Group {
    /// The bits of a comma-separated list of names; `all` is everything except functions. Fails with the
    /// first word that is not a group.
    pub fn parse_list(text: &str) -> Result<u32, &str> {
        let mut bits = 0;
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            bits |= match GROUPS.iter().find(|(_, name)| *name == word) {
                Some((group, _)) => *group as u32,
                None if word == "all" => {
                    GROUPS.iter().map(|(group, _)| *group as u32).sum::<u32>() & !(Group::Functions as u32)
                }
                None => return Err(word),
            };
        }
        Ok(bits)
    }
}

/// What happened. The fields are those of [`Event`]; names are numbers in the table of names, 0 for none.
/// Begins and ends of one core or thread nest, except where events were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A task exists. `a` task number (from 1 on, never used twice), `b` its name | parent task << 32 (0: none),
    /// `detail` 1 if it existed before tracing started.
    TaskSpawn = 1,
    /// A task is polled. `a` task, `b` its name.
    PollBegin = 2,
    /// The poll has ended. `a` task, `detail` an [`Outcome`].
    PollEnd = 3,
    /// The task that is being polled on this core waits; a poll that waits for any of several events has one of these for
    /// each. `a` name of the resource, `detail` a [`BlockKind`], `b` the object: deadline in nanoseconds of
    /// the guest's clock, request, connection, or a number that distinguishes it from others of its kind.
    Block = 4,
    /// A task was woken. `a` the task. The cause is the task that is being polled on this core, or without one
    /// the last event of this core that can be a cause ([`Kind::Complete`], [`Kind::SegmentIn`],
    /// [`Kind::TimersFire`], [`Kind::Interrupt`]).
    Wake = 5,
    /// The core has no work and halts (a process: waits for events). `b` deadline in nanoseconds of the guest's
    /// clock, u64::MAX if there is none.
    IdleBegin = 16,
    /// The core resumes. `detail` a [`WakeSource`], `a` name of the device.
    IdleEnd = 17,
    /// An interrupt was taken. `a` name of the device, 0 for the timer; `b` vector.
    Interrupt = 18,
    /// The core starts to spin: it polls for work before it halts.
    SpinBegin = 19,
    /// It has found work or stops spinning.
    SpinEnd = 20,
    /// Timers fire. `a` how many.
    TimersFire = 21,
    /// A request is submitted to a device. `a` name of the device, `detail` an [`Operation`], `b` request number (unique
    /// among those in flight), `c` bytes (low 32) | requests in flight including this one << 32.
    Submit = 32,
    /// The request completes. `a`, `b`, `c` as in [`Kind::Submit`] (not counting this one); `detail` 0, or 1 if it failed.
    /// An unrequested completion, such as a received frame, has no submit: `b` is [`UNREQUESTED_MIN`] or more, and the requests in
    /// flight are the buffers that remain in the device.
    Complete = 33,
    /// The driver has notified the device. `a` name of the device, `b` ticks that the write to its register took, 0 if that was not
    /// measured.
    Kick = 34,
    /// A TCP segment is received. `a` connection number, `detail` flags as in the header (FIN 1, SYN 2, RST 4, PSH 8, ACK 16),
    /// `b` sequence number | acknowledgement << 32, `c` payload bytes | window in bytes << 32.
    SegmentIn = 48,
    /// A TCP segment is sent, with the same fields.
    SegmentOut = 49,
    /// The segment that is sent next is a retransmit. Fields as in [`Kind::SegmentOut`].
    Retransmit = 50,
    /// A connection opens or closes. `a` connection number, `detail` a [`Presence`], `b` remote address (IPv4, high byte first in the
    /// low 32 bits; 0 if it is none), `c` local port | remote port << 16.
    Connection = 51,
    /// A counter or gauge has a new value. `a` its name, `b` the value as i64, `detail` 0 a counter that only grows,
    /// 1 a gauge.
    Counter = 64,
    /// A span starts. `a` name, `b` span number, `c` parent span (0: none), `detail` level 1 (error) to 5 (trace).
    SpanBegin = 72,
    /// The running task or core enters the span. `b` span.
    SpanEnter = 73,
    /// It exits the span. `b` span.
    SpanExit = 74,
    /// The span ends. `b` span.
    SpanEnd = 75,
    /// A message. `a` name of its callsite, `b` span it belongs to (0: none), `c` bytes of text that follow
    /// in [`Kind::Text`] events, `detail` level.
    Message = 76,
    /// A field of the span or message before. `a` name, `b` value, `c` span (0: of the message), `detail` a [`ValueType`].
    Field = 77,
    /// More of the text of the message or field before, on the same core: `detail` bytes (at most 20), in `a`, `b`, `c`, in this order,
    /// low byte first.
    Text = 78,
    /// A rank calls MPI. `detail` the call: [`super::MPI_CALLS`], `a` the rank.
    MpiCall = 80,
    /// The call returns. `detail` and `a` as in [`Kind::MpiCall`].
    MpiReturn = 81,
    /// What the call is about; a call may have several. `detail` an [`MpiRole`]; `a` the other rank of the job and one (0: none,
    /// [`MPI_ANY`]: any), of a collective operation its root; `b` the communicator, shifted by 32, and the tag, of a collective operation its
    /// number in the communicator; `c` bytes, of a collective operation also its lowest rank << 40 and number of ranks << 48.
    MpiAbout = 82,
    /// A message is on its way. `a` the receiving rank, `b` its number among the slots for that rank, `c` bytes, `detail` 1 if it waits for its
    /// receive.
    MpiSent = 83,
    /// A message was received. `a` the sending rank, `b` and `c` as in [`Kind::MpiSent`].
    MpiReceived = 84,
    /// A function is entered. `a` its number in the image's table of sleds.
    FunctionEnter = 96,
    /// It returns. `a` its number.
    FunctionExit = 97,
    /// It ends by jumping to another function, which returns for it. `a` its number.
    FunctionTailExit = 98,
    /// Groups were switched. `b` the groups that are on now.
    Groups = 112,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 35] = [
        Kind::TaskSpawn,
        Kind::PollBegin,
        Kind::PollEnd,
        Kind::Block,
        Kind::Wake,
        Kind::IdleBegin,
        Kind::IdleEnd,
        Kind::Interrupt,
        Kind::SpinBegin,
        Kind::SpinEnd,
        Kind::TimersFire,
        Kind::Submit,
        Kind::Complete,
        Kind::Kick,
        Kind::SegmentIn,
        Kind::SegmentOut,
        Kind::Retransmit,
        Kind::Connection,
        Kind::Counter,
        Kind::SpanBegin,
        Kind::SpanEnter,
        Kind::SpanExit,
        Kind::SpanEnd,
        Kind::Message,
        Kind::Field,
        Kind::Text,
        Kind::MpiCall,
        Kind::MpiReturn,
        Kind::MpiAbout,
        Kind::MpiSent,
        Kind::MpiReceived,
        Kind::FunctionEnter,
        Kind::FunctionExit,
        Kind::FunctionTailExit,
        Kind::Groups,
    ];

    /// The kind with this number.
    pub fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// The other rank of a receive from any: [`Kind::MpiAbout`].
pub const MPI_ANY: u32 = u32::MAX;

/// What a call of MPI does: [`Kind::MpiAbout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum MpiRole {
    /// Sends a message.
    Send = 1,
    /// Receives one, or looks for it.
    Receive = 2,
    /// Takes part in a collective operation.
    Collective = 3,
    /// Takes part in a barrier that no other operation is counted with.
    Barrier = 4,
}

impl MpiRole {
    /// The role with this number.
    pub fn from_number(number: u16) -> Option<MpiRole> {
        use MpiRole::*;
        [Send, Receive, Collective, Barrier].into_iter().find(|role| *role as u16 == number)
    }
}

/// How a poll ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Outcome {
    /// The task waits.
    Pending = 0,
    /// The task has ended.
    Ready = 1,
}

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum BlockKind {
    /// Anything else; it has only a name.
    Other = 0,
    /// A timer; the object is the deadline in nanoseconds of the guest's clock.
    Timer = 1,
    /// Another task; the object is the one that they share.
    Notify = 2,
    /// A request to a device; the object is its number.
    Request = 3,
    /// Bytes from a connection; the object is its number.
    Receive = 4,
    /// Room to send on a connection; the object is its number.
    Send = 5,
    /// A new connection; the object is the port.
    Accept = 6,
    /// A bounded resource (memory, a slot).
    Resource = 7,
    /// The task only yields.
    Yield = 8,
}

impl BlockKind {
    /// The kind with this number; [`BlockKind::Other`] for one that is unknown.
    pub fn from_number(number: u16) -> BlockKind {
        use BlockKind::*;
        [Timer, Notify, Request, Receive, Send, Accept, Resource, Yield]
            .into_iter()
            .find(|kind| *kind as u16 == number)
            .unwrap_or(Other)
    }
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Operation {
    /// Something else.
    Other = 0,
    /// Bytes from the device.
    Read = 1,
    /// Bytes to the device.
    Write = 2,
    /// Puts all written data on stable storage.
    Flush = 3,
    /// A frame to the network.
    Transmit = 4,
    /// A frame from the network.
    Receive = 5,
}

impl Operation {
    /// The operation with this number; [`Operation::Other`] for one that is unknown.
    pub fn from_number(number: u16) -> Operation {
        use Operation::*;
        [Read, Write, Flush, Transmit, Receive].into_iter().find(|kind| *kind as u16 == number).unwrap_or(Other)
    }
}

/// The change of a connection in [`Kind::Connection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Presence {
    /// It opens.
    Begins = 1,
    /// It closes.
    Ends = 2,
    /// It was open before tracing started.
    WasThere = 3,
}

impl Presence {
    /// The value with this number; [`Presence::WasThere`] for an unknown one: it is certain that the connection exists.
    pub fn from_number(number: u16) -> Presence {
        use Presence::*;
        [Begins, Ends].into_iter().find(|kind| *kind as u16 == number).unwrap_or(WasThere)
    }
}

/// Why a core resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum WakeSource {
    /// Something else.
    Other = 0,
    /// A deadline.
    Timer = 1,
    /// A device (a process: one of its descriptors).
    Device = 2,
    /// Another core or thread.
    Core = 3,
}

impl WakeSource {
    /// The source with this number; [`WakeSource::Other`] for one that is unknown.
    pub fn from_number(number: u16) -> WakeSource {
        use WakeSource::*;
        [Timer, Device, Core].into_iter().find(|kind| *kind as u16 == number).unwrap_or(Other)
    }
}

/// The type of a value in [`Kind::Field`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ValueType {
    /// u64.
    Unsigned = 0,
    /// i64.
    Signed = 1,
    /// 0 or 1.
    Bool = 2,
    /// Bits of an f64.
    Float = 3,
    /// Bytes of text that follow in [`Kind::Text`] events.
    Text = 4,
}

impl ValueType {
    /// The type with this number.
    pub fn from_number(number: u16) -> Option<ValueType> {
        use ValueType::*;
        [Unsigned, Signed, Bool, Float, Text].into_iter().find(|kind| *kind as u16 == number)
    }
}

/// One event as in a ring: 32 bytes, little endian.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Event {
    /// Its time, in ticks of the TSC.
    pub ticks: u64,
    /// A [`Kind`].
    pub kind: u16,
    /// See the kind.
    pub detail: u16,
    /// See the kind.
    pub a: u32,
    /// See the kind.
    pub b: u64,
    /// See the kind.
    pub c: u64,
}

impl Event {
    /// As words of a ring.
    #[inline(always)]
    pub fn to_words(self) -> [u64; EVENT_WORDS] {
        [self.ticks, u64::from(self.kind) | u64::from(self.detail) << 16 | u64::from(self.a) << 32, self.b, self.c]
    }

    /// From words of a ring.
    pub fn from_words([ticks, kind, b, c]: [u64; EVENT_WORDS]) -> Event {
        Event { ticks, kind: kind as u16, detail: (kind >> 16) as u16, a: (kind >> 32) as u32, b, c }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_back() {
        let event = Event { ticks: 1 << 63, kind: Kind::Counter as u16, detail: 1, a: u32::MAX, b: 2, c: 3 };
        assert_eq!(event.to_words(), [1 << 63, 0xffff_ffff_0001_0040, 2, 3]);
        assert_eq!(Event::from_words(event.to_words()), event);
        assert_eq!(Kind::from_number(64), Some(Kind::Counter));
        assert_eq!(Kind::from_number(0), None);
    }

    #[test]
    fn details_are_read_as_what_they_were_written_for_and_others_as_unknown() {
        use BlockKind::{Accept, Notify, Request, Resource, Send, Timer, Yield};
        for kind in [BlockKind::Other, Timer, Notify, Request, BlockKind::Receive, Send, Accept, Resource, Yield] {
            assert_eq!(BlockKind::from_number(kind as u16), kind);
        }
        use Operation::{Flush, Read, Transmit, Write};
        for operation in [Operation::Other, Read, Write, Flush, Transmit, Operation::Receive] {
            assert_eq!(Operation::from_number(operation as u16), operation);
        }
        for presence in [Presence::Begins, Presence::Ends, Presence::WasThere] {
            assert_eq!(Presence::from_number(presence as u16), presence);
        }
        for source in [WakeSource::Other, WakeSource::Timer, WakeSource::Device, WakeSource::Core] {
            assert_eq!(WakeSource::from_number(source as u16), source);
        }
        use ValueType::{Bool, Float, Signed, Text, Unsigned};
        for value_type in [Unsigned, Signed, Bool, Float, Text] {
            assert_eq!(ValueType::from_number(value_type as u16), Some(value_type));
        }
        for role in [MpiRole::Send, MpiRole::Receive, MpiRole::Collective, MpiRole::Barrier] {
            assert_eq!(MpiRole::from_number(role as u16), Some(role));
        }
        // What a newer guest may write.
        assert_eq!((BlockKind::from_number(99), Operation::from_number(99)), (BlockKind::Other, Operation::Other));
        assert_eq!((Presence::from_number(99), WakeSource::from_number(99)), (Presence::WasThere, WakeSource::Other));
        assert_eq!((ValueType::from_number(99), MpiRole::from_number(99), MpiRole::from_number(0)), (None, None, None));
        assert_eq!(UNREQUESTED_MIN, 0x8000_0000_0000_0000);
    }

    #[test]
    fn lists_of_groups() {
        assert_eq!(Group::parse_list("tasks, devices"), Ok(5));
        assert_eq!(Group::parse_list("tasks,,devices,tasks,"), Ok(5));
        assert_eq!(Group::parse_list("all"), Ok(191));
        assert_eq!(Group::parse_list("all,functions"), Ok(255));
        assert_eq!(Group::parse_list("tasks,disks"), Err("disks"));
    }
}
