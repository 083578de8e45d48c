//! Recordings in the formats of other viewers.
//!
//! ```
//! use glass_profiler_export::{Format, Options, write};
//!
//! let recording = glass_profiler_core::recording::Recording::default();
//! let mut svg = Vec::new();
//! write(Format::Svg, &recording, &[], Options::default(), &mut svg).unwrap();
//! assert!(svg.starts_with(b"<svg"));
//! ```
//!
//! Each format is a module. All see the same stacks, which `chains` makes of the profile, so their numbers agree with
//! each other and with `glass report`. Writers stream: beside the recording they hold tables of distinct frames and
//! stacks, and a few bytes for each sample. Formats of traces all show the tracks that `lanes` makes of the trace, which they
//! hold beside the recording.
#![forbid(unsafe_code)]

mod chains;
mod chrome;
pub mod ctf;
mod firefox;
mod folded;
mod json;
mod lanes;
pub mod mirage;
mod otlp;
mod perfetto;
mod pprof;
mod speedscope;
mod svg;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use glass_profiler_core::recording::{Place, Recording};
use glass_profiler_core::threads::SampledThreads;
use glass_profiler_core::view::View;

/// The formats of exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line for each stack, for `flamegraph.pl`, inferno and many others.
    Folded,
    /// `profile.proto`, compressed by gzip, for `go tool pprof`, Pyroscope and Parca.
    Pprof,
    /// A processed profile of the Firefox Profiler: profiler.firefox.com.
    Firefox,
    /// The format of speedscope.app.
    Speedscope,
    /// A flame graph as an image.
    Svg,
    /// A Perfetto trace without our own fields, with tracks of the guest's trace: ui.perfetto.dev.
    Perfetto,
    /// The guest's trace as Chrome's JSON trace events.
    Chrome,
    /// The guest's trace, event by event: a folder, which [`ctf::write`] fills.
    Ctf,
    /// Samples for a collector of OpenTelemetry. The format is experimental.
    OtlpProfiles,
    /// Spans of the guest's trace for a collector of OpenTelemetry.
    OtlpTraces,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 10] = [
        Format::Folded,
        Format::Pprof,
        Format::Firefox,
        Format::Speedscope,
        Format::Svg,
        Format::Perfetto,
        Format::Chrome,
        Format::Ctf,
        Format::OtlpProfiles,
        Format::OtlpTraces,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Pprof => "pprof",
            Format::Firefox => "firefox",
            Format::Speedscope => "speedscope",
            Format::Svg => "svg",
            Format::Perfetto => "perfetto",
            Format::Chrome => "chrome",
            Format::Ctf => "ctf",
            Format::OtlpProfiles => "otlp-profiles",
            Format::OtlpTraces => "otlp-traces",
        }
    }

    /// The file name that its readers expect.
    pub fn file_name(self) -> &'static str {
        match self {
            Format::Folded => "profile.folded",
            Format::Pprof => "profile.pb.gz",
            Format::Firefox => "profile.firefox.json",
            Format::Speedscope => "profile.speedscope.json",
            Format::Svg => "flame.svg",
            Format::Perfetto => "profile.perfetto-trace",
            Format::Chrome => "trace.json",
            Format::Ctf => "trace.ctf",
            Format::OtlpProfiles => "profile.otlp",
            Format::OtlpTraces => "trace.otlp",
        }
    }

    /// Has labels of samples, which [`Labels`] selects.
    pub fn has_labels(self) -> bool {
        matches!(self, Format::Pprof | Format::OtlpProfiles)
    }

    /// Has attributes of what was recorded.
    pub fn has_attributes(self) -> bool {
        matches!(self, Format::OtlpProfiles | Format::OtlpTraces)
    }

    /// Contains only the guest's trace.
    pub fn is_of_trace(self) -> bool {
        matches!(self, Format::Chrome | Format::Ctf | Format::OtlpTraces)
    }

    /// A folder with several files.
    pub fn is_folder(self) -> bool {
        self == Format::Ctf
    }

    /// Binary, so not for a terminal.
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Pprof | Format::Perfetto | Format::OtlpProfiles | Format::OtlpTraces)
    }

    /// The viewers of such a file.
    pub fn viewer(self) -> &'static str {
        match self {
            Format::Folded => "inferno-flamegraph, flamegraph.pl or speedscope.app",
            Format::Pprof => "go tool pprof -http=: FILE",
            Format::Firefox => "profiler.firefox.com",
            Format::Speedscope => "speedscope.app",
            Format::Svg => "any browser",
            Format::Perfetto => "ui.perfetto.dev",
            Format::Chrome => "ui.perfetto.dev, chrome://tracing or speedscope.app",
            Format::Ctf => "babeltrace2 or Trace Compass",
            Format::OtlpProfiles => "a collector: POST FILE to its /v1development/profiles as application/x-protobuf",
            Format::OtlpTraces => "a collector: POST FILE to its /v1/traces as application/x-protobuf",
        }
    }
}

