//! Spans, messages and their fields.

use std::collections::HashMap;

use glass_formats::trace::ValueType;

use super::At;
use super::names::{Names, Role};
use crate::trace::model::{Interval, Message, NameId, Span, SpanVisit, Trace, Value};

/// Maximum of open visits of one core; the starts of further ones are not recorded.
const VISITS_MAX: usize = 256;

/// The open visits.
#[derive(Debug, Default)]
pub(super) struct Spans {
    by_number: HashMap<u64, u32>,
    cores: Vec<CoreState>,
    needs_sort: bool,
}

#[derive(Debug, Default)]
struct CoreState {
    /// Open visits, outermost first.
    visits: Vec<u32>,
    /// The last message, to which fields belong.
    message: Option<u32>,
    text: Option<Text>,
}

/// A text that comes in pieces.
#[derive(Debug)]
struct Text {
    owner: Owner,
    missing: u64,
    bytes: Vec<u8>,
}

/// The span or message that the text or field belongs to.
#[derive(Debug, Clone, Copy)]
enum Owner {
    Message(u32),
    MessageField(u32, usize),
    SpanField(u32, usize),
}

impl Spans {
    pub(super) fn new(cores: usize) -> Spans {
        let mut spans = Spans::default();
        spans.cores.resize_with(cores, CoreState::default);
        spans
    }

    pub(super) fn begin(
        &mut self,
        at: At,
        (number, name): (u64, NameId),
        (parent, level): (u64, u16),
        task: Option<u32>,
        trace: &mut Trace,
    ) {
        let parent = self.by_number.get(&parent).copied();
        self.by_number.insert(number, trace.spans.len() as u32);
        trace.spans.push(Span {
            number,
            name,
            level: level.min(5) as u8,
            parent,
            task,
            start_ns: at.time_ns,
            begin_is_lost: false,
            end_ns: None,
            last_ns: at.time_ns,
            fields: Vec::new(),
        });
    }

    /// The span with this number, which is added if its start was not recorded.
    fn index(&mut self, at: At, number: u64, names: &mut Names, trace: &mut Trace) -> u32 {
        if let Some(index) = self.by_number.get(&number) {
            trace.spans[*index as usize].last_ns = at.time_ns;
            return *index;
        }
        let index = trace.spans.len() as u32;
        self.needs_sort |= index > 0;
        let role = if trace.losses.is_empty() { Role::OldSpan(number) } else { Role::LostSpan(number) };
        let (name, start_ns) = (names.id(0, role), trace.known_since_ns(at.time_ns));
        trace.spans.push(Span { number, name, start_ns, begin_is_lost: true, last_ns: at.time_ns, ..Span::default() });
        self.by_number.insert(number, index);
        index
    }

    pub(super) fn enter(&mut self, at: At, number: u64, task: Option<u32>, names: &mut Names, trace: &mut Trace) {
        let span = self.index(at, number, names, trace);
        let core = &mut self.cores[at.core as usize];
        if core.visits.len() < VISITS_MAX {
            core.visits.push(trace.span_visits.len() as u32);
            let interval = Interval { core: at.core, start_ns: at.time_ns, end_ns: at.time_ns };
            trace.span_visits.push(SpanVisit { span, interval, task });
        }
    }

    pub(super) fn exit(&mut self, at: At, number: u64, trace: &mut Trace) {
        let Some(span) = self.by_number.get(&number).copied() else { return };
        trace.spans[span as usize].last_ns = at.time_ns;
        let visits = &mut self.cores[at.core as usize].visits;
        let is_it = |visit: &u32| trace.span_visits[*visit as usize].span == span;
        if let Some(place) = visits.iter().rposition(is_it) {
            let visit = visits.remove(place);
            trace.span_visits[visit as usize].interval.end_ns = at.time_ns;
        }
    }

    pub(super) fn end(&mut self, at: At, number: u64, names: &mut Names, trace: &mut Trace) {
        let span = self.index(at, number, names, trace);
        self.by_number.remove(&number);
        trace.spans[span as usize].end_ns = Some(at.time_ns);
    }

    pub(super) fn message(
        &mut self,
        at: At,
        (place, level): (NameId, u16),
        (span, bytes): (u64, u64),
        task: Option<u32>,
        trace: &mut Trace,
    ) {
        self.finish_text(at.core, trace);
        let index = trace.messages.len() as u32;
        let span = self.by_number.get(&span).copied();
        let level = level.min(5) as u8;
        trace.messages.push(Message {
            time_ns: at.time_ns,
            core: at.core,
            task,
            span,
            level,
            place,
            ..Message::default()
        });
        let core = &mut self.cores[at.core as usize];
        core.message = Some(index);
        core.text = (bytes > 0).then(|| Text { owner: Owner::Message(index), missing: bytes, bytes: Vec::new() });
    }

