//! The trace of a process, read from outside while it runs, as the profiler does.

use crate::common::{Seen, Service};
use glass_formats::trace::{BlockKind, Control, Event, Group, Kind, Outcome};
use std::collections::HashMap;
use std::mem::offset_of;
use std::net::TcpStream;

/// Checks the invariants of a trace of tasks; returns each task's name and parent.
fn check_tasks(seen: &Seen) -> HashMap<u32, (String, u32)> {
    let mut tasks = HashMap::new();
    let mut running = None;
    let mut has_reason = false;
    for event in seen.events("main") {
        match Kind::from_number(event.kind) {
            Some(Kind::TaskSpawn) => {
                let spawned = tasks.insert(event.a, (seen.name(event.b as u32), (event.b >> 32) as u32));
                assert_eq!(spawned, None, "task {} is spawned twice", event.a);
            }
            Some(Kind::PollBegin) => {
                assert_eq!(running.replace(event.a), None, "polls do not nest");
                assert_eq!(tasks.get(&event.a).map(|task| &task.0), Some(&seen.name(event.b as u32)));
            }
            Some(Kind::PollEnd) => {
                assert_eq!(running.take(), Some(event.a));
                let is_over = event.detail == Outcome::Ready as u16;
                assert!(std::mem::take(&mut has_reason) || is_over, "task {} waits for nothing", event.a);
            }
            Some(Kind::Block) => {
                assert!(running.is_some(), "only a task that is polled can wait");
                has_reason = true;
            }
            Some(Kind::Wake) => assert!(tasks.contains_key(&event.a), "task {} is woken but was never there", event.a),
            _ => (),
        }
    }
    tasks
}

fn of_kind(seen: &Seen, kind: Kind) -> Vec<Event> {
    seen.events("main").into_iter().filter(|event| event.kind == kind as u16).collect()
}

#[test]
fn the_environment_switches_groups_on_from_the_first_task() {
    let service = Service::start("export GLASS_TRACE=tasks,net,cores,devices;");
    let stream = TcpStream::connect(("127.0.0.1", service.port)).unwrap();
    let waits_for_bytes = |event: &Event| event.detail == BlockKind::Receive as u16;
    service.wait_for(|seen| of_kind(seen, Kind::Block).iter().any(waits_for_bytes));
    assert!(service.ask_on(stream).starts_with("HTTP/1.1 200 OK"));
    // The client is gone, and the core is idle.
    let has_rested_since_the_end = |seen: &Seen| {
        let events = seen.events("main");
        let ends = events.iter().rposition(|event| event.kind == Kind::Connection as u16);
        events.iter().skip(ends.unwrap_or(events.len())).any(|event| event.kind == Kind::IdleBegin as u16)
    };
    // The rate of the clock is measured after the service has run for a while.
    let is_complete = |seen: &Seen| of_kind(seen, Kind::Connection).len() == 2 && seen.ticks_per_second() > 0;
    let seen = service.wait_for(|seen| is_complete(seen) && has_rested_since_the_end(seen));
    let tasks = check_tasks(&seen);
    let main = tasks.iter().find(|(_, (name, parent))| name == "main" && *parent == 0).unwrap().0;
    let connection = tasks.iter().find(|(_, (name, parent))| name == "connection" && parent == main).unwrap().0;
    let ends = of_kind(&seen, Kind::PollEnd);
    let is_over = |event: &&Event| event.detail == Outcome::Ready as u16;
    assert_eq!(ends.iter().filter(is_over).map(|event| event.a).collect::<Vec<_>>(), [*connection]);

    // The main task waits for clients on the port, the other one for the client's bytes.
    let blocks = of_kind(&seen, Kind::Block);
    let waits = |kind: BlockKind, object: u32| {
        blocks.iter().any(|event| event.detail == kind as u16 && event.b == u64::from(object))
    };
    let client = of_kind(&seen, Kind::Connection)[0];
    assert!(waits(BlockKind::Accept, u32::from(service.port)), "{blocks:?}");
    assert!(waits(BlockKind::Receive, client.a), "{blocks:?}");
    assert_eq!((client.b, client.c & 0xffff), (0x7f00_0001, u64::from(service.port)));

    // Sockets have no interrupts, but a cause nevertheless; the core is idle in between.
    assert!(!of_kind(&seen, Kind::Interrupt).is_empty());
    let idles = of_kind(&seen, Kind::IdleBegin).len();
    assert!(idles > 0 && idles - of_kind(&seen, Kind::IdleEnd).len() <= 1, "{idles}");

    // The line with the port went through the console's thread.
    let submitted = of_kind(&seen, Kind::Submit);
    assert_eq!(seen.name(submitted[0].a), "console");
    let is_done = |event: &Event| event.kind == Kind::Complete as u16 && event.b == submitted[0].b;
    assert!(seen.events("console thread").iter().any(is_done));
    assert!(seen.ticks_per_second() > 100_000_000, "{}", seen.ticks_per_second());
}

#[test]
fn the_host_switches_groups_while_it_runs() {
    let service = Service::start("");
    assert!(service.ask().starts_with("HTTP/1.1 200 OK"));
    assert_eq!(service.read().events("main"), []);
    service.write(offset_of!(Control, groups_wanted), Group::Tasks as u32);
    service.write(offset_of!(Control, request), 7);
    // It is idle, and yet it answers.
    let has_answered = |seen: &Seen| seen.word(offset_of!(Control, answered)) == 7;
    let seen = service.wait_for(|seen| has_answered(seen) && seen.events("main").len() >= 2);
    let first = seen.events("main").into_iter().take(2).map(|event| (event.kind, event.detail)).collect::<Vec<_>>();
    assert_eq!(first, [(Kind::Groups as u16, 0), (Kind::TaskSpawn as u16, 1)]);
    assert!(service.ask().starts_with("HTTP/1.1 200 OK"));
    check_tasks(&service.read());
    service.write(offset_of!(Control, groups_wanted), 0);
    service.write(offset_of!(Control, request), 8);
    assert!(service.ask().starts_with("HTTP/1.1 200 OK"));
    let seen = service.wait_for(|seen| seen.word(offset_of!(Control, answered)) == 8);
    let last = seen.events("main").last().copied().unwrap();
    assert_eq!((last.kind, last.b), (Kind::Groups as u16, 0));
    let count = seen.events("main").len();
    assert!(service.ask().starts_with("HTTP/1.1 200 OK"));
    assert_eq!(service.read().events("main").len(), count);
}

#[test]
fn groups_that_are_none_are_refused_in_one_sentence() {
    let (code, error) = crate::common::run("GLASS_TRACE=tasks,disks");
    assert_eq!(code, Some(2));
    let groups = "take all or some of tasks,cores,devices,net,counters,spans,functions,mpi";
    assert_eq!(error, format!("hello: GLASS_TRACE names the group disks, which there is not: {groups}\n"));
}

#[test]
fn without_memory_to_share_it_runs_all_the_same() {
    let service = Service::start("export GLASS_TRACE=all; ulimit -f 1000; exec 2>&1;");
    assert!(service.first_lines.contains("hello: this runs without a trace: files of "), "{}", service.first_lines);
    assert!(service.ask().starts_with("HTTP/1.1 200 OK"));
    assert!(service.file().is_none());
}
