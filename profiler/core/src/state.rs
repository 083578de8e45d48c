//! What a track does in a sample: the one list of states. Views, exports and recordings go by it.

/// State of a track in a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Running code.
    #[default]
    Running,
    /// Awake, polling for work before it halts.
    Spinning,
    /// Halted or descheduled.
    Idle,
    /// A core that was not started yet.
    NeverStarted,
    /// The owner has paused the whole guest.
    Paused,
    /// Runnable, but the host ran something else.
    Stolen,
    /// The VMM worked for the vCPU, which could not run meanwhile.
    InVmm,
    /// The source could not determine it.
    Unknown,
    /// A thread that waits, on no CPU, in a recording of what threads wait for.
    Waiting,
}

impl State {
    /// All states; the position of one is its number in a recording.
    pub const ALL: [State; 9] = [
        State::Running,
        State::Spinning,
        State::Idle,
        State::NeverStarted,
        State::Paused,
        State::Stolen,
        State::InVmm,
        State::Unknown,
        State::Waiting,
    ];

    /// The states that every view shows. It shows each of the others where there is a sample in it.
    pub const COMMON: [State; 3] = [State::Running, State::Spinning, State::Idle];

    /// The states in which a guest's code ran, or the VMM on its behalf, or in which a thread waits in a recording of just that: shares of functions
    /// are counted of these. All others are no function's time.
    pub const ACTIVE: [State; 3] = [State::Running, State::InVmm, State::Waiting];

    /// Whether its time is time of functions.
    pub fn is_active(self) -> bool {
        State::ACTIVE.contains(&self)
    }

    /// Its position in [`State::ALL`].
    pub fn number(self) -> usize {
        self as usize
    }

    /// The word for it in views and exports.
    pub fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Spinning => "spinning",
            State::Idle => "idle",
            State::NeverStarted => "never started",
            State::Paused => "paused",
            State::Stolen => "stolen",
            State::InVmm => "in the VMM",
            State::Unknown => "state unknown",
            State::Waiting => "waiting",
        }
    }

    /// Whether views show it only where there is a sample in it.
    pub fn is_rare(self) -> bool {
        !State::COMMON.contains(&self)
    }
}

/// Samples in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts([u64; State::ALL.len()]);

impl StateCounts {
    /// The samples in a state.
    pub fn of(&self, state: State) -> u64 {
        self.0[state.number()]
    }

    /// Counts samples in a state.
    pub fn add(&mut self, state: State, samples: u64) {
        self.0[state.number()] += samples;
    }

    /// The samples in all states.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The samples in states in which code ran.
    pub fn active(&self) -> u64 {
        State::ACTIVE.into_iter().map(|state| self.of(state)).sum()
    }

    /// What the samples are called that shares of functions are counted of: `running samples`, and what else there is.
    pub fn active_words(&self) -> &'static str {
        match (self.of(State::InVmm), self.of(State::Waiting)) {
            (0, 0) => "running samples",
            (_, 0) => "samples, running or in the VMM",
            _ => "samples, running or waiting",
        }
    }

    /// The rare states with samples, and how many.
    pub fn rare(&self) -> impl Iterator<Item = (State, u64)> {
        State::ALL
            .into_iter()
            .filter(|state| state.is_rare())
            .map(|state| (state, self.of(state)))
            .filter(|rare| rare.1 > 0)
    }
}

impl std::ops::AddAssign for StateCounts {
    fn add_assign(&mut self, other: StateCounts) {
        for (sum, samples) in self.0.iter_mut().zip(other.0) {
            *sum += samples;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_the_order_of_the_numbers() {
        for (number, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state.number(), number, "{state:?}");
        }
        let words: std::collections::HashSet<_> = State::ALL.map(State::word).into();
        assert_eq!(words.len(), State::ALL.len());
    }

    #[test]
    fn what_is_rare_is_listed_where_it_was_seen() {
        let mut counts = StateCounts::default();
        counts.add(State::Running, 3);
        counts.add(State::Stolen, 2);
        counts.add(State::Stolen, 1);
        assert_eq!((counts.of(State::Stolen), counts.all()), (3, 6));
        assert_eq!(counts.rare().collect::<Vec<_>>(), [(State::Stolen, 3)]);
        assert_eq!((counts.active(), counts.active_words()), (3, "running samples"));
        counts.add(State::InVmm, 4);
        assert_eq!((counts.active(), counts.active_words()), (7, "samples, running or in the VMM"));
    }
}
