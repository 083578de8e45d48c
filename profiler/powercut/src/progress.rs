//! What was tested, in a file, so that a later run continues: a line for the log and the seed, and one for each state.

use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// The longest file that is read: some millions of states.
const BYTES_MAX: u64 = 256 << 20;

/// A state that was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub number: u64,
    /// Of its contents.
    pub hash: u64,
    /// Whether something was lost.
    pub is_lost: bool,
}

/// Where states that were tested are kept.
pub trait Kept {
    /// The hash of a state that needs no test.
    fn known(&self, number: u64) -> Option<u64>;

    /// Adds one.
    ///
    /// # Errors
    /// It cannot be written.
    fn add(&mut self, done: &Done) -> Result<()>;
}

/// Nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Kept for Nowhere {
    fn known(&self, _: u64) -> Option<u64> {
        None
    }

    fn add(&mut self, _: &Done) -> Result<()> {
        Ok(())
    }
}

/// A file.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    known: HashMap<u64, u64>,
}

impl StateFile {
    /// Opens or makes a file for what `subject`, one line, states: the log, the seed, and all that chooses states.
    ///
    /// # Errors
    /// It is of another subject, or no such file.
    pub fn open(path: &Path, subject: &str) -> Result<StateFile> {
        let cannot = || format!("cannot open {}", path.display());
        let mut options = File::options();
        let mut file = match options.read(true).append(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut file = options.create_new(true).open(path).with_context(cannot)?;
                writeln!(file, "{subject}").with_context(cannot)?;
                file
            }
            file => file.with_context(cannot)?,
        };
        let mut text = String::new();
        file.rewind().with_context(cannot)?;
        (&file).take(BYTES_MAX).read_to_string(&mut text).with_context(cannot)?;
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        ensure!(
            first == subject,
            "{} is of another log, image, seed or number of states: name another file, or remove it",
            path.display()
        );
        // A line that was being written when the run ended.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).with_context(cannot)?;
        }
        let known = parse(rest).with_context(|| format!("{} is no file of states", path.display()))?;
        Ok(StateFile { file, path: path.to_owned(), known })
    }

    /// How many states it has that need no test.
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

fn parse(text: &str) -> Result<HashMap<u64, u64>> {
    let mut known = HashMap::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, hash, verdict] = words[..] else { bail!("`{line}` is no state") };
        let (number, hash) = (number.parse::<u64>(), u64::from_str_radix(hash, 16));
        let (Ok(number), Ok(hash)) = (number, hash) else { bail!("`{line}` is no state") };
        // One that lost something is tested again, to be reported again.
        match verdict {
            "kept" => _ = known.insert(number, hash),
            "lost" => {}
            _ => bail!("`{line}` is no state"),
        }
    }
    Ok(known)
}

impl Kept for StateFile {
    fn known(&self, number: u64) -> Option<u64> {
        self.known.get(&number).copied()
    }

    fn add(&mut self, done: &Done) -> Result<()> {
        let verdict = if done.is_lost { "lost" } else { "kept" };
        let line = format!("{} {:016x} {verdict}\n", done.number, done.hash);
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }
}
