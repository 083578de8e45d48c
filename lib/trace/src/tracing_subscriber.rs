//! The macros of the crate `tracing`: their spans and events become events of the trace, and messages lines of the console.
//!
//! While the group of spans is off, a macro whose level the console does not print costs a load and a branch.
//! `tracing::Span::current` is always disabled: pass a span as a value.

use crate::console::{ConsoleLog, Line};
use crate::emit::write_at;
use crate::name::intern_static;
use crate::spans::{Numbers, Shared};
use crate::{Event, Group, Kind, ValueType, is_on, sys};
use core::fmt::{self, Write};
use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{Dispatch, Level, LevelFilter, Metadata, Subscriber, callsite, dispatcher};

/// Messages and text values are cut to this many bytes.
pub const TEXT_BYTES_MAX: usize = 200;
/// Bytes in a [`Kind::Text`].
const CHUNK_BYTES: usize = 20;

static SHARED: Shared = Shared::new();

/// Makes the macros of `tracing` write to the trace of this program, and messages to its console too. A platform calls it
/// once, before the service runs and once memory can be allocated. Further calls, and calls after another subscriber was
/// installed, have no effect.
pub fn install(console: ConsoleLog) {
    let _ = dispatcher::set_global_default(Dispatch::new(ToTrace { console }));
}

/// The group of spans was switched on or off: recomputes the interest of every macro.
pub(crate) fn switched() {
    callsite::rebuild_interest_cache();
}

struct ToTrace {
    console: ConsoleLog,
}

impl Subscriber for ToTrace {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_on(Group::Spans) || self.console.prints(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if is_on(Group::Spans) { LevelFilter::TRACE } else { self.console.level })
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        // Without a ring nothing is written, but each span needs a number.
        let number = sys::own::writer().map_or_else(|| Numbers::new().next(), |writer| writer.numbers.next());
        if is_on(Group::Spans) {
            let parent = parent(span.parent(), span.is_contextual());
            let (detail, name) = (level(span.metadata()), intern_static(span.metadata().name()));
            let begin = now(Kind::SpanBegin);
            write(Event { detail, a: name, b: number, c: parent, ..begin });
            span.record(&mut Fields { span: number, ticks: begin.ticks });
        }
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Fields { span: span.into_u64(), ticks: sys::ticks() });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing_core::Event<'_>) {
        if self.console.prints(event.metadata()) {
            (self.console.print)(format_args!("{}", Line(event)));
        }
        if !is_on(Group::Spans) {
            return;
        }
        let mut message = Message(Text::new());
        event.record(&mut message);
        let (text, place) = (message.0, intern_static(event.metadata().target()));
        let span = parent(event.parent(), event.is_contextual());
        let detail = level(event.metadata());
        let message = now(Kind::Message);
        write(Event { detail, a: place, b: span, c: text.length as u64, ..message });
        text.write_out(message.ticks);
        event.record(&mut Fields { span: 0, ticks: message.ticks });
    }

    fn enter(&self, span: &Id) {
        let number = span.into_u64();
        if let Some(writer) = sys::own::writer() {
            writer.entered.enter(number);
        }
        write(Event { b: number, ..now(Kind::SpanEnter) });
    }

    fn exit(&self, span: &Id) {
        let number = span.into_u64();
        write(Event { b: number, ..now(Kind::SpanExit) });
        if let Some(writer) = sys::own::writer() {
            writer.entered.exit(number);
        }
    }

    fn clone_span(&self, span: &Id) -> Id {
        SHARED.add(span.into_u64());
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let number = span.into_u64();
        let is_last = SHARED.remove(number);
        if is_last {
            write(Event { b: number, ..now(Kind::SpanEnd) });
        }
        is_last
    }
}

/// The span that an event belongs to, 0 for none.
fn parent(explicit: Option<&Id>, is_contextual: bool) -> u64 {
    match explicit {
        Some(span) => span.into_u64(),
        None if is_contextual => sys::own::writer().map_or(0, |writer| writer.entered.innermost()),
        None => 0,
    }
}

fn level(metadata: &Metadata<'_>) -> u16 {
    match *metadata.level() {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

fn now(kind: Kind) -> Event {
    at(sys::ticks(), kind)
}

fn at(ticks: u64, kind: Kind) -> Event {
    Event { ticks, kind: kind as u16, ..Event::default() }
}

#[inline(always)]
fn write(event: Event) {
    if is_on(Group::Spans) {
        write_at(event);
    }
}

/// Writes each value as an event, at the time of the span or message; `span` is 0 for those of a message.
struct Fields {
    span: u64,
    ticks: u64,
}

impl Fields {
    fn write(&self, field: &Field, value_type: ValueType, value: u64) {
        if !self.is_text_of_message(field) {
            let (detail, a) = (value_type as u16, intern_static(field.name()));
            write(Event { detail, a, b: value, c: self.span, ..at(self.ticks, Kind::Field) });
        }
    }

    fn write_text(&self, field: &Field, value: fmt::Arguments) {
        if self.is_text_of_message(field) {
            return;
        }
        let text = Text::from(value);
        self.write(field, ValueType::Text, text.length as u64);
        text.write_out(self.ticks);
    }

    fn is_text_of_message(&self, field: &Field) -> bool {
        self.span == 0 && field.name() == MESSAGE
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, ValueType::Unsigned, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, ValueType::Signed, value as u64);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, ValueType::Bool, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write(field, ValueType::Float, value.to_bits());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write_text(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write_text(field, format_args!("{value:?}"));
    }
}

/// The name that the macros give to the text of an event.
pub(crate) const MESSAGE: &str = "message";

/// Finds the text of an event.
struct Message(Text);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == MESSAGE {
            self.0 = Text::from(format_args!("{value:?}"));
        }
    }
}

/// Text of at most [`TEXT_BYTES_MAX`], cut between characters.
struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
    is_cut: bool,
}

impl Text {
    fn new() -> Text {
        Text { bytes: [0; TEXT_BYTES_MAX], length: 0, is_cut: false }
    }

    fn from(value: fmt::Arguments) -> Text {
        let mut text = Text::new();
        // It fails if the value's own formatting fails; then the text is shorter.
        let _ = text.write_fmt(value);
        text
    }

    fn write_out(&self, ticks: u64) {
        for chunk in self.bytes[..self.length].chunks(CHUNK_BYTES) {
            let mut bytes = [0; CHUNK_BYTES];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let a = u32::from_le_bytes(bytes[..4].try_into().unwrap_or_default());
            let word = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().unwrap_or_default());
            write(Event { detail: chunk.len() as u16, a, b: word(4), c: word(12), ..at(ticks, Kind::Text) });
        }
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let mut end = more.len().min(TEXT_BYTES_MAX - self.length);
        if self.is_cut {
            end = 0;
        }
        while !more.is_char_boundary(end) {
            end -= 1;
        }
        self.is_cut |= end < more.len();
        self.bytes[self.length..self.length + end].copy_from_slice(&more.as_bytes()[..end]);
        self.length += end;
        Ok(())
    }
}
