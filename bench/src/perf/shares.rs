//! How much of its samples each profiler gives to each function.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::names::{UNKNOWN, normal};

/// Functions that must not be in the profile: those of another build at the program's path.
pub(super) const WRONG: &str = "wrong_";
/// By how many standard errors shares may differ, and by how many additional points.
const ERRORS: f64 = 5.0;
const POINTS: f64 = 1.0;
/// Above this share, perf lacks the names of a whole program.
const UNNAMED_PERCENT: f64 = 10.0;

/// Samples in user space, and the self samples of each function.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) samples: u64,
    counts: BTreeMap<String, u64>,
}

impl Shares {
    fn add(&mut self, name: &str) {
        self.samples += 1;
        *self.counts.entry(normal(name)).or_default() += 1;
    }

    /// The lines of `perf script -F ip,sym`: an address and a name.
    pub(super) fn of_perf(text: &str) -> Shares {
        let mut shares = Shares::default();
        let names = text.lines().filter_map(|line| line.trim().split_once(' ')).map(|(_, name)| name);
        names.for_each(|name| shares.add(name));
        shares
    }

    /// The output of `glass export --format firefox`. Inlined functions count for the function that contains them.
    /// Samples in the kernel are left out.
    pub(super) fn of_firefox(profile: &Value) -> Result<Shares> {
        let mut shares = Shares::default();
        let categories = profile["meta"]["categories"].as_array().context("the export has no categories")?;
        let of_kernel = categories.iter().position(|category| category["name"] == "Kernel");
        let of_kernel = of_kernel.context("the export has no category for the kernel")? as u64;
        for thread in profile["threads"].as_array().context("the export has no threads")? {
            let texts = thread["stringArray"].as_array().or(profile["shared"]["stringArray"].as_array());
            let column = |table: &str, column: &str, row: u64| thread[table][column][row as usize].as_u64();
            for stack in thread["samples"]["stack"].as_array().into_iter().flatten() {
                let mut stack = stack.as_u64();
                let name = loop {
                    let Some(at) = stack else { break None };
                    let frame = column("stackTable", "frame", at).context("a stack without a frame")?;
                    if column("frameTable", "category", frame) == Some(of_kernel) {
                        break None;
                    }
                    if column("frameTable", "inlineDepth", frame).unwrap_or(0) == 0 {
                        let function = column("frameTable", "func", frame).context("a frame without a function")?;
                        let text = column("funcTable", "name", function).context("a function without a name")?;
                        break texts.and_then(|texts| texts[text as usize].as_str());
                    }
                    stack = column("stackTable", "prefix", at);
                };
                if let Some(name) = name {
                    shares.add(name);
                }
            }
        }
        Ok(shares)
    }

    /// The same samples, without the names that the other profiler lacks.
    fn named_by(&self, other: &Shares) -> Shares {
        let mut shares = Shares { samples: self.samples, counts: BTreeMap::new() };
        for (name, count) in &self.counts {
            let name = if other.counts.contains_key(name) { name } else { UNKNOWN };
            *shares.counts.entry(name.to_owned()).or_default() += count;
        }
        shares
    }

    fn percent(&self, name: &str) -> f64 {
        100.0 * self.counts.get(name).copied().unwrap_or(0) as f64 / self.samples.max(1) as f64
    }

    fn hottest(&self, count: usize) -> impl Iterator<Item = &String> {
        let mut names: Vec<_> = self.counts.iter().collect();
        names.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        names.into_iter().take(count).map(|(name, _)| name)
    }
}

/// A function with its share in both.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) glass_percent: f64,
    pub(super) perf_percent: f64,
}

impl Function {
    pub(super) fn difference_points(&self) -> f64 {
        (self.glass_percent - self.perf_percent).abs()
    }

    /// How much the shares may differ by chance.
    pub(super) fn allowed_points(&self, glass: &Shares, perf: &Shares) -> f64 {
        let share = (self.glass_percent + self.perf_percent) / 200.0;
        let variance = |shares: &Shares| share * (1.0 - share) / shares.samples.max(1) as f64;
        100.0 * ERRORS * (variance(glass) + variance(perf)).sqrt() + POINTS
    }
}

