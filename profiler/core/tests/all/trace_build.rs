//! Tables of traces that are whole, cut, damaged or nonsense.

use crate::trace_builder::Builder;
use glass_formats::trace::{BlockKind, Kind, Operation, Presence, UNREQUESTED_MIN, WakeSource};
use glass_profiler_core::trace::build;
use glass_profiler_core::trace::model::{Cause, Trace};
use glass_profiler_core::trace::raw::ClockPoint;
use proptest::prelude::*;

const CONNECTION: u32 = 1;
const DISK: u32 = 2;

fn said(trace: &Trace, part: &str) {
    assert!(trace.warnings.iter().any(|warning| warning.contains(part)), "{part:?} in {:#?}", trace.warnings);
}

fn builder() -> Builder {
    Builder::new(&["connection", "disk 0", "console: no room"]).functions(&["a::outer", "a::inner", "core::copy"])
}

#[test]
fn waits_have_reasons_and_causes() {
    let mut b = builder();
    b.at(0, 10, Kind::TaskSpawn, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 20, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 25, Kind::Submit, Operation::Write as u16, DISK, (99, 4096 | 3 << 32));
    b.at(0, 28, Kind::Block, BlockKind::Request as u16, DISK, (99, 0));
    b.at(0, 30, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 40, Kind::IdleBegin, 0, 0, (u64::MAX, 0));
    b.at(0, 70, Kind::IdleEnd, WakeSource::Device as u16, DISK, (0, 0));
    b.at(0, 75, Kind::Complete, 0, DISK, (99, 4096 | 2 << 32));
    b.at(0, 80, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 82, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 90, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 95, Kind::PollEnd, 1, 7, (0, 0));
    b.at(0, 96, Kind::Groups, 0, 0, (0, 0));
    let trace = b.build();
    assert_eq!(trace.warnings, [""; 0]);
    let task = &trace.tasks[0];
    assert_eq!((trace.name(task.name), task.spawned_ns, task.ended_ns), ("connection", Some(10), Some(95)));
    let polls: Vec<_> = trace.polls.iter().map(|p| (p.start_ns, p.end_ns, p.is_last, p.is_cut)).collect();
    assert_eq!(polls, [(20, 30, false, false), (90, 95, true, false)]);
    let waits: Vec<_> = trace.waits.iter().map(|w| (w.start_ns, w.end_ns, w.woken_ns, w.is_cut)).collect();
    assert_eq!(waits, [(10, 20, Some(10), false), (30, 90, Some(80), false)]);
    let reason = trace.reasons[trace.waits[1].first_reason as usize];
    assert_eq!((reason.kind, trace.name(reason.name), reason.object), (BlockKind::Request, "disk 0", 99));
    assert_eq!(trace.wakes[trace.waits[1].wake.unwrap() as usize].cause, Cause::Request(0));
    let request = trace.requests[0];
    assert_eq!((request.submit_ns, request.complete_ns, request.depth, request.task), (25, Some(75), 3, Some(0)));
    assert_eq!((trace.idles[0].interval.end_ns, trace.idles[0].source), (70, WakeSource::Device));
}

#[test]
fn a_wake_during_the_poll_counts_for_the_wait_after_it() {
    let mut b = builder();
    b.at(0, 20, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 22, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 30, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 40, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 41, Kind::PollEnd, 1, 7, (0, 0));
    let trace = b.build();
    assert_eq!((trace.waits[0].woken_ns, trace.waits[0].wake), (Some(30), Some(0)));
    assert_eq!(trace.wakes[0].cause, Cause::Task(0));
}

