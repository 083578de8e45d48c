//! Cases that are led by coverage: an input that reaches code that no other has reached is kept, and changed further.

use std::collections::VecDeque;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fastrand::Rng;

use crate::engine;
use crate::targets::Target;

/// Inputs that are kept of a target, and their bytes in total.
const INPUTS_MAX: usize = 20_000;
const BYTES_MAX: usize = 64 << 20;

/// Copies the counters of all edges, and sets them to 0.
pub type Take = fn(&mut Vec<u8>);

/// How often each edge was passed in one case, in powers of two, over all cases.
#[derive(Debug, Default)]
struct Seen {
    steps: Vec<u8>,
    edges: usize,
}

impl Seen {
    /// Adds the counters of a case; returns whether any is new.
    fn add_all(&mut self, counts: &[u8]) -> bool {
        const MANY: usize = 32;
        let mut is_new = false;
        for (group, counts) in counts.chunks(MANY).enumerate() {
            // Most edges are not passed: they are skipped by one comparison of many bytes.
            if *counts == [0; MANY][..counts.len()] {
                continue;
            }
            for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                is_new |= self.add(group * MANY + index, *count);
            }
        }
        is_new
    }

    /// Adds one counter; returns whether no case before had as many.
    fn add(&mut self, edge: usize, count: u8) -> bool {
        if self.steps.len() <= edge {
            self.steps.resize(edge + 1, 0);
        }
        let (steps, bit) = (&mut self.steps[edge], 1u8 << count.max(1).ilog2());
        self.edges += usize::from(*steps == 0);
        let is_new = *steps & bit == 0;
        *steps |= bit;
        is_new
    }
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// The target's own corpus.
    Own,
    /// A file of a run before.
    Kept(PathBuf),
    /// A changed input.
    Changed,
}

/// The inputs of one target that reach different code, and the source of further ones.
pub struct Guided {
    target: &'static dyn Target,
    take: Take,
    rng: Rng,
    folder: PathBuf,
    /// Inputs that are run first: those of the target, then those that were kept before.
    waiting: VecDeque<(Vec<u8>, Source)>,
    /// Those that are changed further; the target's own are always among them.
    inputs: Vec<Vec<u8>>,
    bytes: usize,
    seen: Seen,
    counts: Vec<u8>,
    /// Of the input that is being run.
    source: Source,
}

/// What the cases of a target have reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Edges of the code.
    pub edges: usize,
    /// Inputs that are kept.
    pub inputs: usize,
    /// Whether there is no room for more.
    pub is_full: bool,
}

