//! Sessions of a synthetic source and a synthetic sink.

mod fake;

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fake::{Collector, FakeSource, Then};
use glass_profiler_core::event::Event;
use glass_profiler_core::files::NoFiles;
use glass_profiler_guests::{Flow, GuestError};
use glass_profiler_session::{End, Outcome, Recording, Session, Sources, Status, Wish};

/// Wide: a test that waits for so long has failed.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs a session into a collector; returns what that has, and how the session went.
fn run(
    source: &mut FakeSource,
    sink: Collector,
    duration: Option<Duration>,
    mut wish: impl FnMut(&Status) -> Wish,
) -> io::Result<(fake::Collected, Outcome)> {
    let begun = Instant::now();
    let sources = Sources { samples: Some(source), ..Default::default() };
    let running = Session::announce(sources).unwrap().start(sink).unwrap();
    let ended = running.run(duration, |status| {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        wish(status)
    });
    ended.finish()
}

fn go_on(_: &Status) -> Wish {
    Wish::Continue
}

fn warnings(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| if let Event::Warning(text) = event { Some(text.as_str()) } else { None })
        .collect()
}

#[test]
fn a_session_ends_when_its_duration_is_over() {
    let mut source = FakeSource::new(3, Then::GoesOn);
    let duration = Duration::from_millis(250);
    let begun = Instant::now();
    let (collected, outcome) = run(&mut source, Collector::default(), Some(duration), go_on).unwrap();
    assert!(matches!(outcome.end, End::Duration), "{:?}", outcome.end);
    assert!(begun.elapsed() >= duration && outcome.status.elapsed >= duration);
    assert!(source.is_detached);
    // First what is there at its start, last what comes when it detaches.
    assert!(matches!(collected.events[0], Event::Track { .. }), "{:?}", collected.events[0]);
    assert_eq!(warnings(&collected.events), ["a word at the end"]);
    assert_eq!(collected.samples(), source.delivered);
    assert_eq!(collected.cost.samples_wanted, source.delivered);
    // The source reads the clock a moment after the session has begun.
    let clocks = Duration::from_nanos(collected.end_ns - source.announced_ns);
    assert!(clocks + duration / 5 >= duration, "{clocks:?}");
    outcome.result().unwrap();
}

#[test]
fn a_session_ends_with_its_guest() {
    let mut source = FakeSource::new(3, Then::Ends(Flow::Ended));
    let (collected, outcome) = run(&mut source, Collector::default(), None, go_on).unwrap();
    assert!(matches!(outcome.end, End::GuestEnded), "{:?}", outcome.end);
    assert_eq!((collected.samples(), source.is_detached), (source.delivered, true));
    outcome.result().unwrap();
}

#[test]
fn a_session_ends_when_the_caller_wishes_so() {
    let mut source = FakeSource::new(3, Then::GoesOn);
    let mut rounds = 0;
    let (collected, outcome) = run(&mut source, Collector::default(), Some(PATIENCE), |status| {
        rounds += 1;
        assert_eq!(status.lost(), 0);
        if status.counts.delivered >= 9 { Wish::Stop } else { Wish::Continue }
    })
    .unwrap();
    assert!(matches!(outcome.end, End::Stopped), "{:?}", outcome.end);
    assert_eq!((rounds, collected.samples()), (4, 9));
}

#[test]
fn what_was_collected_before_a_failure_is_kept() {
    let mut source = FakeSource::new(3, Then::Fails);
    let (collected, outcome) = run(&mut source, Collector::default(), None, go_on).unwrap();
    assert!(source.is_detached);
    assert_eq!(collected.samples(), source.delivered);
    let warnings = warnings(&collected.events);
    assert!(warnings.last().unwrap().starts_with("recording ended early: cannot "), "{warnings:?}");
    assert!(matches!(outcome.result(), Err(GuestError::System { .. })));
}

#[test]
fn a_sink_that_fails_ends_the_session_with_its_error() {
    let mut source = FakeSource::new(3, Then::GoesOn);
    let sink = Collector { fails_after: Some(5), ..Default::default() };
    let error = run(&mut source, sink, None, go_on).err().unwrap();
    assert_eq!(error.to_string(), "no room");
    assert!(source.is_detached);
}

#[test]
fn a_sink_that_panics_ends_the_session() {
    let mut source = FakeSource::new(3, Then::GoesOn);
    let sink = Collector { panics: true, ..Default::default() };
    let error = run(&mut source, sink, None, go_on).err().unwrap();
    assert!(error.to_string().contains("ended unexpectedly"), "{error}");
    assert!(source.is_detached);
}

/// The source delivers more than the queue holds while the sink does nothing: what finds no room is lost, and neither
/// the source waits nor is anything of it called a pause.
#[test]
fn a_slow_sink_is_counted_as_loss_and_not_as_pause() {
    let mut source = FakeSource::new(20_000, Then::GoesOn);
    let sink = Collector { stands_still: true, ..Default::default() };
    let gate = sink.gate.clone();
    let (collected, outcome) = run(&mut source, sink, None, |status| {
        if status.counts.delivered < 60_000 {
            return Wish::Continue;
        }
        gate.store(true, Ordering::Release);
        Wish::Stop
    })
    .unwrap();
    let dropped = outcome.status.dropped;
    assert!(dropped > 40_000, "{dropped}");
    assert_eq!(collected.samples() + dropped, source.delivered);
    assert_eq!((collected.cost.samples_lost, collected.cost.samples_wanted), (dropped, source.delivered));
    assert_eq!(outcome.status.lost(), dropped);
    assert_eq!((collected.cost.pause.count, collected.cost.samples_late), (0, 0));
}

#[test]
fn a_session_without_samples_lasts_as_long_as_it_is_to() {
    let guest = fake::guest();
    let sources = Sources { guest: Some(guest.clone()), ..Default::default() };
    let running = Session::announce(sources).unwrap().start(Collector::default()).unwrap();
    let (collected, outcome) = running.run(Some(Duration::from_millis(50)), go_on).finish().unwrap();
    assert_eq!(collected.events, [Event::Guest(guest)]);
    assert!(matches!(outcome.end, End::Duration) && outcome.traced.is_none());
}

/// A recording that a session wrote can be read, and has what was lost in it.
#[test]
fn a_session_writes_a_recording() {
    let mut source = FakeSource::new(3, Then::Ends(Flow::Ended));
    let sources = Sources { samples: Some(&mut source), guest: Some(fake::guest()), ..Default::default() };
    let session = Session::announce(sources).unwrap();
    let file = fake::Shared::default();
    let sink = Recording::start(file.clone(), session.clocks(), &Default::default(), NoFiles).unwrap();
    let (written, _) = session.start(sink).unwrap().run(None, go_on).finish().unwrap();
    assert_eq!((written.tracks, written.cost.samples_taken), (1, source.delivered));
    let bytes = file.0.lock().unwrap().clone();
    let profile = glass_profiler_core::recording::read(&bytes, &mut NoFiles).unwrap();
    assert_eq!(profile.samples.len() as u64, source.delivered);
    assert_eq!(profile.warnings, ["a word at the end"]);
}
