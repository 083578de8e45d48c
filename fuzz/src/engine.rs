//! Makes a case from a seed and a number, runs it and judges the result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

use crate::targets::Target;

/// Changes of one input at most; most have few.
const CHANGES_MAX: u32 = 12;
/// CPU time that a parser may take for one input: on a busy machine the wall-clock time is longer.
pub const CASE_TIME_MAX: Duration = Duration::from_secs(1);

/// The failure of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The message, in one line.
    pub what: String,
    /// The location, in our code or in a library: failures at one location are one bug.
    pub place: String,
}

/// Makes the cases of a target.
pub struct Plan {
    target: &'static dyn Target,
    corpus: Vec<Vec<u8>>,
    seed: u64,
}

/// The last panic's message and location, recorded by the hook.
static LAST_PANIC: Mutex<Option<Failure>> = Mutex::new(None);

impl Plan {
    /// Makes the corpus, which may take a second, with more valid inputs in front of it.
    pub fn new(target: &'static dyn Target, seed: u64, more: Vec<Vec<u8>>) -> Plan {
        let corpus = [more, target.corpus()].concat();
        assert!(!corpus.is_empty(), "{} has no corpus", target.name());
        Plan { target, corpus, seed }
    }

    /// The bytes of a case: always the same. The first cases are the corpus itself, which must be parsed without a failure.
    pub fn input(&self, number: u64) -> Vec<u8> {
        if let Some(valid) = usize::try_from(number).ok().and_then(|index| self.corpus.get(index)) {
            return valid.clone();
        }
        let mut rng = Rng::with_seed(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bytes = self.corpus[rng.usize(..self.corpus.len())].clone();
        changed(self.target, bytes, &self.corpus, &mut rng)
    }
}

/// An input with some changes. Half of the inputs have one, a quarter two: almost valid inputs reach the deepest code.
pub fn changed(target: &dyn Target, mut bytes: Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    for _ in 0..(1 + rng.u64(..).trailing_zeros()).min(CHANGES_MAX) {
        target.change(&mut bytes, corpus, rng);
    }
    bytes.truncate(target.bytes_max());
    bytes
}

/// Records panics instead of printing them.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let what = info.payload_as_str().unwrap_or("panicked").replace('\n', " ");
        let place = info.location().map_or("?".to_owned(), |place| format!("{}:{}", place.file(), place.line()));
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = Some(Failure { what, place });
        }
    }));
}

/// Runs a target on an input; returns a failure for a panic or for more CPU time than `time_max`.
pub fn run(target: &dyn Target, input: &[u8], time_max: Duration) -> Result<(), Failure> {
    let before = cpu_time(ClockId::ThreadCPUTime);
    let outcome = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    let took = cpu_time(ClockId::ThreadCPUTime).saturating_sub(before);
    if outcome.is_err() {
        let last = LAST_PANIC.lock().ok().and_then(|mut last| last.take());
        return Err(last.unwrap_or(Failure { what: "panicked".to_owned(), place: "?".to_owned() }));
    }
    if took > time_max {
        return Err(Failure { what: format!("took {} ms of CPU time", took.as_millis()), place: "time".to_owned() });
    }
    Ok(())
}

/// Reads a clock.
pub fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
