//! `glass agent`: records all VMs of a host, all the time.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use glass_profiler_agent::{Config, SinkConfig, SinkKind};

/// Records all VMs of this host, all the time, with little overhead, and shows them on a local page.
///
/// VMs that start and end are noticed within seconds. Recordings of the last hours are kept in a folder of bounded size; profiles go to the engines of the
/// configuration (Pyroscope, Parca, OpenTelemetry). SIGHUP reads the configuration again.
#[derive(clap::Args)]
pub struct Args {
    /// Configuration, in TOML; the options below have precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for recordings.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Address of the page and the metrics, of the loopback; port 0 is any that is free.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Samples per second of each vCPU.
    #[arg(short = 'F', long, value_name = "HZ")]
    rate: Option<u32>,
    /// Seconds of a recording.
    #[arg(long, value_name = "SECONDS")]
    segment: Option<u64>,
    /// Engine that gets the profiles: `pyroscope=URL`, `parca=URL`, `otlp-profiles=URL`, or spans: `otlp-traces=URL`; may be given several times.
    #[arg(long, value_name = "KIND=URL", value_parser = parse_sink)]
    sink: Vec<SinkConfig>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the program glass")?;
    glass_profiler_agent::run(program, || {
        let mut config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        config.folder = args.folder.clone().unwrap_or(config.folder);
        config.listen = args.listen.unwrap_or(config.listen);
        config.rate_hz = args.rate.unwrap_or(config.rate_hz);
        config.segment_seconds = args.segment.unwrap_or(config.segment_seconds);
        config.sink.extend(args.sink.iter().cloned());
        config.check()?;
        Ok(config)
    })
}

fn parse_sink(text: &str) -> Result<SinkConfig> {
    let (name, url) = text.split_once('=').unwrap_or_default();
    let Some(kind) = SinkKind::ALL.into_iter().find(|kind| kind.name() == name) else {
        let kinds = SinkKind::ALL.map(|kind| format!("{}=URL", kind.name()));
        bail!("use {}", kinds.join(" or "));
    };
    let (headers, labels) = Default::default();
    Ok(SinkConfig { kind, url: url.to_owned(), headers, labels, ca: None })
}
