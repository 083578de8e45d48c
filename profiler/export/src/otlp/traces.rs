//! Spans of a service. A span with a field `trace_context` has the numbers that its service has sent to others; those below it are in the same trace.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use glass_formats::trace::{TRACE_CONTEXT, VMM_SPANS};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace::model::{Message, NameId, Span, Trace, Value};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Written, TracesData};
use prost::Message as _;

use super::{attribute, resource, scope, text, value};
use crate::Options;
use crate::lanes::{level, task_name};

pub(crate) fn write(
    recording: &Recording,
    trace: &Trace,
    options: Options<'_>,
    output: &mut dyn Write,
) -> io::Result<()> {
    let spans = Spans::new(recording, trace).written();
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
    let resource = Some(resource(recording, options));
    let data = TracesData { resource_spans: vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }] };
    output.write_all(&data.encode_to_vec())
}

/// The numbers of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    trace: u128,
    span: u64,
    /// 0 for none.
    parent: u64,
    /// The service has stated them.
    is_stated: bool,
}

struct Spans<'a> {
    trace: &'a Trace,
    /// The trace's time 0, since 1970.
    zero_ns: u64,
    /// Two recordings must not give the same numbers to different spans.
    seed: u64,
    /// By span.
    numbers: Vec<Option<Numbers>>,
    messages: HashMap<u32, Vec<&'a Message>>,
}

