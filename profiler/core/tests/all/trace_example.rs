//! The example of a trace, and what is made of it.

use glass_profiler_core::trace::model::Cause;
use glass_profiler_core::trace::{build, example};

#[test]
fn the_example_is_whole() {
    let trace = build(&example::queue(200_000, 1));
    assert!((200_000..201_000).contains(&trace.event_count), "{}", trace.event_count);
    assert_eq!(trace.warnings, [""; 0]);
    let uploads: Vec<_> = trace.spans.iter().filter(|span| trace.name(span.name) == "upload").collect();
    assert!(uploads.len() > 100, "{}", uploads.len());
    assert!(trace.wakes.iter().any(|wake| matches!(wake.cause, Cause::Task(_))));
    assert!(trace.wakes.iter().any(|wake| matches!(wake.cause, Cause::Request(_))));
    assert!(trace.wakes.iter().any(|wake| matches!(wake.cause, Cause::Segment(_))));
    assert!(trace.requests.iter().filter(|request| request.complete_ns.is_none()).count() < 40);
    assert!(trace.calls.iter().any(|call| call.is_tail));
    assert!(trace.messages.iter().any(|message| message.text == "swept places"));
    assert_eq!(example::queue(5_000, 3), example::queue(5_000, 3));
    assert_ne!(example::queue(5_000, 3), example::queue(5_000, 4));
}
