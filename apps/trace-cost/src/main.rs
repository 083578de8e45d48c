//! Measures the cost of a trace event on this platform, in nanoseconds, and prints one line for each kind of measurement.
//!
//! `floor` reading the clock, which every event does; `off` an event whose group is off; `on` one that is written;
//! `span-off` and `span-on` a whole span with one field. The cost of the loop, `loop`, is subtracted from the others.
//! Each is the median of alternating rounds.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

use core::hint::black_box;
use core::time::Duration;
use glasshouse::trace::{Group, Name, gauge, switch, ticks};
use glasshouse::tracing::info_span;
use glasshouse::{Error, Platform};

/// Rounds of each measurement. Many short ones rather than few long ones, so that few of them are preempted and the
/// median is not affected.
const ROUNDS: usize = 31;
/// Repetitions of one round, fewer where they take longer than [`ROUND_TIME`].
const REPETITIONS_MAX: u64 = 100_000;
const REPETITIONS_MIN: u64 = 1_000;
const ROUND_TIME: Duration = Duration::from_millis(3);
/// Events that are written first, so that all memory of the ring is mapped.
const WARM_UP: u64 = 300_000;

static VALUE: Name = Name::new("value");

glasshouse::main!(serve);

/// The measurements, in the order of the lines.
#[derive(Clone, Copy)]
enum Work {
    Loop,
    Floor,
    Off,
    On,
    SpanOff,
    SpanOn,
}

const ALL: [(Work, &str); 6] = [
    (Work::Loop, "loop"),
    (Work::Floor, "floor"),
    (Work::Off, "off"),
    (Work::On, "on"),
    (Work::SpanOff, "span-off"),
    (Work::SpanOn, "span-on"),
];

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let event_ns = run(&platform, Work::On, WARM_UP).as_nanos() as u64 / WARM_UP;
    let repetitions = (ROUND_TIME.as_nanos() as u64 / event_ns.max(1)).clamp(REPETITIONS_MIN, REPETITIONS_MAX);
    let mut took_ns = [[0.0; ALL.len()]; ROUNDS];
    for round in &mut took_ns {
        for (took_ns, (work, _)) in round.iter_mut().zip(ALL) {
            // Five events, and what is around them.
            let repetitions = if matches!(work, Work::SpanOn) { repetitions / 8 } else { repetitions };
            *took_ns = run(&platform, work, repetitions).as_nanos() as f64 / repetitions as f64;
            // Other tasks run.
            platform.sleep(Duration::ZERO).await;
        }
    }
    let medians: [f64; ALL.len()] = core::array::from_fn(|index| {
        let mut rounds = took_ns.map(|round| round[index]);
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    });
    for ((_, name), median) in ALL.into_iter().zip(medians) {
        let net = if name == "loop" { median } else { (median - medians[0]).max(0.0) };
        platform.print(format_args!("{name} {net:.2}"));
    }
    Ok(())
}

/// One round; leaves every group off.
fn run(platform: &impl Platform, work: Work, repetitions: u64) -> Duration {
    let groups = match work {
        Work::On => Group::Counters as u32,
        Work::SpanOn => Group::Spans as u32,
        _ => 0,
    };
    switch(groups);
    let start = platform.now();
    match work {
        Work::Loop => (0..repetitions).for_each(|value| _ = black_box(value)),
        Work::Floor => (0..repetitions).for_each(|value| _ = black_box(value ^ ticks())),
        Work::Off | Work::On => (0..repetitions).for_each(|value| gauge(&VALUE, black_box(value) as i64)),
        Work::SpanOff | Work::SpanOn => (0..repetitions).for_each(|value| {
            info_span!("span", value = black_box(value)).in_scope(|| ());
        }),
    }
    let took = platform.now() - start;
    switch(0);
    took
}
