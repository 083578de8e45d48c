//! What a trace means: tables of what happened, in order of time, that refer to each other by index.
//!
//! All times are nanoseconds since the start of the recording, the same as those of `model::Sample`. An
//! interval that was open when the trace started or ended, or beside a loss, is cut there and marked.

pub use glass_formats::trace::{BlockKind, GROUPS, Operation, WakeSource};

/// A trace, ready to be looked at.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// First and last moment that the trace covers.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// By how much all times are later than in the recording, because the oldest events are older than its start: a
    /// sample's time and this are the time here. 0 in most recordings.
    pub shift_ns: u64,
    /// Texts that others refer to by index ([`NameId`]).
    pub names: Vec<String>,
    /// One for each core of a VM or thread of a process.
    pub cores: Vec<Core>,
    /// In order of their first appearance.
    pub tasks: Vec<Task>,
    /// In order of their start.
    pub polls: Vec<Poll>,
    /// The gaps between a task's polls, in order of their start.
    pub waits: Vec<Wait>,
    /// What the waits are for; each wait has a range of it, see [`Wait::first_reason`].
    pub reasons: Vec<Reason>,
    /// Every time that a task was made ready, in order.
    pub wakes: Vec<Wake>,
    /// Halted cores, in order of their start.
    pub idles: Vec<Idle>,
    /// Cores that were spinning, in order of their start.
    pub spins: Vec<Interval>,
    /// In order.
    pub interrupts: Vec<Interrupt>,
    /// By name.
    pub devices: Vec<Device>,
    /// In order of their submission.
    pub requests: Vec<Request>,
    /// Every notification of a device, in order.
    pub kicks: Vec<Kick>,
    /// In order of their first appearance.
    pub connections: Vec<Connection>,
    /// In order.
    pub segments: Vec<Segment>,
    /// By name.
    pub counters: Vec<Counter>,
    /// In order of their start.
    pub spans: Vec<Span>,
    /// When a core was in a span, in order of their start.
    pub span_visits: Vec<SpanVisit>,
    /// Calls of MPI, in order of their start.
    pub mpi_calls: Vec<MpiCall>,
    /// Messages between ranks, in order of their receipt.
    pub mpi_messages: Vec<MpiMessage>,
    /// Which calls took part in which collective operations, in order.
    pub mpi_parts: Vec<MpiPart>,
    /// In order.
    pub messages: Vec<Message>,
    /// Functions that were traced.
    pub functions: Vec<Function>,
    /// In order of their start; a call comes before the calls that it makes.
    pub calls: Vec<Call>,
    /// Groups of events that were switched on or off, in order.
    pub switches: Vec<Switch>,
    /// Events that are missing, in order.
    pub losses: Vec<Loss>,
    /// Events that the tables were made from.
    pub event_count: u64,
    /// What a reader should know before trusting the trace, one sentence each.
    pub warnings: Vec<String>,
}

/// Index into [`Trace::names`]; 0 is the empty name.
pub type NameId = u32;

/// A core or thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Core {
    /// "core 0", or the thread's name.
    pub name: String,
}

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// The number that the guest gave it.
    pub number: u32,
    /// Its name.
    pub name: NameId,
    /// The task that spawned it: index into [`Trace::tasks`].
    pub parent: Option<u32>,
    /// When it was spawned; `None` if that was before the trace.
    pub spawned_ns: Option<u64>,
    /// When it was over; `None` if it was not.
    pub ended_ns: Option<u64>,
}

/// A task runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Poll {
    /// Index into [`Trace::tasks`].
    pub task: u32,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// The task ended.
    pub is_last: bool,
    /// Its start or end is missing.
    pub is_cut: bool,
}

/// A task waits: from the end of a poll to the start of its next, or from its spawn to its first poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    /// Index into [`Trace::tasks`].
    pub task: u32,
    /// Begin.
    pub start_ns: u64,
    /// Start of the next poll, or the end of the trace.
    pub end_ns: u64,
    /// When it was woken and was runnable from then on; `None` if that is not in the trace.
    pub woken_ns: Option<u64>,
    /// What it waits for, any of them: [`Trace::reasons`]`[first..first + count]`.
    pub first_reason: u32,
    /// See `first_reason`.
    pub reason_count: u32,
    /// Index into [`Trace::wakes`] of what ended it.
    pub wake: Option<u32>,
    /// Its start or end is missing.
    pub is_cut: bool,
}

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// What kind of thing.
    pub kind: BlockKind,
    /// Its name.
    pub name: NameId,
    /// Which one: a deadline, a request, a connection, see [`BlockKind`].
    pub object: u64,
}

/// A task was made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// When.
    pub time_ns: u64,
    /// On which core: index into [`Trace::cores`].
    pub core: u32,
    /// Who was woken: index into [`Trace::tasks`].
    pub task: u32,
    /// By whom.
    pub cause: Cause,
}