#[test]
fn a_cause_does_not_outlive_a_poll_or_a_halt() {
    let mut b = builder();
    b.at(0, 10, Kind::TimersFire, 0, 1, (0, 0));
    b.at(0, 11, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 12, Kind::PollBegin, 0, 8, (0, 0));
    b.at(0, 13, Kind::PollEnd, 0, 8, (0, 0));
    b.at(0, 14, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 15, Kind::Complete, 0, DISK, (1, 0));
    b.at(0, 16, Kind::IdleBegin, 0, 0, (0, 0));
    b.at(0, 17, Kind::Wake, 0, 7, (0, 0));
    let causes: Vec<Cause> = b.build().wakes.iter().map(|wake| wake.cause).collect();
    assert_eq!(causes, [Cause::Timer, Cause::Unknown, Cause::Unknown]);
}

#[test]
fn calls_nest_through_recursion_and_tail_calls() {
    let mut b = builder();
    for (ticks, kind, function) in [
        (10, Kind::FunctionEnter, 0),
        (20, Kind::FunctionEnter, 0),
        (30, Kind::FunctionEnter, 1),
        (40, Kind::FunctionTailExit, 1),
        (41, Kind::FunctionEnter, 2),
        (50, Kind::FunctionExit, 2),
        (60, Kind::FunctionExit, 0),
        (70, Kind::FunctionExit, 0),
    ] {
        b.at(0, ticks, kind, 0, function, (0, 0));
    }
    let trace = b.build();
    assert_eq!(trace.warnings, [""; 0]);
    let calls: Vec<_> =
        trace.calls.iter().map(|c| (c.function, c.parent, c.depth, c.start_ns, c.end_ns, c.is_tail)).collect();
    assert_eq!(
        calls,
        [
            (0, None, 0, 10, 70, false),
            (0, Some(0), 1, 20, 60, false),
            (1, Some(1), 2, 30, 40, true),
            // It was jumped to, so it has the caller of the one that jumped.
            (2, Some(1), 2, 41, 50, false),
        ]
    );
    assert_eq!((trace.functions[2].name.as_str(), trace.functions[2].library.as_str()), ("core::copy", "core"));
}

#[test]
fn calls_of_a_poll_are_the_tasks_own() {
    let mut b = builder();
    b.at(0, 5, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 10, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 11, Kind::FunctionEnter, 0, 1, (0, 0));
    b.at(0, 12, Kind::FunctionExit, 0, 1, (0, 0));
    b.at(0, 13, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 14, Kind::FunctionExit, 0, 0, (0, 0));
    let trace = b.build();
    let calls: Vec<_> = trace.calls.iter().map(|c| (c.task, c.parent, c.depth, c.start_ns, c.end_ns)).collect();
    assert_eq!(calls, [(None, None, 0, 5, 14), (Some(0), None, 0, 11, 12)]);
}

#[test]
fn calls_whose_begin_is_missing_are_around_the_others() {
    let mut b = builder();
    b.at(0, 10, Kind::FunctionEnter, 0, 2, (0, 0));
    b.at(0, 20, Kind::FunctionExit, 0, 2, (0, 0));
    b.at(0, 30, Kind::FunctionExit, 0, 1, (0, 0));
    b.at(0, 35, Kind::FunctionEnter, 0, 2, (0, 0));
    b.at(0, 36, Kind::FunctionExit, 0, 2, (0, 0));
    b.at(0, 40, Kind::FunctionExit, 0, 0, (0, 0));
    let trace = b.build();
    let name = |call: u32| trace.functions[trace.calls[call as usize].function as usize].name.clone();
    let calls: Vec<_> = trace
        .calls
        .iter()
        .enumerate()
        .map(|(i, c)| (name(i as u32), c.parent, c.depth, c.start_ns, c.end_ns, c.is_cut))
        .collect();
    assert_eq!(
        calls,
        [
            ("a::outer".into(), None, 0, 10, 40, true),
            ("a::inner".into(), Some(0), 1, 10, 30, true),
            ("core::copy".into(), Some(1), 2, 10, 20, false),
            ("core::copy".into(), Some(0), 1, 35, 36, false),
        ]
    );
}

