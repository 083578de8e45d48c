//! The commands of `glass` that the agent runs, each as a process of its own: what a guest or a recording contains is parsed in their jails.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::config::{Names, SinkKind};

/// How long a command that reads a recording may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of output of a command at most.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// The program.
#[derive(Debug, Clone)]
pub struct Glass(pub PathBuf);

/// How a VM is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Samples a second of each vCPU.
    pub rate_hz: u32,
    /// For so long.
    pub time: Duration,
    /// Whose names are recorded.
    pub names: Names,
    /// Also spans, of services of Glasshouse.
    pub spans: bool,
}

/// What `glass info --json` prints, as far as it is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Info {
    /// How long the recording is.
    pub duration_ns: u64,
    /// When it started, since 1970.
    pub start_unix_ns: u64,
    /// Samples in it.
    pub samples: u64,
    /// The overhead.
    pub cost: Cost,
    /// Its vCPUs.
    pub tracks: Vec<Track>,
    /// Its trace.
    pub trace: Traced,
    /// What else is to be known of it.
    pub warnings: Vec<String>,
}

/// What is in a trace.
#[derive(Debug, Clone, Deserialize)]
pub struct Traced {
    /// Spans of the service that start in it.
    pub spans: u64,
}

/// How many samples of a vCPU are in which state, as far as code of the VM or its VMM ran.
#[derive(Debug, Clone, Deserialize)]
pub struct Track {
    pub running: u64,
    pub in_the_vmm: u64,
    pub spinning: u64,
}

/// The overhead of a recording.
#[derive(Debug, Clone, Deserialize)]
pub struct Cost {
    /// Samples that were expected, and lost.
    pub samples_expected: u64,
    pub samples_lost: u64,
    /// CPU time of the recorder while it sampled; 0 if it is not known.
    pub sampling_cpu_ns: u64,
    /// Pauses of vCPUs.
    pub pause: Pauses,
}

/// Pauses.
#[derive(Debug, Clone, Deserialize)]
pub struct Pauses {
    /// All together.
    pub sum_ns: u64,
}

impl Info {
    /// Samples in which code ran.
    pub fn busy(&self) -> u64 {
        self.tracks.iter().map(|track| track.running + track.in_the_vmm + track.spinning).sum()
    }
}

impl Glass {
    /// Starts to record a VM into `output`; what it prints goes to `log`. It ends by itself after `time`, or with the VM.
    pub fn record(&self, pid: u32, wanted: &Wanted, (output, log): (&Path, &Path)) -> io::Result<Child> {
        let mut command = Command::new(&self.0);
        command.args(["record", "--pid", &pid.to_string(), "--rate", &wanted.rate_hz.to_string()]);
        command.args(["--duration", &format!("{}ms", wanted.time.as_millis()), "--output"]).arg(output);
        command.arg("--leave-idle");
        if wanted.names == Names::None {
            command.arg("--no-names");
        }
        if wanted.spans {
            command.args(["--trace=spans", "--trace-if-kept"]);
        }
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()
    }

    /// What is in a recording.
    pub fn info(&self, recording: &Path) -> Result<Info> {
        let output = self.output(&["info", "--json"], recording, &[])?;
        serde_json::from_slice(&output).context("glass info printed what it never does")
    }

    /// A recording for an engine; of a label of processes or none, see [`Names::Engines`]. `None` where it has nothing of the kind.
    pub fn export(
        &self,
        recording: &Path,
        info: &Info,
        kind: SinkKind,
        has_names: bool,
        attributes: &BTreeMap<String, String>,
    ) -> Result<Option<Vec<u8>>> {
        let (format, is_there) = match kind {
            SinkKind::Pyroscope | SinkKind::Parca => ("pprof", info.busy() > 0),
            SinkKind::OtlpProfiles => ("otlp-profiles", info.busy() > 0),
            SinkKind::OtlpTraces => ("otlp-traces", info.trace.spans > 0),
        };
        if !is_there {
            return Ok(None);
        }
        let mut words = vec!["export", "--format", format, "--output", "-"];
        if kind != SinkKind::OtlpTraces {
            words.extend(["--labels", if has_names { "process" } else { "none" }]);
        }
        let attributes: Vec<String> =
            attributes.iter().map(|(key, value)| format!("--attribute={key}={value}")).collect();
        if matches!(kind, SinkKind::OtlpProfiles | SinkKind::OtlpTraces) {
            words.extend(attributes.iter().map(String::as_str));
        }
        self.output(&words, recording, &[]).map(Some)
    }

    /// The page of a recording, written to a file.
    pub fn page(&self, recording: &Path, page: &Path) -> Result<()> {
        self.output(&["report", "--output"], page, &[recording]).map(|_| ())
    }

    /// The page of the difference of recordings.
    pub fn difference(&self, before: &[PathBuf], after: &[PathBuf], page: &Path) -> Result<()> {
        let mut files: Vec<&Path> = before.iter().map(PathBuf::as_path).collect();
        files.push(Path::new("--"));
        files.extend(after.iter().map(PathBuf::as_path));
        self.output(&["diff", "--output"], page, &files).map(|_| ())
    }

    /// What a command prints. It is ended when it takes too long.
    fn output(&self, words: &[&str], first: &Path, rest: &[&Path]) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.0);
        command.args(words).arg(first).args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start glass")?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = |pipe: Option<Box<dyn io::Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let is_read = pipe.is_some_and(|pipe| pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).is_ok());
                if is_read { bytes } else { Vec::new() }
            })
        };
        let output = read(stdout.map(|pipe| Box::new(pipe) as Box<dyn io::Read + Send>));
        let errors = read(stderr.map(|pipe| Box::new(pipe) as Box<dyn io::Read + Send>));
        let begun = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if begun.elapsed() > PATIENCE => {
                    child.kill()?;
                    child.wait()?;
                    bail!("glass {} took more than {} s", words[0], PATIENCE.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let errors = errors.join().unwrap_or_default();
        ensure!(status.success(), "{}", last_line(&String::from_utf8_lossy(&errors)));
        Ok(output.join().unwrap_or_default())
    }
}

/// The last line with a text, without the command's name.
pub fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed no reason");
    line.strip_prefix("glass: ").unwrap_or(line).to_owned()
}