/// Who wakes a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cause {
    /// It is unknown.
    #[default]
    Unknown,
    /// A task that ran: index into [`Trace::tasks`].
    Task(u32),
    /// A request that was complete: index into [`Trace::requests`].
    Request(u32),
    /// A received segment: index into [`Trace::segments`].
    Segment(u32),
    /// A deadline.
    Timer,
    /// An interrupt: index into [`Trace::interrupts`].
    Interrupt(u32),
}

/// An interval on a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interval {
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
}

/// A core halts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// Where and when.
    pub interval: Interval,
    /// What ended it.
    pub source: WakeSource,
    /// The device that ended it, 0 if none did.
    pub device: NameId,
}

/// An interrupt was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interrupt {
    /// When.
    pub time_ns: u64,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// The device, 0 for the timer.
    pub device: NameId,
    /// The CPU's number of it.
    pub vector: u64,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: NameId,
}

/// A request to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Index into [`Trace::devices`].
    pub device: u32,
    /// The number that the guest gave it.
    pub number: u64,
    /// What was requested.
    pub operation: Operation,
    /// Bytes.
    pub bytes: u32,
    /// Requests of the device in flight when this one was submitted, including it.
    pub depth: u32,
    /// When it was submitted.
    pub submit_ns: u64,
    /// When it was complete; `None` if that is not in the trace.
    pub complete_ns: Option<u64>,
    /// The device reported that it failed.
    pub has_failed: bool,
    /// The task that ran when it was submitted: index into [`Trace::tasks`].
    pub task: Option<u32>,
}

impl Request {
    /// How long it was in the device; `None` if its submission or its completion is not in the trace. (One whose submission is
    /// not in the trace has the time of its completion for both.)
    pub fn latency_ns(&self) -> Option<u64> {
        self.complete_ns.and_then(|complete_ns| complete_ns.checked_sub(self.submit_ns)).filter(|ns| *ns > 0)
    }
}

/// A device was notified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kick {
    /// When the notification had ended.
    pub time_ns: u64,
    /// How long the write to the device's register took, if that was measured.
    pub took_ns: Option<u64>,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// Index into [`Trace::devices`].
    pub device: u32,
    /// The task that ran: index into [`Trace::tasks`].
    pub task: Option<u32>,
}

/// A TCP connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// The number that the guest gave it.
    pub number: u32,
    /// IPv4 address of the other side, high byte first; 0 if it is not known.
    pub remote: u32,
    /// Port on this side, 0 if it is not known.
    pub local_port: u16,
    /// Port on the other side, 0 if it is not known.
    pub remote_port: u16,
    /// When it began; `None` if that is not in the trace.
    pub start_ns: Option<u64>,
    /// From when on it is known: its start, or if that is not in the trace, the end of the loss before its first event,
    /// or the start of the trace.
    pub known_ns: u64,
    /// When it ended; `None` if that is not in the trace.
    pub end_ns: Option<u64>,
    /// The last event of it.
    pub last_ns: u64,
}

/// Which way a segment went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the guest.
    In,
    /// From the guest.
    Out,
    /// From the guest, not for the first time.
    Again,
}

/// A TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// When.
    pub time_ns: u64,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// Index into [`Trace::connections`].
    pub connection: u32,
    /// Which way.
    pub direction: Direction,
    /// Flags as in the header.
    pub flags: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement.
    pub acknowledgement: u32,
    /// Payload in bytes.
    pub bytes: u32,
    /// Window in bytes that its sender offers.
    pub window: u32,
}

/// A counter or gauge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    /// Its name.
    pub name: NameId,
    /// It can go down.
    pub is_gauge: bool,
    /// Times and values, in order.
    pub points: Vec<(u64, i64)>,
}

/// A span of the `tracing` macros.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Span {
    /// The number that the guest gave it.
    pub number: u64,
    /// Its name.
    pub name: NameId,
    /// 1 (error) to 5 (trace).
    pub level: u8,
    /// Index into [`Trace::spans`].
    pub parent: Option<u32>,
    /// The task that made it: index into [`Trace::tasks`].
    pub task: Option<u32>,
    /// Begin. If that is not in the trace, the end of the loss before its first event, or the start of the trace.
    pub start_ns: u64,
    /// Its start is not in the trace, so its duration is not known.
    pub begin_is_lost: bool,
    /// End; `None` if that is not in the trace.
    pub end_ns: Option<u64>,
    /// The last event of it.
    pub last_ns: u64,
    /// What the service recorded about it.
    pub fields: Vec<(NameId, Value)>,
}

impl Span {
    /// How long it took; `None` if its start or its end is not in the trace.
    pub fn duration_ns(&self) -> Option<u64> {
        self.end_ns.filter(|_| !self.begin_is_lost).map(|end_ns| end_ns.saturating_sub(self.start_ns))
    }
}

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number from 0 on.
    Unsigned(u64),
    /// A number.
    Signed(i64),
    /// True or false.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
    /// A text; cut if the guest had no more room.
    Text(String),
}

