//! How much the share of a function differs by itself: between samples, within a recording and between recordings of one side.
//!
//! A recording is cut into pieces of its time: samples that are close in time are not independent, so the pieces differ by
//! more than a count of independent samples would. Several recordings a side show how much runs differ. A variance of a few
//! recordings is uncertain: it is combined with what the samples alone lead to expect, enlarged by what the recordings of
//! these programs need on average (Smyth, Linear Models and Empirical Bayes Methods, 2004, section 3).

use std::collections::HashMap;

use glass_profiler_core::guest_processes::{PROCESS, without_numbers};
use glass_profiler_core::model::Profile;
use glass_profiler_core::names::printable;
use glass_profiler_core::tree::Function;
use glass_profiler_core::view::Layer;

/// Standard errors below which a change is called noise, and from which on it is called clear. By
/// chance alone, one of 22 functions exceeds the first and one of 2,150 the second.
pub(crate) const NOISE_ERRORS: f64 = 2.0;
pub(crate) const CLEAR_ERRORS: f64 = 3.5;
/// Pieces of a recording.
const PIECES: usize = 10;
/// The weight of the expected variance, in recordings.
const PRIOR: f64 = 4.0;
/// Functions with fewer samples say nothing about how much recordings differ.
const SAMPLES_MIN: u64 = 20;

/// A function by its name and image, and by its layer if it is the host's.
type Key = (String, String, Option<Layer>);

/// The errors of shares, relative to those of independent samples.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    of: HashMap<Key, [f64; 2]>,
    /// How many squared deviations an error rests on.
    degrees: f64,
    /// There are several recordings on a side.
    has_runs: bool,
}

/// Counts of one function, or of all: own samples and all, by recording and piece.
#[derive(Debug, Clone, Default)]
struct Counts([Vec<[u64; PIECES]>; 2]);

impl Counts {
    fn new(recordings: usize) -> Counts {
        Counts([vec![[0; PIECES]; recordings], vec![[0; PIECES]; recordings]])
    }
}

impl Errors {
    /// Of the recordings of both sides.
    pub fn of(sides: [&[&Profile]; 2]) -> Errors {
        let profiles: Vec<&Profile> = sides.concat();
        let mut all = vec![[0; PIECES]; profiles.len()];
        let mut functions: HashMap<Key, Counts> = HashMap::new();
        for (recording, profile) in profiles.iter().enumerate() {
            count(profile, recording, profiles.len(), &mut functions, &mut all[recording]);
        }
        let has_runs = sides.iter().any(|side| side.len() > 1);
        let recordings = sides.map(<[&Profile]>::len);
        let degrees = match has_runs {
            true => PRIOR + (recordings[0] + recordings[1]).saturating_sub(2) as f64,
            false => 2.0 * (PIECES - 1) as f64,
        };
        let shares = |counts: &Counts, kind: usize| Shares::of(&counts.0[kind], &all, recordings[0]);
        let mut excess: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for counts in functions.values() {
            for (kind, excess) in excess.iter_mut().enumerate() {
                let shares = shares(counts, kind);
                if shares.samples >= SAMPLES_MIN && shares.within > 0.0 {
                    excess.push(shares.between / shares.within);
                }
            }
        }
        let excess = excess.map(|mut values| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(1.0).max(1.0)
        });
        let of = functions.iter().map(|(key, counts)| {
            let factors = [0, 1].map(|kind| shares(counts, kind).factor(recordings, has_runs, excess[kind]));
            (key.clone(), factors)
        });
        Errors { of: of.collect(), degrees, has_runs }
    }

    /// Whether variance between runs is known.
    pub fn has_runs(&self) -> bool {
        self.has_runs
    }

    /// By how much the error of a function's own share, and of its share with callees, is larger than that of independent samples.
    pub fn factors(&self, function: &Function) -> [f64; 2] {
        let key = (function.name.clone(), function.image.clone(), function.layer);
        self.of.get(&key).copied().unwrap_or([1.0, 1.0])
    }

    /// How many errors of a function's share, which are its [factor](Errors::factors) times those of independent samples, a change must exceed
    /// to be more than noise, and to be clear.
    pub fn limits(&self) -> [f64; 2] {
        [NOISE_ERRORS, CLEAR_ERRORS].map(|errors| self.quantile(errors))
    }

    /// The number of errors that is as unlikely as `errors` of a normal distribution: an error that is known from little is uncertain itself
    /// (Wallace, 1959).
    fn quantile(&self, errors: f64) -> f64 {
        if self.degrees <= 0.0 {
            return errors;
        }
        let scaled = errors * (8.0 * self.degrees + 3.0) / (8.0 * self.degrees + 1.0);
        (self.degrees * ((scaled * scaled / self.degrees).exp() - 1.0)).sqrt()
    }
}

