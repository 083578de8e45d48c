//! Names, rings and switches at their limits, from several threads.

use crate::common::{kind, name, traced};
use glass_formats::trace::{Group, Kind, NAMES_MAX, RINGS_MAX};
use glass_lib_trace::{BlockKind, CONTROL, Counter, Gauge, Name, Writer, block, follow_host, has_request, intern};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn the_same_name_has_one_number_from_any_thread() {
    let _traced = traced(0, 2);
    let barrier = Barrier::new(4);
    let numbers: Vec<Vec<u32>> = thread::scope(|scope| {
        let intern_all = || {
            barrier.wait();
            (0..200).map(|number| intern(&format!("shared name {number}"))).collect()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(intern_all)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(numbers.iter().all(|own| *own == numbers[0]));
    let mut distinct = numbers[0].clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 200);
    assert!(distinct[0] > 0);
    for (index, number) in numbers[0].iter().enumerate() {
        assert_eq!(name(*number), format!("shared name {index}"));
    }
}

#[test]
fn switches_are_told_before_and_after() {
    let traced = traced(0, 16);
    static VALUE: Gauge = Gauge::new("value");
    static COUNT: Counter = Counter::new("count");
    VALUE.set(5);
    let counters = Group::Counters as u32;
    let change = glass_lib_trace::switch(counters);
    assert_eq!((change.switched_on, change.groups), (counters, counters));
    VALUE.add(-2);
    COUNT.add(7);
    glass_lib_trace::switch(counters | Group::Net as u32);
    glass_lib_trace::switch(0);
    VALUE.set(9);
    let recorded: Vec<(Kind, u16, u64)> =
        traced.events().iter().map(|event| (kind(event), event.detail, event.b)).collect();
    let groups = |groups: u64| (Kind::Groups, 0, groups);
    assert_eq!(recorded, [groups(16), (Kind::Counter, 1, 3), (Kind::Counter, 0, 7), groups(24), groups(0)]);
    assert_eq!((VALUE.value(), COUNT.value()), (9, 7));
}

#[test]
fn memory_of_secondary_cores_joins_that_of_the_first() {
    let _traced = traced(0, 2);
    let area = || (CONTROL.area_address.load(Ordering::Relaxed), CONTROL.area_bytes.load(Ordering::Relaxed));
    let range = |words: &[AtomicU64]| (words.as_ptr() as u64, size_of_val(words) as u64);
    let before = area();
    let whole = crate::common::memory(6);
    let (below, rest) = whole.split_at(8);
    let (first, above) = rest.split_at(8);
    CONTROL.area_address.store(range(first).0, Ordering::Relaxed);
    CONTROL.area_bytes.store(range(first).1, Ordering::Relaxed);
    glass_lib_trace::extend(above);
    assert_eq!(area(), range(rest));
    glass_lib_trace::extend(below);
    assert_eq!(area(), range(whole));
    // What lies within it changes nothing.
    glass_lib_trace::extend(first);
    assert_eq!(area(), range(whole));
    CONTROL.area_address.store(before.0, Ordering::Relaxed);
    CONTROL.area_bytes.store(before.1, Ordering::Relaxed);
}

#[test]
fn the_host_is_followed_whatever_thread_it_writes_from() {
    let traced = traced(0, 256);
    let host = || {
        for request in 1..=50u32 {
            let groups = if request % 2 == 1 { Group::Tasks as u32 } else { 0 };
            CONTROL.groups_wanted.store(groups, Ordering::Relaxed);
            CONTROL.request.store(request, Ordering::Release);
            while CONTROL.answered.load(Ordering::Acquire) != request {
                thread::yield_now();
            }
            assert_eq!(CONTROL.groups.load(Ordering::Relaxed), groups);
        }
    };
    let end = Instant::now() + Duration::from_secs(20);
    let mut begun = 0;
    thread::scope(|scope| {
        let host = scope.spawn(host);
        while !host.is_finished() {
            assert!(Instant::now() < end, "the host waits for answer {}", CONTROL.answered.load(Ordering::Relaxed));
            let change = follow_host(|_| panic!("nobody asks for functions"));
            begun += change.map_or(0, |change| change.switched_on.count_ones());
            thread::yield_now();
        }
    });
    assert_eq!(begun, 25);
    assert!(follow_host(|_| ()).is_none());
    let recorded: Vec<u64> = traced.events().iter().map(|event| event.b).collect();
    assert_eq!(recorded, (0..50).map(|number| (number + 1) % 2).collect::<Vec<_>>());
    CONTROL.request.store(0, Ordering::Relaxed);
    CONTROL.answered.store(0, Ordering::Relaxed);
}

#[test]
fn the_host_chooses_functions_only_while_their_group_is_on_or_wanted() {
    let _traced = traced(0, 16);
    let (functions, tasks) = (Group::Functions as u32, Group::Tasks as u32);
    let mut switched = Vec::new();
    // A request for the groups that are on may choose other functions; the last one restores them all.
    for (request, groups) in (1..).zip([tasks, functions, functions | tasks, functions | tasks, tasks, tasks, 0]) {
        CONTROL.groups_wanted.store(groups, Ordering::Relaxed);
        assert!(!has_request());
        CONTROL.request.store(request, Ordering::Release);
        assert!(has_request());
        let change = follow_host(|groups| switched.push(groups)).unwrap();
        assert_eq!(change.groups, groups);
    }
    assert_eq!(switched, [functions, functions | tasks, functions | tasks, tasks]);
    CONTROL.request.store(0, Ordering::Relaxed);
    CONTROL.answered.store(0, Ordering::Relaxed);
}

#[test]
fn the_clock_of_events_is_corrected_when_it_is_known_better() {
    let _traced = traced(0, 2);
    glass_lib_trace::set_origin(77);
    glass_lib_trace::set_rate(2_100_000_000);
    let clock = [&CONTROL.origin_ticks, &CONTROL.ticks_per_second].map(|word| word.load(Ordering::Relaxed));
    assert_eq!(clock, [77, 2_100_000_000]);
}

#[test]
fn what_has_no_room_is_counted() {
    let traced = traced(Group::Tasks as u32, 8);
    let mut writers = Vec::new();
    while let Some(writer) = Writer::claim("one of many", crate::common::memory(2)) {
        writers.push(writer);
        assert!(writers.len() < RINGS_MAX);
    }
    assert_eq!(writers.len(), RINGS_MAX - 1);
    assert_eq!(CONTROL.rings_lost.load(Ordering::Relaxed), 1);
    for entry in CONTROL.rings.iter().filter(|entry| entry.capacity.load(Ordering::Relaxed) == 2) {
        entry.capacity.store(0, Ordering::Relaxed);
        entry.taken.store(0, Ordering::Relaxed);
    }
    // Memory that is unusable for a ring leaves the entry free.
    assert!(Writer::claim("none", crate::common::memory(3)).is_none());
    assert_eq!(CONTROL.rings_lost.load(Ordering::Relaxed), 1);

    // The other tests need names, too, so this one frees the table.
    let used = CONTROL.names_used.swap(NAMES_MAX as u32, Ordering::Relaxed);
    static LATE: Name = Name::new("a name that comes too late");
    let lost = CONTROL.names_lost.load(Ordering::Relaxed);
    for _ in 0..3 {
        block(BlockKind::Other, &LATE, 1);
    }
    assert_eq!(CONTROL.names_lost.load(Ordering::Relaxed), lost + 1);
    assert_eq!(
        traced.recorded().iter().map(|event| (event.0, event.2, event.3)).collect::<Vec<_>>(),
        [(Kind::Block, 0, 1); 3]
    );
    for _ in 0..3 {
        assert_eq!(intern("another one"), 0);
    }
    assert_eq!(CONTROL.names_lost.load(Ordering::Relaxed), lost + 2);
    CONTROL.names_used.store(used, Ordering::Relaxed);
}