/// Such a span was drawn from the start of the trace and was the longest of all (2026-11-22).
#[test]
fn a_span_whose_begin_was_lost_begins_at_the_loss_and_counts_for_nothing() {
    let mut b = builder();
    b.at(0, 10, Kind::SpanEnd, 0, 0, (3, 0));
    b.at(0, 100, Kind::SpanBegin, 3, 1, (4, 0));
    b.at(0, 150, Kind::SpanEnd, 0, 0, (4, 0));
    b.lose(0, 20);
    b.at(0, 1_000, Kind::TimersFire, 0, 1, (0, 0));
    b.at(0, 1_200, Kind::SpanEnter, 0, 0, (5, 0));
    b.at(0, 1_500, Kind::SpanEnd, 0, 0, (5, 0));
    let trace = b.build();
    let spans: Vec<_> = trace.spans.iter().map(|s| (s.number, s.start_ns, s.end_ns, s.begin_is_lost)).collect();
    assert_eq!(spans, [(3, 10, Some(10), true), (4, 100, Some(150), false), (5, 1_000, Some(1_500), true)]);
    let name = |span: usize| trace.name(trace.spans[span].name);
    assert_eq!((name(0), name(2)), ("span 3 (it started before the trace)", "span 5 (its start was lost)"));
    for span in [0, 2] {
        assert_eq!(glass_profiler_core::trace::path::spans_by_duration(&trace, name(span)), [0; 0]);
    }
    assert_eq!(glass_profiler_core::trace::path::spans_by_duration(&trace, name(1)), [1]);
}

#[test]
fn a_connection_whose_begin_was_lost_is_known_from_the_loss_on() {
    let mut b = builder();
    b.at(0, 10, Kind::SegmentIn, 0, 1, (0, 0));
    b.at(0, 11, Kind::Connection, Presence::Begins as u16, 2, (0, 0));
    b.lose(0, 20);
    b.at(0, 1_000, Kind::TimersFire, 0, 1, (0, 0));
    b.at(0, 1_200, Kind::SegmentIn, 0, 3, (0, 0));
    let known: Vec<_> = b.build().connections.iter().map(|of| (of.number, of.start_ns, of.known_ns)).collect();
    assert_eq!(known, [(1, None, 10), (2, Some(11), 11), (3, None, 1_000)]);
}

/// A second recorder of a guest reported that the oldest events are missing: those before its start (2026-11-22).
/// A read whose completion was lost was drawn to the end of the trace, two seconds long (2026-11-22).
#[test]
fn what_has_no_end_in_the_trace_is_known_until_events_were_lost() {
    let mut b = builder();
    b.at(0, 100, Kind::Submit, 0, 1, (1, 4096 | 1 << 32));
    b.at(0, 110, Kind::SpanBegin, 3, 1, (4, 0));
    b.at(0, 120, Kind::SpanBegin, 3, 1, (5, 0));
    b.at(0, 130, Kind::Connection, 1, 7, (0, 8080));
    b.at(0, 140, Kind::SegmentIn, 24, 8, (0, 100));
    b.at(0, 200, Kind::TimersFire, 0, 1, (0, 0));
    b.lose(0, 20);
    b.at(0, 1_000, Kind::TimersFire, 0, 1, (0, 0));
    b.at(0, 1_100, Kind::Submit, 0, 1, (2, 4096 | 1 << 32));
    b.at(0, 1_200, Kind::SpanEnter, 0, 0, (5, 0));
    b.at(0, 1_300, Kind::SegmentIn, 24, 8, (0, 100));
    b.at(0, 2_000, Kind::TimersFire, 0, 1, (0, 0));
    let trace = b.build();
    let requests: Vec<u64> = trace.requests.iter().map(|request| trace.request_end_ns(request)).collect();
    assert_eq!(requests, [200, 2_000]);
    let spans: Vec<_> = trace.spans.iter().map(|span| (span.number, trace.span_end_ns(span))).collect();
    assert_eq!(spans, [(4, 200), (5, 2_000)], "the second has an event after the loss");
    let connections: Vec<_> = trace.connections.iter().map(|it| (it.number, trace.connection_end_ns(it))).collect();
    assert_eq!(connections, [(7, 200), (8, 2_000)]);
}

