//! The result of a measurement, and its progress.

use crate::figure::Figure;
use crate::statistics::turn;
use anyhow::{Result, bail};
use glass_tests::queue::World;

/// Figures, and notes for their reader.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub figures: Vec<Figure>,
    /// Conditions, and left out parts with the reason.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Adds a figure if there is one.
    pub fn add(&mut self, figure: Option<Figure>) {
        self.figures.extend(figure);
    }

    /// Adds a remark.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Those of `worlds` that this machine has; the others are noted with the reason.
    pub fn available(&mut self, worlds: impl IntoIterator<Item = World>) -> Vec<World> {
        let mut available = Vec::new();
        for world in worlds {
            match world.obstacle() {
                Some(reason) => self.note(format!("{world} skipped: {reason}")),
                None => available.push(world),
            }
        }
        available
    }
}

/// Called with completed measurements, or rounds of them, and with the total of these.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// Measures each of so many contestants once in each round, in turn. Returns their results, by contestant.
pub fn in_turn<T>(
    contestants: usize,
    rounds: usize,
    progress: Progress,
    mut measure: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = (0..contestants).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (measured, index) in (round * contestants..).zip(turn(contestants, round)) {
            results[index].push(measure(index)?);
            progress(measured as u64 + 1, (rounds * contestants) as u64);
        }
    }
    Ok(results)
}

/// A part of a measurement, which adds its figures by itself, and its name.
pub type Part = (&'static str, fn(&mut Outcome, Progress) -> Result<()>);

/// Measures all parts, or the selected one.
pub fn run_parts(parts: &[Part], wanted: Option<&str>, progress: Progress) -> Result<Outcome> {
    let chosen: Vec<&Part> = parts.iter().filter(|part| wanted.is_none_or(|name| part.0 == name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = parts.iter().map(|part| part.0).collect();
        bail!("there is no part {:?}; there is: {}", wanted.unwrap_or_default(), names.join(", "));
    }
    let mut outcome = Outcome::default();
    for (index, (_, measure)) in (0u64..).zip(&chosen) {
        let count = chosen.len() as u64;
        measure(&mut outcome, &|done, total| progress(index * total + done, count * total))?;
        progress(index + 1, count);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_or_all() {
        fn one(outcome: &mut Outcome, _: Progress) -> Result<()> {
            outcome.note("A");
            Ok(())
        }
        fn other(outcome: &mut Outcome, _: Progress) -> Result<()> {
            outcome.note("B");
            Ok(())
        }
        let parts: [Part; 2] = [("a", one), ("b", other)];
        let notes = |wanted| run_parts(&parts, wanted, &|_, _| ()).map(|outcome| outcome.notes.concat());
        assert_eq!(notes(None).unwrap(), "AB");
        assert_eq!(notes(Some("b")).unwrap(), "B");
        assert_eq!(notes(Some("c")).unwrap_err().to_string(), "there is no part \"c\"; there is: a, b");
    }
}
