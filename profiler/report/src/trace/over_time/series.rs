//! Series of moments by name, and the long gaps in them.

use std::collections::BTreeMap;

use glass_profiler_core::trace::model::{Direction, Trace};

use glass_profiler_core::words::operation;

/// Something that happened again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Series {
    /// What it is: "submit disk 0 write".
    pub name: String,
    /// When, in order.
    pub times: Vec<u64>,
    /// The value at each time; empty for what is only counted.
    pub values: Vec<i64>,
}

/// A long time in which nothing of a series happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last moment before.
    pub start_ns: u64,
    /// The first after, or the end of the trace.
    pub end_ns: u64,
}

/// A gap is at least this many times as long as most distances.
const TIMES_MEDIAN: u64 = 8;
/// Of fewer distances the usual one is unknown.
const DISTANCES_MIN: usize = 3;
/// And at least this part of the whole.
const PART_OF_ALL: u64 = 100;

/// The longest gaps, at most `count_max`, in order of time: much longer than what is common between two moments, and
/// no less than a hundredth of the time from the first to `end_ns`. What is not there before the first is no gap.
pub fn gaps(times: &[u64], end_ns: u64, count_max: usize) -> Vec<Gap> {
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return Vec::new() };
    let all_ns = end_ns.max(*last) - first;
    let mut distances: Vec<u64> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let middle = distances.len() / 2;
    let median_ns = match distances.len() < DISTANCES_MIN {
        true => 0,
        false => *distances.select_nth_unstable(middle).1,
    };
    let least_ns = (all_ns / PART_OF_ALL).max(median_ns.saturating_mul(TIMES_MEDIAN)).max(1);
    let ends = times.iter().skip(1).copied().chain([end_ns]);
    let mut found: Vec<Gap> = times
        .iter()
        .zip(ends)
        .map(|(start, end)| Gap { start_ns: *start, end_ns: end })
        .filter(|gap| gap.end_ns.saturating_sub(gap.start_ns) >= least_ns)
        .collect();
    found.sort_by_key(|gap| std::cmp::Reverse(gap.end_ns - gap.start_ns));
    found.truncate(count_max);
    found.sort_by_key(|gap| gap.start_ns);
    found
}

/// The names of all series and how many moments each has, the most first.
pub fn names(trace: &Trace) -> Vec<(String, u64)> {
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    each(trace, &|_| true, &mut |name, _| *numbers.entry(name).or_default() += 1);
    for counter in &trace.counters {
        numbers.insert(trace.name(counter.name).to_owned(), counter.points.len() as u64);
    }
    let mut names: Vec<(String, u64)> = numbers.into_iter().collect();
    names.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    names
}

/// The series with this name; else the one with most moments among those whose names contain it, whatever the case of letters.
pub fn series(trace: &Trace, wanted: &str) -> Option<Series> {
    let names = names(trace);
    let lower = wanted.to_lowercase();
    let (name, _) = names
        .iter()
        .find(|(name, _)| name == wanted)
        .or_else(|| names.iter().find(|(name, _)| name.to_lowercase().contains(&lower)))?;
    let counter = trace.counters.iter().find(|counter| trace.name(counter.name) == name);
    let mut series = Series { name: name.clone(), ..Series::default() };
    if let Some(counter) = counter {
        (series.times, series.values) = counter.points.iter().copied().unzip();
        return Some(series);
    }
    let kind = name.split(' ').next().unwrap_or_default();
    each(trace, &|known| known == kind, &mut |moment_of, time_ns| {
        if moment_of == *name {
            series.times.push(time_ns);
        }
    });
    series.times.sort_unstable();
    Some(series)
}