#[test]
fn what_was_before_reading_began_is_not_missing() {
    let mut b = builder();
    b.lose(0, 500);
    b.lose(0, 1);
    b.at(0, 10, Kind::TimersFire, 0, 1, (0, 0));
    let warnings = b.build().warnings;
    assert!(warnings.iter().any(|text| text.contains("oldest events") && text.contains("1 of core 0")), "{warnings:?}");
    let mut b = builder();
    b.lose(0, 500);
    b.begin_chunk(0);
    b.at(0, 10, Kind::TimersFire, 0, 1, (0, 0));
    let trace = b.build();
    assert_eq!((trace.warnings, trace.losses), (vec![], vec![]));
}

#[test]
fn a_return_that_is_missing_ends_with_the_callers() {
    let mut b = builder();
    b.at(0, 10, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 20, Kind::FunctionEnter, 0, 1, (0, 0));
    b.at(0, 30, Kind::FunctionExit, 0, 0, (0, 0));
    b.at(0, 40, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 41, Kind::FunctionExit, 0, 2, (0, 0));
    b.at(0, 42, Kind::FunctionExit, 0, 0, (0, 0));
    let trace = b.build();
    let calls: Vec<_> = trace.calls.iter().map(|c| (c.start_ns, c.end_ns, c.is_cut)).collect();
    assert_eq!(calls, [(10, 30, false), (20, 30, true), (40, 42, false)]);
    said(&trace, "1 return has no call and 1 call has no return");
}

#[test]
fn an_overflow_cuts_what_was_under_way_and_is_told() {
    let mut b = builder();
    b.at(0, 1_000, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 1_001, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 1_002, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 1_003, Kind::PollBegin, 0, 8, (0, 0));
    b.at(0, 1_004, Kind::FunctionEnter, 0, 0, (0, 0));
    b.lose(0, 995);
    b.at(0, 2_001_000, Kind::PollEnd, 0, 8, (0, 0));
    b.at(0, 2_002_000, Kind::PollBegin, 0, 7, (0, 0));
    b.at(0, 2_003_000, Kind::PollEnd, 1, 7, (0, 0));
    let trace = b.build();
    assert_eq!(trace.losses.len(), 1);
    assert_eq!(
        (trace.losses[0].events, trace.losses[0].interval.start_ns, trace.losses[0].interval.end_ns),
        (995, 1_004, 2_001_000)
    );
    let polls: Vec<_> = trace.polls.iter().map(|p| (p.start_ns, p.end_ns, p.is_cut)).collect();
    assert_eq!(
        polls,
        [(1_000, 1_002, false), (1_003, 1_004, true), (2_001_000, 2_001_000, true), (2_002_000, 2_003_000, false)]
    );
    assert!(trace.waits[0].is_cut, "there may have been polls where events are missing");
    assert!(trace.calls.iter().all(|call| call.is_cut && call.end_ns <= 1_004));
    said(
        &trace,
        "995 events were overwritten before they could be read (99.2 % of all), on core 0 from 0.000001 s to 0.002001 s",
    );
}

#[test]
fn the_newest_events_only() {
    let mut b = builder();
    b.lose(0, 12_345);
    b.at(0, 10, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 20, Kind::Complete, 0, DISK, (4, 100));
    b.at(0, 25, Kind::Complete, 0, DISK, (UNREQUESTED_MIN + 4, 100));
    b.at(0, 30, Kind::IdleEnd, 0, 0, (0, 0));
    let trace = b.build();
    assert_eq!(trace.losses, []);
    assert_eq!((trace.polls[0].start_ns, trace.polls[0].is_cut), (10, true));
    // The operation of a request whose submission is missing is unknown; the other completion was unrequested.
    assert_eq!(trace.requests[0].operation, Operation::Other);
    assert_eq!(trace.requests[1].operation, Operation::Receive);
    said(&trace, "the oldest events are not in the trace, only the newest were kept: 12,345 of core 0");
}