    pub(super) fn field(
        &mut self,
        at: At,
        (name, kind): (NameId, u16),
        (value, span): (u64, u64),
        names: &mut Names,
        trace: &mut Trace,
    ) {
        self.finish_text(at.core, trace);
        let typed = match ValueType::from_number(kind) {
            Some(ValueType::Signed) => Value::Signed(value as i64),
            Some(ValueType::Bool) => Value::Bool(value != 0),
            Some(ValueType::Float) => Value::Float(f64::from_bits(value)),
            Some(ValueType::Text) => Value::Text(String::new()),
            Some(ValueType::Unsigned) | None => Value::Unsigned(value),
        };
        let is_text = matches!(typed, Value::Text(_)) && value > 0;
        let owner = if span != 0 {
            let span = self.index(at, span, names, trace);
            let fields = &mut trace.spans[span as usize].fields;
            fields.push((name, typed));
            Owner::SpanField(span, fields.len() - 1)
        } else {
            let Some(message) = self.cores[at.core as usize].message else { return };
            let fields = &mut trace.messages[message as usize].fields;
            fields.push((name, typed));
            Owner::MessageField(message, fields.len() - 1)
        };
        self.cores[at.core as usize].text = is_text.then(|| Text { owner, missing: value, bytes: Vec::new() });
    }

    /// Up to 20 bytes of text, in the fields of the event.
    pub(super) fn text(&mut self, at: At, count: u16, fields: (u32, u64, u64), trace: &mut Trace) {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&fields.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&fields.1.to_le_bytes());
        bytes[12..].copy_from_slice(&fields.2.to_le_bytes());
        let Some(text) = &mut self.cores[at.core as usize].text else { return };
        let count = u64::from(count).min(bytes.len() as u64).min(text.missing);
        text.bytes.extend_from_slice(&bytes[..count as usize]);
        text.missing -= count;
        if text.missing == 0 || count == 0 {
            self.finish_text(at.core, trace);
        }
    }

    fn finish_text(&mut self, core: u32, trace: &mut Trace) {
        let Some(text) = self.cores[core as usize].text.take() else { return };
        let mut said = String::from_utf8_lossy(&text.bytes).into_owned();
        if text.missing > 0 {
            said.push('…');
        }
        let field = match text.owner {
            Owner::Message(message) => {
                trace.messages[message as usize].text = said;
                return;
            }
            Owner::MessageField(message, field) => trace.messages[message as usize].fields.get_mut(field),
            Owner::SpanField(span, field) => trace.spans[span as usize].fields.get_mut(field),
        };
        if let Some((_, value)) = field {
            *value = Value::Text(said);
        }
    }

    /// The poll in which spans were entered has ended.
    pub(super) fn leave_all(&mut self, core: u32, time_ns: u64, trace: &mut Trace) {
        for visit in self.cores[core as usize].visits.drain(..) {
            let interval = &mut trace.span_visits[visit as usize].interval;
            interval.end_ns = time_ns.max(interval.start_ns);
        }
    }

    /// Ends the open visits of a core at this moment: later events are missing.
    pub(super) fn cut(&mut self, core: u32, time_ns: u64, trace: &mut Trace) {
        self.leave_all(core, time_ns, trace);
        self.finish_text(core, trace);
        self.cores[core as usize].message = None;
    }

    /// Ends the open visits at the end of the trace; returns how many spans are open.
    pub(super) fn finish(&mut self, trace: &mut Trace) -> u64 {
        for core in 0..self.cores.len() as u32 {
            self.cut(core, trace.end_ns, trace);
        }
        if self.needs_sort {
            sort(trace);
        }
        self.by_number.len() as u64
    }
}

fn sort(trace: &mut Trace) {
    let mut order: Vec<u32> = (0..trace.spans.len() as u32).collect();
    order.sort_by_key(|index| trace.spans[*index as usize].start_ns);
    let mut places = vec![0; order.len()];
    for (place, index) in order.iter().enumerate() {
        places[*index as usize] = place as u32;
    }
    trace.spans = order.iter().map(|index| std::mem::take(&mut trace.spans[*index as usize])).collect();
    let moved = |span: &mut u32| *span = places[*span as usize];
    trace.spans.iter_mut().filter_map(|span| span.parent.as_mut()).for_each(moved);
    trace.span_visits.iter_mut().map(|visit| &mut visit.span).for_each(moved);
    trace.mpi_calls.iter_mut().map(|call| &mut call.span).for_each(moved);
    trace.messages.iter_mut().filter_map(|message| message.span.as_mut()).for_each(moved);
}
