//! Reading the names of programs beside the screen: a large file takes seconds.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result};
use glass_profiler_core::budget::Budget;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::images::{NamedImage, Names};

/// The way to the thread that reads names.
pub(super) struct NameReader {
    wanted: Sender<(u32, NamedImage)>,
    read: Receiver<(u32, Result<Names, String>)>,
    pending: HashSet<u32>,
    ready: HashMap<u32, Result<Names, String>>,
    /// What reading them may cost.
    pub(super) budget: Budget,
}

impl NameReader {
    /// Starts the thread. It ends when this is dropped, after what it is just reading.
    pub(super) fn start(mut files: Box<dyn FileSource + Send>) -> Result<NameReader> {
        let (wanted, requests) = channel::<(u32, NamedImage)>();
        let (results, read) = channel();
        let budget = files.budget();
        let work = move || {
            for (index, image) in requests {
                let names = image.read(&mut *files);
                if results.send((index, names)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("names".to_owned()).spawn(work).context("cannot start a thread")?;
        Ok(NameReader { wanted, read, pending: HashSet::new(), ready: HashMap::new(), budget })
    }

    /// The names of an image; `None` while they are being read.
    pub(super) fn load(&mut self, index: u32, images: &[NamedImage]) -> Option<Result<Names, String>> {
        for (index, names) in self.read.try_iter() {
            self.pending.remove(&index);
            self.ready.insert(index, names);
        }
        if let Some(names) = self.ready.remove(&index) {
            return Some(names);
        }
        let image = images.get(index as usize)?;
        if self.pending.insert(index) {
            // The thread ends only if it panicked, which was reported then.
            let _ = self.wanted.send((index, image.clone()));
        }
        None
    }
}
