//! From the events of a trace, one after the other, to lines of text.

use std::collections::HashMap;

use glass_formats::trace::{
    BlockKind, Event, GROUPS, Kind, MPI_ANY, MPI_CALLS, MpiRole, Operation, Outcome, Presence, UNREQUESTED_MIN,
    WakeSource,
};

use super::message::Message;
use super::phrase::{flags, operation, wait, wait_object};
use crate::format::{count, duration};
use crate::names::printable;

/// Tasks and spans whose names are remembered; beyond that they have numbers only.
const REMEMBERED_MAX: usize = 1 << 16;

/// What numbers in events stand for.
pub trait Names {
    /// An entry of the table of names; `None` if it is not known.
    fn name(&self, number: u32) -> Option<&str>;
    /// A function of the image's table of sleds.
    fn function(&self, number: u32) -> Option<&str>;
}

/// An event in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The event's time, in ticks.
    pub ticks: u64,
    /// The ring that it lay in.
    pub ring: u32,
    /// The number of its kind; `Kind::from_number` has it, unless the guest is newer than this program.
    pub kind: u16,
    /// The task that ran, and its name if that is known; empty if no task ran.
    pub task: String,
    /// 1 (error) to 5 (trace) for messages and spans, else 0.
    pub level: u8,
    /// What happened.
    pub text: String,
}

/// Words events in the order in which they are pushed, which for each ring must be that of their numbers. Remembers names of
/// tasks and spans, and which task each core runs.
#[derive(Debug, Default)]
pub struct Describer {
    /// Numbers of names by number of task.
    tasks: HashMap<u32, u32>,
    /// Numbers of names by number of span.
    spans: HashMap<u64, u32>,
    rings: HashMap<u32, RingState>,
}

#[derive(Debug, Default)]
struct RingState {
    /// The task that runs; 0 none.
    task: u32,
    message: Option<Message>,
}

impl Describer {
    /// Words an event. A message or span is worded when all of its text is there, so there may be a line of an earlier
    /// event of the same ring, also.
    pub fn push(&mut self, ring: u32, event: &Event, names: &dyn Names, line: &mut dyn FnMut(Line)) {
        let name = |number: u32| names.name(number).unwrap_or_default();
        if Message::has(event) {
            if let Some(message) = self.rings.entry(ring).or_default().message.as_mut() {
                message.add(event, name(event.a));
            }
            return;
        }
        self.finish(ring, names, line);
        match Kind::from_number(event.kind) {
            Some(Kind::Message | Kind::SpanBegin) => {
                if event.kind == Kind::SpanBegin as u16 && self.spans.len() < REMEMBERED_MAX {
                    self.spans.insert(event.b, event.a);
                }
                self.rings.entry(ring).or_default().message = Some(Message::new(*event));
            }
            kind => {
                self.learn(kind, event);
                if kind == Some(Kind::PollBegin) {
                    self.rings.entry(ring).or_default().task = event.a;
                }
                let task = self.running(ring, names);
                let text = self.words(kind, event, names);
                line(Line { ticks: event.ticks, ring, kind: event.kind, task, level: 0, text });
                if kind == Some(Kind::PollEnd) {
                    self.rings.entry(ring).or_default().task = 0;
                }
            }
        }
    }

    /// Words the message or span that a ring ends with; to be called when no more of it is to come.
    pub fn finish(&mut self, ring: u32, names: &dyn Names, line: &mut dyn FnMut(Line)) {
        let Some(message) = self.rings.get_mut(&ring).and_then(|state| state.message.take()) else { return };
        let event = message.event;
        let task = self.running(ring, names);
        let place = shown(names.name(event.a), "unnamed");
        let words = message.words();
        let text = match (event.kind == Kind::Message as u16, words.is_empty()) {
            (true, true) => place,
            (true, false) => format!("{place}: {words}"),
            (false, true) => format!("span {} starts: {place}", event.b),
            (false, false) => format!("span {} starts: {place} {words}", event.b),
        };
        let level = event.detail.min(u16::from(u8::MAX)) as u8;
        line(Line { ticks: event.ticks, ring, kind: event.kind, task, level, text });
    }

    /// Events of a ring were lost: what it was running is not known any more.
    pub fn forget(&mut self, ring: u32, names: &dyn Names, line: &mut dyn FnMut(Line)) {
        self.finish(ring, names, line);
        self.rings.remove(&ring);
    }