#[test]
fn a_crash_in_the_middle_of_a_poll() {
    let mut b = builder();
    b.at(0, 10, Kind::SpanBegin, 3, CONNECTION, (5, 0));
    b.at(0, 20, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 30, Kind::Submit, 2, DISK, (1, 512 | 1 << 32));
    b.at(0, 40, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 41, Kind::Message, 1, CONNECTION, (0, 40));
    b.at(
        0,
        42,
        Kind::Text,
        20,
        u32::from_le_bytes(*b"half"),
        (u64::from_le_bytes(*b" a texth"), u64::from_le_bytes(*b"alf a te")),
    );
    let trace = b.build();
    assert_eq!((trace.polls[0].end_ns, trace.polls[0].is_cut, trace.calls[0].is_cut), (42, true, true));
    assert_eq!(trace.messages[0].text, "half a texthalf a te…");
    said(
        &trace,
        "the trace was cut at its end, while the guest still traced: 1 poll, 1 call, 1 request and 1 span were open",
    );
}

#[test]
fn cores_whose_clocks_differ_are_put_in_order_and_told() {
    let mut b = builder();
    b.at(0, 100, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(1, 50, Kind::PollBegin, 0, 8, (0, 0));
    b.at(0, 90, Kind::PollEnd, 0, 7, (0, 0));
    b.at(1, 110, Kind::PollEnd, 0, 8, (0, 0));
    let trace = b.build();
    let polls: Vec<_> = trace.polls.iter().map(|p| (p.core, p.start_ns, p.end_ns, p.is_cut)).collect();
    assert_eq!(polls, [(1, 50, 110, false), (0, 100, 100, false)]);
    said(&trace, "the clock went back: 1 event was before the one that came first, most on core 0");
}

#[test]
fn names_that_had_no_room() {
    let mut b = builder().names_lost(3);
    b.at(0, 10, Kind::PollBegin, 0, 17, (0, 0));
    b.at(0, 20, Kind::PollEnd, 0, 17, (0, 0));
    b.at(0, 30, Kind::Counter, 0, 0, (5, 0));
    b.at(0, 40, Kind::Counter, 0, 9, (5, 0));
    b.at(0, 50, Kind::FunctionEnter, 0, 77, (0, 0));
    b.at(0, 60, Kind::FunctionExit, 0, 77, (0, 0));
    let mut raw = b.raw();
    raw.rings_lost = 2;
    let trace = build(&raw);
    assert_eq!(trace.name(trace.tasks[0].name), "task 17");
    let counters: Vec<&str> = trace.counters.iter().map(|counter| trace.name(counter.name)).collect();
    assert_eq!(
        counters,
        [
            "counter without a name (the guest's table of names was full)",
            "name 9 (the guest's table of names was full)"
        ]
    );
    said(&trace, "the guest's table of names was full: 3 names are missing");
    said(&trace, "2 threads of the guest found no ring");
    said(&trace, "1 function has no name");
}

#[test]
fn kinds_of_a_newer_guest_are_counted() {
    let mut b = builder();
    b.raw_kind(0, 10, 200);
    b.raw_kind(0, 20, 201);
    b.raw_kind(0, 30, 200);
    said(&b.build(), "3 events have kinds that this program does not know (200, 201)");
}

#[test]
fn tracing_that_is_switched_off_and_on_leaves_no_waits_across() {
    let mut b = builder();
    b.at(0, 10, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 20, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 30, Kind::Groups, 0, 0, (0, 0));
    b.at(0, 1_000, Kind::Groups, 0, 0, (127, 0));
    b.at(0, 1_010, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 1_020, Kind::PollEnd, 1, 7, (0, 0));
    let trace = b.build();
    let waits: Vec<_> = trace.waits.iter().map(|w| (w.start_ns, w.end_ns, w.is_cut)).collect();
    assert_eq!(waits, [(20, 30, true)]);
}

#[test]
fn switches_and_kicks_are_kept() {
    let mut b = Builder::new(&["net", "disk 0"]);
    b.at(0, 10, Kind::Groups, 0, 0, (127, 0));
    b.at(0, 20, Kind::PollBegin, 0, 7, (0, 0));
    b.at(0, 30, Kind::Kick, 0, 1, (0, 0));
    b.at(0, 40, Kind::PollEnd, 0, 7, (0, 0));
    b.at(1, 50, Kind::Submit, 2, 2, (1, 0));
    b.at(1, 60, Kind::Kick, 0, 2, (0, 0));
    b.at(1, 70, Kind::Groups, 0, 0, (3, 0));
    let trace = b.build();
    let switches: Vec<_> = trace.switches.iter().map(|s| (s.time_ns, s.core, s.groups)).collect();
    assert_eq!(switches, [(10, 0, 127), (70, 1, 3)]);
    let device = |index: u32| trace.name(trace.devices[index as usize].name);
    let kicks: Vec<_> = trace.kicks.iter().map(|k| (k.time_ns, k.core, device(k.device), k.task)).collect();
    assert_eq!(kicks, [(30, 0, "net", Some(0)), (60, 1, "disk 0", None)]);
    assert_eq!(device(trace.requests[0].device), "disk 0");
}

#[test]
fn a_connection_that_was_there_is_not_a_new_one() {
    let mut b = builder();
    b.at(0, 10, Kind::Connection, 3, 4, (0x0a00_0002, 8080 | 50_000 << 16));
    b.at(0, 20, Kind::Connection, 1, 5, (0x0a00_0003, 8080 | 50_001 << 16));
    b.at(0, 30, Kind::Connection, 2, 4, (0, 0));
    b.at(0, 40, Kind::Connection, 2, 5, (0, 0));
    // A reused number, and a value that a newer guest may record.
    b.at(0, 50, Kind::Connection, 3, 4, (0x0a00_0002, 8080 | 50_000 << 16));
    b.at(0, 60, Kind::Connection, 9, 6, (0, 0));
    let trace = b.build();
    let lives: Vec<_> = trace.connections.iter().map(|c| (c.number, c.remote_port, c.start_ns, c.end_ns)).collect();
    let expected =
        [(4, 50_000, None, Some(30)), (5, 50_001, Some(20), Some(40)), (4, 50_000, None, None), (6, 0, None, None)];
    assert_eq!(lives, expected);
}

#[test]
fn functions_that_are_switched_on_during_a_poll_belong_to_it() {
    let mut b = builder();
    b.at(0, 5, Kind::FunctionEnter, 0, 0, (0, 0));
    b.at(0, 10, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(1, 20, Kind::Groups, 0, 0, (63, 0));
    b.at(0, 30, Kind::FunctionEnter, 0, 1, (0, 0));
    b.at(0, 40, Kind::PollEnd, 0, 7, (0, 0));
    b.at(0, 50, Kind::FunctionEnter, 0, 2, (0, 0));
    b.at(0, 60, Kind::FunctionExit, 0, 2, (0, 0));
    let calls: Vec<_> = b.build().calls.iter().map(|c| (c.task, c.parent, c.start_ns, c.end_ns)).collect();
    assert_eq!(calls, [(None, None, 5, 20), (Some(0), None, 30, 40), (None, None, 50, 60)]);
}

#[test]
fn events_before_the_recording_shift_its_times() {
    let mut b = builder().clock(ClockPoint { ticks: 1_000, time_ns: 0, ticks_per_second: 1_000_000_000, error_ns: 0 });
    b.at(0, 400, Kind::PollBegin, 0, 7, (0, 0));
    b.at(0, 1_500, Kind::PollEnd, 0, 7, (0, 0));
    let trace = b.build();
    assert_eq!((trace.shift_ns, trace.start_ns, trace.end_ns), (600, 0, 1_100));
}

#[test]
fn nothing_at_all() {
    let trace = build(&Default::default());
    assert_eq!((trace.start_ns, trace.end_ns, trace.event_count), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_words_do_no_harm(
        rings in proptest::collection::vec(proptest::collection::vec((0u64..3, proptest::array::uniform4(any::<u64>())), 0..60), 0..3),
        clock in proptest::collection::vec(any::<(u64, u64, u64, u64)>(), 0..4),
        names_lost in any::<u32>(),
    ) {
        let mut b = builder().names_lost(names_lost);
        for (ring, events) in rings.iter().enumerate() {
            for (gap, words) in events {
                b.lose(ring as u32, *gap);
                b.words(ring as u32, *words);
            }
        }
        let mut raw = b.raw();
        raw.clock = clock.iter().map(|(ticks, time_ns, ticks_per_second, error_ns)| ClockPoint {
            ticks: *ticks, time_ns: *time_ns, ticks_per_second: *ticks_per_second, error_ns: *error_ns,
        }).collect();
        check(&build(&raw));
    }

    /// Known kinds with small numbers, so that they meet each other.
    #[test]
    fn events_in_any_order_do_no_harm(
        events in proptest::collection::vec((0u32..2, 0usize..30, 0u16..3, 0u32..4, 0u64..4, 0u64..4, 0u64..20, 0u64..30), 0..200),
    ) {
        let mut b = builder();
        let mut ticks = 0;
        for (ring, kind, detail, a, low, c, later, gap) in events {
            ticks += later;
            b.lose(ring, gap.saturating_sub(27));
            b.at(ring, ticks, Kind::ALL[kind], detail, a, (low, c));
        }
        check(&b.build());
    }
}

/// Invariants of every trace.
fn check(trace: &Trace) {
    let ordered = |times: Vec<u64>, what: &str| assert!(times.is_sorted(), "{what}: {times:?}");
    ordered(trace.polls.iter().map(|poll| poll.start_ns).collect(), "polls");
    ordered(trace.waits.iter().map(|wait| wait.start_ns).collect(), "waits");
    ordered(trace.requests.iter().map(|request| request.submit_ns).collect(), "requests");
    ordered(trace.calls.iter().map(|call| call.start_ns).collect(), "calls");
    ordered(trace.spans.iter().map(|span| span.start_ns).collect(), "spans");
    ordered(trace.span_visits.iter().map(|visit| visit.interval.start_ns).collect(), "visits");
    ordered(trace.losses.iter().map(|loss| loss.interval.start_ns).collect(), "losses");
    for (start_ns, end_ns) in trace
        .polls
        .iter()
        .map(|poll| (poll.start_ns, poll.end_ns))
        .chain(trace.waits.iter().map(|wait| (wait.start_ns, wait.end_ns)))
        .chain(trace.calls.iter().map(|call| (call.start_ns, call.end_ns)))
        .chain(trace.idles.iter().map(|idle| (idle.interval.start_ns, idle.interval.end_ns)))
        .chain(trace.spins.iter().map(|spin| (spin.start_ns, spin.end_ns)))
    {
        assert!(start_ns <= end_ns && start_ns >= trace.start_ns && end_ns <= trace.end_ns, "{start_ns} {end_ns}");
    }
    for (index, call) in trace.calls.iter().enumerate() {
        if let Some(parent) = call.parent {
            let parent_call = trace.calls[parent as usize];
            assert!((parent as usize) < index, "a call comes before those that it makes");
            assert_eq!(call.depth, parent_call.depth + 1);
            assert_eq!((call.task, call.core), (parent_call.task, parent_call.core));
            assert!(parent_call.start_ns <= call.start_ns && call.end_ns <= parent_call.end_ns);
        }
    }
    for wait in &trace.waits {
        assert!(wait.woken_ns.is_none_or(|woken| wait.start_ns <= woken && woken <= wait.end_ns));
        assert!((wait.first_reason + wait.reason_count) as usize <= trace.reasons.len());
        assert!((wait.task as usize) < trace.tasks.len());
    }
}
