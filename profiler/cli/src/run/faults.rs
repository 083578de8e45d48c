//! What `glass run --from SNAPSHOT --faults` records: the page faults of a copy, from its first instruction to its end.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use glass_profiler_core::model::PAGE_FAULTS;
use glass_profiler_guests::backends::page_faults::PageFaults;
use glass_profiler_session::target::origin;
use glass_profiler_session::{Session, Sources, Wish};

use super::own;
use crate::record::output::{self, Output};
use crate::record::progress;

/// Between two checks whether the VMM has connected, or has ended.
const ROUND: Duration = Duration::from_millis(2);

/// A recording that will begin with the copy.
pub(super) struct Faults {
    output: Output,
    path: PathBuf,
    listener: UnixListener,
}

impl Faults {
    /// Listens in `folder`, and prepares the file `path`.
    pub(super) fn prepare(path: &Path, folder: &Path) -> Result<Faults> {
        let output = Output::prepare(path)?;
        let listener = UnixListener::bind(own::faults(folder)).context("cannot listen for page faults")?;
        listener.set_nonblocking(true).context("cannot listen for page faults")?;
        Ok(Faults { output, path: path.to_owned(), listener })
    }

    /// Records until the copy in `child`, a VM of this name that runs `image`, ends.
    pub(super) fn run(self, child: &mut Child, name: &str, image: &Path) -> Result<ExitStatus> {
        let recorded = self.record(child, name, image);
        if recorded.is_err() {
            // Whatever went wrong, it was started by us.
            let _ = child.kill();
        }
        let status = child.wait().context("cannot wait for the VMM")?;
        recorded.map(|()| status)
    }

    fn record(self, child: &mut Child, name: &str, image: &Path) -> Result<()> {
        // Its message is on the way.
        let Some(stream) = accept(&self.listener, child)? else { return Ok(()) };
        let mut source = PageFaults::new(stream, child.id(), name, image)?;
        let origin = origin(0, format!("{name} (a copy)"), PAGE_FAULTS, image.display().to_string());
        let session = Session::announce(Sources { samples: Some(&mut source), trace: None, guest: None })?;
        let file = self.output.into_recording(session.clocks(), &origin, output::host_files())?;
        let ended = session.start(file)?.run(None, |_| Wish::Continue);
        let (written, outcome) = ended.finish().with_context(|| output::cannot_go_on(&self.path))?;
        progress::written(&self.path, outcome.status.elapsed);
        progress::page_faults(&written);
        outcome.result()?;
        Ok(())
    }
}

/// The connection of the VMM; `None` if it has ended before.
fn accept(listener: &UnixListener, child: &mut Child) -> Result<Option<UnixStream>> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("cannot receive page faults")?;
                return Ok(Some(stream));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => bail!("cannot receive page faults: {error}"),
        }
        if child.try_wait().context("cannot wait for the VMM")?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(ROUND);
    }
}