    /// A task by name and number.
    pub fn task(&self, number: u32, names: &dyn Names) -> String {
        match self.tasks.get(&number).and_then(|name| names.name(*name)).filter(|name| !name.is_empty()) {
            Some(name) => format!("{} #{number}", printable(name)),
            None => format!("#{number}"),
        }
    }

    fn running(&self, ring: u32, names: &dyn Names) -> String {
        match self.rings.get(&ring).map_or(0, |state| state.task) {
            0 => String::new(),
            task => self.task(task, names),
        }
    }

    fn learn(&mut self, kind: Option<Kind>, event: &Event) {
        if matches!(kind, Some(Kind::TaskSpawn | Kind::PollBegin))
            && (self.tasks.len() < REMEMBERED_MAX || self.tasks.contains_key(&event.a))
        {
            self.tasks.insert(event.a, event.b as u32);
        }
    }

    fn words(&self, kind: Option<Kind>, event: &Event, names: &dyn Names) -> String {
        let Some(kind) = kind else {
            let Event { kind, detail, a, b, c, .. } = event;
            return format!("event of unknown kind {kind}: {detail} {a} {b:#x} {c:#x}");
        };
        let device = || shown(names.name(event.a), "a device");
        let function = || names.function(event.a).map_or_else(|| format!("function {}", event.a), printable);
        match kind {
            Kind::TaskSpawn | Kind::PollBegin | Kind::PollEnd | Kind::Block | Kind::Wake => {
                self.task_words(kind, event, names)
            }
            Kind::IdleBegin if event.b == u64::MAX => "idle".to_owned(),
            Kind::IdleBegin => format!("idle until {} of the guest's clock", duration(event.b)),
            Kind::IdleEnd => match WakeSource::from_number(event.detail) {
                WakeSource::Timer => "woken: timer".to_owned(),
                WakeSource::Device => format!("woken: {}", device()),
                WakeSource::Core => "woken: another core".to_owned(),
                WakeSource::Other => "woken".to_owned(),
            },
            Kind::Interrupt => format!("interrupt {}: {}", event.b, shown(names.name(event.a), "timer")),
            Kind::SpinBegin => "spinning".to_owned(),
            Kind::SpinEnd => "stops spinning".to_owned(),
            Kind::TimersFire => format!("{} timers fired", event.a),
            Kind::Submit | Kind::Complete => request_words(kind, event, &device()),
            Kind::Kick => format!("{} notify", device()),
            Kind::SegmentIn | Kind::SegmentOut | Kind::Retransmit | Kind::Connection => net_words(kind, event),
            Kind::Counter => format!("{} = {}", shown(names.name(event.a), "a counter"), event.b as i64),
            Kind::SpanEnter => format!("enters span {}", self.span(event.b, names)),
            Kind::SpanExit => format!("leaves span {}", self.span(event.b, names)),
            Kind::SpanEnd => format!("span {} ended", self.span(event.b, names)),
            Kind::MpiCall | Kind::MpiReturn | Kind::MpiAbout | Kind::MpiSent | Kind::MpiReceived => {
                mpi_words(kind, event)
            }
            Kind::FunctionEnter => format!("{} starts", function()),
            Kind::FunctionExit => format!("{} returns", function()),
            Kind::FunctionTailExit => format!("{} ends by a jump", function()),
            Kind::Groups => format!("groups on now: {}", groups(event.b)),
            // Recorded in `finish`.
            Kind::SpanBegin | Kind::Message | Kind::Field | Kind::Text => String::new(),
        }
    }

    fn task_words(&self, kind: Kind, event: &Event, names: &dyn Names) -> String {
        match kind {
            Kind::TaskSpawn => {
                let task = self.task(event.a, names);
                let by = match (event.b >> 32) as u32 {
                    0 => String::new(),
                    parent => format!(" by {}", self.task(parent, names)),
                };
                let was_there = if event.detail == 1 { " (before the trace)" } else { "" };
                format!("spawned: {task}{by}{was_there}")
            }
            Kind::PollBegin => "running".to_owned(),
            Kind::PollEnd if event.detail == Outcome::Ready as u16 => "ended".to_owned(),
            Kind::PollEnd => "waiting".to_owned(),
            Kind::Block => {
                let kind = BlockKind::from_number(event.detail);
                let what = wait(kind, names.name(event.a).unwrap_or_default());
                match wait_object(kind, event.b) {
                    object if object.is_empty() => format!("waits on {what}"),
                    object => format!("waits on {what}, {object}"),
                }
            }
            _ => format!("wakes {}", self.task(event.a, names)),
        }
    }

