//! Files of the operator that are read again when they change.

use crate::limits::RELOAD_PERIOD;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use glasshouse::{Buf, Clock, File, FileError, Files, Metadata, Open};

/// Some files, and what was known of them when they were read last.
pub(crate) struct Reload<F> {
    files: F,
    paths: Vec<String>,
    seen: Vec<Option<Metadata>>,
}

impl<F: Files> Reload<F> {
    /// Call it before the files are read for the first time: what changes meanwhile is read again.
    pub(crate) async fn new(files: F, paths: &[&str]) -> Reload<F> {
        let paths = paths.iter().map(|path| String::from(*path)).collect();
        let mut reload = Reload { files, paths, seen: Vec::new() };
        reload.seen = reload.now().await;
        reload
    }

    pub(crate) fn files(&self) -> &F {
        &self.files
    }

    /// Completes when one of the files has changed since it was read, or since this was called last.
    pub(crate) async fn changed(&mut self, clock: &impl Clock) {
        loop {
            clock.sleep(RELOAD_PERIOD).await;
            let now = self.now().await;
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }

    /// `None` of a file that is not there.
    async fn now(&self) -> Vec<Option<Metadata>> {
        let mut found = Vec::new();
        for path in &self.paths {
            found.push(self.files.metadata(path).await.ok());
        }
        found
    }
}

/// All of a file; the error is a sentence with its path.
pub(crate) async fn read_file(files: &impl Files, path: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
    let bytes = async {
        let file = files.open(path, Open::Read).await?;
        let bytes = file.metadata().await?.bytes;
        let buf = match bytes <= bytes_max {
            true => Buf::zeroed(bytes as usize).map_err(|_| FileError::OutOfMemory)?,
            false => return Ok(None),
        };
        let (count, buf) = file.read(0, buf).await;
        Ok(Some(buf[..count?].to_vec()))
    };
    let bytes = bytes.await.map_err(|error: FileError| format!("{path}: {error}"))?;
    bytes.ok_or_else(|| format!("{path} has more than {bytes_max} bytes"))
}