/// Calls `see` with the name and time of every moment of the kinds that are wanted.
fn each(trace: &Trace, is_wanted: &dyn Fn(&str) -> bool, see: &mut dyn FnMut(String, u64)) {
    let task = |index: u32| trace.tasks.get(index as usize).map_or("", |task| trace.name(task.name));
    let device = |index: u32| trace.devices.get(index as usize).map_or("", |device| trace.name(device.name));
    let core = |index: u32| trace.cores.get(index as usize).map_or("", |core| core.name.as_str());
    if is_wanted("submit") || is_wanted("complete") {
        for request in &trace.requests {
            let what = format!("{} {}", device(request.device), operation(request.operation));
            if is_wanted("submit") {
                see(format!("submit {what}"), request.submit_ns);
            }
            if let Some(complete_ns) = request.complete_ns.filter(|_| is_wanted("complete")) {
                see(format!("complete {what}"), complete_ns);
            }
        }
    }
    if is_wanted("notify") {
        trace.kicks.iter().for_each(|kick| see(format!("notify {}", device(kick.device)), kick.time_ns));
    }
    if is_wanted("segment") {
        for segment in &trace.segments {
            let direction = match segment.direction {
                Direction::In => "received",
                Direction::Out => "sent",
                Direction::Again => "retransmitted",
            };
            see(format!("segment {direction}"), segment.time_ns);
        }
    }
    if is_wanted("poll") {
        trace.polls.iter().for_each(|poll| see(format!("poll {}", task(poll.task)), poll.start_ns));
    }
    if is_wanted("wake") {
        trace.wakes.iter().for_each(|wake| see(format!("wake {}", task(wake.task)), wake.time_ns));
    }
    if is_wanted("spawn") {
        for (task, spawned_ns) in trace.tasks.iter().filter_map(|task| Some((task, task.spawned_ns?))) {
            see(format!("spawn {}", trace.name(task.name)), spawned_ns);
        }
    }
    if is_wanted("idle") {
        trace.idles.iter().for_each(|idle| see(format!("idle {}", core(idle.interval.core)), idle.interval.start_ns));
    }
    if is_wanted("interrupt") {
        for interrupt in &trace.interrupts {
            let device = if interrupt.device == 0 { "timer" } else { trace.name(interrupt.device) };
            see(format!("interrupt {device}"), interrupt.time_ns);
        }
    }
    if is_wanted("span") {
        trace.spans.iter().for_each(|span| see(format!("span {}", trace.name(span.name)), span.start_ns));
    }
    if is_wanted("message") {
        trace.messages.iter().for_each(|message| {
            see(format!("message {}", trace.name(message.place)), message.time_ns);
        });
    }
    if is_wanted("call") {
        for call in &trace.calls {
            let function = trace.functions.get(call.function as usize).map_or("", |function| function.name.as_str());
            see(format!("call {function}"), call.start_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(times: &[u64], end_ns: u64, count_max: usize) -> Vec<(u64, u64)> {
        gaps(times, end_ns, count_max).iter().map(|gap| (gap.start_ns, gap.end_ns)).collect()
    }

    #[test]
    fn only_what_is_unusually_long_is_a_gap() {
        let even: Vec<u64> = (0..100).map(|index| index * 10).collect();
        assert_eq!(found(&even, 1_000, 9), []);
        assert_eq!(found(&even, 1_500, 9), [(990, 1_500)]);
        let mut steps = even.clone();
        steps.extend(even.iter().map(|time| time + 3_000));
        steps.extend(even.iter().map(|time| time + 5_000));
        assert_eq!(found(&steps, 6_000, 9), [(990, 3_000), (3_990, 5_000)]);
        assert_eq!(found(&steps, 6_000, 1), [(990, 3_000)]);
    }

    #[test]
    fn few_moments_and_odd_times_do_no_harm() {
        assert_eq!(found(&[], 100, 9), []);
        assert_eq!(found(&[5], 100, 9), [(5, 100)]);
        assert_eq!(found(&[5, 5], 5, 9), []);
        assert_eq!(found(&[5, u64::MAX], 7, 9), [(5, u64::MAX)]);
    }
}
