//! The loop of the agent.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::config::{Config, Names};
use crate::glass::Glass;
use crate::segments::Segments;
use crate::server;
use crate::sink::{Pace, Sink};
use crate::state::State;
use crate::watch::{Finished, Watch};

/// How often recorders are looked at.
const ROUND: Duration = Duration::from_millis(250);

/// What happens to recordings.
struct Keeper {
    glass: Glass,
    segments: Arc<Mutex<Segments>>,
    sinks: Vec<Sink>,
    state: Arc<State>,
    host: String,
}

/// Runs the agent until SIGINT or SIGTERM. `glass` is the program whose commands it runs. `read` returns the configuration; SIGHUP reads it again,
/// and one that is not right changes nothing.
///
/// # Errors
/// The configuration is not right, its folder cannot be written, or its address cannot be listened on.
pub fn run(glass: PathBuf, read: impl Fn() -> Result<Config>) -> Result<()> {
    let mut config = read()?;
    let (ends, reloads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ends.clone()).context("cannot watch for signals")?;
    }
    signal_hook::flag::register(SIGHUP, reloads.clone()).context("cannot watch for signals")?;
    let unusable = || format!("cannot use the folder {}: give another with --folder", config.folder.display());
    std::fs::create_dir_all(&config.folder).with_context(unusable)?;
    private(&config.folder).with_context(unusable)?;
    // Kept until the end.
    let lock = File::create(config.folder.join("lock")).with_context(unusable)?;
    if lock.try_lock().is_err() {
        bail!("another agent has the folder {}: give one of its own with --folder", config.folder.display());
    }
    let segments = Segments::open(&config.folder).with_context(unusable)?;
    let mut watch = Watch::new(Glass(glass.clone()), config.folder.join("work")).with_context(unusable)?;
    let state = Arc::new(State::default());
    state.lock().kept = (segments.bytes(), segments.all().count());
    let segments = Arc::new(Mutex::new(segments));
    let page_folder = config.folder.join("pages");
    let address = server::start(config.listen, Glass(glass.clone()), page_folder, segments.clone(), state.clone())?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim_end().to_owned();
    let mut keeper = Keeper { glass: Glass(glass), segments, sinks: Vec::new(), state: state.clone(), host };
    keeper.set_sinks(&config)?;
    eprintln!("glass agent: recording VMs at {} Hz; http://{address}/ shows them", config.rate_hz);
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        if reloads.swap(false, Ordering::Relaxed) {
            config = keeper.reload(config, &read);
            watch.inspect_all();
        }
        for finished in watch.round(&config, &state) {
            keeper.keep(&config, finished);
        }
        std::thread::sleep(ROUND.saturating_sub(begun.elapsed()));
    }
    eprintln!("glass agent: ending");
    for finished in watch.stop(&config, &state) {
        keeper.keep(&config, finished);
    }
    keeper.sinks.into_iter().for_each(Sink::stop);
    Ok(())
}

/// Recordings are for the user of the agent alone.
fn private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
}

impl Keeper {
    /// Has the engines of a configuration, and ends those that it does not have.
    fn set_sinks(&mut self, config: &Config) -> Result<()> {
        let old = std::mem::take(&mut self.sinks);
        let (kept, gone): (Vec<Sink>, Vec<Sink>) =
            old.into_iter().partition(|sink| config.sink.contains(sink.config()));
        gone.into_iter().for_each(Sink::stop);
        self.sinks = kept;
        let bytes_max = config.spool_mib << 20;
        for wanted in &config.sink {
            if !self.sinks.iter().any(|sink| sink.config() == wanted) {
                let sink = Sink::start(wanted.clone(), &config.folder, bytes_max, Pace::default(), self.state.clone())?;
                self.sinks.push(sink);
            }
        }
        self.state.lock().sinks.retain(|name, _| config.sink.iter().any(|sink| sink.name() == *name));
        Ok(())
    }

    /// The configuration from now on.
    fn reload(&mut self, old: Config, read: &impl Fn() -> Result<Config>) -> Config {
        let new = match read() {
            Ok(new) => new,
            Err(error) => {
                self.state.remark(&format!("the configuration stays as it was: {error:#}"));
                return old;
            }
        };
        if (&new.folder, new.listen) != (&old.folder, old.listen) {
            self.state.remark("folder and listen stay as they were until the agent is started again");
        }
        let new = Config { folder: old.folder.clone(), listen: old.listen, ..new };
        if let Err(error) = self.set_sinks(&new) {
            self.state.remark(&format!("an engine cannot be used: {error:#}"));
        }
        self.state.remark("the configuration was read again");
        new
    }

    /// Counts, sends and keeps a recording.
    fn keep(&mut self, config: &Config, finished: Finished) {
        let Finished { file, segment, info, name, gap, cpu } = finished;
        {
            let counts = &mut self.state.lock().counts;
            counts.segments += 1;
            counts.samples_expected += info.cost.samples_expected;
            counts.samples_lost += info.cost.samples_lost;
            counts.recorder_cpu_ns += cpu.as_nanos() as u64;
            counts.pause_ns += info.cost.pause.sum_ns;
            counts.recorded_ns += info.duration_ns;
            counts.gap_ns += gap.as_nanos() as u64;
        }
        let has_names = config.process_names == Names::Engines;
        for sink in &self.sinks {
            let labels = sink.config().all_labels(&self.host, &name);
            let sent = match self.glass.export(&file, &info, sink.config().kind, has_names, &labels) {
                // Of a VM that was idle there is nothing to be sent.
                Ok(None) => Ok(()),
                Ok(Some(export)) => sink.add(&labels, &export, &self.state),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                self.state.remark(&format!("a recording of {name} is not sent to {}: {error:#}", sink.config().url));
            }
        }
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        match segments.add(&file, segment, config.keep_mib << 20) {
            Ok(removed) => {
                let mut known = self.state.lock();
                known.counts.segments_removed += removed;
                known.kept = (segments.bytes(), segments.all().count());
            }
            Err(error) => {
                let _ = std::fs::remove_file(&file);
                self.state.remark(&format!("a recording of {name} is lost: {error}"));
            }
        }
    }
}
