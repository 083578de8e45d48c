//! The shares of functions of a guest's programs: by samples, and by perf, which records inside of the guest at the same time.

use super::Recorder;
use super::sampled::{active, innermost};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::perf::names::{UNKNOWN, normal};
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::guest::Mode;
use glass_profiler_core::recording::Recording;
use glass_tests::linux_guest::{self, Guest, Parts, Release, Settings};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const RATE: &str = "99";
/// How long both record.
const SECONDS: std::ops::RangeInclusive<u64> = 10..=300;
/// What there is beside the recording: the guest boots, and perf names its samples.
const BOOT: Duration = Duration::from_secs(90);
const PATIENCE: Duration = Duration::from_secs(180);
/// perf with its libraries.
const PERF: &str = "LD_LIBRARY_PATH=/tools/lib/x86_64-linux-gnu:/tools/usr/lib/x86_64-linux-gnu /tools/usr/bin/perf";
/// Above this share of a program's samples without a name in either, the program is compared as a whole.
const UNNAMED: f64 = 0.5;
/// Functions that are compared.
const TOP: usize = 20;
/// Shares may differ by so many standard errors, and by so many points.
const ERRORS: f64 = 3.0;
const POINTS: f64 = 2.0;

/// A function: the file name of its program or library, and its name.
type Function = (String, String);

/// Samples in user space by function.
#[derive(Debug, Default, PartialEq)]
struct Shares(BTreeMap<Function, u64>);

/// A function's shares, in percent.
struct Compared {
    function: Function,
    glass: f64,
    perf: f64,
    error: f64,
}

/// Measures one guest.
pub(super) fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let release = Release::Bookworm61;
    let parts = Parts::get(release).and_then(|parts| Ok((parts, linux_guest::tools().context("no perf for it")?)));
    let (parts, tools) = match parts {
        Ok(parts) => parts,
        Err(reason) => {
            outcome.note(format!("no Linux {release}: {reason:#}"));
            return Ok(());
        }
    };
    let seconds = run.time_left().saturating_sub(BOOT).as_secs().clamp(*SECONDS.start(), *SECONDS.end());
    let mut guest = Guest::boot(&parts, &Settings { tools: Some(tools), ..Settings::new(release) })?;
    guest.start_programs()?;
    // perf reads its libraries from the disk before it records.
    guest.expect(&format!("{PERF} record -a -e cpu-clock:u -o /tmp/first -- true 2>&1"), PATIENCE)?;
    let record = format!("{PERF} record -a -B -e cpu-clock:u -F {RATE} -o /tmp/perf.data -- sleep {seconds}");
    guest.expect(&format!("({record} >/tmp/perf-log 2>&1; echo $? >/tmp/perf-ended) &"), PATIENCE)?;
    let root = parts.root.files.to_str().context("a path that is no text")?;
    let recorder = Recorder::start(&guest, seconds, &["--rate", RATE, "--guest-root", root])?;
    let (_, recording) = recorder.end()?;
    let wait = "until [ -e /tmp/perf-ended ]; do sleep 1; done; cat /tmp/perf-log; exit $(cat /tmp/perf-ended)";
    // The guest's clock does not run while it is stopped, so perf ends later.
    guest.expect(wait, PATIENCE + Duration::from_secs(seconds))?;
    let script =
        format!("{PERF} script -i /tmp/perf.data -F ip,sym,dso 2>/dev/null | sed 's/^ *[0-9a-f]* //' | sort | uniq -c");
    let perf = Shares::of_perf(&guest.expect(&script, PATIENCE)?);
    let glass = Shares::of(&recording);
    report(outcome, &glass, &perf, seconds)
}

impl Shares {
    fn of(recording: &Recording) -> Shares {
        let mut shares = Shares::default();
        for (mode, frame) in active(recording).filter_map(|sample| innermost(recording, sample)) {
            if mode == Mode::User {
                shares.add(&frame.image, &frame.function, 1);
            }
        }
        shares
    }

    /// Lines of a count, a name and a path in parentheses.
    fn of_perf(text: &str) -> Shares {
        let mut shares = Shares::default();
        for line in text.lines() {
            let Some((count, rest)) = line.trim().split_once(' ') else { continue };
            let Some((name, path)) = rest.trim().strip_suffix(')').and_then(|rest| rest.rsplit_once(" (")) else {
                continue;
            };
            if let Ok(count) = count.parse() {
                shares.add(path, name, count);
            }
        }
        shares
    }

    fn add(&mut self, path: &str, name: &str, count: u64) {
        let file = path.rsplit('/').next().unwrap_or(path).to_owned();
        *self.0.entry((file, normal(name))).or_default() += count;
    }

    fn samples(&self) -> u64 {
        self.0.values().sum()
    }

    /// The files most of whose code has no name.
    fn unnamed(&self) -> BTreeSet<&str> {
        let mut of_files: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for ((file, name), count) in &self.0 {
            let (all, unnamed) = of_files.entry(file).or_default();
            (*all, *unnamed) = (*all + count, *unnamed + if name == UNKNOWN { *count } else { 0 });
        }
        let is_unnamed = |(_, (all, unnamed)): &(&str, (u64, u64))| *unnamed as f64 > *all as f64 * UNNAMED;
        of_files.into_iter().filter(is_unnamed).map(|(file, _)| file).collect()
    }