    fn span(&self, number: u64, names: &dyn Names) -> String {
        match self.spans.get(&number).and_then(|name| names.name(*name)) {
            Some(name) => format!("{number} ({})", printable(name)),
            None => number.to_string(),
        }
    }
}

fn shown(name: Option<&str>, otherwise: &str) -> String {
    name.filter(|name| !name.is_empty()).map_or_else(|| otherwise.to_owned(), printable)
}

fn request_words(kind: Kind, event: &Event, device: &str) -> String {
    let (bytes, under_way) = (u64::from(event.c as u32), event.c >> 32);
    let number = event.b;
    if kind == Kind::Submit {
        let what = operation(Operation::from_number(event.detail));
        return format!("{device}: {what} {number} of {} bytes, {under_way} in flight", count(bytes));
    }
    if number >= UNREQUESTED_MIN {
        return format!("{device}: {} bytes received, {under_way} buffers left", count(bytes));
    }
    let how = if event.detail == 0 { "completed" } else { "failed" };
    format!("{device}: {number} {how}, {} bytes, {under_way} in flight", count(bytes))
}

fn net_words(kind: Kind, event: &Event) -> String {
    let connection = event.a;
    if kind == Kind::Connection {
        let [a, b, c, d] = (event.b as u32).to_be_bytes();
        let (local, remote) = (event.c as u16, (event.c >> 16) as u16);
        let ends = format!("{a}.{b}.{c}.{d}:{remote} to port {local}");
        return match Presence::from_number(event.detail) {
            Presence::Begins => format!("connection {connection} opened: {ends}"),
            Presence::Ends => format!("connection {connection} closed"),
            Presence::WasThere => format!("connection {connection} open before the trace: {ends}"),
        };
    }
    let what = match kind {
        Kind::SegmentIn => "received",
        Kind::SegmentOut => "sent",
        _ => "retransmitted",
    };
    let (bytes, window) = (u64::from(event.c as u32), event.c >> 32);
    let (sequence, acknowledgement) = (event.b as u32, (event.b >> 32) as u32);
    let bits = flags(event.detail);
    let space = if bits.is_empty() { "" } else { " " };
    format!(
        "connection {connection} {what}: {bits}{space}{} bytes, sequence {sequence}, acknowledges {acknowledgement}, window {}",
        count(bytes),
        count(window)
    )
}

fn mpi_words(kind: Kind, event: &Event) -> String {
    let name = || MPI_CALLS.get(usize::from(event.detail)).copied().unwrap_or("MPI");
    let (communicator, low) = (event.b >> 32, event.b as u32);
    match kind {
        Kind::MpiCall => format!("rank {} calls {}", event.a, name()),
        Kind::MpiReturn => format!("rank {} returns from {}", event.a, name()),
        Kind::MpiSent => format!("message {} to rank {}: {} bytes", event.b, event.a, count(event.c)),
        Kind::MpiReceived => format!("message {} from rank {}: {} bytes", event.b, event.a, count(event.c)),
        _ => {
            let peer = match event.a {
                0 => "no rank".to_owned(),
                MPI_ANY => "any rank".to_owned(),
                rank => format!("rank {}", rank - 1),
            };
            let tag = if low == u32::MAX { "any tag".to_owned() } else { format!("tag {low}") };
            let bytes = |bytes| format!("{} bytes, communicator {communicator}", count(bytes));
            match MpiRole::from_number(event.detail) {
                Some(MpiRole::Send) => format!("sends to {peer}: {tag}, {}", bytes(event.c)),
                Some(MpiRole::Receive) => format!("receives from {peer}: {tag}, up to {}", bytes(event.c)),
                _ if event.a == 0 => format!("collective operation {low}: {}", bytes(event.c & ((1 << 40) - 1))),
                _ => format!("collective operation {low}: root {peer}, {}", bytes(event.c & ((1 << 40) - 1))),
            }
        }
    }
}

fn groups(bits: u64) -> String {
    let on: Vec<&str> =
        GROUPS.iter().filter(|(group, _)| bits & u64::from(*group as u32) != 0).map(|(_, name)| *name).collect();
    if on.is_empty() { "none".to_owned() } else { on.join(",") }
}

#[cfg(test)]
mod tests;
