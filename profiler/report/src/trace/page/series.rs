//! How often things happen over time: the moments of each kind of event, and the values of counters.

use std::collections::BTreeMap;

use glass_profiler_core::trace::model::{Cause, Direction, Operation};
use serde::Serialize;

use super::book::Book;
use super::kinds::{self, KINDS};
use super::pack::{Class, Piece, varint, zigzag};

/// Moments of a series that are kept one by one; of more, how many there are in each bucket.
const MOMENTS_MAX: usize = 16_384;
/// Buckets of a series.
const BUCKETS: usize = 8_192;
/// Series of one kind; those with most events are kept.
const SERIES_MAX: usize = 40;

/// How the page reads a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Moments, each after the one before.
    Moments,
    /// How many in each bucket.
    Buckets,
    /// Moments and values.
    Values,
}

/// A long time without any: begin, end, what happened meanwhile.
type Gap = (u64, u64, String);

/// One thing that can be drawn over time.
#[derive(Debug, Serialize)]
pub struct Series {
    pub group: &'static str,
    pub name: String,
    pub total: u64,
    pub form: Form,
    pub piece: Piece,
    pub gaps: Vec<Gap>,
}

/// All series, in groups.
pub fn all(book: &mut Book, gaps: &dyn Fn(&[u64]) -> Vec<Gap>) -> Vec<Series> {
    let trace = book.trace;
    let mut made = Vec::new();
    let task_name = |task: u32| trace.tasks.get(task as usize).map_or("", |task| trace.name(task.name));
    let device_name = |device: u32| trace.devices.get(device as usize).map_or("", |device| trace.name(device.name));
    let request_name = |(device, operation): (u32, u8)| {
        let kind = kinds::operation(Operation::from_number(operation.into()));
        format!("{} {}", device_name(device), KINDS[kind as usize].label)
    };

    add(
        book,
        &mut made,
        "Requests submitted",
        gaps,
        |see| {
            for request in &trace.requests {
                see((request.device, request.operation as u8), request.submit_ns);
            }
        },
        request_name,
    );
    add(
        book,
        &mut made,
        "Requests completed",
        gaps,
        |see| {
            for request in &trace.requests {
                if let Some(at) = request.complete_ns {
                    see((request.device, request.operation as u8), at);
                }
            }
        },
        request_name,
    );
    add(
        book,
        &mut made,
        "Device notifications",
        gaps,
        |see| {
            for kick in &trace.kicks {
                see(kick.device, kick.time_ns);
            }
        },
        |device| device_name(device).to_string(),
    );
    add(
        book,
        &mut made,
        "TCP segments",
        gaps,
        |see| {
            for segment in &trace.segments {
                see(
                    match segment.direction {
                        Direction::In => 0,
                        Direction::Out => 1,
                        Direction::Again => 2,
                    },
                    segment.time_ns,
                );
            }
        },
        |direction: u8| ["received", "sent", "retransmitted"][direction as usize].to_string(),
    );
    add(
        book,
        &mut made,
        "Polls",
        gaps,
        |see| {
            for poll in &trace.polls {
                see(trace.tasks.get(poll.task as usize).map_or(0, |task| task.name), poll.start_ns);
            }
        },
        |name| trace.name(name).to_string(),
    );
    add(
        book,
        &mut made,
        "Wakes",
        gaps,
        |see| {
            for wake in &trace.wakes {
                see(
                    match wake.cause {
                        Cause::Unknown => 0,
                        Cause::Task(_) => 1,
                        Cause::Request(_) => 2,
                        Cause::Segment(_) => 3,
                        Cause::Timer => 4,
                        Cause::Interrupt(_) => 5,
                    },
                    wake.time_ns,
                );
            }
        },
        |cause: u8| {
            ["by an unknown cause", "by a task", "by a device request", "by a segment", "by a timer", "by an interrupt"]
                [cause as usize]
                .to_string()
        },
    );
    add(
        book,
        &mut made,
        "Idle",
        gaps,
        |see| {
            for idle in &trace.idles {
                see(idle.interval.core, idle.interval.start_ns);
            }
        },
        |core| trace.cores.get(core as usize).map_or(String::new(), |core| core.name.clone()),
    );
    add(
        book,
        &mut made,
        "Interrupts",
        gaps,
        |see| {
            for interrupt in &trace.interrupts {
                see(interrupt.device, interrupt.time_ns);
            }
        },
        |device| if device == 0 { "timer".to_string() } else { trace.name(device).to_string() },
    );
    add(
        book,
        &mut made,
        "Tasks spawned",
        gaps,
        |see| {
            for (index, task) in trace.tasks.iter().enumerate() {
                if let Some(at) = task.spawned_ns {
                    see(task_name(index as u32), at);
                }
            }
        },
        |name: &str| name.to_string(),
    );
    add(
        book,
        &mut made,
        "Spans started",
        gaps,
        |see| {
            for span in trace.spans.iter().filter(|span| !span.begin_is_lost) {
                see(span.name, span.start_ns);
            }
        },
        |name| trace.name(name).to_string(),
    );
    add(
        book,
        &mut made,
        "Spans ended",
        gaps,
        |see| {
            for span in &trace.spans {
                if let Some(at) = span.end_ns {
                    see(span.name, at);
                }
            }
        },
        |name| trace.name(name).to_string(),
    );
    add(
        book,
        &mut made,
        "Messages",
        gaps,
        |see| {
            for message in &trace.messages {
                see((message.place, message.level), message.time_ns);
            }
        },
        |(place, level)| format!("{}: {}", KINDS[kinds::message(level) as usize].label, trace.name(place)),
    );
    add(
        book,
        &mut made,
        "Calls",
        gaps,
        |see| {
            for call in &trace.calls {
                see(call.function, call.start_ns);
            }
        },
        |function| trace.functions.get(function as usize).map_or(String::new(), |function| function.name.clone()),
    );
    for counter in &trace.counters {
        made.push(values(book, trace.name(counter.name), &counter.points, gaps));
    }
    made
}