/// Adds the samples of a recording in which code ran: to its functions, and to `all`, by piece of its time.
fn count(
    profile: &Profile,
    recording: usize,
    recordings: usize,
    functions: &mut HashMap<Key, Counts>,
    all: &mut [u64; PIECES],
) {
    let mut by_stack: HashMap<u32, [u64; PIECES]> = HashMap::new();
    let active = || profile.counted();
    let (first, last) =
        (active().map(|s| s.time_ns).min().unwrap_or(0), active().map(|s| s.time_ns).max().unwrap_or(0));
    let length = (last - first).saturating_add(1);
    for sample in active() {
        let piece = (u128::from(sample.time_ns - first) * PIECES as u128 / u128::from(length)) as usize;
        all[piece] += 1;
        by_stack.entry(sample.stack).or_default()[piece] += 1;
    }
    let mut numbers: HashMap<Key, usize> = HashMap::new();
    let mut keys: Vec<Key> = Vec::new();
    // Of code: the report's own entries are no functions.
    let of_frame: Vec<Option<usize>> = profile
        .frames
        .iter()
        .map(|frame| {
            let image = if frame.image.is_empty() { String::new() } else { printable(&frame.image) };
            let function = if image == PROCESS { without_numbers(&frame.function) } else { &frame.function };
            let key = (printable(function), image, frame.layer.filter(|layer| layer.is_host()));
            frame.entry.is_none().then(|| {
                *numbers.entry(key.clone()).or_insert_with(|| {
                    keys.push(key);
                    keys.len() - 1
                })
            })
        })
        .collect();
    let mut own: Vec<Option<Counts>> = vec![None; keys.len()];
    for (stack, pieces) in by_stack {
        let Some(stack) = profile.stacks.get(stack as usize) else { continue };
        let mut inside: Vec<usize> =
            stack.frames.iter().filter_map(|frame| of_frame.get(*frame as usize).copied().flatten()).collect();
        let innermost = inside.last().copied();
        inside.sort_unstable();
        inside.dedup();
        for function in inside {
            let counts = own[function].get_or_insert_with(|| Counts::new(1));
            for (piece, samples) in pieces.iter().enumerate() {
                counts.0[1][0][piece] += samples;
                if innermost == Some(function) {
                    counts.0[0][0][piece] += samples;
                }
            }
        }
    }
    for (key, counts) in keys.into_iter().zip(own) {
        let Some(counts) = counts else { continue };
        let all = functions.entry(key).or_insert_with(|| Counts::new(recordings));
        for kind in [0, 1] {
            all.0[kind][recording] = counts.0[kind][0];
        }
    }
}

/// The variances of one function's share.
struct Shares {
    /// Its samples in all recordings.
    samples: u64,
    /// The variance of one recording's share, on average: of independent samples, and as its pieces show it if that is more.
    independent: f64,
    within: f64,
    /// The same as the recordings of a side show it.
    between: f64,
}

impl Shares {
    /// `counts` and `all` are by recording; the first `of_a` are those of A.
    fn of(counts: &[[u64; PIECES]], all: &[[u64; PIECES]], of_a: usize) -> Shares {
        let sum = |pieces: &[u64; PIECES]| pieces.iter().sum::<u64>();
        let (samples, every) = (counts.iter().map(sum).sum::<u64>(), all.iter().map(sum).sum::<u64>());
        let common = samples as f64 / every.max(1) as f64;
        let (mut independent, mut within, mut shares) = (0.0, 0.0, Vec::new());
        for (counts, all) in counts.iter().zip(all) {
            let (own, of_all) = (sum(counts) as f64, sum(all).max(1) as f64);
            let share = own / of_all;
            let by_chance = common * (1.0 - common) / of_all;
            let squares =
                counts.iter().zip(all).map(|(own, all)| (*own as f64 - share * *all as f64).powi(2)).sum::<f64>();
            let by_pieces = PIECES as f64 / (PIECES - 1) as f64 * squares / (of_all * of_all);
            independent += by_chance;
            within += by_pieces.max(by_chance);
            shares.push(share);
        }
        let recordings = counts.len().max(1) as f64;
        let mut squares = 0.0;
        for side in [&shares[..of_a.min(shares.len())], &shares[of_a.min(shares.len())..]] {
            let mean = side.iter().sum::<f64>() / side.len().max(1) as f64;
            squares += side.iter().map(|share| (share - mean).powi(2)).sum::<f64>();
        }
        let degrees = counts.len().saturating_sub(2).max(1) as f64;
        Shares {
            samples,
            independent: independent / recordings,
            within: within / recordings,
            between: squares / degrees,
        }
    }

    /// By how much the error of the difference is larger than that of independent samples. `excess` is by how much recordings differ more than
    /// their samples explain, for the functions in the middle.
    fn factor(&self, recordings: [usize; 2], has_runs: bool, excess: f64) -> f64 {
        let expected = self.within * excess;
        let variance = match has_runs {
            true => {
                let degrees = (recordings[0] + recordings[1]).saturating_sub(2) as f64;
                (PRIOR * expected + degrees * self.between) / (PRIOR + degrees)
            }
            false => self.within,
        };
        if self.independent > 0.0 { (variance / self.independent).sqrt().max(1.0) } else { 1.0 }
    }
}