impl<'a> Spans<'a> {
    fn new(recording: &Recording, trace: &'a Trace) -> Spans<'a> {
        let origin = &recording.profile.origin;
        let words = [origin.host.as_bytes(), origin.guest.as_bytes(), &origin.start_unix_ns.to_le_bytes()];
        let seed = words.concat().iter().fold(0, |seed, byte| mixed(seed ^ u64::from(*byte)));
        let mut messages: HashMap<u32, Vec<&Message>> = HashMap::new();
        for message in &trace.messages {
            if let Some(span) = message.span {
                messages.entry(span).or_default().push(message);
            }
        }
        let zero_ns = origin.start_unix_ns.saturating_sub(trace.shift_ns);
        Spans { trace, zero_ns, seed, numbers: vec![None; trace.spans.len()], messages }
    }

    fn written(mut self) -> Vec<Written> {
        let of_guest = |index: &u32| !VMM_SPANS.contains(&self.trace.spans[*index as usize].number);
        let spans: Vec<u32> = (0..self.trace.spans.len() as u32).filter(of_guest).collect();
        let numbered: Vec<(u32, Numbers)> = spans.into_iter().map(|index| (index, self.numbers(index))).collect();
        numbered.into_iter().map(|(index, numbers)| self.span(index, numbers)).collect()
    }

    /// The numbers of a span, and with them those of the spans around it.
    fn numbers(&mut self, index: u32) -> Numbers {
        let mut around = Vec::new();
        let (mut next, mut seen) = (Some(index), HashSet::new());
        let mut parent = None;
        // A guest may state that two spans are in each other.
        while let Some(index) = next.filter(|index| seen.insert(*index)) {
            let Some(span) = self.trace.spans.get(index as usize) else { break };
            if let Some(known) = self.numbers[index as usize] {
                parent = Some(known);
                break;
            }
            around.push((index, span));
            next = span.parent;
        }
        let mut found = Numbers { trace: 1, span: 1, parent: 0, is_stated: false };
        for (index, span) in around.into_iter().rev() {
            let own = mixed(self.seed ^ span.number).max(1);
            found = match (context(self.trace, span), parent) {
                (Some(stated), _) => stated,
                (None, Some(Numbers { trace, span: parent, .. })) => {
                    Numbers { trace, span: own, parent, is_stated: false }
                }
                (None, None) => {
                    let trace = u128::from(mixed(own)) << 64 | u128::from(own);
                    Numbers { trace, span: own, parent: 0, is_stated: false }
                }
            };
            self.numbers[index as usize] = Some(found);
            parent = Some(found);
        }
        self.numbers[index as usize].unwrap_or(found)
    }

    fn span(&self, index: u32, numbers: Numbers) -> Written {
        let (trace, span) = (self.trace, &self.trace.spans[index as usize]);
        let mut attributes = vec![attribute("level", text(level(span.level)))];
        if let Some(task) = span.task {
            attributes.push(attribute("task", text(&task_name(trace, task))));
        }
        if span.end_ns.is_none() || span.begin_is_lost {
            attributes.push(attribute("is_cut", value(&Value::Bool(true))));
        }
        attributes.extend(self.fields(&span.fields));
        let kind = if numbers.is_stated && numbers.parent != 0 { SpanKind::Server } else { SpanKind::Internal };
        Written {
            trace_id: numbers.trace.to_be_bytes().to_vec(),
            span_id: numbers.span.to_be_bytes().to_vec(),
            parent_span_id: if numbers.parent == 0 { Vec::new() } else { numbers.parent.to_be_bytes().to_vec() },
            name: printable(trace.name(span.name)),
            kind: kind.into(),
            start_time_unix_nano: self.zero_ns.saturating_add(span.start_ns),
            end_time_unix_nano: self.zero_ns.saturating_add(trace.span_end_ns(span)),
            attributes,
            events: self.messages.get(&index).into_iter().flatten().map(|message| self.event(message)).collect(),
            ..Written::default()
        }
    }

    fn event(&self, message: &Message) -> Event {
        let place = printable(self.trace.name(message.place));
        let mut attributes = vec![attribute("level", text(level(message.level))), attribute("place", text(&place))];
        attributes.extend(self.fields(&message.fields));
        let name = if message.text.is_empty() { place } else { printable(&message.text) };
        Event { time_unix_nano: self.zero_ns.saturating_add(message.time_ns), name, attributes, ..Event::default() }
    }

    fn fields(&self, fields: &'a [(NameId, Value)]) -> impl Iterator<Item = KeyValue> {
        let stated = fields.iter().filter(|(name, _)| self.trace.name(*name) != TRACE_CONTEXT);
        stated.map(|(name, field)| attribute(&printable(self.trace.name(*name)), value(field)))
    }
}

/// What the service has stated about the place of a span in a trace, if it is as specified.
fn context(trace: &Trace, span: &Span) -> Option<Numbers> {
    let stated = span.fields.iter().find(|(name, _)| trace.name(*name) == TRACE_CONTEXT);
    let Some((_, Value::Text(stated))) = stated else { return None };
    let words: Vec<&str> = stated.split('-').collect();
    let hex = |word: &str, digits: usize| {
        let is_whole = word.len() == digits && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_whole.then(|| u128::from_str_radix(word, 16).ok()).flatten()
    };
    let [trace, span, parent] = words[..] else { return None };
    let (trace, span, parent) = (hex(trace, 32)?, hex(span, 16)?, hex(parent, 16)?);
    (trace != 0 && span != 0).then_some(Numbers { trace, span: span as u64, parent: parent as u64, is_stated: true })
}

/// Another number for each number, without a pattern (the end of MurmurHash3, Appleby 2011).
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_in_the_trace_of_the_service_that_called() {
        let names = ["", TRACE_CONTEXT, "request", "read"].map(str::to_owned).to_vec();
        let stated = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-b7ad6b7169203331";
        let request = |stated: &str| Span {
            number: 7,
            name: 2,
            end_ns: Some(5),
            fields: vec![(1, Value::Text(stated.to_owned()))],
            ..Span::default()
        };
        let read = Span { number: 8, name: 3, parent: Some(0), end_ns: Some(4), ..Span::default() };
        let made = |spans: Vec<Span>| {
            let trace = Trace { names: names.clone(), spans, ..Trace::default() };
            Spans::new(&Recording::default(), &trace).written()
        };
        let spans = made(vec![request(stated), read.clone()]);
        assert_eq!(spans[0].trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(spans[0].parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert_eq!((spans[0].kind(), spans[1].kind()), (SpanKind::Server, SpanKind::Internal));
        assert_eq!((&spans[1].trace_id, &spans[1].parent_span_id), (&spans[0].trace_id, &spans[0].span_id));
        assert!(spans[0].attributes.iter().all(|attribute| attribute.key != TRACE_CONTEXT));
        for wrong in ["", "x", &stated[1..], &stated.replace('4', "g"), &format!("{:032}-{:016}-{:016}", 0, 1, 1)] {
            let spans = made(vec![request(wrong), read.clone()]);
            assert!(spans[0].parent_span_id.is_empty() && spans[0].trace_id != [0; 16], "{wrong}");
            assert_eq!(spans[1].trace_id, spans[0].trace_id);
        }
        // Spans that are in each other end the search.
        let circle = made(vec![Span { parent: Some(0), ..read.clone() }, Span { parent: Some(9), ..read }]);
        assert_eq!(circle.len(), 2);
    }
}
