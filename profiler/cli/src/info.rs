//! `glass info`: the contents of a recording, and the profiler overhead.

mod traced;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use glass_profiler_core::format::duration;
use glass_profiler_core::identity::{ProcessTracks, processes};
use glass_profiler_core::model::{Profile, State, StateCounts};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::{NameSource, RecordedImage, Recording};
use glass_profiler_core::view::Hosts;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::{console, files};

/// No line is wider.
const COLUMNS: usize = 100;
/// For the path of an image.
const PATH_COLUMNS: usize = 40;
/// Images that get a line of their own.
const IMAGES_MAX: usize = 24;
/// Characters of a build id: enough to distinguish two builds.
const BUILD_ID_CHARS: usize = 16;

/// Prints the contents of a recording: guest, tracks, images, overhead and losses.
#[derive(clap::Args)]
pub struct Args {
    /// The recording.
    file: PathBuf,
    /// Print JSON, for scripts.
    #[arg(long)]
    json: bool,
}

/// Prints it.
pub fn run(arguments: Args) -> Result<()> {
    let (bytes, recording) = files::open(&arguments.file)?;
    let file = printable(&arguments.file.display().to_string());
    let file_bytes = bytes.len() as u64;
    console::print(&match arguments.json {
        true => format!("{:#}\n", to_json(&file, file_bytes, &recording)),
        false => to_text(&file, file_bytes, &recording),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Images with code in samples, those with most addresses first.
fn seen(recording: &Recording) -> Vec<&RecordedImage> {
    let mut images: Vec<_> = recording.images.iter().filter(|image| image.addresses > 0).collect();
    images.sort_by(|a, b| b.addresses.cmp(&a.addresses).then_with(|| a.path.cmp(&b.path)));
    images
}

/// The source of an image's names, in a few words.
fn names_of(image: &RecordedImage) -> String {
    match &image.names {
        NameSource::Missing(reason) => format!("none: the file {reason}"),
        _ if image.named == 0 => "none".to_owned(),
        source => {
            let from = if *source == NameSource::File { ", from the file" } else { "" };
            match (image.named == image.addresses, image.with_line) {
                (false, _) => format!("{} of {}{from}", image.named, image.addresses),
                (true, 0) => format!("all, no lines{from}"),
                (true, _) => format!("all, with lines{from}"),
            }
        }
    }
}

/// In 100 columns.
fn to_text(file: &str, file_bytes: u64, recording: &Recording) -> String {
    let profile = &recording.profile;
    // The text report starts with the parts that this page shows, and continues with functions.
    let report = glass_profiler_report::text(profile, 0);
    let about = ["\nHottest functions", "\nNo sample found"].iter().filter_map(|title| report.find(title)).min();
    let mut out = report[..about.unwrap_or(report.len())].to_owned();
    let images = seen(recording);
    if !images.is_empty() {
        let _ = writeln!(out, "\n{:<PATH_COLUMNS$}  {:>9}  {:<16}  names", "Images", "addresses", "build id");
    }
    for image in images.iter().take(IMAGES_MAX) {
        let path = cut_start(&printable(&image.path), PATH_COLUMNS - 2);
        let id = match image.build_id.is_empty() {
            true => "none".to_owned(),
            false => hex(&image.build_id).chars().take(BUILD_ID_CHARS).collect(),
        };
        let fill = " ".repeat((PATH_COLUMNS - 2).saturating_sub(path.width()));
        let row =
            format!("  {path}{fill}  {:>9}  {id:<BUILD_ID_CHARS$}  {}", image.addresses, printable(&names_of(image)));
        let _ = writeln!(out, "{}", row.chars().take(COLUMNS).collect::<String>().trim_end());
    }
    if images.len() > IMAGES_MAX {
        let _ = writeln!(out, "  and {} more", images.len() - IMAGES_MAX);
    }
    if !recording.trace.is_empty() {
        traced::to_text(&mut out, &recording.trace);
    }
    let is_sampled = recording.trace.is_empty() || profile.cost.samples_wanted > 0 || !profile.samples.is_empty();
    if is_sampled {
        about_samples(&mut out, profile, file_bytes);
    }
    let state = if recording.is_complete { "complete" } else { "not complete" };
    if !is_sampled {
        let per_event = file_bytes as f64 / recording.trace.event_count().max(1) as f64;
        let _ = writeln!(out, "\nNothing was sampled; {per_event:.1} bytes an event");
    }
    let place = cut_start(file, COLUMNS - 50);
    let _ = writeln!(out, "{place}: {}, format version {}, {state}", size(file_bytes), recording.version);
    out
}

/// The samples, in words and numbers.
fn about_samples(out: &mut String, profile: &Profile, file_bytes: u64) {
    let _ = writeln!(out, "\nInterpretation");
    for sentence in in_words(profile) {
        let _ = writeln!(out, "  {sentence}");
    }
    let per_sample = file_bytes / (profile.samples.len() as u64).max(1);
    let _ = writeln!(
        out,
        "\n{} distinct stacks of {} functions; {} bytes a sample",
        profile.stacks.len(),
        profile.frames.len(),
        per_sample
    );
}

/// What the overhead and losses mean for the profile.
fn in_words(profile: &Profile) -> Vec<String> {
    let cost = &profile.cost;
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    // The host's are not stopped.
    let hosts = Hosts::of(profile);
    let tracks = profile.tracks.iter().filter(|track| !hosts.has(track.guest)).count().max(1) as u64;
    let stood = share(cost.pause.sum_ns, profile.origin.duration_ns.saturating_mul(tracks));
    let mut said = vec![match cost.pause.count {
        0 => "Nothing was stopped for samples: sampling only used the profiler's CPU time.".to_owned(),
        _ => format!(
            "Each sample paused the guest for {} (median), in total {stood:.2} % of the time{}.",
            duration(cost.pause.median_ns),
            if tracks > 1 { " of each vCPU" } else { "" }
        ),
    }];
    let lost = share(cost.samples_lost, cost.samples_wanted);
    said.push(match (cost.samples_lost, lost > 1.0) {
        (0, _) => "No sample was lost.".to_owned(),
        (_, false) => format!("{lost:.2} % of the expected samples are missing: a share changes by at most that."),
        (_, true) => format!("{lost:.1} % of the expected samples are missing: busy moments may be under-represented."),
    });
    let broken = share(cost.stacks_broken, cost.samples_taken);
    said.push(match broken {
        broken if broken > 1.0 => {
            format!("{broken:.1} % of the stacks are broken: totals of outer functions are too low by up to that.")
        }
        _ => "Almost every stack is whole: total is as reliable as self.".to_owned(),
    });
    said
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// The end of a path, with an ellipsis if it is cut.
fn cut_start(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut kept: Vec<char> = Vec::new();
    let mut used = 1;
    for letter in text.chars().rev() {
        used += letter.to_string().width();
        if used > columns {
            break;
        }
        kept.push(letter);
    }
    kept.push('\u{2026}');
    kept.iter().rev().collect()
}

fn to_json(file: &str, file_bytes: u64, recording: &Recording) -> Value {
    let profile = &recording.profile;
    let (origin, cost) = (&profile.origin, &profile.cost);
    let mut states = vec![StateCounts::default(); profile.tracks.len()];
    for sample in &profile.samples {
        if let Some(counts) = states.get_mut(sample.track as usize) {
            counts.add(sample.state, 1);
        }
    }
    let tracks: Vec<Value> = profile
        .tracks
        .iter()
        .zip(states)
        .map(|(track, counts)| {
            let states =
                State::ALL.map(|state| (state.word().replace(' ', "_").to_lowercase(), counts.of(state).into()));
            let named = [("name".to_owned(), track.name.clone().into()), ("id".to_owned(), track.id.into())];
            Value::Object(named.into_iter().chain(states).collect())
        })
        .collect();
    let images: Vec<Value> = recording.images.iter().map(image_json).collect();
    json!({
        "file": file, "file_bytes": file_bytes, "format_version": recording.version,
        "is_complete": recording.is_complete,
        "guest": origin.guest, "backend": origin.backend, "host": origin.host, "recorder": origin.recorder,
        "symbols": origin.symbols, "start_unix_ns": origin.start_unix_ns, "duration_ns": origin.duration_ns,
        "rate_hz": origin.rate_hz,
        "samples": profile.samples.len(), "stacks": profile.stacks.len(), "functions": profile.frames.len(),
        "tracks": tracks, "processes": processes_json(profile), "images": images, "trace": traced::to_json(&recording.trace),
        "cost": {
            "samples_expected": cost.samples_wanted, "samples_collected": cost.samples_taken,
            "samples_lost": cost.samples_lost, "samples_late": cost.samples_late,
            "losses": {
                "ring_full": cost.losses.ring_full, "throttled": cost.losses.throttled, "overdue": cost.losses.overdue,
                "not_stopped": cost.losses.not_stopped, "queue_full": cost.losses.queue_full,
                "maps": cost.losses.maps, "forks": cost.losses.forks, "unknown": cost.losses.unknown,
            },
            "stacks_broken": cost.stacks_broken, "profiler_cpu_ns": cost.profiler_cpu_ns, "sampling_cpu_ns": cost.sampling_cpu_ns,
            "pause": {
                "count": cost.pause.count, "median_ns": cost.pause.median_ns, "p99_ns": cost.pause.p99_ns,
                "max_ns": cost.pause.max_ns, "sum_ns": cost.pause.sum_ns,
            },
        },
        "warnings": profile.warnings,
    })
}

/// The processes whose threads are tracks; `threads` are places in `tracks`.
fn processes_json(profile: &Profile) -> Vec<Value> {
    let json = |process: ProcessTracks| {
        let ProcessTracks { name, before, pid, tracks } = process;
        json!({ "name": name, "before": before, "pid": pid, "threads": tracks })
    };
    processes(profile).into_iter().map(json).collect()
}

fn image_json(image: &RecordedImage) -> Value {
    let (source, problem) = match &image.names {
        NameSource::Recording => ("recording", Value::Null),
        NameSource::File => ("file", Value::Null),
        NameSource::Missing(reason) => ("missing", Value::from(reason.as_str())),
    };
    json!({
        "path": image.path, "build_id": hex(&image.build_id), "start": image.range.0, "end": image.range.1,
        "addresses": image.addresses, "named": image.named, "with_line": image.with_line,
        "names_from": source, "names_problem": problem,
    })
}
