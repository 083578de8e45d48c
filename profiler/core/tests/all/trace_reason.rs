//! The wait of a task for several events counts for the one that ended it.

use crate::trace_builder::Builder;
use glass_formats::trace::{BlockKind, Kind, Operation};
use glass_profiler_core::trace::model::{Cause, Trace};
use glass_profiler_core::trace::path::{Index, Path, Topic, summarise};

const CONNECTION: u32 = 1;
const DISK: u32 = 2;
const IDLE: u32 = 3;
const UPLOAD: u32 = 4;

/// `select(receive, request, timer)`, in this order, which `end` ends; the wait lies in a span.
fn trace(end: impl Fn(&mut Builder)) -> Trace {
    let mut b = Builder::new(&["connection", "disk 0", "idle timeout", "upload"]);
    b.at(0, 10, Kind::TaskSpawn, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 20, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 21, Kind::SpanBegin, 3, UPLOAD, (1, 0));
    b.at(0, 22, Kind::Submit, Operation::Write as u16, DISK, (99, 4096 | 3 << 32));
    b.at(0, 25, Kind::Block, BlockKind::Receive as u16, CONNECTION, (5, 0));
    b.at(0, 26, Kind::Block, BlockKind::Request as u16, DISK, (99, 0));
    b.at(0, 27, Kind::Block, BlockKind::Timer as u16, IDLE, (80, 0));
    b.at(0, 30, Kind::PollEnd, 0, 7, (0, 0));
    end(&mut b);
    b.at(0, 82, Kind::Wake, 0, 7, (0, 0));
    b.at(0, 90, Kind::PollBegin, 0, 7, (u64::from(CONNECTION), 0));
    b.at(0, 93, Kind::SpanEnd, 0, 0, (1, 0));
    b.at(0, 95, Kind::PollEnd, 1, 7, (0, 0));
    b.at(0, 96, Kind::Groups, 0, 0, (0, 0));
    b.build()
}

/// The kind of what ended the wait, and what the longest part of the span's path is about.
fn reason(trace: &Trace) -> (BlockKind, Cause, Topic) {
    let wait = trace.waits.iter().find(|wait| wait.reason_count == 3).unwrap();
    let cause = trace.wakes[wait.wake.unwrap() as usize].cause;
    let path = Path::find(trace, &Index::new(trace), 0).unwrap();
    let topic = summarise(trace, [&path]).own[0].topic;
    (trace.reason_of(wait).unwrap().kind, cause, topic)
}

/// The time that a timeout took was shown as one for the client (2026-11-22).
#[test]
fn of_several_reasons_the_one_that_fired_counts() {
    let (kind, cause, topic) = reason(&trace(|b| b.at(0, 80, Kind::TimersFire, 0, 1, (0, 0))));
    assert_eq!((kind, cause, topic), (BlockKind::Timer, Cause::Timer, Topic::Timer(IDLE)));
    let (kind, _, topic) = reason(&trace(|b| b.at(0, 80, Kind::Complete, 0, DISK, (99, 4096 | 2 << 32))));
    assert_eq!((kind, topic), (BlockKind::Request, Topic::Wait(BlockKind::Request as u16, DISK)));
    let (kind, cause, _) = reason(&trace(|_| ()));
    assert_eq!((kind, cause), (BlockKind::Receive, Cause::Unknown), "the first, where that is not known");
}
