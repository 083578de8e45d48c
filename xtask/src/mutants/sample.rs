//! The sample of changes to try.

use anyhow::{Context, Result};
use serde_json::Value;

/// A change that cargo-mutants can make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// File, line, column and what is changed.
    pub name: String,
    pub package: String,
}

/// What `cargo mutants --list --json` printed, sorted, each name once.
pub fn parse(listed: &str) -> Result<Vec<Mutant>> {
    let listed: Value = serde_json::from_str(listed).context("this is not JSON")?;
    let text = |mutant: &Value, key: &str| mutant[key].as_str().map(str::to_owned);
    let mutants = listed.as_array().into_iter().flatten();
    let mutants = mutants.filter_map(|one| Some(Mutant { name: text(one, "name")?, package: text(one, "package")? }));
    let mut mutants: Vec<Mutant> = mutants.collect();
    mutants.sort();
    mutants.dedup_by(|one, other| one.name == other.name);
    Ok(mutants)
}

/// One of each of `count` equal sections of `mutants`, so that each file has its share.
pub fn sample(mutants: &[Mutant], count: usize, seed: u64) -> Vec<Mutant> {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = count.min(mutants.len());
    let stretch = |index: usize| index * mutants.len() / count;
    (0..count).map(|index| mutants[random.usize(stretch(index)..stretch(index + 1))].clone()).collect()
}

/// A regular expression that matches `name` and nothing else.
pub fn pattern(name: &str) -> String {
    format!("^{}$", regex::escape(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_and_repeatable() {
        let mutant = |number: u32| Mutant { name: format!("{number:03}"), package: "p".to_owned() };
        let mutants: Vec<Mutant> = (0..100).map(mutant).collect();
        let chosen = sample(&mutants, 10, 7);
        assert_eq!(chosen, sample(&mutants, 10, 7));
        assert_ne!(chosen, sample(&mutants, 10, 8));
        let decades: Vec<&str> = chosen.iter().map(|mutant| &mutant.name[..2]).collect();
        assert_eq!(decades, ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09"]);
        assert_eq!(sample(&mutants, 1000, 1), mutants);
    }

    #[test]
    fn a_name_that_is_listed_twice_counts_once() {
        let listed = r#"[{"name": "b", "package": "p"}, {"name": "a", "package": "p"}, {"name": "b", "package": "p"}]"#;
        let names: Vec<String> = parse(listed).unwrap().into_iter().map(|mutant| mutant.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(parse("no JSON").is_err());
    }

    #[test]
    fn names_are_matched_as_they_are() {
        assert_eq!(pattern("a.rs:1: -> Ok(())"), r"^a\.rs:1: \-> Ok\(\(\)\)$");
    }
}
