//! Several devices whose queues are notified: each has a track for that between its own and the next one's.

use glass_formats::trace::{Event, Kind};
use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::build;
use glass_profiler_core::trace::raw::{RawChunk, RawRing, RawTrace};

#[test]
fn each_of_several_devices_that_are_notified_has_its_tracks() {
    let names = ["", "disk 0", "disk 1", "network 0"];
    let mut events = Vec::new();
    for device in 1..=3u32 {
        for (offset, kind) in [(0, Kind::Submit), (1, Kind::Kick), (2, Kind::Complete)] {
            let ticks = u64::from(device) * 10 + offset;
            // The first notification was not measured; without a clock, a tick is a nanosecond.
            let (b, c) = if kind == Kind::Kick { (u64::from(device) - 1, 0) } else { (7, 512) };
            events.push(Event { ticks, kind: kind as u16, a: device, b, c, ..Event::default() }.to_words());
        }
    }
    let raw = RawTrace {
        rings: vec![RawRing { name: "core 0".to_owned(), chunks: vec![RawChunk { first: 0, events }] }],
        names: names.map(str::to_owned).into(),
        ..RawTrace::default()
    };
    let trace = build(&raw);
    assert_eq!((trace.devices.len(), trace.requests.len()), (3, 3));
    let took_ns: Vec<Option<u64>> = trace.kicks.iter().map(|kick| kick.took_ns).collect();
    assert_eq!(took_ns, [None, Some(1), Some(2)]);
    let page = glass_profiler_report::trace_html(&Profile::default(), &trace);
    assert!(names[1..].iter().all(|name| page.contains(name)));
}
