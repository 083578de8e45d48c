//! Two recordings side by side: whose share of the time grew, whose shrank, and what of it may be chance.
//!
//! Both become one profile whose tracks are A and B, so one call tree has the nodes of both, and the
//! page of a difference is made of the same columns as any other. Shares are of samples: each
//! recording is 100 %, however long it took and at whatever rate.

use std::borrow::Cow;

use glass_profiler_core::guest::GuestKind;
use glass_profiler_core::guest_processes::{PROCESS, without_numbers};
use glass_profiler_core::model::{Frame, Profile, Sample, Stack, State, Track};

use super::variance::{CLEAR_ERRORS, Errors, NOISE_ERRORS};
use glass_profiler_core::format::{count, duration, percent};
use glass_profiler_core::names::printable;
use glass_profiler_core::tree::{Node, Tree};
use glass_profiler_core::view::View;

/// How sure it is that a share changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Recordings of the same thing would differ as much.
    Noise,
    /// One such change among many functions is to be expected by chance.
    Unsure,
    /// Chance does not explain it.
    Clear,
}

/// The change of a share from A to B.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// B's share less A's, in percent of each recording.
    pub points: f64,
    /// What `points` exceeds by chance once in 22 times, if both shares are the same in truth: two standard errors of independent samples, and
    /// more where these are not independent, or where runs differ.
    pub noise_points: f64,
    /// What follows from the two.
    pub verdict: Verdict,
}

/// Compares `a` of `all_a` samples with `b` of `all_b`: the test of two proportions with a common
/// variance (Snedecor and Cochran, Statistical Methods, section 7.11), of independent samples.
pub fn change(a: u64, all_a: u64, b: u64, all_b: u64) -> Change {
    change_with(a, all_a, b, all_b, [NOISE_ERRORS, CLEAR_ERRORS])
}

/// The same with other numbers of errors for noise and for what is clear.
fn change_with(a: u64, all_a: u64, b: u64, all_b: u64, [noise, clear]: [f64; 2]) -> Change {
    if all_a == 0 || all_b == 0 {
        return Change { points: 0.0, noise_points: 100.0, verdict: Verdict::Noise };
    }
    let share = |part: u64, all: u64| part as f64 / all as f64;
    let difference = share(b, all_b) - share(a, all_a);
    let common = (a as f64 + b as f64) / (all_a as f64 + all_b as f64);
    let error = (common * (1.0 - common) * (1.0 / all_a as f64 + 1.0 / all_b as f64)).sqrt();
    let verdict = match difference.abs() {
        size if size < noise * error || size == 0.0 => Verdict::Noise,
        size if size < clear * error => Verdict::Unsure,
        _ => Verdict::Clear,
    };
    Change { points: difference * 100.0, noise_points: noise * error * 100.0, verdict }
}

/// What one function cost in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionChange {
    /// Index into [`Tree::functions`] of [`Difference::tree`].
    pub function: usize,
    /// Own samples in A and in B.
    pub self_samples: [u64; 2],
    /// All samples in A and in B; a recursive function counts once for a sample.
    pub total_samples: [u64; 2],
}

/// Two recordings, counted together.
#[derive(Debug)]
pub struct Difference {
    /// The nodes of both; track 0 is A and track 1 is B.
    pub tree: Tree,
    /// Samples of A and of B in which code ran: the 100 % of each.
    pub running: [u64; 2],
    /// What these are called.
    pub words: &'static str,
    /// In order of the change of own samples, largest first.
    pub functions: Vec<FunctionChange>,
    /// How much shares differ by themselves.
    pub errors: Errors,
}

impl Difference {
    /// Counts the samples of both sides in which code ran, each of one recording or several. Of host and guest the profiles have what
    /// the views show that they are in; without one, the guest only.
    pub fn build(a: &[&Profile], b: &[&Profile]) -> Difference {
        let (a, b) = (in_views(a), in_views(b));
        let (a, b) = (refer(&a), refer(&b));
        let tree = Tree::build(&join(&a, &b));
        let running = [0, 1].map(|track| tree.tracks[track].states.active());
        let words = tree.counts().active_words();
        let mut functions: Vec<FunctionChange> = (0..tree.functions.len())
            .map(|function| FunctionChange { function, self_samples: [0, 0], total_samples: [0, 0] })
            .collect();
        for side in [0, 1] {
            for total in only_track(&tree, side).function_totals(&State::ACTIVE) {
                functions[total.function].self_samples[side] = total.self_samples;
                functions[total.function].total_samples[side] = total.total_samples;
            }
        }
        functions.retain(|function| function.total_samples != [0, 0]);
        let errors = Errors::of([&a, &b]);
        let mut difference = Difference { tree, running, words, functions: Vec::new(), errors };
        functions.sort_by(|a, b| {
            let size = |function: &FunctionChange| difference.own(function).points.abs();
            let total = |function: &FunctionChange| difference.total(function).points.abs();
            let name = |function: &FunctionChange| &difference.tree.functions[function.function].name;
            size(b).total_cmp(&size(a)).then(total(b).total_cmp(&total(a))).then_with(|| name(a).cmp(name(b)))
        });
        difference.functions = functions;
        difference
    }

