//! The trace of an upload. This is a separate program, because counters belong to the whole process.

#[path = "all/common/site.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod site;

use glass_formats::trace::{EVENT_WORDS, Ring};
use glass_lib_trace::{BlockKind, CONTROL, Event, Group, Kind, ValueType, Writer, intern};
use site::{Site, content};
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `work` with a trace of this thread.
fn traced(groups: u32, work: impl FnOnce()) -> Vec<Event> {
    let words: &'static [AtomicU64] = Vec::leak((0..65_536 * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect());
    glass_lib_trace::start(true, words, 0, 0);
    glass_lib_trace::tracing_subscriber::install(glass_lib_trace::ConsoleLog::OFF);
    glass_lib_trace::set_current(Some(Box::leak(Box::new(Writer::claim("test", words).unwrap()))));
    glass_lib_trace::switch(groups);
    work();
    glass_lib_trace::switch(0);
    let mut events = Vec::new();
    Ring::new(&CONTROL.rings[0].head, words).unwrap().read(0, |_, words| events.push(Event::from_words(words)));
    assert!(CONTROL.rings[0].head.load(Ordering::Relaxed) < 65_536, "the ring is too small for this test");
    events
}

fn of(events: &[Event], kind: Kind) -> impl Iterator<Item = &Event> + Clone {
    events.iter().filter(move |event| event.kind == kind as u16)
}

/// The value of a field of a span, the last one if it was recorded again.
fn field(events: &[Event], span: u64, name: &str) -> Option<u64> {
    let name = intern(name);
    let is_it = |event: &&Event| event.c == span && event.a == name && event.detail == ValueType::Unsigned as u16;
    of(events, Kind::Field).filter(is_it).last().map(|event| event.b)
}

#[test]
fn one_span_covers_an_upload_and_its_stages_follow_each_other() {
    let groups = Group::parse_list("all").unwrap();
    let bytes = 700_000;
    let mut site = Site::new(5, 16 << 20, &[]);
    let events = traced(groups, || {
        assert_eq!(site.run(async move |client| client.put(&content(1, bytes)).await.status), 200);
        let body = site.run(async |client| client.get().await.body);
        assert_eq!(body.len(), bytes);
    });
    let spans = |name: &str| {
        let name = intern(name);
        of(&events, Kind::SpanBegin).filter(move |event| event.a == name)
    };
    let [upload, download] = ["upload", "download"].map(|name| {
        assert_eq!(spans(name).count(), 1, "{name}");
        spans(name).next().unwrap().b
    });
    assert_eq!((field(&events, upload, "bytes"), field(&events, download, "bytes")), (Some(700_000), Some(700_000)));
    assert_eq!(field(&events, upload, "id"), field(&events, download, "id"));
    assert!(field(&events, upload, "id").is_some());

    let stages: Vec<u32> =
        of(&events, Kind::SpanBegin).filter(|event| event.c == upload).map(|event| event.a).collect();
    assert_eq!(stages, ["receive", "write", "commit", "answer"].map(intern));
    let (begun, ended) = (of(&events, Kind::SpanBegin).count(), of(&events, Kind::SpanEnd).count());
    assert_eq!(begun, ended, "every span has its end");

    // A span is exited whenever its task waits, and entered again when it resumes.
    let (mut inside, mut is_polled, mut entered) = (Vec::new(), false, 0);
    for event in &events {
        match Kind::from_number(event.kind) {
            Some(Kind::PollBegin) => is_polled = true,
            Some(Kind::PollEnd) => {
                assert_eq!(inside, [0; 0], "a span is not left behind in a wait");
                is_polled = false;
            }
            Some(Kind::SpanEnter) => {
                assert!(is_polled);
                entered += u32::from(event.b == upload);
                inside.push(event.b);
            }
            Some(Kind::SpanExit) => assert_eq!(inside.pop(), Some(event.b)),
            _ => (),
        }
    }
    assert!(entered > 2, "{entered}");

    // The wait at the end has a name, and so has that of the task that commits.
    for name in ["commit of the index", "change to commit"] {
        let name = intern(name);
        let is_it = |event: &Event| event.a == name && event.detail == BlockKind::Notify as u16;
        assert!(of(&events, Kind::Block).any(is_it));
    }
    let last = |name: &str| {
        let name = intern(name);
        of(&events, Kind::Counter).filter(|event| event.a == name).last().map(|event| event.b)
    };
    assert_eq!((last("uploads done"), last("downloads done"), last("items queued")), (Some(1), Some(1), Some(1)));
    assert_eq!(last("bytes queued"), Some(bytes.next_multiple_of(4096) as u64));
    // Those of a transfer are free again at its end.
    let buffers_free = intern("buffers free");
    let free = of(&events, Kind::Counter).filter(|event| event.a == buffers_free).map(|event| event.b);
    assert!(free.clone().max() > Some(0));
    assert_eq!(free.clone().last(), free.max());
}
