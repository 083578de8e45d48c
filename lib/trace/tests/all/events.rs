//! The event of each function, as `docs/formats/trace.md` describes its kind.

use crate::common::{kind, traced};
use glass_formats::trace::{GROUPS, Group, Kind};
use glass_lib_trace::{
    BlockKind, Name, Operation, Outcome, Presence, WakeSource, block, block_numbered, complete, connection, counter,
    gauge, idle_begin, idle_end, interrupt, kick, poll_begin, poll_end, retransmit, segment_in, segment_out,
    spin_begin, spin_end, submit, task_spawn, timers_fire, wake,
};

static NAME: Name = Name::new("of an event");

/// One event of each kind that has a function of its own.
fn emit_all() {
    task_spawn(3, 4, 5, true);
    poll_begin(3, 4);
    poll_end(3, Outcome::Ready);
    block(BlockKind::Receive, &NAME, 1 << 40);
    block_numbered(BlockKind::Timer, 9, 1 << 41);
    wake(3);
    idle_begin(Some(1 << 42));
    idle_begin(None);
    idle_end(WakeSource::Device, 6);
    interrupt(6, 33);
    spin_begin();
    spin_end();
    timers_fire(2);
    submit(6, Operation::Write, 1 << 43, 4096, 7);
    complete(6, 1 << 43, 4096, 6, true);
    kick(6, 1 << 44);
    segment_in(8, 16, (100, 200), 1460, 65_535);
    segment_out(8, 24, (200, 1560), 10, 4096);
    retransmit(8, 24, (200, 1560), 10, 4096);
    connection(8, Presence::Ends, 0x0a00_0002, 8080, 50_000);
    counter(&NAME, -1);
    gauge(&NAME, 1 << 45);
}

#[test]
fn each_event_has_the_fields_of_its_kind() {
    let groups = Group::parse_list("all").unwrap();
    let traced = traced(groups, 64);
    emit_all();
    let name = NAME.number();
    let two = |low: u64, high: u64| low + (high << 32);
    let expected = [
        (Kind::TaskSpawn, 1, 3, two(4, 5), 0),
        (Kind::PollBegin, 0, 3, 4, 0),
        (Kind::PollEnd, 1, 3, 0, 0),
        (Kind::Block, 4, name, 1 << 40, 0),
        (Kind::Block, 1, 9, 1 << 41, 0),
        (Kind::Wake, 0, 3, 0, 0),
        (Kind::IdleBegin, 0, 0, 1 << 42, 0),
        (Kind::IdleBegin, 0, 0, u64::MAX, 0),
        (Kind::IdleEnd, 2, 6, 0, 0),
        (Kind::Interrupt, 0, 6, 33, 0),
        (Kind::SpinBegin, 0, 0, 0, 0),
        (Kind::SpinEnd, 0, 0, 0, 0),
        (Kind::TimersFire, 0, 2, 0, 0),
        (Kind::Submit, 2, 6, 1 << 43, two(4096, 7)),
        (Kind::Complete, 1, 6, 1 << 43, two(4096, 6)),
        (Kind::Kick, 0, 6, 1 << 44, 0),
        (Kind::SegmentIn, 16, 8, two(100, 200), two(1460, 65_535)),
        (Kind::SegmentOut, 24, 8, two(200, 1560), two(10, 4096)),
        (Kind::Retransmit, 24, 8, two(200, 1560), two(10, 4096)),
        (Kind::Connection, 2, 8, 0x0a00_0002, 8080 + (50_000 << 16)),
        (Kind::Counter, 0, name, u64::MAX, 0),
        (Kind::Counter, 1, name, 1 << 45, 0),
    ];
    assert_eq!(traced.recorded(), expected);
    let times: Vec<u64> = traced.events().iter().map(|event| event.ticks).collect();
    assert!(times[0] > 0 && times.is_sorted());
}

#[test]
fn a_group_that_is_on_records_its_own_kinds_and_no_others() {
    let count = |groups: u32| {
        let traced = traced(groups, 64);
        emit_all();
        let kinds: Vec<Kind> = traced.events().iter().map(kind).filter(|kind| *kind != Kind::Groups).collect();
        kinds.len()
    };
    assert_eq!(count(0), 0);
    let counts = GROUPS.map(|(group, name)| (name, count(group as u32)));
    let expected = [("tasks", 6), ("cores", 7), ("devices", 3), ("net", 4), ("counters", 2)];
    assert_eq!(counts[..5], expected);
    assert_eq!(counts[5..].iter().map(|(_, count)| count).sum::<usize>(), 0);
}
