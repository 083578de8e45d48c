//! `glass export`: converts a recording for other viewers.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use glass_profiler_export::{Format, Labels, Options, States};

use crate::console::{self, Busy, say};
use crate::files;
use crate::host_view::HostView;
use crate::only::OnlyArgs;

/// Converts a recording for other viewers.
#[derive(clap::Args)]
pub struct Args {
    /// The recording.
    file: PathBuf,
    /// The format.
    #[arg(short, long, value_parser = formats())]
    format: Format,
    /// Output file, `-` for standard output; by default the file name that the format's viewers expect.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which samples to write: those of running tracks (or in the VMM), or also those of spinning, idle and other ones, under separate roots.
    #[arg(long, value_enum, default_value_t = StatesArg::Running)]
    states: StatesArg,
    /// Append file and line to function names. Only for folded; pprof, firefox and perfetto contain lines, svg and speedscope do not.
    #[arg(long)]
    lines: bool,
    /// What to write of a recording of host and guest.
    #[arg(long, value_enum, default_value_t = HostView::Guest)]
    view: HostView,
    /// Rows are the vCPUs of a VM, and not the threads of its Linux. For firefox and speedscope only.
    #[arg(long)]
    by_vcpu: bool,
    /// Labels of samples, which make a series each in engines for profiles: all, the name of a guest's process, or none; then names of processes and files are left out, too. For pprof and otlp-profiles only.
    #[arg(long, value_enum, default_value_t = LabelsArg::All)]
    labels: LabelsArg,
    /// Attribute of what was recorded, such as `service.name=web`; may be given several times. For otlp-profiles and otlp-traces only.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_attribute)]
    attribute: Vec<(String, String)>,
    #[command(flatten)]
    only: OnlyArgs,
}

/// [`Labels`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LabelsArg {
    All,
    Process,
    None,
}

fn parse_attribute(text: &str) -> Result<(String, String), &'static str> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or("give KEY=VALUE")
}

/// [`States`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StatesArg {
    Running,
    All,
}

fn formats() -> impl clap::builder::TypedValueParser<Value = Format> {
    let values = Format::ALL.map(|format| PossibleValue::new(format.name()).help(format.viewer()));
    let by_name = |name: String| Format::ALL.into_iter().find(|format| format.name() == name);
    PossibleValuesParser::new(values).map(move |name| by_name(name).unwrap_or(Format::Folded))
}