/// Which samples are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum States {
    /// Samples in the states that functions' shares are counted of ([`State::ACTIVE`](glass_profiler_core::model::State::ACTIVE)).
    #[default]
    Running,
    /// Also samples of spinning, idle and other tracks, under separate roots.
    All,
}

/// Which labels samples have in [`Format::Pprof`] and [`Format::OtlpProfiles`], besides their state and whose code they are of. Engines for profiles make a series of each distinct set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Labels {
    /// Thread, process, their IDs, and the vCPU.
    #[default]
    All,
    /// The name of a guest's process.
    Process,
    /// None. Names of processes, programs and libraries are left out, too.
    None,
}

/// The contents of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options<'a> {
    /// Which samples.
    pub states: States,
    /// Distinguish functions by file and line, in [`Format::Folded`]. pprof, Firefox and Perfetto have fields for lines; SVG and
    /// speedscope have functions only.
    pub lines: bool,
    /// What is shown of a recording of host and guest.
    pub view: View,
    /// [`Format::Firefox`] and [`Format::Speedscope`] have a row for each vCPU, also where the threads of the guest are known.
    pub by_vcpu: bool,
    /// Labels of samples. Only for formats [that have them](Format::has_labels).
    pub labels: Labels,
    /// Attributes of what was recorded beside its name and its host, which they may replace (`service.name`, `host.name`). Only for formats
    /// [that have them](Format::has_attributes).
    pub attributes: &'a [(String, String)],
}

/// Writes a recording in a format that is one file. `bytes` is the recording's file: only [`Format::Perfetto`] copies from
/// it. [`Format::Ctf`] is an error: it needs [`ctf::write`].
pub fn write(
    format: Format,
    recording: &Recording,
    bytes: &[u8],
    options: Options<'_>,
    output: &mut dyn Write,
) -> io::Result<()> {
    let viewed = match format {
        Format::Perfetto | Format::Chrome | Format::Ctf | Format::OtlpTraces => Cow::Borrowed(recording),
        _ => in_view(recording, options.view),
    };
    let viewed = match format.has_labels() && options.labels == Labels::None {
        true => Cow::Owned(without_files(&viewed)),
        false => viewed,
    };
    let recording = viewed.as_ref();
    match format {
        Format::Folded => folded::write(recording, options, output),
        Format::Pprof => pprof::write(recording, options, output),
        Format::Firefox => firefox::write(recording, options, output),
        Format::Speedscope => speedscope::write(recording, options, output),
        Format::Svg => svg::write(recording, options, output),
        Format::Perfetto => {
            let trace = (!recording.trace.is_empty()).then(|| glass_profiler_core::trace::build(&recording.trace));
            perfetto::write(recording, trace.as_ref(), bytes, options, output)
        }
        Format::Chrome => chrome::write(recording, &glass_profiler_core::trace::build(&recording.trace), output),
        Format::OtlpProfiles => otlp::profiles::write(recording, options, output),
        Format::OtlpTraces => {
            otlp::traces::write(recording, &glass_profiler_core::trace::build(&recording.trace), options, output)
        }
        Format::Ctf => Err(io::Error::new(io::ErrorKind::InvalidInput, "CTF is a folder, not a file")),
    }
}

/// A recording without the names of processes, programs and libraries. Names in brackets, such as the kernel's, are none.
fn without_files(recording: &Recording) -> Recording {
    const NAMELESS: &str = "[file]";
    let hide = |name: &mut String| {
        let is_no_name = name.is_empty() || name.starts_with('[') && name.ends_with(']');
        if !is_no_name {
            *name = NAMELESS.to_owned();
        }
    };
    let mut hidden = recording.clone();
    // They are about files and processes.
    hidden.profile.warnings.clear();
    hidden.images.iter_mut().for_each(|image| hide(&mut image.path));
    // Stacks of a guest's processes start with the process.
    let processes = SampledThreads::of(&hidden.profile).processes;
    let numbers: HashMap<String, u32> = processes.iter().map(|process| (process.label(), process.pid)).collect();
    for frame in &mut hidden.profile.frames {
        hide(&mut frame.image);
        frame.file = None;
        if let Some(pid) = numbers.get(&frame.function) {
            frame.function = format!("process {pid}");
        }
    }
    hidden
}

/// The samples of a recording in a view of host and guest, without its trace. A recording without a side of the host stays as it is.
fn in_view(recording: &Recording, view: View) -> Cow<'_, Recording> {
    let viewed = view.of(&recording.profile);
    if matches!(viewed.profile, Cow::Borrowed(_)) {
        return Cow::Borrowed(recording);
    }
    let place = |frame: u32| -> Place {
        let recorded = viewed.recorded(frame).and_then(|recorded| recording.places.get(recorded as usize));
        recorded.copied().unwrap_or_default()
    };
    let places = (0..viewed.profile.frames.len() as u32).map(place).collect();
    Cow::Owned(Recording {
        places,
        images: recording.images.clone(),
        version: recording.version,
        is_complete: recording.is_complete,
        profile: viewed.profile.into_owned(),
        ..Recording::default()
    })
}
