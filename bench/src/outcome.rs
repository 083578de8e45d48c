//! The result of a measurement, and the turns in which contestants are measured.

use crate::figure::Figure;
use crate::run::Run;
use crate::statistics::turn;
use anyhow::Result;
use glass_tests::queue::World;

/// Figures, and notes for their reader.
#[derive(Debug, Default, Clone)]
pub struct Outcome {
    /// The figures.
    pub figures: Vec<Figure>,
    /// Conditions, and left out peers with the reason.
    pub notes: Vec<String>,
    /// Why nothing was measured.
    pub skipped: Option<String>,
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

    /// Reports that this machine, or a short run, cannot measure this part.
    pub fn skip(&mut self, reason: impl Into<String>) {
        self.skipped = Some(reason.into());
    }

    /// Adds what another part has measured.
    pub fn extend(&mut self, other: Outcome) {
        self.figures.extend(other.figures);
        self.notes.extend(other.notes);
    }

    /// Those of `worlds` that this machine has; the others are noted with the reason. Without any the measurement is skipped.
    pub fn available(&mut self, worlds: impl IntoIterator<Item = World>) -> Vec<World> {
        let mut available = Vec::new();
        for world in worlds {
            match world.obstacle() {
                Some(reason) => self.note(format!("{world} skipped: {reason}")),
                None => available.push(world),
            }
        }
        if available.is_empty() {
            self.skip(self.notes.join("; "));
        }
        available
    }
}

/// Measures each of so many contestants once in each round, in turn. `add` makes figures of their results, by contestant: after each
/// round for those who watch, and at the end for `outcome`.
pub fn in_turn<T>(
    outcome: &mut Outcome,
    contestants: usize,
    rounds: usize,
    run: &Run,
    mut measure: impl FnMut(usize) -> Result<T>,
    add: impl Fn(&mut Outcome, &[Vec<T>]),
) -> Result<()> {
    let mut results: Vec<Vec<T>> = (0..contestants).map(|_| Vec::new()).collect();
    for round in run.rounds(rounds) {
        for index in turn(contestants, round) {
            results[index].push(measure(index)?);
        }
        run.so_far(outcome, |outcome| add(outcome, &results));
    }
    add(outcome, &results);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::News;
    use anyhow::bail;
    use std::cell::RefCell;
    use std::time::Duration;

    #[test]
    fn after_each_round_there_are_figures() {
        let seen = RefCell::new(Vec::new());
        let report = |news: News| {
            if let News::SoFar(outcome) = news {
                seen.borrow_mut().push(outcome.figures.len());
            }
        };
        let run = Run::new(&report, Duration::from_secs(600));
        let mut outcome = Outcome::default();
        let add = |outcome: &mut Outcome, results: &[Vec<f64>]| {
            results.iter().for_each(|samples| outcome.add(Figure::of("x", "ms", samples)));
        };
        in_turn(&mut outcome, 2, 3, &run, |index| Ok(index as f64), add).unwrap();
        assert_eq!((outcome.figures.len(), outcome.figures[1].n), (2, 3));
        assert_eq!(seen.take(), [2, 2, 2]);
        // What a measurement has before it fails is not lost.
        let fails = |index| if seen.borrow().is_empty() { Ok(index as f64) } else { bail!("broken") };
        in_turn(&mut Outcome::default(), 2, 3, &run, fails, add).unwrap_err();
        assert_eq!(seen.take(), [2]);
    }
}