/// Writes the file.
pub fn run(arguments: Args) -> Result<()> {
    let Args { file, format, output, states, lines, view, by_vcpu, labels, attribute, only } = arguments;
    ensure!(
        !lines || format == Format::Folded,
        "--lines is for --format folded only: for lines use that, pprof, firefox or perfetto"
    );
    ensure!(
        !by_vcpu || matches!(format, Format::Firefox | Format::Speedscope),
        "--by-vcpu is for --format firefox and speedscope: the others have no rows of samples"
    );
    ensure!(
        labels == LabelsArg::All || format.has_labels(),
        "--labels is for --format pprof and otlp-profiles only: samples of the others have no labels"
    );
    ensure!(
        attribute.is_empty() || format.has_attributes(),
        "--attribute is for --format otlp-profiles and otlp-traces only: the others have no attributes"
    );
    ensure!(
        !only.is_given() || !format.is_of_trace(),
        "{} has a trace, and --process and --thread select samples: give another --format",
        format.name()
    );
    let states = match states {
        StatesArg::Running => States::Running,
        StatesArg::All => States::All,
    };
    let labels = match labels {
        LabelsArg::All => Labels::All,
        LabelsArg::Process => Labels::Process,
        LabelsArg::None => Labels::None,
    };
    let options = Options { states, lines, view: view.into(), by_vcpu, labels, attributes: &attribute };
    let output = output.unwrap_or_else(|| format.file_name().into());
    let to_standard_output = output == Path::new("-");
    if to_standard_output && format.is_binary() && io::stdout().is_terminal() {
        bail!("{} is binary and would garble the terminal: give a file with --output, or a pipe", format.name());
    }
    files::ensure_other(&file, &output, "recording")?;
    let (bytes, mut recording) = files::open(&file)?;
    only.apply(&file, &mut recording)?;
    if format.is_of_trace() && recording.trace.is_empty() {
        bail!(
            "{} holds samples only, nothing for {}: record with `glass trace`, or give another --format",
            file.display(),
            format.name()
        );
    }
    if !format.is_of_trace() && format != Format::Perfetto && recording.profile.samples.is_empty() {
        bail!(
            "{} holds no samples, nothing for {}: record with `glass record`, or give another --format",
            file.display(),
            format.name()
        );
    }
    if format.is_folder() {
        ensure!(!to_standard_output, "{} is a folder of files: name it with --output", format.name());
        export_folder(&recording, &output)?;
        remind(&file, &recording);
        return Ok(());
    }
    if to_standard_output {
        let mut stdout = BufWriter::new(io::stdout().lock());
        let written = glass_profiler_export::write(format, &recording, &bytes, options, &mut stdout)
            .and_then(|()| stdout.flush());
        remind(&file, &recording);
        return console::printed(written);
    }
    let busy = Busy::with(&format!("making {}", output.display()));
    files::write(&output, |writer| glass_profiler_export::write(format, &recording, &bytes, options, writer))?;
    drop(busy);
    remind(&file, &recording);
    if let Some(only) = &recording.profile.only {
        say!("glass: {}", only.sentence());
    }
    let samples = format!("{} samples", exported(&recording, options));
    let events = format!("{} events", recording.trace.event_count());
    let what = match (format.is_of_trace(), recording.trace.is_empty()) {
        (true, _) => events,
        (false, false) if format == Format::Perfetto => format!("{samples} and {events}"),
        (false, _) => samples,
    };
    say!("glass: {what} in {}; open it with {}", output.display(), format.viewer());
    Ok(())
}

/// Prints how to see the warnings of a recording, which other formats cannot contain.
fn remind(file: &Path, recording: &glass_profiler_core::recording::Recording) {
    let warnings = files::warnings(recording);
    if !warnings.is_empty() {
        let file = file.display();
        say!("glass: {file} is a recording{warnings}: `glass info {file}` shows them");
    }
}

/// Writes a trace into a folder that is new or empty: viewers would read old and new streams as one trace.
fn export_folder(recording: &glass_profiler_core::recording::Recording, output: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", output.display());
    fs::create_dir_all(output).with_context(cannot)?;
    ensure!(
        fs::read_dir(output).with_context(cannot)?.next().is_none(),
        "{} is not empty: name another folder with --output, or remove it",
        output.display()
    );
    let busy = Busy::with(&format!("making {}", output.display()));
    let written =
        glass_profiler_export::ctf::write(recording, |name| File::create(output.join(name)).map(BufWriter::new));
    let written = match written {
        Ok(written) => written,
        Err(error) => {
            // Half a trace would look like a whole one; the folder contains only our files.
            let _ = fs::remove_dir_all(output);
            return Err(error).with_context(cannot);
        }
    };
    drop(busy);
    if written.moved > 0 {
        say!(
            "glass: warning: {} events were earlier than the event before them; they got that event's time",
            written.moved
        );
    }
    let folder = output.display();
    say!("glass: {} events in {folder}; open it with {}", written.events, Format::Ctf.viewer());
    Ok(())
}

/// How many samples are written.
fn exported(recording: &glass_profiler_core::recording::Recording, options: Options<'_>) -> usize {
    let viewed = options.view.of(&recording.profile);
    let left_out = viewed.profile.left_out();
    let is_listed = |track: u32| !left_out.get(track as usize).copied().unwrap_or(false);
    match options.states {
        States::Running => viewed.profile.counted().count(),
        States::All => viewed.profile.samples.iter().filter(|sample| is_listed(sample.track)).count(),
    }
}
