//! How long a measurement runs, and what it reports meanwhile.

use crate::outcome::Outcome;
use std::time::{Duration, Instant};

/// The time of one part, if it is not given another.
pub const MINUTES: u64 = 10;
/// Rounds that are measured however long they take: a median of fewer is worth little.
const ROUNDS_LEAST: usize = 5;

/// What a measurement reports while it runs.
pub enum News<'n> {
    /// Which share of it is done, from 0 to 1.
    Done(f64),
    /// All figures that it has so far, instead of those that were reported before.
    SoFar(&'n Outcome),
}

/// The time that a measurement has, its sizes, and the receiver of its progress.
pub struct Run<'t> {
    report: &'t dyn Fn(News),
    is_short: bool,
    is_long: bool,
    only: Option<&'t str>,
    end: Instant,
    /// Share of the whole that precedes this, and this one's own.
    before: f64,
    share: f64,
}

impl<'t> Run<'t> {
    /// A measurement that has this time.
    pub fn new(report: &'t dyn Fn(News), time: Duration) -> Run<'t> {
        Run { report, is_short: false, is_long: false, only: None, end: Instant::now() + time, before: 0.0, share: 1.0 }
    }

    /// A measurement that only shows that it works: one round, small sizes, no Linux guests.
    pub fn short() -> Run<'static> {
        Run { is_short: true, ..Run::new(&|_| (), Duration::ZERO) }
    }

    /// The same, which also measures what an ordinary run leaves out.
    pub fn with_long(self, is_long: bool) -> Run<'t> {
        Run { is_long, ..self }
    }

    /// The same, of which a measurement that can do so measures only what has this in its name.
    pub fn with_only(self, only: Option<&'t str>) -> Run<'t> {
        Run { only, ..self }
    }

    /// What names have to contain, if not everything is to be measured.
    pub fn only(&self) -> Option<&'t str> {
        self.only
    }

    /// Whether everything is to be measured.
    pub fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether figures are worth nothing.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// A size, or a smaller one that is enough to show that the measurement works.
    pub fn size<T>(&self, full: T, short: T) -> T {
        if self.is_short { short } else { full }
    }

    /// The time that is left.
    pub fn time_left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// The part `index` of `count` of this measurement, with its share of the time that is left.
    pub fn part(&self, index: usize, count: usize) -> Run<'t> {
        let left = count.saturating_sub(index).max(1);
        let share = self.share / count.max(1) as f64;
        let (before, end) = (self.before + share * index as f64, Instant::now() + self.time_left() / left as u32);
        Run { end, before, share, ..*self }
    }

    /// The numbers of the rounds: at most `most`, fewer if there is no time for more, but at least five; one in a short run.
    pub fn rounds(&self, most: usize) -> impl Iterator<Item = usize> + use<'_, 't> {
        let most = self.size(most, 1);
        let mut next = 0;
        std::iter::from_fn(move || {
            let round = next;
            self.done(round, most);
            let has_time = round < ROUNDS_LEAST || !self.time_left().is_zero();
            next += 1;
            (round < most && has_time).then_some(round)
        })
    }

    /// Reports that `done` of `total` steps are done.
    pub fn done(&self, done: usize, total: usize) {
        (self.report)(News::Done(self.before + self.share * done as f64 / total.max(1) as f64));
    }

    /// Reports the figures that there are.
    pub fn figures(&self, outcome: &Outcome) {
        (self.report)(News::SoFar(outcome));
    }

    /// Reports them with those that `add` makes of what has been measured so far.
    pub fn so_far(&self, outcome: &Outcome, add: impl FnOnce(&mut Outcome)) {
        let mut outcome = outcome.clone();
        add(&mut outcome);
        self.figures(&outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn rounds_end_with_the_time_but_not_before_the_fifth() {
        let rounds = |run: &Run, most| run.rounds(most).collect::<Vec<_>>();
        assert_eq!(rounds(&Run::new(&|_| (), HOUR), 7).len(), 7);
        assert_eq!(rounds(&Run::new(&|_| (), Duration::ZERO), 7), [0, 1, 2, 3, 4]);
        assert_eq!(rounds(&Run::new(&|_| (), Duration::ZERO), 3).len(), 3);
        assert_eq!(rounds(&Run::short(), 7), [0]);
        assert_eq!((Run::short().size(7, 2), Run::new(&|_| (), HOUR).size(7, 2)), (2, 7));
    }

    #[test]
    fn parts_share_the_progress_and_the_time() {
        let shares = RefCell::new(Vec::new());
        let report = |news: News| {
            if let News::Done(share) = news {
                shares.borrow_mut().push((share * 100.0).round() as u32);
            }
        };
        let run = Run::new(&report, HOUR);
        let half = run.part(1, 2);
        half.rounds(2).for_each(drop);
        half.part(0, 5).done(1, 1);
        assert_eq!(shares.take(), [50, 75, 100, 60]);
        // The first half took no time, so the second may take all of it.
        assert!(half.time_left() > HOUR / 2 && run.part(0, 4).time_left() <= HOUR / 4);
    }
}
