//! The events of the macros of `tracing`.

use crate::common::{CONSOLE, kind, name, traced};
use glass_formats::trace::{Event, Group, Kind, ValueType};
use glass_lib_trace::tracing_subscriber::TEXT_BYTES_MAX;
use tracing::level_filters::LevelFilter;
use tracing::{Level, debug, error, error_span, info, info_span, span, trace_span, warn};

const SPANS: u32 = Group::Spans as u32;

/// The text after event `index`.
fn text(events: &[Event], index: usize, bytes: u64) -> String {
    let mut all = Vec::new();
    for event in events[index + 1..].iter().take_while(|event| kind(event) == Kind::Text) {
        let words = event.to_words();
        let chunk = [&words[1].to_le_bytes()[4..], &words[2].to_le_bytes(), &words[3].to_le_bytes()].concat();
        all.extend_from_slice(&chunk[..usize::from(event.detail)]);
    }
    assert_eq!(all.len() as u64, bytes);
    String::from_utf8(all).unwrap()
}

#[test]
fn a_span_with_fields_comes_back_whole() {
    let traced = traced(SPANS, 64);
    {
        let outer = info_span!("upload", bytes = 1234u64, peer = "10.0.0.2:99", ok = true, id = tracing::field::Empty);
        outer.record("id", -5i64);
        let _inside = outer.enter();
        span!(Level::DEBUG, "write", ratio = 0.5).in_scope(|| ());
    }
    let recorded = traced.recorded();
    let events: Vec<Event> = traced.events().into_iter().filter(|event| kind(event) != Kind::Groups).collect();
    let kinds: Vec<Kind> = recorded.iter().map(|event| event.0).collect();
    use Kind::*;
    let outer = [SpanBegin, Field, Field, Text, Field, Field, SpanEnter];
    let inner = [SpanBegin, Field, SpanEnter, SpanExit, SpanEnd];
    assert_eq!(kinds, [&outer[..], &inner, &[SpanExit, SpanEnd]].concat());
    let (upload, write) = (recorded[0].3, recorded[7].3);
    assert_eq!((name(recorded[0].2), recorded[0].1, recorded[0].4), ("upload".into(), 3, 0));
    assert_eq!((name(recorded[7].2), recorded[7].1, recorded[7].4), ("write".into(), 4, upload));
    assert_ne!(upload, write);
    let field = |index: usize| (name(recorded[index].2), recorded[index].1, recorded[index].3, recorded[index].4);
    assert_eq!(field(1), ("bytes".into(), ValueType::Unsigned as u16, 1234, upload));
    assert_eq!(field(2), ("peer".into(), ValueType::Text as u16, 11, upload));
    assert_eq!(text(&events, 2, 11), "10.0.0.2:99");
    assert_eq!(field(4), ("ok".into(), ValueType::Bool as u16, 1, upload));
    assert_eq!(field(5), ("id".into(), ValueType::Signed as u16, -5i64 as u64, upload));
    assert_eq!(field(8), ("ratio".into(), ValueType::Float as u16, 0.5f64.to_bits(), write));
    // Fields of the start have its time: those before `record` was called, and those of the inner span.
    let ticks = |index: usize| events[index].ticks;
    assert!((1..=4).all(|index| ticks(index) == ticks(0)) && ticks(5) > ticks(0));
    assert!(ticks(8) == ticks(7) && ticks(9) > ticks(8));
    let of: Vec<u64> =
        recorded.iter().filter(|event| matches!(event.0, SpanEnter | SpanExit | SpanEnd)).map(|e| e.3).collect();
    assert_eq!(of, [upload, write, write, write, upload, upload]);
}

