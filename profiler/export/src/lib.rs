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
mod perfetto;
mod pprof;
mod speedscope;
mod svg;

use std::borrow::Cow;
use std::io::{self, Write};

use glass_profiler_core::recording::{Place, Recording};
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
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 8] = [
        Format::Folded,
        Format::Pprof,
        Format::Firefox,
        Format::Speedscope,
        Format::Svg,
        Format::Perfetto,
        Format::Chrome,
        Format::Ctf,
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
        }
    }

    /// Contains only the guest's trace.
    pub fn is_of_trace(self) -> bool {
        matches!(self, Format::Chrome | Format::Ctf)
    }

    /// A folder with several files.
    pub fn is_folder(self) -> bool {
        self == Format::Ctf
    }

    /// Binary, so not for a terminal.
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Pprof | Format::Perfetto)
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

/// The contents of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Which samples.
    pub states: States,
    /// Distinguish functions by file and line, in [`Format::Folded`]. pprof, Firefox and Perfetto have fields for lines; SVG and
    /// speedscope have functions only.
    pub lines: bool,
    /// What is shown of a recording of host and guest.
    pub view: View,
    /// [`Format::Firefox`] and [`Format::Speedscope`] have a row for each vCPU, also where the threads of the guest are known.
    pub by_vcpu: bool,
}

/// Writes a recording in a format that is one file. `bytes` is the recording's file: only [`Format::Perfetto`] copies from
/// it. [`Format::Ctf`] is an error: it needs [`ctf::write`].
pub fn write(
    format: Format,
    recording: &Recording,
    bytes: &[u8],
    options: Options,
    output: &mut dyn Write,
) -> io::Result<()> {
    let viewed = match format {
        Format::Perfetto | Format::Chrome | Format::Ctf => Cow::Borrowed(recording),
        _ => in_view(recording, options.view),
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
        Format::Ctf => Err(io::Error::new(io::ErrorKind::InvalidInput, "CTF is a folder, not a file")),
    }
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
