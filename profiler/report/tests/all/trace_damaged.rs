//! Texts of traces that are cut, damaged or nonsense; and of a console that is drained too slowly.

use crate::support::profiles::compare_golden;
use glass_formats::trace::{BlockKind, Event, Kind};
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::path::{Index, Path};
use glass_profiler_core::trace::raw::{ClockPoint, RawChunk, RawRing, RawTrace};
use glass_profiler_core::trace::{build, example};
use glass_profiler_report::trace::over_time::{Explainer, gaps, series};
use glass_profiler_report::trace::{Settings, View, summary, text};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr as _;

/// Every view is made and fits, and the parts of every path sum up to its span.
fn check(trace: &Trace) {
    for view in View::ALL {
        for event in [None, Some("bytes received"), Some("poll"), Some("complete")] {
            let settings = Settings { event: event.map(str::to_owned), ..Settings::default() };
            if let Ok(text) = text(trace, view, &settings) {
                let too_wide = text.lines().find(|line| line.width() > 120);
                assert_eq!(too_wide, None, "{view:?}");
            }
        }
    }
    let index = Index::new(trace);
    for span in 0..trace.spans.len() as u32 {
        let path = Path::find(trace, &index, span).expect("there is such a span");
        let mut now_ns = path.start_ns;
        for part in &path.parts {
            assert_eq!(part.start_ns, now_ns);
            now_ns = part.end_ns;
        }
        assert_eq!(now_ns, path.end_ns);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn damaged_traces_make_texts(
        seed in 1u64..5,
        words in proptest::collection::vec((any::<u16>(), 0usize..4, any::<u64>()), 0..40),
        kinds in proptest::collection::vec((any::<u16>(), 0usize..30), 0..200),
        lost in proptest::collection::vec((any::<u16>(), 1u64..300), 0..5),
        has_clock in any::<bool>(),
    ) {
        let mut raw = example::queue(3_000, seed);
        let events = &mut raw.rings[0].chunks[0].events;
        for (place, word, value) in words {
            let place = place as usize % events.len();
            events[place][word] = value;
        }
        for (place, kind) in kinds {
            let place = place as usize % events.len();
            events[place][1] = events[place][1] & !0xffff | Kind::ALL[kind] as u64;
        }
        let mut chunks = raw.rings[0].chunks.clone();
        for (place, count) in lost {
            let last = chunks.pop().expect("there is a chunk");
            let place = place as usize % (last.events.len() + 1);
            let (before, after) = last.events.split_at(place);
            let first = last.first + place as u64 + count;
            chunks.push(RawChunk { first: last.first, events: before.to_vec() });
            chunks.push(RawChunk { first, events: after.to_vec() });
        }
        raw.rings[0].chunks = chunks;
        if !has_clock {
            raw.clock.clear();
        }
        check(&build(&raw));
    }
}

/// A ring that was overwritten while it was read, cut at its end, of a guest with a full table of names.
#[test]
fn what_is_missing_is_told_first() {
    let mut raw = example::queue(20_000, 2);
    raw.names.truncate(10);
    raw.names_lost = 13;
    raw.functions.truncate(4);
    let chunks = &mut raw.rings[0].chunks;
    chunks[1].events.truncate(4_000);
    chunks.truncate(2);
    chunks[1].first += 700;
    raw.rings[1].chunks.iter_mut().for_each(|chunk| chunk.first += 5_000);
    let trace = build(&raw);
    let said = summary(&trace);
    compare_golden("trace_damaged.txt", &said);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "700 events were overwritten before they could be read",
        "the oldest events are not in the trace, only the newest were kept: 5,000 of core 1",
        "the guest's table of names was full: 13 names are missing",
        "functions have no name",
        "the trace was cut at its end, while the guest still traced",
    ] {
        assert!(words.contains(part), "{part:?}");
    }
}

/// A console whose other side takes 30 lines every 200 ms: the writer fills what room there is, then waits.
fn slow_console() -> RawTrace {
    let names = ["", "writer", "console: no room until the host reads", "lines written", "console"];
    let mut events = Vec::new();
    let mut ticks = 1_000_u64;
    let mut push = |after: u64, kind: Kind, detail: u16, a: u32, b: u64| {
        ticks += after;
        events.push(Event { ticks, kind: kind as u16, detail, a, b, c: 0 }.to_words());
    };
    let mut lines = 0;
    for round in 0..7_u64 {
        push(100, Kind::PollBegin, 0, 1, 1);
        for _ in 0..if round == 0 { 120 } else { 30 } {
            lines += 1;
            push(8_000, Kind::Counter, 0, 3, lines);
        }
        push(500, Kind::Block, BlockKind::Resource as u16, 2, 0);
        push(500, Kind::PollEnd, 0, 1, 0);
        push(500, Kind::IdleBegin, 0, 0, u64::MAX);
        push(199_700_000, Kind::Interrupt, 0, 4, 33);
        push(500, Kind::IdleEnd, 2, 4, 0);
        push(500, Kind::Wake, 0, 1, 0);
    }
    push(100, Kind::Groups, 0, 0, 0);
    RawTrace {
        rings: vec![RawRing { name: "core 0".into(), chunks: vec![RawChunk { first: 0, events }] }],
        names: names.map(String::from).to_vec(),
        clock: vec![ClockPoint { ticks: 0, time_ns: 0, ticks_per_second: 1_000_000_000, error_ns: 0 }],
        ..RawTrace::default()
    }
}

#[test]
fn a_slow_console_makes_a_staircase_and_the_gaps_name_the_cause() {
    let trace = build(&slow_console());
    let lines = series(&trace, "lines written").expect("there is such a counter");
    let gaps = gaps(&lines.times, trace.end_ns, 10);
    assert_eq!(gaps.len(), 7);
    let explainer = Explainer::new(&trace);
    for gap in &gaps {
        let said = explainer.explain(gap.start_ns, gap.end_ns);
        assert!(
            said.starts_with(
                "task `writer #1` waited for `console: no room until the host reads` until an interrupt of `console`"
            ),
            "{said}"
        );
    }
    let settings = Settings { event: Some("lines written".into()), ..Settings::default() };
    compare_golden("trace_console.txt", &text(&trace, View::Events, &settings).expect("there is such a counter"));
}