impl Guided {
    /// Reads the inputs that were kept in `folder`, which is made if it is not there.
    pub fn new(target: &'static dyn Target, seed: u64, folder: &Path, take: Take) -> Result<Guided> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut kept = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?.take(INPUTS_MAX)
        {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            let mut bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            bytes.truncate(target.bytes_max());
            kept.push((bytes, Source::Kept(path)));
        }
        // Of two inputs that reach the same code, the shorter one stays.
        kept.sort_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)));
        let inputs = target.corpus();
        assert!(!inputs.is_empty(), "{} has no corpus", target.name());
        let own = inputs.clone().into_iter().map(|bytes| (bytes, Source::Own));
        Ok(Guided {
            target,
            take,
            rng: Rng::with_seed(seed),
            folder: folder.to_owned(),
            waiting: own.chain(kept).collect(),
            inputs,
            bytes: 0,
            seen: Seen::default(),
            counts: Vec::new(),
            source: Source::Own,
        })
    }

    /// The next input to run. The counters have to be 0 when it runs.
    pub fn next_input(&mut self) -> Vec<u8> {
        if let Some((input, source)) = self.waiting.pop_front() {
            self.source = source;
            return input;
        }
        self.source = Source::Changed;
        // The newest inputs reach what has been changed least.
        let count = self.inputs.len();
        let first = if self.rng.bool() { count - count.div_ceil(3) } else { 0 };
        let start = self.inputs[self.rng.usize(first..count)].clone();
        engine::changed(self.target, start, &self.inputs, &mut self.rng)
    }

    /// Sets the counters to 0, right before an input runs.
    pub fn clear(&mut self) {
        (self.take)(&mut self.counts);
    }

    /// Keeps an input that was run without a failure if it reached something new; one that was kept before and does not is removed.
    pub fn learn(&mut self, input: Vec<u8>) -> Result<()> {
        (self.take)(&mut self.counts);
        let is_new = self.seen.add_all(&self.counts);
        let is_kept = is_new && !self.is_full();
        match &self.source {
            Source::Own => return Ok(()),
            Source::Kept(_) if is_kept => {}
            Source::Kept(path) => {
                return fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()));
            }
            Source::Changed if !is_kept => return Ok(()),
            Source::Changed => {
                let mut hasher = DefaultHasher::new();
                input.hash(&mut hasher);
                let path = self.folder.join(format!("{:016x}", hasher.finish()));
                fs::write(&path, &input).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        self.bytes += input.len();
        self.inputs.push(input);
        Ok(())
    }

    /// What was reached so far.
    pub fn reached(&self) -> Reached {
        Reached { edges: self.seen.edges, inputs: self.inputs.len(), is_full: self.is_full() }
    }

    fn is_full(&self) -> bool {
        self.inputs.len() >= INPUTS_MAX || self.bytes >= BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static COUNTS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// Fails if its input starts with a word, which it compares byte by byte, each on an edge of its own.
    struct Door;

    const WORD: &[u8] = b"open";

    impl Target for Door {
        fn name(&self) -> &'static str {
            "door"
        }

        fn corpus(&self) -> Vec<Vec<u8>> {
            vec![b"----".to_vec()]
        }

        fn change(&self, bytes: &mut Vec<u8>, _: &[Vec<u8>], rng: &mut Rng) {
            let index = rng.usize(..bytes.len());
            bytes[index] = rng.u8(..);
        }

        fn run(&self, input: &[u8]) {
            let right = input.iter().zip(WORD).take_while(|(a, b)| a == b).count();
            COUNTS.with_borrow_mut(|counts| counts.extend((0..=right).map(|_| 1)));
        }
    }

    fn take(copy: &mut Vec<u8>) {
        COUNTS.with_borrow_mut(|counts| *copy = std::mem::take(counts));
    }

    /// Cases until the input starts with the word; `None` if there are too many.
    fn cases_to_open(folder: &Path, is_led: bool) -> Option<usize> {
        let mut guided = Guided::new(&Door, 1, folder, take).unwrap();
        for case in 1..200_000 {
            let input = guided.next_input();
            if input.starts_with(WORD) {
                return Some(case);
            }
            if is_led {
                Door.run(&input);
            }
            guided.learn(input).unwrap();
        }
        None
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("glass-fuzz-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn coverage_leads_to_what_blind_changes_do_not_reach() {
        let (led, blind) = (folder("led"), folder("blind"));
        assert!(cases_to_open(&led, true).is_some());
        assert_eq!(cases_to_open(&blind, false), None);
        // What was kept is where the next run starts.
        let again = cases_to_open(&led, true).unwrap();
        assert!(again < 20_000, "{again}");
        [led, blind].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn an_input_that_reaches_nothing_new_is_removed() {
        let folder = folder("kept");
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("a", "op--"), ("b", "op----"), ("c", "ope-")] {
            fs::write(folder.join(name), text).unwrap();
        }
        let mut guided = Guided::new(&Door, 1, &folder, take).unwrap();
        for _ in 0..4 {
            let input = guided.next_input();
            Door.run(&input);
            guided.learn(input).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(guided.reached(), Reached { edges: 4, inputs: 3, is_full: false });
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn more_passes_of_an_edge_are_new_by_powers_of_two() {
        let mut seen = Seen::default();
        let new: Vec<bool> = [1, 1, 2, 3, 4, 200, 255].map(|count| seen.add(5, count)).to_vec();
        assert_eq!(new, [true, false, true, false, true, true, false]);
        assert_eq!(seen.edges, 1);
    }
}