    /// The change of a function's own share.
    pub fn own(&self, function: &FunctionChange) -> Change {
        self.change(function.function, function.self_samples, 0)
    }

    /// The change of a function's share with its callees.
    pub fn total(&self, function: &FunctionChange) -> Change {
        self.change(function.function, function.total_samples, 1)
    }

    fn change(&self, function: usize, [a, b]: [u64; 2], kind: usize) -> Change {
        let function = &self.tree.functions[function];
        let factor = self.errors.factors(function)[kind];
        let errors = self.errors.limits().map(|errors| errors * factor);
        change_with(a, self.running[0], b, self.running[1], errors)
    }

    /// What a change is called that chance alone does not explain.
    pub fn clear_word(&self) -> &'static str {
        if self.errors.has_runs() { "clear" } else { "beyond the error of sampling" }
    }

    /// Functions that occur in one recording only, and their own samples there.
    pub fn only_in(&self, side: usize) -> (usize, u64) {
        let only = self.functions.iter().filter(|function| function.total_samples[1 - side] == 0);
        only.fold((0, 0), |(functions, samples), function| (functions + 1, samples + function.self_samples[side]))
    }
}

/// Each profile in its view, the guest's if it is in none.
pub(crate) fn in_views<'a>(profiles: &[&'a Profile]) -> Vec<Cow<'a, Profile>> {
    profiles.iter().map(|profile| View::Guest.of(profile).profile).collect()
}