/// The hottest functions of either.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) functions: Vec<Function>,
    /// Functions of another program that ours shows.
    pub(super) wrong_names: usize,
}

impl Comparison {
    pub(super) fn of(glass: &Shares, perf: &Shares, top: usize) -> Comparison {
        let wrong_names = glass.counts.keys().filter(|name| name.contains(WRONG)).count();
        // Code that perf cannot name, of a deleted file, is compared in sum.
        let folded;
        let mut glass = glass;
        if perf.percent(UNKNOWN) > UNNAMED_PERCENT {
            folded = glass.named_by(perf);
            glass = &folded;
        }
        let names: BTreeSet<&String> = perf.hottest(top).chain(glass.hottest(top)).collect();
        let function = |name: &&String| Function {
            name: (*name).clone(),
            glass_percent: glass.percent(name),
            perf_percent: perf.percent(name),
        };
        let mut functions: Vec<Function> = names.iter().map(function).collect();
        functions.sort_by(|a, b| b.perf_percent.total_cmp(&a.perf_percent));
        Comparison { functions, wrong_names }
    }

    /// The function that differs most.
    pub(super) fn worst(&self) -> Option<&Function> {
        self.functions.iter().max_by(|a, b| a.difference_points().total_cmp(&b.difference_points()))
    }

    pub(super) fn holds(&self, glass: &Shares, perf: &Shares) -> bool {
        let agrees = |function: &Function| function.difference_points() <= function.allowed_points(glass, perf);
        self.wrong_names == 0 && !self.functions.is_empty() && self.functions.iter().all(agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_both_forms_agree() {
        let perf = Shares::of_perf("   4010 work(int)\n 4020 work(int)\n  5000 [unknown]\n 4030 other+x\n");
        let categories = serde_json::json!([{"name": "Other"}, {"name": "Running"}, {"name": "Kernel"}]);
        let firefox = serde_json::json!({"meta": {"categories": categories}, "threads": [{
            "stringArray": ["work", "inlined", "0x5000", "vfs_read", "other+x"],
            "funcTable": {"name": [0, 1, 2, 3, 4]},
            "frameTable": {
                "func": [0, 1, 2, 3, 4],
                "inlineDepth": [0, 1, 0, 0, 0],
                "category": [1, null, 1, 2, null],
            },
            "stackTable": {"frame": [0, 1, 2, 3, 4], "prefix": [null, 0, null, 0, null]},
            "samples": {"stack": [1, 0, 2, 3, 4, null]},
        }]});
        let glass = Shares::of_firefox(&firefox).unwrap();
        assert_eq!((glass.samples, perf.samples), (4, 4));
        assert_eq!(glass.counts, perf.counts);
        assert!(Comparison::of(&glass, &perf, 10).holds(&glass, &perf));
    }

    #[test]
    fn another_share_or_a_wrong_name_does_not_hold() {
        let shares = |functions: &[(&str, u64)]| {
            let mut shares = Shares::default();
            for (name, count) in functions {
                (0..*count).for_each(|_| shares.add(name));
            }
            shares
        };
        let perf = shares(&[("a", 5000), ("b", 5000)]);
        let holds = |glass: &Shares| Comparison::of(glass, &perf, 10).holds(glass, &perf);
        assert!(holds(&shares(&[("a", 4900), ("b", 5100)])));
        assert!(!holds(&shares(&[("a", 4000), ("b", 6000)])));
        assert!(!holds(&shares(&[("a", 5000), ("c", 5000)])));
        assert!(!holds(&shares(&[("a", 5000), ("b", 5000), ("wrong_c", 1)])));
        // perf has lost a program's file.
        let blind = shares(&[("memcpy", 4000), ("0x10", 6000)]);
        let holds = |glass: &Shares| Comparison::of(glass, &blind, 10).holds(glass, &blind);
        assert!(holds(&shares(&[("memcpy", 4000), ("a", 3500), ("b", 2500)])));
        assert!(!holds(&shares(&[("memcpy", 6000), ("a", 4000)])));
        assert!(!holds(&shares(&[("memcpy", 4000), ("wrong_a", 6000)])));
    }
}