/// A core is in a span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanVisit {
    /// Index into [`Trace::spans`].
    pub span: u32,
    /// Where and when.
    pub interval: Interval,
    /// The task that ran: index into [`Trace::tasks`].
    pub task: Option<u32>,
}

/// A call of MPI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MpiCall {
    /// Of the job.
    pub rank: u32,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// "MPI_Send".
    pub name: NameId,
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Its span, with communicator, peer, tag and bytes: index into [`Trace::spans`].
    pub span: u32,
    /// Index into [`Trace::span_visits`].
    pub visit: u32,
    /// Its end is missing.
    pub is_cut: bool,
}

/// A message from rank to rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MpiMessage {
    /// The call that sent it: index into [`Trace::mpi_calls`].
    pub from: u32,
    /// The call that received it.
    pub to: u32,
    /// When it, or its offer, was on its way.
    pub sent_ns: u64,
    /// When all of it was where it belongs.
    pub received_ns: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its sender waited until it was received.
    pub is_offered: bool,
}

/// A rank's part in a collective operation. All parts of one operation have the same communicator, lowest rank, number and kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MpiPart {
    /// The call: index into [`Trace::mpi_calls`].
    pub call: u32,
    /// Its number. Communicators without common ranks may have the same.
    pub communicator: u32,
    /// The lowest of its ranks.
    pub lowest: u8,
    /// How many ranks it has.
    pub ranks: u32,
    /// Barriers are counted apart from other operations.
    pub is_barrier: bool,
    /// Operations of the communicator before it.
    pub number: u32,
    /// When the rank began it.
    pub time_ns: u64,
}

/// A message of the `tracing` macros.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// When.
    pub time_ns: u64,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// Index into [`Trace::tasks`].
    pub task: Option<u32>,
    /// Index into [`Trace::spans`].
    pub span: Option<u32>,
    /// 1 (error) to 5 (trace).
    pub level: u8,
    /// Its origin.
    pub place: NameId,
    /// The text.
    pub text: String,
    /// Further fields.
    pub fields: Vec<(NameId, Value)>,
}

/// A function that was traced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    /// Demangled.
    pub name: String,
    /// Source file as the compiler wrote it.
    pub file: Option<String>,
    /// Line in `file`, from 1 on.
    pub line: Option<u32>,
    /// The crate or library that it belongs to, as far as its name has it: "core", "upload_queue".
    pub library: String,
}

/// A call of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// Index into [`Trace::functions`].
    pub function: u32,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// The task that ran: index into [`Trace::tasks`].
    pub task: Option<u32>,
    /// The traced call that made this one: index into [`Trace::calls`]. A function that was jumped to (tail call) has the
    /// caller of the one that jumped.
    pub parent: Option<u32>,
    /// How many traced calls are around it.
    pub depth: u32,
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// It ended by jumping to another function.
    pub is_tail: bool,
    /// Its start or end is missing.
    pub is_cut: bool,
}

/// A core began to write other groups of events than before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Switch {
    /// When.
    pub time_ns: u64,
    /// Index into [`Trace::cores`].
    pub core: u32,
    /// What it writes from then on: bits of [`GROUPS`].
    pub groups: u32,
}

/// Events of a core that are missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// Between which moments.
    pub interval: Interval,
    /// How many.
    pub events: u64,
}

impl Trace {
    /// From when on something is known whose first event comes now, and whose start is not in the trace: events of any
    /// core may have been lost until then. While a trace is built its losses are in order of time.
    pub(crate) fn known_since_ns(&self, now_ns: u64) -> u64 {
        self.losses.last().map_or(self.start_ns, |loss| loss.interval.end_ns.min(now_ns))
    }

    /// Until when something is known to last whose end is not in the trace, and whose last event was at `last_ns`: the
    /// next time that events were lost, since its end may be one of them, or the end of the trace.
    fn open_until_ns(&self, last_ns: u64) -> u64 {
        let next = self.losses.partition_point(|loss| loss.interval.start_ns < last_ns);
        self.losses.get(next).map_or(self.end_ns, |loss| loss.interval.start_ns)
    }

    /// When a request was complete, or until when it is known to have been in the device.
    pub fn request_end_ns(&self, request: &Request) -> u64 {
        request.complete_ns.unwrap_or_else(|| self.open_until_ns(request.submit_ns)).max(request.submit_ns)
    }

    /// When a connection ended, or until when it is known to have been open.
    pub fn connection_end_ns(&self, connection: &Connection) -> u64 {
        let Connection { known_ns, last_ns, end_ns, .. } = *connection;
        end_ns.unwrap_or_else(|| self.open_until_ns(last_ns.max(known_ns))).max(known_ns)
    }

    /// When a span ended, or until when it is known to have been open.
    pub fn span_end_ns(&self, span: &Span) -> u64 {
        span.end_ns.unwrap_or_else(|| self.open_until_ns(span.last_ns.max(span.start_ns))).max(span.start_ns)
    }

    /// A name, empty if there is none with this index.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id as usize).map_or("", String::as_str)
    }
}