#[test]
fn messages_belong_to_the_span_that_the_code_is_in() {
    let traced = traced(SPANS, 64);
    info!("alone");
    let span = info_span!("request");
    span.in_scope(|| error!(code = 7, "it broke: {}", "ä".repeat(TEXT_BYTES_MAX)));
    debug!(parent: &span, "told from outside");
    span.in_scope(|| info!(parent: None, "told by nobody"));
    let (recorded, events) = (traced.recorded(), traced.events());
    let messages: Vec<_> = recorded.iter().filter(|event| event.0 == Kind::Message).collect();
    assert_eq!(messages.iter().map(|event| event.1).collect::<Vec<_>>(), [3, 1, 4, 3]);
    let number = recorded.iter().find(|event| event.0 == Kind::SpanBegin).unwrap().3;
    assert_eq!(messages.iter().map(|event| event.3).collect::<Vec<_>>(), [0, number, number, 0]);
    assert_eq!(name(messages[0].2), module_path!());
    let places: Vec<usize> = (0..events.len()).filter(|index| kind(&events[*index]) == Kind::Message).collect();
    assert_eq!(text(&events, places[0], messages[0].4), "alone");
    // Ten bytes, then characters of two bytes each; none is cut in two.
    assert_eq!(text(&events, places[1], messages[1].4), format!("it broke: {}", "ä".repeat(95)));
    let field = events.iter().find(|event| kind(event) == Kind::Field).unwrap();
    assert_eq!((name(field.a), field.b, field.c), ("code".into(), 7, 0));
}

#[test]
fn while_the_group_is_off_macros_evaluate_nothing() {
    let traced = traced(Group::Tasks as u32, 8);
    let asked = std::cell::Cell::new(0);
    let ask = || asked.replace(asked.get() + 1);
    let read = || {
        trace_span!("span", value = ask()).in_scope(|| info!(value = ask(), "message"));
        // The console prints messages of its level, but no spans.
        drop(error_span!("broken", value = ask()));
    };
    read();
    assert_eq!((asked.get(), traced.recorded().len(), LevelFilter::current()), (0, 0, LevelFilter::WARN));
    // The same callsites are enabled and disabled with the group.
    glass_lib_trace::switch(SPANS);
    read();
    assert_eq!((asked.get(), LevelFilter::current()), (3, LevelFilter::TRACE));
    glass_lib_trace::switch(0);
    read();
    assert_eq!(asked.get(), 3);
}

#[test]
fn fields_of_any_type_are_kept_as_text_as_their_macro_shows_them() {
    let traced = traced(SPANS, 64);
    let _span = info_span!("query", path = ?Some("a"), peer = %"b:1", message = "said");
    let (recorded, events) = (traced.recorded(), traced.events());
    let fields = recorded.iter().filter(|event| event.0 == Kind::Field).map(|event| (name(event.2), event.1, event.3));
    let text_type = ValueType::Text as u16;
    let expected = [("path", text_type, 9), ("peer", text_type, 3), ("message", text_type, 4)];
    assert_eq!(fields.collect::<Vec<_>>(), expected.map(|(name, detail, bytes)| (name.to_owned(), detail, bytes)));
    let places = (0..events.len()).filter(|index| kind(&events[*index]) == Kind::Field);
    let texts: Vec<String> = places.map(|index| text(&events, index, events[index].b)).collect();
    assert_eq!(texts, ["Some(\"a\")", "b:1", "said"]);
}

#[test]
fn nothing_follows_where_a_long_text_was_cut() {
    let traced = traced(SPANS, 64);
    let characters = "ä".repeat(100);
    info!("a{characters}{}{}", "b", "c");
    let events = traced.events();
    let index = events.iter().position(|event| kind(event) == Kind::Message).unwrap();
    // One byte has still room, but half a character is none.
    assert_eq!(text(&events, index, events[index].c), format!("a{}", "ä".repeat(99)));
}

#[test]
fn a_span_ends_with_its_last_handle() {
    let traced = traced(SPANS, 64);
    let ends = || traced.recorded().iter().filter(|event| event.0 == Kind::SpanEnd).count();
    let first = info_span!("shared");
    let second = first.clone();
    drop(first);
    assert_eq!(ends(), 0);
    second.in_scope(|| ());
    drop(second);
    assert_eq!(ends(), 1);
}

#[test]
fn messages_of_the_consoles_level_are_printed_whether_traced_or_not() {
    let printed = || {
        let lines = std::mem::take(&mut *CONSOLE.lock().unwrap());
        let ours = lines.into_iter().filter(|line| line.contains("of the printer"));
        ours.map(|line| line.replace(module_path!(), "here")).collect::<Vec<_>>()
    };
    for groups in [0, SPANS] {
        let _traced = traced(groups, 64);
        info!("too low, of the printer");
        warn!(left = 5, name = "a b", "few {} of the printer", "places");
        error!(target: "store", "broken, of the printer");
        let expected =
            ["WARN here: few places of the printer left=5 name=\"a b\"", "ERROR store: broken, of the printer"];
        assert_eq!(printed(), expected);
    }
}