/// References to each.
pub(crate) fn refer<'a>(profiles: &'a [Cow<'_, Profile>]) -> Vec<&'a Profile> {
    profiles.iter().map(AsRef::as_ref).collect()
}

/// One profile with A's samples on track 0 and B's on track 1, all at one time.
pub(crate) fn join(a: &[&Profile], b: &[&Profile]) -> Profile {
    let mut joined = Profile {
        tracks: ["A", "B"].map(|name| Track { name: name.to_string(), ..Track::default() }).to_vec(),
        ..Profile::default()
    };
    let of_a = a.iter().map(|profile| (0, *profile));
    for (track, profile) in of_a.chain(b.iter().map(|profile| (1, *profile))) {
        let first_frame = joined.frames.len() as u32;
        let first_stack = joined.stacks.len() as u32;
        // What is missing from its own recording must not be found in the other one.
        let moved = |index: u32, count: usize, first: u32| match (index as usize) < count {
            true => index.saturating_add(first),
            false => u32::MAX,
        };
        // A recording without a host has no layers: the guest's functions are the same in both.
        let of_host = |frame: &Frame| frame.layer.filter(|layer| layer.is_host());
        joined.frames.extend(profile.frames.iter().map(|frame| {
            let is_process = frame.image == PROCESS;
            let function = if is_process { without_numbers(&frame.function) } else { &frame.function };
            Frame { layer: of_host(frame), function: function.to_owned(), ..frame.clone() }
        }));
        joined.stacks.extend(profile.stacks.iter().map(|stack| Stack {
            frames: stack.frames.iter().map(|frame| moved(*frame, profile.frames.len(), first_frame)).collect(),
            end: stack.end,
        }));
        let left_out = profile.left_out();
        let counts = |sample: &&Sample| !left_out.get(sample.track as usize).copied().unwrap_or(false);
        joined.samples.extend(profile.samples.iter().filter(counts).map(|sample| Sample {
            time_ns: 0,
            track,
            stack: moved(sample.stack, profile.stacks.len(), first_stack),
            // Their tables are not joined.
            thread: None,
            segments: None,
            ..*sample
        }));
    }
    joined
}

/// The same nodes with the samples of one track.
fn only_track(tree: &Tree, track: usize) -> Tree {
    let mut nodes: Vec<Node> =
        tree.nodes.iter().map(|node| Node { self_samples: 0, total_samples: 0, ..*node }).collect();
    for own in tree.own.iter().filter(|own| own.track == track) {
        nodes[own.node].self_samples += own.samples;
    }
    for index in (0..nodes.len()).rev() {
        nodes[index].total_samples += nodes[index].self_samples;
        let Node { parent, total_samples, .. } = nodes[index];
        if index > 0 {
            nodes[parent].total_samples += total_samples;
        }
    }
    Tree { functions: tree.functions.clone(), nodes, ..Tree::default() }
}

/// The guest of a recording; of a process without its process ID, which differs each time.
pub(crate) fn guest(profile: &Profile) -> String {
    let process = profile.guests.first().filter(|guest| matches!(guest.kind, GuestKind::Process { .. }));
    let name = process.map_or(profile.origin.guest.as_str(), |guest| guest.name.as_str());
    if name.is_empty() { "unnamed guest".to_string() } else { printable(name) }
}

/// What makes the two sides hard to compare, one sentence each.
pub(crate) fn remarks(all_a: &[&Profile], all_b: &[&Profile]) -> Vec<String> {
    let (Some(a), Some(b)) = (all_a.first(), all_b.first()) else { return Vec::new() };
    let mut remarks = Vec::new();
    if all_a.len().max(all_b.len()) == 1 {
        remarks.push(
            "There is one recording a side: how much runs of the same program differ is not known, so a change that the error of sampling does not explain may be one of these. Several recordings a side show it: glass diff A1 A2 -- B1 B2.".to_string(),
        );
    }
    let mut differ = |what: &str, a: String, b: String, so: &str| {
        if a != b {
            remarks.push(format!("{what}: A {a}, B {b}. {so}"));
        }
    };
    let named = |text: &str| if text.is_empty() { "unnamed".to_string() } else { printable(text) };
    let rate = |profile: &Profile| format!("{} Hz", count(profile.origin.rate_hz.into()));
    differ(
        "The guests differ",
        guest(a),
        guest(b),
        "Functions are matched by name and image; what only one has is all gain or loss.",
    );
    differ(
        "The rates differ",
        rate(a),
        rate(b),
        "Shares are of samples, so this moves no share; the recording with fewer samples has more noise.",
    );
    differ(
        "The recordings were made in different ways",
        named(&a.origin.backend),
        named(&b.origin.backend),
        "Ways to sample differ in what they see while a guest is idle or in its kernel.",
    );
    let mut named: Vec<(String, &Profile)> = Vec::new();
    for (side, profiles) in [("A", all_a), ("B", all_b)] {
        let name = |number: usize| if profiles.len() == 1 { side.to_string() } else { format!("{side}{number}") };
        named.extend(profiles.iter().zip(1..).map(|(profile, number)| (name(number), *profile)));
    }
    for (name, profile) in named {
        let cost = &profile.cost;
        if u128::from(cost.samples_lost) * 20 > cost.samples_wanted.into() {
            let lost = percent(cost.samples_lost, cost.samples_wanted);
            remarks.push(format!("{name} lost {lost} of its samples: what was lost may differ from what was not."));
        }
        remarks.extend(profile.only.iter().map(|only| format!("{name}: {}", only.sentence())));
        remarks.extend(profile.warnings.iter().map(|warning| format!("{name}: {}", printable(warning))));
    }
    remarks
}

/// How long a recording took, and at which rate.
pub(crate) fn length(profile: &Profile) -> String {
    format!("{} at {} Hz", duration(profile.origin.duration_ns), count(profile.origin.rate_hz.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand: 100 of 1,000 against 150 of 1,000 has a common share of 0.125 and an error of
    /// sqrt(0.125 * 0.875 * 0.002) = 0.01479.
    #[test]
    fn a_change_is_judged_by_its_error() {
        let judged = change(100, 1_000, 150, 1_000);
        assert!((judged.points - 5.0).abs() < 1e-9, "{judged:?}");
        assert!((judged.noise_points - 2.958).abs() < 1e-3, "{judged:?}");
        assert_eq!(judged.verdict, Verdict::Unsure);
        assert_eq!(change(100, 1_000, 160, 1_000).verdict, Verdict::Clear);
        assert_eq!(change(160, 1_000, 100, 1_000).verdict, Verdict::Clear);
        assert_eq!(change(100, 1_000, 120, 1_000).verdict, Verdict::Noise);
    }

    #[test]
    fn nothing_is_no_change() {
        for (a, all_a, b, all_b) in [(0, 0, 0, 0), (0, 0, 5, 10), (0, 10, 0, 10), (10, 10, 10, 10), (5, 10, 50, 100)] {
            let judged = change(a, all_a, b, all_b);
            assert_eq!((judged.points, judged.verdict), (0.0, Verdict::Noise), "{a} {all_a} {b} {all_b}");
        }
        assert_eq!(change(0, 1_000, 1_000, 1_000).verdict, Verdict::Clear);
    }

    /// The verdict of two recordings of the same thing is noise for 95 of 100 functions.
    #[test]
    fn a_difference_by_chance_is_noise() {
        let mut state = 7_u64;
        let mut heads = || {
            (0..2_000)
                .filter(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 11) % 10 < 3
                })
                .count() as u64
        };
        let verdicts: Vec<Verdict> = (0..500).map(|_| change(heads(), 2_000, heads(), 2_000).verdict).collect();
        let share = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        assert!((460..=490).contains(&share(Verdict::Noise)), "{}", share(Verdict::Noise));
        assert!(share(Verdict::Clear) <= 1, "{}", share(Verdict::Clear));
    }
}