    /// The same samples, with these files as a whole.
    fn without_names(&self, files: &BTreeSet<&str>) -> Shares {
        let mut shares = Shares::default();
        for ((file, name), count) in &self.0 {
            let name = if files.contains(file.as_str()) { UNKNOWN } else { name };
            *shares.0.entry((file.clone(), name.to_owned())).or_default() += count;
        }
        shares
    }

    /// A function's share.
    fn share(&self, function: &Function) -> f64 {
        self.0.get(function).copied().unwrap_or_default() as f64 / self.samples().max(1) as f64
    }

    fn hottest(&self) -> impl Iterator<Item = &Function> {
        let mut functions: Vec<_> = self.0.iter().collect();
        functions.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        functions.into_iter().take(TOP).map(|(function, _)| function)
    }
}

impl Compared {
    fn difference(&self) -> f64 {
        (self.glass - self.perf).abs()
    }

    /// By how much the shares differ beyond what chance allows, in points.
    fn beyond_chance(&self) -> f64 {
        (self.difference() - ERRORS * self.error).max(0.0)
    }
}

/// The hottest functions of either, the largest share by perf first.
fn compare(glass: &Shares, perf: &Shares) -> Vec<Compared> {
    let unnamed: BTreeSet<&str> = glass.unnamed().union(&perf.unnamed()).copied().collect();
    let (glass, perf) = (glass.without_names(&unnamed), perf.without_names(&unnamed));
    let functions: BTreeSet<&Function> = glass.hottest().chain(perf.hottest()).collect();
    let compared = |function: &Function| {
        let of = [glass.share(function), perf.share(function)];
        let share = of.iter().sum::<f64>() / 2.0;
        let variance = |shares: &Shares| share * (1.0 - share) / shares.samples().max(1) as f64;
        let error = 100.0 * (variance(&glass) + variance(&perf)).sqrt();
        Compared { function: function.clone(), glass: 100.0 * of[0], perf: 100.0 * of[1], error }
    };
    let mut all: Vec<Compared> = functions.into_iter().map(compared).collect();
    all.sort_by(|a, b| b.perf.total_cmp(&a.perf));
    all
}

fn report(outcome: &mut Outcome, glass: &Shares, perf: &Shares, seconds: u64) -> Result<()> {
    ensure!(glass.samples() > 0 && perf.samples() > 0, "no samples: {glass:?} {perf:?}");
    let all = compare(glass, perf);
    let most = |value: fn(&Compared) -> f64| all.iter().map(value).fold(0.0, f64::max);
    let figure = |what: &str, unit: &str, value: f64| Figure::of(&format!("linux.shares.{what}"), unit, &[value]);
    outcome.add(figure("perf_points", "points", most(Compared::difference)));
    outcome.add(figure("perf_beyond_chance_points", "points", most(Compared::beyond_chance)));
    outcome.add(figure("perf_error_points", "points", most(|compared| compared.error)));
    outcome.note(format!(
        "shares of functions of programs in {seconds} s, by {} samples of glass and {} of `perf record -e cpu-clock:u` in the guest; standard error of their difference; beyond {ERRORS} of these at most {POINTS} points are expected:",
        glass.samples(),
        perf.samples()
    ));
    for Compared { function: (file, name), glass, perf, error } in &all {
        outcome.note(format!("  {glass:6.2} % {perf:6.2} % {error:5.2}  {name} ({file})"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_perf_are_shares() {
        let text = "     30 inner (/app/with-fp)\n     20 inner (/app/static)\n      5 operator() (/app/deep)\n\
            45 [unknown] (/app/stripped)\nperf: nonsense\n";
        let shares = Shares::of_perf(text);
        assert_eq!(shares.samples(), 100);
        let of = |file: &str, name: &str| shares.share(&(file.to_owned(), name.to_owned()));
        assert_eq!((of("with-fp", "inner"), of("static", "inner"), of("stripped", UNKNOWN)), (0.3, 0.2, 0.45));
        assert_eq!(shares.unnamed().into_iter().collect::<Vec<_>>(), ["stripped"]);
    }

    #[test]
    fn a_share_that_differs_by_more_than_chance_shows() {
        let shares = |counts: &[(&str, u64)]| {
            let mut shares = Shares::default();
            counts.iter().for_each(|(name, count)| shares.add("/app/x", name, *count));
            shares
        };
        let beyond = |glass: &Shares, perf: &Shares| {
            compare(glass, perf).iter().map(Compared::beyond_chance).fold(0.0, f64::max)
        };
        let perf = shares(&[("a", 5000), ("b", 5000)]);
        assert_eq!(beyond(&shares(&[("a", 4900), ("b", 5100)]), &perf), 0.0);
        assert!(beyond(&shares(&[("a", 4000), ("b", 6000)]), &perf) > 7.0);
        assert!(beyond(&shares(&[("a", 5000), ("c", 5000)]), &perf) > 45.0);
        // What one of them cannot name is compared as a whole.
        assert_eq!(beyond(&shares(&[("0x1000", 5000), ("0x2000", 5000)]), &perf), 0.0);
    }
}
