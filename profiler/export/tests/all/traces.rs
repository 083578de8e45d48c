//! Exports of a guest's trace are opened by their real readers, and these show the contents of the trace.

use std::collections::BTreeMap;

use crate::common::{export, read, recording};
use crate::programs::{by_python, has, in_speedscope, limited, python_packages, skipped};
use glass_formats::trace::{Event, Kind};
use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::{build, example};
use glass_profiler_export::{Format, Options, States};
use glass_tests::folder::Folder;
use serde_json::Value;

const EVENTS: usize = 20_000;
const SAMPLES: u64 = 300;

/// A recording with samples and a trace, its file (which has the samples only), and the interpreted trace.
fn traced(events: usize) -> (Recording, Vec<u8>, Trace) {
    let bytes = recording(SAMPLES);
    let mut recording = read(&bytes);
    recording.trace = example::queue(events, 7);
    let trace = build(&recording.trace);
    (recording, bytes, trace)
}

fn written(format: Format, recording: &Recording, bytes: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    glass_profiler_export::write(format, recording, bytes, Options::default(), &mut made).unwrap();
    made
}

fn task_name(trace: &Trace, index: u32) -> String {
    let task = &trace.tasks[index as usize];
    format!("{} #{}", trace.name(task.name), task.number)
}

/// Number and total time of the items of a list, by a name.
fn sums<T>(items: &[T], of: impl Fn(&T) -> Option<(String, u64)>) -> BTreeMap<String, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for (name, time) in items.iter().filter_map(of) {
        let sum: &mut (u64, u64) = sums.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + time);
    }
    sums
}

#[test]
fn the_schema_of_perfetto_sees_the_lanes() {
    let Some(packages) = python_packages() else { return };
    let folder = Folder::new("perfetto-trace").unwrap();
    let (recording, bytes, trace) = traced(EVENTS);
    let file = folder.write("trace", &written(Format::Perfetto, &recording, &bytes)).unwrap();
    let seen = by_python("perfetto_tracks.py", Some(&packages), &file);
    assert_eq!(seen["unknown_fields"], 0);
    assert!(seen["samples"].as_u64().unwrap() > SAMPLES / 2, "{}", seen["samples"]);
    let lane = |path: &str, name: &str| -> (u64, u64) {
        let lane = &seen["lanes"][path];
        (lane["slices"][name].as_u64().unwrap_or(0), lane["times"][name].as_u64().unwrap_or(0))
    };
    // Polls, once on the tracks of the tasks and once on those of the cores.
    let by_task = sums(&trace.polls, |poll| Some((task_name(&trace, poll.task), poll.end_ns - poll.start_ns)));
    assert!(by_task.len() > 5 && trace.polls.len() > 500, "the example has changed: {by_task:?}");
    for (task, sum) in &by_task {
        assert_eq!(lane(&format!("Tasks / {task}"), "runs"), *sum, "{task}");
        let on_cores = trace.cores.iter().map(|core| lane(&format!("Cores / {}", core.name), task));
        assert_eq!(on_cores.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1)), *sum, "{task}");
    }
    for (device, sum) in sums(&trace.requests, |request| {
        let end_ns = request.complete_ns?;
        Some((trace.name(trace.devices[request.device as usize].name).to_owned(), end_ns - request.submit_ns))
    }) {
        let requests = &seen["lanes"][format!("Devices / {device} / requests")];
        let total = |what: &str| -> u64 {
            let counts = requests[what].as_object().unwrap();
            let whole = counts.iter().filter(|(name, _)| !name.contains("completion not in"));
            whole.map(|(_, count)| count.as_u64().unwrap()).sum()
        };
        assert_eq!((total("slices"), total("times")), sum, "{device}");
        let values = seen["lanes"][format!("Devices / {device} / requests in flight")]["values"].as_array().unwrap();
        let deepest = trace.requests.iter().map(|request| request.depth).max().unwrap_or(0);
        assert!(values.iter().all(|value| (0..=i64::from(deepest)).contains(&value[1].as_i64().unwrap())), "{device}");
    }
    for counter in &trace.counters {
        let path = format!("Counters / {}", trace.name(counter.name));
        let values: Vec<(u64, i64)> = serde_json::from_value(seen["lanes"][&path]["values"].clone()).unwrap();
        assert_eq!(values, counter.points, "{path}");
    }
    for (core, calls) in sums(&trace.calls, |call| Some((trace.cores[call.core as usize].name.clone(), 0))) {
        let functions = seen["lanes"][format!("Cores / {core} / functions")]["slices"].as_object().unwrap();
        assert_eq!(functions.values().map(|count| count.as_u64().unwrap()).sum::<u64>(), calls.0, "{core}");
    }
    assert!(seen["depth"].as_u64().unwrap() > 2 && seen["rows"].as_u64().unwrap() > 2);
    // Every wait that an event ended is an arrow that ends in a poll, every request of a task an arrow that ends in it.
    let arrows: BTreeMap<String, u64> = serde_json::from_value(seen["arrows"].clone()).unwrap();
    let to_requests = trace.requests.iter().filter(|request| request.task.is_some()).count() as u64;
    assert!(to_requests > 100 && arrows["submit -> request"] == to_requests, "{arrows:?}");
    let starts: std::collections::BTreeSet<_> = trace.polls.iter().map(|poll| (poll.task, poll.start_ns)).collect();
    let ended = trace.waits.iter().filter(|wait| wait.wake.is_some() && starts.contains(&(wait.task, wait.end_ns)));
    let ended = ended.count() as u64;
    assert!(ended > 300 && arrows["wake -> poll"] == ended, "{ended} {arrows:?}");
    assert!(arrows["request -> wake"] > 20, "{arrows:?}");
}