/// Adds a series for each key; moments with the same key belong together.
fn add<K: Ord + Copy>(
    book: &mut Book,
    made: &mut Vec<Series>,
    group: &'static str,
    gaps: &dyn Fn(&[u64]) -> Vec<Gap>,
    fill: impl FnOnce(&mut dyn FnMut(K, u64)),
    name: impl Fn(K) -> String,
) {
    let mut moments: BTreeMap<K, Vec<u64>> = BTreeMap::new();
    fill(&mut |key, at| moments.entry(key).or_default().push(at));
    let mut series: Vec<(K, Vec<u64>)> = moments.into_iter().collect();
    series.sort_by_key(|(_, times)| std::cmp::Reverse(times.len()));
    series.truncate(SERIES_MAX);
    for (key, mut times) in series {
        times.sort_unstable();
        let name = glass_profiler_core::names::printable(&name(key));
        let gaps = gaps_of(book, gaps(&times));
        for time in &mut times {
            *time = book.time(*time);
        }
        let total = times.len() as u64;
        let duration_ns = book.duration_ns;
        let (form, piece) = if times.len() <= MOMENTS_MAX {
            let piece = book.packer.add(Class::Detail, times.len(), (0, duration_ns), |bytes| {
                let mut before = 0;
                for &time in &times {
                    varint(bytes, time - before);
                    before = time;
                }
            });
            (Form::Moments, piece)
        } else {
            let mut counts = vec![0_u64; BUCKETS];
            for &time in &times {
                counts[bucket(time, duration_ns)] += 1;
            }
            let piece = book.packer.add(Class::Detail, BUCKETS, (0, duration_ns), |bytes| {
                counts.iter().for_each(|&count| varint(bytes, count));
            });
            (Form::Buckets, piece)
        };
        made.push(Series { group, name, total, form, piece, gaps });
    }
}

/// Gaps in the page's times.
fn gaps_of(book: &Book, gaps: Vec<Gap>) -> Vec<Gap> {
    let shown = |(from, to, what): Gap| (book.time(from), book.time(to), glass_profiler_core::names::printable(&what));
    gaps.into_iter().map(shown).collect()
}

fn bucket(time: u64, duration_ns: u64) -> usize {
    ((u128::from(time) * BUCKETS as u128 / u128::from(duration_ns.max(1))) as usize).min(BUCKETS - 1)
}

/// A counter; of many values, the last in each bucket.
fn values(book: &mut Book, name: &str, points: &[(u64, i64)], gaps: &dyn Fn(&[u64]) -> Vec<Gap>) -> Series {
    let times: Vec<u64> = points.iter().map(|&(at, _)| at).collect();
    let gaps = gaps_of(book, gaps(&times));
    let mut kept: Vec<(u64, i64)> = points.iter().map(|&(at, value)| (book.time(at), value)).collect();
    kept.sort_by_key(|point| point.0);
    let total = kept.len() as u64;
    if kept.len() > MOMENTS_MAX {
        let duration_ns = book.duration_ns;
        let mut last: Vec<(u64, i64)> = Vec::new();
        for point in kept {
            match last.last_mut().filter(|last| bucket(last.0, duration_ns) == bucket(point.0, duration_ns)) {
                Some(last) => *last = point,
                None => last.push(point),
            }
        }
        kept = last;
    }
    let piece = book.packer.add(Class::Detail, kept.len(), (0, book.duration_ns), |bytes| {
        let (mut at, mut value) = (0, 0_i64);
        for point in &kept {
            varint(bytes, point.0 - at);
            at = point.0;
        }
        for point in &kept {
            varint(bytes, zigzag(point.1.wrapping_sub(value)));
            value = point.1;
        }
    });
    Series {
        group: "Counters",
        name: glass_profiler_core::names::printable(name),
        total,
        form: Form::Values,
        piece,
        gaps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::trace::model::{Interrupt, Trace};

    #[test]
    fn many_moments_become_buckets_and_none_is_lost() {
        let mut trace = Trace {
            start_ns: 1_000,
            end_ns: 1_000_000,
            names: vec![String::new(), "vblk0".into()],
            ..Trace::default()
        };
        for number in 0..40_000 {
            let device = u32::from(number % 4 == 0);
            trace.interrupts.push(Interrupt { time_ns: 1_000 + number * 20, device, ..Interrupt::default() });
        }
        let mut book = Book::new(&trace);
        let made = all(&mut book, &|_| vec![(5_000, 6_000, "what".into())]);
        let seen: Vec<(&str, u64, Form)> = made.iter().map(|of| (of.name.as_str(), of.total, of.form)).collect();
        assert_eq!(seen, [("timer", 30_000, Form::Buckets), ("vblk0", 10_000, Form::Moments)]);
        assert_eq!(made[0].gaps, [(4_000, 5_000, "what".to_string())]);
    }
}