#[test]
fn a_trace_without_samples_and_samples_without_a_trace() {
    let Some(packages) = python_packages() else { return };
    let folder = Folder::new("perfetto-parts").unwrap();
    let bytes = recording(SAMPLES);
    let plain = folder.write("plain", &export(Format::Perfetto, &bytes, States::Running)).unwrap();
    let seen = by_python("perfetto_tracks.py", Some(&packages), &plain);
    assert_eq!(seen["lanes"].as_object().unwrap().len(), 0);
    assert!(seen["samples"].as_u64().unwrap() > 0);
}

/// Events of a phase in a file of Chrome's format.
fn phase<'a>(file: &'a Value, phase: &'a str) -> impl Iterator<Item = &'a Value> {
    file["traceEvents"].as_array().unwrap().iter().filter(move |event| event["ph"] == phase)
}

#[test]
fn chrome_events_are_strict_json_and_complete() {
    if !has("python3") {
        return skipped("there is no python3 (apt-get install python3)").unwrap_or(());
    }
    let (recording, bytes, trace) = traced(EVENTS);
    let made = written(Format::Chrome, &recording, &bytes);
    let folder = Folder::new("chrome").unwrap();
    let path = folder.write("trace.json", &made).unwrap();
    // Python's parser, configured to refuse text that is not valid JSON: duplicate names, NaN.
    let counts = by_python("chrome_strict.py", None, &path);
    let file: Value = serde_json::from_slice(&made).unwrap();
    assert_eq!(counts["B"], counts["E"]);
    // Times are whole numbers of nanoseconds.
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    // As viewers do: by time, equal times in the order of the file, ends match the innermost begin.
    let mut slices: Vec<&Value> = phase(&file, "B").chain(phase(&file, "E")).collect();
    let all = file["traceEvents"].as_array().unwrap();
    let place: BTreeMap<*const Value, usize> =
        all.iter().enumerate().map(|(at, event)| (&raw const *event, at)).collect();
    slices.sort_by_key(|event| (nanoseconds(&event["ts"]), place[&(&raw const **event)]));
    let mut open: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    let (mut runs, mut time) = (0, 0);
    for event in slices {
        let stack = open.entry(event["tid"].as_u64().unwrap()).or_default();
        if event["ph"] == "B" {
            stack.push(event);
            continue;
        }
        let begin = stack.pop().expect("an end without a begin");
        if begin["name"] == "runs" {
            runs += 1;
            time += nanoseconds(&event["ts"]) - nanoseconds(&begin["ts"]);
        }
    }
    assert!(open.values().all(Vec::is_empty));
    assert_eq!(runs, trace.polls.len());
    assert_eq!(time, trace.polls.iter().map(|poll| poll.end_ns - poll.start_ns).sum::<u64>());
    let points: usize = trace.counters.iter().map(|counter| counter.points.len()).sum();
    assert!(phase(&file, "C").count() > points && points > 0);
    // Threads have names, processes too.
    let names = |what: &str| -> Vec<String> {
        let named = phase(&file, "M").filter(|event| event["name"] == what);
        named.map(|event| event["args"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names("process_name").contains(&"Tasks".to_owned()), "{:?}", names("process_name"));
    assert!(names("thread_name").contains(&task_name(&trace, 0)), "{:?}", names("thread_name"));
    // An arrow starts once and ends at most once, not before.
    let mut begun = BTreeMap::new();
    for event in phase(&file, "s") {
        assert!(begun.insert(event["id"].as_u64().unwrap(), nanoseconds(&event["ts"])).is_none());
    }
    let mut ended = 0;
    for event in phase(&file, "f") {
        let start = begun.remove(&event["id"].as_u64().unwrap()).expect("an end without a begin");
        assert!(start <= nanoseconds(&event["ts"]));
        ended += 1;
    }
    assert!(ended > 500 && begun.len() < ended, "{ended} {}", begun.len());
}

/// A time of speedscope's output.
fn speedscope_ns(text: &str) -> f64 {
    let number: String = text.trim().chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    let unit = &text.trim()[number.len()..];
    let factor = match unit {
        unit if unit.starts_with("ms") => 1e6,
        unit if unit.starts_with("\u{b5}s") => 1e3,
        unit if unit.starts_with("ns") => 1.0,
        _ => 1e9,
    };
    number.parse::<f64>().unwrap() * factor
}

#[test]
fn speedscope_agrees_on_chrome_events() {
    let folder = Folder::new("speedscope-trace").unwrap();
    let (recording, bytes, trace) = traced(2_000);
    let made = written(Format::Chrome, &recording, &bytes);
    let file: Value = serde_json::from_slice(&made).unwrap();
    let lanes: std::collections::BTreeSet<u64> =
        phase(&file, "B").map(|event| event["tid"].as_u64().unwrap()).collect();
    let Some(json) = in_speedscope(&folder, "trace.json", &made, lanes.len()) else { return };
    let profiles: Value = serde_json::from_slice(&json).unwrap();
    let mut found: BTreeMap<String, f64> = BTreeMap::new();
    for row in profiles.as_array().unwrap().iter().flat_map(|rows| rows.as_array().unwrap()) {
        // Total, self, name; the details follow the name.
        let name = row[2].as_str().unwrap().trim();
        *found.entry(name.split(" {").next().unwrap().to_owned()).or_default() +=
            speedscope_ns(row[0].as_str().unwrap());
    }
    for (name, expected) in [
        ("runs", trace.polls.iter().map(|poll| poll.end_ns - poll.start_ns).sum::<u64>()),
        ("idle", trace.idles.iter().map(|idle| idle.interval.end_ns - idle.interval.start_ns).sum()),
    ] {
        let found = found.get(name).copied().unwrap_or(0.0);
        assert!(expected > 0 && (found / expected as f64 - 1.0).abs() < 0.02, "{name}: {found} {expected}");
    }
}

#[test]
fn babeltrace_reads_every_event() {
    if !has("babeltrace2") {
        return skipped("there is no babeltrace2 (apt-get install babeltrace2)").unwrap_or(());
    }
    let folder = Folder::new("ctf").unwrap();
    let (mut recording, _, _) = traced(EVENTS);
    recording.profile.origin.guest = "a \"guest\" \\ with 'quotes'\n".to_owned();
    recording.trace.names.push("name \"in\" \\ quotes; };".to_owned());
    let twice = recording.trace.names[1].clone();
    recording.trace.names.push(twice.clone());
    // A gap, and an unknown kind.
    let ring = &mut recording.trace.rings[0];
    let mut rest = ring.chunks[0].events.split_off(100);
    rest.drain(..40);
    rest[0][1] = 0x1234 | 7 << 16;
    let first = ring.chunks[0].first + 140;
    ring.chunks.insert(1, glass_profiler_core::trace::raw::RawChunk { first, events: rest });
    let events = recording.trace.event_count();
    let path = folder.file("trace");
    std::fs::create_dir(&path).unwrap();
    let result = glass_profiler_export::ctf::write(&recording, |name| std::fs::File::create(path.join(name))).unwrap();
    assert_eq!((result.events, result.moved), (events, 0));

    let mut reader = limited("babeltrace2");
    reader.args(["--clock-cycles", "--fields=all", "--names=all"]).arg(&path);
    let read = reader.output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let complaints = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(complaints.contains("discarded 40 events"), "{complaints}");
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    // In order of time, as the reader merges the streams.
    let mut expected: Vec<[u64; 4]> =
        recording.trace.rings.iter().flat_map(|ring| &ring.chunks).flat_map(|chunk| &chunk.events).copied().collect();
    expected.sort_by_key(|words| words[0]);
    assert_eq!(text.lines().count() as u64, events);
    let number = |kind: &str| {
        let known = Kind::ALL.into_iter().find(|known| glass_profiler_core::words::kind_name(*known) == kind);
        known.map_or(0, |kind| kind as u16)
    };
    let mut fields = 0;
    for (line, words) in text.lines().zip(&expected) {
        let event = Event::from_words(*words);
        let value = |name: &str| -> Option<u64> {
            let (_, rest) = line.split_once(&format!(" {name} = "))?;
            // An enumeration has its number after the name.
            let rest = rest.strip_prefix("( ").map_or(rest, |rest| rest.split_once("container = ").unwrap().1);
            let digits = rest.split([',', ' ']).next()?;
            digits.strip_prefix("0x").map_or(digits.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
        };
        assert_eq!(value("timestamp").or(line[12..32].parse().ok()), Some(event.ticks), "{line}");
        let name = line.split(", name = ").nth(1).unwrap().split(", ").next().unwrap();
        let known = Kind::from_number(event.kind);
        assert_eq!(number(name), known.map_or(0, |kind| kind as u16), "{line}");
        let expected: &[(&str, u64)] = match known {
            Some(Kind::Submit) => &[
                ("device", event.a.into()),
                ("operation", event.detail.into()),
                ("request", event.b),
                ("bytes", event.c & 0xffff_ffff),
                ("under_way", event.c >> 32),
            ],
            Some(Kind::PollBegin) => &[("task", event.a.into())],
            Some(Kind::Block) => &[("object", event.b), ("kind", event.detail.into())],
            Some(Kind::SegmentIn) => &[("acknowledgement", event.b >> 32), ("window", event.c >> 32)],
            None => &[("kind", event.kind.into()), ("detail", event.detail.into()), ("b", event.b)],
            _ => &[],
        };
        for (name, expected) in expected {
            fields += 1;
            assert_eq!(value(name), Some(*expected), "{name}: {line}");
        }
    }
    assert!(fields > 1_000, "{fields}");
    assert!(text.contains(&format!("name = ( \"{twice}\"")), "names are shown");
}
